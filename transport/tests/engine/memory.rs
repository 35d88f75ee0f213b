//! Memory regions: which access is allowed to which bytes (section 7 of the protocol description).

use std::sync::Arc;

use crate::common::{Answer, Bench, Forge, MTU, address, pattern, settings};
use roce_packet::{Opcode, Psn, Qpn};
use roce_sim::pair::{Settings, Side};
use roce_transport::{
    Access, Allowed, DestroyError, DropReason, Identification, KeyError, Memory, QpState, QpType, RKey,
    Received, RegionAttributes, RegionChange, RegisterError, SendOp, SendWr, Sge, TxSlot, Verdict, WcStatus,
    WordMemory,
};

const START: u32 = 0x1000;
const ALL: Access = Access::REMOTE.union(Access::LOCAL_WRITE);

fn small() -> Settings {
    let mut settings = settings();
    let capabilities = &mut settings.capabilities;
    (capabilities.max_send_wr, capabilities.max_recv_wr, capabilities.max_inline) = (2, 2, 0);
    settings
}

/// Creates a queue pair at B that receives from a peer that does not exist.
#[track_caller]
fn responder(bench: &mut Bench) {
    bench.b = bench.create_qp(Side::B, QpType::Rc, &small());
    let b = bench.b;
    bench.bring_up(Side::B, b, Qpn::new(0x77), &small(), QpState::Rtr);
}

#[track_caller]
fn register(bench: &mut Bench, addr: u64, memory: &Arc<WordMemory>, access: Access) -> RegionAttributes {
    let host = bench.host_mut(Side::B);
    host.engine.register(host.pd, addr, memory.clone(), access).expect("the region can be registered")
}

fn request(bench: &Bench, opcode: Opcode) -> Forge {
    bench.forge(Side::B, opcode, Psn::new(START))
}

const NAK_ACCESS: u8 = 0x62;
const NAK_INVALID: u8 = 0x61;

#[test]
fn registration_rules() {
    let mut bench = Bench::empty();
    let host = bench.host_mut(Side::B);
    let (pd, engine) = (host.pd, &mut host.engine);
    let memory = Arc::new(WordMemory::new(4096));
    let mut register = |addr, memory: &Arc<WordMemory>, access| {
        engine.register(pd, addr, memory.clone(), access).map(|region| {
            engine.deregister(region.lkey).unwrap();
            (region.addr, region.len)
        })
    };
    for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert_eq!(register(0, &memory, remote), Err(RegisterError::LocalWriteMissing));
        assert_eq!(register(0, &memory, remote | Access::LOCAL_WRITE), Ok((0, 4096)));
    }
    for alone in [Access::empty(), Access::LOCAL_WRITE, Access::REMOTE_READ, Access::MW_BIND] {
        assert_eq!(register(0, &memory, alone), Ok((0, 4096)));
    }
    assert_eq!(register(0, &Arc::new(WordMemory::new(0)), ALL), Err(RegisterError::Empty));
    let last = u64::MAX - 4095;
    assert_eq!(register(last, &memory, ALL), Ok((last, 4096)), "up to the last byte there is");
    let beyond = Err(RegisterError::AddressOverflow { addr: last + 1, len: 4096 });
    assert_eq!(register(last + 1, &memory, ALL), beyond);
    assert_eq!(register(last + 1, &memory, ALL | Access::ZERO_BASED), Ok((0, 4096)));
    let gone = engine.allocate_pd().unwrap();
    engine.deallocate_pd(gone).unwrap();
    let refused = engine.register(gone, 0, memory, ALL).unwrap_err();
    assert_eq!(refused, RegisterError::UnknownProtectionDomain);
}

