// Approvals: the gates that wait for a person.

import { at, get, post } from "./api.js";
import { session } from "./session.js";
import { listScreen } from "./table.js";
import { h } from "./dom.js";
import { action, keyLink, runLink, time } from "./ui.js";

/** Return the buttons that decide at a gate. */
export const decisions = ({ run_id: id, gate }) => ["Approve", "Reject"].map((name) => action(name, {
  name: `${name} ${gate} of ${id}`, kind: name === "Approve" ? "primary" : "danger",
  confirm: {
    title: `${name} ${gate}?`, text: `Run ${id}`, ok: name, danger: name === "Reject",
    fields: [{ name: "by", label: "Your name", value: session.name, required: true }, { name: "comment", label: "Comment for the workflow" }],
  },
  run: (values) => post(at("runs", id, "gates", gate, name.toLowerCase()), values), done: `${name === "Approve" ? "Approved" : "Rejected"} ${gate} of ${id}.`,
}));

export default listScreen({
  title: "Approvals", intro: "Runs that wait for the decision of a person.", noun: "gate", none: "No run waits for a decision.",
  load: ({ query, signal }) => get("/approvals", { limit: 50, cursor: query.cursor }, signal), rows: (data) => data.approvals,
  id: (row) => `${row.run_id} ${row.gate}`, data: (row) => ({ "data-run": row.run_id }),
  columns: [
    { label: "Gate", cell: (row) => h("b", {}, row.gate) }, { label: "Run", cell: (row) => runLink(row.run_id, { row: true }) },
    { label: "Workflow", kind: "wide", cell: (row) => row.workflow }, { label: "Key", kind: "fill wide", cell: (row) => keyLink(row.key) },
    { label: "Since", kind: "wide", cell: (row) => time(row.since) }, { label: "Times out", kind: "wide", cell: (row) => (row.deadline ? time(row.deadline) : "never") },
    { label: "Decision", cell: (row) => h("div", { class: "actions" }, decisions(row)) },
  ],
});
