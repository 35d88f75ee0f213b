//! The requester's table: the effect of each answer of a peer on the send queue. See section 5.8 of the
//! protocol description and the requester rules of 5.7. The peer is silent; the test makes up its answers.

use std::time::Duration;

use crate::common::{Bench, Ended, Forge, MTU, address, settings};
use roce_packet::{Opcode, Psn, Qpn};
use roce_sim::pair::{Action, Side};
use roce_transport::{
    AsyncEvent, Cause, DropReason, LKey, QpState, QpType, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Verdict, WcStatus, WindowBinding, WindowType,
};

const START: u32 = 0x1000;
const FLUSHED: WcStatus = WcStatus::WrFlushError;
const SUCCESS: WcStatus = WcStatus::Success;

/// Returns a bench whose requests never arrive: the test makes every answer.
#[track_caller]
fn mute() -> Bench {
    let mut bench = Bench::rc();
    bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
    bench
}

fn answer(bench: &Bench, opcode: Opcode, offset: u32) -> Forge {
    bench.forge(Side::A, opcode, Psn::new(START + offset)).silent()
}

fn acknowledge(bench: &Bench, syndrome: u8, offset: u32) -> Forge {
    answer(bench, Opcode::RC_ACKNOWLEDGE, offset).aeth(syndrome, 0)
}

/// Posts requests without the SIGNALED flag; failures are still reported.
#[track_caller]
fn post_unsignaled(bench: &mut Bench, wr_id: u64, op: SendOp, len: usize) {
    let element = bench.host(Side::A).memory_range(0, len);
    let a = bench.a;
    let elements = [element];
    let wr = SendWr::new(wr_id, op, &elements).with_flags(SendFlags::empty());
    bench.post_send(Side::A, a, &wr).unwrap();
    bench.collect(Side::A);
}

#[test]
fn every_nak_code_has_its_status() {
    let table = [
        (0x61, WcStatus::RemoteInvalidRequestError, Cause::NakInvalidRequest),
        (0x62, WcStatus::RemoteAccessError, Cause::NakRemoteAccess),
        (0x63, WcStatus::RemoteOperationError, Cause::NakRemoteOperational),
        // RD's own code and the reserved codes: RC does not have these errors.
        (0x64, WcStatus::RemoteInvalidRequestError, Cause::NakUnknown),
        (0x65, WcStatus::RemoteInvalidRequestError, Cause::NakUnknown),
        (0x7f, WcStatus::RemoteInvalidRequestError, Cause::NakUnknown),
    ];
    for (syndrome, status, cause) in table {
        // The NAK is for the middle packet of the second of four requests.
        let mut bench = mute();
        let write = bench.write(0);
        post_unsignaled(&mut bench, 1, write, 8);
        post_unsignaled(&mut bench, 2, write, 3 * MTU);
        post_unsignaled(&mut bench, 3, write, 8);
        let read = bench.read(0);
        post_unsignaled(&mut bench, 4, read, 8);
        let a = bench.a;
        bench.post_recv(Side::A, a, 50, 0, 64).unwrap();
        let nak = acknowledge(&bench, syndrome, 2);
        assert_eq!(bench.arrive(Side::A, &nak).0, Verdict::Handled);
        let ended = bench.completions(Side::A);
        let found: Vec<Ended> = ended.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        // The first request succeeded silently, without a completion.
        assert_eq!(found, [(2, status), (3, FLUSHED), (4, FLUSHED), (50, FLUSHED)], "{syndrome:#x}");
        assert_eq!(ended[0].cause, cause);
        assert_eq!(bench.state(Side::A), QpState::Err);
        assert_eq!(bench.take_events(Side::A), [], "completions told it");
    }
}

/// A NAK acknowledges every packet before its PSN.
#[test]
fn a_nak_acknowledges_what_is_before_it() {
    for syndrome in [0x60, 0x20, 0x61, 0x62, 0x63] {
        let mut bench = mute();
        let write = bench.write(0);
        for wr_id in 1..=3 {
            bench.post(wr_id, write, 0, 8);
        }
        bench.collect(Side::A);
        let nak = acknowledge(&bench, syndrome, 2);
        bench.arrive(Side::A, &nak);
        let ended = bench.ended(Side::A);
        assert_eq!(ended[..2], [(1, SUCCESS), (2, SUCCESS)], "{syndrome:#x}");
        assert_eq!(ended.len(), if syndrome > 0x60 { 3 } else { 2 });
    }
}

