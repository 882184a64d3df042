// The timeline of a run: a lane for each step, attempts as bars, backoffs as gaps between them.

import { badge, code, duration, empty, h, now, svg, table, words } from "./kit.js";

const MOST = 200;
const WIDTH = 1000;
const ms = Date.parse;
const WAITS = /^(timer_set|signal_wanted|approval_wanted|child_started)$/;
const WAIT_ENDS = /^(timer_fired|signal_|approved|rejected|approval_|child_)/;
const KINDS = { done: "done", failed: "failed", running: "running", wait: "waiting", gap: "waiting" };

function lanesOf(events, progress, end) {
  const lanes = new Map();
  const attempt = (lane, kind, from, to, text) => {
    const last = lane.spans.at(-1);
    if (last?.kind === "gap") last.to = Math.min(last.to, from);
    lane.attempts += 1;
    lane.failed += kind === "failed";
    lane.spans.push({ kind, from, to, text: `${text}, ${duration((to - from) / 1000)}` });
  };
  const of = (step) => lanes.get(step) ?? lanes.set(step, { step, spans: [], attempts: 0, failed: 0 }).get(step);
  for (const { event, step, at, began_at: began, attempt: number, delay, failure, detail } of events) {
    if (!step || event.startsWith("node_")) continue;
    const lane = of(step), last = lane.spans.at(-1), to = ms(at), from = began ? ms(began) : to;
    if (WAITS.test(event)) lane.spans.push({ kind: "wait", from: to, to: end, text: `${words(event)} ${detail ?? ""}` });
    else if (WAIT_ENDS.test(event)) Object.assign(last ?? {}, { to, over: true });
    else if (event === "step_completed") attempt(lane, "done", from, to, `attempt ${number}`);
    // The end of a step repeats its last attempt.
    else if (/^(attempt_failed|step_failed|interrupted)$/.test(event) && !(event === "step_failed" && last?.from === from)) attempt(lane, "failed", from, to, `attempt ${number} failed: ${failure?.reason ?? detail}`);
    if (event === "attempt_failed" && delay != null) lane.spans.push({ kind: "gap", from: to, to: to + delay * 1000, text: `backoff, ${duration(delay)}` });
  }
  for (const { step, began_at: began, attempt: number, percent, message } of progress?.running ?? []) {
    attempt(of(step), "running", ms(began), end, `attempt ${number} runs`);
    of(step).report = [percent != null && `${percent} %`, message].filter(Boolean).join(" ");
  }
  return [...lanes.values()].filter((lane) => lane.spans.length);
}

export function timelineTab({ data: { run, progress }, local }) {
  const end = run.ended_at ? ms(run.ended_at) : now(), all = lanesOf(local.events ?? [], progress, end), lanes = all.slice(-MOST);
  if (!lanes.length) return empty("No step has started.");
  const begin = lanes[0].spans[0].from, last = Math.max(begin + 1, end, ...lanes.map(({ spans }) => spans.at(-1).to)), length = (last - begin) / 1000;
  const x = (at) => ((Math.max(begin, at) - begin) / (last - begin)) * WIDTH;
  const shape = (kind, left, width, text) => kind === "gap" ? svg("path.gap", { d: `M${left} 10h${width}` }, svg("title", text))
    : svg("rect", { class: `span ${kind}`, x: Math.min(left, WIDTH - width), y: kind === "wait" ? 7 : 3, width, height: kind === "wait" ? 6 : 14 }, svg("title", text));
  const bar = ({ kind, from, to, text }) => shape(kind, x(from), Math.max(kind === "gap" ? 0 : 4, x(to) - x(from)), text);
  const state = ({ spans, report }) => { const { kind, over } = spans.at(-1); return report || badge(over ? "done" : KINDS[kind], kind === "gap" ? "backoff" : undefined); };
  return [
    all.length > MOST && h("p.faint", `The last ${MOST} of ${all.length} steps. The journal has all.`),
    table("Timeline", lanes, [
      ["Step", (lane) => code(lane.step)],
      [h("span.axis", h("span", "0 s"), h("span", duration(length / 2)), h("span", duration(length))), ({ spans }) => svg("svg", { viewBox: `0 0 ${WIDTH} 20`, preserveAspectRatio: "none", role: "img", "aria-label": spans.slice(-20).map(({ text }) => text).join("; ") },
        end < last && svg("path.now", { d: `M${x(end)} 0V20` }), spans.map(bar)), "lane"],
      ["Attempts", ({ attempts, failed }) => (attempts ? `${attempts}${failed ? ` (${failed} failed)` : ""}` : "–"), "number wide"],
      ["Took", ({ spans }) => duration((Math.min(end, spans.at(-1).to) - spans[0].from) / 1000), "number"], ["Now", state, "wide"],
    ], { of: "step" }),
    h("ul.legend", { "aria-hidden": "true" }, [["done", "attempt"], ["failed", "failed attempt"], ["running", "running"], ["wait", "wait"], ["gap", "backoff"]].map(([kind, word]) => h("li", svg("svg", { width: 24, height: 20 }, shape(kind, 1, 22, word)), " ", word))),
  ];
}
