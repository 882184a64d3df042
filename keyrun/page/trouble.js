// What needs an operator: dead letters by their error, and quarantine with what to do.

import { at, get, post } from "./api.js";
import { bulk } from "./bulk.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { listScreen } from "./table.js";
import { number } from "./time.js";
import { action, badge, keyLink, runLink, time } from "./ui.js";

const PAGES = 20;

export const letters = listScreen({
  title: "Dead letters", intro: "Runs that failed and wait for an operator, by their error. Redrive them when the cause is gone: each run resumes at the step that failed.",
  noun: "error", none: "There are no dead letters.", every: 5000,
  async load({ query, signal }) {
    const found = new Map();
    let { cursor } = query;
    for (let page = 0; page < PAGES; page++) {
      const answer = await get("/dead-letters/errors", { cursor }, signal);
      for (const each of answer.errors) {
        const id = JSON.stringify([each.workflow, each.step, each.kind, each.error]), known = found.get(id);
        found.set(id, { ...(known && known.newest_at > each.newest_at ? known : each), id, runs: each.runs + (known?.runs ?? 0) });
      }
      cursor = answer.cursor;
      if (!cursor) break;
    }
    return { errors: [...found.values()].sort((a, b) => b.runs - a.runs), cursor };
  },
  rows: (data) => data.errors, id: (row) => row.id, data: (row) => ({ "data-error": row.error ?? row.kind }),
  columns: [
    { label: "Runs", kind: "number", cell: (row) => h("b", {}, number(row.runs)) },
    {
      label: "Error", kind: "fill", cell: (row) => [h("a", { "data-row": true, href: link(["runs"], filterOf(row)) }, h("code", {}, row.error?.split(".").pop() ?? row.kind.replaceAll("_", " "))), row.step && [" at ", h("code", {}, row.step)],
        h("div", { class: "clip faint" }, row.reason)],
    },
    { label: "Workflow", kind: "wide", cell: (row) => row.workflow },
    { label: "Newest", kind: "wide", cell: (row) => [runLink(row.newest_run_id), h("div", { class: "faint" }, time(row.newest_at))] },
    { label: "", cell: (row) => bulk("redrive", { filter: filterOf(row) }) },
  ],
});

const filterOf = ({ workflow, step, error }) => ({ state: ["failed"], workflow, step, error });

const ADVICE = {
  unregistered: "Start the application with this workflow and version. Each open tries the run again.",
  input: "Deploy code whose input type reads the stored input. Each open tries the run again.",
  outcome: "Deploy code whose types read the stored results of the steps. Each open tries the run again.",
  contradiction: "Deploy the code that started the run, or register the change as a new version. Then release the key.",
  damaged: "A record cannot be read. Check the disk with keyrun verify, then cancel or forget the run.",
  key: "Keyrun's own code failed for this key. Read the log and report it. Then release the key.",
};

export const quarantine = listScreen({
  title: "Quarantine", intro: "Runs and keys that Keyrun holds because going on could do harm. Other keys go on.",
  noun: "quarantine", none: "Nothing is quarantined.",
  async load({ query, signal }) {
    const [keys, runs] = await Promise.all([get("/keys", { quarantined: true, limit: 50, cursor: query.cursor }, signal), query.cursor ? { runs: [] } : get("/runs", { state: "quarantined", limit: 50 }, signal)]);
    const held = keys.keys.map((each) => ({ ...each, run_id: each.head, cause: each.quarantine_cause ?? "key", held: true }));
    const others = runs.runs.filter((each) => !held.some((one) => one.run_id === each.run_id)).map((each) => ({ ...each, cause: each.quarantine_cause }));
    return { rows: [...held, ...others], cursor: keys.cursor };
  },
  rows: (data) => data.rows, id: (row) => `${row.key} ${row.run_id}`, data: (row) => ({ "data-key": row.key, "data-run": row.run_id }),
  columns: [
    { label: "Cause", kind: "tight", cell: (row) => badge("quarantined", row.cause) },
    { label: "Key", cell: (row) => keyLink(row.key, { row: true }) },
    { label: "Run", kind: "wide", cell: (row) => (row.run_id ? runLink(row.run_id) : "–") },
    { label: "What to do", kind: "fill", cell: (row) => [h("p", {}, ADVICE[row.cause]), h("div", { class: "faint clip" }, row.reason)] },
    {
      label: "", cell: (row) => (row.held ? action("Release", { run: () => post(at("keys", row.key) + "/release"), done: (answer) => (answer.result ? "Released: the run is tried again." : "Nothing was released.") })
        : action("Redrive", { run: () => post(at("runs", row.run_id) + "/redrive"), done: "The run is tried again." })),
    },
  ],
});
