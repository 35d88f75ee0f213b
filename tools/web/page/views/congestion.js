// Congestion control: a shipped scenario or one of your own in the simulator, with live charts.

import { announce, button, copy, download, el, errorPlace, labelled, uniqueId } from "../parts/dom.js";
import { Column } from "./congestion/column.js";
import {
  command, congestionOf, decodeSets, encodeSets, parseCongestion, settingsOf,
} from "./congestion/settings.js";
import { parameterControls } from "./congestion/sliders.js";

export const title = "Congestion";

const FIRST_SCENARIO = "two-to-one";
const OWN_FILE = "scenario.toml";
const CHECK_AFTER_MS = 500;

export function mount(root, engine, state) {
  const view = new View(root, engine, state);
  view.update(state);
  return { update: (changed) => view.update(changed), pause: () => view.pause(), unmount: () => view.unmount() };
}

class View {
  #engine;
  #state;
  #root;
  #scenarios;
  #algorithms;
  #loaded = null;
  /** The values of the controls that a person moved. */
  #changed = {};
  #current = null;
  #kept = null;
  #timer = null;

  #scenario = el("select");
  #about = el("div", { class: "about prose" });
  #text = el("textarea", { rows: 18, spellcheck: "false", autocomplete: "off", wrap: "off" });
  #editing = el("details", {}, el("summary", { text: "Edit the scenario" }));
  #restore = button("Restore the shipped text", () => this.#restoreText());
  #wrong = errorPlace();
  #goTo = button("Go to the line", () => this.#goToLine(), { hidden: true });
  #algorithm = el("select");
  #parameters = el("div", { class: "all-parameters" });
  #more = el("textarea", { rows: 3, spellcheck: "false", autocomplete: "off", placeholder: "seed=2" });
  #flows = el("input", { type: "text", inputmode: "numeric", size: 16, placeholder: "0, 1, 2" });
  #command = el("pre", { class: "command", tabindex: 0, "aria-label": "Equivalent command" });
  #columns = el("div", { class: "columns runs" });

  constructor(root, engine, state) {
    this.#root = root;
    this.#engine = engine;
    this.#state = state;
    this.#scenarios = engine.scenarios();
    this.#algorithms = engine.algorithms();
    this.#scenario.append(...this.#scenarios.map(({ name }) => el("option", { value: name, text: name })));
    root.classList.add("congestion");
    root.append(...this.#layout());
    this.#listen();
  }

  #layout() {
    this.#wrong.id = uniqueId("wrong");
    this.#text.setAttribute("aria-errormessage", this.#wrong.id);
    this.#editing.append(labelled("Text of the scenario (TOML)", this.#text), el("div", { class: "row" },
      this.#restore, button(`Save as ${OWN_FILE}`, () => download(OWN_FILE, this.#text.value, "text/plain"))));
    const algorithm = el("section", { class: "card", "aria-labelledby": "algorithm-title" },
      el("h3", { id: "algorithm-title", text: "Congestion control" }),
      labelled("Algorithm", this.#algorithm), this.#parameters,
      el("details", {}, el("summary", { text: "Other settings" }),
        labelled("One KEY=VALUE in each line", this.#more,
          "Keys of the scenario, such as switch.marking.kmax=50KB or flows.0.bytes=1MB. Faults of a link apply to both "
            + "directions; topology.faults.0.from=h0 selects what h0 sends"),
        labelled("Flows in the charts", this.#flows, "Numbers of at most six flows; empty for the first ones")));
    const scenario = el("section", { class: "card", "aria-labelledby": "scenario-title" },
      el("h3", { id: "scenario-title", text: "Scenario" }), labelled("Shipped scenario", this.#scenario),
      this.#about, this.#editing);
    return [
      el("h2", { text: title }),
      el("p", { class: "lead" }, "A network in virtual time, whose hosts run the real engine. The page computes what "
        + "the command computes: equal settings give the same trace hash on every machine."),
      el("div", { class: "columns" }, scenario, algorithm), this.#wrong, this.#goTo,
      el("h3", { text: "The same as a command" }), this.#command,
      el("div", { class: "row" }, button("Copy the command", () => copy(this.#command.textContent)),
        button("Copy a link to these settings", () => this.#copyLink())),
      this.#columns,
    ];
  }

  #listen() {
    this.#scenario.addEventListener("change", () => {
      this.#changed = {};
      this.#takeScenario(this.#scenario.value);
      this.#settingsChanged({ rebuild: true });
    });
    this.#algorithm.addEventListener("change", () => {
      this.#changed = {};
      this.#settingsChanged({ rebuild: true });
    });
    this.#text.addEventListener("input", () => this.#settingsChanged({ rebuild: true }));
    this.#more.addEventListener("input", () => this.#settingsChanged());
    this.#flows.addEventListener("input", () => {
      this.#keep();
      this.#draw();
    });
  }

  /** Shows what the fragment says, unless it is what is shown. */
  update(state) {
    this.#state = state;
    const wanted = state.fragment();
    if (wanted === this.#loaded) return;
    this.#takeScenario(state.get("scenario", FIRST_SCENARIO));
    const text = state.get("text");
    if (text) {
      this.#text.value = text;
      this.#editing.open = true;
    }
    this.#more.value = state.get("more", "");
    this.#flows.value = state.get("flows", "");
    this.#changed = {};
    let problem = null;
    try {
      this.#changed = Object.fromEntries(decodeSets(state.get("set", "")));
    } catch (error) {
      problem = error;
    }
    this.#makeColumns(state);
    this.#fillAlgorithms(state.get("algorithm", ""));
    this.#settingsChanged({ rebuild: true });
    if (problem) this.#failed(problem);
  }

  #makeColumns(state) {
    this.#current?.free();
    this.#kept?.free();
    this.#kept = null;
    this.#current = this.#column();
    const kept = state.get("kept");
    if (kept) {
      this.#kept = this.#column();
      try {
        this.#kept.made = this.#made(decodeSets(kept === "-" ? "" : kept));
        this.#keepColumn(this.#kept);
      } catch {
        this.#kept = null;
      }
    }
    this.#showColumns();
  }

  #takeScenario(name) {
    const known = this.#scenarios.find((one) => one.name === name) ?? this.#scenarios[0];
    this.#scenario.value = known.name;
    this.#text.value = known.text;
    const { description, expectation, fits, why_not: reason } = known;
    this.#about.replaceChildren(el("p", { text: description }),
      ...expectation ? [el("p", {}, el("strong", { text: "Expected: " }), expectation)] : [],
      ...fits ? [] : [el("p", { class: "warn", text: `This scenario is too large for a page: ${reason}.` })]);
  }

  get #shipped() {
    return this.#scenarios.find(({ name }) => name === this.#scenario.value);
  }

