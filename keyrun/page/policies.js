// Policies: slots, circuits, rates and resources, what waits for them, and the runtime itself.

import { call, get } from "./api.js";
import { h } from "./dom.js";
import { stats } from "./stats.js";
import { table } from "./table.js";
import { count, duration, number } from "./time.js";
import { action, badge, empty, facts, time } from "./ui.js";

const used = (found) => found && `${number(found.running)} of ${number(found.limit)}${found.waiting ? `, ${number(found.waiting)} wait` : ""}`;
const circuit = (found) => found && [badge(found.state), h("div", { class: "faint" }, `${found.failures} of ${count(found.calls, "call")} failed`, found.retry_at && [", probes ", time(found.retry_at)])];

export default {
  title: "Policies",
  async load({ signal }) {
    const [policies, outbox] = await Promise.all([get("/policies", {}, signal), get("/outbox", {}, signal)]);
    return { ...policies, outbox };
  },
  view({ data: { slots, steps, resources, outbox } }) {
    const s = stats.latest?.statistics;
    return [
      h("div", { class: "head" }, h("h1", {}, "Policies")),
      facts([
        ["Slots", used(slots)], ["Event loop", s && `${duration(s.loop.lag)} late, at most ${duration(s.loop.longest_lag)}`],
        ["Commits", s && `${number(s.commits.commits)}, the longest ${duration(s.commits.longest)}`], ["Backpressure", s && `${count(s.backlog.saturations, "time")}, ${duration(s.backlog.seconds_saturated)}`],
        ["Outcomes for on_terminal", [number(outbox.waiting), outbox.waiting > 0 && [" ", action("Discard", {
          role: "admin", kind: "danger", confirm: { title: "Discard the outcomes?", text: `${count(outbox.waiting, "outcome")} will never reach on_terminal. This cannot be undone.`, danger: true },
          run: () => call("DELETE", "/outbox"), done: (answer) => `${count(answer.result, "outcome")} discarded.`,
        })]]],
      ]),
      h("h2", {}, "Steps"),
      table({
        caption: "Policies of steps", rows: steps, id: (each) => each.step, data: (each) => ({ "data-step": each.step }), none: empty("No step with a policy was called since the open."),
        columns: [
          { label: "Step", cell: (each) => h("code", {}, each.step) }, { label: "Running", kind: "number", cell: (each) => number(each.running) }, { label: "Waiting", kind: "number", cell: (each) => number(each.waiting) },
          { label: "Circuit", cell: (each) => circuit(each.breaker) ?? "–" }, { label: "Rate", kind: "wide", cell: (each) => (each.rate ? `${number(each.rate.count)} per ${duration(each.rate.per)}${each.rate.waiting ? `, ${each.rate.waiting} wait` : ""}` : "–") },
          { label: "At once", kind: "wide", cell: (each) => used(each.max_concurrent) ?? "–" }, { label: "Resources", kind: "fill wide", cell: (each) => Object.entries(each.resources ?? {}).map(([name, amount]) => `${name} ${amount}`).join(", ") || "–" },
        ],
      }),
      resources.length > 0 && [h("h2", {}, "Resources"), table({
        caption: "Resources", rows: resources, id: (each) => `${each.graph} ${each.name}`,
        columns: [{ label: "Resource", kind: "fill", cell: (each) => [each.name, each.graph && h("span", { class: "faint" }, ` in ${each.graph}`)] }, { label: "Free", kind: "number", cell: (each) => number(each.free) }, { label: "Total", kind: "number", cell: (each) => number(each.total) }, { label: "Waiting", kind: "number", cell: (each) => number(each.waiting) }],
      })],
    ];
  },
};