#[test]
fn reserved_syndromes_are_dropped() {
    for syndrome in (0x40..=0x5f).chain(0x80..=0xff) {
        let mut bench = mute();
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        bench.collect(Side::A);
        let packet = acknowledge(&bench, syndrome, 0);
        let expected = Verdict::Dropped(DropReason::ReservedSyndrome);
        assert_eq!(bench.arrive(Side::A, &packet).0, expected, "{syndrome:#x}");
        assert_eq!(bench.ended(Side::A), []);
        assert_eq!(bench.state(Side::A), QpState::Rts);
    }
}

/// Credits never block this requester: a healthy ConnectX advertises none.
#[test]
fn every_credit_code_completes_and_none_blocks() {
    for code in 0..32 {
        let mut bench = mute();
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        bench.collect(Side::A);
        let packet = acknowledge(&bench, code, 0);
        assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled);
        assert_eq!(bench.ended(Side::A), [(1, SUCCESS)]);
        let before = bench.sent.len();
        for wr_id in 2..20 {
            bench.post(wr_id, SendOp::Send, 0, 8);
        }
        bench.collect(Side::A);
        assert_eq!(bench.sent.len(), before + 18, "code {code}");
    }
}

/// Responses that no correct peer sends.
#[test]
fn bad_responses_fail_the_request_they_claim_to_answer() {
    let op = |bench: &Bench, name: &str| {
        let (remote_addr, rkey) = (address(0), bench.host(Side::B).rkey());
        match name {
            "write" => (bench.write(0), 8),
            "send" => (SendOp::Send, 8),
            "read" => (bench.read(0), 2 * MTU + 10),
            "short read" => (bench.read(0), 10),
            "atomic" => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
            _ => (SendOp::AtomicWrite { remote_addr, rkey }, 8),
        }
    };
    type Make = fn(&Bench) -> Forge;
    let first: Make = |bench| answer(bench, Opcode(0x0d), 0).aeth(0x1f, 1).payload(&[1; MTU]);
    let rows: &[(&str, &str, Make)] = &[
        ("READ response to a WRITE", "write", |b| answer(b, Opcode(0x10), 0).aeth(0, 1).payload(&[1; 8])),
        ("READ response to a SEND", "send", |b| answer(b, Opcode(0x10), 0).aeth(0, 1)),
        ("READ response Middle to a WRITE", "write", |b| answer(b, Opcode(0x0e), 0).payload(&[1; MTU])),
        ("ATOMIC ACK to a WRITE", "write", |b| answer(b, Opcode(0x12), 0).aeth(0, 1).atomic_ack(1)),
        ("ATOMIC ACK to a READ", "read", |b| answer(b, Opcode(0x12), 0).aeth(0, 1).atomic_ack(1)),
        ("ATOMIC ACK to ATOMIC WRITE", "atomic write", |b| {
            answer(b, Opcode(0x12), 0).aeth(0, 1).atomic_ack(1)
        }),
        ("READ response to an atomic", "atomic", |b| answer(b, Opcode(0x10), 0).aeth(0, 1).payload(&[1; 8])),
        ("bytes for an ATOMIC WRITE", "atomic write", |b| {
            answer(b, Opcode(0x10), 0).aeth(0, 1).payload(&[1; 8])
        }),
        ("First for an ATOMIC WRITE", "atomic write", |b| {
            answer(b, Opcode(0x0d), 0).aeth(0, 1).payload(&[1; MTU])
        }),
        ("First below the MTU", "read", |b| answer(b, Opcode(0x0d), 0).aeth(0, 1).payload(&[1; MTU - 4])),
        ("First above the MTU", "read", |b| answer(b, Opcode(0x0d), 0).aeth(0, 1).payload(&[1; MTU + 4])),
        ("Only where more is to come", "read", |b| answer(b, Opcode(0x10), 0).aeth(0, 1).payload(&[1; MTU])),
        ("Last at the start", "read", |b| answer(b, Opcode(0x0f), 0).aeth(0, 1).payload(&[1; MTU])),
        ("First where one packet is all", "short read", |b| {
            answer(b, Opcode(0x0d), 0).aeth(0, 1).payload(&[1; MTU])
        }),
        ("Only that is too short", "short read", |b| answer(b, Opcode(0x10), 0).aeth(0, 1).payload(&[1; 9])),
        ("Only that is too long", "short read", |b| answer(b, Opcode(0x10), 0).aeth(0, 1).payload(&[1; 11])),
        ("empty Only", "short read", |b| answer(b, Opcode(0x10), 0).aeth(0, 1)),
        ("empty First", "read", |b| answer(b, Opcode(0x0d), 0).aeth(0, 1)),
        ("empty Middle", "read", |b| answer(b, Opcode(0x0e), 0)),
        ("empty Last", "short read", |b| answer(b, Opcode(0x0f), 0).aeth(0, 1)),
        ("READ response with a NAK syndrome", "short read", |b| {
            answer(b, Opcode(0x10), 0).aeth(0x61, 1).payload(&[1; 10])
        }),
        ("ATOMIC ACK with an RNR syndrome", "atomic", |b| {
            answer(b, Opcode(0x12), 0).aeth(0x25, 1).atomic_ack(1)
        }),
    ];
    for (what, request, make) in rows {
        let mut bench = mute();
        let (op, len) = op(&bench, request);
        bench.post(1, op, 4096, len);
        bench.post(2, SendOp::Send, 0, 8);
        bench.collect(Side::A);
        let packet = make(&bench);
        assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled, "{what}");
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::BadResponseError), (2, FLUSHED)], "{what}");
        assert_eq!(bench.state(Side::A), QpState::Err, "{what}");
        assert_eq!(bench.host(Side::A).read_memory(4096, 1024), [0; 1024], "{what}: no byte lands");
    }
    // The last packet of a READ, too short and too long, after two good ones.
    for len in [0, 9, 11, MTU] {
        let mut bench = mute();
        let read = bench.read(0);
        bench.post(1, read, 4096, 2 * MTU + 10);
        bench.collect(Side::A);
        let packet = first(&bench);
        bench.arrive(Side::A, &packet);
        let middle = answer(&bench, Opcode(0x0e), 1).payload(&[1; MTU]);
        bench.arrive(Side::A, &middle);
        let last = answer(&bench, Opcode(0x0f), 2).aeth(0x1f, 1).payload(&vec![1; len]);
        bench.arrive(Side::A, &last);
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::BadResponseError)], "Last of {len}");
        assert_eq!(bench.host(Side::A).read_memory(4096 + 2 * MTU, MTU), [0; MTU]);
    }
}

