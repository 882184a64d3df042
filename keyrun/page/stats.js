// Statistics: asks once a second, on every screen, and keeps the last minutes for the charts.

import { get, poll } from "./api.js";
import { now } from "./time.js";

const KEPT = 240;

/** The latest statistics, or null, and those before as `{ at, value }`. */
export const stats = { latest: null, past: [], changed: () => {} };

/** Begin to ask. Errors change the state of the connection only. */
export function watchStatistics(failed) {
  return poll(async (signal) => {
    try {
      const value = await get("/overview", {}, signal);
      stats.latest = value;
      stats.past.push({ at: now(), value });
      if (stats.past.length > KEPT) stats.past.shift();
      stats.changed();
    } catch (error) {
      if (error.name !== "AbortError") failed(error);
    }
  });
}

/** Return the values of a gauge over time. */
export const gauge = (read) => stats.past.map(({ at, value }) => [at, read(value) ?? null]);

/** Return how a counter grew per second over time. */
export const rate = (read) =>
  stats.past.slice(1).map(({ at, value: after }, index) => {
    const { at: began, value: before } = stats.past[index];
    const more = read(after) - read(before);
    // A counter that begins again belongs to a runtime that has opened since.
    return [at, at - began > 5000 || !(more >= 0) ? null : more / ((at - began) / 1000)];
  });

/** Return the time below which a share of the commits took, in the last seconds, over time. */
export const latency = (share) =>
  stats.past.map(({ at, value }, index) => {
    const before = stats.past[Math.max(0, index - 10)].value.commit_seconds;
    const found = value.commit_seconds;
    if (!found || !before) return [at, null];
    const counts = found.cumulative.map((each, i) => each - before.cumulative[i]);
    const total = counts.at(-1);
    if (!(total > 0)) return [at, null];
    const i = counts.findIndex((each) => each >= share * total);
    if (i >= found.bounds.length) return [at, found.bounds.at(-1)];
    const low = i ? found.bounds[i - 1] : 0, under = i ? counts[i - 1] : 0;
    return [at, low + ((share * total - under) / (counts[i] - under)) * (found.bounds[i] - low)];
  });
