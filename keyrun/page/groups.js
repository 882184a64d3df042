// Groups: how far they are, and their members.

import { at, get, post } from "./api.js";
import { h } from "./dom.js";
import { link } from "./router.js";
import { runTable } from "./runs.js";
import { listScreen, pager } from "./table.js";
import { count, number } from "./time.js";
import { action, badge, empty, facts, time } from "./ui.js";

const FEW = 2000;
const known = new Map();

const bar = (status) => status && h("span", { class: "progress" }, h("progress", { max: status.size, value: status.ended, "aria-label": `Progress of ${status.group_id}` }), ` ${number(status.ended)} of ${number(status.size)}`);
const states = (status) => Object.entries(status?.counts ?? {}).filter(([, runs]) => runs).map(([state, runs]) => h("a", { class: "quietly", href: link(["runs"], { group: status.group_id, state }) }, badge(state, `${number(runs)} ${state}`)));

export const list = listScreen({
  title: "Groups", noun: "group", none: "There are no groups.", intro: "Runs that were submitted as one.", every: 3000,
  async load({ query, signal }) {
    const page = await get("/groups", { limit: 20, cursor: query.cursor }, signal);
    // The progress of a group reads its members, and that of an ended one is known.
    for (const each of page.groups) {
      if (each.size <= FEW && !known.get(each.group_id)?.complete) known.set(each.group_id, await get(at("groups", each.group_id), {}, signal).catch(() => null));
    }
    return page;
  },
  rows: (data) => data.groups, id: (row) => row.group_id, data: (row) => ({ "data-group": row.group_id }),
  columns: [
    { label: "Group", cell: (row) => h("a", { "data-row": true, href: link(["groups", row.group_id]) }, h("span", { class: "id" }, row.group_id)) },
    { label: "Progress", cell: (row) => bar(known.get(row.group_id)) ?? count(row.size, "member") },
    { label: "Members", kind: "fill wide", cell: (row) => h("div", { class: "actions" }, states(known.get(row.group_id))) },
    { label: "Created", kind: "number", cell: (row) => time(row.created_at) },
  ],
});

export const one = {
  title: ({ id }) => id,
  every: 2000,
  async load({ id, query, signal }) {
    const [status, page] = await Promise.all([get(at("groups", id), {}, signal), get("/runs", { group: id, limit: 50, cursor: query.cursor }, signal)]);
    return { status, page };
  },
  view: ({ data: { status, page }, id, query }) => [
    h("div", { class: "head" }, h("h1", {}, h("span", { class: "faint" }, "Group "), h("span", { class: "id whole" }, id)), h("div", { class: "actions" }, action("Cancel group", {
      kind: "danger", why: status.complete ? "All members have ended." : null,
      confirm: { title: `Cancel the group ${id}?`, text: `${count(status.size - status.ended, "member")} that did not end will be cancelled.`, danger: true },
      run: () => post(at("groups", id) + "/cancel"), done: (answer) => `${count(answer.result, "run")} cancelled.`,
    }))),
    facts([["Progress", bar(status)], ["Created", time(status.created_at)], ["Accepted", status.accepted < status.size && `${number(status.accepted)} of ${number(status.size)}`], ["Members", h("div", { class: "actions" }, states(status))]]),
    runTable(page.runs, { caption: "Members", none: empty("No member is stored.") }),
    pager(["groups", id], query, page.cursor, ""),
  ],
};
