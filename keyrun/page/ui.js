// Pieces of screens: states, ids, times, buttons that act, dialogs, notes and JSON.

import { call } from "./api.js";
import { h, svg } from "./dom.js";
import { link } from "./router.js";
import { denied } from "./session.js";
import { relative } from "./time.js";

const SIGNS = {
  pending: "M6 1.8a4.2 4.2 0 1 0 .01 0z", running: "M3 1.5v9l7.5-4.5z", paused: "M4 1.8v8.4M8 1.8v8.4", cancelled: "M1.5 6h9",
  waiting: "M2.5 1.5h7M2.5 10.5h7M3.5 1.5c0 3 5 6 5 9M8.5 1.5c0 3-5 6-5 9", cancelling: "M6 1.5a4.5 4.5 0 1 0 .01 0zM3 9l6-6",
  quarantined: "M6 1 1 10.5h10zM6 4.5v3M6 8.6v.6", succeeded: "M1.5 6.5 4.5 9.5 10.5 2.5", failed: "M2 2l8 8M10 2l-8 8", skipped: "M1.5 6h1.5M5.2 6h1.5M9 6h1.5",
};
const LIKE = {
  done: "succeeded", closed: "succeeded", active: "running", half_open: "waiting", open: "failed", finished: "cancelled",
  compensated: "cancelled", compensating: "cancelling", compensation_failed: "failed",
};
const like = (state) => LIKE[state] ?? state;

export const sign = (state, place) => svg("svg.sign", { viewBox: "0 0 12 12", "aria-hidden": "true", ...place }, svg("path", { d: SIGNS[like(state)] }));
export const words = (text) => String(text).replaceAll("_", " ");
export const badge = (state, word = state) => h("span.state", { class: like(state) }, sign(state), words(word));
export const faint = (...children) => h("span.faint", children);
export const code = (text) => text && h("code", text);
export const shorten = (text, limit) => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);

// The style sheet leaves out the middle of a long id, so that a copy of it is whole.
const id = (text) => h("span.id", { title: text }, text.length < 24 ? text : [h("span", text.slice(0, -8)), text.slice(-8)]);
const idLink = (screen, text) => (text ? h("a", { href: link([screen, text]), "aria-label": text, "data-row": true }, id(text)) : "–");
export const runLink = (run) => idLink("runs", run);
export const keyLink = (key) => idLink("keys", key);
export const headOf = (noun, text, actions) => h("div.head", h("h1", faint(noun, " "), h("code", text)), copy(text), h("div.actions", actions));
export const time = (text) => (text ? h("time", { datetime: text, title: text }, relative(text)) : "–");
const copy = (text) => h("button.quiet", { "aria-label": `Copy ${shorten(text, 40)}`, onclick: () => navigator.clipboard.writeText(text).then(() => toast("Copied."), complain) }, "Copy");

export function toast(text, bad) {
  const note = h("p.toast", { class: bad && "error" }, text), box = document.getElementById("toasts");
  box.append(note);
  if (box.childElementCount > 4) box.firstChild.remove();
  setTimeout(() => note.remove(), bad ? 10_000 : 5_000);
}

export const complain = ({ error, message }) => toast(error ? `${error}: ${message}` : message, true);

export const after = { action() {} };

// A disabled button says why.
export const allowed = (role, why = null) => {
  const reason = denied(role);
  return { disabled: (reason ?? why) != null, title: reason ?? why, "aria-describedby": reason && `denied-${role}` };
};

/** Return a button that does something.
 *
 * - `role`: the least role that may do it.  - `why`: why it cannot be done now.  - `sure`: what to ask before.
 * - `dialog`: the dialog, see `ask`.  - `run`: does it; gets the values of the dialog.  - `done`: what to say. */
export const action = (label, { role = "operate", why, sure, name = label, dialog = sure && { title: `${name}?`, text: sure, danger: true }, run, done, kind = sure && "danger" }) => h("button", {
  class: kind, "aria-label": name, ...allowed(role, why),
  onclick: async () => {
    const values = dialog ? await ask({ ok: label, ...dialog }) : {};
    if (!values) return;
    try {
      const { result } = await run(values);
      toast(result === false ? "Nothing changed." : `${done}${typeof result === "number" ? `: ${result}` : ""}.`);
    } catch (error) {
      complain(error);
    }
    after.action();
  },
}, label);

