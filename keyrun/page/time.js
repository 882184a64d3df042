// Times and numbers as text. Times are relative to the clock of the server.

let skew = 0;

/** Take over the clock of the server, from the Date header of an answer. */
export function setClock(header) {
  const found = Date.parse(header) - Date.now();
  if (Math.abs(found - skew) > 1500) skew = found;
}

/** Return the time of the server in milliseconds. */
export const now = () => Date.now() + (Math.abs(skew) > 2500 ? skew : 0);

/** Return a number of seconds as a short text. */
export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  const s = Math.abs(seconds);
  if (s === 0) return "0 s";
  if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const two = (big, unit, small, name) => `${big} ${unit}${small ? ` ${small} ${name}` : ""}`;
  if (s < 3600) return two(Math.floor(s / 60), "min", Math.floor(s % 60), "s");
  if (s < 86400) return two(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return two(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

const whole = (seconds) => (seconds < 10 ? `${Math.round(seconds)} s` : duration(seconds));

/** Return a time in RFC 3339 as a text relative to now. */
export function relative(text) {
  const seconds = (Date.parse(text) - now()) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  if (seconds < 0) return `${whole(-seconds).replace(/(min|h|d) .*/, "$1")} ago`;
  return `in ${whole(seconds)}`;
}

/** Return the seconds between two times in RFC 3339. Without an end, until now. */
export const between = (from, to) => ((to ? Date.parse(to) : now()) - Date.parse(from)) / 1000;

const NUMBER = new Intl.NumberFormat("en");

/** Return a number as text with separators, and with few digits behind the point. */
export function number(value) {
  if (value == null) return "–";
  if (Number.isInteger(value)) return NUMBER.format(value);
  return NUMBER.format(Number(value.toPrecision(value >= 100 ? 4 : 3)));
}

/** Return a noun with its number: `1 run`, `2 runs`. */
export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Return a number of bytes as text. */
export function bytes(value) {
  if (value == null) return "–";
  for (const unit of ["B", "kB", "MB"]) {
    if (value < 1000) return `${number(value)} ${unit}`;
    value /= 1000;
  }
  return `${number(value)} GB`;
}

// Each second, all relative times on the page move on.
setInterval(() => {
  if (document.hidden) return;
  for (const each of document.querySelectorAll("time[data-relative]")) {
    const text = relative(each.dateTime);
    if (each.textContent !== text) each.textContent = text;
  }
}, 1000);
