// The two hosts with the list of actions that led to their state.

import { added, carryOut, withoutLast } from "./actions.js";

/** What the form shows until a person changes it. */
export const SETTINGS = [
  { key: "seed", text: "Seed", value: 1, min: 0, max: 4_294_967_295 },
  { key: "mtu", text: "Path MTU (bytes)", value: 1024, choices: [256, 512, 1024, 2048, 4096] },
  { key: "link_us", text: "Time on the link (µs)", value: 5, min: 0, max: 100_000, step: 0.1 },
  { key: "packet_us", text: "Time of one packet (µs)", value: 0.5, min: 0, max: 1_000, step: 0.1 },
  { key: "timeout", text: "Timeout (4.096 µs × 2^n)", value: 8, min: 0, max: 31 },
  { key: "retry_cnt", text: "Retries after timeouts and NAKs", value: 7, min: 0, max: 7 },
  { key: "rnr_retry", text: "Retries after RNR NAKs (7: forever)", value: 7, min: 0, max: 7 },
  { key: "min_rnr_timer", text: "Minimum RNR timer (code)", value: 12, min: 0, max: 31 },
  { key: "max_rd_atomic", text: "READs and atomics at once", value: 4, min: 1, max: 16 },
  { key: "loss_recovery", text: "After a loss", value: "go-back-n", choices: ["go-back-n", "selective-repeat"] },
];

const DEFAULTS = Object.fromEntries(SETTINGS.map(({ key, value }) => [key, value]));

/** Reads settings of a link, such as `mtu.256*timeout.10`. Throws an error that names the wrong part. */
export function decodeSettings(text) {
  const settings = {};
  for (const part of text ? text.split("*") : []) {
    const dot = part.indexOf(".");
    const known = SETTINGS.find(({ key }) => key === part.slice(0, dot));
    const value = typeof known?.value === "number" ? Number(part.slice(dot + 1)) : part.slice(dot + 1);
    const inside = known?.choices?.includes(value)
      ?? ((known?.step || Number.isInteger(value)) && value >= known?.min && value <= known?.max);
    if (!inside) throw new Error(`the setting “${part}” of this link is not valid`);
    settings[known.key] = value;
  }
  return settings;
}

/** Writes the settings that differ from the defaults and from `base`, the settings of an exercise. */
export function encodeSettings(settings, base = {}) {
  const usual = { ...DEFAULTS, ...base };
  const changed = Object.entries(settings).filter(([key, value]) => usual[key] !== value);
  return changed.map(([key, value]) => `${key}.${value}`).join("*");
}

/** The engine's two hosts, the settings they were made with, and every action since. */
export class Session {
  #engine;
  #hosts = null;
  actions = [];
  settings = {};

  constructor(engine) {
    this.#engine = engine;
  }

  /**
   * Makes new hosts and carries out these actions. Stops at the first one that fails, and throws its error.
   */
  start(settings, actions = []) {
    // The old hosts stay if the engine refuses the settings.
    const hosts = this.#engine.hosts({ ...DEFAULTS, ...settings });
    this.free();
    this.#hosts = hosts;
    this.settings = { ...settings };
    this.actions = [];
    for (const action of actions) this.act(action);
  }

  /**
   * Carries out an action and records it. Returns false if nothing was left to do; then nothing is recorded.
   */
  act(action) {
    const done = carryOut(this.#hosts, action);
    if (done) this.actions = added(this.actions, action);
    return done;
  }

  back() {
    this.start(this.settings, withoutLast(this.actions));
  }

  /** The value of a setting that is in force. */
  setting(key) {
    return this.settings[key] ?? DEFAULTS[key];
  }

  state() {
    return this.#hosts.state();
  }

  frame(id) {
    return this.#hosts.frame(id);
  }

  ladder(rows) {
    return this.#hosts.ladder(rows);
  }

  pcap() {
    return this.#hosts.pcap();
  }

  free() {
    this.#hosts?.free?.();
    this.#hosts = null;
  }
}
