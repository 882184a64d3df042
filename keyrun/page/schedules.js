// Schedules: when they fire, and what their last runs did.

import { at, call, get, post } from "./api.js";
import { h } from "./dom.js";
import { listScreen } from "./table.js";
import { duration, number } from "./time.js";
import { action, badge, keyLink, runLink, time } from "./ui.js";

const when = ({ kind, when: on }) => (kind === "cron" ? [h("code", {}, on.expression), on.timezone !== "UTC" && h("div", { class: "faint" }, on.timezone)] : kind === "every" ? `every ${duration(on.seconds)}` : ["once, ", time(on.at)]);

function actions(row) {
  const path = at("schedules", row.schedule_id);
  return [
    row.paused ? action("Resume", { name: `Resume ${row.schedule_id}`, run: () => post(path + "/resume"), done: "Resumed the schedule." })
      : action("Pause", { name: `Pause ${row.schedule_id}`, why: row.finished ? "The schedule is finished." : null, run: () => post(path + "/pause"), done: "Paused the schedule. Its runs go on." }),
    action("Delete", { role: "admin", kind: "danger", name: `Delete ${row.schedule_id}`, confirm: { title: `Delete the schedule ${row.schedule_id}?`, text: "It does not fire any more. Its runs stay.", danger: true }, run: () => call("DELETE", path), done: "Removed the schedule. Its runs stay." }),
  ];
}

export default listScreen({
  title: "Schedules", noun: "schedule", none: "There are no schedules.", intro: "What starts runs by the clock.",
  load: ({ query, signal }) => get("/schedules", { limit: 50, cursor: query.cursor }, signal),
  rows: (data) => data.schedules, id: (row) => row.schedule_id, data: (row) => ({ "data-schedule": row.schedule_id }),
  columns: [
    { label: "State", kind: "tight", cell: (row) => badge(row.problem ? "failed" : row.finished ? "finished" : row.paused ? "paused" : "active") },
    { label: "Schedule", cell: (row) => [h("b", {}, row.schedule_id), h("div", { class: "faint" }, row.workflow, ", ", keyLink(row.key, { row: true }))] },
    { label: "When", kind: "wide", cell: when },
    { label: "Next", kind: "fill", cell: (row) => (row.problem ? h("span", { class: "bad" }, row.problem) : h("ul", { class: "plain" }, (row.next_times ?? [row.next_at].filter(Boolean)).slice(0, 4).map((each) => h("li", {}, time(each), h("span", { class: "faint wide" }, ` ${new Date(each).toLocaleString()}`))))) },
    { label: "Last run", kind: "wide", cell: (row) => (row.last_run_id ? [runLink(row.last_run_id), h("div", {}, row.last_state && badge(row.last_state), " ", time(row.last_at))] : "–") },
    { label: "Fired", kind: "number wide", cell: (row) => [number(row.fired), (row.skipped || row.missed) ? h("div", { class: "faint" }, `${row.skipped} skipped, ${row.missed} missed`) : null] },
    { label: "", cell: (row) => h("div", { class: "actions" }, actions(row)) },
  ],
});
