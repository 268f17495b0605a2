// The chat: a real conversation over the socket, with each turn's memory statistics.

import { announce, byId, el, setText, showFault } from "./dom.js";
import { count, shortId } from "./format.js";
import { ChatSocket } from "./chat_socket.js";
import { TurnCard } from "./turn_card.js";

const ENDINGS = new Set(["response.completed", "response.incomplete", "response.failed"]);
const WAITING = { "response.created": "stored", "response.queued": "queued", "response.in_progress": "prefilling" };
const WAITED_FOR = { slot: "a free slot", blocks: "memory" };

export class ChatPanel {
  #conversation = null;
  #card = null;
  #responseId = null;
  #socket = new ChatSocket({ onEvent: (event) => this.#hear(event), onClose: (words) => this.#lost(words) });

  /** `onTurnEnded(id)`: the chat's session has changed; `onShow(id)`: the user wants to inspect it. */
  constructor({ onTurnEnded, onShow }) {
    this.onTurnEnded = onTurnEnded;
    this.onShow = onShow;
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#say();
    });
    byId("chat-input").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("chat-form").requestSubmit();
    });
    byId("chat-stop").addEventListener("click", () => this.#stop());
    byId("chat-new").addEventListener("click", () => this.#begin());
    this.#tellSession();
    this.#tellBusy();
  }

  /** Continue an existing conversation. */
  talkTo(session) {
    this.#clear();
    this.#conversation = session.id;
    byId("chat-turns").append(el("p", { class: "quiet" }, `Continues after ${count(session.tokens_total)} tokens.`));
    this.#tellSession();
    byId("chat-input").focus();
  }

  /** A session is closed: the next message begins a new one. */
  closed(id) {
    if (this.#conversation === id) this.#begin();
  }

  #begin() {
    this.#clear();
    byId("chat-input").focus();
  }

  #clear() {
    if (this.#card) this.#stop();
    this.#conversation = null;
    this.#card = null;
    this.#responseId = null;
    byId("chat-turns").replaceChildren();
    showFault(byId("chat-fault"), null);
    this.#tellSession();
    this.#tellBusy();
  }

  async #say() {
    const input = byId("chat-input");
    const text = input.value;
    if (!text.trim() || this.#card) return;
    const frame = this.#frame(text);
    if (!frame) return;
    input.value = "";
    this.#card = new TurnCard(text);
    byId("chat-turns").append(this.#card.node);
    this.#follow();
    this.#tellBusy();
    try {
      await this.#socket.send(frame);
    } catch (error) {
      this.#ended(() => this.#card.fail(error.message));
      input.value = text;
    }
  }

  #frame(text) {
    const [limit, temperature] = [byId("chat-limit"), byId("chat-temperature")];
    const wrong = [limit, temperature].find((one) => !one.checkValidity());
    showFault(byId("chat-fault"), wrong?.validationMessage);
    if (wrong) return null;
    const frame = { type: "response.create", input: text };
    if (limit.value) frame.max_output_tokens = Number(limit.value);
    if (temperature.value) frame.temperature = Number(temperature.value);
    if (this.#conversation) frame.conversation = this.#conversation;
    else if (byId("chat-instructions").value) frame.instructions = byId("chat-instructions").value;
    return frame;
  }

  #stop() {
    if (!this.#responseId) return;
    this.#socket.send({ type: "response.cancel", response_id: this.#responseId }).catch(() => {}); // a lost socket has ended the turn
  }

  #hear(event) {
    const card = this.#card;
    if (!card || (event.response && this.#responseId && event.response.id !== this.#responseId)) return;
    if (event.type in WAITING) card.state(WAITING[event.type]);
    switch (event.type) {
      case "response.created":
        this.#responseId = event.response.id;
        this.#conversation = event.response.conversation.id;
        this.#tellSession();
        this.#tellBusy();
        break;
      case "response.output_text.delta":
        card.add(event.delta);
        this.#follow();
        break;
      case "session.context_changed":
        card.contextChanged(event);
        break;
      case "session.waiting":
        card.state(`waiting for ${WAITED_FOR[event.for] ?? event.for}, number ${event.position}`);
        break;
      case "session.summary_overdue":
        card.note(`the summary is overdue: ${count(event.tokens)} tokens, beyond ${count(event.threshold)}`);
        break;
      case "session.degraded":
        card.note(`degraded: ${event.step}, ${event.reason}`);
        break;
      case "error":
        this.#ended(() => card.fail(event.error.message));
        break;
      default:
        if (ENDINGS.has(event.type)) this.#ended(() => card.finish(event.response));
    }
  }

  #ended(tell) {
    tell();
    announce(this.#card.text ? `Reply: ${this.#card.text}` : "The turn ended without a reply");
    this.#card = null;
    this.#responseId = null;
    this.#follow();
    this.#tellBusy();
    if (this.#conversation) this.onTurnEnded(this.#conversation);
  }

  #lost(words) {
    if (this.#card) this.#ended(() => this.#card.fail(`${words}; the next message continues after the last reply`));
    else showFault(byId("chat-fault"), `${words}; the next message reconnects`);
  }

  #follow() {
    const list = byId("chat-turns");
    list.scrollTop = list.scrollHeight;
  }

  #tellSession() {
    const id = this.#conversation;
    const show = id ? el("button", { type: "button", class: "link", title: `Inspect ${id}`, on: { click: () => this.onShow(id) } }, shortId(id)) : "a new conversation";
    byId("chat-session").replaceChildren(show);
  }

  #tellBusy() {
    const isBusy = this.#card !== null;
    byId("chat-send").disabled = isBusy;
    byId("chat-stop").hidden = !isBusy || !this.#responseId;
    setText(byId("chat-send"), isBusy ? "Writing" : "Send");
    byId("chat-instructions").disabled = this.#conversation !== null;
  }
}
