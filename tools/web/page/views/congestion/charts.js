// The charts of one run.

import { el } from "../../parts/dom.js";
import { createChart } from "../../parts/chart.js";
import { MOST_LINES } from "./data.js";

/** A number with the unit that fits, as short as an axis needs it: "20 Gb/s", "1.5 ms". */
function short(value, units) {
  const [size, name] = units.find(([least]) => Math.abs(value) >= least) ?? units.at(-1);
  return `${Number((value / size).toPrecision(3))} ${name}`;
}

const plain = (value) => String(Number(value.toPrecision(3)));
const rate = (bps) => short(bps, [[1e9, "Gb/s"], [1e6, "Mb/s"], [1e3, "kb/s"]]);
const size = (bytes) => short(bytes, [[1e6, "MB"], [1e3, "KB"], [1, "B"]]);
const time = (us) => short(us, [[1e6, "s"], [1e3, "ms"], [1, "µs"]]);

const KINDS = [
  { name: "goodput", title: "Goodput of the flows", format: rate },
  { name: "rate", title: "Rate that congestion control allows", format: rate, kind: "step" },
  { name: "target", title: "Target rate", format: rate, kind: "step" },
  { name: "alpha", title: "Alpha, the estimate of congestion", format: plain, kind: "step" },
  { name: "bytes", title: "Queues of the ports", format: size, ports: true },
  { name: "paused", title: "Time for which the ports were paused so far", format: time, ports: true },
];

/**
 * `flow(number)` and `port(number)` return names, and `scaleOf(name)` the largest value of all runs shown.
 */
export class Charts {
  element = el("div", { class: "charts" });
  #charts;
  #names;

  constructor({ names, scaleOf }) {
    this.#names = names;
    this.scaleOf = scaleOf;
    this.#charts = new Map(KINDS.map((kind) => [kind.name, createChart({ title: kind.title })]));
    for (const { element } of this.#charts.values()) {
      element.hidden = true;
      this.element.append(element);
    }
  }

  /** Draws these flows, or with null the first ones; of many flows, the goodput is shown as a spread. */
  show(data, chosen) {
    for (const kind of KINDS) {
      const series = kind.ports ? this.#ofPorts(data, kind) : this.#ofFlows(data, kind, chosen);
      const chart = this.#charts.get(kind.name);
      chart.element.hidden = series.length === 0;
      if (series.length === 0) continue;
      const y = { label: "", format: kind.format, max: this.scaleOf(kind.name) };
      chart.show({ x: { label: "simulated time", format: time }, y, series });
    }
  }

  #ofFlows(data, { name, kind }, chosen) {
    if (name === "goodput" && !chosen && data.flows.size > MOST_LINES) {
      return Object.entries(data.spread).map(([text, { points }]) => ({ name: `${text} flow`, points }));
    }
    const flows = chosen ?? [...data.flows.keys()].sort((a, b) => a - b).slice(0, MOST_LINES);
    return data.linesOf(name, flows)
      .map(({ flow, line }) => ({ name: this.#names.flow(flow), points: line.points, kind }));
  }

  #ofPorts(data, { name }) {
    return data.busiest(name).map(({ port, points }) => ({ name: this.#names.port(port), points }));
  }
}
