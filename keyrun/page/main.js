// The page: shows the screen of the address, asks again and again, and handles the keyboard.

import { connection, get, poll, Problem, setConnection } from "./api.js";
import { h, patch } from "./dom.js";
import approvals from "./approvals.js";
import audit from "./audit.js";
import events from "./events.js";
import * as groups from "./groups.js";
import * as keys from "./keys.js";
import overview from "./overview.js";
import { go, link, parse } from "./router.js";
import policies from "./policies.js";
import run from "./run.js";
import runs from "./runs.js";
import schedules from "./schedules.js";
import { denied, exchange, learn, logIn, logOut, session } from "./session.js";
import { stats, watchStatistics } from "./stats.js";
import start from "./start.js";
import { number } from "./time.js";
import { letters, quarantine } from "./trouble.js";
import { ask, complain, empty, onAction, toast } from "./ui.js";

// By the first part of the address: the screen of the list, and that of one object.
const SCREENS = {
  "": [overview],
  runs: [runs, run],
  "dead-letters": [letters],
  quarantine: [quarantine],
  approvals: [approvals],
  schedules: [schedules],
  groups: [groups.list, groups.one],
  policies: [policies],
  events: [events],
  audit: [audit],
  start: [start],
  keys: [keys.list, keys.one],
};
const NAV = [
  ["", "Overview"], ["runs", "Runs"], ["keys", "Keys"], ["dead-letters", "Dead letters", (s) => s.dead_letters],
  ["quarantine", "Quarantine", (s) => (s.runs?.quarantined ?? 0) + (s.statistics?.quarantined_keys ?? 0)], ["approvals", "Approvals"], ["schedules", "Schedules"],
  ["groups", "Groups"], ["policies", "Policies", (s) => s.statistics?.circuits.filter((each) => each.state === "open").length],
  ["events", "Live events"], ["audit", "Audit"], ["start", "Start a run"],
];

const by = (id) => document.getElementById(id);
const main = by("screen");
let open = null;

/** Show the screen of the address. A screen has `load`, which returns its data, and `view`, which
 * returns its elements. `open` and `close` are for what lasts as long as the screen. */
function show() {
  const { path, query } = parse();
  const [list, one] = SCREENS[path[0]] ?? [];
  const screen = path.length > 1 ? one : list;
  const name = path[0] || "overview";
  const again = open && open.screen === screen && open.context.path.join("/") === path.join("/");
  const former = open;
  former?.poll.stop();
  if (!again) former?.screen.close?.(former.context);
  if (!screen) {
    patch(main, [h("h1", {}, "No such screen"), empty("There is no screen at this address. ", h("a", { href: "#/" }, "Overview"))]);
    open = null;
    return;
  }
  const context = {
    path, query, id: path.slice(1).join("/"), data: again ? former.context.data : null, local: again ? former.context.local : {},
    redraw: () => open?.context === context && context.data && draw(),
    reload: () => open?.context === context && open.poll.soon(),
    set: (values, options) => go(link(path, { ...query, cursor: null, ...values }), options),
  };
  const draw = () => {
    patch(main, [screen.view(context)]);
    main.setAttribute("aria-busy", "false");
    document.title = `${typeof screen.title === "function" ? screen.title(context) : screen.title} · Keyrun`;
  };
  if (!again) {
    main.dataset.screen = one && screen === one ? name.replace(/s$/, "") : name;
    screen.open?.(context);
    patch(main, [h("p", { class: "loading" }, "Loading…")]);
    scrollTo(0, 0);
    if (former) main.focus({ preventScroll: true });
  }
  main.setAttribute("aria-busy", "true");
  open = { screen, context };
  open.poll = poll(async (signal) => {
    try {
      context.data = await screen.load({ ...context, data: context.data, signal });
      if (open?.context === context) draw();
    } catch (error) {
      if (error.name !== "AbortError" && open?.context === context) failed(error, context);
    }
  }, screen.every ?? 1000);
  mark();
}

function failed(error, context) {
  if (!(error instanceof Problem)) {
    console.error(error);
    complain(error);
    return;
  }
  if (error.status === 401) return logInScreen(error);
  if (error.passing && context?.data) return;
  main.setAttribute("aria-busy", "false");
  const title = error.passing ? "No connection" : error.status === 404 ? "Not found" : error.status === 403 ? "Not allowed" : "Error";
  patch(main, [h("h1", {}, title), empty(error.message)]);
  // What is shown is not the data any more.
  if (context) context.data = null;
}

function logInScreen(error) {
  open?.poll.stop();
  open = null;
  statistics?.stop();
  statistics = null;
  main.dataset.screen = "session";
  main.setAttribute("aria-busy", "false");
  document.title = "Keyrun";
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  main.replaceChildren(h("form", {
    class: "login",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await logIn(field.value.trim());
        await begin();
      } catch (problem) {
        complain(problem);
      }
    },
  },
  h("h1", {}, "Log in"), h("p", {}, "This page needs a token of the server. keyrun serve prints an address that has one; the file of tokens is ", h("code", {}, "tokens"), " in the directory of the store."),
  h("label", { class: "field" }, h("span", {}, "Token"), field), h("p", { class: "faint" }, error.message),
  h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Log in"))));
  field.focus();
}

