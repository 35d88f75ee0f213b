//! Every opcode in every state, every posting rule, and the effects of RESET, SQD and SQE.
//!
//! The tables here are written from the protocol description, not from the engine.

use crate::common::place::{BYTES, place, settings, small};
use crate::common::{Answer, Bench, Ended, Forge, address, pattern};
use roce_packet::{Opcode, Psn, Qpn};
use roce_sim::pair::{Action, Side};
use roce_transport::{
    Allowed, AsyncEvent, DropReason, LKey, Payload, PostError, QpAttr, QpState, QpType, RKey, RecvWr,
    SendFlags, SendOp, SendWr, Sge, UdDestination, Verdict, WcStatus,
};

const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];
const TARGET: usize = 4096;
const RECEIVE: u64 = 9;

/// Headers and payload bytes by the lower five bits of the opcode (protocol section 2.2).
/// R RETH, T AtomicETH, A AETH, K AtomicAckETH, I immediate, V IETH, F FETH.
const OPERATIONS: &[(u8, &str, usize)] = &[
    (0x00, "", 256),
    (0x01, "", 256),
    (0x02, "", 100),
    (0x03, "I", 100),
    (0x04, "", 100),
    (0x05, "I", 100),
    (0x06, "R", 256),
    (0x07, "", 256),
    (0x08, "", 100),
    (0x09, "I", 100),
    (0x0a, "R", 100),
    (0x0b, "RI", 100),
    (0x0c, "R", 0),
    (0x0d, "A", 256),
    (0x0e, "", 256),
    (0x0f, "A", 100),
    (0x10, "A", 100),
    (0x11, "A", 0),
    (0x12, "AK", 0),
    (0x13, "T", 0),
    (0x14, "T", 0),
    (0x15, "", 0),
    (0x16, "V", 100),
    (0x17, "V", 100),
    (0x1c, "FR", 0),
    (0x1d, "R", 8),
];

/// Returns whether a transport has this operation.
fn exists(opcode: u8) -> bool {
    let rc = matches!(opcode, 0x00..=0x14 | 0x16 | 0x17 | 0x1c | 0x1d);
    let uc = matches!(opcode, 0x20..=0x2b);
    let rd = matches!(opcode, 0x40..=0x55 | 0x5c);
    let ud_and_cnp = matches!(opcode, 0x64 | 0x65 | 0x81);
    let xrc = matches!(opcode, 0xa0..=0xb4 | 0xb6 | 0xb7);
    rc || uc || rd || ud_and_cnp || xrc
}

fn dma_len(operation: u8, payload: usize) -> u32 {
    match operation {
        0x06 => 300,
        0x0c => 64,
        0x1c => 32,
        _ => payload as u32,
    }
}

/// Returns the most acceptable packet of this opcode for a queue pair that waits for `psn`.
fn best_packet(bench: &Bench, opcode: u8, psn: Psn) -> Forge {
    let forge = bench.forge(Side::B, Opcode(opcode), psn);
    if opcode == 0x81 {
        return forge.silent().payload(&[0; 16]);
    }
    let operation = opcode & 0x1f;
    let Some(&(_, headers, payload)) = OPERATIONS.iter().find(|row| row.0 == operation) else { return forge };
    let is_response = matches!(operation, 0x0d..=0x12);
    let source = bench.a;
    let mut forge = match opcode >> 5 {
        2 if is_response => forge.rdeth(),
        2 => forge.rdeth().deth(0x1111_1111, source),
        3 => forge.deth(0x1111_1111, source),
        5 if !is_response => forge.xrceth(),
        _ => forge,
    };
    let rkey = bench.host(Side::B).rkey();
    for header in headers.chars() {
        forge = match header {
            'R' => forge.reth(address(TARGET), rkey, dma_len(operation, payload)),
            'T' => forge.atomic(address(TARGET), rkey, 5, u64::from_ne_bytes(found_at_target())),
            'A' => forge.aeth(0x1f, 0),
            'K' => forge.atomic_ack(77),
            'I' => forge.imm([1, 2, 3, 4]),
            'V' => forge.ieth(RKey(0x0bad_0000)),
            _ => forge.feth(),
        };
    }
    forge.payload(&vec![0xee; payload])
}

fn found_at_target() -> [u8; 8] {
    pattern(BYTES)[TARGET..TARGET + 8].try_into().unwrap()
}

/// The expected effects of a packet. The default is no effect.
struct Expected {
    verdict: Verdict,
    state: QpState,
    /// The bytes that change at B.
    memory: Vec<(usize, Vec<u8>)>,
    answers: Vec<Answer>,
    completions: Vec<Ended>,
    events: Vec<AsyncEvent>,
}

