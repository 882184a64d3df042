// Live events: the only screen that subscribes. The server sends a sample of at most 200 per second.

import { at, get, query, setConnection } from "./api.js";
import { h } from "./dom.js";
import { empty, keyLink, runLink, sign, time } from "./ui.js";
import { count, duration, number } from "./time.js";

const MOST = 400;
const RATE = 200;
const GROUPS = {
  all: null,
  runs: ["run_submitted", "run_started", "run_waiting", "run_resumed", "run_paused", "run_continued", "run_cancelling", "run_succeeded", "run_failed", "run_cancelled", "run_redriven", "run_recovered", "run_quarantined"],
  steps: ["step_started", "step_completed", "step_retrying", "step_failed", "step_timed_out", "step_cancelled", "step_progress"],
  problems: ["run_failed", "run_quarantined", "step_retrying", "step_failed", "step_timed_out", "step_overrun", "step_blocked", "step_starving", "circuit_opened", "circuit_half_opened", "circuit_closed", "limit_hit", "backpressure_began", "backpressure_ended", "key_quarantined", "key_released"],
};
const TONES = [[/missed/, "cancelling"], [/failed|timed_out|quarantined|opened|blocked|overrun|limit|began/, "failed"], [/succeeded|completed|closed|released|ended/, "succeeded"], [/retrying|waiting|starving|paused/, "waiting"], [/started|resumed|progress/, "running"]];
const tone = (kind) => TONES.find(([words]) => words.test(kind))?.[1] ?? "pending";

/** Read server-sent events until the stream ends. */
async function read(path, values, last, signal, take) {
  const answer = await fetch("v1" + path + query(values), { signal, headers: last ? { "last-event-id": last } : {} });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
      take(fields.event, fields.data && JSON.parse(fields.data), fields.id);
    }
  }
}

function follow(context) {
  const { local, query: { group } } = context;
  let control = null, closed = false, drawn = null, failures = 0;
  const draw = () => { drawn ??= setTimeout(() => { drawn = null; if (!local.paused) context.redraw(); }, 250); };
  const take = (event, data, id) => {
    if (id) local.last = id;
    failures = 0;
    if (!data || event === "end") return;
    if (data.kind === "missed" && data.sampled) local.sampled += data.missed ?? 0;
    else {
      if (data.kind === "missed") local.missed = (local.missed ?? 0) + (data.missed ?? 0);
      local.rows.unshift({ ...data, number: local.seen++ });
      local.rows.length = Math.min(local.rows.length, MOST);
    }
    draw();
  };
  async function turn() {
    if (closed || document.hidden) return;
    control = new AbortController();
    try {
      if (failures < 3) setConnection("live");
      await read("/events", { kinds: GROUPS[group] && [...GROUPS[group], "missed"], most_per_second: RATE }, local.last, control.signal, take);
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    if (closed) return;
    failures += 1;
    if (failures > 1) {
      setConnection("polling", "the stream of events was cut");
      await poll().catch(() => {});
    }
    setTimeout(turn, 1000);
  }
  // Where a proxy cuts streams, the newest runs stand in for their events.
  async function poll() {
    const page = await get("/runs", { newest_first: true, limit: 50 });
    const known = new Set(local.rows.map((each) => `${each.run_id} ${each.state}`));
    for (const each of page.runs.reverse())
      if (!known.has(`${each.run_id} ${each.state}`)) local.rows.unshift({ ...each, kind: `run_${each.state}`, at: each.ended_at ?? each.started_at ?? each.submitted_at, number: local.seen++ });
    local.rows.length = Math.min(local.rows.length, MOST);
    draw();
  }
  const hidden = () => (document.hidden ? control?.abort() : turn());
  document.addEventListener("visibilitychange", hidden);
  turn();
  return () => {
    closed = true;
    control?.abort();
    clearTimeout(drawn);
    document.removeEventListener("visibilitychange", hidden);
    setConnection("live");
  };
}

const what = (each) => each.kind === "missed" ? `${each.missed == null ? "An unknown number of" : number(each.missed)} events were missed here.`
  : [each.step && h("code", {}, each.step), each.attempt > 1 && ` attempt ${each.attempt}`, each.elapsed != null && ` ${duration(each.elapsed)}`, each.percent != null && ` ${each.percent} %`, " ",
    each.failure?.reason ?? each.reason ?? each.message ?? each.waiting_on ?? ""];

export default {
  title: "Live events",
  every: 3_600_000,
  load: async ({ data }) => data ?? {},
  open({ local }) { Object.assign(local, { rows: [], seen: 0, sampled: 0 }); },
  close({ local }) { local.stop?.(); },
  view(context) {
    const { local, query: { group = "all", text = "" }, set } = context;
    if (local.group !== group) {
      local.stop?.();
      Object.assign(local, { group, rows: [] });
      local.stop = follow(context);
    }
    const rows = local.rows.filter((each) => !text || [each.kind, each.run_id, each.key, each.workflow, each.step].join(" ").includes(text)).slice(0, 200);
    return [
      h("div", { class: "head" }, h("h1", {}, "Live events"), h("div", { class: "actions" },
        h("button", { type: "button", "aria-pressed": String(!!local.paused), onclick: () => { local.paused = !local.paused; context.redraw(); } }, local.paused ? "Go on" : "Hold"),
        h("button", { type: "button", onclick: () => { Object.assign(local, { rows: [], sampled: 0, missed: null }); context.redraw(); } }, "Clear"))),
      h("div", { class: "chips", role: "group", "aria-label": "Kinds" }, Object.keys(GROUPS).map((each) => h("button", { type: "button", class: "chip", "aria-pressed": String(each === group), onclick: () => set({ group: each === "all" ? null : each }) }, each))),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", {}, h("span", {}, "Text"), h("input", { type: "search", value: text, onchange: (event) => set({ text: event.target.value.trim() }) })),
        h("p", { class: "faint", "data-sampled": String(local.sampled) }, `${count(local.seen, "event")} shown`, local.sampled > 0 && `, ${number(local.sampled)} more happened: this is a sample of ${RATE} per second`),
        local.missed != null && h("p", { class: "bad", "data-missed": String(local.missed) }, `${number(local.missed)} events were missed.`)),
      !rows.length ? empty("No event yet. They appear as they happen.") : h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Live events" }, h("table", {}, h("caption", { class: "hidden" }, "Live events, the newest first"),
        h("thead", {}, h("tr", {}, ["At", "Event", "Run", "Key", "What"].map((each, i) => h("th", { scope: "col", class: i > 2 ? "wide" : null }, each)))),
        h("tbody", {}, rows.map((each) => h("tr", { key: each.number, class: each.kind === "missed" ? "missed" : null }, h("td", {}, time(each.at)),
          h("td", {}, h("span", { class: `state ${tone(each.kind)}` }, sign(tone(each.kind)), each.kind.replaceAll("_", " "))), h("td", {}, each.run_id ? runLink(each.run_id, { row: true }) : "–"), h("td", { class: "wide" }, keyLink(each.key, { limit: 20 })), h("td", { class: "fill wide" }, h("span", { class: "clip" }, what(each)))))))),
    ];
  },
};
