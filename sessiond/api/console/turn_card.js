// One turn of the chat: the message, the reply, and the memory statistics.

import { el, setText } from "./dom.js";
import { bytes, count, milliseconds, plural } from "./format.js";

const PARTS = ["reused", "restored", "recomputed", "new"];

export class TurnCard {
  #reply = el("p", { class: "reply" });
  #notes = el("ul", { class: "notes" });
  #bar = el("div", { class: "memory-bar", role: "img", hidden: true });
  #parts = el("p", { class: "memory" });
  #state = el("p", { class: "quiet waiting" }, "sent");

  constructor(text) {
    this.node = el("article", { class: "turn", "aria-label": "Turn" }, el("p", { class: "asked" }, text), this.#reply, this.#state, this.#notes, this.#bar, this.#parts);
  }

  get text() {
    return this.#reply.textContent;
  }

  state(words) {
    setText(this.#state, words);
    this.#state.hidden = !words;
  }

  add(text) {
    this.state("");
    this.#reply.append(text);
  }

  note(words, kind = "") {
    this.#notes.append(el("li", { class: kind || null }, words));
  }

  /** Show a `session.context_changed` event. */
  contextChanged(event) {
    const { dropped_turns: dropped, tokens_before: before, tokens_after: after } = event;
    const what = dropped ? `dropped ${plural(dropped, "turn")}` : "context changed";
    this.note(`${what} (${event.reason}, ${event.fidelity}): ${count(before)} → ${count(after)} tokens`, "dropped");
    this.node.dataset.dropped = dropped;
  }

  /** Show the response's memory statistics. */
  finish(response) {
    this.state("");
    const { usage, sessiond: memory } = response;
    if (response.status === "incomplete") this.note(`cut: ${response.incomplete_details.reason.replaceAll("_", " ")}`);
    if (response.status === "failed") this.fail(response.error.message);
    if (!usage || !memory) return;
    const sizes = partSizes(usage, memory);
    this.#drawBar(sizes);
    this.#tell(sizes, usage, memory);
  }

  fail(words) {
    this.state("");
    this.note(words, "fault");
  }

  #drawBar(sizes) {
    const pieces = PARTS.filter((part) => sizes[part] > 0).map((part) => {
      const piece = el("i", { class: `from-${part}`, title: `${count(sizes[part])} ${part}` });
      piece.style.flexGrow = sizes[part];
      return piece;
    });
    this.#bar.replaceChildren(...pieces);
    this.#bar.hidden = pieces.length === 0;
    this.#bar.setAttribute("aria-label", PARTS.map((part) => `${count(sizes[part])} tokens ${part}`).join(", "));
  }

  #tell(sizes, usage, memory) {
    const source = memory.restored_tokens ? ` from ${memory.restored_from}` : "";
    const told = PARTS.filter((part) => sizes[part] > 0 || part === "reused" || part === "new").map((part) =>
      el("span", { class: "part", "data-part": part }, el("i", { class: `swatch from-${part}` }), `${part} `, el("b", {}, count(sizes[part])), part === "restored" ? source : ""),
    );
    const speed = [`reply ${count(usage.output_tokens)}`, `first token ${milliseconds(memory.ttft_ms)}`];
    const rate = perSecond(usage, memory);
    if (rate) speed.push(`${rate} tokens/s`);
    if (memory.queue_ms >= 1) speed.push(`queued ${milliseconds(memory.queue_ms)}`);
    speed.push(`${plural(memory.blocks, "block")}, ${bytes(memory.kv_bytes)}`);
    if (memory.context !== "full") speed.push(`${memory.context}, ${memory.fidelity}`);
    this.#parts.replaceChildren(...told, el("span", { class: "quiet speed" }, ...speed.map((words) => el("span", {}, words))));
  }
}

/** input = reused + restored + recomputed + new. */
export function partSizes(usage, memory) {
  const sizes = { reused: memory.reused_tokens, restored: memory.restored_tokens, recomputed: memory.recomputed_tokens };
  const known = sizes.reused + sizes.restored + sizes.recomputed;
  return { ...sizes, new: usage.input_tokens - known };
}

function perSecond(usage, memory) {
  const passedMs = memory.total_ms - (memory.ttft_ms ?? 0);
  return usage.output_tokens > 1 && passedMs > 0 ? Math.round(((usage.output_tokens - 1) * 1000) / passedMs) : null;
}
