// Live events: the only screen that subscribes, to a sample.

import { eventBadge } from "./journal.js";
import { chips, code, count, duration, faint, filters, get, h, head, keyLink, number, query, runLink, setConnection, table, time } from "./kit.js";

const MOST = 300;
const RATE = 200;
const GROUPS = {
  all: "", runs: "run_submitted run_started run_waiting run_resumed run_paused run_cancelling run_succeeded run_failed run_cancelled run_redriven run_quarantined",
  problems: "run_failed run_quarantined step_retrying step_failed step_timed_out step_overrun step_blocked circuit_opened circuit_closed limit_hit backpressure_began key_quarantined",
};

async function read(values, last, signal, take) {
  const answer = await fetch(`v1/events${query(values)}`, { signal, headers: last ? { "last-event-id": last } : {} });
  if (!answer.ok) throw new Error();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "", part; !(part = await reader.read()).done;) {
    const blocks = (text + part.value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) take(Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s))));
  }
}

function follow({ local, redraw }, group) {
  let control, closed = false, timer, failures = 0;
  const add = (event) => {
    local.rows = [{ ...event, number: local.seen++ }, ...local.rows.slice(0, MOST - 1)];
    timer ??= setTimeout(() => { timer = null; if (!local.held) redraw(); }, 250);
  };
  const miss = (found) => {
    local.missed = (local.missed ?? 0) + (found.missed ?? 0);
    add(found);
  };
  const take = ({ id, data, event }) => {
    failures = 0;
    setConnection("live");
    local.last = id ?? local.last;
    if (!data || event === "end") return;
    const found = JSON.parse(data);
    if (found.sampled) local.sampled += found.missed;
    else if (event === "missed") miss(found);
    else add(found);
  };
  const kinds = GROUPS[group] && `${GROUPS[group]} missed`.split(" ");
  // Where a proxy cuts streams.
  const poll = async () => {
    const { events, cursor, missed } = await get("/recent-events", { after: local.after, kinds, limit: RATE });
    local.after = cursor;
    if (missed) miss({ kind: "missed", at: new Date().toISOString(), missed });
    events.forEach(add);
  };
  async function turn() {
    if (closed || document.hidden) return;
    control = new AbortController();
    try {
      await read({ kinds, most_per_second: RATE }, local.last, control.signal, take);
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    if (closed) return;
    if (++failures > 1) await poll().then(() => setConnection("polling"), () => {});
    setTimeout(turn, 1000);
  }
  const seen = () => { control?.abort(); turn(); };
  document.addEventListener("visibilitychange", seen);
  turn();
  return () => {
    closed = true;
    control?.abort();
    document.removeEventListener("visibilitychange", seen);
    setConnection("live");
  };
}

const what = ({ kind, missed, step, attempt, elapsed, percent, failure, reason, message, waiting_on: wait }) => kind === "missed" ? `${missed == null ? "Some" : number(missed)} events were missed here.`
  : [code(step), attempt > 1 && ` attempt ${attempt}`, elapsed != null && ` ${duration(elapsed)}`, percent != null && ` ${percent} %`, " ", failure?.reason ?? reason ?? message ?? wait];

export default {
  title: "Live events",
  every: 3_600_000,
  load: async () => ({}),
  close: ({ local }) => local.stop(),
  view(context) {
    const { local, query: { group = "all", text = "" }, set, redraw } = context;
    if (local.group !== group) {
      local.stop?.();
      Object.assign(local, { group, rows: [], seen: 0, sampled: 0, missed: null });
      local.stop = follow(context, group);
    }
    const rows = local.rows.filter((each) => [each.kind, each.run_id, each.key, each.workflow, each.step].join(" ").includes(text)).slice(0, 150);
    return [
      head("Live events", h("button", { "aria-pressed": String(!!local.held), onclick: () => { local.held = !local.held; redraw(); } }, "Hold")),
      chips("Kinds", Object.keys(GROUPS), (each) => each === group, (each) => set({ group: each })),
      filters([["text"]], { text }, set, h("span.faint", { "data-sampled": local.sampled }, count(local.seen, "event"), local.sampled > 0 && ` and ${number(local.sampled)} more: this is a sample of ${RATE} per second`),
        local.missed != null && h("span.bad", { "data-missed": local.missed }, `${number(local.missed)} events were missed.`)),
      table("Live events", rows, [
        ["At", ({ at }) => time(at)], ["Event", ({ kind }) => eventBadge(kind)], ["Run", ({ run_id: id }) => runLink(id)], ["Key", ({ key }) => keyLink(key), "wide"], ["What", (each) => h("span.clip", what(each)), "fill wide"],
      ], { of: "number", data: (each) => ({ "data-event": each.kind, "data-run": each.run_id, "data-key": each.key, class: each.kind === "missed" && "missed" }), none: "No event yet. Events appear as they happen." }),
    ];
  },
};
