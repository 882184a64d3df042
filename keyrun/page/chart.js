// Charts of the last minutes: areas and lines as SVG, without axes to read more than the range.

import { h, svg } from "./dom.js";
import { now } from "./time.js";

/** Seconds that a chart shows. */
export const SPAN = 180;
const WIDTH = 300;
const HEIGHT = 80;

/** Return a round number that is not less than a value. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value * 0.9999) * power;
}

const hover = { id: null, x: 0 };

/** Return a chart.
 *
 * - `series`: `{ name, kind, values }`; the values are `[time, value]`, in order, and null for a gap.
 * - `stacked`: whether the series are put on each other.  - `text`: returns a value as text.
 * - `least`: the least upper end of the range.  - `redraw`: called when the pointer moves. */
export function chart({ id, title, note, series, text, stacked = false, least = 0, redraw }) {
  const end = now(), begin = end - SPAN * 1000;
  const shown = series.map((each) => ({ ...each, values: each.values.filter(([at]) => at >= begin - 3000) }));
  const tops = stacked ? shown[0].values.map((_, i) => shown.reduce((sum, each) => sum + (each.values[i]?.[1] ?? 0), 0))
    : shown.flatMap((each) => each.values.map(([, value]) => value ?? 0));
  const top = roundUp(Math.max(least, ...tops, 0));
  const x = (at) => (((at - begin) / (SPAN * 1000)) * WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - (Math.min(value, top) / top) * (HEIGHT - 2) - 1).toFixed(1);
  const base = new Map();
  const paths = shown.flatMap((each) => {
    const points = [], low = [];
    let line = "", last = null;
    for (const [at, value] of each.values) {
      if (value == null) { last = null; continue; }
      const from = stacked ? base.get(at) ?? 0 : 0;
      if (stacked) base.set(at, from + value);
      line += `${last != null && at - last < 10_000 ? "L" : "M"}${x(at)} ${y(from + value)}`;
      points.push(`${x(at)} ${y(from + value)}`);
      low.unshift(`${x(at)} ${y(from)}`);
      last = at;
    }
    if (!points.length) return [];
    return [(stacked || shown.length === 1) && svg("path", { class: `area ${each.kind ?? ""}`, d: `M${points.join("L")}L${low.join("L")}Z` }),
      svg("path", { class: `line ${each.kind ?? ""}`, d: line })];
  });
  const at = hover.id === id ? begin + hover.x * SPAN * 1000 : null;
  const read = (each) => {
    if (at == null) return each.values.at(-1)?.[1];
    let best = null;
    for (const one of each.values) if (best == null || Math.abs(one[0] - at) < Math.abs(best[0] - at)) best = one;
    return best?.[1];
  };
  const values = shown.map((each) => [each, read(each)]);
  const said = (value) => (value == null ? "–" : text(value));
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    Object.assign(hover, { id, x: Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) });
    redraw();
  };
  return h("section", { class: "card chart", key: id },
    h("h2", {}, title, at != null && h("span", { class: "faint" }, ` ${Math.round((end - at) / 1000)} s ago`)),
    shown.length === 1 && h("p", { class: "figure" }, said(values[0][1]), note && h("span", { class: "faint" }, ` ${note}`)),
    h("div", { class: "plot" },
      svg("svg", {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", onpointermove: move,
        onpointerleave: () => { hover.id = null; redraw(); },
        "aria-label": `${title}, last ${SPAN / 60} minutes: ${values.map(([each, value]) => `${each.name} ${said(value)}`).join(", ")}`,
      },
      svg("path", { class: "grid", d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }), paths,
      at != null && svg("path", { class: "cursor", d: `M${x(at)} 0V${HEIGHT}` })),
      h("span", { class: "top" }, text(top))),
    shown.length > 1 && h("ul", { class: "legend" }, values.map(([each, value]) =>
      h("li", { class: each.kind }, h("i", { class: "swatch", "aria-hidden": "true" }), each.href ? h("a", { href: each.href }, each.label ?? each.name) : each.label ?? each.name, " ", h("b", {}, said(value))))));
}