/// A region registered after another one was revoked has another key. Both the number and the 8 bits of
/// variant differ from those of the last 255 keys.
#[test]
fn stale_keys_fail() {
    let mut bench = Bench::empty();
    let memory = Arc::new(WordMemory::new(4096));
    let mut keys: Vec<RKey> = Vec::new();
    for round in 0..600_usize {
        let region = register(&mut bench, 0x5000, &memory, ALL);
        assert_eq!(region.rkey.0, region.lkey.0);
        let recent = &keys[round.saturating_sub(255)..];
        assert!(
            recent.iter().all(|old| old.0 & 0xff != region.rkey.0 & 0xff),
            "a variant came back too soon"
        );
        keys.push(region.rkey);
        bench.host_mut(Side::B).engine.deregister(region.lkey).unwrap();
        let again = bench.host_mut(Side::B).engine.deregister(region.lkey);
        assert_eq!(again, Err(DestroyError::Key(KeyError::Unknown)));
    }
    // The same memory is registered again at the same address: all old keys are invalid.
    let region = register(&mut bench, 0x5000, &memory, ALL);
    for key in keys.into_iter().rev().take(50) {
        responder(&mut bench);
        let packet = request(&bench, Opcode::RC_RDMA_WRITE_ONLY).reth(0x5000, key, 8).payload(&[1; 8]);
        assert_eq!(bench.arrive(Side::B, &packet).1, [Answer::acknowledge(NAK_ACCESS, START, 0)]);
    }
    // The region's number is invalid with any other variant.
    for variant in 0..=255 {
        let key = RKey(region.rkey.0 & !0xff | variant);
        responder(&mut bench);
        let packet = request(&bench, Opcode::RC_RDMA_WRITE_ONLY).reth(0x5000, key, 8).payload(&[1; 8]);
        let expected = if key == region.rkey {
            Answer::acknowledge(0x1f, START, 1)
        } else {
            Answer::acknowledge(NAK_ACCESS, START, 0)
        };
        assert_eq!(bench.arrive(Side::B, &packet).1, [expected]);
    }
}

/// Addresses at which sums overflow or change their upper half.
const EDGES: [u64; 5] = [0, 1 << 32, 1 << 63, u64::MAX, 0x7000_0000_0000];

/// Returns whether `[va, va + len)` lies in the region, computed without overflow.
fn inside(region: &RegionAttributes, va: u64, len: u64) -> bool {
    let start = u128::from(region.addr);
    u128::from(va) >= start && u128::from(va) + u128::from(len) <= start + region.len as u128
}

fn grid(mut visit: impl FnMut(&mut Bench, &RegionAttributes, &Arc<WordMemory>, u64, u64)) {
    let mut bench = Bench::empty();
    let mut count = 0;
    for edge in EDGES {
        for len in [8_u64, 1024] {
            // Before the edge, across it, behind it.
            for base in [edge.wrapping_sub(len - 1), edge.wrapping_sub(len / 2), edge] {
                // Atomics require aligned memory, and so do the words of `WordMemory`.
                let base = base & !7;
                if base.checked_add(len - 1).is_none() {
                    continue;
                }
                let memory = Arc::new(WordMemory::from_bytes(&pattern(len as usize)));
                let region = register(&mut bench, base, &memory, ALL);
                let end = base.wrapping_add(len);
                let near = [base, end, edge, base.wrapping_add(8), end.wrapping_sub(8), 0, u64::MAX];
                let addresses =
                    near.iter().flat_map(|va| [-1_i64, 0, 1, -0x400].map(|by| va.wrapping_add_signed(by)));
                for va in addresses {
                    for length in [1, 8, 0x400, len - 1, len, len + 1, 1 << 31] {
                        visit(&mut bench, &region, &memory, va, length);
                        count += 1;
                    }
                }
                bench.host_mut(Side::B).engine.deregister(region.lkey).unwrap();
            }
        }
    }
    assert!(count > 4_000, "{count} cases");
}

