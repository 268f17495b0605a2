// The table of sessions, with search and a menu of actions per row.

import { byId, el, setText, showFault } from "./dom.js";
import { ago, count, kvText, shortId } from "./format.js";
import { openMenu } from "./menu.js";
import { hueClass } from "./palette.js";
import { SessionList } from "./session_list.js";
import { VirtualRows } from "./virtual_rows.js";

const ROW_HEIGHT = 38;
const SHOWN_ROWS = 9;
const COLUMNS = [
  ["Session", "id"],
  ["State", "state"],
  ["User", "user"],
  ["Policy", "policy"],
  ["Tokens", "tokens number"],
  ["Device", "held number"],
  ["Shared", "held number"],
  ["Host", "held number"],
  ["Disk", "held number"],
  ["KV", "kv number"],
  ["Used", "used number"],
  ["", "actions"],
];

export class SessionsPanel {
  #rows;
  #nowS = 0;
  #isCurrent = false;

  /** `everybodys`: sessions of all users; `actions`: of `SessionActions`; `onInspect(id)`. */
  constructor({ everybodys, actions, onInspect }) {
    this.actions = actions;
    this.onInspect = onInspect;
    this.list = new SessionList({ everybodys, onChange: () => this.draw() });
    const heads = COLUMNS.map(([name, kind]) => el("th", { scope: "col", class: kind }, name || el("span", { class: "unseen" }, "Actions")));
    byId("session-table").tHead.rows[0].append(...heads);
    this.#rows = new VirtualRows({
      viewport: byId("session-viewport"),
      table: byId("session-table"),
      rowHeight: ROW_HEIGHT,
      key: (one) => one.id,
      make: () => this.#make(),
      fill: (row, one) => this.#fill(row, one),
    });
    byId("session-search").addEventListener("input", () => this.#searched());
    byId("session-state").addEventListener("change", () => this.#searched());
  }

  async refresh() {
    await this.list.refresh();
    this.#isCurrent = true;
    this.draw();
  }

  fault(error) {
    showFault(byId("sessions-fault"), error?.message);
  }

  draw() {
    this.#nowS = Date.now() / 1000;
    const [text, state] = [byId("session-search").value, byId("session-state").value];
    const shown = this.list.matching(text, state);
    const all = this.list.count();
    this.#rows.show(shown);
    document.body.classList.toggle("many-users", shown.some((one) => one.user !== shown[0].user));
    const rest = this.list.isLoading ? ", loading more" : "";
    setText(byId("sessions-count"), shown.length === all ? `${count(all)}${rest}` : `${count(shown.length)} of ${count(all)}${rest}`);
    byId("session-viewport").style.height = `${Math.min(SHOWN_ROWS, Math.max(1, shown.length)) * ROW_HEIGHT + 36}px`;
    byId("session-viewport").hidden = shown.length === 0;
    byId("sessions-empty").hidden = shown.length > 0 || !this.#isCurrent;
    setText(byId("sessions-empty"), all ? "No session matches the search." : "No session is open. Send a message in the chat.");
  }

  /** Restore the focus to a row's menu button, if the row still exists. */
  focus(id) {
    const row = this.#rows.row(id);
    (row?.querySelector(".more") ?? byId("session-search")).focus();
  }

  #searched() {
    byId("session-viewport").scrollTop = 0;
    this.draw();
  }

  #make() {
    const id = (event) => event.currentTarget.closest("tr").dataset.key;
    const name = el("button", { type: "button", class: "name", on: { click: (event) => this.onInspect(id(event)) } }, el("i"), el("code"));
    const more = el("button", { type: "button", class: "plain more", "aria-haspopup": "menu", on: { click: (event) => this.#menu(event.currentTarget, id(event)) } }, "⋯");
    const cells = COLUMNS.map(([, kind]) => el(kind === "id" ? "th" : "td", { class: kind, scope: kind === "id" ? "row" : null }));
    cells[0].append(name);
    cells[1].append(el("span", { class: "state" }));
    cells.at(-1).append(more);
    return el("tr", {}, ...cells);
  }

  #fill(row, one) {
    const [name, state, user, policy, tokens, device, shared, host, disk, kv, used, actions] = row.cells;
    const button = name.firstChild;
    button.firstChild.className = `swatch ${hueClass(one.id)}`;
    setText(button.lastChild, shortId(one.id));
    button.title = this.list.isForeign(one) ? `Inspect ${one.id}: another user's` : `Inspect ${one.id}`;
    setText(state.firstChild, one.state);
    state.firstChild.dataset.state = one.state;
    setText(user, one.user);
    user.title = one.user;
    setText(policy, one.fidelity === "shifted" ? `${one.policy}, shifted` : one.policy);
    setText(tokens, one.tokens_kept === one.tokens_total ? count(one.tokens_total) : `${count(one.tokens_kept)} / ${count(one.tokens_total)}`);
    tokens.title = "tokens visible to the model, of all tokens";
    const { blocks } = one;
    setText(device, count(blocks.device));
    setText(shared, count(blocks.shared));
    setText(host, count(blocks.host));
    setText(disk, count(blocks.disk));
    setText(kv, kvText(one.kv_bytes));
    setText(used, ago(one.last_active_at, this.#nowS));
    actions.firstChild.setAttribute("aria-label", `Actions for ${shortId(one.id)}`);
  }

  #menu(button, id) {
    const one = this.list.find(id);
    if (one) openMenu(button, this.actions.of(one));
  }
}
