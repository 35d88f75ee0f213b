//! Every NAK that fails a queue pair, and the state after it (section 5.4 and the responder's part of 5.8 of
//! the protocol description).

use crate::common::{Answer, Bench, Ended, Forge, MTU, address, settings};
use roce_packet::{FlushSelectivity, NakCode, Opcode, Psn, Qpn};
use roce_sim::pair::{Settings, Side};
use roce_transport::{
    Access, AsyncEvent, DropReason, LKey, QpState, QpType, RKey, RecvWr, Sge, Verdict, WcStatus,
};

const START: u32 = 0x1000;

fn send_only(bench: &Bench, offset: u32) -> Forge {
    bench.forge(Side::B, Opcode::RC_SEND_ONLY, Psn::new(START + offset)).payload(b"data")
}

/// One way to have a request refused fatally.
struct Case {
    what: &'static str,
    /// The packets that are accepted first.
    before: Vec<Forge>,
    refused: Forge,
    code: NakCode,
    /// The status of the receive in use; `None` if no receive is in use and an event reports the failure.
    receive: Option<WcStatus>,
}

fn case(what: &'static str, before: &[&Forge], refused: &Forge, code: NakCode) -> Case {
    let before = before.iter().map(|forge| (*forge).clone()).collect();
    Case { what, before, refused: refused.clone(), code, receive: None }
}

impl Case {
    /// Sets the status of the receive that the first packet of the case took.
    fn with_receive(mut self, status: WcStatus) -> Self {
        self.receive = Some(status);
        self
    }
}

/// Runs cases on fresh pairs from `make`. Equal seeds make equal numbers, so the packets fit all of the
/// pairs.
#[track_caller]
fn refuse(make: impl Fn() -> Bench, cases: Vec<Case>) {
    for case in cases {
        let mut bench = make();
        let what = case.what;
        for (index, packet) in case.before.iter().enumerate() {
            let mut packet = packet.clone();
            packet.bth.psn = Psn::new(START + index as u32);
            let (verdict, answers) = bench.arrive(Side::B, &packet);
            assert_eq!(verdict, Verdict::Handled, "{what}: packet {index}");
            assert!(answers.iter().all(|answer| answer.syndrome.is_none_or(|byte| byte < 0x20)), "{what}");
        }
        let psn = bench.expected(Side::B).get();
        let mut refused = case.refused.clone();
        refused.bth.psn = Psn::new(psn);
        let ended_before = bench.ended(Side::B);
        let memory = bench.host(Side::B).read_memory(0, 1 << 16);
        bench.take_events(Side::B);

        let (verdict, answers) = bench.arrive(Side::B, &refused);
        assert_eq!(verdict, Verdict::Handled, "{what}");
        let nak = Answer::acknowledge(0x60 | case.code.code(), psn, answers[0].msn.unwrap());
        assert_eq!(answers, [nak], "{what}");
        assert_eq!(bench.state(Side::B), QpState::Err, "{what}");
        crate::common::assert_same(&bench.host(Side::B).read_memory(0, 1 << 16), &memory, what);
        let b = bench.b;
        let flushed = WcStatus::WrFlushError;
        let (ended, events) = match (case.receive, case.code) {
            (Some(status), _) => (vec![(1, status), (2, flushed)], vec![]),
            (None, NakCode::RemoteAccess) => {
                (vec![(1, flushed), (2, flushed)], vec![AsyncEvent::QpAccessError(b)])
            }
            (None, _) => (vec![(1, flushed), (2, flushed)], vec![AsyncEvent::QpRequestError(b)]),
        };
        let ended: Vec<Ended> =
            ended.into_iter().filter(|one| !ended_before.contains(&(one.0, WcStatus::Success))).collect();
        assert_eq!(bench.ended(Side::B), ended, "{what}");
        assert_eq!(bench.take_events(Side::B), events, "{what}");
        // The queue pair now drops every packet.
        refused.bth.psn = Psn::new(psn).next();
        assert_eq!(
            bench.arrive(Side::B, &refused),
            (Verdict::Dropped(DropReason::BadState), vec![]),
            "{what}"
        );
    }
}

fn ready() -> Bench {
    let mut bench = Bench::rc();
    bench.receive(1, 8192, 600);
    bench.receive(2, 9216, 600);
    bench
}