/// The kernel's `mr_check_range` added address and length, which wraps for an address near the end.
#[test]
fn boundary_grid_of_writes() {
    grid(|bench, region, memory, va, len| {
        responder(bench);
        let payload = vec![0xee; (len as usize).min(MTU)];
        let opcode =
            if len as usize <= MTU { Opcode::RC_RDMA_WRITE_ONLY } else { Opcode::RC_RDMA_WRITE_FIRST };
        let packet = request(bench, opcode).reth(va, region.rkey, len as u32).payload(&payload);
        let (_, answers) = bench.arrive(Side::B, &packet);
        let mut expected = pattern(region.len);
        if inside(region, va, len) {
            let at = (va - region.addr) as usize;
            expected[at..at + payload.len()].copy_from_slice(&payload);
            let msn = u32::from(opcode == Opcode::RC_RDMA_WRITE_ONLY);
            assert_eq!(answers, [Answer::acknowledge(0x1f, START, msn)], "{va:#x} + {len:#x} in {region:?}");
        } else {
            assert_eq!(
                answers,
                [Answer::acknowledge(NAK_ACCESS, START, 0)],
                "{va:#x} + {len:#x} in {region:?}"
            );
        }
        crate::common::assert_same(&memory.to_vec(), &expected, "memory");
        memory.write(0, &pattern(region.len)).unwrap();
        forget(bench);
    });
}

fn forget(bench: &mut Bench) {
    let b = bench.b;
    bench.host_mut(Side::B).engine.destroy_qp(b).unwrap();
    bench.sent.clear();
}

fn payload_of(bytes: &[u8]) -> Vec<u8> {
    roce_packet::Datagram::parse(bytes, &[]).unwrap().payload().0.to_vec()
}

#[test]
fn boundary_grid_of_reads() {
    grid(|bench, region, _, va, len| {
        responder(bench);
        let packet = request(bench, Opcode::RC_RDMA_READ_REQUEST).reth(va, region.rkey, len as u32);
        let (_, answers) = bench.arrive(Side::B, &packet);
        if inside(region, va, len) {
            let bytes: Vec<u8> = bench.sent.iter().flat_map(|sent| payload_of(&sent.bytes)).collect();
            let at = (va - region.addr) as usize;
            crate::common::assert_same(&bytes, &pattern(region.len)[at..at + len as usize], "READ");
        } else {
            assert_eq!(
                answers,
                [Answer::acknowledge(NAK_ACCESS, START, 0)],
                "{va:#x} + {len:#x} in {region:?}"
            );
        }
        forget(bench);
    });
}

/// A READ that is repeated with another address or length gets only bytes of the original READ.
#[test]
fn boundary_grid_of_duplicate_reads() {
    grid(|bench, region, _, va, len| {
        responder(bench);
        let read = |va, len| request(bench, Opcode::RC_RDMA_READ_REQUEST).reth(va, region.rkey, len);
        let (original, packet) = (read(region.addr, 8), read(va, len as u32));
        assert_eq!(bench.arrive(Side::B, &original).1.len(), 1);
        bench.sent.clear();
        let (verdict, _) = bench.arrive(Side::B, &packet);
        if va == region.addr && len <= 8 {
            assert_eq!(verdict, Verdict::Handled);
            let bytes = payload_of(&bench.sent[0].bytes);
            assert_eq!(bytes, pattern(region.len)[..len as usize]);
        } else {
            assert_eq!(verdict, Verdict::Dropped(DropReason::DuplicateUnanswerable), "{va:#x} + {len:#x}");
            assert!(bench.sent.is_empty());
        }
        forget(bench);
    });
}

#[test]
fn boundary_grid_of_atomics() {
    grid(|bench, region, memory, va, len| {
        if len != 8 {
            return;
        }
        for opcode in [Opcode::RC_FETCH_ADD, Opcode::RC_COMPARE_SWAP, Opcode::RC_ATOMIC_WRITE] {
            responder(bench);
            let packet = match opcode {
                Opcode::RC_ATOMIC_WRITE => request(bench, opcode).reth(va, region.rkey, 8).payload(&[9; 8]),
                _ => request(bench, opcode).atomic(va, region.rkey, 1, 0),
            };
            let (_, answers) = bench.arrive(Side::B, &packet);
            let refused =
                if va % 8 != 0 { Some(NAK_INVALID) } else { (!inside(region, va, 8)).then_some(NAK_ACCESS) };
            match refused {
                Some(syndrome) => {
                    assert_eq!(answers, [Answer::acknowledge(syndrome, START, 0)], "{va:#x} in {region:?}");
                    crate::common::assert_same(&memory.to_vec(), &pattern(region.len), "memory");
                }
                None => assert_eq!(answers[0].syndrome, Some(0x1f), "{va:#x} in {region:?}"),
            }
            memory.write(0, &pattern(region.len)).unwrap();
            forget(bench);
        }
    });
}

