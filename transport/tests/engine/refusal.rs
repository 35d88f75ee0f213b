//! The refusal matrix: each fault of a packet, in each place of a message, over IPv4 and IPv6. No byte of
//! memory changes; the counter, the answer and the state of the queue pair are right.

use std::net::IpAddr;
use std::sync::Arc;

use crate::common::{Answer, Bench, Forge, MTU, settings};
use roce_packet::{Envelope, Opcode, Psn, Qpn, icrc};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{
    Access, DropReason, Identification, Memory, QpAttr, QpState, QpType, RKey, Received, RegionAttributes,
    Verdict, WordMemory,
};

const START: u32 = 0x1000;
const BASE: u64 = 0x5000_0000;
const LEN: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    First,
    Middle,
    Last,
    Only,
    Retransmitted,
}

const PLACES: [Place; 5] = [Place::First, Place::Middle, Place::Last, Place::Only, Place::Retransmitted];

/// The expected result of a packet.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// Dropped without an answer, counted under this reason.
    Drop(DropReason),
    /// NAK with this syndrome; all but 0x60 fail the queue pair.
    Nak(u8),
    /// Treated as a duplicate: acknowledged, not executed.
    Acknowledged,
    /// The fault does not exist in this place.
    Skip,
}
use Outcome::{Acknowledged, Drop, Nak, Skip};

struct Setup {
    bench: Bench,
    memory: Arc<WordMemory>,
    region: RegionAttributes,
    /// The correct packet of this place, not sent yet; for a retransmission, sent once.
    packet: Forge,
}

