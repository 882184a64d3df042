// Overview: what the runtime does now, and what needs attention.

import { chart } from "./chart.js";
import { badge, count, duration, get, h, head, link, number, sign, table, verb } from "./kit.js";
import { gauge, latency, rate, stats } from "./stats.js";

export default {
  title: "Overview",
  every: 5000,
  load: ({ signal }) => get("/counts", {}, signal),
  view: ({ data }) => [
    head("Overview", stats.latest?.paused ? verb("resume", "", "Resume all runs") : verb("pause", "", "Pause all runs", { kind: "", sure: "Running steps end first. Then no run continues until you resume all runs." })),
    stats.latest && [attention(stats.latest), charts(stats.latest)],
    h("h2", "Unfinished runs by workflow"),
    table("Unfinished runs by workflow", data.unfinished, [
      ["Workflow", ({ workflow, version }) => h("a", { href: link(["runs"], { workflow, version }), "data-row": true }, workflow), "fill"],
      ["Version", "version", "number"], ["Runs", (row) => number(row.runs), "number"],
    ], { none: ["No run is unfinished. ", h("a", { href: "#/start" }, "Start a run")] }),
  ],
};

function attention({ runs, statistics, paused, dead_letters: letters }) {
  const quarantined = (runs?.quarantined ?? 0) + (statistics?.quarantined_keys ?? 0), waiting = statistics?.backlog.waiting;
  const items = [
    paused && ["paused", "All runs are paused", ""], letters > 0 && ["failed", count(letters, "dead letter"), "dead-letters"],
    quarantined > 0 && ["quarantined", `${number(quarantined)} quarantined`, "quarantine"],
    ...(statistics?.circuits ?? []).filter(({ state }) => state !== "closed").map(({ step, state }) => ["failed", `The circuit of ${step} is ${state.replace("_", " ")}`, "policies"]),
    waiting > 0 && ["waiting", `${count(waiting, "submit")} wait for room`, "policies"],
  ].filter(Boolean);
  return h("ul.attention", { "aria-label": "Needs attention", class: items.length ? "" : "good" }, items.length ? items.map(([state, text, screen]) =>
    h("li.state", { class: state }, sign(state), h("a", { href: link([screen]) }, text))) : h("li", badge("succeeded", "Nothing needs attention")));
}

const states = (names, read) => names.map((state) => [state, read(state), state, link(["runs"], { state })]);
const ofStatistics = (name, read, kind) => [name, gauge(({ statistics }) => statistics && read(statistics)), kind];

function charts({ statistics, slots }) {
  return h("div.cards",
    chart("Unfinished runs", number, 4, states(["running", "waiting", "pending", "paused", "cancelling", "quarantined"], (state) => gauge(({ runs }) => runs?.[state] ?? 0)), "", true),
    statistics && [
      chart("Steps per second", number, 1, [["steps", rate(({ attempts }) => attempts)]], "attempts that ended"),
      chart("Ended runs per second", number, 1, states(["succeeded", "failed", "cancelled"], (state) => rate(({ ended }) => ended?.[state] ?? 0))),
      chart("Commit latency", duration, 0.001, [["p50", latency(0.5), "running"], ["p99", latency(0.99), "waiting"]]),
      chart("Backlog", number, 4, [ofStatistics("pending", ({ backlog }) => backlog.pending)], `of ${number(statistics.backlog.limit)}`),
      chart("Oldest pending run", duration, 1, [["age", gauge((each) => each.oldest_pending ?? 0), "waiting"]]),
      chart(`Steps in ${number(slots)} slots`, number, 4, [ofStatistics("running", (each) => each.running_steps, "running"), ofStatistics("waiting", (each) => each.waiting_for_slot, "waiting")]),
    ]);
}
