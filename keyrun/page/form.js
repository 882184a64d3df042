// Forms from JSON schemas. What has no field of its own is a field for JSON.

import { asJson, faint, field, h } from "./kit.js";

/** Return a form for a schema as `{ node, read }`. `read` returns the value, or raises an Error that names the field.
 * `undefined` means that the field is left out. */
export function formOf(schema, root = schema, label = "Input", required = true) {
  const { optional, ...found } = plain(schema, root);
  if (found.properties) return objectForm(found, root, label);
  if (found.items && !found.prefixItems) return arrayForm(found, root, label);
  const input = inputOf(found, required, label), { type } = found;
  return {
    node: field([label, !required && faint(" optional"), faint(" ", found.format ?? type)], input, found.description),
    read() {
      const text = input.value, bad = (why) => { input.focus(); throw new Error(`${label}: ${why}`); };
      if (!text && !(type === "string" && required && !found.format && !optional)) return !required ? undefined : optional || !type || type === "null" ? null : type === "object" ? {} : bad("requires a value");
      if (type === "string") return text;
      if (type === "integer") return !/^[+-]?\d+$/.test(text) ? bad(`requires an integer, got ${text}`) : text.length > 15 ? { $int: text } : Number(text);
      if (type === "number" && Number.isNaN(Number(text))) bad(`requires a number, got ${text}`);
      try {
        return asJson(text);
      } catch (error) {
        return bad(error.message);
      }
    },
  };
}

// Without references, and without the forms that only a program writes.
function plain(schema, root) {
  let { $ref: ref, anyOf, oneOf, ...found } = schema, options = anyOf ?? oneOf;
  if (ref) return plain({ ...root.$defs?.[ref.split("/").pop()], ...found }, root);
  if (!options) return found;
  options = options.filter((each) => !each.$ref?.startsWith("#/$defs/$"));
  const others = options.filter((each) => each.type !== "null");
  return { ...(others.length === 1 && plain({ ...others[0], ...found }, root)), optional: others.length < options.length };
}

function objectForm({ properties, required = [], description }, root, label) {
  const parts = Object.entries(properties).map(([name, each]) => [name, formOf(each, root, name, required.includes(name))]);
  return { node: h("fieldset", h("legend", label), faint(description), parts.map(([, each]) => each.node)), read: () => Object.fromEntries(parts.map(([name, each]) => [name, each.read()]).filter(([, value]) => value !== undefined)) };
}

function arrayForm({ items }, root, label) {
  const parts = new Set(), list = h("div");
  const add = () => {
    const part = formOf(items, root, `${label} ${parts.size + 1}`);
    const row = h("div.item", part.node, h("button.quiet", { "aria-label": `Remove from ${label}`, onclick: () => { parts.delete(part); row.remove(); } }, "Remove"));
    parts.add(part);
    list.append(row);
  };
  return { node: h("fieldset", h("legend", label), list, h("button", { "aria-label": `Add to ${label}`, onclick: add }, "Add")), read: () => [...parts].map((each) => each.read()) };
}

function inputOf({ type, format, default: given, enum: values = type === "boolean" ? [false, true] : null, const: fixed }, required, label) {
  const text = (value) => (type === "string" ? value : JSON.stringify(value)), value = given === undefined ? "" : text(given);
  if (values || fixed !== undefined) return h("select", !required && h("option", { value: "" }, "–"), (values ?? [fixed]).map((each) => h("option", { value: text(each), selected: each === given }, String(each))));
  if (/string|integer|number/.test(type)) return h("input", { value, type: format === "date" ? "date" : "text", placeholder: format === "date-time" && "2026-01-31T14:00:00Z" });
  return h("textarea.mono", { rows: 4, placeholder: "JSON" }, value);
}
