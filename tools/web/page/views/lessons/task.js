// One task: its question, the input that fits its answer, and the judgement.

import { button, el, uniqueId } from "../../parts/dom.js";

const INPUTS = {
  number: { label: "Your answer (a number)", attributes: { inputmode: "text", size: 14 } },
  hex: { label: "Your answer (hexadecimal digits)", attributes: { size: 40, class: "mono" } },
  text: { label: "Your answer", attributes: { size: 40 } },
};

/** `check(answer)` returns the judgement, and `solved()` is called when it is right. */
export function taskForm(task, { done, check, solved }) {
  const titleId = uniqueId("task");
  const state = el("span", { class: "state", "data-state": "good", hidden: !done, text: "solved" });
  const result = el("div", { class: "result", role: "status", "aria-live": "polite" });
  const answer = task.kind === "choice" ? choices(task) : field(task);
  const submit = (event) => {
    event.preventDefault();
    const text = answer.value();
    if (text === "") return say(result, "bad", "Write or choose an answer first.");
    let outcome;
    try {
      outcome = check(text);
    } catch (error) {
      return say(result, "bad", error.message);
    }
    if (!outcome.right) return say(result, "bad", "Not yet.", outcome.hint);
    state.hidden = false;
    solved();
    return say(result, "good", "Right.", outcome.hint, outcome.shows);
  };
  const question = el("div", { class: "question" });
  // The engine made this text from the project's own pages, and no input of a person is in it.
  question.innerHTML = task.html;
  return el("section", { class: "lesson-task card", "aria-labelledby": titleId },
    el("h4", { id: titleId }, `Task ${task.number} `, state), question,
    el("form", { submit }, answer.node, button("Check", null, {
      type: "submit", class: "primary", "aria-label": `Check task ${task.number}`,
    })), result);
}

function field({ kind }) {
  const { label, attributes } = INPUTS[kind] ?? INPUTS.text;
  const input = el("input", {
    type: "text", autocomplete: "off", spellcheck: "false", ...attributes, id: uniqueId("answer"),
  });
  const node = el("div", { class: "labelled" }, el("label", { for: input.id, text: label }), input);
  return { node, value: () => input.value.trim() };
}

function choices({ choices: texts }) {
  const name = uniqueId("choice");
  const inputs = texts.map((text) => el("input", { type: "radio", name, value: text }));
  const node = el("fieldset", {}, el("legend", { text: "Your answer" }),
    inputs.map((input, place) => el("label", { class: "choice" }, input, ` ${texts[place]}`)));
  return { node, value: () => inputs.find(({ checked }) => checked)?.value ?? "" };
}

function say(place, state, word, text = "", shows = "") {
  place.replaceChildren(el("p", {}, el("span", { class: "state", "data-state": state, text: word }), ` ${text}`));
  if (!shows) return;
  place.append(el("pre", {
    class: "shows", tabindex: 0, "aria-label": "How the answer is computed", text: shows,
  }));
}
