// The list of packets with its filter, and the chosen packet.

import { button, copy, count, el, errorPlace, guard, labelled, plural } from "../../parts/dom.js";
import { createPacket } from "../../parts/packet.js";
import { open } from "../../parts/state.js";
import { createList } from "../../parts/table.js";

const FILTER_AFTER_MS = 200;
const SAMPLES = ["mark=gap", "opcode=ACK", "icrc=bad", "ecn=ce", "connection=1"];

const COLUMNS = [
  { title: "#", width: "4.5rem", number: true, text: ({ number }) => number },
  { title: "seconds", width: "6.2rem", number: true, text: ({ seconds }) => secondsText(seconds) },
  { title: "source", width: "minmax(7.5rem, 1fr)", text: ({ source }) => source ?? "-" },
  { title: "destination", width: "minmax(7.5rem, 1fr)", text: ({ destination }) => destination ?? "-" },
  { title: "opcode", width: "minmax(14rem, 1.6fr)", text: ({ opcode }) => opcode ?? "-" },
  { title: "QP", width: "5rem", number: true, text: ({ qp }) => numberText(qp) },
  { title: "PSN", width: "5.2rem", number: true, text: ({ psn }) => psn ?? "-" },
  { title: "bytes", width: "3.8rem", number: true, text: ({ bytes }) => bytes ?? "-" },
  { title: "flags", width: "3.5rem", text: ({ flags }) => flags || "-" },
  { title: "ICRC", width: "3.5rem", text: ({ icrc }) => (icrc === "bad" ? "BAD" : icrc ?? "-") },
  { title: "mark", width: "4.5rem", text: ({ mark }) => mark || "-" },
  { title: "note", width: "minmax(9rem, 2fr)", text: ({ note }) => note ?? "" },
];

// A phone shows the first columns without scrolling.
const FIRST_IF_NARROW = ["#", "opcode", "PSN", "mark"];
const NARROW = "(max-width: 40rem)";

function columns() {
  if (!matchMedia(NARROW).matches) return COLUMNS;
  const first = FIRST_IF_NARROW.map((name) => COLUMNS.find(({ title }) => title === name));
  return [...first, ...COLUMNS.filter((column) => !first.includes(column))]
    .map((column) => (column.title === "opcode" ? { ...column, width: "12rem" } : column));
}

function numberText(qp) {
  return typeof qp === "number" ? `0x${qp.toString(16)}` : qp ?? "-";
}

function secondsText(seconds) {
  return typeof seconds === "number" ? seconds.toFixed(6) : seconds ?? "-";
}

/** Packets of a capture. Returns `{ element, update(state) }`. */
export function createPackets(options) {
  const view = new PacketsView(options);
  return { element: view.element, update: (state) => view.update(state) };
}

class PacketsView {
  #total = 0;
  #filter = null;
  #number = null;

  constructor({ capture, summary, state }) {
    this.capture = capture;
    this.summary = summary;
    this.state = state;
    this.problem = errorPlace();
    this.found = el("p", { class: "faint", "aria-live": "polite" });
    this.list = createList({
      label: "Packets", columns: columns(), height: "min(24rem, 50vh)",
      fetch: (from, rows) => this.capture.rows(this.#filter ?? "", from, rows).rows,
      pick: (row) => this.#pick(row.number),
      lineClass: ({ icrc, mark }) => (icrc === "bad" ? "is-bad" : mark && mark !== "-" ? "is-mark" : ""),
    });
    this.headline = el("h3", { "aria-live": "polite" });
    this.packet = createPacket({
      onSelect: ({ byte }) => this.state.set({ byte: byte === 0 ? null : byte }),
    });
    this.chosen = el("section", { class: "card", hidden: true }, this.headline, this.#makeTools(), this.packet.element);
    this.element = el("div", {}, this.#makeFilter(), this.problem, this.found, this.list.element, this.chosen);
  }

  #makeFilter() {
    this.text = el("input", {
      type: "search", spellcheck: "false", autocomplete: "off", placeholder: "qp=0x11 opcode=ACK psn=5..9",
      input: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.#setFilter(this.text.value), FILTER_AFTER_MS);
      },
    });
    const block = labelled("Filter: conditions that must all hold", this.text);
    block.classList.add("grow");
    return el("div", {}, el("div", { class: "row" }, block),
      el("p", {}, el("small", {}, "For example: "), SAMPLES.map((sample) => button(sample, () => {
        this.text.value = sample;
        this.#setFilter(sample);
      }, { class: "plain mono" }))));
  }

  #makeTools() {
    return el("div", { class: "row" },
      button("Previous", () => this.list.pick(this.list.index() - 1)),
      button("Next", () => this.list.pick(this.list.index() + 1)),
      button("Change it in the view Frame", () => open(`#frame&hex=${this.shown.explain.bytes}`)),
      button("Copy as hex", () => copy(this.shown.explain.bytes).catch((error) => {
        this.problem.textContent = error.message;
      })));
  }

  /** Shows what the state names. */
  update(state) {
    const filter = state.get("filter", "");
    if (filter !== this.#filter) {
      this.text.value = filter;
      this.#setFilter(filter);
    }
    const number = state.number("packet");
    if (number !== null && number !== this.#number) this.#goTo(number, state.number("byte"));
  }

  #setFilter(filter) {
    const found = guard(this.problem, () => this.capture.rows(filter, 0, 1));
    // With a wrong filter the list keeps showing the rows of the last right one.
    this.text.setAttribute("aria-invalid", String(!found));
    if (!found) return;
    this.#filter = filter;
    this.#total = found.total;
    this.list.setTotal(found.total);
    this.found.textContent = filter.trim() === ""
      ? plural(found.total, "packet")
      : `${count(found.total)} of ${plural(this.summary.packets, "packet")}`;
    this.state.set({ filter: filter.trim() === "" ? null : filter });
    const place = this.#number === null ? -1 : this.#placeOf(this.#number);
    if (place >= 0) this.list.moveTo(place);
  }

  /** The place of a packet in the list, or -1 if the filter hides it. Numbers ascend. */
  #placeOf(number) {
    let [low, high] = [0, this.#total - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      const [row] = this.capture.rows(this.#filter ?? "", middle, 1).rows;
      if (row.number === number) return middle;
      if (row.number < number) low = middle + 1;
      else high = middle - 1;
    }
    return -1;
  }

  #goTo(number, byte) {
    const place = this.#placeOf(number);
    if (place >= 0) this.list.moveTo(place);
    this.#pick(number);
    if (byte !== null) this.packet.select(byte);
  }

  #pick(number) {
    const frame = guard(this.problem, () => this.capture.packet(number));
    if (!frame) return;
    this.#number = number;
    this.shown = frame;
    this.chosen.hidden = false;
    const { length, "roce.opcode": opcode } = frame.explain;
    this.headline.textContent = `Packet ${number}: ${opcode ?? "not RoCE"}, ${plural(length, "byte")}`;
    this.packet.show(frame);
    this.state.set({ packet: number });
  }
}
