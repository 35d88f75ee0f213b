// The judgement of a frame: its checks, and the answer of a responder.

import { button, el } from "../../parts/dom.js";

const WORDS = { good: "right", bad: "wrong", unknown: "unknown" };

/** The checks as a list; wrong ones come first. */
export function checksOf(checks) {
  const order = ["bad", "unknown", "good"];
  const sorted = [...checks].sort((one, other) => order.indexOf(one.state) - order.indexOf(other.state));
  if (sorted.length === 0) return el("p", { class: "faint", text: "No check applies to this frame." });
  return el("ul", { class: "checks" }, sorted.map(({ key, name, state, text, rule }) => el("li", { "data-key": key },
    el("span", { class: "state", "data-state": state, text: WORDS[state] ?? state }), " ",
    el("strong", { text: name }), `: ${text} `, rule ? el("small", { text: `(${rule})` }) : null)));
}

const VERDICTS = {
  handled: ["good", "handled"], dropped: ["bad", "dropped without an answer"], none: ["unknown", "nothing to answer"],
};

/**
 * The answer of a responder with a matching, connected queue pair. `open(hex, from)` shows a reply as the frame.
 */
export function answerOf(answer, open) {
  if (!answer) return [el("p", { class: "faint", text: "Nothing answers this frame." })];
  const [state, words] = VERDICTS[answer.verdict] ?? ["unknown", answer.verdict];
  const parts = [
    el("p", {}, el("span", { class: "state", "data-state": state, text: words }), ` ${answer.why} `,
      answer.rule ? el("small", { text: `(${answer.rule})` }) : null),
  ];
  if (answer.counter) parts.push(el("p", {}, "It increments the counter ", el("code", { text: answer.counter }), "."));
  if (answer.replies?.length) {
    parts.push(el("p", { text: "It sends:" }), el("ol", {}, answer.replies.map(({ hex, from, text }) => el("li", {},
      `${text} `, button("Show this packet", () => open(hex, from), { "aria-label": `Show this packet: ${text}` })))));
  }
  parts.push(el("p", {}, el("small", {
    text: "This is the answer of the engine of roce with a connected queue pair that expects this packet next.",
  })));
  return parts;
}
