// Running processes and a growing capture, as `roce explore` sends them five times a second.

import { createChart } from "../parts/chart.js";
import { count, el, errorPlace, plural, rate, size } from "../parts/dom.js";
import { listen } from "../parts/server.js";
import { plainTable } from "../parts/table.js";

export const title = "Live";

// Seconds of a chart, and packets of the table.
const SPAN = 60;
const MOST_PACKETS = 50;
// Counters that tell how a process is doing, each with its words.
const FIGURES = {
  rdma_tx_packets: "packets sent", rdma_rx_packets: "packets received", retransmitted_packets: "retransmitted",
  rp_cnp_handled: "CNPs handled", np_cnp_sent: "CNPs sent", np_ecn_marked_roce_packets: "marked packets received",
};

export function mount(root) {
  const view = new LiveView(root);
  view.begin();
  return { update: () => view.begin(), pause: () => view.end(), unmount: () => view.close() };
}

class LiveView {
  #end = null;
  #begun = 0;
  #processes = new Map();
  #packets = null;

  constructor(root) {
    this.root = root;
    this.problem = errorPlace();
    this.none = el("p", { text: "No process publishes its counters. Start one, for example roce blast; other "
      + "programs need ROCE_STAT=1 in their environment." });
    this.list = el("div", {});
    this.capture = el("div", {});
    root.append(el("h2", { text: "Live" }), this.problem, this.none, this.list, this.capture);
  }

  begin() {
    this.#end ??= listen((event) => this.#show(event), () => {
      this.problem.textContent = "The connection to roce explore is broken; start the command again if it has ended.";
    });
  }

  end() {
    this.#end?.();
    this.#end = null;
  }

  close() {
    this.end();
    this.root.replaceChildren();
  }

  #show(event) {
    const unanswered = event.unanswered.map((pid) => `Process ${pid} does not answer; check whether it is stopped.`);
    this.problem.textContent = [event.problem ?? "", ...unanswered].join(" ").trim();
    this.#begun ||= event.time_seconds;
    const seen = new Set();
    for (const process of event.processes) {
      const key = `${process.pid} ${process.addresses.join(" ")}`;
      seen.add(key);
      if (!this.#processes.has(key)) this.#add(key, process);
      this.#processes.get(key).show(process, event.time_seconds - this.#begun);
    }
    for (const [key, process] of this.#processes) {
      if (seen.has(key)) continue;
      process.element.remove();
      this.#processes.delete(key);
    }
    this.none.hidden = seen.size > 0;
    if (event.capture) this.#showCapture(event.capture);
  }

  #add(key, process) {
    const made = new Process(process);
    this.#processes.set(key, made);
    this.list.append(made.element);
  }

  #showCapture(capture) {
    if (!this.#packets) {
      this.#packets = new Packets(capture.file);
      this.capture.append(this.#packets.element);
    }
    this.#packets.show(capture);
  }
}

/** One running process: its figures, a chart of its rates, its counters and its queue pairs. */
class Process {
  #sent = [];
  #received = [];
  #latest = null;

  constructor({ pid, command, device, addresses }) {
    this.figures = el("div", { class: "wide" });
    this.chart = createChart({ title: `Rates of process ${pid}` });
    this.counters = el("div", { class: "wide" });
    this.explanations = el("pre", { class: "wide" });
    const details = (text, body) => el("details", { toggle: () => this.#fill() }, el("summary", { text }), body);
    this.element = el("section", {},
      el("h3", { text: `${pid}: ${command}` }),
      el("p", { class: "faint", text: `${device} ${addresses.join(", ")}` }),
      this.figures, this.chart.element,
      details("All counters", this.counters), details("Queue pairs", this.explanations));
  }

  show(process, seconds) {
    this.#latest = process;
    const rates = process.counters_per_second ?? {};
    const rows = Object.entries(FIGURES).map(([name, text]) => [text, count(process.counters[name] ?? 0),
      count(rates[name] ?? 0)]);
    this.figures.replaceChildren(plainTable(["", "in all", "per second"], rows, { figures: true }));
    if (process.counters_per_second) {
      this.#sent.push([seconds, 8 * (rates.rdma_tx_bytes ?? 0)]);
      this.#received.push([seconds, 8 * (rates.rdma_rx_bytes ?? 0)]);
    }
    for (const points of [this.#sent, this.#received]) {
      while (points.length > 0 && points[0][0] < seconds - SPAN) points.shift();
    }
    this.chart.show({
      x: { label: "seconds", format: (value) => value.toFixed(0) },
      y: { label: "", format: rate },
      series: [{ name: "sent", points: this.#sent }, { name: "received", points: this.#received }],
    });
    this.#fill();
  }

  /** Fills the parts that are open. */
  #fill() {
    if (!this.#latest) return;
    const { counters, counters_per_second: rates = {}, queue_pairs: pairs } = this.#latest;
    if (this.counters.parentElement.open) {
      const rows = Object.entries(counters).filter(([, value]) => value > 0)
        .map(([name, value]) => [name, count(value), count(rates[name] ?? 0)]);
      this.counters.replaceChildren(plainTable(["counter", "value", "per second"], rows, { figures: true }));
    }
    const text = pairs.length > 0 ? pairs.map((pair) => pair.text).join("\n\n") : "No queue pair exists.";
    if (this.explanations.parentElement.open && this.explanations.textContent !== text) {
      this.explanations.textContent = text;
    }
  }
}

/** The newest packets of a growing capture. */
class Packets {
  #rows = [];

  constructor(name) {
    this.figures = el("p", {});
    this.table = el("div", { class: "wide" });
    this.problem = errorPlace();
    this.element = el("section", {}, el("h3", { text: name }), this.figures, this.problem, this.table);
  }

  show({ packets, packets_per_second: perSecond, bytes_per_second: bytes, rows, problem }) {
    this.problem.textContent = problem ?? "";
    const speed = perSecond === null ? "" : `; ${count(perSecond)} packets/s, ${size(bytes)}/s`;
    this.figures.textContent = `${plural(packets, "packet")}${speed}`;
    if (rows.length === 0) return;
    this.#rows = [...rows.toReversed(), ...this.#rows].slice(0, MOST_PACKETS);
    const head = ["#", "seconds", "source", "destination", "opcode", "QP", "PSN", "bytes", "flags", "ICRC", "mark",
      "headers"];
    this.table.replaceChildren(plainTable(head, this.#rows.map((row) => [
      String(row.number), row.seconds === null ? "–" : row.seconds.toFixed(6), row.source ?? "–",
      row.destination ?? "–", row.opcode, row.qp === null ? "–" : `0x${row.qp.toString(16)}`,
      row.psn === null ? "–" : String(row.psn), row.bytes ?? "–", row.flags, row.icrc, row.mark, row.note,
    ])));
  }
}
