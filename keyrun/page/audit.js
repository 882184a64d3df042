// The audit log: who did what from outside.

import { code, filters, get, h, keyLink, listScreen, runLink, time } from "./kit.js";

export default listScreen({
  title: "Audit", noun: "write", none: "No write matches.", every: 3000,
  actions: ({ query, set }) => filters([["who"], ["operation"], ["run_id"], ["key"]], query, set),
  load: ({ query, signal }) => get("/audit", { ...query, limit: 50, newest_first: true }, signal), rows: (data) => data.entries,
  columns: [
    ["When", (row) => time(row.at)], ["Who", "who"], ["What", (row) => code(row.operation)], ["Run", (row) => (row.run_id ? runLink(row.run_id) : row.target || "–"), "wide"], ["Key", (row) => keyLink(row.key), "wide"],
    ["Arguments and result", (row) => h("span.clip", h("span.faint", row.summary), row.summary && ": ", h("span", { class: row.error && "bad" }, row.error && `${row.error}: `, row.result)), "fill"],
  ],
});
