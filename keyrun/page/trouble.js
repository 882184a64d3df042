// What needs an operator: dead letters by their error, and quarantine with what to do.

import { bulk } from "./bulk.js";
import { at, badge, code, get, h, keyLink, link, listScreen, number, pages, runLink, time, verb } from "./kit.js";

const filterOf = ({ workflow, step, error }) => ({ state: ["failed"], workflow, step, error });

export const letters = listScreen({
  title: "Dead letters", noun: "error", intro: "Runs that failed and wait for an operator, by their error.", none: "There are no dead letters.", every: 5000,
  load: pages("/dead-letters/errors"), rows: (data) => data.errors, data: (row) => ({ "data-error": row.error ?? row.kind }),
  columns: [
    ["Runs", (row) => h("b", number(row.runs)), "number"],
    ["Error", (row) => [h("a", { "data-row": true, href: link(["runs"], filterOf(row)) }, code(row.error?.split(".").pop() ?? row.kind)), row.step && [" at ", code(row.step)], h("div.clip.faint", row.reason)], "fill"],
    ["Workflow", "workflow", "wide"], ["Newest", (row) => [runLink(row.newest_run_id), h("div.faint", time(row.newest_at))], "wide"], ["", (row) => bulk("redrive", filterOf(row))],
  ],
});

const ADVICE = {
  unregistered: "Start the application with this workflow and version.",
  input: "Deploy code whose input type reads the stored input.",
  outcome: "Deploy code whose types read the stored results.",
  contradiction: "Deploy the code that started the run, or register the change as a new version. Then release the key.",
  damaged: "A record cannot be read. Check the store with keyrun verify, then cancel or forget the run.",
  key: "Keyrun's own code failed for this key. Read the log and report it. Then release the key.",
};

export const quarantine = listScreen({
  title: "Quarantine", noun: "quarantine", intro: "Runs and keys that Keyrun holds. Other keys continue.", none: "Nothing is quarantined.",
  async load({ query: { cursor }, signal }) {
    const [keys, runs] = await Promise.all([get("/keys", { quarantined: true, limit: 50, cursor }, signal), cursor ? { runs: [] } : get("/runs", { state: "quarantined", limit: 50 }, signal)]);
    const held = keys.keys.map((each) => ({ ...each, run_id: each.head, quarantine_cause: each.quarantine_cause ?? "key", button: ["release", at("keys", each.key), "Release"] }));
    const known = new Set(held.map((each) => each.run_id));
    return { rows: [...held, ...runs.runs.filter((each) => !known.has(each.run_id)).map((each) => ({ ...each, button: ["redrive", at("runs", each.run_id), "Redrive"] }))], cursor: keys.cursor };
  },
  rows: (data) => data.rows, data: (row) => ({ "data-key": row.key, "data-run": row.run_id }),
  columns: [
    ["Cause", (row) => badge("quarantined", row.quarantine_cause)], ["Key", (row) => keyLink(row.key)], ["Run", (row) => runLink(row.run_id), "wide"],
    ["What to do", (row) => [ADVICE[row.quarantine_cause], h("div.clip.faint", row.reason)], "fill"], ["", (row) => verb(...row.button)],
  ],
});
