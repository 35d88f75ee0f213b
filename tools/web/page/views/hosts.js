// Two hosts: a requester and a responder of the real engine, and the wire between them, one event at a time.

import { announce, button, copy, download, el, errorPlace, guard, labelled, time } from "../parts/dom.js";
import { createLadder } from "../parts/ladder.js";
import { PACKET_ACTIONS, decode, describe, encode } from "./hosts/actions.js";
import { EXERCISES, exercise } from "./hosts/exercises.js";
import { NAMES, hostPanel } from "./hosts/host.js";
import { Log } from "./hosts/log.js";
import { SETTINGS, Session, decodeSettings, encodeSettings } from "./hosts/session.js";
import { Wire } from "./hosts/wire.js";

export const title = "Two hosts";

export const keys = [
  ["↑ ↓ Home End", "among the packets on the wire: go to another packet"],
  ...PACKET_ACTIONS.map(({ shortcut, text }) => [shortcut, `on a packet of the wire: “${text}”`]),
  ["O", "on a packet of the wire: “Open in Frame”"],
  ["Escape", "on a packet of the wire: go to the button “Step”"],
];

const MOST_LADDER_ROWS = 400;
const CAPTURE = "two-hosts.pcapng";
/** The list of actions in a link to an exercise whose own actions were all taken back. */
const NOTHING = "none";

export function mount(root, engine, state) {
  const view = new View(root, engine, state);
  view.update(state);
  return { update: (changed) => view.update(changed), unmount: () => view.unmount() };
}