  get #edited() {
    return this.#text.value !== this.#shipped.text;
  }

  #restoreText() {
    this.#text.value = this.#shipped.text;
    this.#settingsChanged({ rebuild: true });
    announce("The shipped text is back.");
  }

  #fillAlgorithms(chosen) {
    const own = congestionOf(this.#text.value);
    const names = this.#algorithms.flatMap(({ name, presets }) => [
      name, ...presets.map((preset) => `${name}:${preset.name}`),
    ]);
    this.#algorithm.replaceChildren(el("option", { value: "", text: `as in the scenario: ${own}` }),
      ...names.map((name) => el("option", { value: name, text: name })));
    this.#algorithm.value = names.includes(chosen) ? chosen : "";
  }

  /**
   * The algorithm that the controls show: its name, its preset, and the parameters that are given with it.
   */
  get #base() {
    return parseCongestion(this.#algorithm.value || congestionOf(this.#text.value));
  }

  /** The parameters and presets of the algorithm that the controls show. */
  get #ofBase() {
    const none = { parameters: [], presets: [] };
    return this.#algorithms.find(({ name }) => name === this.#base.name) ?? none;
  }

  #fillParameters() {
    const { preset: word, parameters: given } = this.#base;
    const { parameters, presets } = this.#ofBase;
    const preset = presets.find(({ name }) => name === word);
    const change = (key, value) => {
      if (value === null) delete this.#changed[key];
      else this.#changed[key] = value;
      this.#settingsChanged();
    };
    const controls = parameterControls(parameters, { values: this.#changed, given, preset, change });
    this.#parameters.replaceChildren(...controls.length > 0 ? controls
      : [el("p", { class: "faint", text: "This choice has no parameters." })]);
  }

  #sets() {
    // The text may name another algorithm now, which does not have the parameters that were changed.
    const known = this.#ofBase.parameters.map(({ key }) => key);
    const changed = Object.entries(this.#changed).filter(([key]) => known.includes(key));
    return settingsOf({
      own: congestionOf(this.#text.value), chosen: this.#algorithm.value,
      changed: Object.fromEntries(changed), more: this.#more.value,
    });
  }

  /** Everything that a run needs: the text, the settings, and the command. */
  #made(sets) {
    const edited = this.#edited;
    return {
      text: this.#text.value, sets, edited, command: command(edited ? OWN_FILE : this.#shipped.name, sets),
    };
  }

  /** After a change of a control. `rebuild`: the text or the algorithm may have other parameters. */
  #settingsChanged({ rebuild = false } = {}) {
    if (rebuild) {
      this.#fillAlgorithms(this.#algorithm.value);
      this.#fillParameters();
    }
    this.#restore.hidden = !this.#edited;
    this.#keep();
    try {
      const { command: text } = this.#made(this.#sets());
      this.#command.textContent = text;
      const { made } = this.#current;
      this.#current.markStale(made !== null && (made.command !== text || made.text !== this.#text.value));
    } catch (error) {
      this.#failed(error);
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#checkSettings(), CHECK_AFTER_MS);
  }

  /** Shows an error of the text or of a setting before the run. A large network would take long to make. */
  #checkSettings() {
    if (this.#shipped.fits === false && !this.#edited) return this.#failed(null);
    try {
      this.#engine.simulate(this.#text.value, this.#sets()).free();
      this.#failed(null);
    } catch (error) {
      this.#failed(error);
    }
    return undefined;
  }

  /** Shows an error, or with null none. `show`: the person pressed a button that may be far below it. */
  #failed(error, { show = false } = {}) {
    const message = error?.message ?? "";
    this.#wrong.textContent = message;
    const line = /\bline (\d+)/.exec(message);
    this.#goTo.dataset.line = line?.[1] ?? "";
    this.#goTo.hidden = !line;
    this.#text.setAttribute("aria-invalid", String(Boolean(line)));
    if (show && message) this.#wrong.scrollIntoView({ block: "center" });
  }

  #goToLine() {
    const lines = this.#text.value.split("\n");
    const at = Math.min(lines.length, Number(this.#goTo.dataset.line)) - 1;
    const start = lines.slice(0, at).reduce((length, line) => length + line.length + 1, 0);
    this.#editing.open = true;
    this.#text.focus();
    this.#text.setSelectionRange(start, start + lines[at].length);
    this.#text.scrollTop = (this.#text.scrollHeight / lines.length) * Math.max(0, at - 4);
  }

  /** Writes the settings into the fragment, so that the address is a link to them. */
  #keep() {
    const sets = (values) => encodeSets(Object.entries(values));
    const kept = this.#kept?.made;
    this.#state.set({
      scenario: this.#scenario.value, text: this.#edited ? this.#text.value : null,
      algorithm: this.#algorithm.value, set: sets(this.#changed), more: this.#more.value, flows: this.#flows.value,
      // A link has one text, so it can have a kept run only of this text.
      kept: kept && kept.text === this.#text.value ? encodeSets(kept.sets) || "-" : null,
    });
    this.#loaded = this.#state.fragment();
  }

  #copyLink() {
    copy(location.href.split("#")[0] + this.#state.fragment()).catch((error) => this.#failed(error));
  }

  #column() {
    return new Column(this.#engine, {
      title: "Run", settings: () => this.#made(this.#sets()), scaleOf: (name) => this.#scaleOf(name),
      flows: () => this.#chosenFlows(), failed: (error, how) => this.#failed(error, how), ended: () => this.#draw(),
      more: [button("Keep this run beside the next one", () => this.#keepRun())],
    });
  }

  #keepRun() {
    if (!this.#current.made) return announce("Run first; then the run can be kept.");
    this.#kept?.free();
    this.#kept = this.#current;
    this.#keepColumn(this.#kept);
    this.#current = this.#column();
    this.#showColumns();
    this.#keep();
    return announce("Kept. Change a setting and run again to compare.");
  }

  #keepColumn(column) {
    column.keep("Kept run", button("Remove", () => {
      column.free();
      this.#kept = null;
      this.#showColumns();
      this.#keep();
      announce("The kept run is removed.");
    }));
  }

  #showColumns() {
    this.#columns.replaceChildren(...[this.#kept, this.#current].filter(Boolean).map(({ node }) => node));
    this.#columns.classList.toggle("is-single", this.#kept === null);
  }

  #scaleOf(name) {
    return Math.max(...[this.#kept, this.#current].filter(Boolean).map(({ data }) => data.largest(name)));
  }

  #chosenFlows() {
    const numbers = this.#flows.value.match(/\d+/g)?.map(Number) ?? [];
    return numbers.length > 0 ? numbers.slice(0, 6) : null;
  }

  #draw() {
    this.#kept?.draw();
    this.#current?.draw();
  }

  pause() {
    this.#kept?.pause();
    this.#current?.pause();
  }

  unmount() {
    clearTimeout(this.#timer);
    this.#kept?.free();
    this.#current?.free();
    this.#root.replaceChildren();
  }
}
