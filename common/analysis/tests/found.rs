//! Two engines exchange messages over a link with one injected fault. The events must name this fault and no
//! other, whether both ends were captured or one of them.
//!
//! ```text
//! A (requester) -- tap A -- the fault happens here -- tap B -- B (responder)
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use roce_analysis::event::{Event, EventKind, Where, events};
use roce_analysis::{Analysis, Collector, Packet};
use roce_packet::outer::Link;
use roce_packet::{Direction, Ecn, FrameHeaders, MacAddr, Opcode, Operation, Path};
use roce_sim::pair::{Action, Pair, Sent, Side};
use roce_transport::{QpType, SendOp, SendWr};

/// Number of seeds for each fault and set of taps.
const SEEDS: u64 = 40;
const PACKET_NS: u64 = 300;
const DELAY_NS: u64 = 1_000;

/// A generator of numbers that looks random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % limit
    }
}

/// The kind of packet that a fault happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Request,
    ReadResponse,
    Acknowledgement,
}

impl Class {
    fn of(opcode: Opcode) -> Option<Self> {
        let info = opcode.info()?;
        match (info.direction, info.operation) {
            (Direction::Request, _) => Some(Self::Request),
            (Direction::Response, Operation::ReadResponse) => Some(Self::ReadResponse),
            (Direction::Response, _) => Some(Self::Acknowledgement),
            (Direction::Cnp, _) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Drop,
    Corrupt,
    Duplicate,
    Delay,
    Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taps {
    Both,
    A,
    B,
}

/// Runs the messages of a seed. Returns all packets, and the one to which the fault happened.
fn run(seed: u64, fault: Option<(Class, Fault, usize)>) -> (Vec<Sent>, Option<Sent>) {
    let mut numbers = Numbers(seed);
    let mut pair = Pair::new(seed);
    pair.link_delay_ns = DELAY_NS;
    pair.packet_time_ns = PACKET_NS;
    pair.record = true;
    let (a, _) = pair.connect(QpType::Rc);
    let hit = Rc::new(RefCell::new(None));
    if let Some((class, fault, at)) = fault {
        let (hit, mut seen) = (Rc::clone(&hit), 0);
        pair.set_script(move |sent| {
            if Class::of(sent.opcode) != Some(class) {
                return Action::Pass;
            }
            seen += 1;
            if seen != at + 1 {
                return Action::Pass;
            }
            *hit.borrow_mut() = Some(sent.clone());
            match fault {
                Fault::Drop => Action::Drop,
                // A bit of the ICRC.
                Fault::Corrupt => Action::FlipBit(8 * sent.bytes.len() - 5),
                Fault::Duplicate => Action::Duplicate,
                Fault::Delay => Action::Delay(20_000),
                Fault::Mark => Action::Mark,
            }
        });
    }
    for round in 0..2 + numbers.below(3) {
        for number in 0..1 + numbers.below(5) {
            let len = 1 + numbers.below(6000) as usize;
            let local = pair.host(Side::A).memory_range(0, len);
            let remote_addr = pair.host(Side::B).memory_range(0, len).addr;
            let rkey = pair.host(Side::B).rkey();
            let op = match numbers.below(3) {
                0 => SendOp::Read { remote_addr, rkey },
                _ => SendOp::Write { remote_addr, rkey },
            };
            pair.post_send(Side::A, a, &SendWr::new(10 * round + number, op, &[local])).unwrap();
        }
        pair.drive();
        pair.now = pair.now.plus_nanos(100_000);
    }
    drop(pair.completions(Side::A));
    let hit = hit.borrow_mut().take();
    (std::mem::take(&mut pair.sent), hit)
}

fn frame(path: &Path, datagram: &[u8]) -> Vec<u8> {
    let [to, from] = [2, 1].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let headers = FrameHeaders::new(path, 0, to, from, datagram.len()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(datagram);
    frame
}

/// Returns what each tap shows: times and frames.
fn captures(sent: &[Sent]) -> [Vec<(u64, Vec<u8>)>; 2] {
    let mut taps = [Vec::new(), Vec::new()];
    let mut free = [0_u64; 2];
    for packet in sent {
        let [near, far] = if packet.from == Side::A { [0, 1] } else { [1, 0] };
        let start = packet.at.as_nanos().max(free[near]);
        let mut path = packet.path;
        let mut bytes = packet.bytes.clone();
        taps[near].push((start + PACKET_NS, frame(&path, &bytes)));
        let (copies, extra) = match packet.action {
            Action::Drop => (0, 0),
            Action::Duplicate => (2, 0),
            Action::Delay(ns) => (1, ns),
            Action::FlipBit(bit) => {
                bytes[bit / 8] ^= 0x80 >> (bit % 8);
                (1, 0)
            }
            Action::Mark => {
                path = path.with_ecn(Ecn::CongestionExperienced);
                (1, 0)
            }
            Action::Pass | Action::Trim => (1, 0),
        };
        for copy in 1..=copies {
            free[near] = start + copy * PACKET_NS;
            taps[far].push((free[near] + DELAY_NS + extra, frame(&path, &bytes)));
        }
    }
    for tap in &mut taps {
        tap.sort_by_key(|(time, _)| *time);
    }
    taps
}

fn analyze(sent: &[Sent], taps: Taps) -> Analysis {
    let mut collector = Collector::new(4791);
    let wanted: &[usize] = match taps {
        Taps::Both => &[0, 1],
        Taps::A => &[0],
        Taps::B => &[1],
    };
    let all = captures(sent);
    for (capture, tap) in wanted.iter().enumerate() {
        for (number, (time, bytes)) in all[*tap].iter().enumerate() {
            collector.add(&Packet {
                capture: capture as u16,
                interface: 0,
                number: number as u64 + 1,
                time_ns: Some(*time),
                link: Link::Ethernet,
                wire_len: bytes.len(),
                bytes,
            });
        }
    }
    collector.analyze()
}

/// Returns whether an event only follows from a fault: an answer to it, or a repetition because of it.
fn is_consequence(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::SequenceNak
            | EventKind::GoBackN
            | EventKind::Timeout
            | EventKind::ImpliedNak
            | EventKind::Cnp
    )
}

/// The kinds of which exactly one event is expected, and whether it may be missing because the packets do not
/// show the fault.
fn expected(class: Class, fault: Fault, taps: Taps) -> (&'static [EventKind], bool) {
    use Class::{Acknowledgement, ReadResponse, Request};
    use EventKind::{
        AckLost, Corrupted, Doubled, EcnMark, Overtaken, RequestLost, RequestOrAnswerLost, ResponseLost,
    };
    use Where::{BeforeTap, BehindTap, BetweenTaps};
    let arrives_at = if class == Request { Taps::B } else { Taps::A };
    let is_seen = taps == Taps::Both || taps == arrives_at;
    match (fault, class, taps) {
        (Fault::Corrupt, ..) if is_seen => (&[Corrupted], false),
        (Fault::Duplicate, ..) => (&[Doubled], !is_seen),
        (Fault::Mark, ..) => (&[EcnMark], !is_seen),
        (Fault::Delay, _, Taps::Both) => (&[Overtaken], true),
        (Fault::Delay, Request, Taps::A) => (&[RequestLost(BehindTap)], true),
        (Fault::Delay, Request, _) => (&[Overtaken], true),
        (Fault::Delay, ReadResponse, Taps::B) => (&[ResponseLost(BehindTap)], true),
        (Fault::Delay, ..) => (&[Overtaken], true),
        (_, Request, Taps::Both) => (&[RequestLost(BetweenTaps)], false),
        (_, Request, Taps::A) => (&[RequestLost(BehindTap), RequestOrAnswerLost], false),
        // Nothing shows that the last request of a burst was sent.
        (_, Request, Taps::B) => (&[RequestLost(BeforeTap)], true),
        (_, ReadResponse, Taps::Both) => (&[ResponseLost(BetweenTaps)], false),
        (_, ReadResponse, Taps::A) => (&[ResponseLost(BeforeTap), RequestOrAnswerLost], false),
        (_, ReadResponse, Taps::B) => (&[ResponseLost(BehindTap)], false),
        (_, Acknowledgement, Taps::Both) => (&[AckLost(BetweenTaps)], false),
        // A later answer acknowledges, too.
        (_, Acknowledgement, Taps::A) => (&[RequestOrAnswerLost], true),
        (_, Acknowledgement, Taps::B) => (&[AckLost(BehindTap)], true),
    }
}

fn describe(events: &[Event]) -> String {
    let lines = events.iter().map(|event| {
        let at: Vec<String> = event.at.iter().map(ToString::to_string).collect();
        format!("  {} psn {:?} at {}: {}", event.kind.key(), event.psn, at.join(", "), event.summary)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Compares the events with the fault. Returns what is wrong.
fn check(hit: &Sent, class: Class, fault: Fault, taps: Taps, found: &[Event]) -> Option<String> {
    let (kinds, may_be_missing) = expected(class, fault, taps);
    let others: Vec<&Event> =
        found.iter().filter(|event| !is_consequence(event.kind) && !kinds.contains(&event.kind)).collect();
    if let Some(other) = others.first() {
        return Some(format!("a false {}", other.kind.key()));
    }
    let named: Vec<&Event> = found.iter().filter(|event| kinds.contains(&event.kind)).collect();
    match named[..] {
        [] if may_be_missing => None,
        [] => Some("the fault was not found".to_owned()),
        [event] => {
            // A timeout begins with the oldest packet without an answer, and the last one may be lost.
            let is_start = event.kind == EventKind::RequestOrAnswerLost && event.psn < Some(hit.psn.get());
            let is_right = event.psn == Some(hit.psn.get()) || is_start;
            // Behind the tap, a doubled request shows in its answers.
            let is_indirect = fault == Fault::Duplicate && may_be_missing;
            (!is_right && !is_indirect).then(|| format!("PSN {:?} instead of {}", event.psn, hit.psn))
        }
        _ => Some(format!("{} events for one fault", named.len())),
    }
}

fn all(class: Class, fault: Fault, most_wrong: usize) {
    let mut failures = BTreeMap::new();
    let (mut runs, mut seen) = (0, 0);
    for seed in 1..=SEEDS {
        let (plain, _) = run(seed, None);
        let count = plain.iter().filter(|sent| Class::of(sent.opcode) == Some(class)).count();
        if count == 0 {
            continue;
        }
        let at = Numbers(seed ^ 0x5eed).below(count as u64) as usize;
        let (sent, hit) = run(seed, Some((class, fault, at)));
        let Some(hit) = hit else { continue };
        for taps in [Taps::Both, Taps::A, Taps::B] {
            let found = events(&analyze(&sent, taps));
            runs += 1;
            seen +=
                usize::from(found.iter().any(|event| expected(class, fault, taps).0.contains(&event.kind)));
            if let Some(wrong) = check(&hit, class, fault, taps, &found) {
                let text = format!(
                    "seed {seed}, {fault:?} of {class:?} {at} ({} {}), taps {taps:?}: {wrong}\n{}",
                    hit.opcode,
                    hit.psn,
                    describe(&found)
                );
                failures.insert((seed, taps as u8), text);
            }
        }
    }
    println!("{fault:?} of {class:?}: {runs} captures, {seen} name the fault, {} wrong", failures.len());
    assert!(runs > 0);
    let first: Vec<String> = failures.values().take(6).cloned().collect();
    let few = failures.len() <= most_wrong;
    assert!(few, "{} of {runs}, at most {most_wrong} are known:\n{}", failures.len(), first.join("\n"));
    assert!(
        failures.len() == most_wrong,
        "only {} of {most_wrong} are left: lower the limit",
        failures.len()
    );
}

#[test]
fn without_faults_nothing_is_found() {
    for seed in 1..=SEEDS {
        let (sent, _) = run(seed, None);
        for taps in [Taps::Both, Taps::A, Taps::B] {
            let found = events(&analyze(&sent, taps));
            assert!(found.is_empty(), "seed {seed}, taps {taps:?}:\n{}", describe(&found));
        }
    }
}

macro_rules! tests {
    ($($name:ident: $fault:ident of $class:ident, $wrong:literal;)*) => {
        $(#[test] fn $name() { all(Class::$class, Fault::$fault, $wrong); })*
    };
}

// The number of captures with another event than the expected ones. It may only decrease.
tests! {
    lost_requests_are_found: Drop of Request, 0;
    lost_responses_are_found: Drop of ReadResponse, 3;
    lost_acknowledgements_are_found: Drop of Acknowledgement, 0;
    corrupted_requests_are_found: Corrupt of Request, 0;
    corrupted_responses_are_found: Corrupt of ReadResponse, 3;
    corrupted_acknowledgements_are_found: Corrupt of Acknowledgement, 0;
    doubled_requests_are_found: Duplicate of Request, 2;
    doubled_responses_are_found: Duplicate of ReadResponse, 0;
    doubled_acknowledgements_are_found: Duplicate of Acknowledgement, 0;
    delayed_requests_are_found: Delay of Request, 0;
    delayed_responses_are_found: Delay of ReadResponse, 3;
    marked_requests_are_found: Mark of Request, 0;
    marked_responses_are_found: Mark of ReadResponse, 0;
}