/// The packets of the cases, with PSNs to be filled in.
struct Packets {
    send_first: Forge,
    send_middle: Forge,
    send_last: Forge,
    send_only: Forge,
    write_first: Forge,
    write_middle: Forge,
    write_last: Forge,
    write_only: Forge,
    read: Forge,
    fetch_add: Forge,
}

fn packets(bench: &Bench) -> Packets {
    let rkey = bench.host(Side::B).rkey();
    let at = |opcode| bench.forge(Side::B, opcode, Psn::new(0));
    let reth = |opcode, len| at(opcode).reth(address(0), rkey, len);
    Packets {
        send_first: at(Opcode::RC_SEND_FIRST).payload(&[1; MTU]),
        send_middle: at(Opcode::RC_SEND_MIDDLE).payload(&[2; MTU]),
        send_last: at(Opcode::RC_SEND_LAST).payload(&[3; 10]),
        send_only: at(Opcode::RC_SEND_ONLY).payload(&[4; 10]),
        write_first: reth(Opcode::RC_RDMA_WRITE_FIRST, 600).payload(&[5; MTU]),
        write_middle: at(Opcode::RC_RDMA_WRITE_MIDDLE).payload(&[6; MTU]),
        write_last: at(Opcode::RC_RDMA_WRITE_LAST).payload(&[7; 88]),
        write_only: reth(Opcode::RC_RDMA_WRITE_ONLY, 10).payload(&[8; 10]),
        read: reth(Opcode::RC_RDMA_READ_REQUEST, 10),
        fetch_add: at(Opcode::RC_FETCH_ADD).atomic(address(0), rkey, 1, 0),
    }
}

const INVALID: NakCode = NakCode::InvalidRequest;
const ACCESS: NakCode = NakCode::RemoteAccess;

#[test]
fn nak_invalid_request_for_every_bad_opcode_sequence() {
    let p = packets(&ready());
    let in_use = WcStatus::RemoteInvalidRequestError;
    let sends = [&p.send_middle, &p.send_last];
    let writes = [&p.write_middle, &p.write_last];
    let starts = [&p.send_first, &p.send_only, &p.write_first, &p.write_only, &p.read, &p.fetch_add];
    let mut cases = Vec::new();
    for packet in sends.into_iter().chain(writes) {
        cases.push(case("middle or last of nothing", &[], packet, INVALID));
        cases.push(case("middle or last after a whole message", &[&p.write_only], packet, INVALID));
    }
    for packet in starts {
        cases.push(case("a start inside a SEND", &[&p.send_first], packet, INVALID).with_receive(in_use));
        cases.push(case("a start inside a WRITE", &[&p.write_first], packet, INVALID));
        let before = [&p.send_first, &p.send_middle];
        cases.push(case("a start after a middle", &before, packet, INVALID).with_receive(in_use));
    }
    for packet in writes {
        cases.push(case("WRITE continues a SEND", &[&p.send_first], packet, INVALID).with_receive(in_use));
    }
    for packet in sends {
        cases.push(case("SEND continues a WRITE", &[&p.write_first], packet, INVALID));
    }
    refuse(ready, cases);
}