fn dropped(state: QpState, reason: DropReason) -> Expected {
    let verdict = Verdict::Dropped(reason);
    Expected { verdict, state, memory: vec![], answers: vec![], completions: vec![], events: vec![] }
}

fn handled(state: QpState) -> Expected {
    Expected { verdict: Verdict::Handled, ..dropped(state, DropReason::Short) }
}

fn responds(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

fn expect(qp_type: QpType, state: QpState, opcode: u8, qpn: Qpn) -> Expected {
    if !exists(opcode) {
        return dropped(state, DropReason::UnknownOpcode);
    }
    if opcode == 0x81 && responds(state) {
        return handled(state);
    }
    let group = match qp_type {
        QpType::Rc => 0,
        QpType::Uc => 1,
        QpType::Ud => 3,
        QpType::XrcSend | QpType::XrcRecv => unreachable!("these are in xrc.rs"),
    };
    if opcode != 0x81 && opcode >> 5 != group {
        return dropped(state, DropReason::BadOpcodeForQp);
    }
    if matches!(opcode, 0x0d..=0x12) && matches!(state, QpState::Rts | QpState::Sqd) {
        // No request was sent.
        return dropped(state, DropReason::UnsentPsn);
    }
    if !responds(state) || matches!(opcode, 0x0d..=0x12) {
        return dropped(state, DropReason::BadState);
    }
    match qp_type {
        QpType::Rc => expect_rc(state, opcode, qpn),
        QpType::Uc => expect_uc(state, opcode, qpn),
        QpType::Ud => expect_ud(state),
        QpType::XrcSend | QpType::XrcRecv => unreachable!("these are in xrc.rs"),
    }
}

fn expect_rc(state: QpState, opcode: u8, qpn: Qpn) -> Expected {
    let mut expected = handled(state);
    if state == QpState::Rtr {
        expected.events.push(AsyncEvent::CommunicationEstablished(qpn));
    }
    let acknowledge = |msn| vec![Answer::acknowledge(0x1f, 0x1000, msn)];
    let respond =
        |opcode| vec![Answer { opcode: Opcode(opcode), psn: 0x1000, syndrome: Some(0x1f), msn: Some(1) }];
    let atomic = |value: u64| vec![(TARGET, value.to_ne_bytes().to_vec())];
    let done = (RECEIVE, WcStatus::Success);
    match opcode {
        // A First starts a message and leaves it incomplete.
        0x00 => (expected.memory, expected.answers) = (vec![(0, vec![0xee; 256])], acknowledge(0)),
        0x06 => (expected.memory, expected.answers) = (vec![(TARGET, vec![0xee; 256])], acknowledge(0)),
        0x04 | 0x05 => {
            (expected.memory, expected.answers) = (vec![(0, vec![0xee; 100])], acknowledge(1));
            expected.completions.push(done);
        }
        // The key to invalidate does not exist: no answer, but a local error (protocol section 5.4).
        0x17 => {
            expected.memory.push((0, vec![0xee; 100]));
            expected.completions.push((RECEIVE, WcStatus::RemoteInvalidRequestError));
            expected.state = QpState::Err;
        }
        0x0a => (expected.memory, expected.answers) = (vec![(TARGET, vec![0xee; 100])], acknowledge(1)),
        0x0b => {
            (expected.memory, expected.answers) = (vec![(TARGET, vec![0xee; 100])], acknowledge(1));
            expected.completions.push(done);
        }
        0x0c | 0x1c => expected.answers = respond(0x10),
        0x13 => (expected.memory, expected.answers) = (atomic(5), respond(0x12)),
        0x14 => {
            let sum = u64::from_ne_bytes(found_at_target()).wrapping_add(5);
            (expected.memory, expected.answers) = (atomic(sum), respond(0x12));
        }
        0x1d => (expected.memory, expected.answers) = (vec![(TARGET, vec![0xee; 8])], respond(0x10)),
        // A Middle or Last without a First.
        _ => {
            expected.answers.push(Answer::acknowledge(0x61, 0x1000, 0));
            expected.state = QpState::Err;
            expected.completions.push((RECEIVE, WcStatus::WrFlushError));
            expected.events.push(AsyncEvent::QpRequestError(qpn));
        }
    }
    expected
}

fn expect_uc(state: QpState, opcode: u8, qpn: Qpn) -> Expected {
    let mut expected = handled(state);
    match opcode {
        0x20 => expected.memory.push((0, vec![0xee; 256])),
        0x26 => expected.memory.push((TARGET, vec![0xee; 256])),
        0x24 | 0x25 => {
            expected.memory.push((0, vec![0xee; 100]));
            expected.completions.push((RECEIVE, WcStatus::Success));
        }
        0x2a => expected.memory.push((TARGET, vec![0xee; 100])),
        0x2b => {
            expected.memory.push((TARGET, vec![0xee; 100]));
            expected.completions.push((RECEIVE, WcStatus::Success));
        }
        _ => expected = dropped(state, DropReason::IncompleteMessage),
    }
    if state == QpState::Rtr {
        expected.events.push(AsyncEvent::CommunicationEstablished(qpn));
    }
    expected
}

fn expect_ud(state: QpState) -> Expected {
    let mut expected = handled(state);
    // Another test compares the GRH area in front.
    expected.memory.push((40, vec![0xee; 100]));
    expected.completions.push((RECEIVE, WcStatus::Success));
    expected
}

#[test]
fn every_opcode_in_every_state_of_every_type() {
    for qp_type in TYPES {
        for state in QpState::ALL {
            let mut bench = small();
            for opcode in 0..=255_u8 {
                let Some(qpn) = place(&mut bench, qp_type, state, &settings()) else { break };
                one_packet(&mut bench, qp_type, state, opcode, qpn);
                bench.host_mut(Side::B).engine.destroy_qp(qpn).unwrap();
                let a = bench.a;
                bench.host_mut(Side::A).engine.destroy_qp(a).unwrap();
            }
        }
    }
}

#[track_caller]
fn one_packet(bench: &mut Bench, qp_type: QpType, state: QpState, opcode: u8, qpn: Qpn) {
    let what = format!("{qp_type:?} {} {:#04x} {}", state.name(), opcode, Opcode(opcode));
    if !matches!(state, QpState::Reset | QpState::Err) {
        bench.receive(RECEIVE, 0, 512);
    }
    bench.take_events(Side::B);
    let expected = expect(qp_type, state, opcode, qpn);
    let psn = if matches!(opcode, 0x0d..=0x12) { 0x2000 } else { 0x1000 };
    let packet = best_packet(bench, opcode, Psn::new(psn));
    let before = bench.host(Side::B).engine.qp_counters(qpn).unwrap();
    let (verdict, answers) = bench.arrive(Side::B, &packet);
    assert_eq!(verdict, expected.verdict, "{what}");
    assert_eq!(answers, expected.answers, "{what}: answers");
    assert_eq!(bench.ended(Side::B), expected.completions, "{what}: completions");
    assert_eq!(bench.take_events(Side::B), expected.events, "{what}: events");
    assert_eq!(bench.state(Side::B), expected.state, "{what}: state");
    let mut memory = pattern(BYTES);
    if qp_type == QpType::Ud && verdict == Verdict::Handled && opcode != 0x81 {
        memory[..40].copy_from_slice(&bench.host(Side::B).read_memory(0, 40));
    }
    for (at, bytes) in &expected.memory {
        memory[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    crate::common::assert_same(&bench.host(Side::B).read_memory(0, BYTES), &memory, &what);
    bench.host_mut(Side::B).write_memory(0, &pattern(BYTES));
    if let Verdict::Dropped(reason) = verdict
        && reason != DropReason::UnknownOpcode
    {
        let after = bench.host(Side::B).engine.qp_counters(qpn).unwrap();
        assert_eq!(after.dropped(), before.dropped() + 1, "{what}: drop counter");
        let mut counted = None;
        after.visit(&mut |name, value| {
            if name == reason.counter() {
                counted = Some(value);
            }
        });
        assert_eq!(counted, Some(1), "{what}: {}", reason.counter());
    }
}

/// The result of posting a send and a receive by state (protocol section 6.4): taken, flushed at once,
/// refused.
#[test]
fn posting_rules_in_every_state() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Post {
        Refused,
        Taken,
        Flushed,
    }
    use Post::{Flushed, Refused, Taken};
    let table = [
        (QpState::Reset, Refused, Refused),
        (QpState::Init, Refused, Taken),
        (QpState::Rtr, Refused, Taken),
        (QpState::Rts, Taken, Taken),
        (QpState::Sqd, Taken, Taken),
        (QpState::Sqe, Flushed, Taken),
        (QpState::Err, Flushed, Flushed),
    ];
    for qp_type in TYPES {
        for (state, send, receive) in table {
            let mut bench = small();
            let Some(qpn) = place(&mut bench, qp_type, state, &settings()) else { continue };
            let path = bench.path(Side::B);
            let mut wr = SendWr { payload: Payload::Inline(b"x"), ..SendWr::new(21, SendOp::Send, &[]) };
            // Unsignaled requests are also flushed with a completion.
            wr.flags = SendFlags::empty();
            if qp_type == QpType::Ud {
                wr = wr.to(UdDestination { path, remote_qpn: bench.a, remote_qkey: 5 });
            }
            let outcomes = [
                (send, bench.post_send(Side::B, qpn, &wr), 21),
                (
                    receive,
                    bench.host_mut(Side::B).engine.post_recv(qpn, &RecvWr { wr_id: 22, elements: &[] }),
                    22,
                ),
            ];
            let mut flushed = Vec::new();
            for (rule, result, wr_id) in outcomes {
                let expected = if rule == Refused { Err(PostError::WrongState(state)) } else { Ok(()) };
                assert_eq!(result, expected, "{qp_type:?} {} {wr_id}", state.name());
                if rule == Flushed {
                    flushed.push((wr_id, WcStatus::WrFlushError));
                }
            }
            assert_eq!(bench.ended(Side::B), flushed, "{qp_type:?} {}", state.name());
        }
    }
}

#[test]
fn reset_clears_the_queues_without_completions() {
    for qp_type in TYPES {
        let mut bench = Bench::new(qp_type, &settings());
        bench.blocked = [true; 2];
        for wr_id in 0..3 {
            post_to_b(&mut bench, qp_type, wr_id);
            let a = bench.a;
            bench.post_recv(Side::A, a, 10 + wr_id, 0, 64).unwrap();
        }
        let (now, a) = (bench.now, bench.a);
        assert_eq!(bench.host(Side::A).engine.queue_depths(a), Some((3, 3)));
        bench.host_mut(Side::A).engine.modify_qp(now, a, &QpAttr::to_state(QpState::Reset)).unwrap();
        assert_eq!(bench.host(Side::A).engine.queue_depths(a), Some((0, 0)));
        bench.blocked = [false; 2];
        bench.drive();
        assert_eq!(bench.ended(Side::A), [], "{qp_type:?}");
        assert_eq!(bench.take_events(Side::A), []);
        assert!(bench.sent.is_empty(), "{qp_type:?}: nothing was sent");
    }
}

#[track_caller]
fn post_to_b(bench: &mut Bench, qp_type: QpType, wr_id: u64) {
    let (a, remote_qpn, path) = (bench.a, bench.b, bench.path(Side::A));
    let mut wr = SendWr::inline(wr_id, SendOp::Send, b"hello");
    if qp_type == QpType::Ud {
        wr = wr.to(UdDestination { path, remote_qpn, remote_qkey: settings().qkey });
    }
    bench.post_send(Side::A, a, &wr).unwrap();
}

fn modify_a(bench: &mut Bench, attr: &QpAttr) {
    let (now, a) = (bench.now, bench.a);
    bench.host_mut(Side::A).engine.modify_qp(now, a, attr).unwrap();
}

/// ```text
/// A  SEND 1 (2 packets) ->        B
///    SQD, post SEND 2: held
///                       <- ACK 1
///    event: drained
///    RTS, SEND 2 ->
/// ```
#[test]
fn sqd_finishes_what_was_started_and_holds_the_rest() {
    let notify = QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to_state(QpState::Sqd) };
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut bench = Bench::new(qp_type, &settings());
        bench.receive(1, 0, 1000);
        bench.receive(2, 1000, 1000);
        bench.packet_time_ns = 10;
        bench.post(1, SendOp::Send, 0, 500);
        // UC completes a message once it is sent, so SQD must come between the packets.
        take_one_packet(&mut bench);
        modify_a(&mut bench, &notify);
        bench.post(2, SendOp::Send, 0, 20);
        assert_eq!(
            bench.take_events(Side::A),
            if qp_type == QpType::Rc { vec![] } else { vec![AsyncEvent::SqDrained(bench.a)] }
        );
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)], "{qp_type:?}");
        if qp_type == QpType::Rc {
            assert_eq!(bench.take_events(Side::A), [AsyncEvent::SqDrained(bench.a)]);
        }
        assert_eq!(bench.state(Side::A), QpState::Sqd);
        modify_a(&mut bench, &QpAttr::to_state(QpState::Rts));
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(2, WcStatus::Success)], "{qp_type:?}");
        assert_eq!(bench.take_events(Side::A), []);
        // The first packet never reached B. RC sent it again; UC could not.
        let received = bench.ended(Side::B);
        let all = [(1, WcStatus::Success), (2, WcStatus::Success)];
        assert_eq!(received, if qp_type == QpType::Rc { &all[..] } else { &all[..1] });
    }
}