#[test]
fn answers_to_nothing_are_dropped() {
    let mut bench = mute();
    let write = bench.write(0);
    let unsent = Verdict::Dropped(DropReason::UnsentPsn);
    let stale = Verdict::Dropped(DropReason::StaleResponse);
    let table = [(0, unsent), (1, unsent), (0x7f_fffe, unsent), (0xff_ffff, stale), (0x80_0000, stale)];
    for syndrome in [0x1f, 0x20, 0x60, 0x61, 0x62, 0x63] {
        for (offset, expected) in table {
            let packet = acknowledge(&bench, syndrome, offset);
            assert_eq!(bench.arrive(Side::A, &packet).0, expected, "{syndrome:#x} {offset:#x}");
        }
    }
    // If one request is outstanding, its PSN is answered once; later answers are stale.
    bench.post(1, write, 0, 8);
    bench.collect(Side::A);
    let packet = acknowledge(&bench, 0x1f, 1);
    assert_eq!(bench.arrive(Side::A, &packet).0, unsent);
    let packet = acknowledge(&bench, 0x1f, 0);
    assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled);
    assert_eq!(bench.arrive(Side::A, &packet).0, stale);
    assert_eq!(bench.ended(Side::A), [(1, SUCCESS)]);
}

/// An acknowledgement in the middle of a message completes no request; a later one completes several.
#[test]
fn partial_and_cumulative_acknowledgements() {
    let mut bench = mute();
    let write = bench.write(0);
    for wr_id in 1..=3 {
        bench.post(wr_id, write, 0, 3 * MTU);
    }
    bench.collect(Side::A);
    let mut acknowledged = |offset, expected: &[Ended]| {
        let packet = acknowledge(&bench, 0x1f, offset);
        assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled);
        assert_eq!(bench.ended(Side::A), expected, "ACK {offset}");
    };
    acknowledged(0, &[]);
    acknowledged(1, &[]);
    acknowledged(7, &[(1, SUCCESS), (2, SUCCESS)]);
    acknowledged(8, &[(3, SUCCESS)]);
}

