// Colours of the style sheet in the current theme, for drawing on a canvas.

import { el } from "./dom.js";

export const HUES = 12;

let cached = null;

/** Read a class's background colour: `[r, g, b]`. Read again when the theme changes. */
export function colour(name) {
  cached ??= new Map();
  if (!cached.has(name)) cached.set(name, read(name));
  return cached.get(name);
}

export function themeChanged() {
  cached = null;
}

function read(name) {
  const probe = el("i", { class: `probe ${name}` });
  document.body.append(probe);
  const [r, g, b] = getComputedStyle(probe).backgroundColor.match(/[\d.]+/g).map(Number);
  probe.remove();
  return [r, g, b];
}

/** The hue of a session, the same in every panel. */
export function hueOf(session) {
  let hash = 2166136261;
  for (let at = 0; at < session.length; at += 1) {
    hash = Math.imul(hash ^ session.charCodeAt(at), 16777619);
  }
  return ((hash >>> 8) ^ hash) >>> 0;
}

export const hueClass = (session) => `hue-${hueOf(session) % HUES}`;
