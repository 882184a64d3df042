// Times and numbers as text.

export const now = Date.now;

export function duration(s) {
  if (s == null || Number.isNaN(s)) return "–";
  if (s === 0) return "0 s";
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
  const [size, unit, less, small] = s < 3600 ? [60, "min", 1, "s"] : s < 86400 ? [3600, "h", 60, "min"] : [86400, "d", 3600, "h"];
  const rest = Math.floor((s % size) / less);
  return `${Math.floor(s / size)} ${unit}${rest ? ` ${rest} ${small}` : ""}`;
}

export function relative(text) {
  const seconds = Math.round((Date.parse(text) - now()) / 1000), size = Math.abs(seconds);
  const said = size < 10 ? `${size} s` : duration(size);
  return seconds === 0 ? "now" : seconds > 0 ? `in ${said}` : `${said.replace(/(min|h|d) .*/, "$1")} ago`;
}

export const between = (from, to) => Math.max(0, (to ? Date.parse(to) : now()) - Date.parse(from)) / 1000;

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const number = (value) => (value == null ? "–" : Number.isInteger(value) ? value.toLocaleString("en") : NUMBER.format(value));

export const count = (value, noun) => `${number(value)} ${value === 1 ? noun : `${noun}s`.replace(/([^aeiou])ys$/, "$1ies")}`;

setInterval(() => {
  if (!document.hidden) for (const each of document.querySelectorAll("time")) each.firstChild.data = relative(each.dateTime);
}, 1000);