/// A late answer that advances the queue is not a dropped packet, even if a request after it is already being
/// retransmitted. Here a timeout resets all requests before an answer to the first pass arrives.
///
/// ```text
/// A  WRITE 0, READ 1, WRITE 2 ->  (lost or late)
///    timeout: back to 0
///    <- ACK 2                     WRITE 0 is done, READ 1 is not: it goes out again anyway
/// ```
#[test]
fn late_ack_that_makes_progress_before_an_unanswered_read_is_handled() {
    // (syndrome, PSN of the late answer, reason of the drop if it arrives again)
    let rows = [
        (0x1f, 2, DropReason::ResponseGap),
        (0x60, 2, DropReason::ResponseGap),
        (0x20, 2, DropReason::ResponseGap),
        (0x62, 2, DropReason::ResponseGap),
        // A sequence NAK for the packet that is retransmitted: it acknowledges the packets before it.
        (0x60, 1, DropReason::StaleResponse),
    ];
    for (syndrome, offset, reason) in rows {
        let mut bench = mute();
        let (write, read) = (bench.write(0), bench.read(0));
        bench.post(1, write, 0, 8);
        bench.post(2, if offset == 2 { read } else { write }, 64, 8);
        bench.post(3, write, 0, 8);
        bench.collect(Side::A);
        // The timer has expired, but the link is busy and no packet of the second pass has left yet.
        bench.blocked = [true, false];
        let engine = &mut bench.host_mut(Side::A).engine;
        let timeout = engine.poll_timeout().expect("an acknowledgement is awaited");
        engine.handle_timeout(timeout, Duration::ZERO);
        bench.now = timeout;
        let what = format!("syndrome {syndrome:#x} at {offset}");
        let packet = acknowledge(&bench, syndrome, offset);
        assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Handled, "{what}");
        assert_eq!(bench.state(Side::A), QpState::Rts, "{what}");
        // The second copy advances nothing.
        assert_eq!(bench.arrive(Side::A, &packet).0, Verdict::Dropped(reason), "{what}");
        assert_eq!(bench.counter(Side::A, reason.counter()), 1, "{what}");
        assert_eq!(bench.ended(Side::A), [(1, SUCCESS)], "{what}");
    }
}

