// The graph of a run: nodes in layers from left to right, with their states.

import { h, svg } from "./dom.js";
import { table } from "./table.js";
import { between, duration } from "./time.js";
import { badge, failure, shorten, sign } from "./ui.js";

const [W, H, DX, DY] = [164, 46, 70, 26];

/** Return the places of nodes: layers by the longest way to a node, ordered by the places before. */
function layout(nodes, edges) {
  const forward = edges.filter((each) => !each.back && each.source !== each.target);
  const layer = new Map(nodes.map((each) => [each.id, 0]));
  for (let round = 0, moved = true; moved && round <= nodes.length; round++) {
    moved = false;
    for (const { source, target } of forward) if (layer.get(target) <= layer.get(source)) { layer.set(target, layer.get(source) + 1); moved = true; }
  }
  // A node in the body of a map stands below its map.
  for (const each of nodes) if (each.within) layer.set(each.id, Math.max(layer.get(each.id), layer.get(each.within) ?? 0));
  const rows = [];
  for (const each of nodes) (rows[layer.get(each.id)] ??= []).push(each.id);
  const order = new Map();
  const number = (row) => row.forEach((id, i) => order.set(id, i - (row.length - 1) / 2));
  rows.forEach(number);
  for (let round = 0; round < 4; round++)
    for (const row of round % 2 ? [...rows].reverse() : rows) {
      const weight = new Map(row.map((id) => {
        const near = forward.flatMap((each) => (each.target === id ? [each.source] : each.source === id ? [each.target] : []));
        return [id, near.length ? near.reduce((sum, other) => sum + order.get(other), 0) / near.length : order.get(id)];
      }));
      row.sort((a, b) => weight.get(a) - weight.get(b));
      number(row);
    }
  const most = Math.max(...rows.map((row) => row.length));
  const height = most * (H + DY) + 10;
  return {
    width: rows.length * (W + DX) - DX + 20, height,
    at: (id) => [10 + layer.get(id) * (W + DX), height / 2 + order.get(id) * (H + DY) - H / 2],
  };
}

export function graphTab({ nodes, edges }) {
  const { width, height, at } = layout(nodes, edges);
  const took = (node) => (node.began_at ? duration(between(node.began_at, node.ended_at)) : "");
  const edge = (each) => {
    const [x1, y1] = at(each.source), [x2, y2] = at(each.target);
    const back = x2 <= x1;
    const d = back ? `M${x1 + W / 2} ${y1}C${x1 + W / 2} ${y1 - 50} ${x2 + W / 2} ${y2 - 50} ${x2 + W / 2} ${y2}`
      : `M${x1 + W} ${y1 + H / 2}C${x1 + W + DX / 2} ${y1 + H / 2} ${x2 - DX / 2} ${y2 + H / 2} ${x2 - 7} ${y2 + H / 2}`;
    const word = each.port ?? (each.on === "fail" ? "on fail" : each.when ? shorten(each.when, 16) : "");
    return svg("g", { class: each.taken ? "edge taken" : "edge" }, svg("path", { d, "marker-end": `url(#${each.taken ? "tip-taken" : "tip"})` }),
      word && svg("text", { x: (x1 + W + x2) / 2, y: (y1 + y2 + H) / 2 - 5, "text-anchor": "middle" }, word, svg("title", {}, each.when ?? word)));
  };
  const tip = (id) => svg("marker", { id, viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, svg("path", { d: "M0 0 8 4 0 8z" }));
  return [
    h("div", { class: "scroll graph", tabindex: "0", role: "region", "aria-label": "Graph" },
      svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Graph: ${nodes.map((each) => `${each.id} ${each.state}`).join(", ")}` },
        svg("defs", {}, tip("tip"), tip("tip-taken")), edges.map(edge),
        nodes.map((each) => {
          const [x, y] = at(each.id);
          const picture = badge(each.state).className;
          const mark = sign(each.state);
          for (const [name, value] of [["x", x + 9], ["y", y + 25], ["width", 12], ["height", 12]]) mark.setAttribute(name, value);
          return svg("g", { class: `node ${picture}`, key: each.id }, svg("title", {}, each.failure?.reason ?? each.id), svg("rect", { x, y, width: W, height: H, rx: 5 }),
            svg("text", { x: x + 9, y: y + 18, class: "name" }, shorten(each.id, 20)), mark, svg("text", { x: x + 27, y: y + 35 }, shorten(`${each.state.replaceAll("_", " ")} ${each.items ? `${each.items.done}/${each.items.total}` : took(each)}`, 24)));
        }))),
    table({
      caption: "Nodes", rows: nodes, id: (each) => each.id,
      columns: [
        { label: "Node", cell: (each) => h("code", {}, each.id) }, { label: "State", cell: (each) => badge(each.state) }, { label: "Attempt", kind: "number", cell: (each) => each.attempt || "–" },
        { label: "Turns", kind: "number wide", cell: (each) => each.turns }, { label: "Took", kind: "number", cell: (each) => took(each) || "–" }, { label: "Mean", kind: "number wide", cell: (each) => duration(each.mean) },
        { label: "Queue", kind: "number wide", cell: (each) => each.queue ?? "–" }, { label: "Error", kind: "fill wide", cell: (each) => each.failure && h("details", {}, h("summary", {}, shorten(each.failure.reason, 60)), failure(each.failure)) },
      ],
    }),
  ];
}