#[test]
fn nak_invalid_request_for_every_bad_length() {
    let bench = ready();
    let rkey = bench.host(Side::B).rkey();
    let p = packets(&bench);
    let in_use = WcStatus::RemoteInvalidRequestError;
    let at = |opcode| bench.forge(Side::B, opcode, Psn::new(0));
    let reth = |opcode, len| at(opcode).reth(address(0), rkey, len);
    let short = |forge: &Forge, len| forge.clone().payload(&vec![1; len]);
    let write_first = |len, payload| reth(Opcode::RC_RDMA_WRITE_FIRST, len).payload(&vec![1; payload]);
    let write_only = |len, payload| reth(Opcode::RC_RDMA_WRITE_ONLY, len).payload(&vec![1; payload]);
    let too_long = 1_u32 << 31 | 1;
    let cases = vec![
        case("First below the MTU", &[], &short(&p.send_first, 252), INVALID),
        case("First above the MTU", &[], &short(&p.send_first, 260), INVALID),
        case("Middle below the MTU", &[&p.send_first], &short(&p.send_middle, 252), INVALID)
            .with_receive(in_use),
        case("Middle above the MTU", &[&p.send_first], &short(&p.send_middle, 260), INVALID)
            .with_receive(in_use),
        case("Last above the MTU", &[&p.send_first], &short(&p.send_last, 257), INVALID).with_receive(in_use),
        case("Only above the MTU", &[], &short(&p.send_only, 257), INVALID),
        case("WRITE First below the MTU", &[], &write_first(600, 252), INVALID),
        case("WRITE First that is all", &[], &write_first(256, 256), INVALID),
        case("WRITE First of an empty message", &[], &write_first(0, 256), INVALID),
        case("WRITE Only shorter than announced", &[], &write_only(10, 9), INVALID),
        case("WRITE Only longer than announced", &[], &write_only(10, 11), INVALID),
        case("WRITE Only with bytes for an empty message", &[], &write_only(0, 1), INVALID),
        case("WRITE Only that cannot be all", &[], &write_only(257, 256), INVALID),
        case(
            "WRITE Last shorter than announced",
            &[&p.write_first, &p.write_middle],
            &short(&p.write_last, 87),
            INVALID,
        ),
        case(
            "WRITE Last longer than announced",
            &[&p.write_first, &p.write_middle],
            &short(&p.write_last, 89),
            INVALID,
        ),
        case("WRITE Last too early", &[&p.write_first], &short(&p.write_last, 88), INVALID),
        case("WRITE Middle too many", &[&p.write_first, &p.write_middle], &p.write_middle, INVALID),
        case("WRITE beyond 2^31", &[], &write_first(too_long, 256), INVALID),
        case("READ beyond 2^31", &[], &reth(Opcode::RC_RDMA_READ_REQUEST, too_long), INVALID),
        case("ATOMIC WRITE of 4", &[], &reth(Opcode::RC_ATOMIC_WRITE, 4).payload(&[1; 8]), INVALID),
    ];
    refuse(ready, cases);
    // Longer than the receive: 600 bytes fit, 256 + 256 + 89 do not.
    let last = short(&p.send_last, 89);
    let status = WcStatus::LocalLengthError;
    let cases = vec![
        case("longer than the receive", &[&p.send_first, &p.send_middle], &last, INVALID)
            .with_receive(status),
    ];
    refuse(ready, cases);
}

/// A First or Middle has one path MTU of payload, a Last at least a byte. RC answers an empty one as it
/// answers one with too little payload.
#[test]
fn nak_invalid_request_for_first_middle_and_last_without_payload() {
    let bench = ready();
    let rkey = bench.host(Side::B).rkey();
    let p = packets(&bench);
    let in_use = WcStatus::RemoteInvalidRequestError;
    let at = |opcode| bench.forge(Side::B, opcode, Psn::new(0));
    let inside_send = [
        at(Opcode::RC_SEND_MIDDLE),
        at(Opcode::RC_SEND_LAST),
        at(Opcode::RC_SEND_LAST_WITH_IMM).imm([0; 4]),
        at(Opcode::RC_SEND_LAST_WITH_INVALIDATE).ieth(rkey),
    ];
    let inside_write = [
        at(Opcode::RC_RDMA_WRITE_MIDDLE),
        at(Opcode::RC_RDMA_WRITE_LAST),
        at(Opcode::RC_RDMA_WRITE_LAST_WITH_IMM).imm([0; 4]),
    ];
    // Two full packets leave no payload for a Last, which is wrong even so.
    let whole = at(Opcode::RC_RDMA_WRITE_FIRST).reth(address(0), rkey, 512).payload(&[5; MTU]);
    let mut cases = vec![
        case("empty SEND First", &[], &at(Opcode::RC_SEND_FIRST), INVALID),
        case("empty WRITE First", &[], &at(Opcode::RC_RDMA_WRITE_FIRST).reth(address(0), rkey, 600), INVALID),
        case(
            "empty WRITE First of nothing",
            &[],
            &at(Opcode::RC_RDMA_WRITE_FIRST).reth(address(0), rkey, 0),
            INVALID,
        ),
    ];
    for packet in &inside_send {
        cases.push(case("empty inside a SEND", &[&p.send_first], packet, INVALID).with_receive(in_use));
    }
    for packet in &inside_write {
        cases.push(case("empty inside a WRITE", &[&p.write_first], packet, INVALID));
        cases.push(case("empty near the end of a WRITE", &[&whole], packet, INVALID));
    }
    refuse(ready, cases);
    // The length of a duplicate is not checked: it is acknowledged and not executed.
    let mut bench = ready();
    let mut only = p.send_only.clone();
    only.bth.psn = Psn::new(START);
    bench.arrive(Side::B, &only);
    for packet in inside_send.iter().chain(&inside_write) {
        let mut packet = packet.clone();
        packet.bth.psn = Psn::new(START);
        let (verdict, answers) = bench.arrive(Side::B, &packet);
        assert_eq!((verdict, answers), (Verdict::Handled, vec![Answer::acknowledge(0x1f, START, 1)]));
    }
    assert_eq!(bench.state(Side::B), QpState::Rts);
}

