// Tables: lists with a caption, and screens that are such a list.

import { get } from "./api.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { count } from "./time.js";
import { empty, faint } from "./ui.js";

/** Return a table. A column is `[label, cell, kind]`: the cell is a function of the row or a field, and the kind has
 * classes, such as `wide` (left out on narrow screens). `of` is the field that identifies a row, and `space` has the
 * heights of what is left out before and after the rows. */
export function table(caption, rows, columns, { of, none, space = [], box, data } = {}) {
  if (!rows.length && none) return empty(none);
  const gap = (height, key) => height > 0 && h("tr", { key, "aria-hidden": "true" }, h("td.gap", { colspan: columns.length, tall: `${height}px` }));
  const rowOf = (row) => h("tr", { key: row[of], [`data-${of?.replace("_id", "")}`]: row[of], ...data?.(row) }, columns.map(([, cell, kind]) => h("td", { class: kind }, cell.call ? cell(row) : row[cell])));
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption, ...box }, h("table", h("caption.hidden", caption),
    h("thead", h("tr", columns.map(([label, , kind]) => h("th", { scope: "col", class: kind }, label || h("span.hidden", "Actions"))))), h("tbody", gap(space[0], "before"), rows.map(rowOf), gap(space[1], "after"))));
}

export const head = (title, ...actions) => h("div.head", h("h1", title), h("div.actions", actions));

export const pager = ({ path, query }, cursor, ...about) => h("div.pager", faint(about),
  query.cursor && h("a.button", { href: link(path, { ...query, cursor: null }) }, "First page"), cursor && h("a.button", { href: link(path, { ...query, cursor }) }, "Next page"));

export const pages = (path, values) => ({ query: { cursor }, signal }) => get(path, { limit: 50, cursor, ...values }, signal);

export const listScreen = ({ title, noun, intro, actions, load, rows, columns, none, every = 2000, ...more }) => ({
  title, load, every,
  view(context) {
    const { cursor } = context.data, found = rows(context.data);
    return [
      head(title, actions?.(context)), h("p.faint", intro), table(title, found, columns, { none: cursor ? "No match on this page. The next page looks further." : none, ...more }),
      pager(context, cursor, found.length > 0 && count(found.length, noun)),
    ];
  },
});
