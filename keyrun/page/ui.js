// Pieces of screens: states, ids, times, buttons that act, dialogs, notes and JSON.

import { Problem } from "./api.js";
import { h, svg } from "./dom.js";
import { link } from "./router.js";
import { denied } from "./session.js";
import { relative } from "./time.js";

const SIGNS = {
  pending: "M6 1.8a4.2 4.2 0 1 0 .01 0z",
  running: "M3 1.5v9l7.5-4.5z",
  waiting: "M2.5 1.5h7M2.5 10.5h7M3.5 1.5c0 3 5 6 5 9M8.5 1.5c0 3-5 6-5 9",
  paused: "M4 1.8v8.4M8 1.8v8.4",
  cancelling: "M6 1.5a4.5 4.5 0 1 0 .01 0zM3 9l6-6",
  quarantined: "M6 1 1 10.5h10zM6 4.5v3M6 8.6v.6",
  succeeded: "M1.5 6.5 4.5 9.5 10.5 2.5",
  failed: "M2 2l8 8M10 2l-8 8",
  cancelled: "M1.5 6h9",
  skipped: "M1.5 6h1.5M5.2 6h1.5M9 6h1.5",
};
const LIKE = {
  done: "succeeded", compensated: "cancelled", compensating: "cancelling", compensation_failed: "failed",
  closed: "succeeded", open: "failed", half_open: "waiting", finished: "cancelled", active: "running",
};

/** Return the sign of a state. */
export const sign = (name) =>
  svg("svg", { viewBox: "0 0 12 12", class: "sign", "aria-hidden": "true" }, svg("path", { d: SIGNS[LIKE[name] ?? name] ?? SIGNS.pending }));

/** Return a state as a sign with its word. */
export const badge = (name, word = name) =>
  h("span", { class: `state ${LIKE[name] ?? name}` }, sign(name), String(word).replaceAll("_", " "));

/** Return a long text without its middle. */
export function shorten(text, limit = 26) {
  if (text.length <= limit) return text;
  const tail = Math.floor(limit / 2) - 1;
  return `${text.slice(0, limit - tail - 1)}…${text.slice(-tail)}`;
}

/** Return an id, shortened in the middle. The whole id is in the title, and is what gets copied. */
export const mono = (text, limit) => h("span", { class: "id", title: text, "data-whole": text }, shorten(text, limit));

export const runLink = (id, { limit, row = false } = {}) =>
  h("a", { href: link(["runs", id]), "data-row": row }, mono(id, limit));
export const keyLink = (key, { limit, row = false } = {}) =>
  key == null ? "–" : h("a", { href: link(["keys", key]), "data-row": row }, mono(key === "" ? '""' : key, limit));

/** Return a time, relative to now. The exact time is in the title. */
export const time = (text) =>
  text == null ? "–" : h("time", { datetime: text, title: text, "data-relative": "" }, relative(text));

/** Return a button that copies a text. */
export const copy = (text, label = "Copy") =>
  h("button", {
    type: "button", class: "quiet", "aria-label": `${label}: ${shorten(text, 40)}`,
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        toast("Copied.");
      } catch {
        toast("The browser does not allow copying here.", true);
      }
    },
  }, label);

/** Show a short note. */
export function toast(text, bad = false) {
  const note = h("p", { class: bad ? "toast bad" : "toast" }, text);
  const box = document.getElementById("toasts");
  box.append(note);
  while (box.childElementCount > 4) box.firstElementChild.remove();
  setTimeout(() => note.remove(), bad ? 10_000 : 5_000);
}

/** Say what went wrong. */
export const complain = (error) =>
  toast(error instanceof Problem && error.error ? `${error.error}: ${error.message}` : error.message, true);

const changed = new EventTarget();
/** Call a function after each action, so that a screen shows at once what changed. */
export const onAction = (listener) => changed.addEventListener("change", listener);
export const acted = () => changed.dispatchEvent(new Event("change"));

/** Return a button that does something, or is disabled with the reason.
 *
 * - `role`: the least role that may do it.  - `why`: why it cannot be done now.
 * - `confirm`: what to ask before, see `ask`.  - `run`: does it; gets the values of the dialog.
 * - `done`: what to say afterwards; a text or a function of the answer. */
export function action(label, { role = "operate", why = null, confirm, run, done, kind = "", name }) {
  const reason = denied(role) ?? why;
  return h("button", {
    type: "button", class: kind, disabled: reason != null, title: reason, "aria-label": name,
    "aria-describedby": denied(role) ? `denied-${role}` : null,
    onclick: async (event) => {
      const button = event.currentTarget;
      const values = confirm ? await ask({ ok: label, ...confirm }) : {};
      if (values == null) return;
      button.setAttribute("aria-busy", "true");
      try {
        const answer = await run(values);
        const text = typeof done === "function" ? done(answer) : done;
        if (text) toast(text);
      } catch (error) {
        complain(error);
      } finally {
        button.removeAttribute("aria-busy");
        acted();
      }
    },
  }, label);
}

