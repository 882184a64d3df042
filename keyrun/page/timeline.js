// The timeline of a run: a lane for each step, attempts as bars, backoffs as gaps between them.

import { h, svg } from "./dom.js";
import { table } from "./table.js";
import { duration, now } from "./time.js";
import { badge, empty } from "./ui.js";

const MOST = 200;
const WIDTH = 1000;
const ms = (text) => Date.parse(text);
const WAITS = { timer_set: "timer", signal_wanted: "signal", approval_wanted: "approval", child_started: "child" };
const WAIT_ENDS = /^(timer_fired|signal_|approved|rejected|approval_timed_out|child_)/;

/** Return the lanes of a history: `{ step, spans, attempts, failed }`. A span has a kind: `done`, `failed`,
 * `running`, `gap` or `wait`. */
function lanesOf(events, progress, end) {
  const lanes = new Map();
  const lane = (step) => lanes.get(step) ?? lanes.set(step, { step, spans: [], attempts: 0, failed: 0 }).get(step);
  for (const each of events) {
    if (!each.step || each.event.startsWith("node_")) continue;
    const to = ms(each.at), from = each.began_at ? ms(each.began_at) : to;
    const one = lane(each.step);
    const gap = one.spans.at(-1);
    const attempt = (kind) => {
      if (gap?.kind === "gap") gap.to = Math.min(gap.to, from);
      one.attempts += 1;
      one.failed += kind === "failed";
      one.spans.push({ kind, from, to, text: `attempt ${each.attempt}${kind === "failed" ? " failed" : ""}, ${duration((to - from) / 1000)}${each.failure ? `: ${each.failure.reason}` : ""}` });
    };
    if (each.event in WAITS) one.spans.push({ kind: "wait", from: to, to: end, open: true, text: `waits for ${WAITS[each.event]} ${each.detail ?? ""}` });
    else if (WAIT_ENDS.test(each.event)) Object.assign(gap ?? {}, { to, open: false });
    else if (each.event === "step_completed") attempt("done");
    else if (["attempt_failed", "step_failed", "interrupted"].includes(each.event)) {
      // The end of a step repeats its last attempt.
      if (each.event !== "step_failed" || !(gap?.kind === "failed" && gap.from === from)) attempt("failed");
      if (each.event === "attempt_failed" && each.delay != null) one.spans.push({ kind: "gap", from: to, to: to + each.delay * 1000, text: `backoff ${duration(each.delay)}` });
    }
  }
  for (const each of progress?.running ?? []) {
    const from = ms(each.began_at), one = lane(each.step), gap = one.spans.at(-1);
    if (gap?.kind === "gap") gap.to = Math.min(gap.to, from);
    one.attempts += 1;
    one.spans.push({ kind: "running", from, to: end, text: `attempt ${each.attempt} runs for ${duration((end - from) / 1000)}` });
    one.report = [each.percent != null && `${each.percent} %`, each.message].filter(Boolean).join(" ");
  }
  return [...lanes.values()].filter((each) => each.spans.length);
}

export function timelineTab(run, events, progress) {
  if (!run.started_at) return empty("The run has not started.");
  const end = run.ended_at ? ms(run.ended_at) : now();
  const all = lanesOf(events, progress, end);
  const lanes = all.slice(-MOST);
  if (!lanes.length) return empty("The run has no step yet.");
  const begin = all.length > MOST ? lanes[0].spans[0].from : Math.min(ms(run.started_at), lanes[0].spans[0].from);
  const last = Math.max(end, ...lanes.flatMap((each) => each.spans.map((span) => (span.kind === "gap" ? span.to : 0))));
  const length = Math.max(1, last - begin);
  const x = (at) => ((Math.max(begin, at) - begin) / length) * WIDTH;
  const bar = (span) => {
    const from = x(span.from), width = Math.max(span.kind === "gap" ? 0 : 4, x(Math.min(span.to, last)) - from);
    const left = Math.min(from, WIDTH - width);
    if (span.kind === "gap") return svg("path", { class: "gap", d: `M${left} 10H${left + width}` }, svg("title", {}, span.text));
    const [top, height] = span.kind === "wait" ? [7, 6] : [3, 14];
    return svg("rect", { class: span.kind, x: left, y: top, width, height }, svg("title", {}, span.text));
  };
  const took = (spans) => (Math.min(end, spans.at(-1).to) - spans[0].from) / 1000;
  return [
    all.length > MOST && h("p", { class: "faint" }, `The last ${MOST} of ${all.length} steps. The journal has all.`),
    h("div", { class: "timeline" }, table({
      caption: "Timeline of the steps", rows: lanes, id: (each) => each.step,
      columns: [
        { label: "Step", cell: (each) => h("code", {}, each.step) },
        {
          label: h("span", { class: "axis" }, h("span", {}, "start"), h("span", {}, duration(length / 2000)), h("span", {}, duration(length / 1000))), kind: "lane",
          cell: (each) => svg("svg", { viewBox: `0 0 ${WIDTH} 20`, preserveAspectRatio: "none", role: "img", "aria-label": each.spans.slice(-20).map((span) => span.text).join(", ") },
            x(end) < WIDTH && svg("path", { class: "now", d: `M${x(end)} 0V20` }), each.spans.map(bar)),
        },
        { label: "Attempts", kind: "number wide", cell: (each) => (each.attempts ? `${each.attempts}${each.failed ? ` (${each.failed} failed)` : ""}` : "–") },
        { label: "Took", kind: "number", cell: (each) => duration(took(each.spans)) },
        { label: "Now", kind: "wide", cell: (each) => each.report || (each.spans.at(-1).kind === "running" ? badge("running") : each.spans.at(-1).open ? badge("waiting") : each.spans.at(-1).kind === "failed" ? badge("failed") : each.spans.at(-1).kind === "gap" ? badge("waiting", "backoff") : badge("done")) },
      ],
    })),
    h("ul", { class: "legend", "aria-hidden": "true" }, [["done", "attempt"], ["failed", "failed attempt"], ["running", "running"], ["wait", "wait"]].map(([kind, word]) =>
      h("li", {}, svg("svg", { viewBox: "0 0 24 20", class: "bar" }, svg("rect", { class: kind, x: 1, y: kind === "wait" ? 7 : 3, width: 22, height: kind === "wait" ? 6 : 14 })), word)),
    h("li", {}, svg("svg", { viewBox: "0 0 24 20", class: "bar" }, svg("path", { class: "gap", d: "M1 10H23" })), "backoff")),
  ];
}
