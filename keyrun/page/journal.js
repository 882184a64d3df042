// The journal of a run: all its events, of which the visible ones are in the page.

import { badge, between, code, count, duration, empty, failure, faint, filters, get, h, json, table, time, words } from "./kit.js";

const MOST = 50_000;
const HEIGHT = 30;
const VISIBLE = 40;

/** Load the history of a run into `local.events`: first all pages, and the last page again when the run has moved. */
export async function history(path, run, local, signal, redraw) {
  const { state, step, attempt, steps_done: steps, generation, waiting_on: wait } = run, seen = [state, step, attempt, steps, generation, wait].join();
  if (local.seen === seen && Date.now() - local.read < 5000) return;
  local.head ??= [];
  for (;;) {
    const page = await get(path + "/history", { limit: 1000, cursor: local.cursor }, signal);
    local.events = [...local.head, ...page.events];
    local.more = page.cursor != null;
    redraw();
    if (!page.cursor || local.events.length > MOST) break;
    Object.assign(local, { head: local.events, cursor: page.cursor });
  }
  Object.assign(local, { seen, read: Date.now() });
}

const TONES = [
  ["failed", /failed|timed_out|rejected|overrun|damaged|interrupted|quarantine|opened|blocked|limit_hit|began/], ["succeeded", /completed|succeeded|approved|received|fired|closed|released|ended/],
  ["waiting", /wanted|timer_set|child_started|scope|retrying|waiting|starving/], ["cancelled", /cancel/], ["paused", /operation|redriven|paused|missed/], ["running", /started|resumed|progress/],
];

export const eventBadge = (name) => badge(TONES.find(([, found]) => found.test(name))?.[0] ?? "pending", name);

const what = ({ failure: found, detail, delay, value }) => found?.reason ?? detail ?? (delay != null ? duration(delay) : value == null ? "" : JSON.stringify(value).slice(0, 120));

export function journalTab({ data: { run }, local, query, set, redraw }) {
  const all = local.events ?? [], text = (query.text ?? "").toLowerCase();
  const found = all.map((each, index) => ({ ...each, index })).filter((each) => (!query.event || each.event === query.event) && [each.step, each.who, what(each)].join(" ").toLowerCase().includes(text));
  const first = Math.max(0, Math.min(found.length - VISIBLE, Math.floor((local.top ?? 0) / HEIGHT) - 8)), left = found.length - first - VISIBLE;
  const filter = (values) => { local.top = 0; set(values, true); };
  const toggle = (index) => { local.entry = local.entry === index ? null : index; redraw(); };
  const chosen = all[local.entry];
  return [
    filters([["text"], ["event", ["", ...new Set(all.map((each) => each.event))].sort()]], query, filter, faint(found.length < all.length && `${found.length} of `, count(all.length, "entry"), local.more && " so far")),
    !found.length ? empty(all.length ? "No entry matches." : "Loading…") : table("Journal", found.slice(first, first + VISIBLE), [
      ["At", (each) => h("span", { title: each.at }, `+${duration(between(run.submitted_at, each.at))}`), "number"],
      ["Event", (each) => h("button.quiet", { "data-row": true, "aria-expanded": String(each.index === local.entry), onclick: () => toggle(each.index) }, eventBadge(each.event))],
      ["Step", (each) => [code(each.step), each.attempt > 1 && ` ${each.attempt}`]], ["What", what, "fill wide"],
    ], {
      of: "index", space: [first * HEIGHT, left * HEIGHT],
      box: { class: "journal", onscroll: ({ currentTarget: { scrollTop } }) => { if (Math.abs(scrollTop - (local.top ?? 0)) >= HEIGHT * 4) { local.top = scrollTop; redraw(); } } },
    }),
    chosen && h("section.card", { "aria-label": "Entry" }, h("h2", words(chosen.event), " ", code(chosen.step)),
      h("p", time(chosen.at), " ", faint(chosen.at, chosen.began_at && `, took ${duration(between(chosen.began_at, chosen.at))}`, chosen.delay != null && `, delay ${duration(chosen.delay)}`, chosen.who && `, by ${chosen.who}`)),
      chosen.detail && h("p.reason", chosen.detail), failure(chosen.failure), chosen.value != null && json(chosen.value)),
  ];
}
