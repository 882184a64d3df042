// Schedules: when they fire, and what their last runs did.

import { at, badge, code, duration, faint, h, keyLink, listScreen, number, pages, remove, runLink, time, verb } from "./kit.js";

const when = ({ kind, when: { expression, timezone, seconds, at: once } }) => kind === "cron" ? [code(expression), h("div.faint", timezone)] : kind === "every" ? `every ${duration(seconds)}` : ["once, ", time(once)];

const actions = ({ schedule_id: id, paused, finished }, path = at("schedules", id)) => h("div.actions",
  paused ? verb("resume", path, "Resume", { name: `Resume ${id}` }) : verb("pause", path, "Pause", { name: `Pause ${id}`, why: finished ? "The schedule is finished." : null }),
  remove(path, "Delete", { name: `Delete ${id}`, sure: `${id} does not fire any more. Its runs stay.` }));

export default listScreen({
  title: "Schedules", noun: "schedule", none: "There are no schedules.", load: pages("/schedules"), rows: (data) => data.schedules, of: "schedule_id",
  columns: [
    ["State", (row) => badge(row.problem ? "failed" : row.finished ? "finished" : row.paused ? "paused" : "active")], ["Schedule", (row) => [h("b", row.schedule_id), h("div.faint", row.workflow, ", ", keyLink(row.key))]], ["When", when, "wide"],
    ["Next", (row) => (row.problem ? h("p.bad", row.problem) : h("ul", row.next_times.map((each) => h("li", time(each), h("span.faint.wide", ` ${each.slice(0, 16).replace("T", " ")} UTC`))))), "fill"],
    ["Last run", (row) => [runLink(row.last_run_id), row.last_state && h("div", badge(row.last_state), " ", time(row.last_at))], "wide"],
    ["Fired", (row) => [number(row.fired), row.skipped + row.missed > 0 && h("div", faint(`${row.skipped} skipped, ${row.missed} missed`))], "number wide"], ["", (row) => actions(row)],
  ],
});
