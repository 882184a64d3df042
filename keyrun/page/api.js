// The HTTP API: requests below the address of the page, errors as `Problem`, and the connection.

import { setClock } from "./time.js";

/** An answer that is an error. `status` is 0 if there was no answer. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? `the server answered ${status}`);
    this.status = status;
    this.error = body.error ?? "";
  }

  /** Whether the server is not there, or not ready, so that the same request may work later. */
  get passing() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

/** What the page knows about the connection: `live`, `polling` (a stream was cut) or `lost`. */
export const connection = { state: "live", since: Date.now(), reason: "", changed: () => {} };

/** Set the state of the connection. */
export function setConnection(state, reason = "") {
  if (connection.state === state && connection.reason === reason) return;
  if (connection.state !== state) connection.since = Date.now();
  Object.assign(connection, { state, reason });
  connection.changed();
}

/** Return a path with its parts encoded: `at("runs", id)` is `/runs/…`. */
export const at = (...parts) => parts.map((each) => "/" + encodeURIComponent(each)).join("");

/** Return arguments as a query string. Arrays are repeated, and empty values are left out. */
export function query(values) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(values ?? {}))
    for (const each of [value].flat()) if (each != null && each !== "") found.append(name, each);
  const text = found.toString();
  return text && "?" + text;
}

/** Send a request, and return the JSON of its answer. */
export async function call(method, path, values, { signal, headers } = {}) {
  const asText = method === "GET" || method === "DELETE";
  const init = { method, signal, headers: { ...headers }, cache: "no-store" };
  if (method !== "GET") init.headers["content-type"] = "application/json";
  if (!asText) init.body = JSON.stringify(values ?? {});
  let answer, body;
  try {
    answer = await fetch("v1" + path + (asText ? query(values) : ""), init);
    body = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const detail = answer ? `the server answered ${answer.status} without JSON` : "the server does not answer";
    const problem = new Problem(answer?.status ?? 0, { detail });
    if (problem.passing) setConnection("lost", detail);
    throw problem;
  }
  if (answer.headers.has("date")) setClock(answer.headers.get("date"));
  if (!answer.ok) {
    const problem = new Problem(answer.status, body);
    if (problem.passing && method === "GET") setConnection("lost", problem.message);
    throw problem;
  }
  if (connection.state === "lost") setConnection("live");
  return body;
}

export const get = (path, values, signal) => call("GET", path, values, { signal });
export const post = (path, values, headers) => call("POST", path, values, { headers });

/** Return a random id for a request that may be repeated. */
export const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(12))].map((each) => each.toString(16).padStart(2, "0")).join("");

/** Call `load` again and again: once a second, more slowly if it takes long, and never from a hidden
 * tab. Return an object with `stop` and `soon`. */
export function poll(load, every = 1000) {
  let timer, stopped = false, busy = false, again = false;
  const control = new AbortController();
  async function turn() {
    clearTimeout(timer);
    if (stopped || document.hidden) return;
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    const began = performance.now();
    try {
      await load(control.signal);
    } finally {
      busy = false;
      const took = performance.now() - began;
      const wait = again ? 0 : Math.max(every - took, Math.min(5000, took * 4));
      again = false;
      if (!stopped) timer = setTimeout(turn, wait);
    }
  }
  const seen = () => document.hidden || turn();
  document.addEventListener("visibilitychange", seen);
  turn();
  return {
    soon: turn,
    stop() {
      stopped = true;
      clearTimeout(timer);
      control.abort();
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