/// An aligned address may refer to unaligned memory. Such an atomic is refused and changes nothing.
#[test]
fn atomics_on_memory_that_is_not_aligned() {
    for shift in 1..8 {
        let mut bench = Bench::empty();
        let memory = Arc::new(WordMemory::from_bytes(&pattern(64)));
        let region = register(&mut bench, 0x5000 + shift, &memory, ALL);
        responder(&mut bench);
        let packet = request(&bench, Opcode::RC_FETCH_ADD).atomic(0x5010, region.rkey, 1, 0);
        assert_eq!(bench.arrive(Side::B, &packet).1, [Answer::acknowledge(NAK_ACCESS, START, 0)]);
        assert_eq!(memory.to_vec(), pattern(64));
    }
}

#[test]
fn zero_length_requests_skip_the_key() {
    let bad = RKey(0x0bad_0000);
    for va in [0, 1, 1 << 63, u64::MAX] {
        let mut bench = Bench::empty();
        responder(&mut bench);
        let write = request(&bench, Opcode::RC_RDMA_WRITE_ONLY).reth(va, bad, 0);
        assert_eq!(bench.arrive(Side::B, &write).1, [Answer::acknowledge(0x1f, START, 1)]);
        let mut read = request(&bench, Opcode::RC_RDMA_READ_REQUEST).reth(va, bad, 0);
        read.bth.psn = Psn::new(START + 1);
        let answer = Answer {
            opcode: Opcode::RC_RDMA_READ_RESPONSE_ONLY,
            psn: START + 1,
            syndrome: Some(0x1f),
            msn: Some(2),
        };
        assert_eq!(bench.arrive(Side::B, &read).1, [answer]);
        assert_eq!(bench.arrive(Side::B, &read).1, [answer], "and again when it is repeated");
    }
}

/// Peers use offsets from the start of a zero-based region as addresses.
#[test]
fn zero_based_regions() {
    let mut bench = Bench::empty();
    let memory = Arc::new(WordMemory::from_bytes(&pattern(64)));
    let region = register(&mut bench, 0x5000, &memory, ALL | Access::ZERO_BASED);
    for (va, len, is_inside) in
        [(0, 64, true), (63, 1, true), (64, 1, false), (0, 65, false), (0x5000, 1, false)]
    {
        responder(&mut bench);
        let packet = request(&bench, Opcode::RC_RDMA_READ_REQUEST).reth(va, region.rkey, len);
        let answers = bench.arrive(Side::B, &packet).1;
        assert_eq!(answers[0].syndrome, Some(if is_inside { 0x1f } else { NAK_ACCESS }), "{va:#x} {len}");
    }
}

/// The owner's work requests require a region of their protection domain, LOCAL_WRITE where bytes are
/// written, and a region's key.
#[test]
fn local_keys() {
    let memory = Arc::new(WordMemory::from_bytes(&pattern(64)));
    let element = |region: &RegionAttributes| Sge { addr: region.addr, length: 8, lkey: region.lkey };
    let run = |make: fn(&mut Bench, &Arc<WordMemory>) -> RegionAttributes, is_read: bool| {
        let mut bench = Bench::rc();
        let region = make(&mut bench, &memory);
        let op = if is_read { bench.read(0) } else { bench.write(0) };
        let a = bench.a;
        bench.post_send(Side::A, a, &SendWr::new(1, op, &[element(&region)])).unwrap();
        bench.drive();
        bench.ended(Side::A)[0].1
    };
    let read_only: fn(&mut Bench, &Arc<WordMemory>) -> RegionAttributes = |bench, memory| {
        let host = bench.host_mut(Side::A);
        host.engine.register(host.pd, 0x5000, memory.clone(), Access::empty()).unwrap()
    };
    let other_pd: fn(&mut Bench, &Arc<WordMemory>) -> RegionAttributes = |bench, memory| {
        let engine = &mut bench.host_mut(Side::A).engine;
        let pd = engine.allocate_pd().unwrap();
        engine.register(pd, 0x5000, memory.clone(), Access::LOCAL_WRITE).unwrap()
    };
    let (success, protection) = (WcStatus::Success, WcStatus::LocalProtectionError);
    assert_eq!(run(read_only, false), success, "sending needs no right");
    assert_eq!(run(read_only, true), protection, "a READ writes here");
    assert_eq!(run(other_pd, false), protection);
    assert_eq!(run(other_pd, true), protection);
    assert_eq!(memory.to_vec(), pattern(64));
}

