// Dark or light theme: the system's until the user chooses one.

import { byId, setText } from "./dom.js";
import { themeChanged } from "./palette.js";

const CHOICE = "sessiond.theme";

/** Wire the button; `onChange()` redraws the canvases. */
export function startTheme(onChange) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = (choice) => {
    if (choice) document.documentElement.dataset.theme = choice;
    const dark = choice ? choice === "dark" : system.matches;
    setText(byId("theme"), dark ? "Light theme" : "Dark theme");
    themeChanged();
    onChange();
    return dark;
  };
  let dark = apply(localStorage.getItem(CHOICE));
  byId("theme").addEventListener("click", () => {
    const choice = dark ? "light" : "dark";
    localStorage.setItem(CHOICE, choice);
    dark = apply(choice);
  });
  system.addEventListener("change", () => {
    dark = apply(localStorage.getItem(CHOICE));
  });
}
