// Live events: the only screen that subscribes. The server sends a sample of at most 200 per second.

import { eventBadge } from "./journal.js";
import { chips, code, count, duration, faint, filters, get, h, head, keyLink, number, query, runLink, setConnection, table, time } from "./kit.js";

const MOST = 300;
const RATE = 200;
const GROUPS = {
  all: "", runs: "run_submitted run_started run_waiting run_resumed run_paused run_cancelling run_succeeded run_failed run_cancelled run_redriven run_quarantined",
  steps: "step_started step_completed step_retrying step_failed step_timed_out step_cancelled step_progress",
  problems: "run_failed run_quarantined step_retrying step_failed step_timed_out step_overrun step_blocked step_starving circuit_opened circuit_closed limit_hit backpressure_began backpressure_ended key_quarantined key_released",
};

/** Read server-sent events until the stream ends. */
async function read(values, last, signal, take) {
  const answer = await fetch(`v1/events${query(values)}`, { signal, headers: last ? { "last-event-id": last } : {} });
  if (!answer.ok) throw new Error();
  let text = "";
  for await (const part of answer.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (text + part).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) take(Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s))));
  }
}

/** Follow the events of a group into `local`. Return a function that stops it. */
function follow({ local, redraw }, group) {
  let control, closed = false, timer, failures = 0;
  const add = (event) => {
    local.rows = [{ ...event, number: local.seen++ }, ...local.rows.slice(0, MOST - 1)];
    timer ??= setTimeout(() => { timer = null; if (!local.held) redraw(); }, 250);
  };
  const take = ({ id, data, event }) => {
    failures = 0;
    setConnection("live");
    local.last = id ?? local.last;
    if (!data || event === "end") return;
    const found = JSON.parse(data);
    if (found.sampled) local.sampled += found.missed;
    else if (event === "missed") local.missed = (local.missed ?? 0) + (found.missed ?? 0);
    if (!found.sampled) add(found);
  };
  // Where a proxy cuts streams, the newest runs stand in for their events.
  const poll = async () => {
    const { runs } = await get("/runs", { newest_first: true, limit: 50 }), known = new Set(local.rows.map((each) => each.run_id + each.kind));
    for (const each of runs.reverse()) if (!known.has(`${each.run_id}run_${each.state}`)) add({ ...each, kind: `run_${each.state}`, at: each.ended_at ?? each.started_at ?? each.submitted_at });
  };
  async function turn() {
    if (closed || document.hidden) return;
    control = new AbortController();
    try {
      await read({ kinds: GROUPS[group] && `${GROUPS[group]} missed`.split(" "), most_per_second: RATE }, local.last, control.signal, take);
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
    const { local, query: { group = "all", text = "" }, set, redraw } = context, clear = () => Object.assign(local, { rows: [], seen: 0, sampled: 0, missed: null });
    if (local.group !== group) {
      local.stop?.();
      clear();
      Object.assign(local, { group, stop: follow(context, group) });
    }
    const rows = local.rows.filter((each) => [each.kind, each.run_id, each.key, each.workflow, each.step].join(" ").includes(text)).slice(0, 150);
    return [
      head("Live events", h("button", { "aria-pressed": String(!!local.held), onclick: () => { local.held = !local.held; redraw(); } }, "Hold"), h("button", { onclick: () => { clear(); redraw(); } }, "Clear")),
      chips("Kinds", Object.keys(GROUPS), (each) => each === group, (each) => set({ group: each })),
      filters([["text", "Text"]], { text }, set, h("span.faint", { "data-sampled": local.sampled }, count(local.seen, "event"), local.sampled > 0 && ` and ${number(local.sampled)} more: this is a sample of ${RATE} per second`),
        local.missed != null && h("span.bad", { "data-missed": local.missed }, `${number(local.missed)} events were missed.`)),
      table("Live events", rows, [
        ["At", (each) => time(each.at)], ["Event", (each) => eventBadge(each.kind), "tight"], ["Run", (each) => runLink(each.run_id)], ["Key", (each) => keyLink(each.key), "wide"], ["What", (each) => h("span.clip", what(each)), "fill wide"],
      ], { of: "number", data: (each) => ({ "data-event": each.kind, class: each.kind === "missed" && "missed" }), none: "No event yet. Events appear as they happen." }),
    ];
  },
};
