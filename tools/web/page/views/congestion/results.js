// The tables of flows and ports at the end of a run.

import { count, el, rate, size, time } from "../../parts/dom.js";
import { plainTable } from "../../parts/table.js";

/** More lines than these make the page slow; the command prints all of them. */
const MOST_LINES = 300;

const ratio = (value) => value.toFixed(2);
const kind = (isHost) => (isHost ? "host" : "switch");

/** Columns: key, heading, and how a value is written. `rare`: only shown if a line has such a value. */
const FLOWS = [
  { key: "number", head: "flow" }, { key: "source", head: "from" }, { key: "destination", head: "to" },
  { key: "bytes", head: "bytes", as: size }, { key: "delivered", head: "delivered", as: size },
  { key: "state", head: "state" }, { key: "failure", head: "failure", rare: true },
  { key: "start_us", head: "start", as: time }, { key: "completion_us", head: "completion", as: time },
  { key: "ideal_us", head: "alone", as: time }, { key: "slowdown", head: "slowdown", as: ratio },
  { key: "goodput_bps", head: "goodput", as: rate }, { key: "packets", head: "packets" },
  { key: "retransmitted", head: "sent again", rare: true }, { key: "timeouts", head: "timeouts", rare: true },
  { key: "out_of_sequence", head: "out of order", rare: true }, { key: "marked", head: "marked" },
  { key: "cnps_sent", head: "CNPs sent" }, { key: "cnps_handled", head: "CNPs handled" },
];
const PORTS = [
  { key: "name", head: "port" }, { key: "is_host", head: "of a", as: kind }, { key: "tx_frames", head: "frames" },
  { key: "tx_bytes", head: "sent", as: size }, { key: "queue_most_bytes", head: "longest queue", as: size },
  { key: "marked", head: "marked" }, { key: "dropped", head: "dropped", rare: true },
  { key: "trimmed", head: "trimmed", rare: true }, { key: "pauses_sent", head: "pauses sent" },
  { key: "pauses_received", head: "pauses received" }, { key: "paused_us", head: "paused for", as: time },
];

/** The two tables, each in a block that scrolls inside itself. Ports that sent nothing are left out. */
export function resultTables({ flows, ports }) {
  const used = ports.filter(({ tx_frames: frames }) => frames > 0);
  return [...block("Flows", flows, FLOWS), ...block("Ports", used, PORTS)];
}

function block(title, rows, all) {
  if (rows.length === 0) return [];
  const shown = rows.slice(0, MOST_LINES);
  const columns = all.filter((column) => !column.rare || shown.some((row) => text(column, row) !== "–"));
  const lines = shown.map((row) => columns.map((column) => text(column, row)));
  const caption = rows.length > MOST_LINES ? `The first ${MOST_LINES} of ${count(rows.length)}` : "";
  return [
    el("h4", { text: title }),
    el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": `Table of ${title.toLowerCase()}` },
      plainTable(columns.map(({ head }) => head), lines, { caption })),
  ];
}

function text({ key, as, rare }, row) {
  const value = row[key];
  if (value === null || value === undefined || (rare && value === 0)) return "–";
  if (as) return as(value);
  // A count for each reason.
  if (typeof value === "object") {
    const reasons = Object.entries(value).map(([reason, number]) => `${reason.replaceAll("_", " ")}: ${count(number)}`);
    return reasons.join(", ") || "–";
  }
  return typeof value === "number" ? count(value) : String(value);
}
