// Polls the server with one request at a time while the page is visible.

import { Away } from "./api.js";

const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 15_000;

/** `onAway(ms)`: no answer, the next attempt follows in `ms`; `onBack()`: the server answers again. */
export class Poller {
  #tasks = [];
  #isAway = false;
  #retryMs = FIRST_RETRY_MS;
  #wake = () => {};
  #stopped = false;

  constructor({ onAway, onBack }) {
    this.onAway = onAway;
    this.onBack = onBack;
    document.addEventListener("visibilitychange", () => document.hidden || this.#wake());
  }

  /** Run `task` at an interval in milliseconds; `onFault(error)` receives refusals of the server. */
  add(everyMs, task, onFault) {
    this.#tasks.push({ everyMs, task, onFault, dueAt: 0 });
  }

  /** Run all tasks now. */
  now() {
    for (const one of this.#tasks) one.dueAt = 0;
    this.#wake();
  }

  stop() {
    this.#stopped = true;
    this.#wake();
  }

  async run() {
    while (!this.#stopped) {
      if (document.hidden) {
        await this.#rest(LAST_RETRY_MS);
        continue;
      }
      const pauseMs = await this.#round();
      if (!this.#stopped) await this.#rest(pauseMs);
    }
  }

  async #round() {
    for (const one of this.#tasks) {
      if (performance.now() < one.dueAt || this.#stopped) continue;
      try {
        await one.task();
        one.onFault?.(null);
      } catch (error) {
        if (error instanceof Away) return this.#noAnswer();
        one.onFault?.(error);
      }
      one.dueAt = performance.now() + one.everyMs;
      this.#answered();
    }
    const next = Math.min(...this.#tasks.map((one) => one.dueAt));
    return Math.max(50, next - performance.now());
  }

  #noAnswer() {
    const waitMs = this.#retryMs;
    this.#retryMs = Math.min(LAST_RETRY_MS, waitMs * 2);
    this.#isAway = true;
    this.onAway(waitMs);
    for (const one of this.#tasks) one.dueAt = 0;
    return waitMs;
  }

  #answered() {
    this.#retryMs = FIRST_RETRY_MS;
    if (!this.#isAway) return;
    this.#isAway = false;
    this.onBack();
  }

  #rest(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
