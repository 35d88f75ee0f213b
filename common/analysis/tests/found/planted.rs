//! Small captures with one planted fault each, for students: `docs/lessons/captures`. `analyze` must find the
//! fault of each, and must not find it in captures without faults.
//!
//! After a change of a fault, write the files again:
//! `ROCE_WRITE_CAPTURES=1 cargo test -p roce-analysis --test found planted`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use roce_analysis::event::events;
use roce_analysis::verdict::Outcome;
use roce_analysis::{Analysis, Collector, Packet};
use roce_capture::{CaptureReader, Direction, PcapWriter};
use roce_packet::outer::Link;
use roce_packet::{Ecn, Opcode, Operation, PathMtu, Qpn};
use roce_sim::pair::{Action, Pair, Sent, Settings, Side};
use roce_transport::{QpState, QpType, RKey, SendOp, SendWr};

use crate::explained::{self, edit, first_again, is_nak, is_response, is_rnr, is_write, judged, lose, post};
use crate::scene::{Seen, Tapped, frame_of, tapped};

/// Maximum size of a file.
const MOST_BYTES: u64 = 6 << 10;
/// A message of four packets.
const LEN: usize = 900;
/// Time between two messages.
const PAUSE_NS: u64 = 50_000;
/// The variable that makes the test write the files.
const WRITE: &str = "ROCE_WRITE_CAPTURES";

