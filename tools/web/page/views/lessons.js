// Lessons: texts with tasks that the engine judges, solutions, and notes for teachers.

import { announce, button, copy, el, plural } from "../parts/dom.js";
import { Progress } from "./lessons/progress.js";
import { taskForm } from "./lessons/task.js";

export const title = "Lessons";

export function mount(root, engine, state) {
  const view = new View(root, engine, state);
  view.update(state);
  return { update: (changed) => view.update(changed), unmount: () => root.replaceChildren() };
}

class View {
  #engine;
  #state;
  #lessons;
  #progress = new Progress();
  #shown = undefined;
  #place = el("div", { class: "lesson" });
  #list = el("ol", { class: "lesson-list" });
  #kept = el("p", { class: "faint" });
  #overview;

  constructor(root, engine, state) {
    this.#engine = engine;
    this.#state = state;
    this.#lessons = engine.lessons();
    this.#overview = el("div", { class: "overview" },
      el("h2", { text: title }),
      el("p", { class: "lead" }, "Each lesson is a text with tasks. The page checks your answers with the same code "
        + "that the command uses."),
      this.#list, this.#kept,
      el("div", { class: "row" },
        button("Copy a link with your progress", () => this.#copyLink()),
        button("Forget the progress", () => this.#forget())));
    root.classList.add("lessons");
    root.append(this.#place, this.#overview);
  }

  update(state) {
    this.#state = state;
    this.#progress.add(state.get("done", ""));
    const id = state.get("lesson");
    if (this.#shown !== id) {
      this.#shown = id;
      this.#showLesson(this.#lessons.find((one) => one.id === id), id);
    }
    this.#showList();
    this.#keep();
  }

  /** Without storage the address is the only place that keeps the progress. */
  #keep() {
    if (!this.#progress.isKept && this.#progress.text) this.#state.set({ done: this.#progress.text });
  }

  #showList() {
    this.#overview.hidden = this.#lessons.some(({ id }) => id === this.#shown);
    this.#list.replaceChildren(...this.#lessons.map((lesson) => {
      const done = this.#progress.count(lesson.id, lesson.tasks);
      const all = lesson.tasks.length;
      const solved = done === all && all > 0
        ? el("span", { class: "state", "data-state": "good", text: "all tasks solved" })
        : el("span", { class: "faint", text: `${done} of ${plural(all, "task")} solved` });
      return el("li", {}, el("a", { href: `#lessons&lesson=${encodeURIComponent(lesson.id)}`, text: lesson.title }),
        el("span", { class: "faint", text: ` about ${plural(lesson.minutes, "minute")}, ` }), solved);
    }));
    this.#kept.textContent = this.#progress.isKept ? "This browser keeps your progress."
      : "This browser does not keep your progress; the address of the page does. Copy it before you leave.";
  }

  #showLesson(lesson, id) {
    if (!lesson) {
      const wrong = id ? [el("p", { class: "error", role: "alert", text: `There is no lesson “${id}”.` })] : [];
      this.#place.replaceChildren(...wrong);
      return;
    }
    const text = el("div", { class: "prose" });
    // The engine made this text from the project's own pages, and no input of a person is in it.
    text.innerHTML = lesson.html;
    const heading = el("h2", { tabindex: -1, text: lesson.title });
    this.#place.replaceChildren(
      el("p", { class: "no-print" }, el("a", { href: "#lessons", text: "All lessons" })),
      heading, el("p", { class: "faint", text: `About ${plural(lesson.minutes, "minute")}` }), text,
      el("h3", { text: "Tasks" }), ...lesson.tasks.map((task) => this.#task(lesson, task)),
      this.#solution(lesson), this.#teacher(lesson),
      el("div", { class: "row" }, button("Print this lesson", () => print())), this.#neighbours(lesson));
    widen(this.#place);
    heading.focus();
  }

  #task(lesson, task) {
    return taskForm(task, {
      done: this.#progress.has(lesson.id, task.number),
      check: (answer) => this.#engine.check(lesson.id, task.number, answer),
      solved: () => this.#solved(lesson, task),
    });
  }

  #solved(lesson, task) {
    this.#progress.solve(lesson.id, task.number);
    this.#keep();
    this.#showList();
  }

  /** The solution is shown after a question, because it cannot be unseen. */
  #solution(lesson) {
    const place = el("div", { class: "solution" });
    const ask = () => {
      const open = lesson.tasks.length - this.#progress.count(lesson.id, lesson.tasks);
      const yes = button("Show it", () => {
        const text = el("div", { class: "prose", tabindex: -1 });
        text.innerHTML = this.#engine.solution(lesson.id);
        widen(text);
        place.replaceChildren(el("h3", { text: "Solution" }), text);
        text.focus();
      });
      const no = button("Not yet", () => {
        place.replaceChildren(first);
        first.focus();
      });
      const question = open > 0 ? `Show the solution? ${plural(open, "task is", "tasks are")} still open.`
        : "Show the solution?";
      place.replaceChildren(el("div", { class: "card", role: "group", "aria-label": question },
        el("p", { text: question }), el("div", { class: "row" }, yes, no)));
      no.focus();
    };
    const first = button("Solution…", ask);
    place.append(first);
    return place;
  }

  #teacher(lesson) {
    const text = el("div", { class: "prose" });
    const details = el("details", { class: "teacher" }, el("summary", { text: "Notes for teachers" }), text);
    details.addEventListener("toggle", () => {
      if (details.open && text.childElementCount === 0) {
        text.innerHTML = this.#engine.teacher(lesson.id);
        widen(text);
      }
    });
    return details;
  }

  #neighbours(lesson) {
    const at = this.#lessons.indexOf(lesson);
    const link = (other, word) => (other
      ? el("a", { href: `#lessons&lesson=${encodeURIComponent(other.id)}`, text: `${word}: ${other.title}` }) : null);
    return el("nav", { class: "row", "aria-label": "Other lessons" },
      link(this.#lessons[at - 1], "Before"), link(this.#lessons[at + 1], "Next"));
  }

  #copyLink() {
    const values = new URLSearchParams({ done: this.#progress.text });
    copy(`${location.href.split("#")[0]}#lessons&${values}`).catch((error) => announce(error.message));
  }

  #forget() {
    this.#progress.forget();
    this.#state.set({ done: null });
    this.#showList();
    announce("The progress is forgotten.");
  }
}

/** Wide tables and code scroll inside themselves, also by keyboard. */
function widen(text) {
  for (const code of text.querySelectorAll("pre")) code.tabIndex = 0;
  for (const table of text.querySelectorAll("table")) {
    const block = el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Table" });
    table.replaceWith(block);
    block.append(table);
  }
}