/// Takes one packet out of A's engine and loses it.
#[track_caller]
fn take_one_packet(bench: &mut Bench) {
    let now = bench.now;
    let mut buffer = [0; 2048];
    let mut slot = roce_transport::TxSlot::new(&mut buffer);
    bench
        .host_mut(Side::A)
        .engine
        .poll_transmit(now, &mut slot, Allowed::All)
        .expect("there is something to send");
}

#[test]
fn sqd_with_nothing_started_is_drained_at_once_and_silent_unless_asked() {
    for qp_type in TYPES {
        for notify in [false, true] {
            let mut bench = Bench::new(qp_type, &settings());
            let attr = QpAttr { en_sqd_async_notify: Some(notify), ..QpAttr::to_state(QpState::Sqd) };
            modify_a(&mut bench, &attr);
            post_to_b(&mut bench, qp_type, 1);
            bench.drive();
            let expected = if notify { vec![AsyncEvent::SqDrained(bench.a)] } else { vec![] };
            assert_eq!(bench.take_events(Side::A), expected, "{qp_type:?}");
            assert!(bench.sent.is_empty());
        }
    }
}

/// Leaving SQD before the queue has drained cancels the notification.
#[test]
fn no_drained_event_after_leaving_sqd() {
    let mut bench = Bench::rc();
    bench.receive(1, 0, 64);
    bench.post(1, SendOp::Send, 0, 20);
    bench.collect(Side::A);
    modify_a(&mut bench, &QpAttr { en_sqd_async_notify: Some(true), ..QpAttr::to_state(QpState::Sqd) });
    modify_a(&mut bench, &QpAttr::to_state(QpState::Rts));
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.take_events(Side::A), []);
}

