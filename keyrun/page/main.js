// The page: shows the screen of the address, asks again and again, and handles the keyboard.

import approvals from "./approvals.js";
import audit from "./audit.js";
import events from "./events.js";
import * as groups from "./groups.js";
import * as keys from "./keys.js";
import { after, ask, call, complain, connection, empty, facts, field, get, go, h, link, number, parse, patch, poll, setConnection, sign } from "./kit.js";
import overview from "./overview.js";
import policies from "./policies.js";
import run from "./run.js";
import runs from "./runs.js";
import schedules from "./schedules.js";
import { denied, exchange, learn, logIn, session } from "./session.js";
import start from "./start.js";
import { stats, watchStatistics } from "./stats.js";
import { letters, quarantine } from "./trouble.js";

// The screen of a list, that of one object, and what to count in the navigation.
const SCREENS = {
  "": [overview], runs: [runs, run], keys: [keys.list, keys.one], "dead-letters": [letters, null, (all) => all.dead_letters],
  quarantine: [quarantine, null, (all) => (all.runs?.quarantined ?? 0) + (all.statistics?.quarantined_keys ?? 0)], approvals: [approvals], schedules: [schedules], groups: [groups.list, groups.one],
  policies: [policies, null, (all) => all.statistics?.circuits.filter(({ state }) => state === "open").length], events: [events], audit: [audit], start: [start],
};

const by = (id) => document.getElementById(id);
const main = by("screen");
let open = null, statistics = null;

/** Show the screen of the address: `load` returns its data, and `view` its elements. `local` lasts until another object
 * or screen is shown. */
function show() {
  const { path, query } = parse(), [name, ...rest] = path, screen = Object.hasOwn(SCREENS, name) && SCREENS[name][rest.length ? 1 : 0], former = open;
  const same = former?.screen === screen && former?.path.join() === path.join();
  former?.poll.stop();
  if (!same) former?.screen.close?.(former);
  open = null;
  mark(name);
  if (!screen) return say("No such screen", "There is nothing at this address.", "none");
  const context = {
    screen, path, query, id: rest.join("/"), data: same ? former.data : null, local: same ? former.local : {}, redraw: () => context === open && context.data && draw(),
    set: (values, replace) => go(link(path, { ...parse().query, cursor: null, ...values }), replace),
  };
  const draw = () => {
    patch(main, [screen.view(context)]);
    main.ariaBusy = "false";
    document.title = `${screen.title ?? context.id} · Keyrun`;
  };
  main.ariaBusy = "true";
  if (!same) {
    main.dataset.screen = rest.length ? name.slice(0, -1) : name || "overview";
    patch(main, [empty("Loading…")]);
    scrollTo(0, 0);
    if (former) main.focus({ preventScroll: true });
  }
  open = context;
  context.poll = poll(async (signal) => {
    try {
      const data = await screen.load({ ...context, signal });
      if (context !== open) return;
      context.data = data;
      draw();
    } catch (error) {
      if (error.name !== "AbortError" && context === open) failed(error, context);
    }
  }, screen.every);
}

function failed(error, context) {
  if (error.status === undefined) console.error(error);
  if (error.status === 401) return logInScreen(error);
  if (error.passing && context?.data) return;
  if (context) context.data = null;
  say(error.passing ? "No connection" : { 403: "Not allowed", 404: "Not found" }[error.status] ?? "Error", error.message);
}

function say(title, text, screen = main.dataset.screen) {
  main.dataset.screen = screen;
  main.ariaBusy = "false";
  patch(main, [h("h1", title), empty(text)]);
}

function logInScreen({ message }) {
  open?.poll.stop();
  statistics?.stop();
  open = statistics = null;
  const token = h("input", { type: "password", required: true });
  say("Log in", "keyrun serve prints an address that logs in. The file tokens in the directory of the store has the tokens.", "session");
  main.append(h("form.start", { onsubmit: (event) => { event.preventDefault(); logIn(token.value.trim()).then(begin).catch(complain); } }, field("Token", token, message), h("p", h("button.primary", { type: "submit" }, "Log in"))));
  token.focus();
}

