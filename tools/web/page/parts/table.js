// A list of any length, of which only the visible lines are in the document, and a small plain table.

import { count, el, onWidth, uniqueId } from "./dom.js";

const SPARE = 12;

/**
 * A table whose lines are fetched when they become visible.
 *
 * `columns`: `[{ title, width, number, text(row) }]`; `width` is a track of a CSS grid, such as "6rem".
 * `fetch(from, count)` returns the rows of that range, and `pick(row, index)` is called when the reader
 * chooses one, with the pointer or with the arrow keys. `lineClass(row)` may name a class.
 *
 * Returns `{ element, setTotal(n), refresh(), pick(index), moveTo(index), index() }`: `pick` chooses a line,
 * `moveTo` marks it and scrolls to it without calling `pick`.
 */
export function createList({ label, columns, fetch, pick, lineClass = () => "", lineHeight = 24, height = "24rem" }) {
  return new List({ label, columns, fetch, pick, lineClass, lineHeight, height }).face();
}

class List {
  #total = 0;
  #index = -1;
  #drawn = new Map();
  #waits = false;

  constructor(options) {
    this.options = options;
    this.tracks = options.columns.map(({ width }) => width).join(" ");
    this.name = uniqueId("list");
    this.head = this.#line(el("div", { class: "line head", role: "row", "aria-rowindex": 1 }));
    this.head.append(...options.columns.map(({ title, number }) => el("span", {
      role: "columnheader", class: number ? "number" : null, text: title,
    })));
    this.space = el("div", { class: "space", role: "rowgroup" }, this.head);
    this.scroll = el("div", {
      class: "scroll", role: "grid", tabindex: 0, "aria-label": options.label, "aria-readonly": "true",
      style: `max-height:${options.height}`,
      scroll: () => this.#soon(), keydown: (event) => this.#key(event), click: (event) => this.#click(event),
    }, this.space);
    this.element = el("div", { class: "list" }, this.scroll);
    onWidth(this.scroll, () => this.#soon());
  }

  face() {
    return {
      element: this.element,
      setTotal: (total) => this.#setTotal(total),
      refresh: () => { this.#clear(); this.#draw(); },
      pick: (index) => this.#pick(index),
      moveTo: (index) => this.#moveTo(index),
      index: () => this.#index,
    };
  }

  #line(node) {
    node.style.gridTemplateColumns = this.tracks;
    node.style.height = `${this.options.lineHeight}px`;
    return node;
  }

  #setTotal(total) {
    this.#total = total;
    this.#index = -1;
    this.scroll.removeAttribute("aria-activedescendant");
    this.scroll.setAttribute("aria-rowcount", total + 1);
    // The head is a line of the same height.
    this.space.style.height = `${(total + 1) * this.options.lineHeight}px`;
    this.scroll.scrollTop = 0;
    this.#clear();
    this.#draw();
  }

  #clear() {
    for (const line of this.#drawn.values()) line.remove();
    this.#drawn.clear();
  }

  /** Draws before the next frame, and once for any number of events. */
  #soon() {
    if (this.#waits) return;
    this.#waits = true;
    requestAnimationFrame(() => {
      this.#waits = false;
      this.#draw();
    });
  }

  #draw() {
    const { lineHeight, fetch } = this.options;
    const visible = Math.ceil(this.scroll.clientHeight / lineHeight);
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / lineHeight) - SPARE);
    const last = Math.min(this.#total, first + visible + 2 * SPARE);
    for (const [index, line] of this.#drawn) {
      if (index >= first && index < last) continue;
      line.remove();
      this.#drawn.delete(index);
    }
    let from = first;
    while (from < last && this.#drawn.has(from)) from += 1;
    let to = last;
    while (to > from && this.#drawn.has(to - 1)) to -= 1;
    if (to > from) {
      fetch(from, to - from).forEach((row, place) => {
        if (!this.#drawn.has(from + place)) this.#add(from + place, row);
      });
    }
    this.#mark();
  }

  #add(index, row) {
    const line = this.#line(el("div", {
      class: `line ${this.options.lineClass(row)}`, role: "row", id: `${this.name}-${index}`,
      "aria-rowindex": index + 2,
    }));
    line.style.top = `${(index + 1) * this.options.lineHeight}px`;
    line.append(...this.options.columns.map(({ number, text }) => {
      const words = String(text(row));
      return el("span", { role: "gridcell", class: number ? "number" : null, text: words, title: words });
    }));
    line.row = row;
    line.index = index;
    this.#drawn.set(index, line);
    this.space.append(line);
  }

  #mark() {
    for (const [index, line] of this.#drawn) line.setAttribute("aria-selected", String(index === this.#index));
    if (this.#drawn.has(this.#index)) {
      this.scroll.setAttribute("aria-activedescendant", `${this.name}-${this.#index}`);
    }
  }

  #moveTo(index) {
    if (index < 0 || index >= this.#total) return;
    const { lineHeight } = this.options;
    this.#index = index;
    const top = index * lineHeight;
    const room = this.scroll.clientHeight - 2 * lineHeight;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (top > this.scroll.scrollTop + room) this.scroll.scrollTop = top - room;
    this.#draw();
  }

  #pick(index) {
    this.#moveTo(index);
    const line = this.#drawn.get(index);
    if (line) this.options.pick(line.row, index);
  }

  #click(event) {
    const line = event.target.closest(".line:not(.head)");
    if (line) this.#pick(line.index);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.scroll.clientHeight / this.options.lineHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.#total, End: this.#total };
    if (!(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    this.#pick(Math.min(this.#total - 1, Math.max(0, this.#index + steps[event.key])));
  }
}

/**
 * A plain table. `head` is a list of titles, `rows` a list of lists of strings, numbers or nodes. Numbers are
 * aligned to the right, and with `figures` all columns but the first.
 */
export function plainTable(head, rows, { caption = "", figures = false } = {}) {
  const cell = (value, column) => el("td", {
    class: typeof value === "number" || (figures && column > 0) ? "number" : null,
  }, typeof value === "number" ? count(value) : value);
  return el("table", {},
    caption ? el("caption", { text: caption }) : null,
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell)))));
}
