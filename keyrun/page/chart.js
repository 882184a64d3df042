// Charts of the last minutes, as SVG.

import { h, svg } from "./dom.js";
import { now } from "./time.js";
import { faint, sign } from "./ui.js";

const SPAN = 180_000;
const [WIDTH, HEIGHT] = [300, 80];

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value * 0.9999) * power;
}

/** Return a chart. A series is `[name, values, kind, href]`; its values are `[time, value]` in order, null for a gap.
 * `least` is the least upper end of the range. */
export function chart(title, text, least, series, note, stacked) {
  const end = now(), begin = end - SPAN, sums = new Map();
  const lines = series.map(([, values]) => values.filter(([at, value]) => at >= begin && value != null).map(([at, value]) => {
    const low = stacked ? sums.get(at) ?? 0 : 0;
    sums.set(at, low + value);
    return [at, low + value, low];
  }));
  const top = roundUp(Math.max(least, ...lines.flat().map(([, value]) => value)));
  const x = (at) => (((at - begin) / SPAN) * WIDTH).toFixed(1), y = (value) => (HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1);
  const paths = lines.map((line, i) => {
    if (!line.length) return null;
    const points = line.map(([at, value]) => `${x(at)} ${y(value)}`), kind = { class: series[i][2] };
    const broken = points.map((each, j) => (j && line[j][0] - line[j - 1][0] < 10_000 ? "L" : "M") + each).join("");
    const back = line.map(([at, , low]) => `${x(at)} ${y(low)}`).reverse();
    return [(stacked || !series[1]) && svg("path.area", { ...kind, d: `M${[...points, ...back].join("L")}Z` }), svg("path.line", { ...kind, d: broken })];
  });
  const figures = series.map(([, values]) => { const value = values.at(-1)?.[1]; return value == null ? "–" : text(value); });
  const label = ([name, , kind, href]) => (href ? h("a", { href }, sign(kind), " ", name) : [h("i.swatch"), name]);
  return h("section.card", { key: title }, h("h2", title), !series[1] && h("p.figure", figures[0], " ", faint(note)),
    h("div.plot", svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, ${series.map(([name], i) => `${name} ${figures[i]}`).join(", ")}` },
      svg("path.grid", { d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }), paths), h("span", text(top))),
    series[1] && h("ul.legend", series.map((each, i) => h("li", { class: each[2] }, label(each), " ", h("b", figures[i])))));
}
