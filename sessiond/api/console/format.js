// Formats numbers, sizes and times in few characters.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { maximumFractionDigits: 1, notation: "compact" });

export const count = (value) => WHOLE.format(value);
export const short = (value) => (value < 10 ? trim(value) : SHORT.format(value));

const trim = (value) => String(Math.round(value * 10) / 10);

/** 1.5 MiB. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** KV of a session in its fastest tier: 1.5 MiB on the device, "1.5 MiB disk". */
export function kvText(kvBytes) {
  const tier = ["device", "host", "disk"].find((name) => kvBytes[name] > 0);
  return tier === undefined || tier === "device" ? bytes(kvBytes.device) : `${bytes(kvBytes[tier])} ${tier}`;
}

export const bytesPerSecond = (value) => (value ? `${bytes(value)}/s` : "0");

/** 22 ms, 1.6 s. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${trim(value)} ms`;
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

export const percent = (share) => `${share > 0 && share < 0.1 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;

/** An age: 5 s, 3 min, 2 h, 4 d. `unixS` and `nowS` in Unix seconds. */
export function ago(unixS, nowS) {
  const passed = Math.max(0, nowS - unixS);
  if (passed < 60) return `${Math.floor(passed)} s`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  return passed < 86400 ? `${Math.floor(passed / 3600)} h` : `${Math.floor(passed / 86400)} d`;
}

/** An id that fits a column: its beginning and its end. */
export const shortId = (id) => (id.length > 18 ? `${id.slice(0, 10)}…${id.slice(-5)}` : id);

export const plural = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;
