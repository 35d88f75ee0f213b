//! Lesson 7: keys, ranges and rights of memory, and memory windows.

use std::sync::Arc;

use roce_packet::{NakCode, Syndrome};
use roce_sim::pair::{Settings, Side};
use roce_transport::{
    Access, EngineConfig, RKey, SendOp, SendWr, WcStatus, WindowBinding, WindowType, WordMemory,
};

use super::scene::Scene;
use super::{AnswerKey, Expected, Outcome};

/// The region of task 1 and the length of the WRITE.
const START: u64 = 0x1_0000;
const LEN: u64 = 4_096;
const BYTES: u64 = 256;
/// The window of task 4: its offset in the region and its length.
const WINDOW_OFFSET: u64 = 64;
const WINDOW_LEN: usize = 16;

/// Judges an answer to a task of the lesson.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => last_address(),
        2 => syndrome(),
        3 => completions(),
        4 => window(),
        _ => None,
    };
    Some(key?.judge(answer))
}

/// A scene with little memory, because some tasks need several.
fn scene() -> Scene {
    Scene::with_config(EngineConfig::from_number(7), 1 << 13, &Settings::default())
}

/// Tells whether the responder accepts the WRITE of task 1 at this address.
fn is_accepted(remote_addr: u64) -> Option<bool> {
    let mut scene = scene();
    let host = scene.pair.host_mut(Side::B);
    let memory = Arc::new(WordMemory::new(LEN as usize));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let rkey = host.engine.register(host.pd, START, memory, access).ok()?.rkey;
    scene.post_op(1, BYTES as usize, SendOp::Write { remote_addr, rkey })?;
    Some(scene.run() == [WcStatus::Success])
}

/// The last address at which a WRITE may begin.
fn last_address() -> Option<AnswerKey> {
    // The first address is accepted and the one behind the region is not. Halve the distance between both.
    let (mut accepted, mut refused) = (START, START + LEN);
    let mut tries = 0;
    while refused - accepted > 1 {
        let middle = accepted + (refused - accepted) / 2;
        if is_accepted(middle)? {
            accepted = middle;
        } else {
            refused = middle;
        }
        tries += 1;
    }
    let end = START + LEN;
    let shows = format!(
        "Two engines tried the WRITE at {tries} addresses.\n\
         At {accepted:#x} it succeeded, and at {refused:#x} the responder refused it.\n\
         {accepted:#x} + {BYTES} is {end:#x}, the first address behind the region."
    );
    let key = AnswerKey::new(Expected::Number(accepted), shows)
        .hint(
            Expected::Number(end),
            "This is the first address behind the region, so not one byte of the WRITE is inside.",
        )
        .hint(
            Expected::Number(end - 1),
            "Here only the first byte of the WRITE is inside. The responder checks the whole range before it \
             writes.",
        )
        .hint(
            Expected::Number(accepted - 1),
            "One byte later fits as well: the last byte of the WRITE may be the last byte of the region.",
        )
        .hint(
            Expected::Number(refused),
            "One byte too late: count the bytes of the WRITE, not the distance from its first to its last \
             byte.",
        )
        .otherwise(format!("The WRITE has {BYTES} bytes, and the region ends before {end:#x}."));
    Some(key)
}

/// Posts three WRITEs. The second one has a key that the responder does not have.
fn refused() -> Option<(Scene, Vec<WcStatus>)> {
    let mut scene = scene();
    for wr_id in 0..3 {
        let wrong = if wr_id == 1 { 0x100 } else { 0 };
        scene
            .post(wr_id, 16, |remote_addr, rkey| SendOp::Write { remote_addr, rkey: RKey(rkey.0 ^ wrong) })?;
    }
    let statuses = scene.run();
    Some((scene, statuses))
}

/// The syndrome of the answer to a request with a wrong key.
fn syndrome() -> Option<AnswerKey> {
    let (scene, _) = refused()?;
    let syndrome = scene.last_syndrome()?;
    let found = syndrome.to_byte();
    let of = |code| Expected::Bytes(vec![Syndrome::Nak(code).to_byte()]);
    let shows = format!(
        "An engine got a WRITE with a key that it does not have.\n\
         The AETH of its answer begins with {found:02x}, {found:08b} in binary:\n\
         {} in bits 7 to 5 means {syndrome}.",
        found >> 5,
    );
    let key = AnswerKey::new(Expected::Bytes(vec![found]), shows)
        .hint(
            Expected::Bytes(vec![found & 0x1f]),
            "This is the code of the NAK. The upper three bits of the syndrome say that it is a NAK.",
        )
        .hint(
            of(NakCode::PsnSequence),
            "This NAK reports a missing packet, and the requester sends again. A wrong key stays wrong.",
        )
        .hint(
            of(NakCode::InvalidRequest),
            "The request is well-formed: opcode, order and length are right. Only its access is refused.",
        )
        .hint(
            of(NakCode::RemoteOperational),
            "The responder works. It refuses the access because of the key.",
        )
        .otherwise("Bits 7 to 5 of the syndrome are 011 for a NAK. Which code has a refused access?");
    Some(key)
}

