// Which tasks are solved. The browser keeps it if it can; a link can carry it to another browser.

const KEY = "roce.lessons.done";

/** `framing.1.2*psn.3` as a map from a lesson to its solved tasks. Parts that make no sense are ignored. */
function read(text) {
  const done = new Map();
  for (const part of (text ?? "").split("*")) {
    const [lesson, ...tasks] = part.split(".");
    const numbers = tasks.map(Number).filter((number) => Number.isInteger(number) && number > 0);
    if (/^[\w-]+$/.test(lesson) && numbers.length > 0) done.set(lesson, new Set(numbers));
  }
  return done;
}

function write(done) {
  return [...done].map(([lesson, tasks]) => [lesson, ...[...tasks].sort((a, b) => a - b)].join(".")).join("*");
}

export class Progress {
  #done = new Map();
  #storage;
  /** Whether the browser keeps the progress. A page from file:// may be refused. */
  isKept = false;

  /** `storage()` returns the storage of the browser, or throws. */
  constructor(storage = () => localStorage) {
    this.#storage = storage;
    try {
      this.#done = read(storage().getItem(KEY));
      this.isKept = true;
    } catch {
      this.isKept = false;
    }
  }

  /** Adds the solved tasks of a link to those that are known. */
  add(text) {
    for (const [lesson, tasks] of read(text)) {
      for (const task of tasks) this.#of(lesson).add(task);
    }
    if (text) this.#save();
  }

  #of(lesson) {
    if (!this.#done.has(lesson)) this.#done.set(lesson, new Set());
    return this.#done.get(lesson);
  }

  has(lesson, task) {
    return this.#done.get(lesson)?.has(task) ?? false;
  }

  /** How many of these tasks are solved. */
  count(lesson, tasks) {
    return tasks.filter(({ number }) => this.has(lesson, number)).length;
  }

  solve(lesson, task) {
    this.#of(lesson).add(task);
    this.#save();
  }

  forget() {
    this.#done.clear();
    this.#save();
  }

  #save() {
    try {
      this.#storage().setItem(KEY, write(this.#done));
    } catch {
      this.isKept = false;
    }
  }

  /** The progress as a value of the fragment. */
  get text() {
    return write(this.#done);
  }
}
