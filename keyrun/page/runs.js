// Runs: the list with its filters, its pages, and actions on all runs that match.

import { get } from "./api.js";
import { bulk } from "./bulk.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { pager, table } from "./table.js";
import { between, count, duration, now } from "./time.js";
import { badge, empty, keyLink, runLink, shorten, sign, time } from "./ui.js";

const STATES = ["pending", "running", "waiting", "paused", "cancelling", "quarantined", "succeeded", "failed", "cancelled"];
const FIELDS = [
  ["workflow", "Workflow"], ["key", "Key"], ["tag", "Tag"], ["step", "Step"], ["error", "Error type"], ["version", "Version"],
  ["origin", "Origin"], ["group", "Group"], ["since", "Since"],
];
const ACTIONS = [["cancel", "operate"], ["pause", "operate"], ["resume", "operate"], ["redrive", "operate"], ["forget", "admin"]];
const UNITS = { m: 60, h: 3600, d: 86400 };

/** Return the filter of an address as the API takes it. `since=2h` is relative to now. */
export function filterOf(query) {
  const found = {};
  if (query.state) found.state = [query.state].flat();
  for (const [name] of FIELDS) if (query[name]) found[name] = query[name];
  const ago = /^(\d+)\s*([mhd])$/.exec(found.since ?? "");
  if (ago) found.since = new Date(now() - ago[1] * UNITS[ago[2]] * 1000).toISOString();
  return found;
}

/** Return what a run does now, in a few words. */
export function doing(run) {
  if (run.failure) return h("span", { class: "clip", title: run.failure.reason }, run.failure.error_type && [h("code", {}, run.failure.error_type.split(".").pop()), " "], run.failure.reason);
  if (run.reason) return h("span", { class: "clip", title: run.reason }, run.reason);
  if (run.waiting_on) return h("span", { class: "clip" }, run.waiting_on, run.waiting_until && [", ", time(run.waiting_until)]);
  if (run.step) return [h("code", {}, run.step), run.attempt > 1 && ` attempt ${run.attempt}`];
  if (run.state === "pending" && run.waiting_until) return ["starts ", time(run.waiting_until)];
  return run.ended_at && run.result != null ? h("code", { class: "clip faint" }, shorten(JSON.stringify(run.result), 60)) : null;
}

/** Return a table of runs. */
export const runTable = (runs, { caption = "Runs", none, key = true } = {}) => table({
  caption, rows: runs, none, id: (run) => run.run_id, data: (run) => ({ "data-run": run.run_id, "data-state": run.state }),
  columns: [
    { label: "State", kind: "tight", cell: (run) => badge(run.state, run.compensating ? "compensating" : run.state) },
    { label: "Run", cell: (run) => runLink(run.run_id, { row: true }) },
    { label: "Workflow", kind: "wide", cell: (run) => run.workflow },
    key && { label: "Key", cell: (run) => keyLink(run.key, { limit: 22 }) },
    { label: "Now", kind: "fill wide", cell: doing },
    { label: "Steps", kind: "number wide", cell: (run) => run.steps_done },
    { label: "Took", kind: "number wide", cell: (run) => (run.started_at ? duration(between(run.started_at, run.ended_at)) : "–") },
    { label: "Submitted", kind: "number", cell: (run) => time(run.submitted_at) },
  ].filter(Boolean),
});

export default {
  title: "Runs",
  every: 2000,
  async load({ query, signal }) {
    const [page, workflows] = await Promise.all([
      get("/runs", { ...filterOf(query), newest_first: query.order !== "oldest", limit: 50, cursor: query.cursor }, signal)
        .catch((error) => { if (error.status === 422) return { runs: [], wrong: error.message }; throw error; }),
      this.names ?? get("/workflows", {}, signal).then((found) => [...new Set(found.result.map((each) => each.name))]),
    ]);
    this.names = workflows;
    return page;
  },
  view({ data, query, set }) {
    const filter = filterOf(query);
    const states = filter.state ?? [];
    const filtered = Object.keys(filter).length > 0;
    return [
      h("div", { class: "head" }, h("h1", {}, "Runs"), h("div", { class: "actions", role: "group", "aria-label": "All runs that match" },
        ACTIONS.map(([name, role]) => bulk(name, { role, filter, why: filtered ? null : "Set a filter first: this acts on all runs that match." })))),
      h("div", { class: "chips", role: "group", "aria-label": "State" }, STATES.map((state) => h("button", {
        type: "button", class: `chip ${state}`, "aria-pressed": String(states.includes(state)),
        onclick: () => set({ state: states.includes(state) ? states.filter((each) => each !== state) : [...states, state] }),
      }, sign(state), state))),
      h("form", { class: "filters", "aria-label": "Filter", onsubmit: (event) => event.preventDefault() },
        FIELDS.map(([name, label]) => h("label", {}, h("span", {}, label), h("input", {
          name, value: query[name] ?? "", list: name === "workflow" ? "workflows" : null, autocomplete: "off", spellcheck: "false",
          placeholder: name === "since" ? "30m, 2h, 7d, time" : null, onchange: (event) => set({ [name]: event.target.value.trim() }),
        }))),
        h("label", {}, h("span", {}, "Order"), h("select", { name: "order", value: query.order ?? "newest", onchange: (event) => set({ order: event.target.value === "oldest" ? "oldest" : null }) },
          ["newest", "oldest"].map((each) => h("option", { value: each, selected: each === (query.order ?? "newest") }, `${each} first`)))),
        filtered && h("a", { class: "button", href: "#/runs" }, "Clear"),
        h("datalist", { id: "workflows" }, (this.names ?? []).map((each) => h("option", { value: each })))),
      data.wrong && h("p", { class: "bad", role: "alert" }, data.wrong),
      runTable(data.runs, {
        none: empty(data.cursor ? `No match among the ${count(data.examined, "run")} on this page. The next page looks further.` : filtered ? "No run matches. " : "No run is stored. ",
          !filtered && h("a", { href: "#/start" }, "Start a run")),
      }),
      pager(["runs"], query, data.cursor, data.runs.length ? `${count(data.runs.length, "run")}, looked at ${data.examined}` : ""),
    ];
  },
};

export const runsLink = (values) => link(["runs"], values);