/** Mark the present screen, and what needs attention, in the navigation. */
function mark() {
  const [current] = parse().path;
  patch(by("nav"), [h("ul", {}, NAV.map(([name, text, counted]) => {
    const found = stats.latest && counted?.(stats.latest);
    return h("li", {}, h("a", { href: link([name]), "aria-current": name === current ? "page" : null },
      text, found ? h("span", { class: "count" }, number(found)) : null));
  }))]);
}

const MARKS = { live: ["succeeded", "Live"], polling: ["waiting", "Polling"], lost: ["failed", "Connection lost"] };

connection.changed = () => {
  const { state, reason, since } = connection;
  const box = by("connection");
  box.dataset.connection = state;
  box.textContent = MARKS[state][1];
  box.className = `state ${MARKS[state][0]}`;
  const notice = by("notice");
  notice.hidden = state !== "lost";
  notice.textContent = state === "lost" ? `Connection lost at ${new Date(since).toLocaleTimeString()}: ${reason}. The page shows what it knew, and tries again.` : "";
  document.body.classList.toggle("stale", state === "lost");
  if (state === "live") open?.poll.soon();
};

const KEYS = [["/", "Search a run or a key"], ["j, k", "Next, previous row"], ["Enter", "Open the row"], ["g o", "Overview"], ["g r", "Runs"], ["g k", "Keys"], ["g d", "Dead letters"], ["g a", "Approvals"], ["g e", "Live events"], ["?", "This help"], ["Escape", "Close, leave a field"]];
const GO = { o: "", r: "runs", k: "keys", d: "dead-letters", a: "approvals", e: "events" };
let went = 0;

const help = () => ask({ title: "Keyboard", ok: "OK", body: h("dl", { class: "keys" }, KEYS.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))) });

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const field = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName);
  if (event.key === "Escape") {
    if (field) event.target.blur();
    menu(false);
    return;
  }
  if (field) return;
  if (event.key === "/") by("query").focus();
  else if (event.key === "?") help();
  else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === "g") went = Date.now();
  else if (event.key in GO && Date.now() - went < 1500) go(link([GO[event.key]]));
  else return;
  if (event.key !== "g") went = 0;
  event.preventDefault();
});

function move(step) {
  const rows = [...main.querySelectorAll("[data-row]")];
  const current = rows.findIndex((each) => each.closest("tr, li")?.contains(document.activeElement));
  const next = rows[current < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, current + step))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function menu(shown = by("menu").getAttribute("aria-expanded") !== "true") {
  by("menu").setAttribute("aria-expanded", shown);
  by("nav").classList.toggle("open", shown);
}

by("menu").onclick = () => menu();
by("nav").onclick = () => menu(false);
by("help").onclick = help;
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();
  main.focus();
};
by("search").onsubmit = async (event) => {
  event.preventDefault();
  const text = by("query").value.trim();
  if (!text) return;
  try {
    const found = await find(text);
    if (!found) return toast(`No run and no key has the id ${text}.`, true);
    by("query").value = "";
    by("query").blur();
    go(found);
  } catch (error) {
    complain(error);
  }
};

/** Return the address of the run or the key with an id. */
async function find(text) {
  if (/^[\w-]{1,128}$/.test(text)) {
    const run = await get(`/runs/${text}`).catch((error) => {
      if (error.status !== 404) throw error;
    });
    if (run) return link(["runs", text]);
  }
  const [keys, runs] = await Promise.all([get("/keys", { key: text, limit: 1 }), get("/runs", { key: text, limit: 1 })]);
  return keys.keys.length || runs.runs.length ? link(["keys", text]) : null;
}

let statistics = null;

async function begin() {
  try {
    await learn();
  } catch (error) {
    if (!error.passing) return failed(error);
    failed(error);
    setTimeout(begin, 1000);
    return;
  }
  const who = [session.name, session.role].filter(Boolean).join(", ");
  patch(by("who"), [h("span", { title: denied("submit") }, who, session.read_only && " (read-only)"), h("button", {
    type: "button", class: "quiet",
    onclick: () => logOut().then(begin, complain),
  }, "Log out")]);
  statistics ??= watchStatistics((error) => error.status === 401 && logInScreen(error));
  show();
}

stats.changed = () => {
  mark();
  if (open?.screen === overview) open.context.redraw();
};
onAction(() => open?.poll.soon());
addEventListener("hashchange", () => (location.hash.startsWith("#token=") ? exchange().then(begin, complain) : session.role && show()));
setConnection("live");
connection.changed();
exchange().catch(complain).then(begin);
