// Keys: the list of those with unfinished runs, and the page of one key.

import { at, get, post } from "./api.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { runTable } from "./runs.js";
import { pager, table } from "./table.js";
import { bytes, count, number } from "./time.js";
import { action, badge, copy, empty, explained, facts, json, keyLink, runLink, time } from "./ui.js";

export const list = {
  title: "Keys",
  every: 2000,
  load: ({ query, signal }) => get("/keys", { quarantined: query.quarantined, limit: 50, cursor: query.cursor }, signal),
  view: ({ data, query }) => [
    h("div", { class: "head" }, h("h1", {}, "Keys"), h("div", { class: "actions" },
      h("a", { class: "button", href: link(["keys"], { quarantined: query.quarantined ? null : "true" }) }, query.quarantined ? "All keys" : "Quarantined only"))),
    h("p", { class: "faint" }, "The keys that have unfinished runs. Search for another key by its name."),
    keyTable(data.keys, empty(data.cursor ? "No match on this page. The next page looks further." : query.quarantined ? "No key is quarantined." : "No key has unfinished runs.")),
    pager(["keys"], query, data.cursor, data.keys.length ? count(data.keys.length, "key") : ""),
  ],
};

const keyTable = (keys, none) => table({
  caption: "Keys", rows: keys, none, id: (key) => key.key, data: (key) => ({ "data-key": key.key }),
  columns: [
    { label: "State", kind: "tight", cell: (key) => badge(key.quarantined ? "quarantined" : key.paused ? "paused" : key.state) },
    { label: "Key", cell: (key) => keyLink(key.key, { limit: 40, row: true }) },
    { label: "Runs", kind: "number", cell: (key) => number(key.runs) + (key.more_runs ? "+" : "") },
    { label: "Holder", kind: "wide", cell: (key) => (key.head ? runLink(key.head) : "–") },
    { label: "Waits for", kind: "fill wide", cell: (key) => h("span", { class: "clip" }, key.reason ?? key.waiting_on, key.waiting_until && [", ", time(key.waiting_until)]) },
  ],
});

/** Return the buttons of a key. */
export const keyActions = (key, { paused, quarantined }) => [
  quarantined && action("Release", { run: () => post(at("keys", key) + "/release"), done: (answer) => (answer.result ? "Released the key." : "Nothing was released: the key is not quarantined.") }),
  paused ? action("Resume key", { run: () => post(at("keys", key) + "/resume"), done: "Resumed the key." })
    : action("Pause key", { run: () => post(at("keys", key) + "/pause"), done: "Paused the key: a running step ends first." }),
];

const WHY_HIDDEN = { too_large: "too large to show", encrypted: "encrypted", damaged: "damaged" };

/** Return a value as it is stored. */
const stored = (found) => h("div", {}, h("p", { class: "faint" }, bytes(found.size), found.unshown && `, ${WHY_HIDDEN[found.unshown]}`), !found.unshown && json(found.value));

export const one = {
  title: ({ id }) => id,
  load: ({ id, query, signal }) => get(at("keys", id), { limit: 50, cursor: query.cursor }, signal),
  view({ data, id, query }) {
    const state = data.status?.quarantined ? "quarantined" : data.paused ? "paused" : data.status?.state;
    const holder = data.why.run_id;
    return [
      h("div", { class: "head" }, h("h1", {}, h("span", { class: "faint" }, "Key "), h("span", { class: "id whole" }, id)), copy(id),
        h("div", { class: "actions" }, keyActions(id, { paused: data.paused, quarantined: data.status?.quarantined }))),
      explained(data.why, state ?? "succeeded"),
      facts([
        ["State", state ? badge(state) : "idle"],
        ["Unfinished runs", data.status ? number(data.status.runs) + (data.status.more_runs ? "+" : "") : "0"],
        ["Holder", holder && runLink(holder)],
        ["Paused", data.paused ? "this key" : data.all_paused ? "the whole runtime" : null],
        ["Quarantine", data.status?.quarantine_cause],
      ]),
      h("h2", {}, "Queue"),
      runTable(data.runs, { caption: "Queue of the key, in order", key: false, none: empty("No run waits in the queue. ", h("a", { href: link(["runs"], { key: id }) }, "All runs of this key")) }),
      pager(["keys", id], query, data.cursor, data.runs.length ? [h("a", { href: link(["runs"], { key: id }) }, "All runs of this key, also ended and delayed ones")] : ""),
      h("div", { class: "columns" },
        h("section", {}, h("h2", {}, "State of the key"), data.state ? stored(data.state) : empty("No step has stored a state.")),
        h("section", {}, h("h2", {}, "Entities"), data.entities.length ? data.entities.map((each) => [h("h3", {}, each.name), stored(each.state)]) : empty("No entity has a state under this key."))),
    ];
  },
};
