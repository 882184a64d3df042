// Addresses: the hash holds the screen, its object and its filter.

import { at, query } from "./api.js";

export function parse() {
  const [path, text = ""] = location.hash.replace(/^#?\/?/, "").split(/\?(.*)/s), found = {};
  for (const [name, value] of new URLSearchParams(text)) found[name] = name in found ? [found[name], value].flat() : value;
  return { path: path.split("/").map(decoded), query: found };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const link = (path, values) => "#" + at(...path) + query(values);

export function go(hash, replace = false) {
  if (!replace) location.hash = hash;
  else {
    history.replaceState(null, "", hash);
    dispatchEvent(new Event("hashchange"));
  }
}
