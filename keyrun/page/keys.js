// Keys: the list of those with unfinished runs, and the page of one key.

import { at, badge, empty, explained, facts, faint, get, h, headOf, json, keyLink, link, listScreen, number, pager, pages, runLink, time, verb, words } from "./kit.js";
import { runTable } from "./runs.js";

const runsOf = (key) => number(key.runs) + (key.more_runs ? "+" : "");

export const list = listScreen({
  title: "Keys", noun: "key", intro: "Keys that have unfinished runs. Search for another key by its name.", none: "No key matches.",
  load: pages("/keys"),
  rows: (data) => data.keys, of: "key",
  columns: [
    ["State", (key) => badge(key.quarantined ? "quarantined" : key.paused ? "paused" : key.state)], ["Key", (key) => keyLink(key.key)], ["Runs", runsOf, "number"],
    ["Holder", (key) => runLink(key.head), "wide"], ["Waits for", (key) => h("span.clip", key.reason ?? key.waiting_on, key.waiting_until && [", ", time(key.waiting_until)]), "fill wide"],
  ],
});

const stored = ({ value, size, unshown }) => [h("p", faint(`${number(size)} bytes`, unshown && `, ${words(unshown)}`)), !unshown && json(value)];

export const one = {
  async load({ id, query, signal }) {
    const view = await get(at("keys", id), { limit: 50, cursor: query.cursor }, signal);
    if (view.why.cause !== "idle") return view;
    // A delayed run is not in the queue yet.
    const { runs } = await get("/runs", { key: id, state: "pending", limit: 50 }, signal);
    return runs.length ? { ...view, runs, why: await get(at("runs", runs[0].run_id) + "/explain", {}, signal) } : view;
  },
  view(context) {
    const { data: { status, why, paused, ...data }, id } = context, path = at("keys", id);
    const state = status?.quarantined ? "quarantined" : paused ? "paused" : status?.state;
    return [
      headOf("Key", id, [status?.quarantined && verb("release", path, "Release", { kind: "primary" }), paused ? verb("resume", path, "Resume key") : verb("pause", path, "Pause key")]),
      explained(why, state),
      facts([["State", state ? badge(state) : "idle"], ["Unfinished runs", status ? runsOf(status) : 0], ["Holder", why.run_id && runLink(why.run_id)], ["Paused", paused ? "this key" : data.all_paused && "all runs"], ["Quarantine", status?.quarantine_cause]]),
      h("h2", "Queue"), runTable("Queue", data.runs, "No run is in the queue.", false),
      pager(context, data.cursor, h("a", { href: link(["runs"], { key: id }) }, "All runs of the key, also ended and delayed ones")),
      h("div.columns", h("section", h("h2", "State of the key"), data.state ? stored(data.state) : empty("No step has stored a state.")),
        h("section", h("h2", "Entities"), data.entities.length ? data.entities.map((each) => [h("h3", each.name), stored(each.state)]) : empty("No entity has a state under this key."))),
    ];
  },
};
