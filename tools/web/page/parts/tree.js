// The headers of a frame with their fields, as lists that open and close.

import { tintOf } from "./bytes.js";
import { el } from "./dom.js";

/**
 * The headers and fields of a frame. `onSelect(header, field)` gets the two indexes when the reader chooses a
 * field.
 *
 * `show(frame)` draws the JSON of a frame, `select(header, field)` marks a field, and opens its header.
 * Returns `{ element, show, select }`.
 */
export function createTree({ label = "Headers and fields", onSelect = () => {} } = {}) {
  const root = el("div", { class: "tree", role: "group", "aria-label": label });
  // Headers that the reader has closed stay closed when another frame is shown.
  const closed = new Set();
  let fields = new Map();

  root.addEventListener("click", (event) => {
    const field = event.target.closest(".field");
    if (field) onSelect(field.header, field.index);
  });
  root.addEventListener("keydown", (event) => moveFocus(root, event));

  function show(frame) {
    fields = new Map();
    root.replaceChildren(...frame.explain.headers.map((header, place) => {
      const details = el("details", { class: tintOf(header.name), open: !closed.has(header.name) },
        summaryOf(header), el("p", {}, el("small", { text: `${header.purpose} (${header.rule})` })),
        el("ul", {}, header.fields.map((field, index) => el("li", {}, item(header, field, place, index, fields)))));
      details.addEventListener("toggle", () => {
        if (details.open) closed.delete(header.name);
        else closed.add(header.name);
      });
      return details;
    }));
  }

  function select(header, field) {
    for (const item of root.querySelectorAll('.field[aria-pressed="true"]')) item.setAttribute("aria-pressed", "false");
    const chosen = fields.get(`${header}/${field}`);
    if (!chosen) return;
    chosen.setAttribute("aria-pressed", "true");
    chosen.closest("details").open = true;
  }

  return { element: root, show, select };
}

function summaryOf({ name, title, offset, bytes }) {
  const length = bytes.length / 2;
  const place = length === 0 ? "no bytes" : `${length} bytes at ${offset}`;
  return el("summary", {}, el("strong", { text: name }), name === title ? " " : ` ${title} `,
    el("span", { class: "faint", text: `(${place})` }));
}

function item(header, field, place, index, fields) {
  const node = el("button", { type: "button", class: "field", "aria-pressed": "false", title: field.meaning },
    el("span", { class: "place", text: placeOf(header, field) }),
    el("span", { text: field.name }),
    el("span", { class: "value" }, field.text,
      field.note ? el("span", { class: "faint", text: `  ${field.note}` }) : null));
  node.header = place;
  node.index = index;
  fields.set(`${place}/${index}`, node);
  return node;
}

/** The bytes of a field in the frame, "44-45", or its byte and bits, "43.2-3". */
export function placeOf(header, { first_bit: first, bits }) {
  const start = header.offset + Math.floor(first / 8);
  const end = header.offset + Math.ceil((first + bits) / 8);
  if (first % 8 === 0 && bits % 8 === 0) return end - start === 1 ? `${start}` : `${start}-${end - 1}`;
  const bit = first % 8;
  if (end - start > 1) return `${start}-${end - 1}`;
  return bits === 1 ? `${start}.${bit}` : `${start}.${bit}-${bit + bits - 1}`;
}

function moveFocus(root, event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step || !event.target.matches(".field, summary")) return;
  const items = [...root.querySelectorAll("summary, details[open] .field")];
  items[items.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}