#[test]
fn nak_invalid_request_for_alignment_and_reserved_flush() {
    let bench = ready();
    let rkey = bench.host(Side::B).rkey();
    let at = |opcode| bench.forge(Side::B, opcode, Psn::new(0));
    let mut cases = Vec::new();
    for offset in 1..8 {
        for opcode in [Opcode::RC_FETCH_ADD, Opcode::RC_COMPARE_SWAP] {
            let packet = at(opcode).atomic(address(offset), rkey, 1, 0);
            cases.push(case("misaligned atomic", &[], &packet, INVALID));
        }
        let packet = at(Opcode::RC_ATOMIC_WRITE).reth(address(offset), rkey, 8).payload(&[1; 8]);
        cases.push(case("misaligned ATOMIC WRITE", &[], &packet, INVALID));
    }
    let flush =
        |visible, selectivity| at(Opcode::RC_FLUSH).flush(visible, selectivity).reth(address(0), rkey, 8);
    for bits in [2, 3] {
        let packet = flush(true, FlushSelectivity::Reserved(bits));
        cases.push(case("FLUSH of a reserved selectivity", &[], &packet, INVALID));
    }
    let packet = flush(false, FlushSelectivity::Range);
    cases.push(case("FLUSH that asks for nothing", &[], &packet, INVALID));
    refuse(ready, cases);
}

/// Rights that the queue pair lacks, one at a time. The syndrome is 0x61, as in rxe; the description also
/// allows 0x62.
#[test]
fn nak_invalid_request_for_disabled_operations() {
    let rights = [
        (Access::REMOTE_WRITE, &[0x06, 0x0a, 0x0b, 0x1d][..]),
        (Access::REMOTE_READ, &[0x0c]),
        (Access::REMOTE_ATOMIC, &[0x13, 0x14]),
        (Access::FLUSH_GLOBAL, &[0x1c]),
    ];
    let all = Access::REMOTE;
    for (right, opcodes) in rights {
        for opcode in [0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14, 0x1c, 0x1d] {
            let mut bench = Bench::new(QpType::Rc, &Settings { access: all - right, ..settings() });
            bench.receive(1, 0, 64);
            let rkey = bench.host(Side::B).rkey();
            let forge = bench.forge(Side::B, Opcode(opcode), Psn::new(START));
            let packet = match opcode {
                0x06 => forge.reth(address(0), rkey, 300).payload(&[1; MTU]),
                0x0a => forge.reth(address(0), rkey, 8).payload(&[1; 8]),
                0x0b => forge.reth(address(0), rkey, 8).imm([0; 4]).payload(&[1; 8]),
                0x0c => forge.reth(address(0), rkey, 8),
                0x1c => forge.feth().reth(address(0), rkey, 8),
                0x1d => forge.reth(address(0), rkey, 8).payload(&[1; 8]),
                _ => forge.atomic(address(0), rkey, 1, 0),
            };
            let (_, answers) = bench.arrive(Side::B, &packet);
            if opcodes.contains(&opcode) {
                assert_eq!(answers, [Answer::acknowledge(0x61, START, 0)], "{opcode:#x} without {right:?}");
                assert_eq!(bench.state(Side::B), QpState::Err);
                assert_eq!(bench.host(Side::B).read_memory(0, 64), [0; 64]);
            } else {
                assert!(answers[0].syndrome < Some(0x20), "{opcode:#x} without {right:?}: {answers:?}");
                assert_eq!(bench.state(Side::B), QpState::Rts);
            }
        }
    }
}

