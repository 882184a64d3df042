// Groups: how far they are, and their members.

import { at, badge, count, facts, get, h, headOf, link, listScreen, number, pager, time, verb } from "./kit.js";
import { runTable } from "./runs.js";

const FEW = 2000;
const known = new Map();

const bar = ({ group_id: id, size, ended }) => h("span", h("progress", { max: size, value: ended, "aria-label": `Progress of ${id}` }), ` ${number(ended)} of ${number(size)}`);
const states = ({ group_id: group, counts }) => h("div.actions", Object.entries(counts).filter(([, runs]) => runs).map(([state, runs]) => h("a", { href: link(["runs"], { group, state }) }, badge(state, `${number(runs)} ${state}`))));

export const list = listScreen({
  title: "Groups", noun: "group", intro: "Runs that were submitted as one.", none: "There are no groups.", every: 3000,
  async load({ query, signal }) {
    const page = await get("/groups", { limit: 20, cursor: query.cursor }, signal);
    // The progress of a group reads its members. That of an ended group does not change.
    for (const each of page.groups) if (each.size <= FEW) each.status = known.get(each.group_id) ?? await get(at("groups", each.group_id), {}, signal);
    for (const { group_id: id, status } of page.groups) if (status?.complete) known.set(id, status);
    return page;
  },
  rows: (data) => data.groups, of: "group_id",
  columns: [
    ["Group", (row) => h("a.id", { "data-row": true, href: link(["groups", row.group_id]) }, row.group_id)], ["Progress", (row) => (row.status ? bar(row.status) : count(row.size, "member"))],
    ["Members", (row) => row.status && states(row.status), "fill wide"], ["Created", (row) => time(row.created_at), "number"],
  ],
});

export const one = {
  every: 2000,
  load: ({ id, query, signal }) => Promise.all([get(at("groups", id), {}, signal), get("/runs", { group: id, limit: 50, cursor: query.cursor }, signal)]),
  view(context) {
    const { data: [status, page], id } = context;
    return [
      headOf("Group", id, verb("cancel", at("groups", id), "Cancel group", { why: status.complete ? "All members have ended." : null, done: "Cancelled", sure: `All members that have not ended are cancelled: ${status.size - status.ended}.` })),
      facts([["Progress", bar(status)], ["Created", time(status.created_at)], ["Members", states(status)]]),
      runTable("Members", page.runs, "No member is stored."), pager(context, page.cursor),
    ];
  },
};