/// The finding of `analyze` for a fault.
#[derive(Clone, Copy, Debug)]
enum Finds {
    /// An event with this key.
    Event(&'static str),
    /// A failed verdict of the rule with this key, and a part of its summary.
    Fail(&'static str, &'static str),
}

/// A capture with a fault.
struct Planted {
    /// The fault, in the words of the solution.
    fault: &'static str,
    /// The tap: 0 near the requester, 1 near the responder.
    tap: usize,
    finds: Finds,
    play: fn() -> Tapped,
}

/// The captures, in the order of their numbers.
const PLANTED: [Planted; 24] = [
    Planted {
        fault: "a request is lost",
        tap: 1,
        finds: Finds::Event("request_lost"),
        play: || writes(lose(5, is_write)),
    },
    Planted {
        fault: "the last packet of the last message is lost",
        tap: 0,
        finds: Finds::Event("timeout"),
        play: || writes(lose(11, is_write)),
    },
    Planted {
        fault: "a READ response is lost",
        tap: 0,
        finds: Finds::Event("response_lost"),
        play: || messages(Operation::ReadRequest, 2, lose(6, is_response)),
    },
    Planted {
        fault: "an acknowledgement is lost",
        tap: 1,
        finds: Finds::Event("ack_lost"),
        play: || writes(lose(2, is_ack)),
    },
    Planted {
        fault: "an ICRC is wrong",
        tap: 1,
        finds: Finds::Fail("icrc", "wrong ICRC"),
        play: || {
            let mut lose = lose(5, is_write);
            writes(move |sent| match lose(sent) {
                Action::Drop => Action::FlipBit(8 * 40),
                other => other,
            })
        },
    },
    Planted {
        fault: "the network delivers a packet twice",
        tap: 1,
        finds: Finds::Event("doubled"),
        play: || writes(instead(5, Action::Duplicate)),
    },
    Planted {
        fault: "a packet is overtaken",
        tap: 1,
        finds: Finds::Event("overtaken"),
        play: || writes(instead(5, Action::Delay(20_000))),
    },
    Planted {
        fault: "the key of a WRITE is wrong",
        tap: 0,
        finds: Finds::Event("remote_access_nak"),
        play: wrong_key,
    },
    Planted {
        fault: "the ends have different path MTUs",
        tap: 0,
        finds: Finds::Event("invalid_request_nak"),
        play: different_mtus,
    },
    Planted {
        fault: "no receive is posted, until all RNR retries are used up",
        tap: 0,
        finds: Finds::Event("rnr_nak"),
        play: || no_receive(2, None),
    },
    Planted {
        fault: "the requester tries again too early after an RNR NAK",
        tap: 0,
        finds: Finds::Fail("rnr", ""),
        play: early_after_rnr,
    },
    Planted {
        fault: "the responder disappears, and all retries are used up",
        tap: 0,
        finds: Finds::Event("timeout"),
        play: peer_gone,
    },
    Planted {
        fault: "an acknowledgement has a PSN that was not sent",
        tap: 0,
        finds: Finds::Fail("msn", "not the number of completed messages"),
        play: || {
            let mut taps = writes(|_| Action::Pass);
            let answer = answer(&taps, 1);
            edit(&mut taps, |seen| seen.sent == answer, |seen| seen.set_psn(seen.psn() + 20));
            taps
        },
    },
    Planted {
        fault: "an acknowledgement has a wrong MSN",
        tap: 0,
        finds: Finds::Event("msn_jump"),
        play: || {
            let mut taps = writes(|_| Action::Pass);
            let answer = answer(&taps, 1);
            edit(&mut taps, |seen| seen.sent == answer, |seen| seen.bytes[15] += 9);
            taps
        },
    },
    Planted {
        fault: "a NAK asks for a PSN that was acknowledged before",
        tap: 0,
        finds: Finds::Fail("naks", ""),
        play: || {
            let mut taps = writes(lose(5, is_write));
            edit(&mut taps, is_nak, |seen| seen.set_psn(seen.psn() - 3));
            taps
        },
    },
    Planted {
        fault: "a NAK has a reserved code",
        tap: 0,
        finds: Finds::Fail("refusals", ""),
        play: || {
            let mut taps = wrong_key();
            edit(&mut taps, is_nak, |seen| seen.bytes[12] = 0x67);
            taps
        },
    },
    Planted {
        fault: "a last packet has a wrong pad count",
        tap: 1,
        finds: Finds::Fail("opcodes", ""),
        play: || {
            let mut taps = writes(|_| Action::Pass);
            let last = |seen: &Seen| seen.opcode() == Opcode::RC_RDMA_WRITE_LAST && seen.psn() == 0x1007;
            edit(&mut taps, last, |seen| seen.bytes[1] |= 0x30);
            taps
        },
    },
    Planted {
        fault: "a last packet does not ask for an acknowledgement",
        tap: 0,
        finds: Finds::Event("timeout"),
        play: no_request_for_an_answer,
    },
    Planted {
        fault: "after a NAK, the requester begins at the wrong packet",
        tap: 0,
        finds: Finds::Fail("restart", ""),
        play: || {
            let mut taps = writes(lose(5, is_write));
            let again = first_again(&taps);
            taps.iter_mut().for_each(|tap| tap.retain(|seen| seen.sent != again.sent));
            taps
        },
    },
    Planted {
        fault: "marked packets cause no CNP",
        tap: 1,
        finds: Finds::Fail("cnp", "without a CNP"),
        play: || {
            let mut taps = many_small(|_| Action::Mark);
            taps.iter_mut().for_each(|tap| tap.retain(|seen| seen.opcode() != Opcode::CNP));
            taps
        },
    },
    Planted {
        fault: "a storm of CNPs after a single mark",
        tap: 1,
        finds: Finds::Fail("cnp", "without a mark"),
        play: || {
            let mut taps = many(Operation::Write, 40, 12, 2_000_000, |_| Action::Mark);
            for seen in taps.iter_mut().flatten().filter(|seen| seen.psn() != 0x1000) {
                seen.path = seen.path.with_ecn(Ecn::Capable0);
            }
            taps
        },
    },
    Planted {
        fault: "a READ is resumed at the wrong address",
        tap: 0,
        finds: Finds::Fail("reads", ""),
        play: || {
            let mut taps = messages(Operation::ReadRequest, 2, lose(6, is_response));
            let again = first_again(&taps);
            // The third lowest byte of the virtual address is left; this one is 256 bytes.
            edit(&mut taps, |seen| seen.sent == again.sent, |seen| seen.bytes[18] += 1);
            taps
        },
    },
    Planted {
        fault: "an atomic operation is executed twice",
        tap: 1,
        finds: Finds::Fail("duplicates", ""),
        play: || {
            let is_answer = |sent: &Sent| sent.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE;
            let mut taps = many(Operation::FetchAdd, 8, 4, PAUSE_NS, lose(2, is_answer));
            let again = first_again(&taps);
            edit(
                &mut taps,
                |seen| seen.from == Side::B && seen.sent > again.sent && seen.psn() == again.psn(),
                |seen| seen.bytes[23] ^= 1,
            );
            taps
        },
    },
    Planted {
        fault: "a SEND packet stands inside a WRITE",
        tap: 1,
        finds: Finds::Fail("opcodes", ""),
        play: || {
            let mut taps = writes(|_| Action::Pass);
            let middle = |seen: &Seen| seen.opcode() == Opcode::RC_RDMA_WRITE_MIDDLE && seen.psn() == 0x1006;
            edit(&mut taps, middle, |seen| seen.bytes[0] = Opcode::RC_SEND_MIDDLE.0);
            taps
        },
    },
];

fn settings() -> Settings {
    Settings { mtu: PathMtu::Mtu256, timeout: 8, rnr_retry: 7, min_rnr_timer: 10, ..Settings::default() }
}

/// Two hosts whose memory has a pattern.
fn pair(script: impl FnMut(&Sent) -> Action + 'static) -> Pair {
    let mut pair = explained::pair(script);
    let pattern: Vec<u8> = (0..LEN).map(|index| (index % 251) as u8).collect();
    for side in [Side::A, Side::B] {
        pair.host_mut(side).write_memory(0, &pattern);
    }
    pair
}

/// Messages of one kind, one after the other; `script` decides about the packets.
fn many(
    operation: Operation,
    len: usize,
    count: u64,
    pause_ns: u64,
    script: impl FnMut(&Sent) -> Action + 'static,
) -> Tapped {
    let mut pair = pair(script);
    let (a, _) = pair.connect_with(QpType::Rc, &settings());
    for wr_id in 0..count {
        post(&mut pair, a, wr_id, operation, len);
        pair.drive();
        pair.now = pair.now.plus_nanos(pause_ns);
    }
    tapped(&pair.sent)
}

fn messages(operation: Operation, count: u64, script: impl FnMut(&Sent) -> Action + 'static) -> Tapped {
    many(operation, LEN, count, PAUSE_NS, script)
}

/// Three WRITEs of four packets.
fn writes(script: impl FnMut(&Sent) -> Action + 'static) -> Tapped {
    messages(Operation::Write, 3, script)
}

/// WRITEs of one small packet each.
fn many_small(script: impl FnMut(&Sent) -> Action + 'static) -> Tapped {
    many(Operation::Write, 40, 12, PAUSE_NS, script)
}

/// Does something to the WRITE packet with this number.
fn instead(number: usize, action: Action) -> impl FnMut(&Sent) -> Action {
    let mut lose = lose(number, is_write);
    move |sent| if lose(sent) == Action::Drop { action } else { Action::Pass }
}

fn is_ack(sent: &Sent) -> bool {
    sent.opcode == Opcode::RC_ACKNOWLEDGE
}

/// Returns the time at which B sent its answer with this number.
fn answer(taps: &Tapped, number: usize) -> u64 {
    taps[1].iter().filter(|seen| seen.from == Side::B).nth(number).expect("an answer").sent
}

/// Two good WRITEs, and one with a key that the responder does not have.
fn wrong_key() -> Tapped {
    let mut pair = pair(|_| Action::Pass);
    let (a, _) = pair.connect_with(QpType::Rc, &settings());
    for wr_id in 0..2 {
        post(&mut pair, a, wr_id, Operation::Write, LEN);
        pair.drive();
        pair.now = pair.now.plus_nanos(PAUSE_NS);
    }
    let local = pair.host(Side::A).memory_range(0, 100);
    let remote_addr = pair.host(Side::B).memory_range(0, 100).addr;
    let op = SendOp::Write { remote_addr, rkey: RKey(pair.host(Side::B).rkey().0 ^ 0xff) };
    pair.post_send(Side::A, a, &SendWr::new(9, op, &[local])).unwrap();
    pair.drive();
    tapped(&pair.sent)
}

/// The requester has a path MTU of 512 bytes, and the responder one of 256.
fn different_mtus() -> Tapped {
    let mut pair = pair(|_| Action::Pass);
    let near = Settings { mtu: PathMtu::Mtu512, ..settings() };
    let far = settings();
    let a = pair.create_qp(Side::A, QpType::Rc, &near);
    let b = pair.create_qp(Side::B, QpType::Rc, &far);
    pair.bring_up(Side::A, a, b, &near, QpState::Rts);
    pair.bring_up(Side::B, b, a, &far, QpState::Rts);
    for (wr_id, len) in [(1, 100), (2, LEN)] {
        post(&mut pair, a, wr_id, Operation::Write, len);
        pair.drive();
        pair.now = pair.now.plus_nanos(PAUSE_NS);
    }
    tapped(&pair.sent)
}

/// A SEND for which no receive is posted, or only after some time.
fn no_receive(rnr_retry: u8, receive_after_ns: Option<u64>) -> Tapped {
    let mut pair = pair(|_| Action::Pass);
    let (a, b): (Qpn, Qpn) = pair.connect_with(QpType::Rc, &Settings { rnr_retry, ..settings() });
    post(&mut pair, a, 1, Operation::Send, 100);
    if let Some(after) = receive_after_ns {
        let then = pair.now.plus_nanos(after);
        pair.drive_until(then);
        pair.post_recv(Side::B, b, 1, 0, 4096).unwrap();
    }
    pair.drive();
    tapped(&pair.sent)
}

fn early_after_rnr() -> Tapped {
    let mut taps = no_receive(7, Some(20_000));
    let rnr = taps[0].iter().find(|seen| is_rnr(seen)).unwrap().clone();
    let again = taps[0].iter().find(|seen| seen.from == Side::A && seen.sent > rnr.sent).unwrap().sent;
    for seen in taps.iter_mut().flatten().filter(|seen| seen.sent >= again) {
        seen.time -= again - rnr.sent - 10_000;
    }
    taps
}

/// Nothing of the responder arrives behind its second answer.
fn peer_gone() -> Tapped {
    let mut answers = 0;
    let script = move |sent: &Sent| {
        answers += i32::from(sent.from == Side::B);
        if sent.from == Side::B && answers > 2 { Action::Drop } else { Action::Pass }
    };
    many(Operation::Write, 100, 3, PAUSE_NS, script)
}

/// The last packet of the third message asks for no acknowledgement, and none comes until it is sent again.
fn no_request_for_an_answer() -> Tapped {
    let mut taps = writes(lose(2, is_ack));
    let psn = taps[0].iter().filter(|seen| seen.from == Side::A).map(Seen::psn).max().unwrap();
    let is_it = |seen: &&Seen| seen.from == Side::A && seen.psn() == psn;
    let first = taps[0].iter().find(is_it).unwrap().sent;
    edit(&mut taps, |seen| seen.sent == first, |seen| seen.bytes[8] &= 0x7f);
    let lost = answer(&taps, 2);
    taps.iter_mut().for_each(|tap| tap.retain(|seen| seen.sent != lost));
    taps
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lessons/captures")
}

/// Returns the file of the capture with this number, from 1.
fn file(number: usize) -> PathBuf {
    folder().join(format!("{number:02}.pcapng"))
}

/// A packet of a capture: time and bytes.
type Frame = (u64, Vec<u8>);

fn frames(taps: &Tapped, tap: usize) -> Vec<Frame> {
    taps[tap].iter().map(|seen| (seen.time, frame_of(&seen.path, &seen.bytes))).collect()
}

fn write(path: &Path, frames: &[Frame]) {
    let mut writer = PcapWriter::create(path, &["tap"]).unwrap();
    for (time, bytes) in frames {
        writer.write(0, *time, Direction::Unknown, None, bytes).unwrap();
    }
    writer.flush().unwrap();
}

fn read(path: &Path) -> Vec<Frame> {
    let mut reader = CaptureReader::open(path).unwrap_or_else(|error| panic!("{error}; set {WRITE}=1"));
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.time_ns.unwrap(), packet.bytes.to_vec()));
    }
    frames
}

