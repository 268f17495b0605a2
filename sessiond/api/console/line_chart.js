// A small line chart in SVG: time to the right, from zero up.

import { el, setText, svg } from "./dom.js";
import { KEPT_MS } from "./samples.js";

const HEIGHT = 92;
const PAD = 6;
const DOT = 3;

export class LineChart {
  #lines;
  #values;
  #top = el("span", { class: "top quiet" });
  #plot = svg("svg", { role: "img", height: HEIGHT });
  #width = 300;
  #drawn = null;

  /** `lines`: `{name, of(sample), shape}`; `shape` is a class of the style sheet. */
  constructor({ title, lines, write, ceiling = null }) {
    this.title = title;
    this.write = write;
    this.ceiling = ceiling;
    this.#values = lines.map(() => el("b", {}, "–"));
    const key = lines.map((line, at) => el("span", { class: `key ${line.shape}` }, `${line.name} `, this.#values[at]));
    this.#lines = lines.map((line) => ({ ...line, path: svg("path", { class: `line ${line.shape}` }), dots: svg("g", { class: `dots ${line.shape}` }) }));
    this.#plot.append(svg("path", { class: "grid" }), ...this.#lines.flatMap((line) => [line.path, line.dots]));
    this.node = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, title), el("p", {}, ...key)), el("div", { class: "plot" }, this.#top, this.#plot));
    new ResizeObserver(([entry]) => {
      this.#width = Math.max(80, entry.contentRect.width);
      if (this.#drawn) this.draw(this.#drawn);
    }).observe(this.#plot.parentNode === null ? this.node : this.#plot.parentNode);
  }

  draw(samples) {
    this.#drawn = samples;
    const end = samples.at(-1)?.atMs ?? 0;
    const points = this.#lines.map((line) => samples.map((one) => [one.atMs, line.of(one)]).filter(([, value]) => value !== null));
    const highest = this.ceiling ?? roundUp(Math.max(0, ...points.flat().map(([, value]) => value)));
    setText(this.#top, points.some((of) => of.length) ? this.write(highest) : "");
    this.#plot.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    this.#plot.firstChild.setAttribute("d", [PAD, HEIGHT / 2, HEIGHT - PAD].map((y) => `M0 ${y}H${this.#width}`).join(""));
    const place = ([atMs, value]) => [
      (this.#width - DOT) * (1 - (end - atMs) / KEPT_MS),
      HEIGHT - PAD - ((HEIGHT - 2 * PAD) * value) / (highest || 1),
    ];
    points.forEach((of, at) => this.#drawLine(this.#lines[at], of.map(place), samples.length));
    const said = points.map((of, at) => {
      const text = of.length ? this.write(of.at(-1)[1]) : "–";
      setText(this.#values[at], text);
      return `${this.#lines[at].name} ${text}`;
    });
    this.#plot.setAttribute("aria-label", `${this.title}: ${said.join(", ")} now`);
  }

  #drawLine(line, places, samples) {
    const spots = places.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
    line.path.setAttribute("d", spots.length > 1 ? `M${spots.join("L")}` : "");
    const isSparse = places.length < samples / 2; // single events, which a line alone would hide
    const shown = isSparse ? places : places.slice(-1);
    line.dots.replaceChildren(...shown.map(([x, y]) => svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: DOT })));
  }
}

/** The next 1, 2 or 5 times a power of ten, so that the scale rarely moves. */
export function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
