// The engine of roce. Everything else gets plain objects, Uint8Array, and an Error whose message is a sentence for
// the reader.

import { load as loadModule } from "./module.js";

let module;

/** Loads the engine and returns the object that every view receives. */
export async function load() {
  module = await loadModule();
  return engine;
}

/** Calls a function of the engine, which returns text or a Uint8Array. */
function call(name, values = [], file = undefined) {
  try {
    return module(name, values, file);
  } catch (thrown) {
    if (thrown instanceof WebAssembly.RuntimeError) {
      console.error(thrown);
      throw new Error("The engine has stopped because of a defect. Reload the page, and please report what you did.");
    }
    throw thrown;
  }
}

const json = (name, values, file) => JSON.parse(call(name, values, file));

const engine = {
  version: () => call("version"),

  frame: (hex, from = "auto") => json("frame", [hex, from]),
  setField: (hex, from, key, text, repair) => call("setField", [hex, from, key, text, repair]),
  setBit: (hex, bit) => call("setBit", [hex, bit]),
  opcodes: () => json("opcodes"),
  build: (parts) => call("build", [JSON.stringify(parts)]),
  exportFrame: (hex, from, format) => call("exportFrame", [hex, from, format]),
  framePcap: (hexes) => call("framePcap", [hexes]),
  examples: () => json("examples"),

  open: (name, bytes) => capture(json("capture.open", [name], bytes)),

  hosts: (settings) => hosts(json("hosts.new", [JSON.stringify(settings)])),

  scenarios: () => json("scenarios"),
  algorithms: () => json("algorithms"),
  simulate: (text, sets) => simulation(json("run.new", [text, JSON.stringify(sets)])),

  lessons: () => json("lessons"),
  check: (lesson, task, answer) => json("check", [lesson, task, answer]),
  solution: (lesson) => call("solution", [lesson]),
  teacher: (lesson) => call("teacher", [lesson]),
};

// Objects of the engine have numbers, which are the first argument of their functions.

function capture(number) {
  return {
    summary: () => json("capture.summary", [number]),
    rows: (filter, from, count) => json("capture.rows", [number, filter, from, count]),
    packet: (packet) => json("capture.packet", [number, packet]),
    analysis: () => json("capture.analysis", [number]),
    ladder: (connection, mostRows) => json("capture.ladder", [number, connection, mostRows]),
    series: (connection, bins) => json("capture.series", [number, connection, bins]),
    free: () => call("capture.free", [number]),
  };
}

function hosts(number) {
  return {
    post: (request) => json("hosts.post", [number, JSON.stringify(request)]),
    postRecv: (side, bytes) => json("hosts.postRecv", [number, side, bytes]),
    step: () => json("hosts.step", [number]),
    run: () => json("hosts.run", [number]),
    state: () => json("hosts.state", [number]),
    act: (id, action, value = 0) => json("hosts.act", [number, id, action, value]),
    frame: (id) => call("hosts.frame", [number, id]),
    ladder: (mostRows) => json("hosts.ladder", [number, mostRows]),
    pcap: () => call("hosts.pcap", [number]),
    free: () => call("hosts.free", [number]),
  };
}

function simulation(number) {
  return {
    run: (events) => json("run.run", [number, events]),
    progress: () => json("run.progress", [number]),
    take: () => json("run.take", [number]),
    names: () => json("run.names", [number]),
    results: () => json("run.results", [number]),
    free: () => call("run.free", [number]),
  };
}
