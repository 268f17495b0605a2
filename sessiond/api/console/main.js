// Wires the parts of the console together.

import { Away, forgetKey, get, Refused } from "./api.js";
import { ChatPanel } from "./chat_panel.js";
import { announce, byId, setText } from "./dom.js";
import { findRole } from "./key_dialog.js";
import { LivePanels } from "./live_panels.js";
import { startMenu } from "./menu.js";
import { startNotice } from "./notice.js";
import { Poller } from "./poller.js";
import { PoolPanel } from "./pool_panel.js";
import { SessionActions } from "./session_actions.js";
import { SessionPanel } from "./session_panel.js";
import { SessionsPanel } from "./sessions_panel.js";
import { startTheme } from "./theme.js";

const OFTEN_MS = oftenMs(new URLSearchParams(location.search).get("every"));

/** Polling interval: `?every=` in seconds, from 0.2 to 60; by default 2. */
function oftenMs(said) {
  const seconds = Number(said);
  return seconds >= 0.2 && seconds <= 60 ? seconds * 1000 : 2000;
}

function tellState(state, words) {
  byId("server-state").dataset.state = state;
  setText(byId("server-state"), words);
}

async function askReady() {
  try {
    await get("health/ready");
    tellState("ok", "Serving");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    tellState("not-ready", error.message === "draining" ? "Draining" : `Not ready: ${error.message}`);
  }
}

async function askModel() {
  setText(byId("model"), (await get("v1/models")).data[0].id);
}

/** The banner for an unreachable server, with the seconds to the next attempt. */
class AwayBanner {
  #timer = null;

  show(waitMs) {
    const isNew = byId("away").hidden;
    tellState("away", "Not answering");
    byId("away").hidden = false;
    setText(byId("away-text"), "The server does not answer. The page shows its last state.");
    if (isNew) announce("The server does not answer");
    const until = performance.now() + waitMs;
    clearInterval(this.#timer);
    const tell = () => setText(byId("away-countdown"), `Retrying in ${Math.max(0, Math.ceil((until - performance.now()) / 1000))} s.`);
    tell();
    this.#timer = setInterval(tell, 500);
  }

  hide() {
    clearInterval(this.#timer);
    byId("away").hidden = true;
    announce("The server answers again");
  }
}

/** Nothing is shown before the caller's role is known. */
function showFor(isAdmin) {
  byId("main").hidden = false;
  for (const node of document.querySelectorAll("[data-admin]")) node.hidden = !isAdmin;
  document.body.classList.toggle("own", !isAdmin);
}

async function roleWhenThere(banner) {
  for (let waitMs = 1000; ; waitMs = Math.min(15_000, waitMs * 2)) {
    try {
      const role = await findRole();
      if (!byId("away").hidden) banner.hide();
      return role;
    } catch (error) {
      if (!(error instanceof Away)) throw error;
      banner.show(waitMs);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        byId("away-retry").onclick = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }
}

async function start() {
  startMenu();
  startNotice();
  const banner = new AwayBanner();
  let panels = null;
  startTheme(() => panels?.pool?.draw());
  const { isAdmin, hasKey } = await roleWhenThere(banner);
  showFor(isAdmin);
  byId("forget-key").hidden = !hasKey;
  byId("forget-key").addEventListener("click", restart);
  const poller = new Poller({ onAway: (ms) => banner.show(ms), onBack: () => banner.hide() });
  byId("away-retry").onclick = () => poller.now();
  panels = buildPanels(isAdmin, poller);
  ask(poller, panels);
  await poller.run();
}

/** Builds the panels, which refer to each other only through arguments given here. */
function buildPanels(isAdmin, poller) {
  const actions = new SessionActions({
    inspect: (id) => inspect(id),
    canTalk: (session) => !sessions.list.isForeign(session),
    talk: (session) => chat.talkTo(session),
    changed: (session) => {
      sessions.list.put({ ...session, turns: [] });
      poller.now();
    },
    closed: (id) => {
      sessions.list.remove(id);
      chat.closed(id);
      if (session.id === id) session.leave();
      poller.now();
    },
    done: (id) => session.id === id || sessions.focus(id),
  });
  const inspect = (id) => {
    pool?.choose(id);
    session.open(id);
  };
  const session = new SessionPanel(actions, () => pool?.choose(null));
  const sessions = new SessionsPanel({ everybodys: isAdmin, actions, onInspect: inspect });
  const chat = new ChatPanel({ onTurnEnded: () => poller.now(), onShow: inspect });
  const pool = isAdmin ? new PoolPanel(inspect) : null;
  const live = isAdmin ? new LivePanels(sessions.list) : null;
  return { session, sessions, chat, pool, live };
}

function ask(poller, { session, sessions, pool, live }) {
  const orAskAgain = (tell) => (error) => (error?.status === 401 ? restart() : tell(error));
  poller.add(OFTEN_MS, () => sessions.refresh(), orAskAgain((error) => sessions.fault(error)));
  poller.add(OFTEN_MS, askReady);
  poller.add(60_000, askModel);
  poller.add(OFTEN_MS, () => session.refresh(), (error) => session.fault(error));
  if (live) poller.add(OFTEN_MS, () => live.refresh(), (error) => live.fault(error));
  if (pool) poller.add(OFTEN_MS, () => pool.refresh(), (error) => pool.fault(error));
}

/** The key is no longer valid: start again, which asks for a new one. */
function restart() {
  forgetKey();
  location.reload();
}

start();
