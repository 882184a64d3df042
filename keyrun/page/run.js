// A run: its state, why it does not move, its story, its data, its relatives and its actions.

import { at, call, get, post } from "./api.js";
import { decisions } from "./approvals.js";
import { h } from "./dom.js";
import { graphTab } from "./graph.js";
import { history, journalTab } from "./journal.js";
import { link } from "./router.js";
import { table } from "./table.js";
import { timelineTab } from "./timeline.js";
import { between, duration } from "./time.js";
import { action, asJson, badge, copy, empty, explained, facts, failure, json, keyLink, runLink, tabs, time } from "./ui.js";

const ENDED = ["succeeded", "failed", "cancelled"];
const kinds = new Map();
const TABS = ["timeline", "journal", "data", "family", "graph"];

export default {
  title: ({ id }) => id,
  async load({ id, query, data, local, signal, redraw }) {
    const path = at("runs", id), tab = query.tab ?? "timeline";
    const missing = (error) => { if (error.status === 404) return null; throw error; };
    const run = await get(path, {}, signal);
    if (!kinds.size) for (const each of (await get("/workflows", {}, signal)).result) kinds.set(`${each.name} ${each.version}`, each.kind);
    const live = !ENDED.includes(run.state);
    const [why, progress, graph, family, input, gates] = await Promise.all([
      live ? get(path + "/explain", {}, signal).catch(missing) : null,
      live && tab === "timeline" ? get(path + "/progress", {}, signal).catch(missing) : null,
      kinds.get(`${run.workflow} ${run.version}`) !== "graph" ? null : tab === "graph" || !data ? get(path + "/graph", {}, signal).catch(missing) : data.graph,
      tab === "family" ? get(path + "/family", { limit: 100 }, signal) : null,
      tab !== "data" ? null : data?.input ?? get(path + "/input", {}, signal).catch((error) => ({ wrong: error.message })),
      run.waiting_on?.includes("approval") ? get("/approvals", { key: run.key, limit: 200 }, signal) : null,
    ]);
    if (tab === "timeline" || tab === "journal") await history(path, run, local, signal, redraw);
    return { run, live, why, progress, graph, family, input, gates: gates?.approvals.filter((each) => each.run_id === id) ?? [] };
  },
  view(context) {
    const { data: { run, why, graph }, query, id, local } = context;
    const tab = query.tab ?? "timeline";
    return [
      h("div", { class: "head" }, h("h1", {}, h("span", { class: "faint" }, "Run "), h("span", { class: "id whole" }, id)), copy(id, "Copy"), h("div", { class: "actions" }, actions(context))),
      why ? explained(why, run.state) : h("p", { class: `explain ${run.state}`, "data-explain": "ended" }, badge(run.state), run.reason && h("span", {}, run.reason), h("span", {}, time(run.ended_at))),
      facts([
        ["State", badge(run.state, run.compensating ? "compensating" : run.state)], ["Key", keyLink(run.key)],
        ["Workflow", h("a", { href: link(["runs"], { workflow: run.workflow }) }, `${run.workflow} v${run.version}`)],
        ["Step", run.step && [h("code", {}, run.step), ` attempt ${run.attempt}`]], ["Steps done", run.steps_done],
        ["Submitted", time(run.submitted_at)], ["Started", run.started_at && time(run.started_at)], ["Took", run.started_at && duration(between(run.started_at, run.ended_at))],
        ["Deadline", run.deadline && time(run.deadline)], ["Generation", run.generation > 1 && run.generation], ["Started by", run.origin],
        ["Tags", run.tags.length > 0 && run.tags.map((each, i) => [i > 0 && ", ", h("a", { href: link(["runs"], { tag: each }) }, each)])],
        ["Compensated", run.compensation && `${run.compensation.done} of ${run.compensation.total}`],
      ]),
      failure(run.failure),
      tabs("Parts of the run", TABS.filter((each) => each !== "graph" || graph).map((each) => [each, each[0].toUpperCase() + each.slice(1), link(["runs", id], { tab: each })]), tab),
      { timeline: () => timelineTab(run, local.events ?? [], context.data.progress), journal: () => journalTab(context), data: () => dataTab(context.data), family: () => familyTab(context.data), graph: () => graph && graphTab(graph) }[tab]?.(),
    ];
  },
};

function actions({ data: { run, live, gates }, id }) {
  const path = at("runs", id), quarantined = run.state === "quarantined";
  return [
    gates.map((gate) => decisions(gate)),
    live && !quarantined && action("Signal", {
      role: "submit", confirm: {
        title: `Send a signal to ${id}`, ok: "Send",
        fields: [{ name: "name", label: "Name of the signal", required: true, value: /^signal (.+)$/.exec(run.waiting_on ?? "")?.[1] }, { name: "payload", label: "Payload (JSON)", kind: "area", value: "null", check: (text) => asJson(text).wrong }],
      },
      run: ({ name, payload }) => post(path + at("signals", name), { payload: asJson(payload).value }), done: (answer) => `The signal is ${answer.result}.`,
    }),
    live && (run.state === "paused" ? action("Resume", { run: () => post(path + "/resume"), done: "Resumed the run." })
      : !quarantined && action("Pause", { run: () => post(path + "/pause"), done: (answer) => (answer.result ? "Paused: a running step ends first." : "Nothing was paused.") })),
    (run.state === "failed" || quarantined) && action("Redrive", { kind: "primary", run: () => post(path + "/redrive"), done: (answer) => `Redriven: this is generation ${answer.result}.` }),
    live && action("Cancel run", { kind: "danger", why: run.state === "cancelling" ? "The run is being cancelled." : null, confirm: { title: `Cancel ${id}?`, text: "A running step is cancelled. Compensations run before the run ends.", danger: true }, run: () => post(path + "/cancel"), done: (answer) => (answer.result ? "The cancellation is stored." : "The run has ended.") }),
    (!live || quarantined) && action("Forget", { role: "admin", kind: "danger", confirm: { title: `Forget ${id}?`, text: "All records of the run are removed. This cannot be undone.", danger: true }, run: () => call("DELETE", path), done: "Removed the run and all its records." }),
  ];
}

const dataTab = ({ run, input }) => h("div", { class: "columns" },
  h("section", {}, h("h2", {}, "Input"), input?.wrong ? empty(input.wrong) : json(input?.result)),
  h("section", {}, h("h2", {}, "Result"), run.state === "succeeded" ? json(run.result) : empty("The run has no result."),
    h("h2", {}, "Headers"), Object.keys(run.headers).length ? json(run.headers) : empty("The run has no headers.")));

function familyTab({ family }) {
  const rows = [family?.parent && { ...family.parent, how: "parent" }, ...(family?.children ?? []).map((each) => ({ ...each, how: "child" }))].filter(Boolean);
  return [
    facts([["Group", family?.group && h("a", { href: link(["groups", family.group]) }, family.group)], ["Schedule", family?.schedule]]),
    table({
      caption: "Family", rows, id: (row) => row.run_id, data: (row) => ({ "data-run": row.run_id }), none: empty("The run has no parent and no children under other keys."),
      columns: [
        { label: "Relation", cell: (row) => row.how }, { label: "State", cell: (row) => (row.state ? badge(row.state) : "forgotten") },
        { label: "Run", cell: (row) => runLink(row.run_id, { row: true }) }, { label: "Workflow", kind: "wide", cell: (row) => row.workflow ?? "–" }, { label: "Key", kind: "fill", cell: (row) => keyLink(row.key) },
      ],
    }),
    family?.cursor && empty("There are more children than these."),
  ];
}
