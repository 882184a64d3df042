// Start a run, with a form of its workflow's input.

import { formOf } from "./form.js";
import { allowed, empty, faint, field, get, go, h, head, link, newId, post, select, toast } from "./kit.js";

function build({ name, description, input_schema: schema }) {
  const [key, run, tags] = ["key", "run_id", "tags"].map((id) => h("input", { name: id, required: id === "key" }));
  const priority = select("priority", ["normal", "high", "low"], "normal", () => {});
  const form = formOf(schema ?? {}), wrong = h("p.bad", { role: "alert" });
  let id = newId();
  const send = async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    try {
      const run_id = run.value.trim();
      const values = { workflow: name, input: form.read(), key: key.value, priority: priority.value, nowait: true, tags: tags.value.split(",").map((each) => each.trim()).filter(Boolean) };
      const found = await post("/runs", run_id ? { ...values, run_id } : values, run_id ? {} : { "idempotency-key": id });
      toast(found.newly_submitted ? "Started." : "This run existed already.");
      id = newId();
      go(link(["runs", found.run_id]));
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const optional = (label) => [label, faint(" optional")];
  return h("form.start", { key: name, onsubmit: send }, h("p", description), field("Key", key), form.node,
    h("details", h("summary", "More"), field(optional("Run id"), run), field(optional("Tags, with commas"), tags), field("Priority", priority)),
    wrong, h("p", h("button.primary", { type: "submit", ...allowed("submit") }, "Start the run")));
}

export default {
  title: "Start a run",
  every: 3_600_000,
  load: async ({ data, signal }) => data ?? [...new Map((await get("/workflows", {}, signal)).result.map((each) => [each.name, each])).values()],
  view({ data, query, set, local }) {
    const info = data.find((each) => each.name === query.workflow) ?? data[0];
    if (info && local.name !== info.name) Object.assign(local, { name: info.name, form: build(info) });
    return [head("Start a run"), info ? [
      h("div.start", field("Workflow", select("workflow", data.map((each) => each.name), info.name, (workflow) => set({ workflow })))), local.form,
    ] : empty("The runtime has no workflow.")];
  },
};
