// One frame: its bytes, fields and bits, the checks on it, what a responder would answer, and changes to it.

import { button, copy, download, el, errorPlace, guard, labelled, plural } from "../parts/dom.js";
import { createPacket } from "../parts/packet.js";
import { createBuilder } from "./frame/build.js";
import { answerOf, checksOf } from "./frame/judge.js";

export const title = "Frame";

export const keys = [["Ctrl-Enter", "in the digits of a frame: explain them"]];

const STARTS = { auto: "detect it", ethernet: "Ethernet", ip: "IPv4, IPv6 or GRH", udp: "UDP", bth: "BTH" };
const MOST_STEPS = 200;

export function mount(root, engine, state) {
  const view = new FrameView(root, engine, state);
  view.update(state);
  return { update: (next) => view.update(next), unmount: () => root.replaceChildren() };
}

class FrameView {
  #hex = null;
  #from = "auto";
  #frame = null;
  // Frames before and after the shown one, for undo and redo: `{ hex, from }`.
  #before = [];
  #after = [];

  constructor(root, engine, state) {
    this.engine = engine;
    this.state = state;
    this.examples = engine.examples();
    this.problem = errorPlace();
    this.headline = el("p", { class: "headline", "aria-live": "polite" });
    this.editor = this.#makeEditor();
    this.packet = createPacket({
      extra: el("section", { class: "card" }, el("h3", { text: "Change a field" }), this.editor.element),
      onBit: (bit) => this.#change(() => engine.setBit(this.#hex, bit)),
      onSelect: (selection) => this.#selected(selection),
    });
    this.checks = el("div", {});
    this.answer = el("div", {});
    root.append(
      el("h2", { text: "Frame" }), this.#makeInput(), this.problem, this.headline, this.packet.element,
      el("div", { class: "columns" },
        el("section", { class: "card" }, el("h3", { text: "Checks" }), this.checks),
        el("section", { class: "card" }, el("h3", { text: "What a responder answers" }), this.answer)),
      el("section", { class: "card" }, el("h3", { text: "Copy and download" }), this.#makeExports()),
      el("details", { class: "card" }, el("summary", {}, el("h3", { text: "Build a frame from fields" })),
        createBuilder(engine, (hex) => this.#open(hex, "ethernet"))));
  }

  /** Shows what the state names: a frame in hexadecimal digits, or the first example. */
  update(state) {
    const hex = state.get("hex") ?? this.#hex ?? this.examples[0].hex;
    const from = state.get("from") ?? (state.get("hex") ? "auto" : this.#hex ? this.#from : this.examples[0].from);
    // Showing a frame selects a byte, which changes the state.
    const byte = state.number("byte");
    if (hex !== this.#hex || from !== this.#from) this.#open(hex, from);
    if (byte !== null && byte !== this.packet.selection().byte) this.packet.select(byte);
  }

  #makeInput() {
    this.text = el("textarea", {
      rows: 3, spellcheck: "false", autocomplete: "off",
      placeholder: "0200c0000202… or the output of tshark -x, tcpdump -xx, xxd",
      // A paste is shown at once; typing is shown with the button or Ctrl-Enter.
      paste: () => setTimeout(() => this.#openText()),
      keydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#openText(); },
    });
    this.start = el("select", { change: () => this.#openText() },
      Object.entries(STARTS).map(([value, text]) => el("option", { value, text })));
    const examples = el("select", {
      change: () => {
        const example = this.examples[examples.value];
        if (example) this.#open(example.hex, example.from);
      },
    }, el("option", { value: "", text: "choose…" }),
    this.examples.map(({ name, about }, place) => el("option", { value: place, text: name, title: about })));
    this.menu = examples;
    this.undo = button("Undo", () => this.#step(this.#before, this.#after));
    this.redo = button("Redo", () => this.#step(this.#after, this.#before));
    return el("div", {},
      labelled("Frame in hexadecimal digits", this.text),
      el("div", { class: "row below" },
        button("Explain", () => this.#openText(), { class: "primary" }),
        labelled("It starts with", this.start), labelled("Examples", examples), this.undo, this.redo));
  }

  #openText() {
    this.#open(this.text.value, this.start.value);
  }

  #makeEditor() {
    const name = el("p", { class: "mono" });
    const value = el("input", {
      type: "text", spellcheck: "false", autocomplete: "off",
      keydown: (event) => { if (event.key === "Enter") set(); },
    });
    const repair = el("input", { type: "checkbox", checked: true, id: "repair" });
    const problem = errorPlace();
    const set = () => guard(problem, () => {
      const { field } = this.packet.selection();
      this.#accept(this.engine.setField(this.#hex, this.#from, field.key, value.value, repair.checked));
    });
    const change = button("Set the field", set, { class: "primary" });
    const element = el("div", {}, name,
      el("div", { class: "row" }, labelled("New value: decimal, 0x… or an address", value), change),
      el("p", {}, repair, " ", el("label", { for: "repair", text: "Repair lengths, checksums and the ICRC" })),
      problem);
    const show = ({ header, field }) => {
      name.textContent = field
        ? `${header.name}: ${field.name} = ${field.text}`
        : "No field contains the selected byte.";
      // A value that is being typed stays, unless the field changes.
      if (document.activeElement !== value || element.dataset.key !== field?.key) value.value = field?.text ?? "";
      element.dataset.key = field?.key ?? "";
      change.disabled = !field;
      problem.textContent = "";
    };
    return { element, show };
  }

  #makeExports() {
    const problem = errorPlace();
    const copied = (format) => guard(problem, () => copy(this.engine.exportFrame(this.#hex, this.#from, format)))
      ?.catch((error) => { problem.textContent = error.message; });
    const formats = {
      hex: "Copy as hex dump", rust: "Copy as Rust", scapy: "Copy as scapy", command: "Copy the command",
    };
    return el("div", {},
      el("div", { class: "row" },
        button("Download as pcap", () => guard(problem, () => {
          download("frame.pcap", this.engine.framePcap([this.#hex]), "application/vnd.tcpdump.pcap");
        })),
        Object.entries(formats).map(([format, text]) => button(text, () => copied(format))),
        button("Copy the link", () => copy(this.#link()).catch((error) => { problem.textContent = error.message; }))),
      problem,
      el("p", {}, el("small", {
        text: "The link contains the whole frame, so it shows the frame to anyone who has this page.",
      })));
  }

  /** The address writes changes with a delay, so the link is made from the state. */
  #link() {
    return location.href.replace(/#.*/, "") + this.state.fragment();
  }

  /** Makes a new frame of the shown one; an error is shown and changes nothing. */
  #change(action) {
    guard(this.problem, () => this.#accept(action()));
  }

  #accept(hex) {
    this.#open(hex, this.#from, true);
  }

  /** Shows another frame, and remembers the old one. `rethrow`: the caller shows the error. */
  #open(hex, from, rethrow = false) {
    const action = () => {
      const frame = this.engine.frame(hex, from);
      const old = { hex: this.#hex, from: this.#from };
      this.#show(frame, from);
      if (old.hex !== null && (old.hex !== this.#hex || old.from !== from)) {
        this.#before.push(old);
        this.#before.splice(0, this.#before.length - MOST_STEPS);
        this.#after = [];
      }
      this.#showSteps();
    };
    if (rethrow) action();
    else guard(this.problem, action);
  }

  #step(take, give) {
    const next = take.pop();
    if (!next) return;
    give.push({ hex: this.#hex, from: this.#from });
    guard(this.problem, () => this.#show(this.engine.frame(next.hex, next.from), next.from));
    this.#showSteps();
  }

  #showSteps() {
    this.undo.disabled = this.#before.length === 0;
    this.redo.disabled = this.#after.length === 0;
  }

  #show(frame, from) {
    this.#frame = frame;
    this.#hex = frame.explain.bytes;
    this.#from = from;
    this.text.value = this.#hex;
    this.start.value = from;
    const example = this.examples.findIndex(({ hex }) => hex.replace(/\s/g, "") === this.#hex);
    this.menu.value = example < 0 ? "" : String(example);
    this.headline.replaceChildren(...headline(frame));
    this.packet.show(frame);
    this.checks.replaceChildren(checksOf(frame.checks));
    this.answer.replaceChildren(...answerOf(frame.answer, (hex, from) => this.#open(hex, from)));
    this.state.set({ hex: this.#hex, from: from === "auto" ? null : from });
  }

  #selected(selection) {
    this.editor.show(selection);
    // The first byte is what a link without a byte shows.
    this.state.set({ byte: selection.byte === 0 ? null : selection.byte });
  }
}

/** One line: the opcode, the length, and whether the ICRC is right. */
function headline({ explain, checks }) {
  const bad = checks.filter(({ state }) => state === "bad").length;
  const icrc = explain["roce.icrc"];
  const states = { ok: "good", bad: "bad" };
  return [
    el("strong", { text: explain["roce.opcode"] ?? "Not a RoCE packet" }), `, ${plural(explain.length, "byte")}. `,
    icrc ? el("span", { class: "state", "data-state": states[icrc] ?? "unknown", text: `ICRC ${icrc}` }) : null,
    bad > 0 ? ` ${plural(bad, "check")} failed.` : null,
  ].filter((part) => part !== null);
}
