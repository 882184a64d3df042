// Forms from JSON schemas. What a form has no field for is a field for JSON.

import { h } from "./dom.js";
import { asJson } from "./ui.js";

let fields = 0;

/** Return a form for a schema as `{ node, read }`. `read` returns the value, or raises an Error that names
 * the field; `undefined` means that the field is left out. */
export function formOf(schema, root = schema, label = "Input", required = true) {
  const found = plain(schema, root);
  const kind = found.type ?? (found.enum ? "enum" : found.const !== undefined ? "const" : null);
  if (kind === "object" && found.properties && Object.keys(found.properties).length) return objectForm(found, root, label);
  if (kind === "array" && found.items && !found.prefixItems) return arrayForm(found, root, label);
  return leaf(found, kind, label, required);
}

/** Return a schema without references, and without the forms that only a program writes. */
function plain(schema, root) {
  let found = schema, optional = false;
  for (let i = 0; i < 20; i++) {
    if (found.$ref) found = { ...root.$defs?.[found.$ref.split("/").pop()], ...without(found, "$ref") };
    else if (found.anyOf || found.oneOf) {
      const options = (found.anyOf ?? found.oneOf).filter((each) => !/^#\/\$defs\/\$/.test(each.$ref ?? ""));
      const others = options.filter((each) => each.type !== "null");
      optional ||= others.length < options.length;
      if (others.length !== 1) return { optional };
      found = { ...without(without(found, "anyOf"), "oneOf"), ...others[0] };
    } else break;
  }
  return { ...found, optional };
}

const without = (object, name) => Object.fromEntries(Object.entries(object).filter(([each]) => each !== name));

function objectForm(schema, root, label) {
  const parts = Object.entries(schema.properties).map(([name, each]) => [name, formOf(each, root, name, schema.required?.includes(name))]);
  return {
    node: h("fieldset", {}, h("legend", {}, label), schema.description && h("p", { class: "faint" }, schema.description), parts.map(([, each]) => each.node)),
    read() {
      const value = {};
      for (const [name, each] of parts) {
        const one = each.read();
        if (one !== undefined) value[name] = one;
      }
      return value;
    },
  };
}

function arrayForm(schema, root, label) {
  const parts = [], list = h("div", {});
  const add = () => {
    const part = formOf(schema.items, root, `${label} ${parts.length + 1}`);
    const row = h("div", { class: "item" }, part.node, h("button", { type: "button", class: "quiet", "aria-label": `Remove from ${label}`, onclick: () => { parts.splice(parts.indexOf(part), 1); row.remove(); } }, "Remove"));
    parts.push(part);
    list.append(row);
  };
  if (schema.minItems) add();
  return { node: h("fieldset", {}, h("legend", {}, label), list, h("button", { type: "button", onclick: add, "aria-label": `Add to ${label}` }, "Add")), read: () => parts.map((each) => each.read()) };
}

function leaf(schema, kind, label, required) {
  const id = `field-${fields++}`;
  const given = schema.default;
  let input, value;
  const fail = (why) => { input.focus(); throw new Error(`${label}: ${why}`); };
  if (kind === "const" || schema.const !== undefined) return { node: null, read: () => schema.const };
  if (schema.enum) {
    input = h("select", { id }, !required && h("option", { value: "" }, "–"), schema.enum.map((each) => h("option", { value: JSON.stringify(each), selected: each === given }, String(each))));
    value = (text) => JSON.parse(text);
  } else if (kind === "boolean") {
    input = h("select", { id }, !required && h("option", { value: "" }, "–"), ["false", "true"].map((each) => h("option", { value: each, selected: String(given) === each }, each)));
    value = (text) => text === "true";
  } else if (kind === "integer" || kind === "number") {
    input = h("input", { id, inputmode: "decimal", value: given ?? "", autocomplete: "off" });
    value = (text) => {
      const found = Number(text);
      if (kind === "integer" && /^-?\d+$/.test(text) && !Number.isSafeInteger(found)) return { $int: text };
      if (Number.isNaN(found) || (kind === "integer" && !Number.isInteger(found))) fail(`requires ${kind === "integer" ? "an integer" : "a number"}, got ${text}`);
      return found;
    };
  } else if (kind === "string") {
    input = h(schema.format || schema.enum ? "input" : "textarea", { id, rows: 1, value: given ?? "", type: schema.format === "date" ? "date" : "text", placeholder: { "date-time": "2026-01-31T14:00:00Z", decimal: "1.20", uuid: "UUID" }[schema.format], autocomplete: "off", spellcheck: "false" });
    value = (text) => text;
  } else {
    input = h("textarea", { id, rows: label === "Input" ? 8 : 2, class: "id", spellcheck: "false", placeholder: "JSON" }, given === undefined ? "" : JSON.stringify(given));
    value = (text) => { const { value: found, wrong } = asJson(text); return wrong ? fail(wrong) : found; };
  }
  return {
    node: h("div", { class: "field" }, h("label", { for: id }, h("span", {}, label, required ? "" : h("span", { class: "faint" }, " optional"), kind && h("span", { class: "faint" }, ` ${schema.format ?? kind}`))), input, schema.description && h("p", { class: "faint" }, schema.description)),
    read() {
      const text = input.value;
      if (text === "" && !(kind === "string" && required && !schema.optional && !schema.format)) {
        if (!required) return undefined;
        if (schema.optional || kind == null || kind === "object") return kind === "object" && !schema.optional ? {} : null;
        fail("requires a value");
      }
      return value(text);
    },
  };
}
