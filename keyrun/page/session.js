// The session: who looks at the page, and what they may do.

import { get, post } from "./api.js";

const ROLES = ["read", "submit", "operate", "admin"];

export const session = {};

export const logIn = (token) => post("/session", {}, { authorization: `Bearer ${token}` });

export async function exchange() {
  const found = /^#token=([^&]+)/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", "#/");
  await logIn(decodeURIComponent(found[1]));
}

export async function learn() {
  Object.assign(session, await get("/session"));
  for (const role of ROLES.slice(1)) document.getElementById(`denied-${role}`).textContent = denied(role) ?? "";
}

export function denied(role) {
  if (session.read_only) return session.read_only;
  return ROLES.indexOf(session.role) >= ROLES.indexOf(role) ? null : `This requires the role ${role}. Your role is ${session.role}.`;
}
