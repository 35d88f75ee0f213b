// One run: its command, its progress, its charts, and its results.

import { button, copy, count, el, errorPlace, guard, plural, time } from "../../parts/dom.js";
import { plainTable } from "../../parts/table.js";
import { Charts } from "./charts.js";
import { Data } from "./data.js";
import { resultTables } from "./results.js";
import { Runner } from "./runner.js";

/** Charts are drawn at most this often; the simulation goes on in between. */
const DRAW_EVERY_MS = 150;

const STATES = {
  ready: "Not started.", running: "Running.", paused: "Paused.", ended: "Ended.",
};

export class Column {
  node = el("section", { class: "run card" });
  data = new Data();
  /** What the shown run was made from: `{ text, sets, command }`. */
  made = null;
  #engine;
  #settings;
  #run = null;
  #runner = null;
  #charts = null;
  #names = null;
  #drawn = 0;
  #progress = null;
  #title = el("h3");
  #note = el("p", { class: "warn", hidden: true });
  #error = errorPlace();
  /** For screen readers: the figures on the page change too often to be read out. */
  #spoken = el("p", { class: "unseen", role: "status" });
  #bar = el("progress", { max: 1, value: 0, "aria-label": "Simulated time" });
  #status = el("p", { class: "run-status" });
  #command = el("pre", { tabindex: 0, "aria-label": "Command of this run" });
  #place = el("div");
  #results = el("div");
  #more = el("span", { class: "row" });
  #start = button("Run", () => this.#toggle(), { class: "primary" });
  #again = button("Start again", () => this.begin());

  /**
   * `settings()` returns `{ text, sets, command }` of the next run or throws, `scaleOf(name)` the largest
   * value of all columns, `flows()` the chosen flows, and `ended()` is called when a run has ended.
   */
  constructor(engine, { title, settings, scaleOf, flows, failed, ended, more }) {
    this.#engine = engine;
    this.#settings = settings;
    this.scaleOf = scaleOf;
    this.flows = flows;
    this.failed = failed;
    this.ended = ended;
    this.#title.textContent = title;
    this.#more.append(...more);
    const bar = el("div", { class: "row" }, this.#start, this.#again, this.#more);
    this.node.append(this.#title, bar, this.#error, this.#note, this.#bar, this.#status, this.#spoken, this.#command,
      this.#place, this.#results);
    this.#showState();
  }

  /** The state of the run: "ready", "running", "paused" or "ended". */
  get state() {
    return this.#runner?.state ?? "ready";
  }

  #toggle() {
    if (this.state === "running") this.#runner.pause();
    else if (this.state === "paused" && !this.stale) this.#runner.start();
    else this.begin();
    this.#showState();
  }

  /** Makes a run from the settings and starts it. */
  begin() {
    this.free();
    this.#results.replaceChildren();
    try {
      const made = this.#settings();
      this.#run = this.#engine.simulate(made.text, made.sets);
      this.made = made;
      this.failed(null);
    } catch (error) {
      this.failed(error, { show: true });
      return this.#showState();
    }
    this.#error.textContent = "";
    this.stale = false;
    this.data = new Data();
    this.#names = this.#run.names();
    this.#charts = new Charts({ names: this.#naming(), scaleOf: this.scaleOf });
    this.#place.replaceChildren(this.#charts.element);
    this.#command.textContent = this.made.command;
    this.#runner = new Runner(this.#run, (state) => this.#step(state));
    this.#runner.start();
    return this.#showState();
  }

  #naming() {
    const { flows, ports } = this.#names;
    const flow = (number) => {
      const one = flows.find((known) => known.number === number);
      return one ? `flow ${number}: ${one.source} to ${one.destination}` : `flow ${number}`;
    };
    return { flow, port: (number) => ports[number] ?? `port ${number}` };
  }

  /** Says that the settings have changed since this run began. */
  markStale(stale) {
    this.stale = stale && this.made !== null;
    this.#showState();
  }

  pause() {
    if (this.state === "running") this.#runner.pause();
  }

  #step(state) {
    // An error of the engine must not end in the console alone.
    const taken = guard(this.#error, () => this.#run.take());
    if (taken) this.data.add(taken);
    if (state === "ended") this.data.end();
    const now = performance.now();
    if (state !== "running" || now - this.#drawn > DRAW_EVERY_MS) {
      this.#drawn = now;
      this.draw();
      this.#showState();
    }
    if (state === "ended") this.#end();
  }

  /** Draws the charts again, for example because another run has a larger scale. */
  draw() {
    this.#charts?.show(this.data, this.flows());
  }

  #end() {
    const results = guard(this.#error, () => this.#run.results());
    if (!results) return;
    this.#results.replaceChildren(...this.#summary(results), ...resultTables(results));
    // The figures are here now, and a large network takes much memory.
    this.#freeRun();
    this.#spoken.textContent = `The run has ended after ${time(results.end_us)} of simulated time.`;
    this.ended();
  }

  #summary(results) {
    const { command, edited } = this.made;
    return [
      el("h4", { text: "Results" }),
      plainTable(["figure", "value"], [
        ["end", time(results.end_us)], ["events", count(results.events)],
        ["data packets", count(results.data_packets)],
        ["flows that did not complete", count(results.incomplete)],
        ["fairness (Jain's index)", results.jain === null ? "–" : results.jain.toFixed(3)],
        ["deadlocks", count(results.deadlocks)], ["trace hash", results.trace_hash],
      ]),
      ...results.points_left_out > 0 ? [el("p", { class: "warn" },
        `${plural(results.points_left_out, "point")} of the charts were left out; measure.interval and `
        + "measure.points set how many are kept.")] : [],
      el("p", {}, "This command prints the same trace hash",
        edited ? "; save the scenario first, because it differs from the shipped one:" : ":"),
      el("pre", {
        class: "proof", tabindex: 0, "aria-label": "Command that prints the same trace hash", text: command,
      }),
      button("Copy the command", () => copy(command)),
    ];
  }

  #showState() {
    const { state } = this;
    this.node.dataset.state = state;
    this.#start.textContent = state === "running" ? "Pause" : state === "paused" && !this.stale ? "Go on" : "Run";
    this.#again.hidden = state !== "running" && state !== "paused";
    this.#note.hidden = !this.stale;
    this.#note.textContent = "The settings have changed since this run began. Run again to see their effect.";
    this.#command.hidden = this.made === null || state === "ended";
    if (this.#run) this.#progress = this.#run.progress();
    this.#bar.hidden = this.#progress === null;
    if (!this.#progress) {
      this.#status.textContent = STATES.ready;
      return;
    }
    const { time_us: now, until_us: until, events, share, flows, ended } = this.#progress;
    this.#bar.value = state === "ended" ? 1 : share;
    const of = until ? ` of at most ${time(until)}` : "";
    this.#status.textContent = `${STATES[state]} ${time(now)}${of}, ${count(events)} events, `
      + `${count(ended)} of ${plural(flows, "flow")} ended.`;
  }

  /** Another run of the same settings as the shown one; later changes of the controls do not apply to it. */
  keep(title, ...controls) {
    const { made } = this;
    this.#settings = () => made;
    this.#title.textContent = title;
    this.#more.replaceChildren(...controls);
    this.markStale(false);
  }

  /** Ends the run and gives its memory back. The charts stay. */
  free() {
    this.pause();
    this.#runner = null;
    this.#freeRun();
    this.#progress = null;
  }

  #freeRun() {
    this.#run?.free();
    this.#run = null;
  }
}
