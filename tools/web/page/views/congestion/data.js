// The points of a run, in a form that charts draw quickly. A long run has more points than a screen has
// columns, so a line keeps every second point when it becomes too long.

const MOST_POINTS = 3_000;

/** More lines than these in one chart cannot be told apart. */
export const MOST_LINES = 6;

const RATES = ["goodput", "rate", "target", "alpha"];

/** One line: points of a time and a value; a value of null is a gap. */
class Line {
  points = [];
  largest = 0;
  #keep = 1;
  #seen = 0;

  push(time, value) {
    if (value !== null && value > this.largest) this.largest = value;
    this.#seen += 1;
    if (this.#seen % this.#keep !== 0) return;
    this.points.push([time, value]);
    if (this.points.length < MOST_POINTS) return;
    this.points = this.points.filter((_, place) => place % 2 === 1);
    this.#keep *= 2;
  }

  get hasValues() {
    return this.points.some(([, value]) => value !== null);
  }
}

/** The points that a simulation has returned so far. Times are in microseconds. */
export class Data {
  /** By the number of the flow: a line for each of RATES. */
  flows = new Map();
  /** By the number of the port: lines `bytes` and `paused`. */
  ports = new Map();
  /** The fastest, median and slowest goodput at each time, for runs with many flows. */
  spread = { fastest: new Line(), median: new Line(), slowest: new Line() };
  #moment = { time: null, values: [] };
  #now = -1;
  #interval = Infinity;

  add({ rates, queues }) {
    for (const point of rates) this.#addRate(point);
    for (const [time, port, bytes, paused] of queues) {
      this.#tick(time);
      const lines = entry(this.ports, port, ["bytes", "paused"]);
      this.#endQuiet(lines, time);
      lines.bytes.push(time, bytes);
      lines.paused.push(time, paused);
      lines.seen = time;
    }
    for (const lines of this.ports.values()) this.#beginQuiet(lines, this.#now);
  }

  /** Notes the time of a sample, and the time between two. */
  #tick(time) {
    if (time <= this.#now) return;
    if (this.#now >= 0) this.#interval = Math.min(this.#interval, time - this.#now);
    this.#now = time;
  }

  /**
   * The simulation has no points of empty queues, so a port without points for a while has an empty queue.
   */
  #beginQuiet(lines, now) {
    if (lines.isQuiet || now < lines.seen + 1.5 * this.#interval) return;
    lines.bytes.push(lines.seen + this.#interval, 0);
    lines.isQuiet = true;
  }

  #endQuiet(lines, time) {
    if (lines.seen === undefined) lines.isQuiet = true;
    else this.#beginQuiet(lines, time);
    if (lines.isQuiet) lines.bytes.push(Math.max(0, time - this.#interval), 0);
    lines.isQuiet = false;
  }

  #addRate([time, flow, ...values]) {
    const lines = entry(this.flows, flow, RATES);
    RATES.forEach((name, place) => lines[name].push(time, values[place] ?? null));
    this.#tick(time);
    if (time !== this.#moment.time) this.#endMoment(time);
    this.#moment.values.push(values[0] ?? 0);
  }

  /** Nothing follows: the last sample is complete. */
  end() {
    this.#endMoment(null);
  }

  #endMoment(next) {
    const { time, values } = this.#moment;
    if (values.length > 0) {
      values.sort((a, b) => a - b);
      this.spread.fastest.push(time, values.at(-1));
      this.spread.median.push(time, values[values.length >> 1]);
      this.spread.slowest.push(time, values[0]);
    }
    this.#moment = { time: next, values: [] };
  }

  /** The largest value of all flows or ports, so that charts beside each other can have one scale. */
  largest(name) {
    const lines = RATES.includes(name) ? this.flows : this.ports;
    return Math.max(0, ...[...lines.values()].map((one) => one[name].largest));
  }

  /** The lines of these flows that have values: an algorithm without alpha has no chart of alpha. */
  linesOf(name, flows) {
    const all = flows.map((flow) => ({ flow, line: this.flows.get(flow)?.[name] }));
    return all.filter(({ line }) => line?.hasValues);
  }

  /** The ports with the largest values, largest first. */
  busiest(name) {
    const ports = [...this.ports].map(([port, lines]) => ({ port, line: lines[name] }));
    const used = ports.filter(({ line }) => line.largest > 0);
    used.sort((a, b) => b.line.largest - a.line.largest);
    return used.slice(0, MOST_LINES).map(({ port, line }) => ({ port, points: this.#upToNow(line, name) }));
  }

  /** An empty queue stays empty, and a sum of pauses stays, until the next point of the port. */
  #upToNow({ points }, name) {
    const [time, value] = points.at(-1) ?? [this.#now, 0];
    if (time >= this.#now) return points;
    return [...points, [this.#now, name === "bytes" ? 0 : value]];
  }
}

function entry(map, key, names) {
  if (!map.has(key)) map.set(key, Object.fromEntries(names.map((name) => [name, new Line()])));
  return map.get(key);
}
