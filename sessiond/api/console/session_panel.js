// One session: its facts, its turns, its page table.

import { get } from "./api.js";
import { byId, el, setText, showFault } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { namedTurns, withOwners } from "./page_owners.js";
import { VirtualRows } from "./virtual_rows.js";

const ROW_HEIGHT = 32;
const SHOWN_ROWS = 8;
const PAGE_COLUMNS = [
  ["Block", "number"],
  ["First", "number"],
  ["Last", "number"],
  ["Base", "number"],
  ["Tokens", "number"],
  ["Holds", "holds"],
  ["Held by", "number"],
  ["Hashed", ""],
];

export class SessionPanel {
  #id = null;
  #parts = null;
  #rows = null;
  #session = null;
  #older = { context: null, turns: [] };

  /** `actions`: of `SessionActions`; `onLeave()`: the panel was closed. */
  constructor(actions, onLeave) {
    this.actions = actions;
    this.onLeave = onLeave;
  }

  get id() {
    return this.#id;
  }

  /** Show a session and scroll to it. */
  async open(id) {
    this.#id = id;
    this.#build();
    byId("session").hidden = false;
    await this.refresh().catch((error) => this.fault(error));
    byId("session-title").focus({ preventScroll: true });
    byId("session").scrollIntoView({ block: "nearest" });
  }

  leave() {
    this.#id = null;
    byId("session").hidden = true;
    this.onLeave();
  }

