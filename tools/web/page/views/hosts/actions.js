// What a person did, as a list. A link contains the list, and "Back" replays it without its last entry, so
// the engine needs no undo and the same link always shows the same state.

/**
 * What a person can do with a packet on the wire: the word in a link, the word of the engine, key and text.
 */
export const PACKET_ACTIONS = [
  { key: "drop", engine: "drop", shortcut: "D", text: "Drop" },
  { key: "delay", engine: "delay", shortcut: "L", text: "Delay", value: true },
  { key: "duplicate", engine: "duplicate", shortcut: "U", text: "Duplicate" },
  { key: "mark", engine: "mark", shortcut: "M", text: "Mark with CE" },
  { key: "corrupt", engine: "corrupt", shortcut: "C", text: "Corrupt" },
  { key: "deliver", engine: "deliver now", shortcut: "N", text: "Deliver now" },
];

export const OPERATIONS = [
  { key: "write", text: "WRITE" },
  { key: "write_imm", text: "WRITE with immediate" },
  { key: "send", text: "SEND" },
  { key: "send_imm", text: "SEND with immediate" },
  { key: "read", text: "READ" },
  { key: "fetch_add", text: "FETCH_ADD", fixed: 8 },
  { key: "cmp_swap", text: "CMP_SWAP", fixed: 8 },
];

/** A link with more actions is refused: replaying them would block the page. */
const MOST_ACTIONS = 2_000;
const MOST_STEPS = 100_000;

const name = (list, key) => list.find((one) => one.key === key);

function whole(text, what) {
  if (!/^\d{1,9}$/.test(text ?? "")) throw new Error(`“${text ?? ""}” is not ${what}; write a whole number`);
  return Number(text);
}

function side(text) {
  const number = whole(text, "a host");
  if (number > 1) throw new Error(`there is no host ${number}; the hosts are 0 and 1`);
  return number;
}

function readPost([, host, op, bytes, ...flags]) {
  if (!name(OPERATIONS, op)) throw new Error(`“${op}” is not an operation`);
  const action = { do: "post", side: side(host), op, bytes: whole(bytes, "a length") };
  if (flags.includes("badkey")) action.bad_key = true;
  if (flags.includes("pastend")) action.past_end = true;
  return action;
}

function readOne(text) {
  const parts = text.split(".");
  const [verb, first, second] = parts;
  if (verb === "step") {
    return { do: "step", times: Math.min(first === undefined ? 1 : whole(first, "a count"), MOST_STEPS) };
  }
  if (verb === "run") return { do: "run" };
  if (verb === "post") return readPost(parts);
  if (verb === "recv") return { do: "recv", side: side(first), bytes: whole(second, "a length") };
  const known = name(PACKET_ACTIONS, verb);
  if (!known) throw new Error(`“${verb}” is not an action`);
  const action = { do: verb, id: whole(first, "a packet") };
  if (known.value) action.value = whole(second, "a time in microseconds");
  return action;
}

/** Reads the list that `encode` wrote. Throws an error whose message names the wrong part. */
export function decode(text) {
  if (!text) return [];
  const parts = text.split("*");
  if (parts.length > MOST_ACTIONS) throw new Error(`the link has more than ${MOST_ACTIONS} actions`);
  return parts.map(readOne);
}

function writeOne(action) {
  switch (action.do) {
    case "step": return action.times === 1 ? "step" : `step.${action.times}`;
    case "run": return "run";
    case "recv": return `recv.${action.side}.${action.bytes}`;
    case "post": {
      const flags = (action.bad_key ? ".badkey" : "") + (action.past_end ? ".pastend" : "");
      return `post.${action.side}.${action.op}.${action.bytes}${flags}`;
    }
    default: return `${action.do}.${action.id}` + (action.value === undefined ? "" : `.${action.value}`);
  }
}

/** The list as text without characters that a link would have to escape. */
export function encode(actions) {
  return actions.map(writeOne).join("*");
}

/** The list with one more action. Steps in a row are one entry, so that links stay short. */
export function added(actions, action) {
  const last = actions.at(-1);
  if (action.do === "step" && last?.do === "step") {
    return [...actions.slice(0, -1), { do: "step", times: last.times + action.times }];
  }
  return [...actions, action];
}

/** The list without the last action, or with one step less. */
export function withoutLast(actions) {
  const last = actions.at(-1);
  const before = actions.slice(0, -1);
  return last?.do === "step" && last.times > 1 ? [...before, { do: "step", times: last.times - 1 }] : before;
}

/**
 * Carries out one action. Returns false if the engine had nothing left to do. Throws what the engine throws.
 */
export function carryOut(hosts, action) {
  switch (action.do) {
    case "step":
      for (let count = 0; count < action.times; count += 1) if (!hosts.step()) return count > 0;
      return true;
    case "run": return hosts.run() ?? true;
    case "recv": return hosts.postRecv(action.side, action.bytes) ?? true;
    case "post": {
      const { side: host, op, bytes, bad_key = false, past_end = false } = action;
      return hosts.post({ side: host, op, bytes, bad_key, past_end }) ?? true;
    }
    default: {
      const { engine } = name(PACKET_ACTIONS, action.do);
      return hosts.act(action.id, engine, action.value ?? 0) ?? true;
    }
  }
}

/** One action as a sentence, for the list of actions. `names` are the names of the two hosts. */
export function describe(action, names) {
  switch (action.do) {
    case "step": return action.times === 1 ? "One step" : `${action.times} steps`;
    case "run": return "Run until nothing is left to do";
    case "recv": return `Post a receive of ${action.bytes} bytes at the ${names[action.side]}`;
    case "post": {
      const what = name(OPERATIONS, action.op).text;
      const wrong = (action.bad_key ? ", with a wrong key" : "") + (action.past_end ? ", past the end" : "");
      return `Post a ${what} of ${action.bytes} bytes at the ${names[action.side]}${wrong}`;
    }
    case "delay": return `Delay packet ${action.id} by ${action.value} µs`;
    default: return `${name(PACKET_ACTIONS, action.do).text}: packet ${action.id}`;
  }
}
