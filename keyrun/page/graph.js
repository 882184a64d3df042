// The graph of a run: nodes in layers from left to right, with their states.

import { badge, between, code, duration, failure, h, shorten, sign, svg, table, words } from "./kit.js";

const [W, H, DX, DY] = [164, 46, 70, 26];

/** Return the places of nodes: layers by the longest way to a node. */
function layout(nodes, edges) {
  const forward = edges.filter(({ source, target, back }) => !back && source !== target);
  const layer = new Map(nodes.map(({ id }) => [id, 0]));
  for (let round = 0; round < nodes.length; round++)
    for (const { source, target } of forward) layer.set(target, Math.min(nodes.length, Math.max(layer.get(target), layer.get(source) + 1)));
  // The nodes in the body of a map stand below their map.
  for (const { id, within } of nodes) if (within) layer.set(id, Math.max(layer.get(id), layer.get(within) ?? 0));
  const rows = [], order = new Map(), number = (row) => row.forEach((id, i) => order.set(id, i - (row.length - 1) / 2));
  for (const { id } of nodes) (rows[layer.get(id)] ??= []).push(id);
  rows.forEach(number);
  for (let round = 0; round < 6; round++)
    for (const row of round % 2 ? [...rows].reverse() : rows) {
      const weight = new Map(row?.map((id) => {
        const near = forward.flatMap(({ source, target }) => (target === id ? [source] : source === id ? [target] : []));
        return [id, near.length ? near.reduce((sum, other) => sum + order.get(other), 0) / near.length : order.get(id)];
      }));
      if (row) number(row.sort((a, b) => weight.get(a) - weight.get(b)));
    }
  const height = Math.max(...rows.map((row) => row?.length ?? 0)) * (H + DY) + 10;
  return { width: rows.length * (W + DX) - DX + 20, height, place: (id) => [10 + layer.get(id) * (W + DX), height / 2 + order.get(id) * (H + DY) - H / 2] };
}

const took = (node) => (node.began_at && node.turns ? duration(between(node.began_at, node.ended_at)) : "");

export function graphTab({ data: { graph } }) {
  if (!graph) return null;
  const { nodes, edges } = graph, { width, height, place } = layout(nodes, edges);
  const edge = ({ source, target, port, on, when, taken }) => {
    const [[x1, y1], [x2, y2]] = [place(source), place(target)], word = port ?? (on === "fail" ? "on fail" : when ? shorten(when, 16) : "");
    const d = x2 <= x1 ? `M${x1 + W / 2} ${y1}C${x1 + W / 2} ${y1 - 50} ${x2 + W / 2} ${y2 - 50} ${x2 + W / 2} ${y2}` : `M${x1 + W} ${y1 + H / 2}C${x1 + W + DX / 2} ${y1 + H / 2} ${x2 - DX / 2} ${y2 + H / 2} ${x2 - 7} ${y2 + H / 2}`;
    return svg("g.edge", { class: taken && "taken" }, svg("path", { d, "marker-end": `url(#tip${taken ? "-taken" : ""})` }), word && svg("text", { x: (x1 + W + x2) / 2, y: (y1 + y2 + H) / 2 - 5, "text-anchor": "middle" }, word, svg("title", when ?? word)));
  };
  const tip = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0 8 4 0 8z" }));
  const node = (each) => {
    const [x, y] = place(each.id), { id, state, items } = each;
    return svg("g.node", { class: badge(state).className, key: id }, svg("title", each.failure?.reason ?? id), svg("rect", { x, y, width: W, height: H, rx: 5 }), svg("text.name", { x: x + 9, y: y + 18 }, shorten(id, 20)),
      sign(state, { x: x + 9, y: y + 25, width: 12, height: 12 }), svg("text", { x: x + 27, y: y + 35 }, shorten(`${words(state)} ${items ? `${items.done}/${items.total}` : took(each)}`, 24)));
  };
  return [
    h("div.scroll.graph", { tabindex: 0, role: "region", "aria-label": "Graph" }, svg("svg", { width, height, role: "img", "aria-label": nodes.map(({ id, state }) => `${id} ${state}`).join(", ") }, svg("defs", tip("tip"), tip("tip-taken")), edges.map(edge), nodes.map(node))),
    table("Nodes", nodes, [
      ["Node", (each) => code(each.id)], ["State", (each) => badge(each.state)], ["Attempt", (each) => each.attempt || "–", "number"], ["Took", (each) => took(each) || "–", "number"], ["Mean", (each) => duration(each.mean), "number wide"],
      ["Queue", (each) => each.queue ?? "–", "number wide"], ["Error", (each) => each.failure && h("details", h("summary", shorten(each.failure.reason, 60)), failure(each.failure)), "fill wide"],
    ], { of: "id" }),
  ];
}
