// The log: what happened, on which host, and the rule that demanded it.

import { button, el, time } from "../../parts/dom.js";
import { NAMES } from "./host.js";

const KINDS = {
  post: "post", send: "send", arrive: "arrives", drop: "dropped", timeout: "timeout", complete: "completes",
  nak: "NAK", rnr: "RNR NAK",
};

/** More entries than these are not drawn: a long run would make the page slow. */
const MOST_ENTRIES = 500;

export class Log {
  node = el("section", { class: "hosts-log", "aria-labelledby": "log-title" });
  #list = el("ol", { class: "entries", tabindex: 0, "aria-labelledby": "log-title" });
  #note = el("p", { class: "faint" });
  #shown = [];
  #open;

  /** `open(id)` shows a packet in Frame. */
  constructor(open) {
    this.#open = open;
    this.node.append(el("h3", { id: "log-title", text: "Log" }),
      el("p", { class: "faint" }, "The numbers are sections of the InfiniBand Architecture Specification, volume 1."),
      this.#note, this.#list);
  }

  /** Shows the log, and returns the entries that are new. After "Back" it is shorter, and none is new. */
  update(log) {
    const entries = log.slice(-MOST_ENTRIES);
    const hidden = log.length - entries.length;
    const before = this.#shown;
    const grown = log.length >= before.length && before.every((one, at) => one === signature(log[at]));
    const fresh = grown ? log.slice(before.length) : [];
    if (grown) this.#list.append(...fresh.slice(-MOST_ENTRIES).map((entry) => this.#entry(entry)));
    else this.#list.replaceChildren(...entries.map((entry) => this.#entry(entry)));
    while (this.#list.childElementCount > MOST_ENTRIES) this.#list.firstElementChild.remove();
    this.#shown = log.map(signature);
    this.#note.textContent = hidden > 0 ? `The last ${MOST_ENTRIES} of ${log.length} entries.`
      : log.length === 0 ? "Nothing has happened yet." : "";
    this.#list.scrollTop = this.#list.scrollHeight;
    return fresh;
  }

  #entry({ us, side, kind, text, rule, packet }) {
    const has = packet !== null && packet !== undefined;
    const open = has ? button("Frame", () => this.#open(packet), {
      class: "small", "aria-label": `Open packet ${packet} in Frame`,
    }) : null;
    return el("li", { class: `entry is-${kind}` },
      el("span", { class: "when", text: time(us) }), el("span", { class: "who", text: NAMES[side] ?? "wire" }),
      el("span", { class: "kind", text: KINDS[kind] ?? kind }),
      el("span", { class: "what" }, text, ruleOf(rule)), open);
  }
}

/** A dash stands for behaviour that the specification does not contain. */
function ruleOf(rule) {
  if (!rule) return null;
  return el("span", { class: "rule", text: rule === "-" ? "not in the specification" : rule });
}

const signature = ({ us, side, kind, text }) => `${us} ${side} ${kind} ${text}`;
