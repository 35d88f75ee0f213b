// The state of a view, which is in the URL fragment: `#capture&packet=8&filter=psn%3D5`.

/** The view and the values of a fragment. */
export function parse(hash) {
  const [view, ...pairs] = hash.replace(/^#/, "").split("&");
  return { view, values: Object.fromEntries(new URLSearchParams(pairs.join("&"))) };
}

// Browsers allow about 200 changes of the address in 30 seconds, fewer than an arrow key that is held down
// makes.
const WRITE_AFTER_MS = 250;
let pending = null;
// The name of the view that is visible: only its state belongs into the address.
let visible = null;

/** Writes a change of the fragment that still waits. */
function flush() {
  if (!pending) return;
  clearTimeout(pending.timer);
  const { fragment } = pending;
  pending = null;
  if (location.hash !== fragment) history.replaceState(null, "", fragment);
}

/** Tells which view is visible. */
export function setVisible(name) {
  visible = name;
}

/** Goes to a fragment, perhaps of another view. The back button returns. */
export function open(fragment) {
  flush();
  location.hash = fragment;
}

/** Forgets a change that waits, because somebody has opened another fragment. */
export function cancel() {
  clearTimeout(pending?.timer);
  pending = null;
}

/** The values of one view. All are strings; a view reads and sets them by name. */
export class State {
  #name;
  #values = {};

  constructor(name) {
    this.#name = name;
  }

  /** The value, or `otherwise`. */
  get(key, otherwise = null) {
    return Object.hasOwn(this.#values, key) ? this.#values[key] : otherwise;
  }

  /** The value as a whole number, or `otherwise`. */
  number(key, otherwise = null) {
    const value = Number.parseInt(this.get(key, ""), 10);
    return Number.isNaN(value) ? otherwise : value;
  }

  /**
   * Sets values (null removes one) and soon writes the fragment. The view is not told, because it made the
   * change.
   * `push`: a step to which the back button returns.
   */
  set(changes, { push = false } = {}) {
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") delete this.#values[key];
      else this.#values[key] = String(value);
    }
    // A hidden view can still finish work, such as reading a file.
    if (this.#name !== visible) return;
    const fragment = this.fragment();
    // The step before must be whole, because the back button returns to it.
    if (push) flush();
    else cancel();
    if (push && location.hash !== fragment) history.pushState(null, "", fragment);
    else pending = { fragment, timer: setTimeout(flush, WRITE_AFTER_MS) };
  }

  /** Takes all values of a fragment that somebody opened. */
  replace(values) {
    this.#values = { ...values };
  }

  /** The fragment that shows this state. */
  fragment() {
    const pairs = new URLSearchParams(this.#values).toString();
    return `#${this.#name}${pairs ? `&${pairs}` : ""}`;
  }
}
