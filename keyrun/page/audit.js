// The audit log: who did what from outside.

import { get } from "./api.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { listScreen } from "./table.js";
import { keyLink, runLink, time } from "./ui.js";

const FIELDS = ["who", "operation", "run_id", "key"];

export default listScreen({
  title: "Audit", noun: "write", none: "No write matches.", every: 3000,
  load: ({ query, signal }) => get("/audit", { ...Object.fromEntries(FIELDS.map((each) => [each, query[each]])), limit: 50, newest_first: true, cursor: query.cursor }, signal),
  head: ({ query, set }) => h("form", { class: "filters", "aria-label": "Filter", onsubmit: (event) => event.preventDefault() }, FIELDS.map((name) =>
    h("label", {}, h("span", {}, name.replace("_id", "")), h("input", { name, value: query[name] ?? "", autocomplete: "off", onchange: (event) => set({ [name]: event.target.value.trim() }) })))),
  rows: (data) => data.entries, id: (row) => `${row.at} ${row.operation_id} ${row.run_id}`,
  columns: [
    { label: "When", cell: (row) => time(row.at) }, { label: "Who", cell: (row) => h("a", { href: link(["audit"], { who: row.who }) }, row.who) },
    { label: "What", cell: (row) => h("code", {}, row.operation) }, { label: "Run", kind: "wide", cell: (row) => (row.run_id ? runLink(row.run_id, { row: true }) : row.target || "–") }, { label: "Key", kind: "wide", cell: (row) => keyLink(row.key) },
    { label: "Arguments", kind: "wide", cell: (row) => h("span", { class: "clip faint" }, row.summary) }, { label: "Result", kind: "fill", cell: (row) => h("span", { class: row.error ? "clip bad" : "clip" }, row.error && `${row.error}: `, row.result) },
  ],
});
