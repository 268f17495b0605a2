// Reads the Prometheus text format.

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:\\.|[^"\\])*)"/g;

/** Parse to a map of names to `{labels, value}`s. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) labels[name] = value;
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return found;
}

/** The sum of a name's values with these labels; null if there are none. */
export function total(metrics, name, labels = {}) {
  const fits = (one) => Object.entries(labels).every(([key, value]) => one.labels[key] === value);
  const values = (metrics.get(name) ?? []).filter(fits).map((one) => one.value);
  return values.length ? values.reduce((sum, value) => sum + value, 0) : null;
}

/** The values of a label that occur with a name. */
export function labelValues(metrics, name, label) {
  return [...new Set((metrics.get(name) ?? []).map((one) => one.labels[label]))];
}
