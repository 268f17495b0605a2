// The pool: map, legend, sessions with the most blocks.

import { get } from "./api.js";
import { byId, el, setText, showFault } from "./dom.js";
import { bytes, count, percent, plural, shortId } from "./format.js";
import { hueClass } from "./palette.js";
import { PoolMap, STATES, countBlocks, unpack } from "./pool_map.js";

const SHOWN_HOLDERS = 8;
const MEANING = {
  f: "empty",
  c: "used by no session; reusable until it is evicted",
  a: "used by one session",
  s: "used by several sessions",
  m: "being copied to or from a tier",
};

export class PoolPanel {
  #map = new PoolMap(byId("pool-canvas"));
  #pool = null;
  #counts = null;
  #by = "state";
  #chosen = null;
  #legend = new Map();

  /** `onChoose(id)`: the user wants to inspect a session. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    for (const input of document.querySelectorAll("input[name=colour]")) {
      input.addEventListener("change", () => {
        this.#by = input.value;
        this.draw();
      });
    }
    this.#buildLegend();
    const canvas = byId("pool-canvas");
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => (byId("pool-tip").hidden = true));
    canvas.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.draw()).observe(byId("pool-map"));
  }

  async refresh() {
    this.#pool = unpack(await get("admin/pool"));
    this.#counts = countBlocks(this.#pool);
    this.draw();
    this.#tell();
  }

  fault(error) {
    showFault(byId("pool-fault"), error?.message);
  }

  /** Highlight a session's blocks; null: none. */
  choose(session) {
    this.#chosen = session;
    this.draw();
  }

  draw() {
    if (this.#pool) this.#map.draw(this.#pool, this.#by, this.#chosen);
  }

  #buildLegend() {
    for (const [letter, name] of Object.entries(STATES)) {
      const number = el("b", {}, "0");
      this.#legend.set(letter, number);
      byId("pool-legend").append(
        el("li", { title: MEANING[letter], "data-state": name }, el("i", { class: `swatch state-${name}` }), `${name} `, number),
      );
    }
  }

  #tell() {
    const { states, held } = this.#counts;
    const { total_blocks: total, block_size: size, kv_bytes_per_block: each } = this.#pool;
    for (const [letter, node] of this.#legend) setText(node, count(states[letter]));
    setText(byId("pool-sum"), `${plural(total, "block")} of ${size} tokens, ${bytes(total * each)}`);
    const words = Object.entries(STATES).map(([letter, name]) => `${count(states[letter])} ${name}`);
    byId("pool-canvas").setAttribute("aria-label", `Map of the block pool: ${words.join(", ")}`);
    const order = [...held.keys()].sort((a, b) => held[b] - held[a]).slice(0, SHOWN_HOLDERS);
    this.#tellHolders(order.map((index) => [this.#pool.sessions[index], held[index]]), total);
  }

  #tellHolders(rows, total) {
    const list = byId("pool-holders");
    byId("holders-title").hidden = rows.length === 0;
    while (list.children.length > rows.length) list.lastChild.remove();
    rows.forEach(([session, blocks], at) => {
      const item = list.children[at] ?? list.appendChild(this.#holder());
      const button = item.firstChild;
      if (button.dataset.session !== session) {
        button.dataset.session = session;
        button.firstChild.className = `swatch ${hueClass(session)}`;
        setText(button.children[1], shortId(session));
      }
      setText(button.children[2], `${count(blocks)} · ${percent(blocks / total)}`);
    });
  }

  #holder() {
    const choose = (event) => this.onChoose(event.currentTarget.dataset.session);
    return el("li", {}, el("button", { type: "button", class: "holder", on: { click: choose } }, el("i"), el("code"), el("span", { class: "quiet" })));
  }

  #block(event) {
    const box = byId("pool-canvas").getBoundingClientRect();
    return this.#map.blockAt(event.clientX - box.left, event.clientY - box.top);
  }

  #sessionOf(block) {
    const owner = this.#pool.owners[block];
    return owner < 0 ? null : this.#pool.sessions[owner];
  }

  #point(event) {
    const block = this.#block(event);
    const tip = byId("pool-tip");
    tip.hidden = block === null;
    if (block === null) return;
    const session = this.#sessionOf(block);
    const state = STATES[this.#pool.states[block]];
    setText(tip, `block ${count(block)} · ${state}${session ? ` · ${shortId(session)}` : ""}`);
    const box = byId("pool-map").getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  #click(event) {
    const block = this.#block(event);
    const session = block === null ? null : this.#sessionOf(block);
    if (session) this.onChoose(session);
  }
}
