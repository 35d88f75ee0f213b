// The controls of the parameters of an algorithm: a slider and a number for each.

import { button, el, uniqueId } from "../../parts/dom.js";

/** A slider over a range with more than this factor between its ends moves in factors, not in steps. */
const LOGARITHMIC_FROM = 500;
const POSITIONS = 1000;

/** Positions 0 to 1000 of a slider for values from `min` to `max`. */
export function scale(min, max) {
  const low = Math.max(min, 1);
  if (max / low < LOGARITHMIC_FROM) return linear(min, max);
  // 0 has no logarithm, so a range that begins with 0 has it as its first position alone.
  const zero = min < 1 ? 1 : 0;
  const factor = Math.log(max / low) / (POSITIONS - zero);
  return {
    value: (position) => (position < zero ? min : Math.round(low * Math.exp((position - zero) * factor))),
    position: (value) => (value < low ? 0 : Math.round(Math.log(value / low) / factor) + zero),
  };
}

function linear(min, max) {
  return {
    value: (position) => Math.round(min + ((max - min) * position) / POSITIONS),
    position: (value) => Math.round(((value - min) / (max - min || 1)) * POSITIONS),
  };
}

const SIDES = { sender: "Sender", receiver: "Receiver: its notifications" };

/**
 * The controls of `parameters`, in a group for each side. `values` has those that a person changed, `given`
 * those of the scenario, and `preset` those of the chosen preset, if there is one. `change(key, value)` is
 * called with a new value, or with null for "as in the scenario".
 */
export function parameterControls(parameters, { values, given, preset, change }) {
  return Object.entries(SIDES).flatMap(([side, text]) => {
    const ofSide = parameters.filter((one) => one.side === side);
    if (ofSide.length === 0) return [];
    const controls = ofSide.map((parameter) => {
      const { key, alias } = parameter;
      const own = given[key] ?? given[alias];
      const usual = own ?? preset?.values[key] ?? parameter.default;
      const from = own === undefined && preset ? `preset ${preset.name}` : "unchanged";
      return oneControl(parameter, { value: values[key] ?? null, usual, from, change });
    });
    return [el("fieldset", {}, el("legend", { text }), el("div", { class: "parameters" }, controls))];
  });
}

/** `usual` is the value until a person changes it, and `from` says where it comes from. */
function oneControl(parameter, { value, usual, from, change }) {
  const { key, min, max, about, words } = parameter;
  const unit = written(parameter.unit);
  const id = uniqueId("parameter");
  const note = el("small", { id: `${id}-about` }, [about, range(parameter)].filter(Boolean).join(" "));
  const state = el("small", { class: "usual" });
  const reset = button("Reset", () => set(null), { class: "small", "aria-label": `Reset ${key}` });
  const shown = value ?? usual;
  const parts = { input: null, slider: null };
  const isNumber = typeof min === "number" && typeof max === "number";

  function set(next) {
    state.textContent = next === null ? `${usual} (${from})` : "changed";
    reset.hidden = next === null;
    block.classList.toggle("is-changed", next !== null);
    if (next === null) show(usual);
    change(key, next);
  }
  function show(now) {
    parts.input.value = now;
    if (!parts.slider) return;
    parts.slider.value = parts.scale.position(Number(now));
    parts.slider.setAttribute("aria-valuetext", `${now} ${unit}`.trim());
  }
  const attributes = { id, "aria-describedby": note.id };
  if (words) parts.input = el("select", attributes, words.map((one) => el("option", { value: one, text: one })));
  else if (isNumber) Object.assign(parts, numberParts(parameter, attributes, set));
  else parts.input = el("input", { ...attributes, type: "text", size: 10 });
  parts.input.addEventListener("change", () => {
    if (!parts.input.reportValidity() || parts.input.value === "") return;
    set(parts.input.value);
    show(parts.input.value);
  });
  parts.slider?.addEventListener("input", () => {
    const now = String(parts.scale.value(Number(parts.slider.value)));
    set(now);
    show(now);
  });
  const block = el("div", { class: "parameter" },
    el("label", { for: id }, el("code", { text: key })), parts.slider,
    el("span", { class: "value" }, parts.input, unit), note, el("span", { class: "usual-row" }, state, reset));
  state.textContent = value === null ? `${usual} (${from})` : "changed";
  reset.hidden = value === null;
  block.classList.toggle("is-changed", value !== null);
  show(shown);
  return block;
}

function numberParts({ key, min, max }, attributes) {
  const input = el("input", { ...attributes, type: "number", min, max, step: 1, required: true });
  const slider = el("input", {
    type: "range", min: 0, max: POSITIONS, step: 1, "aria-label": `${key}, slider`,
  });
  return { input, slider, scale: scale(min, max) };
}

function range({ min, max }) {
  return typeof min === "number" ? `${min} to ${max}.` : "";
}

/** The unit as people write it; the engine has plain ASCII. */
function written(unit = "") {
  return unit.replace(/^us$/, "µs").replace(/^x /, "× ");
}