/// The completions of three WRITEs of which the second one is refused.
fn completions() -> Option<AnswerKey> {
    let (_, statuses) = refused()?;
    let [first, second, third] = statuses[..] else { return None };
    let list = |all: [WcStatus; 3]| Expected::text(all.map(WcStatus::name).join(", "));
    let success = WcStatus::Success;
    let shows = format!(
        "Two engines exchanged the three WRITEs.\n\
         The completions of the requester: {}, {}, {}.\n\
         The queue pair is then in ERR, which flushes what is left in its queues.",
        first.name(),
        second.name(),
        third.name(),
    );
    let key = AnswerKey::new(list([first, second, third]), shows)
        .hint(
            list([success, second, success]),
            "A refused request moves the queue pair to ERR. What happens to requests that are still queued?",
        )
        .hint(
            list([success, WcStatus::RemoteInvalidRequestError, third]),
            "This status belongs to the NAK \"invalid request\". The responder sent another NAK: see task 2.",
        )
        .hint(
            list([third, second, third]),
            "The responder executed the first WRITE before it got the second one.",
        )
        .otherwise("Requests complete in their order. Think about each of the three alone.");
    Some(key)
}

/// An access through the window of task 4.
struct Attempt {
    /// The text of the choice.
    text: &'static str,
    offset: u64,
    bytes: usize,
    is_read: bool,
    /// Whether a SEND with Invalidate of the key comes first.
    is_invalidated: bool,
    hint: &'static str,
}

static ATTEMPTS: [Attempt; 4] = [
    Attempt {
        text: "a WRITE of 16 bytes to the first address of the window",
        offset: 0,
        bytes: 16,
        is_read: false,
        is_invalidated: false,
        hint: "",
    },
    Attempt {
        text: "a WRITE of 8 bytes, 12 bytes behind the first address of the window",
        offset: 12,
        bytes: 8,
        is_read: false,
        is_invalidated: false,
        hint: "The region goes on behind the window, but this key opens the window only. Where does this \
               WRITE end?",
    },
    Attempt {
        text: "a READ of 8 bytes from the first address of the window",
        offset: 0,
        bytes: 8,
        is_read: true,
        is_invalidated: false,
        hint: "The region grants READ, but the rights of a window are its own. Which right does it grant?",
    },
    Attempt {
        text: "a WRITE of 8 bytes to the first address of the window, after a SEND with Invalidate of its \
               key",
        offset: 0,
        bytes: 8,
        is_read: false,
        is_invalidated: true,
        hint: "A SEND with Invalidate closes the window: its key gives no access afterwards.",
    },
];

impl Attempt {
    /// Tells whether the responder carries the access out.
    fn succeeds(&self) -> Option<bool> {
        let mut scene = scene();
        scene.pair.post_recv(Side::B, scene.responder, 9, 4_096, 64).ok()?;
        let host = scene.pair.host_mut(Side::B);
        let addr = host.region.addr + WINDOW_OFFSET;
        let binding =
            WindowBinding { region: host.region.lkey, addr, len: WINDOW_LEN, access: Access::REMOTE_WRITE };
        let window = host.engine.allocate_window(host.pd, WindowType::Type2).ok()?;
        let rkey = window.next_variant();
        let bind = SendOp::BindWindow { window, new_rkey: rkey, binding };
        scene.pair.post_send(Side::B, scene.responder, &SendWr::new(8, bind, &[])).ok()?;
        scene.pair.drive();
        if self.is_invalidated {
            scene.post_op(1, 8, SendOp::SendWithInvalidate(rkey))?;
        }
        let remote_addr = addr + self.offset;
        let op = match self.is_read {
            true => SendOp::Read { remote_addr, rkey },
            false => SendOp::Write { remote_addr, rkey },
        };
        scene.post_op(2, self.bytes, op)?;
        Some(scene.run().last() == Some(&WcStatus::Success))
    }
}

/// The access that a window allows.
fn window() -> Option<AnswerKey> {
    let mut right = None;
    let mut shows = "Two engines tried each access on a new connection:\n".to_owned();
    let mut refused = Vec::new();
    for attempt in &ATTEMPTS {
        let succeeds = attempt.succeeds()?;
        shows.push_str(&format!("{}: {}\n", attempt.text, if succeeds { "succeeds" } else { "is refused" }));
        if succeeds {
            right = Some(attempt);
        } else {
            refused.push(attempt);
        }
    }
    let key = AnswerKey::new(Expected::text(right?.text), shows);
    Some(refused.into_iter().fold(key, |key, attempt| key.hint(Expected::text(attempt.text), attempt.hint)))
}
