// One host: its queue pair, its queues, and the forms that post to them.

import { button, count, el, labelled, time } from "../../parts/dom.js";
import { OPERATIONS } from "./actions.js";

export const NAMES = ["requester", "responder"];

const FACTS = [
  ["state", "State"],
  ["next_psn", "Next PSN to send"],
  ["unacked_psn", "Oldest PSN without acknowledgement"],
  ["expected_psn", "Expected PSN"],
  ["msn", "MSN"],
  ["retries", "Retries"],
  ["rnr_retries", "RNR retries"],
  ["timer", "Timer"],
];

/** The panel of host `side`. `post(action)` carries out an action; `update(host, now)` shows the host. */
export function hostPanel(side, post) {
  const title = el("h3", { id: `host-${side}` });
  const address = el("p", { class: "host-address faint" });
  const facts = new Map(FACTS.map(([key, text]) => [key, { text, value: el("dd") }]));
  const list = el("dl", { class: "facts" });
  for (const { text, value } of facts.values()) list.append(el("div", {}, el("dt", { text }), value));
  const queue = scrolling(`Send queue of the ${NAMES[side]}`);
  const receives = el("p", { class: "receives" });
  const completions = scrolling(`Completions of the ${NAMES[side]}`);
  const node = el("section", { class: `host host-${side}`, "aria-labelledby": title.id },
    title, address, list, forms(side, post), el("h4", { text: "Send queue" }), queue,
    el("h4", { text: "Receives" }), receives, el("h4", { text: "Completions" }), completions);

  function update(host, now) {
    const role = NAMES[side];
    title.textContent = role[0].toUpperCase() + role.slice(1);
    address.textContent = `${host.address}, queue pair ${host.qpn}`;
    const values = { ...host, timer: timerText(host.timer_us, now) };
    for (const [key, { value }] of facts) setFact(value, values[key]);
    queue.replaceChildren(queueTable(host.send_queue));
    receives.textContent = host.receives === 0 ? "No receive is posted."
      : `${count(host.receives)} posted and not used.`;
    completions.replaceChildren(completionTable(host.completions));
  }
  return { node, update };
}

/** A block that scrolls inside itself, also by keyboard. */
function scrolling(label) {
  return el("div", { class: "queue", tabindex: 0, role: "group", "aria-label": label });
}

/**
 * Shows a value; one that changed is marked until the next change, so that the effect of a step is visible.
 */
function setFact(node, value) {
  const text = value === null || value === undefined ? "–" : String(value);
  const changed = node.textContent !== "" && node.textContent !== text;
  node.textContent = text;
  node.classList.toggle("changed", changed);
}

/** `expires` and `now` are times since the start. */
function timerText(expires, now) {
  if (expires === null || expires === undefined) return "off";
  return `in ${time(Math.max(0, expires - now))}`;
}

function table(headings, rows, empty) {
  if (rows.length === 0) return el("p", { class: "faint", text: empty });
  const head = el("tr", {}, headings.map((text) => el("th", { scope: "col", text })));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, rows));
}

const cells = (...values) => values.map((value) => el("td", {}, value));

function operation(op) {
  return op === "recv" ? "receive" : OPERATIONS.find(({ key }) => key === op)?.text ?? op;
}

function queueTable(requests) {
  const rows = requests.map(({ wr_id: id, op, bytes, first_psn: first, last_psn: last, state }) => {
    const known = first !== null && first !== undefined;
    const psns = !known ? "–" : first === last ? String(first) : `${first}–${last}`;
    return el("tr", { class: `is-${state}` },
      cells(String(id), operation(op), count(bytes), psns, state));
  });
  return table(["Number", "Operation", "Bytes", "PSNs", "State"], rows, "No work request is posted.");
}

function completionTable(completions) {
  const rows = completions.map(({ wr_id: id, op, status, bytes, why, rule, right }) => {
    const good = /^success$/i.test(status) && right !== false;
    const memory = right === true ? "the memory has the right bytes" : right === false ? "the memory is wrong" : "";
    const reason = good || !why ? "" : rule && rule !== "-" ? `${why} (${rule})` : why;
    const notes = [memory, reason].filter(Boolean).map((text) => el("small", { class: "note", text }));
    return el("tr", { class: good ? "" : "is-wrong" },
      cells(String(id), operation(op), count(bytes ?? 0), [status, ...notes]));
  });
  return table(["Number", "Operation", "Bytes", "Status"], rows, "No completion yet.");
}

function check(text) {
  const box = el("input", { type: "checkbox" });
  return { box, node: el("label", { class: "check" }, box, ` ${text}`) };
}

function lengthInput(value) {
  return el("input", { type: "number", min: 0, max: 1_048_576, step: 1, value, required: true });
}

function forms(side, post) {
  return el("div", { class: "post" }, requestForm(side, post), receiveForm(side, post));
}

function requestForm(side, post) {
  const op = el("select", {}, OPERATIONS.map(({ key, text }) => el("option", { value: key, text })));
  const bytes = lengthInput(4096);
  const key = check("with a wrong R_Key");
  const end = check("past the end of the memory");
  op.addEventListener("change", () => {
    const { fixed } = OPERATIONS.find((one) => one.key === op.value);
    bytes.disabled = fixed !== undefined;
    if (fixed) bytes.value = fixed;
    // A SEND names no memory of the peer, so neither its key nor its range can be wrong.
    for (const { box } of [key, end]) {
      box.disabled = op.value.startsWith("send");
      box.checked &&= !box.disabled;
    }
  });
  const submit = (event) => {
    event.preventDefault();
    const action = { do: "post", side, op: op.value, bytes: Number(bytes.value) };
    if (key.box.checked) action.bad_key = true;
    if (end.box.checked) action.past_end = true;
    post(action);
  };
  const form = el("form", { submit }, labelled("Operation", op), labelled("Bytes", bytes), key.node, end.node,
    button("Post the work request", null, { type: "submit" }));
  return el("details", { open: side === 0 }, el("summary", { text: "Post a work request" }), form);
}

function receiveForm(side, post) {
  const bytes = lengthInput(4096);
  const submit = (event) => {
    event.preventDefault();
    post({ do: "recv", side, bytes: Number(bytes.value) });
  };
  const form = el("form", { submit }, labelled("Bytes", bytes),
    button("Post the receive", null, { type: "submit" }));
  return el("details", { open: side === 1 }, el("summary", { text: "Post a receive" }), form);
}
