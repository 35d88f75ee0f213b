// A form that builds a whole frame with a right ICRC: an opcode, both ends, and the fields of its headers.

import { el, errorPlace, guard, labelled } from "../../parts/dom.js";

const PLAIN = [
  ["source", "Source address", "192.0.2.1"],
  ["destination", "Destination address", "192.0.2.2"],
  ["source_port", "UDP source port", "49152"],
  ["qp", "Destination queue pair", "0x11"],
  ["psn", "PSN", "0"],
];
const NUMBERS = new Set(["source_port", "qp", "psn"]);

/** The form. `open(hex)` gets the frame. */
export function createBuilder(engine, open) {
  const opcodes = engine.opcodes();
  const choice = el("select", { change: () => showFields() }, grouped(opcodes));
  const inputs = Object.fromEntries(PLAIN.map(([key, , value]) => [key, textInput(value)]));
  const payload = el("textarea", { rows: 2, spellcheck: "false" });
  payload.value = "68656c6c6f";
  const payloadBlock = labelled("Payload in hexadecimal digits", payload);
  const extended = el("fieldset", {}, el("legend", { text: "Extended headers" }));
  const problem = errorPlace();
  let fields = {};

  const chosen = () => opcodes.find(({ value }) => String(value) === choice.value);

  /** What `engine.build` takes; `values` are the fields of extended headers that the reader has changed. */
  const partsOf = (values) => {
    const { value: opcode, payload: hasPayload } = chosen();
    const parts = { opcode, fields: values, payload: hasPayload ? payload.value.replace(/\s/g, "") : "" };
    for (const [key, input] of Object.entries(inputs)) {
      parts[key] = NUMBERS.has(key) ? numberOf(key, input) : input.value.trim();
    }
    return parts;
  };

  /** A frame with defaults shows which fields the headers of this opcode have. */
  function showFields() {
    fields = {};
    payloadBlock.hidden = !chosen().payload;
    guard(problem, () => {
      const { explain } = engine.frame(engine.build(partsOf({})), "ethernet");
      const headers = explain.headers.filter(({ name }) => chosen().headers.includes(name));
      const rows = headers.flatMap(({ name, fields: all }) => all.filter(({ key }) => !key.includes("reserved"))
        .map((field) => {
          fields[field.key] = textInput(field.text);
          return labelled(`${name}: ${field.name}`, fields[field.key]);
        }));
      extended.hidden = rows.length === 0;
      extended.replaceChildren(el("legend", { text: "Extended headers" }), el("div", { class: "row" }, rows));
    });
  }

  const build = () => guard(problem, () => {
    const changed = Object.entries(fields).filter(([, input]) => input.value !== input.defaultValue);
    open(engine.build(partsOf(Object.fromEntries(changed.map(([key, input]) => [key, input.value.trim()])))));
  });

  showFields();
  return el("form", { class: "build", submit: (event) => { event.preventDefault(); build(); } },
    el("div", { class: "row" }, labelled("Opcode", choice), PLAIN.map(([key, text]) => labelled(text, inputs[key]))),
    extended, payloadBlock,
    el("div", { class: "row below" },
      el("button", { type: "submit", class: "primary", text: "Build the frame" })), problem);
}

function textInput(value) {
  const input = el("input", { type: "text", size: Math.max(14, value.length), spellcheck: "false", autocomplete: "off" });
  input.defaultValue = value;
  return input;
}

function numberOf(key, input) {
  const text = input.value.trim();
  const value = Number(text);
  if (text === "" || !Number.isInteger(value) || value < 0) {
    const [, name] = PLAIN.find(([plain]) => plain === key);
    throw new Error(`${name}: "${text}" is not a number; write for example 17 or 0x11.`);
  }
  return value;
}

/** The opcodes in one group for each transport service. */
function grouped(opcodes) {
  const groups = new Map();
  for (const { value, name, transport } of opcodes) {
    if (!groups.has(transport)) groups.set(transport, el("optgroup", { label: transport }));
    groups.get(transport).append(el("option", { value, text: `0x${value.toString(16).padStart(2, "0")} ${name}` }));
  }
  const first = opcodes.find(({ name }) => name === "RC_RDMA_WRITE_ONLY") ?? opcodes[0];
  groups.get(first.transport).querySelector(`option[value="${first.value}"]`).setAttribute("selected", "");
  return [...groups.values()];
}
