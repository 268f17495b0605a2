// All sessions that the server lists: polls the newest page often, the others in the background.

import { get } from "./api.js";

const PAGE = 100;
const MOST = 50_000;
const ALL_EVERY_MS = 60_000;

export class SessionList {
  #byId = new Map();
  #closed = new Set(); // an answer that was on its way must not bring them back
  #isLoading = false;
  #loadedAt = -Infinity;
  #ownUser = null;

  /** `everybodys`: sessions of all users; `onChange()`: the list has changed. */
  constructor({ everybodys, onChange }) {
    this.everybodys = everybodys;
    this.whose = everybodys ? "&user=*" : "";
    this.onChange = onChange;
  }

  get isLoading() {
    return this.#isLoading;
  }

  find(id) {
    return this.#byId.get(id);
  }

  /** Whether it is another user's: an admin can inspect and control it, but not chat in it. */
  isForeign(session) {
    return this.everybodys && session !== undefined && session.user !== this.#ownUser;
  }

  /** Sessions that match a text and a state, latest activity first. */
  matching(text, state) {
    const wanted = text.trim().toLowerCase();
    const fits = (one) =>
      (!state || one.state === state) &&
      (!wanted || [one.id, one.user, one.policy].some((field) => field.toLowerCase().includes(wanted)));
    return this.#open().filter(fits).sort((a, b) => b.last_active_at - a.last_active_at);
  }

  /** Number of sessions, of all or in one state. */
  count(state) {
    return state ? this.#open().filter((one) => one.state === state).length : this.#open().length;
  }

  /** Load the newest page, and the others if there are any and they are old. */
  async refresh() {
    const page = await get(`v1/sessions?limit=${PAGE}${this.whose}`);
    if (this.everybodys && page.data.length) await this.#learnOwnUser();
    if (!page.has_more) {
      this.#byId = indexed(page.data);
    } else {
      for (const one of page.data) this.#byId.set(one.id, one);
      if (!this.#isLoading && performance.now() - this.#loadedAt > ALL_EVERY_MS) this.#loadAll(page);
    }
    this.onChange();
  }

  /** Apply the response of an action. */
  put(session) {
    this.#byId.set(session.id, session);
    this.onChange();
  }

  remove(id) {
    this.#closed.add(id);
    this.#byId.delete(id);
    this.onChange();
  }

  #open() {
    return [...this.#byId.values()].filter(({ id }) => !this.#closed.has(id));
  }

  /** The API has no "current user", but lists the caller's sessions with their owner. */
  async #learnOwnUser() {
    this.#ownUser ??= (await get("v1/sessions?limit=1")).data[0]?.user ?? null;
  }

  async #loadAll(first) {
    this.#isLoading = true;
    const found = indexed(first.data);
    try {
      let page = first;
      while (page.has_more && found.size < MOST) {
        page = await get(`v1/sessions?limit=${PAGE}${this.whose}&after=${encodeURIComponent(page.last_id)}`);
        for (const one of page.data) {
          found.set(one.id, one);
          this.#byId.set(one.id, one);
        }
        this.onChange();
      }
      this.#byId = found; // drops sessions that were closed meanwhile
      this.#loadedAt = performance.now();
    } catch {
      this.#loadedAt = -Infinity; // the next refresh retries and reports the error
    }
    this.#isLoading = false;
    this.onChange();
  }
}

const indexed = (sessions) => new Map(sessions.map((one) => [one.id, one]));
