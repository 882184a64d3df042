// Start a run, with a form of its workflow's input.

import { get, newId, post } from "./api.js";
import { h } from "./dom.js";
import { formOf } from "./form.js";
import { go, link } from "./router.js";
import { denied } from "./session.js";
import { asJson, empty, toast } from "./ui.js";

function build(info) {
  const fields = Object.fromEntries([["key", "Key", true], ["run_id", "Run id"], ["tags", "Tags, with commas"], ["delay", "Delay in seconds"]].map(([name, label, required]) => [name, [h("input", { id: `start-${name}`, name, required, autocomplete: "off", spellcheck: "false" }), label]]));
  const priority = h("select", { id: "start-priority", name: "priority" }, ["normal", "high", "low"].map((each) => h("option", { value: each }, each)));
  const field = (input, label, required) => h("div", { class: "field" }, h("label", { for: input.id }, h("span", {}, label, !required && h("span", { class: "faint" }, " optional"))), input);
  const area = h("textarea", { id: "start-json", rows: 8, class: "id", spellcheck: "false", "aria-label": "Input as JSON", placeholder: "null" });
  const form = info.input_schema && formOf(info.input_schema);
  const input = h("div", {}, form ? form.node : field(area, "Input (JSON)"));
  const error = h("p", { class: "bad", role: "alert" });
  let asText = !form, id = newId();
  const read = () => {
    if (!asText) return form.read();
    const { value, wrong } = asJson(area.value);
    if (wrong) throw new Error(wrong);
    return value;
  };
  const reason = denied("submit");
  return h("form", {
    key: `${info.name} ${info.version}`, class: "start",
    onsubmit: async (event) => {
      event.preventDefault();
      error.textContent = "";
      try {
        const given = Object.fromEntries(Object.entries(fields).map(([name, [box]]) => [name, box.value.trim()]));
        const delay = Number(given.delay);
        if (!(delay >= 0)) throw new Error(`Delay requires seconds, got ${given.delay}`);
        const run = await post("/runs", {
          workflow: info.name, input: read(), key: fields.key[0].value, priority: priority.value, delay, nowait: true, tags: given.tags ? given.tags.split(",").map((each) => each.trim()).filter(Boolean) : [],
          ...(given.run_id && { run_id: given.run_id }),
        }, given.run_id ? {} : { "idempotency-key": id });
        toast(run.newly_submitted ? `Started ${run.run_id}.` : `The run ${run.run_id} existed already.`);
        id = newId();
        go(link(["runs", run.run_id]));
      } catch (wrong) {
        error.textContent = wrong.message;
      }
    },
  },
  info.description && h("p", {}, info.description), field(fields.key[0], "Key", true), input,
  form && h("button", {
    type: "button", class: "quiet", onclick: (event) => {
      asText = !asText;
      event.target.textContent = asText ? "Use the form" : "Write JSON";
      if (asText) try { area.value = JSON.stringify(form.read(), null, 2); } catch { area.value = ""; }
      input.replaceChildren(asText ? area : form.node);
    },
  }, "Write JSON"),
  h("details", {}, h("summary", {}, "More"), ["run_id", "tags", "delay"].map((name) => field(...fields[name])), field(priority, "Priority")),
  error, h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary", disabled: reason != null, title: reason, "aria-describedby": reason && "denied-submit" }, "Start the run")));
}

export default {
  title: "Start a run",
  every: 3_600_000,
  async load({ data, signal }) {
    if (data) return data;
    const latest = new Map();
    for (const each of (await get("/workflows", {}, signal)).result) latest.set(each.name, each);
    return [...latest.values()];
  },
  view({ data, query, set, local }) {
    const info = data.find((each) => each.name === query.workflow) ?? data[0];
    if (info && local.of !== info.name) Object.assign(local, { of: info.name, form: build(info) });
    return [
      h("div", { class: "head" }, h("h1", {}, "Start a run")),
      !info ? empty("The runtime has no workflow.") : [
        h("div", { class: "field start" }, h("label", { for: "workflow" }, h("span", {}, "Workflow")), h("select", { id: "workflow", value: info.name, onchange: (event) => set({ workflow: event.target.value }) }, data.map((each) => h("option", { value: each.name, selected: each === info }, each.name)))),
        local.form,
      ],
    ];
  },
};