  async refresh() {
    if (!this.#id) return;
    const asked = this.#id;
    const path = `v1/sessions/${encodeURIComponent(asked)}?limit=100`;
    const session = await get(`${path}&include=page_table`);
    session.turns = [...(await this.#olderTurns(path, session)), ...session.turns];
    if (asked === this.#id) this.#show(session);
  }

  /** Turns before the newest page, read again only when the context has changed. */
  async #olderTurns(path, { id, turns_after: after, tokens_total: total, tokens_kept: kept }) {
    const context = [id, after, total, kept].join();
    if (this.#older.context !== context) {
      const turns = [];
      for (let next = after; next; ) {
        const page = await get(`${path}&after=${encodeURIComponent(next)}`);
        turns.unshift(...page.turns);
        next = page.turns_after;
      }
      this.#older = { context, turns };
    }
    return this.#older.turns;
  }

  fault(error) {
    if (this.#parts) showFault(this.#parts.fault, error?.message);
  }

  #build() {
    const parts = {
      title: el("h2", { id: "session-title", tabindex: "-1" }, "Session ", el("code", { title: this.#id }, this.#id)),
      state: el("span", { class: "state" }),
      fault: el("p", { class: "fault", hidden: true }),
      facts: el("dl", { class: "facts" }),
      strip: el("div", { class: "strip", role: "img" }),
      turns: el("tbody"),
      pagesCount: el("span", { class: "quiet" }),
      instructions: el("p", { class: "told", hidden: true }),
      viewport: el("div", { class: "viewport" }),
      none: el("p", { class: "empty" }, "No block of this session is on the device."),
      buttons: el("div", { class: "tools" }),
    };
    const leave = el("button", { type: "button", class: "plain", "aria-label": "Close the session's panel", on: { click: () => this.leave() } }, "✕");
    const turnsHead = ["Turn", "Role", "Tokens", "Kept", "Status"].map((name) => el("th", { scope: "col", class: ["Tokens", "Kept"].includes(name) ? "number" : null }, name));
    byId("session").replaceChildren(
      el("header", {}, parts.title, parts.state, parts.buttons, leave),
      parts.fault,
      parts.facts,
      parts.instructions,
      parts.strip,
      el("div", { class: "halves" },
        el("div", {}, el("h3", {}, "Context by turn"), el("div", { class: "viewport short" }, el("table", { class: "rows plain-table", "aria-label": "Turns" }, el("thead", {}, el("tr", {}, ...turnsHead)), parts.turns))),
        el("div", {}, el("h3", {}, "Page table ", parts.pagesCount), parts.viewport, parts.none)),
    );
    const heads = PAGE_COLUMNS.map(([name, kind]) => el("th", { scope: "col", class: kind || null }, name));
    const table = el("table", { class: "rows pages", "aria-label": "Page table" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody"));
    parts.viewport.tabIndex = 0;
    parts.viewport.append(table);
    this.#parts = parts;
    this.#rows = new VirtualRows({
      viewport: parts.viewport,
      table,
      rowHeight: ROW_HEIGHT,
      key: (entry) => String(entry.from),
      make: () => el("tr", {}, ...PAGE_COLUMNS.map(([, kind]) => el("td", { class: kind || null }))),
      fill: fillPage,
    });
  }

  #show(session) {
    this.#session = session;
    const parts = this.#parts;
    setText(parts.state, session.state);
    parts.state.dataset.state = session.state;
    this.#showButtons();
    showFacts(parts.facts, session);
    parts.instructions.hidden = !session.instructions;
    setText(parts.instructions, session.instructions ?? "");
    const turns = namedTurns(session.turns);
    showStrip(parts.strip, turns);
    parts.turns.replaceChildren(...turns.map(turnRow));
    const pages = withOwners(session);
    setText(parts.pagesCount, plural(pages.length, "entry", "entries"));
    this.#rows.show(pages);
    parts.viewport.hidden = pages.length === 0;
    parts.none.hidden = pages.length > 0;
    parts.viewport.style.height = `${Math.min(SHOWN_ROWS, Math.max(1, pages.length)) * ROW_HEIGHT + 34}px`;
  }

  #showButtons() {
    const entries = this.actions.of(this.#session).filter(({ name }) => name !== "Inspect");
    if (this.#parts.buttons.children.length === entries.length) return;
    const press = (at) => () => this.actions.of(this.#session).filter(({ name }) => name !== "Inspect")[at].run();
    this.#parts.buttons.replaceChildren(
      ...entries.map(({ name, isHarmful }, at) => el("button", { type: "button", class: isHarmful ? "plain harmful" : "plain", on: { click: press(at) } }, name)),
    );
  }
}

function fillPage(row, entry) {
  const { block, first, last, base, from, to, owners, references, hashed } = entry;
  const texts = [block, first, last, base, `${from}–${to}`, owners.join(", "), references, hashed ? "yes" : "no"];
  texts.forEach((text, at) => setText(row.cells[at], String(text)));
  row.cells[5].title = owners.join(", ");
  row.classList.toggle("shared", references > 1);
}

function showFacts(list, session) {
  const { blocks, kv_bytes: kv, usage } = session;
  const facts = {
    Context: `${count(session.tokens_kept)} of ${count(session.tokens_total)} tokens seen`,
    Policy: `${session.policy}, ${session.fidelity}`,
    Device: `${plural(blocks.device, "block")}, ${bytes(kv.device)}`,
    Shared: plural(blocks.shared, "block"),
    Host: `${plural(blocks.host, "block")}, ${bytes(kv.host)}`,
    Disk: `${plural(blocks.disk, "block")}, ${bytes(kv.disk)}`,
    "Read so far": `${count(usage.input_tokens)} tokens, ${count(usage.cached_tokens)} not computed`,
    Written: `${count(usage.output_tokens)} tokens in ${plural(usage.turns, "turn")}`,
    "When left": `${session.retention}, ${session.priority} priority`,
    User: session.user,
  };
  const parts = Object.entries(facts).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  list.replaceChildren(...parts);
}

function showStrip(strip, turns) {
  const pieces = turns.filter((turn) => turn.tokens > 0).map((turn) => {
    const piece = el("i", { class: `piece ${turn.role} ${isSeen(turn) ? "" : "dropped"}`, title: `${turn.name}: ${turn.tokens} tokens${isSeen(turn) ? "" : ", not seen"}` });
    piece.style.flexGrow = turn.tokens;
    return piece;
  });
  strip.replaceChildren(...pieces);
  const dropped = new Set(turns.filter((turn) => !isSeen(turn)).map((turn) => turn.number)).size;
  strip.setAttribute("aria-label", `The conversation by its turns, ${dropped ? `${plural(dropped, "turn")} not seen by the model` : "all seen by the model"}`);
}

/** A running turn is visible, although it joins the session only when it ends. */
const isSeen = (turn) => turn.kept > 0 || turn.status === "running";

function turnRow(turn) {
  const cells = [turn.number || "–", turn.number ? turn.role : "instructions", count(turn.tokens), count(turn.kept), isSeen(turn) ? turn.status : `${turn.status}, not seen`];
  const row = el("tr", { class: isSeen(turn) ? null : "gone", title: turn.response_id });
  row.append(...cells.map((text, at) => el("td", { class: at === 2 || at === 3 ? "number" : null }, String(text))));
  return row;
}
