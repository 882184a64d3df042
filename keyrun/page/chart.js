// Charts of the last minutes, as SVG: areas and lines, with the upper end of the range.

import { h, svg } from "./dom.js";
import { now } from "./time.js";
import { faint } from "./ui.js";

const SPAN = 180;
const [WIDTH, HEIGHT] = [300, 80];
const hover = { id: null, at: 0 };

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value * 0.9999) * power;
}

/** Return a chart.
 *
 * - `series`: `{ name, kind, label, href, values }`; the values are `[time, value]` in order, null for a gap.
 * - `stacked`: whether the series are put on each other.  - `text`: returns a value as text.
 * - `least`: the least upper end of the range.  - `redraw`: called when the pointer moves. */
export function chart({ id, title, note, series, text, stacked, least, redraw }) {
  const end = now(), begin = end - SPAN * 1000;
  const lines = series.map(({ values }) => values.filter(([at]) => at >= begin));
  const sums = new Map();
  const placed = lines.map((line) => line.map(([at, value]) => {
    const low = stacked ? sums.get(at) ?? 0 : 0;
    if (stacked) sums.set(at, low + value);
    return [at, value == null ? null : low + value, low];
  }));
  const top = roundUp(Math.max(least, ...placed.flat().map(([, value]) => value ?? 0)));
  const x = (at) => (((at - begin) / (end - begin)) * WIDTH).toFixed(1), y = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1);
  const paths = placed.map((all, i) => {
    const line = all.filter(([, value]) => value != null), points = line.map(([at, value]) => `${x(at)} ${y(value)}`);
    if (!line.length) return null;
    const broken = points.map((each, j) => (j && line[j][0] - line[j - 1][0] < 10_000 ? "L" : "M") + each).join("");
    const back = line.map(([at, , low]) => `${x(at)} ${y(low)}`).reverse();
    return [(stacked || placed.length === 1) && svg("path.area", { class: series[i].kind, d: `M${[...points, ...back].join("L")}Z` }), svg("path.line", { class: series[i].kind, d: broken })];
  });
  const at = hover.id === id ? hover.at : null, near = at ?? end;
  const figures = lines.map((line) => {
    const value = line.reduce((best, each) => (Math.abs(each[0] - near) < Math.abs(best[0] - near) ? each : best), [0, null])[1];
    return value == null ? "–" : text(value);
  });
  const point = (event) => {
    const box = event?.currentTarget.getBoundingClientRect();
    Object.assign(hover, { id: event && id, at: event && begin + ((event.clientX - box.left) / box.width) * (end - begin) });
    redraw();
  };
  return h("section.card", { key: id },
    h("h2", title, at && faint(` ${Math.round((end - at) / 1000)} s ago`)), series.length === 1 && h("p.figure", figures[0], " ", faint(note)),
    h("div.plot", svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", onpointermove: point, onpointerleave: () => point(),
      "aria-label": `${title}, ${series.map(({ name }, i) => `${name} ${figures[i]}`).join(", ")}`,
    }, svg("path.grid", { d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }), paths, at && svg("path.cursor", { d: `M${x(at)} 0V${HEIGHT}` })), h("span", text(top))),
    series.length > 1 && h("ul.legend", series.map(({ name, kind, label = [h("i.swatch"), name], href }, i) => h("li", { class: kind }, href ? h("a", { href }, label) : label, " ", h("b", figures[i])))));
}
