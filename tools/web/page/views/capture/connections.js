// The connections of a capture: the conclusion, the verdicts, and for the chosen one a ladder and a chart.

import { announce, button, count, el, errorPlace, guard, plural, size, time, wide } from "../../parts/dom.js";
import { createChart } from "../../parts/chart.js";
import { createLadder } from "../../parts/ladder.js";
import { plainTable } from "../../parts/table.js";

const OUTCOMES = { pass: "good", fail: "bad", unknown: "unknown" };
const ROWS = 60;
const MOST_ROWS = 2000;
const BINS = 120;
const MOST_PACKET_LINKS = 12;

/** Connections of a capture. Returns `{ element, update(state) }`. */
export function createConnections(options) {
  const view = new ConnectionsView(options);
  return { element: view.element, update: (state) => view.update(state) };
}

class ConnectionsView {
  #number = null;
  // Rows that were asked for, and rows that there are.
  #rows = ROWS;
  #shownRows = 0;

  constructor({ capture, summary, state, showPacket }) {
    Object.assign(this, { capture, summary, state, showPacket });
    this.problem = errorPlace();
    this.analysis = capture.analysis();
    this.heading = el("h3", { "aria-live": "polite" });
    this.verdicts = el("div", {});
    this.figures = wide("Figures");
    this.ladder = createLadder({
      label: "Sequence ladder", onPacket: (number) => this.showPacket(number), onMore: () => this.#more(),
    });
    this.traffic = createChart({ title: "Bytes over time" });
    this.events = createChart({ title: "Marks, CNPs and packets sent again over time" });
    this.detail = el("section", { hidden: true }, this.heading, this.problem,
      el("section", { class: "card" }, el("h4", { text: "Ladder" }), this.ladder.element),
      el("section", { class: "card" }, el("h4", { text: "Verdicts" }), this.verdicts),
      el("section", { class: "card" }, el("h4", { text: "Over time" }), this.traffic.element, this.events.element),
      el("section", { class: "card" }, el("h4", { text: "Figures" }), this.figures));
    this.element = el("div", {}, this.#conclusion(), this.#table(), this.detail);
  }

  /** Shows the connection that the state names, or the first one that has a failed verdict. */
  update(state) {
    const worst = this.summary.connections.find(({ verdicts }) => verdicts.fail > 0) ?? this.summary.connections[0];
    const asked = this.summary.connections.find(({ number }) => number === state.number("connection"));
    const chosen = asked ?? worst;
    if (chosen && chosen.number !== this.#number) this.#show(chosen.number);
  }

  #conclusion() {
    const whole = this.analysis.verdicts ?? [];
    return el("div", { class: "card" },
      el("h3", { text: "Conclusion" }),
      el("ul", {}, (this.analysis.conclusion ?? []).map((text) => el("li", { text }))),
      whole.length > 0 ? el("h4", { text: "Verdicts on the whole capture" }) : null,
      whole.length > 0 ? verdictList(whole, this.showPacket) : null);
  }

  #table() {
    const { connections } = this.summary;
    if (connections.length === 0) return el("p", { text: "The capture contains no connection." });
    const hex = (qp) => (typeof qp === "number" ? `QP 0x${qp.toString(16)}` : "");
    const rows = connections.map(({ number, a, b, a_qp: aQp, b_qp: bQp, packets, verdicts }) => [
      button(`Connection ${number}`, () => this.#choose(number), {
        "data-connection": number, "aria-pressed": "false",
      }),
      `${a} ${hex(aQp)}`, `${b} ${hex(bQp)}`, packets, tally(verdicts),
    ]);
    const head = ["Connection", "One end", "Other end", "Packets", "Verdicts"];
    return wide("Connections", plainTable(head, rows));
  }

  #choose(number) {
    this.state.set({ connection: number }, { push: true });
    this.#show(number);
  }

  #show(number) {
    this.#number = number;
    this.#rows = ROWS;
    for (const choice of this.element.querySelectorAll("[data-connection]")) {
      choice.setAttribute("aria-pressed", String(choice.dataset.connection === String(number)));
    }
    this.detail.hidden = false;
    const connection = this.analysis.connections.find((one) => one.number === number);
    this.heading.textContent = `Connection ${number}: ${connection.ends.map(({ name }) => name).join(" and ")}`;
    this.verdicts.replaceChildren(verdictList(connection.verdicts, this.showPacket));
    this.figures.replaceChildren(figuresOf(connection));
    guard(this.problem, () => {
      this.#showLadder(this.capture.ladder(number, this.#rows));
      this.#showSeries(this.capture.series(number, BINS), connection.ends);
    });
  }

  /** Opens folds by asking for more rows, until there are more. */
  #more() {
    guard(this.problem, () => {
      const before = this.#shownRows;
      let ladder;
      do {
        this.#rows = Math.min(MOST_ROWS, this.#rows * 4);
        ladder = this.capture.ladder(this.#number, this.#rows);
      } while (ladder.rows.length <= before && this.#rows < MOST_ROWS);
      this.#showLadder(ladder);
      if (ladder.rows.length <= before) {
        announce(`A ladder has at most ${count(MOST_ROWS)} rows. The list of packets shows all of them.`);
      }
    });
  }

  #showLadder(ladder) {
    this.#shownRows = ladder.rows.length;
    this.ladder.show(ladder);
  }

  #showSeries({ t_us: times, bytes, marks, cnps, again }, ends) {
    const points = (values) => times.map((us, place) => [us, values[place] ?? 0]);
    const x = { label: "time", format: time };
    this.traffic.show({
      x, y: { label: "bytes in each interval", format: size },
      series: bytes.map((values, side) => ({ name: `from ${ends[side].name}`, points: points(values) })),
    });
    this.events.show({
      x, y: { label: "packets in each interval", format: (value) => String(Math.round(value * 10) / 10), max: 1 },
      series: [
        { name: "marked by a switch (CE)", points: points(marks), kind: "bars" },
        { name: "CNPs", points: points(cnps), kind: "step" },
        { name: "sent again", points: points(again), kind: "step" },
      ],
    });
  }
}

