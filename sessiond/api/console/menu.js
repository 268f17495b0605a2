// The page's only menu, opened beside the button that requests it.

import { byId, el } from "./dom.js";

let opener = null;

/** `entries`: `{name, isHarmful, run}`. Arrows move, Escape closes and restores the focus. */
export function openMenu(button, entries) {
  const menu = byId("session-menu");
  close(false);
  opener = button;
  button.setAttribute("aria-expanded", "true");
  menu.replaceChildren(
    ...entries.map(({ name, isHarmful, run }) =>
      el("button", { type: "button", role: "menuitem", tabindex: -1, class: isHarmful ? "harmful" : null, on: { click: () => chosen(run) } }, name),
    ),
  );
  menu.hidden = false;
  place(menu, button.getBoundingClientRect());
  menu.firstChild.focus();
}

export function startMenu() {
  const menu = byId("session-menu");
  menu.addEventListener("keydown", (event) => move(menu, event));
  document.addEventListener("pointerdown", (event) => {
    if (!menu.contains(event.target)) close(false);
  });
  document.addEventListener("scroll", () => opener && place(menu, opener.getBoundingClientRect()), true);
}

function chosen(run) {
  close(true);
  run();
}

function close(giveFocusBack) {
  const menu = byId("session-menu");
  if (menu.hidden) return;
  menu.hidden = true;
  opener?.removeAttribute("aria-expanded");
  if (giveFocusBack) opener?.focus({ preventScroll: true });
  opener = null;
}

function place(menu, box) {
  const below = box.bottom + 4;
  const fits = below + menu.offsetHeight < innerHeight;
  menu.style.left = `${Math.max(8, box.right - menu.offsetWidth)}px`;
  menu.style.top = `${fits ? below : Math.max(8, box.top - menu.offsetHeight - 4)}px`;
}

function move(menu, event) {
  const entries = [...menu.children];
  const at = entries.indexOf(document.activeElement);
  const last = entries.length - 1;
  const next = { ArrowDown: at === last ? 0 : at + 1, ArrowUp: at <= 0 ? last : at - 1, Home: 0, End: last }[event.key];
  if (next !== undefined) entries[next].focus();
  if (event.key === "Escape" || event.key === "Tab") close(true);
  if (next !== undefined || event.key === "Escape") event.preventDefault();
}
