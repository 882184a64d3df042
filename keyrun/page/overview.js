// Overview: what the runtime does now, and what needs attention.

import { chart } from "./chart.js";
import { badge, count, duration, empty, get, h, head, link, number, sign, table, verb } from "./kit.js";
import { gauge, latency, rate, stats } from "./stats.js";

export default {
  title: "Overview",
  every: 5000,
  load: ({ signal }) => get("/counts", {}, signal),
  view: ({ data, redraw }) => [
    head("Overview", stats.latest?.paused ? verb("resume", "", "Resume all runs") : verb("pause", "", "Pause all runs", { kind: "", sure: "Running steps end first. Then no run continues until you resume all runs." })),
    stats.latest ? [attention(stats.latest), charts(stats.latest, redraw)] : empty("No statistics yet."),
    h("h2", "Unfinished runs by workflow"),
    table("Unfinished runs by workflow", data.unfinished, [
      ["Workflow", ({ workflow, version }) => h("a", { href: link(["runs"], { workflow, version }), "data-row": true }, workflow), "fill"],
      ["Version", "version", "number"], ["Runs", (row) => number(row.runs), "number"],
    ], { none: ["No run is unfinished. ", h("a", { href: "#/start" }, "Start a run")] }),
  ],
};

function attention({ runs, statistics, paused, dead_letters: letters }) {
  const quarantined = (runs?.quarantined ?? 0) + (statistics?.quarantined_keys ?? 0), lag = statistics?.loop.lag, waiting = statistics?.backlog.waiting;
  const items = [
    paused && ["paused", "All runs are paused", ""], letters > 0 && ["failed", count(letters, "dead letter"), "dead-letters"],
    quarantined > 0 && ["quarantined", `${number(quarantined)} quarantined`, "quarantine"],
    ...(statistics?.circuits ?? []).filter(({ state }) => state !== "closed").map(({ step, state }) => ["failed", `The circuit of ${step} is ${state.replace("_", " ")}`, "policies"]),
    waiting > 0 && ["waiting", `${count(waiting, "submit")} wait for room`, "policies"], lag > 1 && ["waiting", `The event loop is ${duration(lag)} late`, "policies"],
  ].filter(Boolean);
  return h("ul.attention", { "aria-label": "Needs attention", class: items.length ? "" : "good" }, items.length ? items.map(([state, text, screen]) =>
    h("li.state", { class: state }, sign(state), h("a", { href: link([screen]) }, text))) : h("li", badge("succeeded", "Nothing needs attention")));
}

const states = (names, read) => names.map((state) => ({ name: state, kind: state, label: [sign(state), " ", state], href: link(["runs"], { state }), values: read(state) }));

function charts({ statistics, slots }, redraw) {
  const one = (id, title, text, least, series, more) => chart({ id, title, text, least, series, redraw, ...more });
  return h("div.cards",
    one("runs", "Unfinished runs", number, 4, states(["running", "waiting", "pending", "paused", "cancelling", "quarantined"], (state) => gauge((each) => each.runs?.[state] ?? 0)), { stacked: true }),
    statistics && [
      one("steps", "Steps per second", number, 1, [{ name: "steps", values: rate((each) => each.attempts) }], { note: "attempts that ended" }),
      one("ended", "Ended runs per second", number, 1, states(["succeeded", "failed", "cancelled"], (state) => rate((each) => each.ended?.[state] ?? 0))),
      one("commits", "Commit latency", duration, 0.001, [{ name: "p50", kind: "running", values: latency(0.5) }, { name: "p99", kind: "waiting", values: latency(0.99) }]),
      one("backlog", "Backlog", number, 4, [{ name: "pending", values: gauge((each) => each.statistics?.backlog.pending) }], { note: `of ${number(statistics.backlog.limit)} that may be pending` }),
      one("oldest", "Oldest pending run", duration, 1, [{ name: "age", kind: "waiting", values: gauge((each) => each.oldest_pending ?? 0) }], { note: "since its submit" }),
      one("slots", `Steps in ${number(slots)} slots`, number, 4, [{ name: "running", kind: "running", values: gauge((each) => each.statistics?.running_steps) }, { name: "waiting", kind: "waiting", values: gauge((each) => each.statistics?.waiting_for_slot) }]),
    ]);
}
