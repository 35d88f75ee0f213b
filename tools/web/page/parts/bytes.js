// The bytes of a frame, coloured and labelled by header. The arrow keys move between bytes.

import { byteText, el, onWidth, toBytes, uniqueId } from "./dom.js";

const TINTS = {
  Ethernet: "link", VLAN: "link", "S-VLAN": "link", LRH: "link", pause: "link", PFC: "link",
  MPLS: "link", GRE: "link", "ERSPAN II": "link", "ERSPAN III": "link", VXLAN: "link", Geneve: "link",
  IPv4: "ip", IPv6: "ip", GRH: "ip", options: "ip", UDP: "udp", BTH: "bth",
  payload: "payload", pad: "pad", trailer: "pad", ICRC: "icrc", VCRC: "icrc",
};

/**
 * The class that colours a header. Headers between the BTH and the payload share a colour; their labels
 * differ.
 */
export function tintOf(header) {
  return `tint-${TINTS[header] ?? "ext"}`;
}

/** Headers with their range of bytes; bytes that belong to no header become one without a name. */
export function runsOf({ headers, bytes }) {
  const total = bytes.length / 2;
  const runs = [];
  let at = 0;
  for (const header of headers) {
    if (header.offset > at) runs.push({ name: "not decoded", start: at, end: header.offset });
    const end = header.offset + header.bytes.length / 2;
    if (end > header.offset) runs.push({ name: header.name, start: header.offset, end });
    at = Math.max(at, end);
  }
  if (total > at) runs.push({ name: "not decoded", start: at, end: total });
  return runs;
}

/**
 * The bytes of a frame. `onSelect(byte)` is called when the reader chooses a byte.
 *
 * `show(frame)` draws the JSON of a frame, `select(byte, start, end)` selects a byte and marks a range.
 * Returns `{ element, show, select, focus }`.
 */
export function createBytes({ label = "Bytes of the frame", onSelect = () => {} } = {}) {
  return new Bytes({ label, onSelect }).face();
}

class Bytes {
  #frame = null;
  #cells = [];
  #byte = 0;
  #range = [0, 0];
  #columns = 16;

  constructor(options) {
    this.options = options;
    this.name = uniqueId("byte");
    this.grid = el("div", {
      class: "bytes", role: "grid", "aria-label": options.label, "aria-readonly": "true",
      click: (event) => this.#click(event), keydown: (event) => this.#key(event),
    });
    onWidth(this.grid, (width) => this.#resize(width));
  }

  face() {
    return {
      element: this.grid,
      show: (frame) => this.#show(frame),
      select: (byte, start = byte, end = byte + 1) => this.#select(byte, start, end),
      focus: () => this.#cells[this.#byte]?.focus(),
    };
  }

  /** Eight bytes in a line where sixteen do not fit. */
  #resize(width) {
    const columns = width < 480 ? 8 : 16;
    if (width === 0 || columns === this.#columns) return;
    this.#columns = columns;
    if (this.#frame) this.#show(this.#frame);
  }

  #show(frame) {
    this.#frame = frame;
    const bytes = toBytes(frame.explain.bytes);
    const masks = new Map(frame.masked ?? []);
    const isCovered = (byte) => (frame.covered ?? []).some(([start, end]) => byte >= start && byte < end);
    this.#cells = [];
    this.grid.replaceChildren(...runsOf(frame.explain).flatMap((run) => this.#run(run, bytes, masks, isCovered)));
    if (this.#byte >= this.#cells.length) this.#byte = 0;
    this.#select(this.#byte, ...this.#range);
  }

  #run({ name, start, end }, bytes, masks, isCovered) {
    const lines = [];
    for (let from = start; from < end; from += this.#columns) {
      const to = Math.min(end, from + this.#columns);
      const cells = el("span", { class: "cells", role: "presentation" });
      for (let byte = from; byte < to; byte += 1) cells.append(this.#cell(byte, bytes[byte], name, masks, isCovered));
      const ascii = String.fromCharCode(...bytes.slice(from, to).map((byte) => (byte < 32 || byte > 126 ? 46 : byte)));
      lines.push(el("div", { class: `run ${tintOf(name)}`, role: "row" },
        from === start
          ? el("span", { class: "label", role: "rowheader", text: name })
          : el("span", { class: "label", role: "presentation" }),
        el("span", { class: "offset", role: "presentation", "aria-hidden": "true", text: String(from) }),
        cells,
        el("span", { class: "ascii", role: "presentation", "aria-hidden": "true", text: ascii })));
    }
    return lines;
  }

  #cell(byte, value, header, masks, isCovered) {
    const mask = masks.get(byte) ?? 0;
    const words = [`byte ${byte}, ${header}, 0x${byteText(value)}`];
    if (mask === 255) words.push("counts as ones for the ICRC");
    else if (mask) words.push("some bits count as ones for the ICRC");
    const covered = isCovered(byte);
    if (!covered) words.push("not covered by the ICRC");
    const cell = el("span", {
      class: `cell${mask ? " masked" : ""}${covered ? "" : " uncovered"}`, role: "gridcell", tabindex: -1,
      "aria-label": words.join(", "), text: byteText(value),
    });
    cell.byte = byte;
    this.#cells[byte] = cell;
    return cell;
  }

  #select(byte, start, end) {
    const old = this.#cells[this.#byte];
    old?.setAttribute("tabindex", -1);
    old?.removeAttribute("aria-selected");
    for (const cell of this.grid.querySelectorAll(".picked")) cell.classList.remove("picked");
    this.#byte = Math.max(0, Math.min(byte, this.#cells.length - 1));
    this.#range = [start, end];
    for (const cell of this.#cells.slice(start, end)) cell.classList.add("picked");
    const cell = this.#cells[this.#byte];
    cell?.setAttribute("tabindex", 0);
    cell?.setAttribute("aria-selected", "true");
  }

  #click(event) {
    const cell = event.target.closest(".cell");
    if (!cell) return;
    this.options.onSelect(cell.byte);
    cell.focus();
  }

  #key(event) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.options.onSelect(this.#byte);
      return;
    }
    const line = this.#columns;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: line, ArrowUp: -line };
    const last = this.#cells.length - 1;
    let next = this.#byte + (steps[event.key] ?? 0);
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = last;
    else if (!(event.key in steps)) return;
    event.preventDefault();
    this.options.onSelect(Math.max(0, Math.min(last, next)));
    this.#cells[this.#byte]?.focus();
  }
}
