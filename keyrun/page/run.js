// A run: its state, why it does not move, its story, its data, its relatives and its actions.

import { decisions } from "./approvals.js";
import { graphTab } from "./graph.js";
import { history, journalTab } from "./journal.js";
import { action, asJson, at, badge, between, code, duration, empty, explained, facts, failure, get, h, headOf, json, keyLink, link, post, remove, runLink, table, time, verb } from "./kit.js";
import { timelineTab } from "./timeline.js";

const TABS = { timeline: timelineTab, journal: journalTab, data: dataTab, family: familyTab, graph: graphTab };
const ENDED = ["succeeded", "failed", "cancelled"];
const graphs = new Set();
let asked = null;

export default {
  async load({ id, query: { tab = "timeline" }, data, local, signal, redraw }) {
    const path = at("runs", id), ask = (name, values) => get(`${path}/${name}`, values, signal);
    asked ??= get("/workflows").then(({ result }) => result.forEach((each) => each.kind === "graph" && graphs.add(each.name)), () => { asked = null; });
    const [run] = await Promise.all([get(path, {}, signal), asked]);
    const live = !ENDED.includes(run.state), waits = /approval/.test(run.waiting_on);
    const [why, progress, graph, family, input, gates] = await Promise.all([
      ask("explain"), live && tab === "timeline" && ask("progress"), tab === "graph" && ask("graph"), tab === "family" && ask("family", { limit: 100 }),
      tab === "data" && (data?.input || ask("input").catch(({ message }) => ({ message }))), waits && get("/approvals", { key: run.key, limit: 200 }, signal),
    ]);
    if (/timeline|journal/.test(tab)) local.loading ??= history(path, run, local, signal, redraw).catch(() => {}).finally(() => { local.loading = null; });
    return { run, live, why, progress, graph, family, input, gates: (gates?.approvals ?? []).filter((each) => each.run_id === id) };
  },
  view(context) {
    const { data: { run, why }, query: { tab = "timeline" }, id } = context;
    const tabs = Object.keys(TABS).filter((each) => each !== "graph" || graphs.has(run.workflow));
    return [
      headOf("Run", id, actions(context.data, at("runs", id))),
      explained(why, run.state),
      facts([
        ["State", badge(run.state, run.compensating ? "compensating" : run.state)], ["Key", keyLink(run.key)], ["Workflow", h("a", { href: link(["runs"], { workflow: run.workflow }) }, `${run.workflow} v${run.version}`)],
        ["Step", run.step && [code(run.step), run.attempt > 0 && ` attempt ${run.attempt}`]], ["Steps done", run.steps_done], ["Submitted", time(run.submitted_at)], ["Started", run.started_at && time(run.started_at)],
        ["Took", run.started_at && duration(between(run.started_at, run.ended_at))], ["Deadline", run.deadline && time(run.deadline)], ["Generation", run.generation > 1 && run.generation], ["Started by", run.origin],
        ["Tags", run.tags.length > 0 && run.tags.map((tag) => [h("a", { href: link(["runs"], { tag }) }, tag), " "])],
      ]),
      failure(run.failure),
      h("nav.tabs", { "aria-label": "Parts of the run" }, tabs.map((each) => h("a", { href: link(["runs", id], { tab: each }), "aria-current": each === tab && "page" }, each))),
      TABS[tab]?.(context),
    ];
  },
};

function actions({ run, live, gates }, path) {
  const quarantined = run.state === "quarantined";
  return [
    gates.map(decisions),
    live && !quarantined && action("Signal", {
      role: "submit", done: "Sent", run: ({ name, payload }) => post(path + at("signals", name), { payload: asJson(payload) }), dialog: {
        title: "Send a signal", ok: "Send",
        fields: [{ name: "name", label: "Name", required: true, value: /^signal (.+)$/.exec(run.waiting_on)?.[1] }, { name: "payload", label: "Payload (JSON)", area: true, value: "null", check: asJson }],
      },
    }),
    live && (run.state === "paused" ? verb("resume", path, "Resume") : !quarantined && verb("pause", path, "Pause")),
    (run.state === "failed" || quarantined) && verb("redrive", path, "Redrive", { kind: "primary" }),
    live ? verb("cancel", path, "Cancel run", { why: run.state === "cancelling" ? "The run is being cancelled." : null, sure: `A running step of ${run.run_id} is cancelled, and compensations run.` }) : null,
    (!live || quarantined) && remove(path, "Forget", { sure: `The records of ${run.run_id} are removed forever.` }),
  ];
}

function dataTab({ data: { run, input } }) {
  return h("div.columns", h("section", h("h2", "Input"), input?.message ? empty(input.message) : input ? json(input.result) : empty("Loading…")),
    h("section", h("h2", "Result"), run.state === "succeeded" ? json(run.result) : empty("The run has no result."), h("h2", "Headers"), json(run.headers)));
}

function familyTab({ data: { family } }) {
  if (!family) return null;
  const rows = [...(family.parent ? [{ ...family.parent, is: "parent" }] : []), ...family.children.map((each) => ({ ...each, is: "child" }))];
  return [
    facts([["Group", family.group && h("a", { href: link(["groups", family.group]) }, family.group)], ["Schedule", family.schedule]]),
    table("Family", rows, [
      ["Relation", "is"], ["State", (row) => (row.state ? badge(row.state) : "forgotten")], ["Run", (row) => runLink(row.run_id)], ["Workflow", "workflow", "wide"], ["Key", (row) => keyLink(row.key), "fill"],
    ], { of: "run_id", none: "The run has no parent, and no children under other keys." }),
    family.cursor && empty("There are more children."),
  ];
}
