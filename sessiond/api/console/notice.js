// Result of an action at the foot of the page: a success for some seconds, a failure until it is dismissed.

import { announce, byId, setText } from "./dom.js";

const SHOWN_MS = 6000;

let timer = 0;

export function startNotice() {
  byId("notice-close").addEventListener("click", hide);
}

export function tellDone(text) {
  show(text, false);
  timer = setTimeout(hide, SHOWN_MS);
}

export function tellFailed(text) {
  show(text, true);
}

function show(text, isFault) {
  clearTimeout(timer);
  setText(byId("notice-text"), text);
  byId("notice").classList.toggle("fault", isFault);
  byId("notice").hidden = false;
  announce(text);
}

function hide() {
  byId("notice").hidden = true;
}