#[test]
fn nak_remote_access_for_keys_ranges_and_rights() {
    // Regions that lack one right each, identical in every run.
    const RIGHTS: [Access; 4] =
        [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::FLUSH_GLOBAL];
    let make = || {
        let mut bench = ready();
        let mut keys = Vec::new();
        let memory = std::sync::Arc::new(roce_transport::WordMemory::new(4096));
        let host = bench.host_mut(Side::B);
        for right in RIGHTS {
            let access = (Access::LOCAL_WRITE | Access::REMOTE) - right;
            keys.push(host.engine.register(host.pd, 0x900_0000, memory.clone(), access).unwrap().rkey);
        }
        let pd = host.engine.allocate_pd().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        keys.push(host.engine.register(pd, 0x900_0000, memory.clone(), access).unwrap().rkey);
        let gone = host.engine.register(host.pd, 0x900_0000, memory, access).unwrap();
        host.engine.deregister(gone.lkey).unwrap();
        keys.push(gone.rkey);
        (bench, keys)
    };
    let (bench, keys) = make();
    let own = bench.host(Side::B).rkey();
    let packets = |va: u64, rkey: RKey| {
        let at = |opcode| bench.forge(Side::B, opcode, Psn::new(0));
        [
            at(Opcode::RC_RDMA_WRITE_ONLY).reth(va, rkey, 8).payload(&[1; 8]),
            at(Opcode::RC_RDMA_WRITE_FIRST).reth(va, rkey, 300).payload(&[1; MTU]),
            at(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMM).reth(va, rkey, 8).imm([0; 4]).payload(&[1; 8]),
            at(Opcode::RC_ATOMIC_WRITE).reth(va, rkey, 8).payload(&[1; 8]),
            at(Opcode::RC_RDMA_READ_REQUEST).reth(va, rkey, 8),
            at(Opcode::RC_FETCH_ADD).atomic(va, rkey, 1, 0),
            at(Opcode::RC_COMPARE_SWAP).atomic(va, rkey, 1, 0),
            at(Opcode::RC_FLUSH).feth().reth(va, rkey, 8),
        ]
    };
    let needs = |index: usize| match index {
        0..=3 => 0,
        4 => 1,
        5 | 6 => 2,
        _ => 3,
    };
    let mut cases = Vec::new();
    for (right, key) in keys.iter().take(4).enumerate() {
        for (index, packet) in packets(0x900_0000, *key).iter().enumerate() {
            if needs(index) == right {
                cases.push(case("a right is missing", &[], packet, ACCESS));
            }
        }
    }
    let end = address(0) + (1 << 21);
    let bad = [
        ("unknown key", address(0), RKey(own.0 ^ 0x0100_0000)),
        ("wrong variant of a key", address(0), RKey(own.0 ^ 0x55)),
        ("key 0", address(0), RKey(0)),
        ("another protection domain", 0x900_0000, keys[4]),
        ("revoked key", 0x900_0000, keys[5]),
        ("before the region", address(0) - 8, own),
        ("behind the region", end, own),
        ("far away", 1 << 63, own),
        ("at the end of the address space", u64::MAX - 7, own),
    ];
    for (what, va, rkey) in bad {
        for packet in &packets(va, rkey) {
            cases.push(case(what, &[], packet, ACCESS));
        }
    }
    let across = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_FIRST, Psn::new(0));
    let across = across.reth(end - 299, own, 300).payload(&[1; MTU]);
    cases.push(case("the last byte is outside, the first packet is not", &[], &across, ACCESS));
    refuse(|| make().0, cases);
}

#[test]
fn nak_remote_operational_for_a_bad_receive() {
    let make = |element: Sge| {
        move || {
            let mut bench = Bench::rc();
            let (b, good) = (bench.b, bench.host(Side::B).memory_range(0, 64));
            let engine = &mut bench.host_mut(Side::B).engine;
            engine.post_recv(b, &RecvWr { wr_id: 1, elements: &[element] }).unwrap();
            engine.post_recv(b, &RecvWr { wr_id: 2, elements: &[good] }).unwrap();
            bench
        }
    };
    let bench = Bench::rc();
    let good = bench.host(Side::B).memory_range(0, 64);
    let send = send_only(&bench, 0);
    let bad = [
        Sge { lkey: LKey(0x0bad_0000), ..good },
        Sge { addr: address(0) - 1, ..good },
        Sge { addr: address((1 << 21) - 63), ..good },
        Sge { addr: u64::MAX - 3, ..good },
    ];
    for element in bad {
        let status = WcStatus::LocalProtectionError;
        let cases = vec![case("bad receive", &[], &send, NakCode::RemoteOperational).with_receive(status)];
        refuse(make(element), cases);
    }
}

