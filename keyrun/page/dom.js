// Elements: builds them, and changes a tree in place. Texts are text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";
const LIVE = new Set(["value", "checked", "disabled", "selected"]);

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "key") node._key = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else {
      node.setAttribute(name, value === true ? "" : value);
      if (LIVE.has(name)) node[name] = value;
    }
  }
  for (const child of children.flat(Infinity))
    if (child != null && child !== false && child !== "") node.append(child);
  return node;
}

/** Return an HTML element. Handlers are `onclick` and so on, `key` keeps it in place in a list. */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** Return an SVG element. */
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown", "onscroll", "onpointermove", "onpointerleave", "ontoggle"];

function same(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && old._key === fresh._key;
}

function change(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "style") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (name !== "style" && name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  for (const name of HANDLERS) old[name] = fresh[name];
  if ("disabled" in old) old.disabled = fresh.disabled;
  // What a person types stays until the field has another value from elsewhere.
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(old.nodeName)) {
    renew(old, fresh);
    if (old.nodeName !== "SELECT") return;
  }
  patch(old, [...fresh.childNodes]);
  if (old.nodeName === "SELECT" && document.activeElement !== old) old.value = fresh.value;
}

function renew(old, fresh) {
  const given = fresh.getAttribute("value");
  if (given !== old._given && document.activeElement !== old) {
    old.value = fresh.value;
    old.checked = fresh.checked;
  }
  old._given = given;
}

/** Make the children of a node those that are given, and keep the elements that are still there. */
export function patch(node, children) {
  children = children.flat(Infinity).filter((each) => each != null && each !== false && each !== "");
  children = children.map((each) => (each instanceof Node ? each : document.createTextNode(each)));
  const keyed = new Map();
  for (const each of node.childNodes) if (each._key !== undefined) keyed.set(each._key, each);
  let at = node.firstChild;
  for (const fresh of children) {
    const known = fresh._key === undefined ? at : keyed.get(fresh._key);
    if (known && (known === fresh || same(known, fresh))) {
      if (known !== at) node.insertBefore(known, at);
      else at = at.nextSibling;
      if (known !== fresh) change(known, fresh);
    } else if (at && at._key === undefined && fresh._key === undefined) {
      const next = at.nextSibling;
      node.replaceChild(fresh, at);
      at = next;
    } else node.insertBefore(fresh, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
