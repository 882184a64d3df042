// The journal of a run: all its events, of which the visible ones are in the page.

import { get } from "./api.js";
import { h } from "./dom.js";
import { link, go } from "./router.js";
import { between, count, duration } from "./time.js";
import { badge, empty, failure, json, time } from "./ui.js";

const MOST = 50_000;
const HEIGHT = 30;
const VISIBLE = 40;

/** Load the history of a run into `local.events`: at first all pages, and then the last page again
 * when the run has moved. */
export async function history(path, run, local, signal, redraw) {
  const seen = JSON.stringify([run.state, run.step, run.attempt, run.steps_done, run.generation, run.waiting_on, run.ended_at]);
  if (local.seen === seen && Date.now() - local.read < 5000) return;
  local.head ??= [];
  for (;;) {
    const page = await get(path + "/history", { limit: 500, cursor: local.cursor }, signal);
    local.events = [...local.head, ...page.events];
    local.more = page.cursor != null;
    if (!page.cursor || local.events.length > MOST) break;
    local.head = local.events;
    local.cursor = page.cursor;
    redraw();
  }
  Object.assign(local, { seen, read: Date.now() });
}

const TONES = [[/failed|timed_out|rejected|overrun|damaged|interrupted/, "failed"], [/completed|succeeded|approved|received|fired/, "succeeded"], [/wanted|timer_set|child_started|scope/, "waiting"], [/cancel/, "cancelled"], [/quarantine|operation|redriven|pause|resume/, "paused"], [/started/, "running"]];
const tone = (event) => TONES.find(([words]) => words.test(event))?.[1] ?? "pending";
const text = (each) => each.failure?.reason ?? each.detail ?? (each.delay != null ? `${duration(each.delay)}` : each.value != null ? JSON.stringify(each.value).slice(0, 120) : "");

export function journalTab({ data: { run }, local, query, id, redraw }) {
  const all = local.events ?? [];
  const kinds = [...new Set(all.map((each) => each.event))].sort();
  const word = (query.text ?? "").toLowerCase();
  const found = all.map((each, index) => [index, each]).filter(([, each]) => (!query.event || each.event === query.event)
    && (!word || `${each.step ?? ""} ${each.detail ?? ""} ${each.failure?.reason ?? ""} ${each.who ?? ""}`.toLowerCase().includes(word)));
  const first = Math.max(0, Math.min(found.length - VISIBLE, Math.floor((local.top ?? 0) / HEIGHT) - 8));
  const set = (values) => { local.top = 0; go(link(["runs", id], { ...query, ...values }), { replace: true }); };
  const space = (rows) => rows > 0 && h("tr", { key: rows, "aria-hidden": "true" }, h("td", { colspan: 5, style: { height: `${rows * HEIGHT}px`, padding: 0, border: 0 } }));
  const chosen = all[local.entry];
  return [
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      h("label", {}, h("span", {}, "Event"), h("select", { value: query.event ?? "", onchange: (event) => set({ event: event.target.value }) },
        h("option", { value: "" }, "all"), kinds.map((each) => h("option", { value: each, selected: each === query.event }, each.replaceAll("_", " "))))),
      h("label", {}, h("span", {}, "Text"), h("input", { type: "search", value: query.text ?? "", onchange: (event) => set({ text: event.target.value }) })),
      h("p", { class: "faint", role: "status" }, found.length < all.length ? `${found.length} of ` : "", count(all.length, "entry").replace("entrys", "entries"), local.more && " so far")),
    !found.length ? empty(all.length ? "No entry matches." : "Loading…") : h("div", {
      class: "scroll journal", tabindex: "0", role: "region", "aria-label": "Journal",
      onscroll: (event) => { const { scrollTop } = event.currentTarget; if (Math.abs(scrollTop - (local.top ?? 0)) >= HEIGHT * 4) { local.top = scrollTop; redraw(); } },
    },
    h("table", { "aria-rowcount": found.length + 1 }, h("caption", { class: "hidden" }, "Journal"),
      h("thead", {}, h("tr", {}, ["At", "Event", "Step", "Attempt", "What"].map((each, i) => h("th", { scope: "col", class: i > 2 ? "wide" : null }, each)))),
      h("tbody", {}, space(first), found.slice(first, first + VISIBLE).map(([index, each], i) => h("tr", { key: `e${index}`, "aria-rowindex": first + i + 2 },
        h("td", { class: "number", title: each.at }, `+${duration(Math.max(0, between(run.submitted_at, each.at)))}`),
        h("td", {}, h("button", { type: "button", class: "quiet", "data-row": true, "aria-expanded": String(local.entry === index), onclick: () => { local.entry = local.entry === index ? null : index; redraw(); } }, badge(tone(each.event), each.event))),
        h("td", {}, each.step && h("code", {}, each.step)), h("td", { class: "wide" }, each.attempt),
        h("td", { class: "fill wide" }, h("span", { class: "line" }, text(each))))), space(found.length - first - VISIBLE)))),
    chosen && h("section", { class: "card", "aria-label": "Entry" },
      h("h3", {}, chosen.event.replaceAll("_", " "), " ", chosen.step && h("code", {}, chosen.step)),
      h("p", {}, time(chosen.at), h("span", { class: "faint" }, ` ${chosen.at}`), chosen.began_at && ` took ${duration(between(chosen.began_at, chosen.at))}`, chosen.delay != null && `, delay ${duration(chosen.delay)}`, chosen.who && `, by ${chosen.who}`),
      chosen.detail && h("p", { class: "reason" }, chosen.detail), failure(chosen.failure), chosen.value != null && json(chosen.value)),
  ];
}
