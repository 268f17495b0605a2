// Builds elements from plain values. Text is always set as text, never parsed.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Build an element; `on` maps event names to listeners, null attributes are left out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Set text only if it differs, to avoid layout and repeated announcements. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show an error message, or none. */
export function showFault(node, message) {
  setText(node, message ?? "");
  node.hidden = !message;
}

/** Announce a text once to screen readers. */
export function announce(text) {
  byId("announcer").textContent = text;
}
