// Bulk actions: count what matches, ask, and act page by page.

import { after, allowed, ask, at, complain, count, faint, h, newId, post, shorten, toast } from "./kit.js";

const MOST = 20_000;
const ABOUT = {
  cancel: "Running steps are cancelled, and compensations run.", pause: "Running steps end first.", resume: "Paused keys stay paused.",
  redrive: "They resume at the step that failed.", forget: "Their records are removed for ever.",
};
const DONE = { cancel: "cancelled", pause: "paused", resume: "resumed", redrive: "redriven", forget: "forgotten" };

export function bulk(name, filter, why) {
  const title = name[0].toUpperCase() + name.slice(1);
  return h("button", {
    "data-bulk": name, "aria-label": `${title} all runs that match`, ...allowed(name === "forget" ? "admin" : "operate", why),
    onclick: () => run(name, title, filter).catch(complain).finally(() => after.action()),
  }, `${title} all…`);
}

async function run(name, title, filter) {
  const send = (preview, limit, cursor, headers) => post("/bulk" + at(name), { ...filter, preview, limit, cursor }, headers);
  const body = h("div", "Counting the runs that match…");
  let closed = false;
  const sure = await ask({
    title: `${title} all runs that match?`, body, ok: title, danger: true,
    async ready(box, button) {
      button.disabled = true;
      let matched = 0, cursor = null, examples = [], said;
      try {
        do {
          const page = await send(true, 1000, cursor);
          ({ cursor } = page);
          matched += page.matched;
          examples = [...examples, ...page.examples].slice(0, 5);
          said = `${cursor ? "more than " : ""}${count(matched, "run")}`;
          body.replaceChildren(h("p", { "data-count": matched }, h("b", said), " match. ", ABOUT[name]), faint(examples.map((each) => h("div.id", shorten(each, 50)))));
        } while (cursor && matched < MOST && !closed);
        button.disabled = !matched;
        button.textContent = `${title} ${said}`;
      } catch (error) {
        body.replaceChildren(h("p.bad", error.message));
      }
    },
  });
  closed = true;
  if (!sure) return;
  const state = h("p", "…"), id = newId();
  let cursor = null, changed = 0, failed = 0, failure, stopped = false, close;
  ask({ title: `${title}: at work`, body: state, ok: "Stop", ready: (box) => { close = () => box.close(); } }).then(() => { stopped = true; });
  try {
    do {
      const page = await send(false, 200, cursor, { "idempotency-key": id });
      ({ cursor } = page);
      changed += page.changed;
      failed += page.failed;
      failure ??= page.failures[0]?.detail;
      state.textContent = `${count(changed, "run")} ${DONE[name]} so far.`;
    } while (cursor && !stopped);
  } finally {
    close();
  }
  toast(`${count(changed, "run")} ${DONE[name]}.`);
  if (failed) toast(`${count(failed, "run")} did not change: ${failure}`, true);
}