fn analyze(frames: &[Frame]) -> Analysis {
    let mut collector = Collector::new(roce_packet::ROCE_UDP_PORT);
    for (number, (time, bytes)) in (1..).zip(frames) {
        collector.add(&Packet {
            capture: 0,
            interface: 0,
            number,
            time_ns: Some(*time),
            link: Link::Ethernet,
            wire_len: bytes.len(),
            is_dropped: false,
            bytes,
        });
    }
    collector.analyze()
}

impl Finds {
    /// Returns the numbers of the packets that prove the fault, or `None` if `analyze` does not find it.
    fn is_in(self, analysis: &Analysis) -> Option<Vec<String>> {
        match self {
            Self::Event(key) => {
                let event = events(analysis).into_iter().find(|event| event.kind.key() == key)?;
                Some(event.at.iter().map(ToString::to_string).collect())
            }
            Self::Fail(key, part) => {
                let is_it = |verdict: &roce_analysis::verdict::Verdict| {
                    verdict.rule.key == key
                        && verdict.outcome == Outcome::Fail
                        && verdict.summary.contains(part)
                };
                let verdict = judged(analysis).into_iter().find(is_it)?;
                Some(verdict.packets.iter().map(ToString::to_string).collect())
            }
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Event(key) | Self::Fail(key, _) => key,
        }
    }
}

