// Overview: what the runtime does now, and what needs attention.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { gauge, mean, rate, stats } from "./stats.js";
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
  const resume = action("Resume all runs", { run: () => post("/resume"), done: "Resumed all runs, except those that were paused themselves." });
  const pause = action("Pause all runs", {
    confirm: { title: "Pause all runs?", text: "Running steps end first. Then no run goes on until you resume all runs.", danger: true },
    run: () => post("/pause"), done: "Paused all runs.",
  });
  return stats.latest?.paused == null ? [resume, pause] : stats.latest.paused ? resume : pause;
}

function attention(s) {
  const open = s.circuits.filter((each) => each.state !== "closed");
  const runs = s.runs ?? {};
  const items = [
    s.paused && ["paused", "All runs are paused", "#/"],
    s.dead_letters && ["failed", count(s.dead_letters, "dead letter"), "#/dead-letters"],
    (runs.quarantined || s.quarantined_keys) && ["quarantined", `${count((runs.quarantined ?? 0) + s.quarantined_keys, "quarantine")}`, "#/quarantine"],
    ...open.map((each) => ["open", `The circuit of ${each.step} is ${each.state.replace("_", " ")}`, "#/policies"]),
    s.backlog.waiting && ["waiting", `${count(s.backlog.waiting, "submit")} wait for room: ${number(s.backlog.pending)} runs are pending`, link(["runs"], { state: "pending" })],
    s.waiting_outcomes > 100 && ["waiting", `${number(s.waiting_outcomes)} outcomes wait for on_terminal`, "#/policies"],
    s.loop.lag > 1 && ["waiting", `The event loop is ${duration(s.loop.lag)} late`, "#/policies"],
    s.commits.failures && ["failed", "A commit has failed", "#/"],
  ].filter(Boolean);
  if (!items.length) return h("p", { class: "attention good" }, badge("succeeded", "Nothing needs attention"));
  return h("ul", { class: "attention", "aria-label": "Needs attention" }, items.map(([state, text, href]) =>
    h("li", { class: `state ${state === "open" ? "failed" : state}` }, sign(state), h("a", { href }, text))));
}

function charts(redraw) {
  const s = stats.latest;
  const known = s.runs != null;
  const latency = s.commits.latency;
  return h("div", { class: "cards" }, [
    chart({
      id: "runs", title: known ? "Unfinished runs" : "Runs in memory", stacked: known, text: number, redraw, least: 4,
      series: known ? STATES.map((state) => ({
        name: state, kind: state, label: [sign(state), " ", state], href: link(["runs"], { state }),
        values: gauge((each) => each.runs?.[state] ?? 0),
      })) : [{ name: "runs", values: gauge((each) => each.live) }],
    }),
    s.attempts != null && chart({ id: "steps", title: "Steps per second", note: "ended attempts", text: number, redraw, least: 1, series: [{ name: "steps", values: rate((each) => each.attempts) }] }),
    s.ended != null && chart({
      id: "ended", title: "Ended runs per second", text: number, redraw, least: 1,
      series: ["succeeded", "failed", "cancelled"].map((state) => ({ name: state, kind: state, label: [sign(state), " ", state], href: link(["runs"], { state }), values: rate((each) => each.ended[state] ?? 0) })),
    }),
    chart({
      id: "commits", title: "Commit latency", text: duration, redraw, least: 0.001, note: "mean of a second",
      series: latency ? [
        { name: "p50", kind: "running", values: gauge((each) => each.commits.latency?.p50) },
        { name: "p99", kind: "waiting", values: gauge((each) => each.commits.latency?.p99) },
      ] : [{ name: "mean", values: mean((each) => each.commits.seconds, (each) => each.commits.commits) }],
    }),
    chart({ id: "backlog", title: "Backlog", note: `of ${number(s.backlog.limit)} pending runs`, text: number, redraw, least: 4, series: [{ name: "pending", kind: "pending", values: gauge((each) => each.backlog.pending) }] }),
    s.oldest_pending !== undefined && chart({ id: "oldest", title: "Oldest pending run", note: "since its submit", text: duration, redraw, least: 1, series: [{ name: "age", kind: "waiting", values: gauge((each) => each.oldest_pending ?? 0) }] }),
    chart({
      id: "slots", title: "Steps in slots", text: number, redraw, least: 4,
      series: [{ name: "running", kind: "running", values: gauge((each) => each.running_steps) }, { name: "waiting", kind: "waiting", values: gauge((each) => each.waiting_for_slot) }],
    }),
  ]);
}
