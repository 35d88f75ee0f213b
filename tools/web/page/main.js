// The frame around the views: tabs, the state in the URL fragment, the colour scheme, and errors.
//
// A view is a module with `title` and `mount(root, engine, state)`. It returns `{ update(state), unmount() }`
// and perhaps `pause()`. A view stays mounted when another tab is shown, so an open capture is kept: `pause` is
// called when the view is hidden, `update` when it is shown again or the fragment has changed. A module may
// also export `keys`, a list of `[keys, effect]` for the list of keys.

import { load } from "./engine.js";
import { button, el } from "./parts/dom.js";
import { createKeys } from "./parts/keys.js";
import { isServed } from "./parts/server.js";
import { State, cancel, open, parse, setVisible } from "./parts/state.js";
import * as capture from "./views/capture.js";
import * as congestion from "./views/congestion.js";
import * as frame from "./views/frame.js";
import * as hosts from "./views/hosts.js";
import * as lessons from "./views/lessons.js";
import * as live from "./views/live.js";

// Only `roce explore` has live data.
const VIEWS = { frame, capture, hosts, congestion, lessons, ...(isServed ? { live } : {}) };
const SCHEMES = { auto: "as the system", light: "light", dark: "dark" };

let engine;
let shown = null;
// By the name of the view: its tab, its panel, its state, and what `mount` returned.
const places = {};

function show(name, values) {
  const place = places[name];
  for (const [other, { tab, panel }] of Object.entries(places)) {
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    panel.hidden = other !== name;
  }
  if (shown && shown !== name) places[shown].view?.pause?.();
  shown = name;
  setVisible(name);
  document.title = `${VIEWS[name].title} – roce`;
  if (values) place.state.replace(values);
  if (place.view) place.view.update(place.state);
  else place.view = VIEWS[name].mount(place.panel, engine, place.state);
}

/** Shows what the fragment names. Without a view in it, the first one. */
function follow() {
  cancel();
  const { view, values } = parse(location.hash);
  const known = Object.hasOwn(VIEWS, view);
  show(known ? view : "frame", known ? values : null);
}

function makeTabs(root) {
  const list = document.getElementById("tabs");
  for (const [name, { title }] of Object.entries(VIEWS)) {
    const tab = button(title, () => choose(name), {
      role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`,
    });
    const panel = el("section", {
      id: `panel-${name}`, role: "tabpanel", "aria-labelledby": tab.id, class: "panel", hidden: true,
    });
    places[name] = { tab, panel, state: new State(name), view: null };
    list.append(tab);
    root.append(panel);
  }
  list.addEventListener("keydown", moveTab);
}

/** Opens a view with the values that it had when it was left; the back button returns. */
function choose(name) {
  open(places[name].state.fragment());
  if (shown !== name) show(name, null);
}

function moveTab(event) {
  const names = Object.keys(VIEWS);
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  let next = names.indexOf(shown);
  if (event.key in steps) next = (next + steps[event.key] + names.length) % names.length;
  else if (event.key === "Home") next = 0;
  else if (event.key === "End") next = names.length - 1;
  else return;
  event.preventDefault();
  choose(names[next]);
  places[names[next]].tab.focus();
}

/**
 * The switch of the colour scheme. Without storage, as in some pages from file://, a choice lasts for the
 * visit.
 */
function makeSchemeSwitch() {
  const control = document.getElementById("scheme");
  let scheme = "auto";
  try {
    scheme = localStorage.getItem("scheme") ?? "auto";
  } catch { /* No storage. */ }
  const apply = () => {
    if (!Object.hasOwn(SCHEMES, scheme)) scheme = "auto";
    document.documentElement.dataset.scheme = scheme;
    control.textContent = `Colours: ${SCHEMES[scheme]}`;
  };
  control.addEventListener("click", () => {
    const names = Object.keys(SCHEMES);
    scheme = names[(names.indexOf(scheme) + 1) % names.length];
    apply();
    try {
      localStorage.setItem("scheme", scheme);
    } catch { /* No storage. */ }
  });
  apply();
}

/** What no view has handled is shown, and not only written to the console. */
function showTrouble(error) {
  document.getElementById("trouble").textContent = error?.message ?? String(error);
}

async function start() {
  makeSchemeSwitch();
  addEventListener("error", (event) => showTrouble(event.error ?? event.message));
  addEventListener("unhandledrejection", (event) => showTrouble(event.reason));
  // A file that misses the place for files would replace the page.
  for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
  engine = await load();
  document.getElementById("version").textContent = engine.version();
  const root = document.getElementById("view");
  document.getElementById("loading").remove();
  makeTabs(root);
  const keys = Object.values(VIEWS).flatMap((view) => view.keys ?? []);
  document.getElementById("scheme").before(createKeys(keys));
  addEventListener("hashchange", () => {
    // `#view` is the target of the link that skips the tabs.
    if (location.hash !== "#view") follow();
  });
  follow();
}

start().catch((error) => {
  document.getElementById("loading")?.remove();
  showTrouble(new Error(`The engine did not start: ${error?.message ?? error}. A current browser is needed.`));
});
