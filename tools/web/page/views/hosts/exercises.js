// Starting points. Each one posts work, runs until a certain packet is on the wire, and changes it. The
// result is a plain list of actions, so everything after it works as if a person had done it.

/** More steps than any of these needs: an engine that never sends the packet must not block the page. */
const MOST_STEPS = 300;

/** Steps until host `side` has sent `count` packets since the start, and returns the id of the last one. */
function packet(session, side, count) {
  const seen = new Set();
  for (let steps = 0; steps <= MOST_STEPS; steps += 1) {
    for (const one of session.state().wire) if (one.from === side) seen.add(one.id);
    if (seen.size >= count) return [...seen].sort((a, b) => a - b)[count - 1];
    if (!session.act({ do: "step", times: 1 })) break;
  }
  throw new Error("the packet of this exercise was never sent");
}

const write = (bytes, more) => ({ do: "post", side: 0, op: "write", bytes, ...more });

export const EXERCISES = [
  {
    key: "lossy-write",
    title: "WRITE with a lost packet",
    text: "The third packet of a WRITE is lost. Step until the responder sees the gap. Which PSN does its NAK "
      + "name, and which packets does the requester send again?",
    play(session) {
      session.act(write(8192));
      session.act({ do: "drop", id: packet(session, 0, 3) });
    },
  },
  {
    key: "lost-response",
    title: "READ with a lost response",
    text: "The second response of a READ is lost. Which side notices, and what does it send? Compare its PSN "
      + "with that of the lost response.",
    play(session) {
      session.act({ do: "post", side: 0, op: "read", bytes: 4096 });
      session.act({ do: "drop", id: packet(session, 1, 2) });
    },
  },
  {
    key: "rnr",
    title: "SEND without a receive",
    text: "The responder has no receive for this SEND. Step until the RNR NAK arrives, and look at the timer of "
      + "the requester. Then post a receive at the responder, or let the retries run out.",
    settings: { rnr_retry: 3 },
    play(session) {
      session.act({ do: "post", side: 0, op: "send", bytes: 1024 });
    },
  },
  {
    key: "timeout",
    title: "The only packet is lost",
    text: "Nothing arrives after the lost packet, so the responder cannot see a gap. Run, and find in the log "
      + "what makes the requester send again, and after which time.",
    play(session) {
      session.act(write(512));
      session.act({ do: "drop", id: packet(session, 0, 1) });
    },
  },
  {
    key: "wrong-key",
    title: "WRITE with a wrong key",
    text: "The R_Key of this WRITE is wrong. What does the responder answer, and in which state are the two queue "
      + "pairs afterwards? Post another WRITE and see what happens to it.",
    play(session) {
      session.act(write(1024, { bad_key: true }));
    },
  },
  {
    key: "lost-ack",
    title: "Lost acknowledgement, duplicate request",
    text: "The WRITE has arrived, but its acknowledgement is lost. Run step by step: does the responder write the "
      + "data again when the request arrives a second time? Drop the second acknowledgement as well.",
    play(session) {
      session.act(write(512));
      session.act({ do: "drop", id: packet(session, 1, 1) });
    },
  },
];

export const exercise = (key) => EXERCISES.find((one) => one.key === key);