/// Local errors of the requester. The request fails in its turn, after the requests before it have finished.
#[test]
fn local_errors_of_each_kind() {
    let far = |bench: &Bench| Sge { addr: address(1 << 21), ..bench.host(Side::A).memory_range(0, 8) };
    let unknown = |bench: &Bench| Sge { lkey: LKey(0x0bad_0000), ..bench.host(Side::A).memory_range(0, 8) };
    let binding = |bench: &Bench, access| WindowBinding {
        region: bench.host(Side::A).region.lkey,
        addr: address(1 << 21),
        len: 8,
        access,
    };
    type Row = (&'static str, SendOp, Option<Sge>, WcStatus, Cause);
    let mut bench = Bench::rc();
    let host = bench.host_mut(Side::A);
    let window = host.engine.allocate_window(host.pd, WindowType::Type2).unwrap();
    let (remote_addr, rkey) = (address(0), bench.host(Side::B).rkey());
    let atomic = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
    let bind = SendOp::BindWindow {
        window,
        new_rkey: window.next_variant(),
        binding: binding(&bench, roce_transport::Access::REMOTE_READ),
    };
    let (prot, op_error) = (WcStatus::LocalProtectionError, WcStatus::LocalQpOperationError);
    let rows: Vec<Row> = vec![
        ("gather, key", SendOp::Send, Some(unknown(&bench)), prot, Cause::LocalKeyUnknown),
        ("gather, range", bench.write(0), Some(far(&bench)), prot, Cause::LocalKeyRange),
        ("READ destination, key", bench.read(0), Some(unknown(&bench)), prot, Cause::LocalKeyUnknown),
        ("READ destination, range", bench.read(0), Some(far(&bench)), prot, Cause::LocalKeyRange),
        ("atomic result", atomic, Some(far(&bench)), prot, Cause::LocalKeyRange),
        (
            "invalidate",
            SendOp::LocalInvalidate { rkey: RKey(0x0bad_0000) },
            None,
            op_error,
            Cause::LocalInvalidate,
        ),
        ("bind", bind, None, WcStatus::MemoryWindowBindError, Cause::WindowBind),
    ];
    for (what, op, element, status, cause) in rows {
        let mut bench = Bench::rc();
        let host = bench.host_mut(Side::A);
        host.engine.allocate_window(host.pd, WindowType::Type2).unwrap();
        let write = bench.write(64);
        bench.post(1, write, 0, 8);
        let elements: Vec<Sge> = element.into_iter().collect();
        let a = bench.a;
        let wr = SendWr::new(2, op, &elements).with_flags(SendFlags::empty());
        bench.post_send(Side::A, a, &wr).unwrap();
        bench.post(3, write, 0, 8);
        bench.drive();
        let ended = bench.completions(Side::A);
        let found: Vec<Ended> = ended.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        // Whether the previous request was already answered depends on timing. It completes either way, in
        // order.
        assert_eq!(found[1..], [(2, status), (3, FLUSHED)], "{what}");
        assert_eq!(found[0].0, 1, "{what}");
        assert!(matches!(found[0].1, SUCCESS | FLUSHED), "{what}: {found:?}");
        assert_eq!(ended[1].cause, cause, "{what}");
        assert_eq!(bench.state(Side::A), QpState::Err, "{what}");
    }
}

#[test]
fn posting_in_err_flushes_in_order() {
    let mut bench = Bench::rc();
    let (now, a) = (bench.now, bench.a);
    let error = roce_transport::QpAttr::to_state(QpState::Err);
    bench.post_recv(Side::A, a, 90, 0, 64).unwrap();
    bench.host_mut(Side::A).engine.modify_qp(now, a, &error).unwrap();
    let write = bench.write(0);
    for wr_id in 1..=3 {
        post_unsignaled(&mut bench, wr_id, write, 8);
    }
    bench.post_recv(Side::A, a, 91, 0, 64).unwrap();
    let expected = [(90, FLUSHED), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED), (91, FLUSHED)];
    assert_eq!(bench.ended(Side::A), expected);
    assert!(bench.sent.is_empty());
    assert_eq!(bench.counter(Side::A, "req_cqe_flush_error"), 3);
    assert_eq!(bench.counter(Side::A, "resp_cqe_flush_error"), 2);
}

/// A failed requester flushes its own receives, but not those of a shared receive queue.
#[test]
fn failed_requester_with_srq_raises_last_wqe_reached() {
    let mut bench = Bench::empty();
    let srq = bench.connect_srq(QpType::Rc, &settings());
    let element = bench.host(Side::B).memory_range(0, 64);
    bench.host_mut(Side::B).engine.post_srq_recv(srq, &RecvWr { wr_id: 1, elements: &[element] }).unwrap();
    let bad = Sge { lkey: LKey(1), ..element };
    let b: Qpn = bench.b;
    bench.post_send(Side::B, b, &SendWr::new(5, SendOp::Send, &[bad])).unwrap();
    bench.drive();
    assert_eq!(bench.ended(Side::B), [(5, WcStatus::LocalProtectionError)]);
    assert_eq!(bench.take_events(Side::B), [AsyncEvent::LastWqeReached(b)]);
    assert_eq!(bench.host(Side::B).engine.query_srq(srq).unwrap().posted, 1);
}
