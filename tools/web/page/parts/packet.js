// A frame as bytes and as a tree of fields that show the same selection, with the bits of the selected byte.

import { createBytes } from "./bytes.js";
import { byteText, el, plural, toBytes } from "./dom.js";
import { createTree, placeOf } from "./tree.js";

/**
 * Shows a frame. Options:
 *
 * - `onBit(bit)`: the reader has pressed a bit of the frame. Without it, bits are shown but cannot be
 *   changed.
 * - `extra`: an element below the bits, such as an editor of the selected field.
 * - `onSelect(selection)`: the selection has changed; `{ byte, header, field }`, the last two as objects or
 *   null.
 *
 * `show(frame)` draws the JSON of a frame and keeps the selected byte, `select(byte)` selects a byte, and
 * `selection()` returns the selection. Returns `{ element, show, select, selection }`.
 */
export function createPacket({ onBit = null, extra = null, onSelect = () => {} } = {}) {
  const view = new PacketView({ onBit, extra, onSelect });
  return {
    element: view.element,
    show: (frame) => view.show(frame),
    select: (byte) => view.selectByte(byte),
    selection: () => view.selection(),
  };
}

class PacketView {
  #frame = null;
  #byte = 0;
  // Indexes of the selected field in the document, or null where no field contains the byte.
  #field = null;

