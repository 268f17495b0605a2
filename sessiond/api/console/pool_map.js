// Draws a pool, one cell per block, in rows.

import { colour, HUES, hueOf } from "./palette.js";

export const STATES = { f: "free", c: "cached", a: "active", s: "shared", m: "moving" };

const MAX_CELL = 16;
const MAX_HEIGHT = 260;
const GAP_FROM = 5; // smaller cells touch

/** Unpack the answer of `GET /admin/pool`. */
export function unpack(answer) {
  const packed = atob(answer.owners);
  const raw = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at += 1) raw[at] = packed.charCodeAt(at);
  return { ...answer, owners: new Int32Array(raw.buffer) };
}

/** Counts blocks by state and by session: `{states, held}`. */
export function countBlocks(pool) {
  const states = { f: 0, c: 0, a: 0, s: 0, m: 0 };
  const held = new Int32Array(pool.sessions.length);
  for (let block = 0; block < pool.total_blocks; block += 1) {
    states[pool.states[block]] += 1;
    if (pool.owners[block] >= 0) held[pool.owners[block]] += 1;
  }
  return { states, held };
}

export class PoolMap {
  #canvas;
  #cells = document.createElement("canvas");
  #pool = null;
  #columns = 1;
  #cell = 1;

  constructor(canvas) {
    this.#canvas = canvas;
  }

  /** `by`: "state" or "session"; `chosen`: a session whose blocks are highlighted, or null. */
  draw(pool, by, chosen) {
    this.#pool = pool;
    this.#lay(pool.total_blocks);
    const rows = Math.ceil(pool.total_blocks / this.#columns);
    this.#cells.width = this.#columns;
    this.#cells.height = rows;
    const context = this.#cells.getContext("2d");
    const image = context.createImageData(this.#columns, rows);
    this.#paint(new Uint32Array(image.data.buffer), pool, by, pool.sessions.indexOf(chosen));
    context.putImageData(image, 0, 0);
    this.#scale(rows);
  }

  /** The block at a point of the canvas, in CSS pixels; null outside of blocks. */
  blockAt(x, y) {
    if (!this.#pool || x < 0 || x >= this.#columns * this.#cell) return null;
    const block = Math.floor(y / this.#cell) * this.#columns + Math.floor(x / this.#cell);
    return block < this.#pool.total_blocks ? block : null;
  }

  #lay(total) {
    const width = Math.max(64, this.#canvas.parentElement.clientWidth);
    const fits = (cell) => Math.ceil(total / Math.floor(width / cell)) * cell <= MAX_HEIGHT;
    let cell = MAX_CELL;
    while (cell > 2 && !fits(cell)) cell -= 1;
    this.#cell = cell;
    this.#columns = Math.max(1, Math.floor(width / cell));
  }

  #paint(pixels, pool, by, chosen) {
    const states = new Map(Object.entries(STATES).map(([letter, name]) => [letter, packed(colour(`state-${name}`))]));
    const hues = Array.from({ length: HUES }, (_, hue) => packed(colour(`hue-${hue}`)));
    const owners = pool.sessions.map((session) => hues[hueOf(session) % HUES]);
    const free = states.get("f");
    for (let block = 0; block < pool.total_blocks; block += 1) {
      const owner = pool.owners[block];
      let pixel = states.get(pool.states[block]);
      if (by === "session" && owner >= 0) pixel = owners[owner];
      if (chosen >= 0 && owner !== chosen) pixel = paler(pixel, free);
      pixels[block] = pixel;
    }
  }

  #scale(rows) {
    const ratio = window.devicePixelRatio || 1;
    const canvas = this.#canvas;
    const [width, height] = [this.#columns * this.#cell, rows * this.#cell];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#cells, 0, 0, canvas.width, canvas.height);
    if (this.#cell >= GAP_FROM) this.#cutGaps(context, rows, this.#cell * ratio);
  }

  #cutGaps(context, rows, cell) {
    const gap = Math.max(1, Math.round(cell / 9));
    for (let column = 1; column <= this.#columns; column += 1) {
      context.clearRect(Math.round(column * cell) - gap, 0, gap, context.canvas.height);
    }
    for (let row = 1; row <= rows; row += 1) {
      context.clearRect(0, Math.round(row * cell) - gap, context.canvas.width, gap);
    }
  }
}

/** Blend a quarter of a colour onto another. */
const paler = (pixel, ground) => (((pixel >>> 2) & 0x3f3f3f3f) + 3 * ((ground >>> 2) & 0x3f3f3f3f)) | 0xff000000;

const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
