// Overview: what the runtime does now, and what needs attention.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { gauge, latency, rate, stats } from "./stats.js";
import { table } from "./table.js";
import { count, duration, number } from "./time.js";
import { action, badge, empty, sign } from "./ui.js";

const STATES = ["running", "waiting", "pending", "paused", "cancelling", "quarantined"];

export default {
  title: "Overview",
  async load({ data, signal }) {
    // What changes slowly is asked for less often.
    if (data && Date.now() - data.at < 5000) return data;
    return { at: Date.now(), counts: await get("/counts", {}, signal) };
  },
  view: ({ data, redraw }) => [
    h("div", { class: "head" }, h("h1", {}, "Overview"), h("div", { class: "actions" }, pauses())),
    stats.latest ? [attention(stats.latest), charts(redraw)] : empty("No statistics yet."),
    h("h2", {}, "Unfinished runs by workflow"),
    table({
      caption: "Unfinished runs by workflow",
      rows: data.counts.unfinished,
      id: (row) => `${row.workflow} ${row.version}`,
      none: empty("No run is unfinished. ", h("a", { href: "#/start" }, "Start a run")),
      columns: [
        { label: "Workflow", kind: "fill", cell: (row) => h("a", { href: link(["runs"], { workflow: row.workflow, version: row.version }), "data-row": true }, row.workflow) },
        { label: "Version", kind: "number", cell: (row) => row.version },
        { label: "Runs", kind: "number", cell: (row) => number(row.runs) },
      ],
    }),
  ],
};

function pauses() {
  if (stats.latest?.paused) return action("Resume all runs", { run: () => post("/resume"), done: "Resumed all runs, except those that were paused themselves." });
  return action("Pause all runs", {
    confirm: { title: "Pause all runs?", text: "Running steps end first. Then no run goes on until you resume all runs.", danger: true },
    run: () => post("/pause"), done: "Paused all runs.",
  });
}

function attention({ runs, statistics: s, ...all }) {
  const quarantined = (runs?.quarantined ?? 0) + (s?.quarantined_keys ?? 0);
  const items = [
    all.paused && ["paused", "All runs are paused", "#/"],
    all.dead_letters > 0 && ["failed", count(all.dead_letters, "dead letter"), "#/dead-letters"],
    quarantined > 0 && ["quarantined", `${number(quarantined)} quarantined`, "#/quarantine"],
    ...(s?.circuits ?? []).filter((each) => each.state !== "closed").map((each) => ["failed", `The circuit of ${each.step} is ${each.state.replace("_", " ")}`, "#/policies"]),
    s?.backlog.waiting > 0 && ["waiting", `${count(s.backlog.waiting, "submit")} wait for room`, link(["runs"], { state: "pending" })],
    s?.waiting_outcomes > 100 && ["waiting", `${number(s.waiting_outcomes)} outcomes wait for on_terminal`, "#/policies"],
    s?.loop.lag > 1 && ["waiting", `The event loop is ${duration(s.loop.lag)} late`, "#/policies"],
  ].filter(Boolean);
  if (!items.length) return h("p", { class: "attention good" }, badge("succeeded", "Nothing needs attention"));
  return h("ul", { class: "attention", "aria-label": "Needs attention" }, items.map(([state, text, href]) => h("li", { class: `state ${state}` }, sign(state), h("a", { href }, text))));
}

const byState = (states, read) => states.map((state) => ({ name: state, kind: state, label: [sign(state), " ", state], href: link(["runs"], { state }), values: read(state) }));

function charts(redraw) {
  const s = stats.latest, own = (id, title, text, least, series, more) => chart({ id, title, text, least, series, redraw, ...more });
  return h("div", { class: "cards" },
    own("runs", "Unfinished runs", number, 4, byState(STATES, (state) => gauge((each) => each.runs?.[state] ?? 0)), { stacked: true }),
    s.statistics && [
      own("steps", "Steps per second", number, 1, [{ name: "steps", values: rate((each) => each.attempts) }], { note: "attempts that ended" }),
      own("ended", "Ended runs per second", number, 1, byState(["succeeded", "failed", "cancelled"], (state) => rate((each) => each.ended?.[state] ?? 0))),
      own("commits", "Commit latency", duration, 0.001, [{ name: "p50", kind: "running", values: latency(0.5) }, { name: "p99", kind: "waiting", values: latency(0.99) }]),
      own("backlog", "Backlog", number, 4, [{ name: "pending", values: gauge((each) => each.statistics?.backlog.pending) }], { note: `of ${number(s.statistics.backlog.limit)} runs that may be pending` }),
      own("oldest", "Oldest pending run", duration, 1, [{ name: "age", kind: "waiting", values: gauge((each) => each.oldest_pending ?? 0) }], { note: "since its submit" }),
      own("slots", `Steps in ${number(s.slots)} slots`, number, 4, [{ name: "running", kind: "running", values: gauge((each) => each.statistics?.running_steps) }, { name: "waiting", kind: "waiting", values: gauge((each) => each.statistics?.waiting_for_slot) }]),
    ]);
}
