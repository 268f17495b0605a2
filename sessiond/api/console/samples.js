// Time series of the metrics: gauges unchanged, counters as rates. The newest sample is last.

import { labelValues, total } from "./prometheus.js";

export const KEPT_MS = 300_000;

const TTFT = "sessiond_time_to_first_token_seconds";
const SOURCES = ["reused", "restored", "recomputed", "new"];

export class Samples {
  #all = [];
  #before = null;

  get all() {
    return this.#all;
  }

  get last() {
    return this.#all.at(-1) ?? null;
  }

  /** Add a scrape. `atMs`: its time. */
  take(metrics, atMs) {
    const rates = new Rates(metrics, this.#before?.metrics ?? null, atMs - (this.#before?.atMs ?? atMs));
    this.#before = { metrics, atMs };
    this.#all.push(sample(metrics, rates, atMs));
    while (this.#all[0].atMs < atMs - KEPT_MS) this.#all.shift();
  }
}

/** Differences of counters between two scrapes. A counter that fell was restarted. */
class Rates {
  constructor(now, before, passedMs) {
    this.now = now;
    this.before = before;
    this.passedS = passedMs / 1000;
  }

  grown(name, labels) {
    const now = total(this.now, name, labels) ?? 0;
    if (!this.before) return 0;
    const before = total(this.before, name, labels) ?? 0;
    return now >= before ? now - before : now;
  }

  perSecond(name, labels) {
    return this.passedS > 0 ? this.grown(name, labels) / this.passedS : 0;
  }

  /** Mean of the observations between the scrapes; null without any. */
  mean(name, labels) {
    const observed = this.grown(`${name}_count`, labels);
    return observed > 0 ? this.grown(`${name}_sum`, labels) / observed : null;
  }
}

function sample(metrics, rates, atMs) {
  const blocks = (state) => total(metrics, "sessiond_kv_blocks", { tier: "device", state }) ?? 0;
  const warm = rates.mean(TTFT, { path: "warm" });
  const cold = rates.mean(TTFT, { path: "cold" });
  return {
    atMs,
    hasEngine: metrics.has("sessiond_kv_blocks"),
    free: blocks("free"),
    cached: blocks("cached"),
    active: blocks("active"),
    running: total(metrics, "vllm:num_requests_running") ?? 0,
    waiting: total(metrics, "vllm:num_requests_waiting") ?? 0,
    sockets: total(metrics, "sessiond_websocket_connections") ?? 0,
    written: rates.perSecond("sessiond_generated_tokens_total"),
    read: ["recomputed", "new"]
      .map((source) => rates.perSecond("sessiond_prefill_tokens_total", { source }))
      .reduce((sum, value) => sum + value, 0),
    warmMs: warm === null ? null : warm * 1000,
    coldMs: cold === null ? null : cold * 1000,
    input: Object.fromEntries(
      SOURCES.map((source) => [source, total(metrics, "sessiond_prefill_tokens_total", { source }) ?? 0]),
    ),
    tiers: labelValues(metrics, "sessiond_kv_blocks", "tier")
      .map((name) => tier(name, metrics, rates))
      .filter((one) => one.capacity > 0), // the metrics also contain missing tiers
  };
}

function tier(name, metrics, rates) {
  const blocks = (state) => total(metrics, "sessiond_kv_blocks", { tier: name, state }) ?? 0;
  const taken = blocks("cached") + blocks("active");
  return {
    name,
    taken,
    capacity: taken + blocks("free"),
    bytes: total(metrics, "sessiond_kv_bytes", { tier: name }) ?? 0,
    // for the device the directions are reversed: reads of tiers come in
    inPerS: name === "device" ? rates.perSecond("sessiond_swap_bytes_total", { direction: "in" }) : rates.perSecond("sessiond_swap_bytes_total", { direction: "out", tier: name }),
    outPerS: name === "device" ? rates.perSecond("sessiond_swap_bytes_total", { direction: "out" }) : rates.perSecond("sessiond_swap_bytes_total", { direction: "in", tier: name }),
    movesPerS: rates.perSecond("sessiond_swap_seconds_count", name === "device" ? {} : { tier: name }),
  };
}
