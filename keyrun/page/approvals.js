// Approvals: the gates that wait for a person.

import { action, at, h, keyLink, listScreen, pages, post, runLink, time } from "./kit.js";
import { session } from "./session.js";

export const decisions = ({ run_id: id, gate }) => [["Approve", "primary"], ["Reject", "danger"]].map(([label, kind]) => action(label, {
  kind, name: `${label} ${gate} of ${id}`, done: "Decided", run: (values) => post(at("runs", id, "gates", gate, label.toLowerCase()), values),
  dialog: { title: `${label} ${gate}?`, text: `Run ${id}`, danger: label === "Reject", fields: [{ name: "by", label: "Your name", value: session.name, required: true }, { name: "comment", label: "Comment for the workflow" }] },
}));

export default listScreen({
  title: "Approvals", noun: "gate", intro: "Runs that wait for the decision of a person.", none: "No run waits for a decision.",
  load: pages("/approvals"), rows: (data) => data.approvals.map((each) => ({ ...each, id: `${each.run_id} ${each.gate}` })), of: "id", data: (row) => ({ "data-run": row.run_id }),
  columns: [
    ["Gate", (row) => h("b", row.gate)], ["Run", (row) => runLink(row.run_id)], ["Workflow", "workflow", "wide"], ["Key", (row) => keyLink(row.key), "fill wide"],
    ["Since", (row) => time(row.since), "wide"], ["Times out", (row) => (row.deadline ? time(row.deadline) : "never"), "wide"], ["Decision", (row) => h("div.actions", decisions(row))],
  ],
});
