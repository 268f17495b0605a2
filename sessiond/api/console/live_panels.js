// Panels drawn from the metrics: figures, charts, tiers.

import { getText } from "./api.js";
import { byId, el, setText, showFault } from "./dom.js";
import { bytes, bytesPerSecond, count, milliseconds, percent, short } from "./format.js";
import { LineChart } from "./line_chart.js";
import { parse } from "./prometheus.js";
import { Samples } from "./samples.js";

const share = (part, whole) => (whole ? part / whole : 0);
const pool = (one) => one.free + one.cached + one.active;

const CHARTS = [
  {
    title: "First token",
    write: milliseconds,
    lines: [
      { name: "warm", shape: "one", of: (one) => one.warmMs },
      { name: "cold", shape: "two", of: (one) => one.coldMs },
    ],
  },
  {
    title: "Tokens per second",
    write: short,
    lines: [
      { name: "written", shape: "one", of: (one) => one.written },
      { name: "read", shape: "two", of: (one) => one.read },
    ],
  },
  {
    title: "Turns",
    write: short,
    lines: [
      { name: "running", shape: "one", of: (one) => one.running },
      { name: "waiting", shape: "two", of: (one) => one.waiting },
    ],
  },
  {
    title: "Pool in use",
    write: percent,
    ceiling: 1,
    lines: [
      { name: "active", shape: "one", of: (one) => share(one.active, pool(one)) },
      { name: "cached", shape: "two", of: (one) => share(one.cached, pool(one)) },
    ],
  },
];

export class LivePanels {
  #samples = new Samples();
  #charts = CHARTS.map((chart) => new LineChart(chart));
  #figures = new Map();
  #sessions;

  /** `sessions`: the `SessionList` of the table below, so that both tell the same. */
  constructor(sessions) {
    this.#sessions = sessions;
    byId("chart-grid").append(...this.#charts.map((chart) => chart.node));
    for (const name of ["Pool in use", "Sessions", "Turns", "Tokens per second", "First token", "Input reused"]) {
      const [value, detail] = [el("span", { class: "value" }, "–"), el("span", { class: "quiet" }, " ")];
      this.#figures.set(name, { value, detail });
      byId("figures").append(el("div", {}, el("dt", {}, name), el("dd", {}, value, detail)));
    }
  }

  async refresh() {
    this.#samples.take(parse(await getText("metrics")), performance.now());
    const last = this.#samples.last;
    this.fault(last.hasEngine ? null : new Error("the engine does not answer; only the gateway's metrics are shown"));
    if (!last.hasEngine) return;
    for (const chart of this.#charts) chart.draw(this.#samples.all);
    this.#tell(last);
    tellTiers(last.tiers);
  }

  fault(error) {
    if (error !== null || this.#samples.last?.hasEngine) showFault(byId("charts-fault"), error?.message);
  }

  #tell(last) {
    const blocks = pool(last);
    const input = Object.values(last.input).reduce((sum, value) => sum + value, 0);
    const kept = last.input.reused + last.input.restored;
    const latest = (of) => this.#samples.all.map(of).filter((value) => value !== null).at(-1);
    const [warm, cold] = [latest((one) => one.warmMs), latest((one) => one.coldMs)];
    this.#figure("Pool in use", percent(share(last.active, blocks)), `${count(last.active)} active, ${count(last.cached)} cached`);
    this.#figure("Sessions", count(this.#sessions.count()), `${["running", "idle", "parked"].map((state) => `${count(this.#sessions.count(state))} ${state}`).join(", ")}`);
    this.#figure("Turns", count(last.running), `running; ${count(last.waiting)} waiting`);
    this.#figure("Tokens per second", short(last.written), `written; ${short(last.read)} read`);
    this.#figure("First token", milliseconds(warm), `warm; ${milliseconds(cold)} cold`);
    this.#figure("Input reused", percent(share(kept, input)), `of ${short(input)} tokens so far`);
  }

  #figure(name, value, detail) {
    setText(this.#figures.get(name).value, value);
    setText(this.#figures.get(name).detail, detail);
  }
}

function tellTiers(tiers) {
  const body = byId("tier-table").tBodies[0];
  while (body.rows.length > tiers.length) body.lastChild.remove();
  tiers.forEach((tier, at) => {
    const row = body.rows[at] ?? body.appendChild(tierRow());
    const taken = share(tier.taken, tier.capacity);
    const [name, , blocks, kv, into, out, moves] = row.cells;
    setText(name, tier.name);
    const meter = row.querySelector("meter");
    meter.value = taken;
    meter.setAttribute("aria-label", `${tier.name}: ${percent(taken)} used`);
    setText(row.querySelector("small"), percent(taken));
    setText(blocks, `${count(tier.taken)} / ${count(tier.capacity)}`);
    setText(kv, bytes(tier.bytes));
    setText(into, bytesPerSecond(tier.inPerS));
    setText(out, bytesPerSecond(tier.outPerS));
    setText(moves, `${short(tier.movesPerS)}/s`);
  });
}

function tierRow() {
  const number = () => el("td", { class: "number" });
  return el("tr", {}, el("th", { scope: "row" }), el("td", {}, el("meter", { min: 0, max: 1, value: 0 }), el("small", { class: "quiet" })), number(), number(), number(), number(), number());
}
