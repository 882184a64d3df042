// Statistics: asks once a second, on every screen, and keeps the last minutes for the charts.

import { get, poll } from "./api.js";
import { now } from "./time.js";

const KEPT = 240;

// The last answers of `/v1/overview`, as `[time, answer]`.
export const stats = { latest: null, past: [], changed() {} };

export const watchStatistics = (failed) => poll(async (signal) => {
  try {
    stats.latest = await get("/overview", {}, signal);
    stats.past = [...stats.past.slice(1 - KEPT), [now(), stats.latest]];
    stats.changed();
  } catch (error) {
    failed(error);
  }
});

export const gauge = (read) => stats.past.map(([at, value]) => [at, read(value) ?? null]);

export const rate = (read) => stats.past.slice(1).map(([at, after], index) => {
  const [began, before] = stats.past[index], more = read(after) - read(before);
  // A counter that begins again belongs to a runtime that has opened since.
  return [at, at - began < 5000 && more >= 0 ? (more * 1000) / (at - began) : null];
});

export const latency = (share) => stats.past.map(([at, { commit_seconds: after }], index) => {
  const before = stats.past[Math.max(0, index - 10)][1].commit_seconds;
  const counts = after && before ? after.cumulative.map((each, i) => each - before.cumulative[i]) : [0];
  const wanted = share * counts.at(-1), i = counts.findIndex((each) => each >= wanted);
  if (!(wanted > 0)) return [at, null];
  const low = after.bounds[i - 1] ?? 0, under = counts[i - 1] ?? 0;
  return [at, low + ((wanted - under) / (counts[i] - under)) * ((after.bounds[i] ?? low) - low)];
});
