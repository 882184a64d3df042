// Addresses: the hash holds the screen, its object and its filter.

/** Return the parts of the hash: `#/runs/r1?tab=data` has the path `["runs", "r1"]`. */
export function parse(hash = location.hash) {
  const [path, text] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const query = {};
  for (const [name, value] of new URLSearchParams(text ?? "")) {
    if (name in query) query[name] = [query[name], value].flat();
    else query[name] = value;
  }
  return { path: path.split("/").map(decoded), query };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return the address of a screen: `link(["runs"], { state: "failed" })`. */
export function link(path, values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values ?? {}))
    for (const each of [value].flat()) if (each != null && each !== "") found.append(name, each);
  const text = found.toString();
  return "#/" + path.map(encodeURIComponent).join("/") + (text && "?" + text);
}

/** Go to an address. */
export function go(hash, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = hash;
}
