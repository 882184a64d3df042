// The HTTP API: requests below the address of the page, errors as `Problem`, and the connection.

class Problem extends Error {
  constructor(status, { detail, error = "" }) {
    super(detail);
    // The same request may work later if the server is not there or not ready.
    Object.assign(this, { status, error, passing: [0, 502, 503, 504].includes(status) });
  }
}

/** The connection: `live`, `polling` (a stream was cut) or `lost`. */
export const connection = { state: "", reason: "", changed() {} };

export function setConnection(state, reason = "") {
  if (connection.state === state) return;
  Object.assign(connection, { state, reason });
  connection.changed();
}

export const at = (...parts) => parts.map((each) => "/" + encodeURIComponent(each)).join("");

export function query(values = {}) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    for (const each of [value].flat()) if (each != null && each !== "") found.append(name, each);
  return found.size ? `?${found}` : "";
}

export async function call(method, path, values, { signal, headers } = {}) {
  const init = { method, signal, headers: { ...headers }, cache: "no-store" };
  if (method !== "GET") init.headers["content-type"] = "application/json";
  if (method === "POST") init.body = JSON.stringify(values ?? {});
  else path += query(values);
  let status = 0, body;
  try {
    const answer = await fetch("v1" + path, init);
    body = await answer.json();
    ({ status } = answer);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    body = { detail: "the server does not answer" };
  }
  if (status !== 200) {
    const problem = new Problem(status, body);
    if (problem.passing && method === "GET") setConnection("lost", problem.message);
    throw problem;
  }
  if (connection.state === "lost") setConnection("live");
  return body;
}

export const get = (path, values, signal) => call("GET", path, values, { signal });
export const post = (path, values, headers) => call("POST", path, values, { headers });

export const newId = () => `${Date.now()}-${Math.random().toString(36).slice(2)}`;

/** Call `load` again and again: each second, more slowly if it takes long, and never from a hidden tab.
 * Return an object with `soon` and `stop`. */
export function poll(load, every = 1000) {
  const control = new AbortController(), { signal } = control;
  let timer, busy = false, again = false;
  async function soon() {
    clearTimeout(timer);
    if (signal.aborted || document.hidden) return;
    again = busy;
    if (busy) return;
    busy = true;
    const began = performance.now();
    await load(signal);
    const took = performance.now() - began;
    busy = false;
    timer = setTimeout(soon, again ? 0 : Math.max(every - took, Math.min(5000, took * 4)));
  }
  document.addEventListener("visibilitychange", soon, { signal });
  soon();
  return { soon, stop: () => { clearTimeout(timer); control.abort(); } };
}
