// Small helpers that every view uses: elements, downloads, the clipboard, numbers as text.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element. `attributes`: `class`, `text`, any attribute, a boolean attribute (true or false),
 * and listeners as functions with the name of the event (`click: () => …`). Children are nodes or strings.
 */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** As `el`, for an element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (name === "text") node.textContent = value;
    // The policy of the page forbids the attribute, but not the property.
    else if (name === "style") node.style.cssText = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

let made = 0;

/** An id that no other element has. */
export function uniqueId(prefix = "id") {
  made += 1;
  return `${prefix}-${made}`;
}

/** A label and the control that it names, in one block. */
export function labelled(text, control, about = "") {
  control.id ||= uniqueId("control");
  const block = el("div", { class: "labelled" }, el("label", { for: control.id, text }), control);
  if (about) {
    const note = el("small", { id: uniqueId("about"), text: about });
    control.setAttribute("aria-describedby", note.id);
    block.append(note);
  }
  return block;
}

/** A button; `action` gets the event. */
export function button(text, action, attributes = {}) {
  return el("button", { type: "button", text, click: action, ...attributes });
}

/** A place that scrolls inside itself, and is reached with the keyboard for that. */
export function wide(label, ...children) {
  return el("div", { class: "wide", role: "group", tabindex: 0, "aria-label": label }, ...children);
}

/** Tells screen readers what changed, and shows it for a few seconds. */
export function announce(text) {
  const place = document.getElementById("said");
  place.textContent = "";
  // A reader repeats an equal text only if the element was empty in between.
  requestAnimationFrame(() => { place.textContent = text; });
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => { place.textContent = ""; }, 6000);
}

/** Offers `data` (text or bytes) as a file. */
export function download(name, data, type = "application/octet-stream") {
  const address = URL.createObjectURL(new Blob([data], { type }));
  el("a", { href: address, download: name }).click();
  // The browser reads the address after this function returned.
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  announce(`Saved ${name}.`);
}

/**
 * Copies text; the clipboard does not exist in a page from an insecure origin, so a field is the second way.
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = el("textarea", { class: "off-screen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (!done) throw new Error("The browser did not allow to copy; select the text and copy it by hand.");
  }
  announce("Copied.");
}

/** 1234567 as "1,234,567". */
export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** "1 packet", "2 packets". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Microseconds as text with a unit that fits: "144.4 µs", "17.4 ms", "2.00 s". */
export function time(us) {
  const size = Math.abs(us);
  if (size < 1000) return `${us.toFixed(1)} µs`;
  if (size < 1e6) return `${(us / 1000).toFixed(size < 1e5 ? 2 : 1)} ms`;
  return `${(us / 1e6).toFixed(2)} s`;
}

/** A number of bytes as text: "21 B", "2.0 kB", "1.5 MB". Decimal units, because charts have decimal axes. */
export function size(bytes) {
  if (bytes < 1e3) return `${Math.round(bytes)} B`;
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(1)} MB`;
  return `${(bytes / 1e9).toFixed(2)} GB`;
}

/** Bits per second as text: "9.80 Gb/s". */
export function rate(bps) {
  if (bps >= 1e9) return `${(bps / 1e9).toFixed(2)} Gb/s`;
  if (bps >= 1e6) return `${(bps / 1e6).toFixed(1)} Mb/s`;
  return `${(bps / 1e3).toFixed(1)} kb/s`;
}

/** Hexadecimal digits as bytes. */
export function toBytes(hex) {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/** A number as two hexadecimal digits. */
export function byteText(byte) {
  return byte.toString(16).padStart(2, "0");
}

/**
 * Calls `action(width)` with the width of an element inside its padding, at first and when it has changed.
 * It is 0 while the element is not visible.
 */
export function onWidth(element, action) {
  let width = -1;
  new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next === width) return;
    width = next;
    // Drawing here could change the width again, which browsers report as an error.
    requestAnimationFrame(() => action(next));
  }).observe(element);
}

/** Shows the error of `action` in `place`, an element with role="alert", and clears it if there is none. */
export function guard(place, action) {
  try {
    const result = action();
    place.textContent = "";
    return result;
  } catch (error) {
    place.textContent = error.message ?? String(error);
    return undefined;
  }
}

/** The element in which `guard` shows an error. It is not visible while it is empty. */
export function errorPlace() {
  return el("p", { class: "error", role: "alert" });
}