function tally({ pass, fail, unknown }) {
  const parts = [];
  if (fail > 0) parts.push(el("span", { class: "state", "data-state": "bad", text: `${fail} failed` }), " ");
  if (pass > 0) parts.push(el("span", { class: "state", "data-state": "good", text: `${pass} passed` }), " ");
  if (unknown > 0) parts.push(el("span", { class: "state", "data-state": "unknown", text: `${unknown} unknown` }));
  return el("span", {}, parts);
}

/** Verdicts, failed ones first, each with links to the packets that prove it. */
function verdictList(verdicts, showPacket) {
  const order = ["fail", "unknown", "pass"];
  const sorted = [...verdicts].sort((one, other) => order.indexOf(one.outcome) - order.indexOf(other.outcome));
  return el("ul", { class: "verdicts" }, sorted.map((verdict) => el("li", { "data-key": verdict.key },
    el("span", { class: "state", "data-state": OUTCOMES[verdict.outcome] ?? "unknown", text: verdict.outcome }), " ",
    el("strong", { text: verdict.title }), `: ${verdict.summary} `,
    el("small", { text: `(rule ${verdict.rule}, ${verdict.source})` }),
    packetLinks(verdict.packets ?? [], showPacket))));
}

function packetLinks(packets, showPacket) {
  if (packets.length === 0) return null;
  const links = packets.slice(0, MOST_PACKET_LINKS).map((text) => (/^\d+$/.test(text)
    ? button(`packet ${text}`, () => showPacket(Number(text)))
    : el("span", { text: `packet ${text}` })));
  const rest = packets.length - links.length;
  return el("span", { class: "row" }, links, rest > 0 ? `and ${plural(rest, "packet")} more` : null);
}

/** What each end has sent, as a table with one column for each end. */
function figuresOf({ ends }) {
  const seconds = (value) => (value === null || value === undefined ? "–" : time(value * 1e6));
  const lines = [
    ["messages", ({ requests }) => requests.messages],
    ["bytes of messages", ({ requests }) => requests.bytes],
    ["path MTU", ({ requests }) => requests.path_mtu ?? "–"],
    ["packets lost", ({ requests }) => requests.lost_packets],
    ["packets sent again", ({ requests }) => requests.resent_packets],
    ["sequence NAKs", ({ requests }) => requests.sequence_naks],
    ["RNR NAKs", ({ requests }) => requests.rnr_naks],
    ["timeouts", ({ requests }) => requests.timeouts],
    ["round trip, median", ({ requests }) => seconds(requests.round_trips?.median_seconds)],
    ["round trip, 99 %", ({ requests }) => seconds(requests.round_trips?.p99_seconds)],
    ["packets with CE", (end) => end.marked_packets],
    ["CNPs sent", (end) => end.cnps_sent],
    ["damaged packets", (end) => end.damaged_packets],
  ];
  return plainTable(["requests of", ...ends.map(({ name }) => name)],
    lines.map(([name, value]) => [name, ...ends.map((end) => value(end))]), { figures: true });
}
