// A capture file: its packets, its connections with their verdicts, ladders and charts.

import { button, count, el, errorPlace, plural } from "../parts/dom.js";
import { isServed, loadCapture } from "../parts/server.js";
import { createConnections } from "./capture/connections.js";
import { createPackets } from "./capture/packets.js";

export const title = "Capture";

export const keys = [["↑ ↓ Page Up Page Down Home End", "in the list of packets: go to another packet"]];

const TABS = { packets: "Packets", connections: "Connections" };

export function mount(root, engine, state) {
  const view = new CaptureView(root, engine, state);
  view.update(state);
  if (isServed) view.openServed();
  return { update: (next) => view.update(next), unmount: () => view.close() };
}

class CaptureView {
  #capture = null;
  #summary = null;
  // The parts of the open capture, by the name of their tab.
  #parts = {};

  constructor(root, engine, state) {
    this.root = root;
    this.engine = engine;
    this.state = state;
    this.problem = errorPlace();
    this.wanted = el("p", { hidden: true });
    this.file = el("input", { type: "file", class: "off-screen", tabindex: -1, "aria-label": "Capture file",
      change: () => this.#openFile(this.file.files[0]) });
    this.place = el("div", { class: "drop" },
      el("p", {}, el("strong", { text: "Drop a capture file here" }), ", or ",
        button("Open a file…", () => this.file.click(), { class: "primary" }), this.file),
      el("small", { text: "pcap or pcapng, also compressed with gzip. The file stays in this page." }));
    this.headline = el("div", { "aria-live": "polite" });
    this.switch = el("div", { class: "row", role: "group", "aria-label": "Parts of the capture", hidden: true },
      Object.entries(TABS).map(([name, text]) => button(text, () => this.#choose(name), { "data-tab": name })));
    this.body = el("div", {});
    root.append(el("h2", { text: "Capture" }), this.place, this.problem, this.wanted, this.headline, this.switch,
      this.body);
    this.#takeDrops(root);
  }

  /** Shows what the state names, once its file is open. */
  update(state) {
    if (!this.#capture) {
      const name = state.get("file");
      this.wanted.hidden = !name;
      this.wanted.textContent = name ? `This link shows a part of ${name}. Open that file to see it.` : "";
      return;
    }
    this.#show();
  }

  close() {
    this.#capture?.free();
    this.#capture = null;
    this.root.replaceChildren();
  }

  #takeDrops(root) {
    const over = (event, isOver) => {
      event.preventDefault();
      this.place.classList.toggle("over", isOver);
    };
    root.addEventListener("dragover", (event) => over(event, true));
    root.addEventListener("dragleave", (event) => over(event, false));
    root.addEventListener("drop", (event) => {
      over(event, false);
      this.#openFile(event.dataTransfer.files[0]);
    });
  }

  /** Opens the capture that `roce explore` was started with. */
  async openServed() {
    try {
      await this.#openFile(await loadCapture());
    } catch (error) {
      this.problem.textContent = error.message ?? String(error);
    }
  }

  async #openFile(file) {
    if (!file) return;
    this.problem.textContent = "";
    this.headline.replaceChildren(el("p", { text: `Reading ${file.name}…` }));
    try {
      const bytes = new Uint8Array(await file.arrayBuffer());
      // The engine blocks the page while it reads, so the line above must be visible first.
      await new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); });
      this.#take(file.name, bytes);
    } catch (error) {
      this.problem.textContent = error.message ?? String(error);
      this.headline.replaceChildren();
      if (this.#capture) this.#showHeadline();
    }
    // The dialog tells nothing about a file that is chosen again, unless the value was empty in between.
    this.file.value = "";
  }

  #take(name, bytes) {
    const capture = this.engine.open(name, bytes);
    this.#capture?.free();
    this.#capture = capture;
    this.#summary = capture.summary();
    this.#parts = {};
    this.wanted.hidden = true;
    // A link that was made for this file keeps its place; the places of another file mean nothing here.
    if (this.state.get("file") !== name) {
      this.state.set({ file: name, filter: null, packet: null, connection: null, tab: null });
    }
    this.#showHeadline();
    this.#show();
  }

  #showHeadline() {
    const { name, packets, roce, malformed, bad_icrc: bad, seconds, connections } = this.#summary;
    const { why_empty: why, damage } = this.#summary;
    const parts = [`${plural(packets, "packet")}, ${count(roce)} RoCE, in ${seconds.toFixed(3)} s`,
      plural(connections.length, "connection")];
    if (malformed > 0) parts.push(`${count(malformed)} malformed`);
    if (bad > 0) parts.push(`${count(bad)} with a wrong ICRC`);
    this.headline.replaceChildren(el("p", {}, el("strong", { text: name }), `: ${parts.join("; ")}.`));
    if (why) this.headline.append(el("p", { class: "warn", text: why }));
    if (damage) this.headline.append(el("p", { class: "warn", text: `The file is damaged: ${damage}` }));
    this.place.classList.add("is-small");
  }

  #choose(name) {
    this.state.set({ tab: name === "packets" ? null : name }, { push: true });
    this.#show();
  }

  #show() {
    const asked = this.state.get("tab", "packets");
    const name = Object.hasOwn(TABS, asked) ? asked : "packets";
    this.switch.hidden = false;
    for (const tab of this.switch.children) tab.setAttribute("aria-pressed", String(tab.dataset.tab === name));
    this.#parts[name] ??= this.#make(name);
    const part = this.#parts[name];
    if (this.body.firstElementChild !== part.element) this.body.replaceChildren(part.element);
    part.update(this.state);
  }

  #make(name) {
    const options = {
      capture: this.#capture, summary: this.#summary, state: this.state,
      showPacket: (number) => this.#showPacket(number),
    };
    return name === "packets" ? createPackets(options) : createConnections(options);
  }

  /** Goes to a packet from a verdict or a ladder; the back button returns. */
  #showPacket(number) {
    this.state.set({ tab: null, packet: number, filter: null }, { push: true });
    this.#show();
  }
}