class View {
  #engine;
  #session;
  #state;
  #root;
  /** The fragment's values that the shown state belongs to. */
  #loaded = null;
  #error = errorPlace();
  /** Tells screen readers what a step did; everybody else sees it on the page. */
  #spoken = el("p", { class: "unseen", role: "status" });
  #clock = el("p", { class: "clock" });
  #task = el("div", { class: "task", hidden: true });
  #choice = el("select", {}, el("option", { value: "", text: "None: two hosts with nothing posted" }),
    EXERCISES.map(({ key, title: text }) => el("option", { value: key, text })));
  #settings = settingsForm((settings) => this.#restart(settings));
  #hosts = [0, 1].map((side) => hostPanel(side, (action) => this.#act(action)));
  #wire = new Wire({
    act: (action) => this.#act(action), open: (id) => this.#open(id), leave: () => this.#step.focus(),
  });
  #log = new Log((id) => this.#open(id));
  #recorded = el("ol", { class: "recorded" });
  #ladder = createLadder({
    label: "Packets between the two hosts", name: "two-hosts", onPacket: (number) => this.#openCaptured(number),
  });
  #step = button("Step", () => this.#act({ do: "step", times: 1 }), { class: "primary" });
  #run = button("Run", () => this.#act({ do: "run" }));
  #back = button("Back", () => this.#goBack());

  constructor(root, engine, state) {
    this.#root = root;
    this.#state = state;
    this.#engine = engine;
    this.#session = new Session(engine);
    root.classList.add("hosts");
    root.append(...this.#layout());
  }

  #layout() {
    const bar = el("div", { class: "toolbar", role: "group", "aria-label": "Time" }, this.#step, this.#run, this.#back,
      button("Start again", () => this.#again()),
      button("Save the capture", () => this.#save()),
      button("Copy a link to this state", () => this.#copyLink()));
    const start = el("div", { class: "start" }, labelled("Exercise", this.#choice),
      button("Start", () => this.#startExercise(this.#choice.value)));
    const keys = PACKET_ACTIONS.map(({ shortcut, text }) => `${shortcut}: ${text}`).join(", ");
    return [
      el("h2", { text: title }),
      el("p", { class: "lead" }, "Post a work request, then go on step by step. Each step is one arrival, one "
        + "departure or one timeout. Both hosts are the engine of roce; only the wire and the time are simulated."),
      start, this.#settings.node, this.#task, bar, this.#error, this.#spoken, this.#clock,
      el("div", { class: "both" }, this.#wire.node, this.#hosts[0].node, this.#hosts[1].node),
      el("p", { class: "faint keys" }, `Keys for a packet that has the focus: ${keys}, O: Open in Frame. `
        + "The arrow keys select another packet."),
      el("div", { class: "beside" }, this.#log.node,
        el("section", { "aria-labelledby": "ladder-title" },
          el("h3", { id: "ladder-title", text: "Ladder" }), this.#ladder.element)),
      el("details", {}, el("summary", { text: "What you did" }), this.#recorded),
    ];
  }

  /** Shows what the fragment says, unless it is what is shown. */
  update(state) {
    this.#state = state;
    const wanted = ["exercise", "do", "with"].map((key) => state.get(key, "")).join("&");
    if (wanted === this.#loaded) return;
    this.#loaded = wanted;
    try {
      this.#load(state);
      this.#error.textContent = "";
    } catch (error) {
      this.#say(error);
    }
    this.#choice.value = exercise(state.get("exercise")) ? state.get("exercise") : "";
    this.#show();
  }

  #load(state) {
    const wanted = exercise(state.get("exercise"));
    // A link that cannot be read shows two fresh hosts beside the error.
    this.#session.start(wanted?.settings ?? {});
    if (state.get("exercise") && !wanted) throw new Error(`there is no exercise “${state.get("exercise")}”`);
    const settings = { ...wanted?.settings, ...decodeSettings(state.get("with", "")) };
    const done = state.get("do");
    this.#session.start(settings, decode(done === NOTHING ? "" : done));
    if (done === null) wanted?.play(this.#session);
  }

  /** Carries out an action of a person, and keeps it in the fragment. */
  #act(action) {
    const done = guard(this.#error, () => this.#session.act(action));
    if (done === undefined) return;
    this.#keep();
    const fresh = this.#show();
    if (!done) announce("Nothing is left to do. Post a work request.");
    this.#spoken.textContent = fresh.slice(-3).map(({ text }) => text.replace(/\.?$/, ".")).join(" ");
  }

  #goBack() {
    if (this.#session.actions.length === 0) return;
    const last = this.#session.actions.at(-1);
    guard(this.#error, () => this.#session.back());
    this.#keep();
    this.#show();
    this.#spoken.textContent = `Undone: ${last.do === "step" ? "one step" : describe(last, NAMES)}.`;
  }

  #again() {
    const key = this.#state.get("exercise", "");
    this.#change({ do: null, with: key ? null : this.#state.get("with") });
    this.#step.focus();
  }

  #startExercise(key) {
    this.#change({ exercise: key, do: null, with: null }, true);
  }

  #restart(settings) {
    this.#change({ do: null, with: this.#encodeSettings(settings) }, true);
  }

  /** Shows other values of the fragment, also if they are those that are shown now: the hosts start again. */
  #change(values, push = false) {
    this.#loaded = null;
    this.#state.set(values, { push });
    this.update(this.#state);
  }

  /** Writes the actions into the fragment, so that the address is a link to this state. */
  #keep() {
    const isExercise = this.#state.get("exercise") !== null;
    const values = { do: encode(this.#session.actions) || (isExercise ? NOTHING : null), with: this.#encodeSettings(this.#session.settings) };
    this.#state.set(values);
    this.#loaded = ["exercise", "do", "with"].map((key) => this.#state.get(key, "")).join("&");
  }

  #encodeSettings(settings) {
    return encodeSettings(settings, exercise(this.#state.get("exercise"))?.settings);
  }

  #open(id) {
    guard(this.#error, () => openFrame(this.#session.frame(id)));
  }

  /** The ladder has the numbers of the capture, in which a delayed packet comes later than on the wire. */
  #openCaptured(number) {
    guard(this.#error, () => {
      const capture = this.#engine.open(CAPTURE, this.#session.pcap());
      try {
        openFrame(capture.packet(number).explain.bytes);
      } finally {
        capture.free();
      }
    });
  }

  #save() {
    guard(this.#error, () => download(CAPTURE, this.#session.pcap()));
  }

  #copyLink() {
    // The address follows a moment later, so the link is made from the state.
    copy(location.href.split("#")[0] + this.#state.fragment()).catch((error) => this.#say(error));
  }

  #say(error) {
    this.#error.textContent = error.message ?? String(error);
  }

  /** Draws everything, and returns the new entries of the log. */
  #show() {
    const state = this.#session.state();
    this.#clock.replaceChildren("Time: ", el("strong", { text: time(state.now_us) }),
      state.idle ? " Nothing is left to do." : "");
    this.#hosts.forEach(({ update }, side) => update(state.hosts[side], state.now_us));
    this.#wire.update(state);
    const fresh = this.#log.update(state.log);
    this.#settings.show((key) => this.#session.setting(key));
    const { actions } = this.#session;
    this.#back.disabled = actions.length === 0;
    this.#recorded.replaceChildren(...actions.map((action) => el("li", { text: describe(action, NAMES) })));
    const task = exercise(this.#state.get("exercise"));
    this.#task.hidden = !task;
    this.#task.replaceChildren(...task ? [el("h3", { text: task.title }), el("p", { text: task.text })] : []);
    this.#ladder.show(this.#session.ladder(MOST_LADDER_ROWS));
    return fresh;
  }

  unmount() {
    this.#session.free();
    this.#root.replaceChildren();
  }
}

function openFrame(hex) {
  location.hash = `#frame&${new URLSearchParams({ hex, from: "ethernet" })}`;
}

function settingsForm(apply) {
  const controls = new Map(SETTINGS.map((setting) => [setting.key, control(setting)]));
  const submit = (event) => {
    event.preventDefault();
    const read = ({ key, value }) => {
      const text = controls.get(key).value;
      return [key, typeof value === "number" ? Number(text) : text];
    };
    apply(Object.fromEntries(SETTINGS.map(read)));
  };
  const form = el("form", { class: "grid", submit },
    SETTINGS.map(({ key, text }) => labelled(text, controls.get(key))),
    button("Start again with these settings", null, { type: "submit" }));
  const node = el("details", { class: "settings" }, el("summary", { text: "Settings of the connection" }), form);
  const show = (valueOf) => {
    for (const [key, field] of controls) field.value = valueOf(key);
  };
  return { node, show };
}

function control({ choices, min, max, step = 1, value }) {
  if (!choices) return el("input", { type: "number", min, max, step, value, required: true });
  return el("select", {}, choices.map((choice) => el("option", { value: choice, text: choice })));
}