/// A region is deregistered while a request waits: the request fails, and the memory is not accessed.
#[test]
fn deregistered_between_post_and_send() {
    let mut bench = Bench::rc();
    let memory = Arc::new(WordMemory::new(64));
    let host = bench.host_mut(Side::A);
    let region = host.engine.register(host.pd, 0x5000, memory, Access::LOCAL_WRITE).unwrap();
    let element = Sge { addr: 0x5000, length: 8, lkey: region.lkey };
    let (a, write) = (bench.a, bench.write(0));
    bench.post_send(Side::A, a, &SendWr::new(1, write, &[element])).unwrap();
    bench.host_mut(Side::A).engine.deregister(region.lkey).unwrap();
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::LocalProtectionError)]);
    assert!(bench.sent.is_empty());
}

/// A changed region keeps its keys; the new rights, addresses and protection domain apply at once.
#[test]
fn changed_regions() {
    let mut bench = Bench::empty();
    let memory = Arc::new(WordMemory::from_bytes(&pattern(64)));
    let region = register(&mut bench, 0x5000, &memory, ALL);
    let probe = |bench: &mut Bench, va: u64| {
        responder(bench);
        let packet = request(bench, Opcode::RC_RDMA_WRITE_ONLY).reth(va, region.rkey, 8).payload(&[1; 8]);
        bench.arrive(Side::B, &packet).1[0].syndrome
    };
    let change = |bench: &mut Bench, change: RegionChange| {
        bench.host_mut(Side::B).engine.change_region(region.lkey, change)
    };
    assert_eq!(probe(&mut bench, 0x5000), Some(0x1f));
    let read = RegionChange { access: Some(Access::REMOTE_READ), ..RegionChange::default() };
    assert_eq!(change(&mut bench, read).unwrap().rkey, region.rkey);
    assert_eq!(probe(&mut bench, 0x5000), Some(NAK_ACCESS));

    let elsewhere: Arc<dyn Memory> = Arc::new(WordMemory::new(8));
    let moved = RegionChange { memory: Some((0x9000, elsewhere)), access: Some(ALL), pd: None };
    let attributes = change(&mut bench, moved).unwrap();
    assert_eq!((attributes.addr, attributes.len, attributes.lkey), (0x9000, 8, region.lkey));
    assert_eq!(probe(&mut bench, 0x5000), Some(NAK_ACCESS));
    assert_eq!(probe(&mut bench, 0x9000), Some(0x1f));

    // A refused change has no effect.
    let empty: Arc<dyn Memory> = Arc::new(WordMemory::new(0));
    let refused = RegionChange { memory: Some((0, empty)), ..RegionChange::default() };
    assert_eq!(change(&mut bench, refused).unwrap_err(), RegisterError::Empty.into());
    let refused = RegionChange { access: Some(Access::REMOTE_WRITE), ..RegionChange::default() };
    assert_eq!(change(&mut bench, refused).unwrap_err(), RegisterError::LocalWriteMissing.into());
    assert_eq!(probe(&mut bench, 0x9000), Some(0x1f));

    let host = bench.host_mut(Side::B);
    let (engine, old) = (&mut host.engine, host.pd);
    let pd = engine.allocate_pd().unwrap();
    let moved = |pd| RegionChange { pd: Some(pd), ..RegionChange::default() };
    engine.change_region(region.lkey, moved(pd)).unwrap();
    assert_eq!(engine.deallocate_pd(pd), Err(roce_transport::PdError::InUse { members: 1 }));
    assert_eq!(probe(&mut bench, 0x9000), Some(NAK_ACCESS));
    let engine = &mut bench.host_mut(Side::B).engine;
    engine.change_region(region.lkey, moved(old)).unwrap();
    engine.deallocate_pd(pd).unwrap();
    assert_eq!(
        engine.change_region(region.lkey, moved(pd)).unwrap_err(),
        RegisterError::UnknownProtectionDomain.into()
    );
    assert_eq!(probe(&mut bench, 0x9000), Some(0x1f));

    let engine = &mut bench.host_mut(Side::B).engine;
    engine.deregister(region.lkey).unwrap();
    assert_eq!(engine.change_region(region.lkey, moved(old)).unwrap_err(), KeyError::Unknown.into());
}