/// A local send failure stops only the send queue of UC and UD; RTS restarts it.
#[test]
fn sqe_flushes_sends_keeps_receiving_and_returns_to_rts() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut bench = Bench::new(qp_type, &settings());
        let (a, b, path) = (bench.a, bench.b, bench.path(Side::A));
        let bad = Sge { addr: 0, length: 8, lkey: LKey(0xdead_0000) };
        let mut wr = SendWr::new(1, SendOp::Send, &[]).with_flags(SendFlags::empty());
        wr.payload = Payload::Elements(std::slice::from_ref(&bad));
        if qp_type == QpType::Ud {
            wr = wr.to(UdDestination { path, remote_qpn: b, remote_qkey: settings().qkey });
        }
        bench.post_send(Side::A, a, &wr).unwrap();
        post_to_b(&mut bench, qp_type, 2);
        bench.drive();
        let failed = [(1, WcStatus::LocalProtectionError), (2, WcStatus::WrFlushError)];
        assert_eq!(bench.ended(Side::A), failed);
        assert_eq!(bench.state(Side::A), QpState::Sqe);
        post_to_b(&mut bench, qp_type, 3);
        assert_eq!(bench.ended(Side::A), [(3, WcStatus::WrFlushError)]);

        bench.post_recv(Side::A, a, 30, 0, 64).unwrap();
        let path = bench.path(Side::B);
        let mut back = SendWr::inline(9, SendOp::Send, b"back");
        if qp_type == QpType::Ud {
            back = back.to(UdDestination { path, remote_qpn: a, remote_qkey: settings().qkey });
        }
        bench.post_send(Side::B, b, &back).unwrap();
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(30, WcStatus::Success)], "{qp_type:?} receives in SQE");
        bench.ended(Side::B);

        modify_a(&mut bench, &QpAttr::to_state(QpState::Rts));
        bench.receive(40, 0, 64);
        post_to_b(&mut bench, qp_type, 4);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(4, WcStatus::Success)]);
        assert_eq!(bench.ended(Side::B), [(40, WcStatus::Success)]);
    }
}

/// Regression: READs that were posted before the limit became 0 waited forever after a go-back, without a
/// timer.
#[test]
fn a_limit_of_no_reads_does_not_strand_those_that_are_posted() {
    let mut bench = Bench::new(QpType::Rc, &settings());
    bench.set_script(|sent| if sent.index == 0 { Action::Drop } else { Action::Pass });
    let read = bench.read(0);
    bench.post(1, read, 0, 20);
    bench.post(2, read, 100, 20);
    bench.collect(Side::A);
    modify_a(&mut bench, &QpAttr::to_state(QpState::Sqd));
    modify_a(&mut bench, &QpAttr { max_rd_atomic: Some(0), ..QpAttr::to_state(QpState::Sqd) });
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}
