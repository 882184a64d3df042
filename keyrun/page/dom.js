// Elements: builds them, and changes a tree in place. Texts are text nodes, never markup.

const isProps = (value) => value?.constructor === Object;

function make(node, classes, [props, ...children]) {
  if (!isProps(props)) children.unshift(props);
  else for (const [name, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) (node._on ??= {})[name] = node[name] = value;
    else if (name === "key") node._key = value;
    else if (name === "tall") node.style.height = value;
    else {
      node.setAttribute(name, value === true ? "" : value);
      if (name === "value") node.value = node._given = String(value);
    }
  }
  if (classes.length) node.setAttribute("class", [...classes, node.getAttribute("class") ?? ""].join(" ").trim());
  node.append(...flat(children));
  return node;
}

const flat = (children) => children.flat(Infinity).filter((each) => each != null && each !== false && each !== "");

/** Return an HTML element: `h("td.wide", { title }, …)`. `key` keeps it in place in a list. */
export function h(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (tag === "button") node.type = "button";
  return make(node, classes, rest);
}

export function svg(name, ...rest) {
  const [tag, ...classes] = name.split(".");
  return make(document.createElementNS("http://www.w3.org/2000/svg", tag), classes, rest);
}

function change(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // A person changes `open`, and the content security policy forbids to set `style`.
  const own = ({ name }) => name !== "open" && name !== "style";
  for (const { name } of [...old.attributes].filter(own)) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes].filter(own)) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  for (const name in { ...old._on, ...fresh._on }) old[name] = fresh[name];
  old._on = fresh._on;
  const typed = /^(INPUT|SELECT|TEXTAREA)$/.test(old.nodeName), given = fresh.getAttribute("value");
  if (!typed || old.nodeName === "SELECT") patch(old, [...fresh.childNodes]);
  // What a person types stays until the screen has another value.
  if (typed && (old._given ?? null) !== given) {
    old.value = fresh.value;
    old._given = given;
  }
}

/** Make the children of a node those that are given, and keep the elements that are still there. */
export function patch(node, children) {
  const keyed = new Map([...node.childNodes].map((each) => [each._key, each]));
  let at = node.firstChild;
  for (const each of flat(children)) {
    const fresh = each instanceof Node ? each : document.createTextNode(each);
    const known = fresh._key === undefined ? at : keyed.get(fresh._key);
    if (known === fresh || (known && known.nodeName === fresh.nodeName && known._key === fresh._key)) {
      if (known === at) at = at.nextSibling;
      else node.insertBefore(known, at);
      if (known !== fresh) change(known, fresh);
    } else if (at && at._key === undefined) {
      const next = at.nextSibling;
      at.replaceWith(fresh);
      at = next;
    } else node.insertBefore(fresh, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
