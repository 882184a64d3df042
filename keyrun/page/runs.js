// Runs: the list with its filters, its pages, and actions on all runs that match.

import { bulk } from "./bulk.js";
import { badge, between, chips, code, count, duration, filters, get, h, head, keyLink, now, pager, runLink, shorten, sign, table, time } from "./kit.js";

const STATES = ["pending", "running", "waiting", "paused", "cancelling", "quarantined", "succeeded", "failed", "cancelled"];
const FIELDS = ["workflow", "key", "tag", "step", "error", "version", "origin", "group", "since"];
const MORE = { workflow: { list: "workflows" }, since: { placeholder: "30m, 2h, 7d" } };
const UNITS = { m: 60, h: 3600, d: 86400 };

/** Return the filter of an address as the API takes it. `since=2h` is relative to now. */
export function filterOf({ state, ...query }) {
  const found = Object.fromEntries(FIELDS.filter((name) => query[name]).map((name) => [name, query[name]]));
  const [, ago, unit] = /^(\d+) *([mhd])$/.exec(found.since ?? "") ?? [];
  if (ago) found.since = new Date(now() - ago * UNITS[unit] * 1000).toISOString();
  return state ? { ...found, state: [state].flat() } : found;
}

function doing({ failure, reason, waiting_on: wait, waiting_until: until, step, attempt, state, result }) {
  if (failure || reason) return [failure?.error_type && [code(failure.error_type.split(".").pop()), " "], failure?.reason ?? reason];
  if (wait) return [wait, until && [", ", time(until)]];
  if (step) return [code(step), attempt > 1 && ` attempt ${attempt}`];
  if (state === "pending" && until) return ["starts ", time(until)];
  return result != null && h("code.faint", shorten(JSON.stringify(result), 60));
}

export const runTable = (caption, runs, none, key = true) => table(caption, runs, [
  ["State", (run) => badge(run.state, run.compensating ? "compensating" : run.state)], ["Run", (run) => runLink(run.run_id)], ["Workflow", "workflow", "wide"],
  ...(key ? [["Key", (run) => keyLink(run.key)]] : []), ["Now", (run) => h("span.clip", doing(run)), "fill wide"], ["Steps", "steps_done", "number wide"],
  ["Took", (run) => (run.started_at ? duration(between(run.started_at, run.ended_at)) : "–"), "number wide"], ["Submitted", (run) => time(run.submitted_at), "number wide"],
], { none, of: "run_id" });

let names = null;

export default {
  title: "Runs",
  every: 2000,
  async load({ query, signal }) {
    names ??= [...new Set((await get("/workflows", {}, signal)).result.map((each) => each.name))];
    try {
      return await get("/runs", { ...filterOf(query), newest_first: query.order !== "oldest first", limit: 50, cursor: query.cursor }, signal);
    } catch (error) {
      if (error.status !== 422) throw error;
      return { runs: [], wrong: error.message };
    }
  },
  view(context) {
    const { data, query, set } = context, filter = filterOf(query), { state = [] } = filter;
    const filtered = Object.keys(filter).length > 0, why = filtered ? null : "Set a filter first. This acts on all runs that match.";
    return [
      head("Runs", ["cancel", "pause", "resume", "redrive", "forget"].map((name) => bulk(name, filter, why))),
      chips("State", STATES, (each) => state.includes(each), (each) => set({ state: state.includes(each) ? state.filter((one) => one !== each) : [...state, each] }), (each) => [sign(each), each]),
      filters([...FIELDS.map((name) => [name, MORE[name]]), ["order", ["newest first", "oldest first"]]], query, set, filtered && h("a.button", { href: "#/runs" }, "Clear"), h("datalist", { id: "workflows" }, names.map((each) => h("option", { value: each })))),
      data.wrong ? h("p.bad", { role: "alert" }, data.wrong)
        : runTable("Runs", data.runs, data.cursor ? `No match among ${count(data.examined, "run")}. The next page looks further.` : filtered ? "No run matches." : ["No run is stored. ", h("a", { href: "#/start" }, "Start a run")]),
      pager(context, data.cursor, data.runs.length > 0 && count(data.runs.length, "run")),
    ];
  },
};