/// A message that has begun continues neither in the previous memory of its key nor in the new one.
#[test]
fn a_message_that_has_begun_does_not_go_on_after_a_change() {
    let mut bench = Bench::empty();
    let memory = Arc::new(WordMemory::new(4096));
    let region = register(&mut bench, 0x5000, &memory, ALL);
    responder(&mut bench);
    let first = request(&bench, Opcode::RC_RDMA_WRITE_FIRST)
        .reth(0x5000, region.rkey, 2 * MTU as u32)
        .payload(&[1; MTU]);
    bench.arrive(Side::B, &first);
    let other: Arc<dyn Memory> = Arc::new(WordMemory::new(4096));
    let change = RegionChange { memory: Some((0x5000, Arc::clone(&other))), ..RegionChange::default() };
    bench.host_mut(Side::B).engine.change_region(region.lkey, change).unwrap();
    let last = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_LAST, Psn::new(START + 1)).payload(&[2; MTU]);
    assert_eq!(bench.arrive(Side::B, &last).1[0].syndrome, Some(NAK_ACCESS));
    assert!(memory.to_vec()[MTU..].iter().all(|byte| *byte == 0));
    let mut bytes = [9; 8];
    other.read(MTU, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

/// A protection domain cannot be deallocated while it has members.
#[test]
fn protection_domains_are_not_removed_under_their_members() {
    let mut bench = Bench::rc();
    let host = bench.host_mut(Side::A);
    let (pd, lkey) = (host.pd, host.region.lkey);
    let engine = &mut host.engine;
    // One region and one queue pair.
    assert_eq!(engine.deallocate_pd(pd), Err(roce_transport::PdError::InUse { members: 2 }));
    engine.deregister(lkey).unwrap();
    assert_eq!(engine.deallocate_pd(pd), Err(roce_transport::PdError::InUse { members: 1 }));
    let a = bench.a;
    let engine = &mut bench.host_mut(Side::A).engine;
    engine.destroy_qp(a).unwrap();
    engine.deallocate_pd(pd).unwrap();
    assert_eq!(engine.deallocate_pd(pd), Err(roce_transport::PdError::Unknown));
}

/// Operands are big-endian on the wire and host-endian in memory.
#[test]
fn byte_order_of_atomics() {
    let mut bench = Bench::rc();
    let value = 0x0102_0304_0506_0708_u64;
    bench.host_mut(Side::B).write_memory(0, &value.to_ne_bytes());
    let add = bench.fetch_add(0, 0x10);
    bench.post(1, add, 64, 8);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.host(Side::A).read_memory(64, 8), value.to_ne_bytes());
    assert_eq!(bench.host(Side::B).read_memory(0, 8), (value + 0x10).to_ne_bytes());
    let request = bench.sent.iter().find(|sent| sent.opcode == Opcode::RC_FETCH_ADD).unwrap();
    assert_eq!(request.bytes[24..32], [0, 0, 0, 0, 0, 0, 0, 0x10], "AtomicETH");
    let answer = bench.sent.iter().find(|sent| sent.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE).unwrap();
    assert_eq!(answer.bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8], "AtomicAckETH");
}

