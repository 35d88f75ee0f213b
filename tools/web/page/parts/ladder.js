// Sequence ladders: the packets between two ends, from top to bottom in time.

import { button, download, el, onWidth, plural, svg, time } from "./dom.js";

// Narrower than this, labels lie above the arrows instead of beside them.
const NARROW = 860;
// Pixels of the columns with the number and the time of a packet, and of an average letter.
const FIGURES = 140;
const LETTER = 6.8;

/**
 * A ladder. `onPacket(number)` is called when the reader chooses a packet that was captured, and `onMore()`
 * when packets are folded and the reader wants to see them; without `onMore`, folds cannot be opened.
 *
 * `show(ladder)` draws the JSON of a ladder, `mark(number)` marks the packet with this number.
 * Returns `{ element, show, mark }`.
 */
export function createLadder({ label = "Sequence ladder", onPacket = null, onMore = null, name = "ladder" } = {}) {
  return new LadderView({ label, onPacket, onMore, name }).face();
}

class LadderView {
  #ladder = null;
  #width = 0;
  #marked = null;

  constructor(options) {
    this.options = options;
    this.drawing = el("div", { class: "wide" });
    this.tools = el("div", { class: "row", hidden: true },
      button("Full screen", () => this.element.requestFullscreen?.()),
      button("Save as SVG", () => download(`${options.name}.svg`, this.#ladder.svg, "image/svg+xml")));
    this.element = el("div", { class: "ladder" }, this.drawing, this.tools);
    onWidth(this.element, (width) => { this.#width = width; this.#draw(); });
    this.drawing.addEventListener("click", (event) => this.#choose(event.target));
    this.drawing.addEventListener("keydown", (event) => this.#key(event));
  }

  face() {
    return {
      element: this.element,
      show: (ladder) => { this.#ladder = ladder; this.#draw(); },
      mark: (number) => { this.#marked = number; this.#showMark(); },
    };
  }

  #draw() {
    if (!this.#ladder || this.#width === 0) return;
    this.tools.hidden = this.#ladder.rows.length === 0;
    const focused = this.drawing.querySelector(".step:focus")?.dataset.place;
    this.drawing.replaceChildren(picture(this.#ladder, layoutFor(this.#width), this.options));
    this.#showMark();
    if (focused) this.drawing.querySelector(`[data-place="${focused}"]`)?.focus();
  }

  #showMark() {
    const steps = [...this.drawing.querySelectorAll(".step")];
    let entry = null;
    for (const step of steps) {
      const isMarked = this.#marked !== null && step.dataset.number === String(this.#marked);
      step.setAttribute("tabindex", -1);
      if (isMarked) {
        step.setAttribute("aria-current", "true");
        entry = step;
      } else step.removeAttribute("aria-current");
    }
    // One step is reached with the tab key, the others with the arrow keys.
    (entry ?? steps[0])?.setAttribute("tabindex", 0);
  }

  #choose(target) {
    const step = target.closest(".step");
    if (!step) return;
    step.focus();
    if (step.dataset.fold) this.options.onMore?.();
    else if (step.dataset.number) {
      this.#marked = Number(step.dataset.number);
      this.#showMark();
      this.options.onPacket?.(this.#marked);
    }
  }

  #key(event) {
    const steps = [...this.drawing.querySelectorAll(".step")];
    const here = steps.indexOf(event.target.closest(".step"));
    if (here < 0) return;
    const next = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: steps.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.#choose(event.target);
    else if (next === undefined) return;
    else if (steps[next]) {
      steps[here].setAttribute("tabindex", -1);
      steps[next].setAttribute("tabindex", 0);
      steps[next].focus();
    }
    event.preventDefault();
  }
}

function layoutFor(width) {
  if (width < NARROW) {
    const wide = Math.max(width, 280);
    return { narrow: true, width: wide, rails: [64, wide - 12], row: 36, lead: 4, head: 44 };
  }
  const wide = Math.min(width, 1100);
  const middle = FIGURES + (wide - FIGURES) / 2;
  const half = wide > 1000 ? 170 : 130;
  return { narrow: false, width: wide, rails: [middle - half, middle + half], row: 24, lead: 8, head: 50 };
}

function picture(ladder, layout, options) {
  let top = layout.head;
  const rows = ladder.rows.map((row, place) => {
    const height = heightOf(row, layout);
    const drawn = drawRow(row, place, { ...layout, top, height }, ladder, options);
    top += height;
    return drawn;
  });
  const picture = svg("svg", {
    width: layout.width, height: top + 8, viewBox: `0 0 ${layout.width} ${top + 8}`, role: "group",
    "aria-label": `${options.label}: ${ladder.ends[0]} and ${ladder.ends[1]}, ${plural(ladder.rows.length, "row")}`,
  });
  picture.append(...heads(ladder.ends, layout), ...rows);
  return picture;
}

function heightOf(row, layout) {
  if (row.kind === "timeout") return layout.row * 1.7;
  return row.kind === "fold" ? layout.row * 1.3 : layout.row;
}

/** The names of both ends; a queue pair goes to a second line. */
function heads(ends, { narrow, rails, width }) {
  return ends.flatMap((end, side) => {
    const [address, ...rest] = end.split(" ");
    const x = narrow ? [0, width][side] : rails[side];
    const anchor = narrow ? ["start", "end"][side] : "middle";
    return [
      svg("text", { class: "end", x, y: 16, "text-anchor": anchor }, address),
      svg("text", { class: "faint", x, y: 34, "text-anchor": anchor }, rest.join(" ")),
    ];
  });
}

function drawRow(row, place, box, ladder, options) {
  if (row.kind === "packet") return packetRow(row, place, box, ladder);
  if (row.kind === "timeout") return timeoutRow(row, place, box);
  return foldRow(row, place, box, options);
}

function rails({ rails: [left, right], top, height }, side = null) {
  return [left, right].map((x, end) => svg("path", {
    class: `rail${side === "both" || side === end ? " wait" : ""}`, d: `M${x} ${top}v${height}`,
  }));
}

function step(attributes, box, parts) {
  const back = svg("rect", {
    class: "back", x: 1, y: box.top + 1, width: box.width - 2, height: box.height - 2, rx: 3,
  });
  return svg("g", { class: "step", role: "button", tabindex: -1, ...attributes }, back, ...parts);
}

/** The words of a packet: its label, and what the drawing shows with lines. */
function wordsOf(row) {
  const words = [row.label];
  const add = (word, if_) => { if (if_ && !row.label.includes(word)) words.push(word); };
  add("again", row.again);
  add(row.lost === "before" ? "lost before the capture" : row.lost, row.lost && !row.label.includes("lost"));
  add("CE", row.ce);
  add("wrong ICRC", row.icrc_bad);
  return words.join(", ");
}

function packetRow(row, place, box, ladder) {
  const words = wordsOf(row);
  let tone = "plain";
  if (row.lost === "not captured") tone = "faint";
  else if (row.lost || row.nak || row.icrc_bad) tone = "bad";
  else if (row.again) tone = "again";
  else if (row.ce) tone = "warn";
  const isCaptured = row.number !== null && row.number !== undefined;
  const ends = [ladder.ends[row.from], ladder.ends[1 - row.from]];
  const attributes = {
    class: `step ${tone}`, "data-place": place, "data-number": isCaptured ? row.number : null,
    "aria-label": `${isCaptured ? `Packet ${row.number}` : "No packet"}, ${clock(row.us)}, `
      + `from ${ends[0]} to ${ends[1]}: ${words}`,
  };
  const parts = [...rails(box), ...figures(row, box), ...arrow(row, box), caption(row, words, tone, box)];
  return step(attributes, box, parts);
}

function clock(us) {
  return us === null || us === undefined ? "no time" : time(us);
}

function figures(row, { narrow, top, height, row: rowHeight }) {
  const number = row.number ?? "–";
  const us = row.us === null || row.us === undefined ? "" : row.us.toFixed(1);
  const line = top + height / 2 + 5;
  if (narrow) {
    return [
      svg("text", { x: 2, y: top + 14 }, number),
      svg("text", { class: "faint", x: 2, y: top + rowHeight - 5, style: "font-size:11px" }, us),
    ];
  }
  return [
    svg("text", { class: "faint", x: 52, y: line, "text-anchor": "end" }, number),
    svg("text", { class: "faint", x: 134, y: line, "text-anchor": "end" }, us),
  ];
}

/** An arrow that falls a little, because a packet takes time; a lost one ends early with a cross. */
function arrow({ from, lost }, { narrow, rails: ends, top, height, lead }) {
  const start = ends[from];
  const way = from === 0 ? 1 : -1;
  const y = top + (narrow ? height - 12 : height / 2 - lead / 2);
  const drop = narrow ? 6 : lead;
  // A packet that nobody captured but that arrived is drawn whole.
  const isShort = lost === "lost" || lost === "before";
  const part = isShort ? 0.55 : 1;
  const end = start + (ends[1 - from] - start) * part;
  const shaft = svg("path", { class: "shaft", d: `M${start} ${y}L${end} ${y + drop * part}` });
  const tip = y + drop * part;
  const head = isShort
    ? `M${end - 6} ${tip - 6}l12 12M${end + 6} ${tip - 6}l-12 12`
    : `M${end - 9 * way} ${tip - 5}L${end} ${tip}L${end - 9 * way} ${tip + 4}`;
  return [shaft, svg("path", { class: "head", d: head })];
}

function caption({ from }, words, tone, { narrow, rails: [left, right], top, height, width }) {
  if (narrow) {
    const x = from === 0 ? left + 8 : right - 8;
    const short = cut(words, right - left - 16);
    return svg("text", { class: tone, x, y: top + 15, "text-anchor": from === 0 ? "start" : "end" }, ...short);
  }
  const y = top + height / 2 + 3;
  return from === 0
    ? svg("text", { class: tone, x: left - 10, y, "text-anchor": "end" }, ...cut(words, left - 10 - FIGURES))
    : svg("text", { class: tone, x: right + 10, y }, ...cut(words, width - right - 10));
}

/** Words that fit into a number of pixels; the pointer shows all of them. */
function cut(words, room) {
  const most = Math.floor(room / LETTER);
  if (words.length <= most) return [words];
  return [`${words.slice(0, Math.max(1, most - 1))}…`, svg("title", {}, words)];
}

/** A time in which the requester waited: the rail of its side is dotted, and the gap says how long. */
function timeoutRow(row, place, box) {
  const side = row.side === 1 ? 1 : 0;
  const text = row.text.replace(/^timeout: /, "");
  const middle = box.top + box.height / 2 + 4;
  const words = svg("text", {
    class: "warn", x: (box.rails[0] + box.rails[1]) / 2, y: middle, "text-anchor": "middle",
  }, `timeout: ${time(row.waited_us)}`);
  const room = (side === 0 ? box.rails[0] - FIGURES : box.width - box.rails[1]) - 10;
  // The time since the last copy of the packet, and that since the first.
  const lines = box.narrow ? [] : text.split(", ").slice(0, 2);
  const more = lines.map((line, place) => svg("text", {
    class: "warn", x: side === 0 ? box.rails[0] - 10 : box.rails[1] + 10,
    y: middle + 16 * (place - (lines.length - 1) / 2), "text-anchor": side === 0 ? "end" : "start",
  }, ...cut(line, room)));
  return svg("g", {
    class: "gap", role: "img", "aria-label": `timeout at ${clock(row.us)}: waited ${time(row.waited_us)}, ${text}`,
    "data-place": place,
  }, ...rails(box, side), words, ...more);
}

function foldRow(row, place, box, { onMore }) {
  const text = (!box.narrow && row.text) || `… ${plural(row.count, "packet")} …`;
  const words = svg("text", {
    class: "faint", x: (box.rails[0] + box.rails[1]) / 2, y: box.top + box.height / 2 + 5, "text-anchor": "middle",
  }, onMore ? `${text} (show)` : text);
  const parts = [...rails(box, "both"), words];
  if (onMore) {
    return step({ "data-place": place, "data-fold": "true", "aria-label": `${text}: show more packets` }, box, parts);
  }
  return svg("g", { role: "img", "aria-label": text }, ...parts);
}
