// Tables: lists with a caption, and links to their pages.

import { h } from "./dom.js";
import { link } from "./router.js";
import { count } from "./time.js";
import { empty } from "./ui.js";

/** Return a table.
 *
 * - `columns`: `{ label, cell, kind }`; `cell` gets the row. `kind` has classes: `number`, `wide` (left
 *   out on narrow screens) and `fill` (takes the rest of the width).
 * - `rows`: the rows.  - `id`: returns what identifies a row.
 * - `data`: returns the attributes of a row.  - `none`: what stands there without rows. */
export function table({ caption, columns, rows, id, data = () => ({}), none }) {
  if (!rows.length && none) return none;
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col", class: each.kind }, each.label || h("span", { class: "hidden" }, "Actions"))))),
      h("tbody", {}, rows.map((row) => h("tr", { key: id?.(row), ...data(row) },
        columns.map((each) => h("td", { class: each.kind }, each.cell(row))))))));
}

/** Return the links below a list that has pages. `query` is that of the address. */
export function pager(path, query, cursor, about) {
  return h("div", { class: "pager" }, h("span", { class: "faint" }, about),
    query.cursor && h("a", { class: "button", href: link(path, { ...query, cursor: null }) }, "First page"),
    cursor && h("a", { class: "button", href: link(path, { ...query, cursor }), rel: "next" }, "Next page"));
}

/** Return the screen of a list: its name, what it is, its rows and its pages. `rows` returns the rows of
 * the data, and `head` what stands beside the name. */
export const listScreen = ({ title, intro, head, load, rows, none, noun, every = 2000, ...more }) => ({
  title, load, every,
  view: (context) => [
    h("div", { class: "head" }, h("h1", {}, title), h("div", { class: "actions" }, head?.(context))),
    intro && h("p", { class: "faint" }, intro),
    table({ caption: title, rows: rows(context.data), none: empty(context.data.cursor ? "No match on this page. The next page looks further." : none), ...more }),
    pager(context.path, context.query, context.data.cursor, rows(context.data).length ? count(rows(context.data).length, noun) : ""),
  ],
});
