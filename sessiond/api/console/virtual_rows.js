// A table of any length that keeps only its visible rows in the page.

import { el } from "./dom.js";

const BEYOND = 8; // rows above and below the visible ones

export class VirtualRows {
  #viewport;
  #table;
  #body;
  #items = [];
  #rows = new Map();
  #above = spacer();
  #below = spacer();
  #focusKey = null;
  #isDue = false;

  /** `make()` returns a row, `fill(row, item)` sets its contents, `key(item)` is its identity. */
  constructor({ viewport, table, rowHeight, key, make, fill }) {
    Object.assign(this, { rowHeight, key, make, fill });
    this.#viewport = viewport;
    this.#table = table;
    this.#body = table.tBodies[0];
    this.#body.append(this.#above, this.#below);
    viewport.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.#body.addEventListener("keydown", (event) => this.#move(event));
    this.#body.addEventListener("focusin", (event) => this.#focused(event));
    new ResizeObserver(() => this.#soon()).observe(viewport);
  }

  get items() {
    return this.#items;
  }

  show(items) {
    this.#items = items;
    this.#table.setAttribute("aria-rowcount", items.length + 1);
    this.#draw(true);
  }

  /** The row of a key, if it is visible. */
  row(key) {
    return this.#rows.get(key);
  }

  #soon() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => this.#draw(false));
  }

  /** `isNew`: the items may have changed; else only newly visible rows are filled. */
  #draw(isNew) {
    this.#isDue = false;
    const { scrollTop, clientHeight } = this.#viewport;
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - BEYOND);
    const last = Math.min(this.#items.length, Math.ceil((scrollTop + clientHeight) / this.rowHeight) + BEYOND);
    const shown = this.#items.slice(first, last);
    this.#keepOnly(new Set(shown.map(this.key)));
    let before = this.#above;
    shown.forEach((item, at) => {
      const isFilled = this.#rows.has(this.key(item)) && !isNew;
      const row = this.#row(item);
      if (!isFilled) {
        row.setAttribute("aria-rowindex", first + at + 2);
        this.fill(row, item);
      }
      if (before.nextSibling !== row) before.after(row);
      before = row;
    });
    this.#setHeights(first, this.#items.length - last);
    this.#rove(shown);
  }

  #keepOnly(keys) {
    for (const [key, row] of this.#rows) {
      if (keys.has(key)) continue;
      if (row.contains(document.activeElement)) this.#viewport.focus({ preventScroll: true });
      row.remove();
      this.#rows.delete(key);
    }
  }

  #row(item) {
    const key = this.key(item);
    if (!this.#rows.has(key)) {
      const row = this.make();
      row.dataset.key = key;
      this.#rows.set(key, row);
    }
    return this.#rows.get(key);
  }

  #setHeights(above, below) {
    this.#above.firstChild.style.height = `${above * this.rowHeight}px`;
    this.#below.firstChild.style.height = `${below * this.rowHeight}px`;
    this.#above.hidden = above === 0;
    this.#below.hidden = below === 0;
  }

  /** The tab key reaches one row; arrows move to the others. */
  #rove(shown) {
    const keys = shown.map(this.key);
    const reached = keys.includes(this.#focusKey) ? this.#focusKey : keys[0];
    for (const [key, row] of this.#rows) {
      for (const control of row.querySelectorAll("button")) control.tabIndex = key === reached ? 0 : -1;
    }
  }

  #focused(event) {
    const row = event.target.closest("tr[data-key]");
    if (!row) return;
    this.#focusKey = row.dataset.key;
    this.#rove(this.#items.filter((item) => this.#rows.has(this.key(item))));
  }

  #move(event) {
    const row = event.target.closest("tr[data-key]");
    if (!row) return;
    const page = Math.max(1, Math.floor(this.#viewport.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const at = this.#items.findIndex((item) => this.key(item) === row.dataset.key);
    const column = [...row.querySelectorAll("button")].indexOf(event.target);
    this.focus(Math.min(this.#items.length - 1, Math.max(0, at + steps[event.key])), column);
  }

  /** Scroll an item into view and focus one of its buttons. */
  focus(at, column = 0) {
    const item = this.#items[at];
    if (!item) return;
    const head = this.#table.tHead.offsetHeight;
    const [top, bottom] = [at * this.rowHeight, (at + 1) * this.rowHeight];
    const view = this.#viewport;
    if (top < view.scrollTop) view.scrollTop = top;
    if (bottom + head > view.scrollTop + view.clientHeight) view.scrollTop = bottom + head - view.clientHeight;
    this.#focusKey = this.key(item);
    this.#draw(false);
    this.row(this.#focusKey)?.querySelectorAll("button")[Math.max(0, column)]?.focus({ preventScroll: true });
  }
}

const spacer = () => el("tr", { class: "spacer", "aria-hidden": "true", hidden: true }, el("td"));
