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
      const value = await get("/statistics", {}, signal);
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
export const rate = (read) => grown(read, (more, seconds) => more / seconds);

/** Return how one counter grew for each unit by which another grew. */
export const mean = (read, per) =>
  grown(read, (more, _, before, after) => (per(after) > per(before) ? more / (per(after) - per(before)) : null));

function grown(read, value) {
  return stats.past.slice(1).map(({ at, value: after }, index) => {
    const { at: began, value: before } = stats.past[index];
    const more = read(after) - read(before);
    // A counter that begins again belongs to a runtime that has opened since.
    return [at, at - began > 5000 || !(more >= 0) ? null : value(more, (at - began) / 1000, before, after)];
  });
}
