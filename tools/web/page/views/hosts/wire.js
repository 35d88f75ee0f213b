// The wire: the packets in flight as buttons, and what a person can do with the selected one.

import { button, el, labelled, plural, time } from "../../parts/dom.js";
import { PACKET_ACTIONS } from "./actions.js";
import { NAMES } from "./host.js";

const TOUCHED = {
  drop: "will be lost", delay: "delayed", duplicate: "duplicated", mark: "marked", corrupt: "corrupted",
};

export class Wire {
  node = el("section", { class: "wire", "aria-labelledby": "wire-title" });
  #tracks = el("ul", { class: "tracks" });
  #about = el("p", { class: "wire-about" });
  #panel = el("div", { class: "packet-actions" });
  #delay = el("input", { type: "number", min: 1, max: 1_000_000, step: 1, value: 50 });
  /** Track and button of each packet in flight, by its id. */
  #packets = new Map();
  #selected = null;
  #act;
  #open;
  #leave;

  /** `act(action)` changes a packet, `open(id)` shows it in Frame, `leave()` puts the focus elsewhere. */
  constructor({ act, open, leave }) {
    this.#act = act;
    this.#open = open;
    this.#leave = leave;
    this.node.addEventListener("keydown", (event) => this.#key(event));
    this.#tracks.addEventListener("focusin", (event) => this.#select(idOf(event.target)));
    const ends = el("p", { class: "wire-ends", "aria-hidden": "true" },
      ...NAMES.map((name) => el("span", { text: name })));
    this.node.append(el("h3", { id: "wire-title", text: "Wire" }), ends, this.#about, this.#tracks, this.#panel);
  }

  update({ wire, now_us: now }) {
    const hadFocus = this.#tracks.contains(document.activeElement) || this.#panel.contains(document.activeElement);
    const order = [...this.#packets.keys()];
    const there = new Set(wire.map(({ id }) => id));
    for (const [id, { track }] of this.#packets) {
      if (!there.has(id)) {
        track.remove();
        this.#packets.delete(id);
      }
    }
    for (const packet of wire) this.#place(packet, now);
    this.#about.textContent = wire.length === 0 ? "No packet is on the wire."
      : `${plural(wire.length, "packet")} on the wire. Select one to change what happens to it.`;
    if (!this.#packets.has(this.#selected)) this.#selectNear(order, hadFocus);
    this.#showPanel();
  }

  #place(packet, now) {
    let known = this.#packets.get(packet.id);
    if (!known) {
      const control = el("button", {
        type: "button", class: `packet from-${packet.from}`, "data-id": packet.id,
        click: () => this.#select(packet.id),
      });
      known = { control, track: el("li", { class: "track" }, control) };
      this.#packets.set(packet.id, known);
      this.#tracks.append(known.track);
    }
    known.packet = packet;
    const whole = packet.arrives_us - packet.sent_us;
    const part = whole > 0 ? Math.min(1, Math.max(0, (now - packet.sent_us) / whole)) : 0;
    known.control.style.setProperty("--at", packet.from === 0 ? part : 1 - part);
    const touched = TOUCHED[packet.action] ?? packet.action;
    known.control.classList.toggle("is-touched", Boolean(touched));
    const from = `, from the ${NAMES[packet.from]}, arrives in ${time(Math.max(0, packet.arrives_us - now))}`;
    known.control.replaceChildren(
      el("span", { "aria-hidden": "true", text: packet.from === 0 ? "" : "← " }), packet.label,
      el("span", { class: "unseen", text: from }),
      el("span", { "aria-hidden": "true", text: packet.from === 0 ? " →" : "" }),
      touched ? el("span", { class: "touched", text: touched }) : "");
  }

  /** The selected packet is gone: selects the next one that is still there, and moves the focus to it. */
  #selectNear(order, hadFocus) {
    const at = order.indexOf(this.#selected);
    const near = [...order.slice(at + 1), ...order.slice(0, Math.max(0, at)).reverse()];
    const next = at < 0 ? null : near.find((id) => this.#packets.has(id)) ?? null;
    this.#select(next);
    if (!hadFocus) return;
    if (next === null) this.#leave();
    else this.#packets.get(next).control.focus();
  }

  #select(id) {
    const changed = this.#selected !== id;
    this.#selected = id;
    // One stop for the tab key; the arrow keys move between the packets.
    const stop = id ?? this.#packets.keys().next().value;
    for (const [other, { control }] of this.#packets) {
      control.tabIndex = other === stop ? 0 : -1;
      control.toggleAttribute("aria-current", other === id);
      if (other === id) control.setAttribute("aria-current", "true");
    }
    if (changed) this.#showPanel();
  }

  #showPanel() {
    const packet = this.#packets.get(this.#selected)?.packet;
    if (!packet) return this.#panel.replaceChildren();
    // Rebuilding the buttons would take the focus from the one that was pressed.
    if (this.#panel.dataset.id === String(packet.id) && this.#panel.childElementCount > 0) return undefined;
    this.#panel.dataset.id = packet.id;
    const controls = PACKET_ACTIONS.map((action) => button(`${action.text} (${action.shortcut})`,
      () => this.#carryOut(action), { "aria-keyshortcuts": action.shortcut }));
    controls.push(button("Open in Frame (O)", () => this.#open(packet.id), { "aria-keyshortcuts": "O" }));
    return this.#panel.replaceChildren(
      el("p", {}, el("strong", { text: packet.label }), ` from the ${NAMES[packet.from]}, packet ${packet.id}`),
      labelled("Delay by (µs)", this.#delay), el("div", { class: "row" }, controls));
  }

  #carryOut(action) {
    const id = this.#selected;
    if (id === null || (action.value && !this.#delay.reportValidity())) return;
    const value = action.value ? { value: Number(this.#delay.value) } : {};
    this.#act({ do: action.key, id, ...value });
  }

  /** Letters act on the selected packet, from its button and from the buttons below. */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    const ids = [...this.#packets.keys()];
    const at = ids.indexOf(this.#selected);
    if (at < 0) return;
    const isPacket = idOf(event.target) !== null;
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: ids.length - 1 };
    const letter = event.key.toUpperCase();
    const action = PACKET_ACTIONS.find(({ shortcut }) => shortcut === letter);
    if (isPacket && event.key in moves) this.#packets.get(ids[moves[event.key]])?.control.focus();
    else if (action) this.#carryOut(action);
    else if (letter === "O") this.#open(ids[at]);
    else if (event.key !== "Escape") return;
    else if (isPacket) this.#leave();
    else this.#packets.get(ids[at]).control.focus();
    event.preventDefault();
  }
}

function idOf(target) {
  const id = target.closest?.("[data-id]")?.dataset.id;
  return id === undefined ? null : Number(id);
}