#[test]
fn a_receive_without_local_write_is_a_protection_error() {
    let mut bench = Bench::rc();
    let memory = std::sync::Arc::new(roce_transport::WordMemory::new(64));
    let host = bench.host_mut(Side::B);
    let region = host.engine.register(host.pd, 0x5000, memory.clone(), Access::empty()).unwrap();
    let element = Sge { addr: 0x5000, length: 64, lkey: region.lkey };
    let b = bench.b;
    bench.host_mut(Side::B).engine.post_recv(b, &RecvWr { wr_id: 1, elements: &[element] }).unwrap();
    let packet = send_only(&bench, 0);
    assert_eq!(bench.arrive(Side::B, &packet).1, [Answer::acknowledge(0x63, START, 0)]);
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::LocalProtectionError)]);
    assert_eq!(memory.to_vec(), [0; 64]);
}

/// The key of a WRITE is revoked in the middle of it.
#[test]
fn write_loses_its_key_between_packets() {
    for with_imm in [false, true] {
        let mut bench = Bench::rc();
        bench.receive(1, 8192, 64);
        bench.receive(2, 8192, 64);
        let memory = std::sync::Arc::new(roce_transport::WordMemory::new(4096));
        let host = bench.host_mut(Side::B);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = host.engine.register(host.pd, 0x5000, memory.clone(), access).unwrap();
        let first = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_FIRST, Psn::new(START));
        let first = first.reth(0x5000, region.rkey, 260).payload(&[1; MTU]);
        bench.arrive(Side::B, &first);
        bench.host_mut(Side::B).engine.deregister(region.lkey).unwrap();
        let opcode = if with_imm { Opcode::RC_RDMA_WRITE_LAST_WITH_IMM } else { Opcode::RC_RDMA_WRITE_LAST };
        let mut last = bench.forge(Side::B, opcode, Psn::new(START + 1));
        if with_imm {
            last = last.imm([0; 4]);
        }
        let last = last.payload(&[2; 4]);
        assert_eq!(bench.arrive(Side::B, &last).1, [Answer::acknowledge(0x62, START + 1, 0)]);
        assert_eq!(memory.to_vec()[MTU..], [0; 4096 - MTU], "nothing after the key was revoked");
        let flushed = WcStatus::WrFlushError;
        // The receive of the immediate data reports the error; without one, an event does. Never both.
        let b: Qpn = bench.b;
        let (first, events) = match with_imm {
            true => (WcStatus::LocalAccessError, vec![]),
            false => (flushed, vec![AsyncEvent::QpAccessError(b)]),
        };
        assert_eq!(bench.ended(Side::B), [(1, first), (2, flushed)]);
        assert_eq!(bench.take_events(Side::B), events);
    }
}

/// With a shared receive queue, the receive in use fails, the others stay, and an event reports that the
/// queue pair takes no more.
#[test]
fn shared_receive_queue_stays_filled() {
    let mut bench = Bench::empty();
    let srq = bench.connect_srq(QpType::Rc, &settings());
    for wr_id in 1..=3 {
        let element = bench.host(Side::B).memory_range(0, 512);
        let engine = &mut bench.host_mut(Side::B).engine;
        engine.post_srq_recv(srq, &RecvWr { wr_id, elements: &[element] }).unwrap();
    }
    let p = packets(&bench);
    let mut first = p.send_first.clone();
    first.bth.psn = Psn::new(START);
    let mut middle = p.write_middle.clone();
    middle.bth.psn = Psn::new(START + 1);
    bench.arrive(Side::B, &first);
    assert_eq!(bench.arrive(Side::B, &middle).1, [Answer::acknowledge(0x61, START + 1, 0)]);
    assert_eq!(bench.ended(Side::B), [(1, WcStatus::RemoteInvalidRequestError)]);
    assert_eq!(bench.take_events(Side::B), [AsyncEvent::LastWqeReached(bench.b)]);
    assert_eq!(bench.host(Side::B).engine.query_srq(srq).unwrap().posted, 2);
}
