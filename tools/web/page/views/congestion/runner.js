// Runs a simulation in pieces between two pictures, so that the page stays usable.

/** Time of one piece. A picture has 16 ms, and drawing needs some of them. */
const PIECE_MS = 9;
const FIRST_EVENTS = 2_000;
const FEWEST_EVENTS = 100;
const MOST_EVENTS = 500_000;

export class Runner {
  #run;
  #events = FIRST_EVENTS;
  #request = null;
  #step;
  state = "ready";

  /** `step(state)` is called after each piece: "running", "paused" or "ended". */
  constructor(run, step) {
    this.#run = run;
    this.#step = step;
  }

  start() {
    if (this.state === "ended" || this.#request !== null) return;
    this.state = "running";
    this.#request = requestAnimationFrame(() => this.#piece());
  }

  pause() {
    if (this.state === "running") this.state = "paused";
    cancelAnimationFrame(this.#request);
    this.#request = null;
    this.#step(this.state);
  }

  #piece() {
    this.#request = null;
    const begin = performance.now();
    // A run that fails is over; the error is shown by whoever shows errors of the page.
    this.state = "ended";
    const goesOn = this.#run.run(this.#events);
    const took = Math.max(0.1, performance.now() - begin);
    // At most doubled: one cheap piece says little about the next.
    const fits = this.#events * Math.min(2, PIECE_MS / took);
    this.#events = Math.round(Math.min(MOST_EVENTS, Math.max(FEWEST_EVENTS, fits)));
    this.state = goesOn ? "running" : "ended";
    this.#step(this.state);
    if (goesOn && this.#request === null && this.state === "running") this.start();
  }
}
