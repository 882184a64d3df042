// Bulk actions: count what matches, ask, and act page by page.

import { at, newId, post } from "./api.js";
import { h } from "./dom.js";
import { denied } from "./session.js";
import { count, number } from "./time.js";
import { acted, ask, complain, shorten, toast } from "./ui.js";

const MOST = 20_000;
const ABOUT = {
  cancel: "Running steps are cancelled, and compensations run before a run ends.", pause: "Running steps end first.",
  resume: "Runs of paused keys stay held.", redrive: "Each run resumes at the step that failed.",
  forget: "All records of these runs are removed. This cannot be undone.",
};
const PAST = { cancel: "cancelled", pause: "paused", resume: "resumed", redrive: "redriven", forget: "forgotten" };
const title = (name) => name[0].toUpperCase() + name.slice(1);

/** Return a button that acts on all runs that match a filter. */
export function bulk(name, { role = "operate", filter, why = null, label = `${title(name)} all…` }) {
  const reason = denied(role) ?? why;
  return h("button", {
    type: "button", disabled: reason != null, title: reason, "aria-describedby": denied(role) ? `denied-${role}` : null,
    "aria-label": `${title(name)} all runs that match`, "data-bulk": name, onclick: () => run(name, filter).catch(complain),
  }, label);
}

async function run(name, filter) {
  const body = h("div", {}, h("p", { "data-count": "" }, "Counting the runs that match…"));
  let stopped = false;
  const yes = await ask({
    title: `${title(name)} all runs that match?`, body, ok: title(name), danger: name === "cancel" || name === "forget",
    ready: (box, send) => {
      send.disabled = true;
      preview(name, filter, body, () => stopped).then((matched) => {
        send.disabled = !matched.number;
        send.textContent = `${title(name)} ${matched.text}`;
      }, (error) => body.replaceChildren(h("p", { class: "bad" }, error.message)));
    },
  });
  stopped = true;
  if (yes) await perform(name, filter);
}

async function preview(name, filter, body, stopped) {
  let matched = 0, cursor = null, examples = [];
  const text = () => (cursor ? `more than ${number(matched)} runs` : count(matched, "run"));
  do {
    const found = await post("/bulk" + at(name), { ...filter, preview: true, limit: 1000, cursor });
    matched += found.matched;
    cursor = found.cursor;
    if (examples.length < 5) examples = [...examples, ...found.examples].slice(0, 5);
    body.replaceChildren(
      h("p", { "data-count": String(matched) }, h("b", {}, text()), ` match${matched === 1 && !cursor ? "es" : ""}. ${ABOUT[name]}`),
      h("dl", { class: "facts" }, Object.entries(filter).map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, String(value))))),
      examples.length ? h("p", { class: "faint" }, "For example ", examples.map((each, i) => [i > 0 && ", ", h("code", {}, shorten(each))])) : "");
  } while (cursor && matched < MOST && !stopped());
  return { number: matched, text: text() };
}

async function perform(name, filter) {
  const body = h("p", { role: "status" }, "…"), id = newId();
  let cursor = null, changed = 0, failed = 0, failures = [], stopped = false, close = () => {};
  const shown = ask({ title: `${title(name)}: at work`, body, ok: "Stop", ready: (box) => { close = () => box.close(); } });
  shown.then(() => { stopped = true; });
  try {
    do {
      const found = await post("/bulk" + at(name), { ...filter, preview: false, limit: 200, cursor }, { "idempotency-key": id });
      changed += found.changed;
      failed += found.failed;
      failures = [...failures, ...found.failures].slice(0, 1);
      cursor = found.cursor;
      body.textContent = `${count(changed, "run")} ${PAST[name]} so far.`;
    } while (cursor && !stopped);
  } finally {
    close();
    acted();
  }
  toast(`${count(changed, "run")} ${PAST[name]}${cursor ? ", then stopped" : ""}.`);
  if (failed) toast(`${count(failed, "run")} did not change: ${failures[0]?.detail ?? ""}`, true);
}
