// The session: who looks at the page, and what they may do.

import { call, get, post } from "./api.js";

const ROLES = ["read", "submit", "operate", "admin"];

/** Who looks at the page, as `/v1/session` says. */
export const session = { name: "", role: "", namespace: "", version: "", read_only: null };

/** Exchange the token in the address for a cookie, and remove it from the address. */
export async function exchange() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", "#/");
  await logIn(decodeURIComponent(found[1]));
}

/** Exchange a token for a cookie. */
export const logIn = (token) => post("/session", {}, { authorization: `Bearer ${token}` });

/** End the session. */
export const logOut = () => call("DELETE", "/session");

/** Learn who looks at the page. */
export async function learn(signal) {
  Object.assign(session, await get("/session", {}, signal));
  for (const role of ROLES) document.getElementById(`denied-${role}`).textContent = denied(role) ?? "";
}

/** Return why the page may not do what a role may do, or null if it may. */
export function denied(role) {
  if (session.read_only && role !== "read") return session.read_only;
  if (ROLES.indexOf(session.role) >= ROLES.indexOf(role)) return null;
  return `This requires the role ${role}. Your role is ${session.role || "unknown"}.`;
}