function mark(current = parse().path[0]) {
  patch(by("nav"), [h("ul", Object.entries(SCREENS).map(([name, [{ title }, , counted]]) => {
    const found = stats.latest && counted?.(stats.latest);
    return h("li", h("a", { href: link([name]), "aria-current": name === current && "page" }, title, found > 0 && h("span.count", number(found))));
  }))]);
}

const MARKS = { live: ["succeeded", "Live"], polling: ["waiting", "Polling"], lost: ["failed", "Connection lost"] };

connection.changed = () => {
  const { state, reason } = connection, [tone, word] = MARKS[state], box = by("connection"), notice = by("notice");
  box.dataset.connection = state;
  box.className = `state ${tone}`;
  patch(box, [sign(tone), word]);
  notice.hidden = state !== "lost";
  notice.textContent = notice.hidden ? "" : `No connection since ${new Date().toLocaleTimeString()}: ${reason}. The page tries again.`;
  if (state === "live") open?.poll?.soon();
};

const KEYS = {
  "/": ["Search a run or a key by its id", () => by("query").focus()], j: ["Next row", () => move(1)], k: ["Previous row", () => move(-1)], Enter: ["Open the row"], "?": ["Show this help", () => help()], Escape: ["Close a dialog, leave a field"],
};
const help = () => ask({ title: "Keyboard", ok: "OK", body: facts(Object.entries(KEYS).map(([key, [text]]) => [h("kbd", key), text])) });

addEventListener("keydown", (event) => {
  const { key, target, ctrlKey, metaKey, altKey } = event, typing = /^(INPUT|TEXTAREA|SELECT)$/.test(target.nodeName);
  if (ctrlKey || metaKey || altKey || document.querySelector("dialog")) return;
  if (key === "Escape") {
    if (typing) target.blur();
    menu(false);
  } else if (!typing && KEYS[key]?.[1]) {
    event.preventDefault();
    KEYS[key][1]();
  }
});

// The first element with `data-row` stands for its row.
function move(step) {
  const rows = [...new Set([...main.querySelectorAll("[data-row]")].map((each) => each.closest("tr")))];
  rows[Math.min(rows.length - 1, Math.max(0, rows.findIndex((each) => each.contains(document.activeElement)) + step))]?.querySelector("[data-row]").focus();
}

function menu(shown) {
  by("menu").ariaExpanded = shown;
  by("nav").classList.toggle("open", shown);
}

by("menu").onclick = () => menu(by("menu").ariaExpanded !== "true");
by("nav").onclick = () => menu(false);
by("help").onclick = help;
by("skip").onclick = (event) => {
  event.preventDefault();
  main.focus();
};
by("search").onsubmit = async (event) => {
  event.preventDefault();
  const box = by("query"), text = box.value.trim();
  if (!text) return;
  try {
    const isRun = /^[\w-]{1,128}$/.test(text) && (await get(`/runs/${text}`).catch(({ status }) => status !== 404));
    box.value = "";
    box.blur();
    go(link([isRun ? "runs" : "keys", text]));
  } catch (error) {
    complain(error);
  }
};

async function begin() {
  try {
    await learn();
  } catch (error) {
    failed(error);
    if (error.passing) setTimeout(begin, 1000);
    return;
  }
  patch(by("who"), [h("span", { title: denied("admin") }, [session.name, session.role, session.read_only && "read-only"].filter(Boolean).join(", ")), h("button.quiet", { onclick: () => call("DELETE", "/session").then(begin, complain) }, "Log out")]);
  statistics ??= watchStatistics((error) => error.status === 401 && logInScreen(error));
  show();
}

stats.changed = () => {
  mark();
  // A process has opened or closed the store.
  if (!stats.latest.statistics !== !!session.read_only) begin();
  if (open?.screen === overview) open.redraw();
};
after.action = () => open?.poll.soon();
addEventListener("hashchange", () => (location.hash.startsWith("#token=") ? exchange().then(begin, complain) : statistics && show()));
setConnection("live");
exchange().catch(complain).then(begin);