/** Ask in a dialog. Return the values of its fields, or null. A field is
 * `{ name, label, kind, value, required, check }`; `check` returns what is wrong with a value. `ready`
 * gets the dialog and the button that sends it. */
export function ask({ title, text, fields = [], ok = "OK", danger = false, body, ready }) {
  return new Promise((resolve) => {
    let values = null;
    const error = h("p", { class: "bad", role: "alert" });
    const inputs = fields.map((each) => [each, each.kind === "area"
      ? h("textarea", { name: each.name, rows: 5, spellcheck: "false", class: "id" }, each.value ?? "")
      : h("input", { name: each.name, type: each.kind ?? "text", value: each.value ?? "", required: each.required, autocomplete: "off" })]);
    const send = h("button", { type: "submit", class: danger ? "danger" : "primary" }, ok);
    const box = h("dialog", { "aria-labelledby": "ask-title" },
      h("form", {
        onsubmit: (event) => {
          event.preventDefault();
          const found = {};
          for (const [each, input] of inputs) {
            const wrong = each.check?.(input.value);
            if (wrong) {
              error.textContent = wrong;
              input.focus();
              return;
            }
            found[each.name] = input.value;
          }
          values = found;
          box.close();
        },
      },
      h("h2", { id: "ask-title" }, title), text && h("p", {}, text), body,
      inputs.map(([each, input]) => h("label", { class: "field" }, h("span", {}, each.label), input)), error,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => box.close() }, "Back"), send)));
    box.onclose = () => {
      box.remove();
      resolve(values);
    };
    document.body.append(box);
    box.showModal();
    ready?.(box, send);
    (inputs.find(([each]) => !each.value)?.[1] ?? (danger ? box.querySelector(".buttons button") : send)).focus();
  });
}

/** Return pairs of a name and a value, without those that have none. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value != null && value !== false && value !== "")
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** Return the sentence that says why a run or a key does not move, with a countdown. */
export const explained = (why, state) =>
  h("p", { class: `explain ${LIKE[state] ?? state}`, "data-explain": why.cause }, sign(state), h("span", {}, why.sentence),
    why.until && h("b", {}, time(why.until)), why.holder_key && h("a", { href: link(["keys", why.holder_key]) }, "Open the key"),
    why.cause === "queued" && why.holder && h("a", { href: link(["runs", why.holder]) }, "Open the run"));

/** Return tabs, as links. */
export const tabs = (label, items, current) =>
  h("nav", { class: "tabs", "aria-label": label }, items.map(([name, text, href]) =>
    h("a", { href, "aria-current": name === current ? "page" : null }, text)));

/** Return what stands where a list is empty. */
export const empty = (text, ...more) => h("p", { class: "empty" }, text, ...more);

/** Return a value as JSON. A large value is shown when it is opened. */
export function json(value, { open = true, limit = 20_000 } = {}) {
  const text = typeof value === "string" ? JSON.stringify(value) : JSON.stringify(value, null, 2) ?? "null";
  const short = text.length <= limit;
  const shown = h("pre", { class: "json", tabindex: "0", role: "region", "aria-label": "JSON" }, short ? text : text.slice(0, limit));
  const box = h("div", { class: "value" }, shown, h("div", { class: "tools" },
    !short && h("span", { class: "faint" }, `The first ${limit} of ${text.length} characters.`), copy(text)));
  return open ? box : h("details", {}, h("summary", {}, h("code", {}, shorten(text, 80))), box);
}

/** Return a failure with its causes. */
export function failure(found, title = "Error") {
  if (!found) return null;
  return h("section", { class: "failure" },
    h("h3", {}, title, " ", found.error_type && h("code", {}, found.error_type), " ", h("span", { class: "faint" }, found.kind.replaceAll("_", " "))),
    h("p", { class: "reason" }, found.reason),
    facts([["Step", found.step && h("code", {}, found.step)], ["Attempt", found.attempt], ["Left undone", found.left?.join(", ")]]),
    found.traceback && h("details", {}, h("summary", {}, "Traceback"), h("pre", { class: "json", tabindex: "0", role: "region", "aria-label": "Traceback" }, found.traceback)),
    found.cause && failure(found.cause, "Caused by"));
}

/** Return the value of a JSON text as `{ value }`, or what is wrong with it as `{ wrong }`. */
export function asJson(text) {
  try {
    return { value: text.trim() ? JSON.parse(text) : null };
  } catch (error) {
    return { wrong: `This is not JSON: ${error.message}` };
  }
}