fn addresses(v6: bool) -> [IpAddr; 2] {
    if v6 {
        ["2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()]
    } else {
        ["198.18.0.1".parse().unwrap(), "198.18.0.2".parse().unwrap()]
    }
}

/// Returns a queue pair at B in the middle of a message, and the next packet.
#[track_caller]
fn set_up(v6: bool, place: Place, access: Access) -> Setup {
    let mut bench = Bench::empty();
    for (side, address) in [Side::A, Side::B].into_iter().zip(addresses(v6)) {
        bench.host_mut(side).address = address;
    }
    let settings: Settings = settings();
    (bench.a, bench.b) = bench.connect_with(QpType::Rc, &settings);
    let memory = Arc::new(WordMemory::new(LEN));
    let host = bench.host_mut(Side::B);
    let region = host.engine.register(host.pd, BASE, memory.clone(), access).unwrap();
    let forge = |offset: u32, opcode| bench.forge(Side::B, opcode, Psn::new(START + offset));
    let first = forge(0, Opcode::RC_RDMA_WRITE_FIRST).reth(BASE, region.rkey, 600).payload(&[1; MTU]);
    let middle = forge(1, Opcode::RC_RDMA_WRITE_MIDDLE).payload(&[2; MTU]);
    let last = forge(2, Opcode::RC_RDMA_WRITE_LAST).payload(&[3; 88]);
    let only = forge(0, Opcode::RC_RDMA_WRITE_ONLY).reth(BASE, region.rkey, 64).payload(&[4; 64]);
    let (before, packet) = match place {
        Place::First => (vec![], first),
        Place::Middle => (vec![first], middle),
        Place::Last => (vec![first, middle], last),
        Place::Only => (vec![], only),
        Place::Retransmitted => (vec![only.clone()], only),
    };
    for packet in &before {
        assert_eq!(bench.arrive(Side::B, packet).0, Verdict::Handled);
    }
    // The owner continues to use the memory; no refused packet may change it.
    memory.write(0, &[0x77; LEN]).unwrap();
    Setup { bench, memory, region, packet }
}

type Change = fn(&mut Setup) -> Option<Vec<u8>>;

/// A fault: the change that makes it, and its outcome in each place.
struct Row {
    what: &'static str,
    access: Access,
    change: Change,
    outcome: [Outcome; 5],
}

const ALL: Access = Access::REMOTE.union(Access::LOCAL_WRITE);

fn row(what: &'static str, outcome: [Outcome; 5], change: Change) -> Row {
    Row { what, access: ALL, change, outcome }
}

fn everywhere(reason: DropReason) -> [Outcome; 5] {
    [Drop(reason); 5]
}

/// Replaces the fields of the RETH, in the places that have one.
fn with_reth(setup: &mut Setup, va: u64, rkey: RKey, len: u32) {
    let payload =
        if setup.packet.bth.opcode == Opcode::RC_RDMA_WRITE_FIRST { vec![1; MTU] } else { vec![4; 64] };
    let bth = setup.packet.bth;
    let path = setup.packet.path;
    setup.packet = Forge::new(path, bth.opcode, bth.dest_qp, bth.psn).reth(va, rkey, len).payload(&payload);
}

fn announced(setup: &Setup) -> u32 {
    if setup.packet.bth.opcode == Opcode::RC_RDMA_WRITE_FIRST { 600 } else { 64 }
}

/// Changes bytes before the ICRC and corrects the ICRC.
fn resealed(setup: &Setup, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = setup.packet.build();
    bytes.truncate(bytes.len() - 4);
    change(&mut bytes);
    let value = icrc::compute(&Envelope::new(&setup.packet.path, 0), &bytes, &[]);
    bytes.extend(value.to_le_bytes());
    bytes
}

fn rows() -> Vec<Row> {
    let reth = |outcome| [outcome, Skip, Skip, outcome, Acknowledged];
    let address: Change = |setup| {
        setup.packet.path.source = addresses(!setup.packet.path.source.is_ipv4())[1];
        None
    };
    let mut rows = vec![
        row("wrong source address", everywhere(DropReason::BadAddress), address),
        row("wrong destination address", everywhere(DropReason::BadAddress), |setup| {
            setup.packet.path.destination = addresses(!setup.packet.path.source.is_ipv4())[0];
            None
        }),
        row("wrong queue pair number", everywhere(DropReason::UnknownQpn), |setup| {
            setup.packet.bth.dest_qp = Qpn::new(setup.packet.bth.dest_qp.get() ^ 0x80_0000);
            None
        }),
        row("queue pair number 0", everywhere(DropReason::UnknownQpn), |setup| {
            setup.packet.bth.dest_qp = Qpn::new(0);
            None
        }),
        row("wrong partition key", everywhere(DropReason::BadPkey), |setup| {
            setup.packet.bth.p_key = 0x8001;
            None
        }),
        row("wrong transport class", everywhere(DropReason::BadOpcodeForQp), |setup| {
            setup.packet.bth.opcode.0 |= 0x20;
            None
        }),
        row("opcode that nobody has", everywhere(DropReason::UnknownOpcode), |setup| {
            setup.packet.bth.opcode.0 |= 0xc0;
            None
        }),
        row("transport version 1", everywhere(DropReason::BadVersion), |setup| {
            Some(resealed(setup, |bytes| bytes[1] |= 1))
        }),
        row("bad ICRC", everywhere(DropReason::BadIcrc), |setup| {
            let mut bytes = setup.packet.build();
            *bytes.last_mut().unwrap() ^= 1;
            Some(bytes)
        }),
        row("bit error in the payload", everywhere(DropReason::BadIcrc), |setup| {
            let mut bytes = setup.packet.build();
            let at = bytes.len() - 10;
            bytes[at] ^= 0x10;
            Some(bytes)
        }),
        row("odd length", everywhere(DropReason::BadLength), |setup| {
            Some(resealed(setup, |bytes| bytes.push(0)))
        }),
        row("nothing but a BTH", everywhere(DropReason::Short), |setup| {
            Some(resealed(setup, |bytes| bytes.truncate(8)))
        }),
        row("stale PSN", [Acknowledged; 5], |setup| {
            setup.packet.bth.psn = Psn::new(START).sub(5);
            None
        }),
        row("PSN half a circle back", [Acknowledged; 5], |setup| {
            setup.packet.bth.psn = setup.bench.expected(Side::B).add(1 << 23);
            None
        }),
        row("far-future PSN", [Nak(0x60); 5], |setup| {
            setup.packet.bth.psn = setup.bench.expected(Side::B).add((1 << 23) - 1);
            None
        }),
        row("bad opcode sequence", [Nak(0x61), Nak(0x61), Nak(0x61), Nak(0x61), Acknowledged], |setup| {
            setup.packet.bth.opcode = match setup.packet.bth.opcode {
                Opcode::RC_RDMA_WRITE_MIDDLE => Opcode::RC_SEND_MIDDLE,
                Opcode::RC_RDMA_WRITE_LAST => Opcode::RC_SEND_LAST,
                _ => Opcode::RC_RDMA_WRITE_LAST,
            };
            None
        }),
        row("bad pad", [Nak(0x61), Nak(0x61), Nak(0x61), Nak(0x61), Acknowledged], |setup| {
            Some(resealed(setup, |bytes| bytes[1] ^= 0x30))
        }),
        row("bad key", reth(Nak(0x62)), |setup| {
            let rkey = RKey(setup.region.rkey.0 ^ 0x0100);
            let len = announced(setup);
            with_reth(setup, BASE, rkey, len);
            None
        }),
        row("revoked key", [Nak(0x62), Nak(0x62), Nak(0x62), Nak(0x62), Acknowledged], |setup| {
            let lkey = setup.region.lkey;
            setup.bench.host_mut(Side::B).engine.deregister(lkey).unwrap();
            None
        }),
        row("out of range, low", reth(Nak(0x62)), |setup| {
            let (rkey, len) = (setup.region.rkey, announced(setup));
            with_reth(setup, BASE - 1, rkey, len);
            None
        }),
        row("out of range, high", reth(Nak(0x62)), |setup| {
            let (rkey, len) = (setup.region.rkey, announced(setup));
            with_reth(setup, BASE + LEN as u64 - u64::from(len) + 1, rkey, len);
            None
        }),
        row("out of range, wrapping", reth(Nak(0x62)), |setup| {
            let (rkey, len) = (setup.region.rkey, announced(setup));
            with_reth(setup, 0_u64.wrapping_sub(u64::from(len)), rkey, len);
            None
        }),
        row("longer than any message", reth(Nak(0x61)), |setup| {
            let rkey = setup.region.rkey;
            with_reth(setup, BASE, rkey, 1 << 31 | 64);
            None
        }),
    ];
    for state in [QpState::Reset, QpState::Err] {
        let change: Change = if state == QpState::Reset {
            |setup| to_state(setup, QpState::Reset)
        } else {
            |setup| to_state(setup, QpState::Err)
        };
        rows.push(row("wrong state", everywhere(DropReason::BadState), change));
    }
    rows.push(Row {
        what: "read-only region",
        access: Access::REMOTE_READ | Access::LOCAL_WRITE,
        change: |_| None,
        outcome: [Nak(0x62), Skip, Skip, Nak(0x62), Skip],
    });
    rows
}

fn to_state(setup: &mut Setup, state: QpState) -> Option<Vec<u8>> {
    let (now, b) = (setup.bench.now, setup.bench.b);
    setup.bench.host_mut(Side::B).engine.modify_qp(now, b, &QpAttr::to_state(state)).unwrap();
    None
}

#[test]
fn refusal_matrix() {
    let mut cells = 0;
    for v6 in [false, true] {
        for row in rows() {
            for (place, outcome) in PLACES.into_iter().zip(row.outcome) {
                if matches!(outcome, Skip) {
                    continue;
                }
                cells += 1;
                one_cell(v6, &row, place, outcome);
            }
        }
    }
    assert!(cells > 200, "{cells} cells");
}

#[track_caller]
fn one_cell(v6: bool, row: &Row, place: Place, outcome: Outcome) {
    let what = format!("{}, {place:?}, IPv{}", row.what, if v6 { 6 } else { 4 });
    let mut setup = set_up(v6, place, row.access);
    let changed = (row.change)(&mut setup);
    let Setup { mut bench, memory, packet, .. } = setup;
    let bytes = changed.unwrap_or_else(|| packet.build());
    let expected_psn = bench.expected(Side::B);
    let state_before = bench.state(Side::B);
    let host_memory = bench.host(Side::B).read_memory(0, 1 << 16);
    let sent_before = bench.sent.len();
    let identification = Identification::Known { identification: 0, dont_fragment: true };
    let received = Received::whole(packet.path, identification, &bytes);
    let verdict = bench.deliver(Side::B, &received);
    let answers = bench.answers_since(sent_before, Side::B);
    assert_eq!(memory.to_vec(), [0x77; LEN], "{what}: the memory");
    crate::common::assert_same(&bench.host(Side::B).read_memory(0, 1 << 16), &host_memory, &what);
    assert_eq!(bench.expected(Side::B), expected_psn, "{what}: nothing was executed");
    let msn = u32::from(place == Place::Retransmitted);
    let nak = |syndrome, psn: Psn| vec![Answer::acknowledge(syndrome, psn.get(), msn)];
    match outcome {
        Drop(reason) => {
            assert_eq!(verdict, Verdict::Dropped(reason), "{what}");
            assert_eq!(answers, [], "{what}");
            assert_eq!(bench.counter(Side::B, reason.counter()), 1, "{what}: {}", reason.counter());
            assert_eq!(bench.state(Side::B), state_before, "{what}");
        }
        Nak(syndrome) => {
            assert_eq!(verdict, Verdict::Handled, "{what}");
            assert_eq!(answers, nak(syndrome, expected_psn), "{what}");
            let state = if syndrome == 0x60 { QpState::Rts } else { QpState::Err };
            assert_eq!(bench.state(Side::B), state, "{what}");
            let counters = bench.host(Side::B).engine.counters();
            assert_eq!(counters.resp_remote_access_errors, u64::from(syndrome == 0x62), "{what}");
            assert_eq!(counters.out_of_sequence, u64::from(syndrome == 0x60), "{what}");
        }
        Acknowledged => {
            assert_eq!(verdict, Verdict::Handled, "{what}");
            assert_eq!(answers, nak(0x1f, expected_psn.sub(1)), "{what}");
            assert_eq!(bench.counter(Side::B, "duplicate_request"), 1, "{what}");
            assert_eq!(bench.state(Side::B), QpState::Rts, "{what}");
        }
        Skip => {}
    }
}

/// The rows of the requester: answers that were never requested, in each state of its queue.
#[test]
fn refused_responses() {
    for v6 in [false, true] {
        for outstanding in [0_u32, 1, 3] {
            let mut setup = set_up(v6, Place::Only, ALL);
            let bench = &mut setup.bench;
            bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
            for wr_id in 0..u64::from(outstanding) {
                let write = bench.write(0);
                bench.post(wr_id, write, 0, 8);
            }
            bench.collect(Side::A);
            let memory = bench.host(Side::A).read_memory(0, 1 << 16);
            let at = |bench: &Bench, opcode, offset: u32| {
                bench.forge(Side::A, opcode, Psn::new(START).add(offset)).silent()
            };
            let (unsent, stale) = (DropReason::UnsentPsn, DropReason::StaleResponse);
            let never = 0xff_ffff;
            let read = |bench: &Bench, opcode, offset, payload: &[u8]| {
                at(bench, opcode, offset).aeth(0x1f, 1).payload(payload)
            };
            let rows = [
                (at(bench, Opcode::RC_ACKNOWLEDGE, outstanding).aeth(0x1f, 1), unsent),
                (at(bench, Opcode::RC_ACKNOWLEDGE, 0x10_0000).aeth(0x1f, 1), unsent),
                (at(bench, Opcode::RC_ACKNOWLEDGE, outstanding).aeth(0x60, 1), unsent),
                (at(bench, Opcode::RC_ACKNOWLEDGE, never).aeth(0x1f, 1), stale),
                (at(bench, Opcode::RC_ACKNOWLEDGE, never).aeth(0x60, 1), stale),
                (at(bench, Opcode::RC_ACKNOWLEDGE, never).aeth(0x62, 1), stale),
                (at(bench, Opcode::RC_ACKNOWLEDGE, never).aeth(0x25, 1), stale),
                (read(bench, Opcode::RC_RDMA_READ_RESPONSE_ONLY, outstanding, &[9; 8]), unsent),
                (read(bench, Opcode::RC_RDMA_READ_RESPONSE_FIRST, outstanding, &[9; MTU]), unsent),
                (read(bench, Opcode::RC_RDMA_READ_RESPONSE_LAST, never, &[9; 8]), stale),
                (at(bench, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, outstanding).payload(&[9; MTU]), unsent),
                (at(bench, Opcode::RC_ATOMIC_ACKNOWLEDGE, outstanding).aeth(0x1f, 1).atomic_ack(9), unsent),
                (at(bench, Opcode::CNP, 0).payload(&[0; 16]), DropReason::UnknownQpn),
            ];
            for (mut packet, reason) in rows {
                if reason == DropReason::UnknownQpn {
                    packet.bth.dest_qp = Qpn::new(0x80_0001);
                }
                let before = bench.counter(Side::A, reason.counter());
                let (verdict, answers) = bench.arrive(Side::A, &packet);
                assert_eq!(verdict, Verdict::Dropped(reason), "{outstanding}: {packet:?}");
                assert_eq!(answers, [], "{packet:?}");
                assert_eq!(bench.counter(Side::A, reason.counter()), before + 1);
                assert_eq!(bench.state(Side::A), QpState::Rts);
                assert_eq!(bench.ended(Side::A), []);
            }
            crate::common::assert_same(&bench.host(Side::A).read_memory(0, 1 << 16), &memory, "memory");
        }
    }
}

/// Misaligned atomics, over both address families.
#[test]
fn misaligned_atomics() {
    for v6 in [false, true] {
        for offset in 1..8 {
            let Setup { mut bench, memory, region, .. } = set_up(v6, Place::Only, ALL);
            let packet = bench.forge(Side::B, Opcode::RC_FETCH_ADD, Psn::new(START));
            let packet = packet.atomic(BASE + offset, region.rkey, 1, 0);
            assert_eq!(bench.arrive(Side::B, &packet).1, [Answer::acknowledge(0x61, START, 0)]);
            assert_eq!(bench.state(Side::B), QpState::Err);
            assert_eq!(memory.to_vec(), [0x77; LEN]);
        }
    }
}

/// Partition keys: the lower 15 bits must agree and one side must be a full member. Ours is 0xffff.
#[test]
fn partition_keys() {
    for (p_key, is_taken) in
        [(0xffff, true), (0x7fff, true), (0xfffe, false), (0x7ffe, false), (0, false), (0x8000, false)]
    {
        let mut setup = set_up(false, Place::Only, ALL);
        setup.packet.bth.p_key = p_key;
        let expected = if is_taken { Verdict::Handled } else { Verdict::Dropped(DropReason::BadPkey) };
        assert_eq!(setup.bench.arrive(Side::B, &setup.packet).0, expected, "{p_key:#x}");
    }
}