/// Returns everything that `analyze` says about a capture.
fn all_findings(analysis: &Analysis) -> String {
    let told = events(analysis).into_iter().map(|event| {
        let at: Vec<String> = event.at.iter().map(ToString::to_string).collect();
        format!("event {} at {}: {}\n", event.kind.key(), at.join(", "), event.summary)
    });
    let failed = judged(analysis).into_iter().filter(|verdict| verdict.outcome == Outcome::Fail);
    let failed = failed.map(|verdict| {
        let at: Vec<String> = verdict.packets.iter().map(ToString::to_string).collect();
        format!("fail {} at {}: {}\n", verdict.rule.key, at.join(", "), verdict.summary)
    });
    told.chain(failed).collect()
}

#[test]
fn planted_faults_are_found_in_the_stored_captures() {
    let solutions = include_str!("../../../../docs/lessons/solutions/captures.md");
    let questions = include_str!("../../../../docs/lessons/captures.md");
    let mut missed = String::new();
    for (number, planted) in (1..).zip(&PLANTED) {
        let Planted { fault, tap, finds, play } = planted;
        let (path, made) = (file(number), frames(&play(), *tap));
        if std::env::var_os(WRITE).is_some() {
            write(&path, &made);
        }
        let stored = read(&path);
        assert_eq!(stored, made, "{number:02} ({fault}) has changed; set {WRITE}=1");
        let len = std::fs::metadata(&path).unwrap().len();
        assert!(len <= MOST_BYTES, "{number:02} has {len} bytes");
        let analysis = analyze(&stored);
        let Some(packets) = finds.is_in(&analysis) else {
            missed += &format!("{number:02} ({fault}): {finds:?}\n{}\n", all_findings(&analysis));
            continue;
        };
        println!(
            "{number:02} {fault}: {} at {}\n{}",
            finds.key(),
            packets.join(", "),
            all_findings(&analysis)
        );
        assert!(
            questions.contains(&format!("| [{number:02}](captures/{number:02}.pcapng) |")),
            "{number:02}"
        );
        let row = format!("| {number:02} | {fault} | `{}` |", finds.key());
        if !solutions.contains(&row) {
            missed += &format!("the solutions lack {row} packets {}\n", packets.join(", "));
        }
    }
    assert!(missed.is_empty(), "{missed}");
}

/// The findings are not in captures without faults, so a student cannot find them by chance.
#[test]
fn planted_faults_are_not_found_without_them() {
    let good = [
        writes(|_| Action::Pass),
        messages(Operation::ReadRequest, 2, |_| Action::Pass),
        many_small(|_| Action::Pass),
        many(Operation::FetchAdd, 8, 4, PAUSE_NS, |_| Action::Pass),
    ];
    for taps in &good {
        for tap in 0..2 {
            let analysis = analyze(&frames(taps, tap));
            for planted in &PLANTED {
                let found = planted.finds.is_in(&analysis);
                assert_eq!(found, None, "{}: {}", planted.fault, all_findings(&analysis));
            }
        }
    }
}

#[test]
fn the_folder_of_planted_captures_has_no_other_files() {
    let names: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected: BTreeSet<String> =
        (1..=PLANTED.len()).map(|number| format!("{number:02}.pcapng")).collect();
    assert_eq!(names, expected);
}