  constructor(options) {
    this.options = options;
    this.bytes = createBytes({ onSelect: (byte) => this.selectByte(byte) });
    this.tree = createTree({ onSelect: (header, field) => this.#selectField(header, field) });
    this.about = el("div", { "aria-live": "polite" });
    this.bits = el("div", { class: "bits", role: "group", "aria-label": "Bits of the selected byte" });
    this.element = el("div", { class: "packet columns" },
      el("div", {},
        el("div", { class: "wide card" }, this.bytes.element),
        el("p", {}, el("small", { class: "legend-mask" },
          "Hatched bytes contain bits that count as ones for the ICRC. ",
          "The ICRC does not cover bytes that are underlined with dots.")),
        el("div", { class: "card" }, this.about, this.bits), options.extra),
      el("div", {}, this.tree.element));
    this.bits.addEventListener("keydown", (event) => moveBit(this.bits, event));
  }

  show(frame) {
    this.#frame = frame;
    const length = frame.explain.bytes.length / 2;
    this.#byte = Math.max(0, Math.min(this.#byte, length - 1));
    this.bytes.show(frame);
    this.tree.show(frame);
    // An edit keeps the field; another frame may have another one at this byte.
    if (!this.#contains(this.#field, this.#byte)) this.#field = this.#fieldsOf(this.#byte)[0] ?? null;
    this.#draw();
  }

  /** Selects a byte. Choosing it again selects its next field. */
  selectByte(byte) {
    if (!this.#frame) return;
    const fields = this.#fieldsOf(byte);
    const again = byte === this.#byte
      ? fields.findIndex((field) => field.header === this.#field?.header && field.field === this.#field?.field)
      : -1;
    this.#byte = byte;
    this.#field = fields[(again + 1) % Math.max(1, fields.length)] ?? null;
    this.#draw();
  }

  selection() {
    const header = this.#field ? this.#frame.explain.headers[this.#field.header] : null;
    return { byte: this.#byte, header, field: header ? header.fields[this.#field.field] : null };
  }

  #selectField(header, field) {
    this.#field = { header, field };
    [this.#byte] = this.#range();
    this.#draw();
  }

  #fieldsOf(byte) {
    return this.#frame.explain.headers.flatMap(({ fields }, header) => fields.map((_, field) => ({ header, field })))
      .filter((place) => this.#contains(place, byte));
  }

  #contains(place, byte) {
    const header = place && this.#frame.explain.headers[place.header];
    const field = header?.fields[place.field];
    if (!field) return false;
    const [start, end] = rangeOf(header, field);
    return byte >= start && byte < end;
  }

  #range() {
    const { header, field, byte } = this.selection();
    return field ? rangeOf(header, field) : [byte, byte + 1];
  }

  #draw() {
    const selection = this.selection();
    this.bytes.select(this.#byte, ...this.#range());
    if (this.#field) this.tree.select(this.#field.header, this.#field.field);
    else this.tree.select(-1, -1);
    const focused = [...this.bits.children].indexOf(document.activeElement);
    this.about.replaceChildren(...describe(this.#frame, selection));
    this.bits.replaceChildren(...this.#bitButtons(selection));
    this.bits.children[focused]?.focus();
    this.options.onSelect(selection);
  }

  #bitButtons({ byte, header, field }) {
    const value = toBytes(this.#frame.explain.bytes)[byte] ?? 0;
    const first = field ? header.offset * 8 + field.first_bit : -1;
    return Array.from({ length: 8 }, (_, bit) => {
      const isSet = ((value >> (7 - bit)) & 1) === 1;
      const place = byte * 8 + bit;
      const isOfField = field !== null && place >= first && place < first + field.bits;
      const words = `bit ${bit} of byte ${byte}, is ${isSet ? 1 : 0}${isOfField ? `, part of ${field.name}` : ""}`;
      return el("button", {
        type: "button", text: isSet ? "1" : "0", "aria-pressed": String(isSet), "aria-label": words, title: words,
        class: isOfField ? "of-field" : null, disabled: this.options.onBit === null,
        click: () => this.options.onBit?.(place),
      });
    });
  }
}

/** The bytes of a field, from the first to the one behind the last. */
export function rangeOf(header, { first_bit: first, bits }) {
  return [header.offset + Math.floor(first / 8), header.offset + Math.max(Math.ceil((first + bits) / 8), 1)];
}

function describe(frame, { byte, header, field }) {
  const bytes = toBytes(frame.explain.bytes);
  if (bytes.length === 0) return [el("p", { text: "The frame has no bytes." })];
  const lines = [];
  if (field) {
    lines.push(
      el("h3", { text: `${header.name}: ${field.name}` }),
      el("p", {}, el("span", { class: "mono", text: `${field.text}${field.note ? `  ${field.note}` : ""}` })),
      el("p", { text: field.meaning }),
      el("p", {}, el("small", {
        text: `${placeInWords(header, field)}${field.pattern ? ` (${field.pattern})` : ""}; ${field.key}. `
          + (field.masked_from_icrc ? "It counts as ones for the ICRC." : ""),
      })));
  }
  const mask = new Map(frame.masked ?? []).get(byte) ?? 0;
  const masked = Array.from({ length: 8 }, (_, bit) => bit).filter((bit) => (mask >> (7 - bit)) & 1);
  const isCovered = (frame.covered ?? []).some(([start, end]) => byte >= start && byte < end);
  let cover = isCovered ? "The ICRC covers it." : "The ICRC does not cover it.";
  if (masked.length === 8) cover = "For the ICRC, all its bits count as ones.";
  else if (masked.length > 0) cover = `For the ICRC, these of its bits count as ones: ${masked.join(", ")}.`;
  lines.push(el("p", { text: `Byte ${byte}: 0x${byteText(bytes[byte])}, ${bytes[byte]}. ${cover}` }));
  return lines;
}

/** "Bytes 44-45, 16 bits" or "Byte 43, bits 2-3". */
function placeInWords(header, field) {
  const [bytes, bits] = placeOf(header, field).split(".");
  const place = `${bytes.includes("-") ? "Bytes" : "Byte"} ${bytes}`;
  if (bits === undefined) return `${place}, ${plural(field.bits, "bit")}`;
  return `${place}, ${bits.includes("-") ? "bits" : "bit"} ${bits}`;
}

function moveBit(root, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const buttons = [...root.children];
  const next = buttons[buttons.indexOf(event.target) + (step ?? 0)];
  if (!step || !next) return;
  event.preventDefault();
  next.focus();
}