/// FETCH ADD wraps; COMPARE SWAP without a match changes nothing.
#[test]
fn values_of_atomics() {
    let rows = [
        (u64::MAX, None, 1, 0),
        (1 << 63, None, 1 << 63, 0),
        (5, Some(5), 9, 9),
        (5, Some(4), 9, 5),
        (0, Some(0), u64::MAX, u64::MAX),
    ];
    for (before, compare, operand, after) in rows {
        let mut bench = Bench::rc();
        bench.host_mut(Side::B).write_memory(8, &u64::to_ne_bytes(before));
        let (remote_addr, rkey) = (address(8), bench.host(Side::B).rkey());
        let op = match compare {
            Some(compare) => SendOp::CompareSwap { remote_addr, rkey, compare, swap: operand },
            None => SendOp::FetchAdd { remote_addr, rkey, add: operand },
        };
        bench.post(1, op, 64, 8);
        bench.drive();
        assert_eq!(bench.host(Side::A).read_memory(64, 8), u64::to_ne_bytes(before));
        assert_eq!(bench.host(Side::B).read_memory(8, 8), u64::to_ne_bytes(after));
    }
}

/// Lets A read from this region, and returns the request packet, which a network may deliver again.
fn read_once(bench: &mut Bench, rkey: RKey) -> Vec<u8> {
    let read = SendOp::Read { remote_addr: 0x5000, rkey };
    bench.post(1, read, 0, 4 * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    let request = bench.sent.iter().find(|sent| sent.opcode == Opcode::RC_RDMA_READ_REQUEST);
    request.expect("a request").bytes.clone()
}

/// Regression: a late copy of an answered READ failed the queue pair, although the peer has the data and may
/// have allowed that the key is revoked. Nor is memory read that the key covers only since.
#[test]
fn a_late_copy_of_a_read_without_its_key_is_dropped() {
    for is_revoked in [true, false] {
        let mut bench = Bench::rc();
        let memory = Arc::new(WordMemory::from_bytes(&pattern(4 * MTU)));
        let region = register(&mut bench, 0x5000, &memory, ALL);
        let request = read_once(&mut bench, region.rkey);
        let engine = &mut bench.host_mut(Side::B).engine;
        if is_revoked {
            engine.deregister(region.lkey).unwrap();
        } else {
            let other: Arc<dyn Memory> = Arc::new(WordMemory::new(4 * MTU));
            let change = RegionChange { memory: Some((0x5000, other)), ..RegionChange::default() };
            engine.change_region(region.lkey, change).unwrap();
        }
        let (path, before) = (bench.path(Side::A), bench.sent.len());
        assert_eq!(bench.inject(Side::B, path, &request), Verdict::Handled);
        assert!(bench.answers_since(before, Side::B).is_empty());
        assert_eq!((bench.state(Side::A), bench.state(Side::B)), (QpState::Rts, QpState::Rts));
        let write = bench.write(0);
        bench.post(2, write, 0, 8);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(2, WcStatus::Success)]);
    }
}

/// Regression: a READ response went on with the memory of another binding.
#[test]
fn a_read_does_not_continue_under_another_binding() {
    let mut bench = Bench::rc();
    let memory = Arc::new(WordMemory::from_bytes(&[1; 4 * MTU]));
    let region = register(&mut bench, 0x5000, &memory, ALL);
    responder(&mut bench);
    let request = request(&bench, Opcode::RC_RDMA_READ_REQUEST).reth(0x5000, region.rkey, 4 * MTU as u32);
    let (now, bytes) = (bench.now, request.build());
    let engine = &mut bench.host_mut(Side::B).engine;
    let received = Received::whole(request.path, Identification::Unknown { hint: 0 }, &bytes);
    let verdict = engine.handle(now, &received);
    let mut buffer = [0; 1024];
    assert!(engine.poll_transmit(now, &mut TxSlot::new(&mut buffer), Allowed::All).is_some());
    let other: Arc<dyn Memory> = Arc::new(WordMemory::from_bytes(&[2; 4 * MTU]));
    let change = RegionChange { memory: Some((0x5000, other)), ..RegionChange::default() };
    engine.change_region(region.lkey, change).unwrap();
    bench.verdicts.push((Side::B, verdict));
    bench.collect(Side::B);
    let answers: Vec<_> = bench.answers_since(0, Side::B).iter().map(|answer| answer.syndrome).collect();
    assert_eq!(answers, [Some(NAK_ACCESS)]);
}
