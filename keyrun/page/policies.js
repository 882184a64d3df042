// Policies: slots, circuits, rates and resources, and what waits for them.

import { badge, code, count, duration, facts, get, h, head, number, remove, table, time } from "./kit.js";

const waits = (waiting) => (waiting ? `, ${number(waiting)} wait` : "");
const used = (found) => (found ? `${number(found.running)} of ${number(found.limit)}${waits(found.waiting)}` : "–");
const circuit = (found) => (found ? [badge(found.state), h("div.faint", `${found.failures} of ${count(found.calls, "call")} failed`, found.retry_at && [", probes ", time(found.retry_at)])] : "–");

export default {
  title: "Policies",
  load: ({ signal }) => Promise.all([get("/policies", {}, signal), get("/outbox", {}, signal)]),
  view({ data: [{ slots, steps, resources }, outbox] }) {
    return [
      head("Policies", outbox.waiting > 0 && remove("/outbox", "Discard outcomes", { done: "Discarded", sure: `${count(outbox.waiting, "outcome")} will never reach on_terminal. This cannot be undone.` })),
      facts([
        ["Slots", used(slots)], ["Outcomes for on_terminal", number(outbox.waiting)],
        ...resources.map(({ name, graph, free, total, waiting }) => [`Resource ${name}${graph ? ` of ${graph}` : ""}`, `${number(free)} of ${number(total)} free${waits(waiting)}`]),
      ]),
      h("h2", "Steps"), table("Policies of steps", steps, [
        ["Step", (each) => code(each.step)], ["Running", (each) => number(each.running), "number"], ["Waiting", (each) => number(each.waiting), "number"], ["Circuit", (each) => circuit(each.breaker)],
        ["Rate", ({ rate }) => (rate ? `${number(rate.count)} per ${duration(rate.per)}${waits(rate.waiting)}` : "–"), "wide"], ["At once", (each) => used(each.max_concurrent), "wide"],
        ["Resources", (each) => Object.entries(each.resources ?? {}).map((pair) => pair.join(" ")).join(", ") || "–", "fill wide"],
      ], { of: "step", none: "No step with a policy was called since the open." }),
    ];
  },
};