const DONE = { pause: "Paused", resume: "Resumed", release: "Released", redrive: "Redriven", cancel: "The cancellation is stored" };

export const verb = (name, path, label, more) => action(label, { run: () => call("POST", `${path}/${name}`), done: DONE[name], ...more });
export const remove = (path, label, more) => action(label, { role: "admin", run: () => call("DELETE", path), done: "Removed", ...more });

/** Ask in a dialog. Return the values of its fields, or null. A field is `{ name, label, area, value, required, check }`;
 * `check` raises an Error if a value is wrong. `ready` gets the dialog and the button that sends it. */
export const ask = ({ title, text, fields = [], ok, danger, body, ready }) => new Promise((resolve) => {
  let values = null;
  const wrong = h("p.bad", { role: "alert" });
  const inputs = fields.map(({ name, area, value = "", required }) => (area ? h("textarea.mono", { name, rows: 5 }, value) : h("input", { name, value, required })));
  const send = h("button", { class: danger ? "danger" : "primary", type: "submit", "data-confirm": true }, ok), back = h("button", { "data-dismiss": true, onclick: () => box.close() }, "Back");
  const box = h("dialog", { "aria-label": title }, h("form", {
    onsubmit(event) {
      event.preventDefault();
      try {
        fields.forEach((each, i) => each.check?.(inputs[i].value));
        values = Object.fromEntries(inputs.map((each) => [each.name, each.value]));
        box.close();
      } catch (error) {
        wrong.textContent = error.message;
      }
    },
  }, h("h2", title), text && h("p", text), body, fields.map((each, i) => field(each.label, inputs[i])), wrong, h("div.actions.end", back, send)));
  box.onclose = () => {
    box.remove();
    resolve(values);
  };
  document.body.append(box);
  box.showModal();
  (inputs.find((each) => !each.value) ?? (danger ? back : send)).focus();
  ready?.(box, send);
});

export const field = (label, input, about) => h("label.field", h("span", label), input, about && faint(about));

export const facts = (pairs) => h("dl.facts", pairs.filter(([, value]) => value != null && value !== false).map(([name, value]) => h("div", h("dt", name), h("dd", value))));

const options = (found, value) => found.map((each) => h("option", { value: each, selected: each === value }, words(each) || "all"));
export const select = (name, found, value, change) => h("select", { name, value, onchange: ({ target }) => change(target.value) }, options(found, value));

/** Return a form of filters. A field is its name, and more attributes or the values to choose from. */
export const filters = (fields, query, set, ...more) => h("form.filters", { "aria-label": "Filter", onsubmit: (event) => event.preventDefault() }, fields.map(([name, props]) => {
  const value = query[name] ?? "", change = (text) => set({ [name]: text.trim() });
  return h("label", h("span", words(name.replace("_id", ""))), Array.isArray(props) ? select(name, props, value, change) : h("input", { name, value, onchange: ({ target }) => change(target.value), ...props }));
}), more);

export const chips = (label, names, pressed, toggle, content = (name) => name) => h("div.chips", { role: "group", "aria-label": label },
  names.map((name) => h("button.chip", { class: name, "aria-pressed": String(pressed(name)), onclick: () => toggle(name) }, content(name))));

export const explained = ({ cause, sentence, until, holder, holder_key: key }, state = "pending") => h("p.explain", { class: like(state), "data-explain": cause }, sign(state), h("span", sentence),
  until && h("b", time(until)), key ? keyLink(key) : cause === "queued" && runLink(holder));

export const empty = (...children) => h("p.empty", children);

const LONG = 20_000;
const pre = (text, label) => h("pre", { tabindex: 0, role: "group", "aria-label": label }, text);

export function json(value) {
  const text = JSON.stringify(value, null, 2);
  return [pre(text.slice(0, LONG), "JSON"), h("p.faint", text.length > LONG && `The first ${LONG} of ${text.length} characters. `, copy(text))];
}

export const asJson = (text) => (text.trim() ? JSON.parse(text) : null);

export const failure = (found, title = "Error") => found && h("section.failure",
  h("h2", title, " ", code(found.error_type), " ", faint(words(found.kind))), h("p.reason", found.reason),
  found.traceback && h("details", h("summary", "Traceback"), pre(found.traceback, "Traceback")), failure(found.cause, "Caused by"));
