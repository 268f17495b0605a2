// Actions on a session, and their confirmation dialogs.

import { send } from "./api.js";
import { byId, el, setText, showFault } from "./dom.js";
import { shortId } from "./format.js";
import { tellDone, tellFailed } from "./notice.js";

const path = (id, rest = "") => `v1/sessions/${encodeURIComponent(id)}${rest}`;

const POLICIES = [
  { type: "", name: "default of the user or the server" },
  { type: "none", name: "none: keeps everything until the context is full" },
  { type: "sliding_window", name: "sliding_window: keeps the newest turns", number: "max_tokens" },
  { type: "last_turns", name: "last_turns: keeps a number of turns", number: "turns" },
  { type: "token_budget", name: "token_budget: keeps the first and the newest turns", number: "max_tokens" },
  { type: "compaction", name: "compaction: keeps a summary and the newest turns", number: "compact_threshold" },
];
const NUMBERS = { max_tokens: "Maximum tokens", turns: "Turns", compact_threshold: "Summarised above this many tokens" };

export class SessionActions {
  /** `on`: `inspect(id)`, `canTalk(session)`, `talk(session)`, `changed(session)`, `closed(id)`, `done(id)`. */
  constructor(on) {
    this.on = on;
    this.policyDialog = new PolicyDialog();
  }

  /** Entries of a session's menu. */
  of(session) {
    const { id } = session;
    return [
      { name: "Inspect", run: () => this.on.inspect(id) },
      ...(this.on.canTalk(session) ? [{ name: "Talk to it", run: () => this.on.talk(session) }] : []),
      { name: "Set policy…", run: () => this.setPolicy(session) },
      { name: "Park…", run: () => this.park(id) },
      { name: "Reset…", isHarmful: true, run: () => this.reset(id) },
      { name: "Close…", isHarmful: true, run: () => this.close(id) },
    ];
  }

  async park(id) {
    const text = "Its KV is moved from the device to lower tiers. The next turn restores it, and recomputes KV that no tier could keep. The conversation itself is unchanged.";
    if (!(await confirmed({ title: `Park ${shortId(id)}?`, text, action: "Park" }))) return this.on.done(id);
    await this.#do(id, "parked", () => send("POST", path(id, "/park")));
  }

  async reset(id) {
    const text = "It is reset to its instructions. Earlier responses can still be continued by their ids, which creates forks.";
    if (!(await confirmed({ title: `Reset ${shortId(id)}?`, text, action: "Reset", isHarmful: true }))) return this.on.done(id);
    await this.#do(id, "reset", () => send("POST", path(id, "/reset")));
  }

  async close(id) {
    const text = "Its text and token ids are deleted from the database, and its KV is overwritten. This can't be undone.";
    if (!(await confirmed({ title: `Close ${shortId(id)}?`, text, action: "Close permanently", isHarmful: true }))) return this.on.done(id);
    await this.#do(id, "closed", () => send("DELETE", path(id)));
  }

  async setPolicy(session) {
    const changed = await this.policyDialog.ask(session);
    if (changed) this.#tell(session.id, "given its policy", changed);
    this.on.done(session.id);
  }

  async #do(id, word, ask) {
    try {
      this.#tell(id, word, await ask());
    } catch (error) {
      tellFailed(`${shortId(id)} was not ${word}: ${error.message}`);
    }
    this.on.done(id);
  }

  #tell(id, word, answer) {
    tellDone(`${shortId(id)} was ${word}`);
    if (answer.deleted) this.on.closed(id);
    else this.on.changed(answer);
  }
}

/** Ask for confirmation before a harmful action; true if confirmed. */
export function confirmed({ title, text, action, isHarmful = false }) {
  const dialog = byId("confirm-dialog");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  setText(byId("confirm-yes"), action);
  byId("confirm-yes").classList.toggle("harmful", isHarmful);
  dialog.returnValue = "";
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    byId("confirm-yes").onclick = () => dialog.close("yes");
    byId("confirm-no").onclick = () => dialog.close("");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
  });
}

class PolicyDialog {
  #session = null;
  #answer = null;

  constructor() {
    const options = POLICIES.map(({ type, name }) => el("option", { value: type }, name));
    byId("policy-type").append(...options);
    byId("policy-type").addEventListener("change", () => this.#chosen());
    byId("policy-cancel").addEventListener("click", () => byId("policy-dialog").close());
    byId("policy-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#set();
    });
  }

  /** The changed session; null if nothing was set. */
  ask(session) {
    this.#session = session;
    this.#answer = null;
    const dialog = byId("policy-dialog");
    setText(byId("policy-session"), `of ${session.id}, effective from its next turn. Currently: ${session.policy}, ${session.fidelity}.`);
    const now = session.policy === "summarize" ? "compaction" : session.policy;
    byId("policy-type").value = POLICIES.some(({ type }) => type === now) ? now : "";
    byId("policy-fidelity").value = session.fidelity;
    byId("policy-number").value = "";
    this.#chosen();
    dialog.showModal();
    return new Promise((resolve) => {
      dialog.onclose = () => resolve(this.#answer);
    });
  }

  #policy() {
    return POLICIES.find(({ type }) => type === byId("policy-type").value);
  }

  #chosen() {
    const { type, number } = this.#policy();
    byId("policy-number-label").hidden = !number;
    byId("policy-fidelity-label").hidden = !number;
    setText(byId("policy-number-name"), number ? NUMBERS[number] : "");
    byId("policy-number").placeholder = type === "last_turns" ? "" : "default";
    showFault(byId("policy-fault"), null);
  }

  async #set() {
    const { type, number } = this.#policy();
    const body = { type };
    if (number) body.fidelity = byId("policy-fidelity").value;
    if (number && byId("policy-number").value) body[number] = Number(byId("policy-number").value);
    const where = path(this.#session.id, "/policy");
    try {
      this.#answer = await (type ? send("PUT", where, body) : send("DELETE", where));
      byId("policy-dialog").close();
    } catch (error) {
      showFault(byId("policy-fault"), error.message);
    }
  }
}
