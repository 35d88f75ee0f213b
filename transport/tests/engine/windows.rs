//! Memory windows and remote invalidation (section 7 of the protocol description).

use std::sync::Arc;

use crate::common::{Answer, Bench, MTU, address, settings};
use roce_packet::{Opcode, Psn, Qpn};
use roce_sim::pair::{Settings, Side};
use roce_transport::{
    Access, DestroyError, KeyError, QpAttr, QpState, QpType, RKey, SendFlags, SendOp, SendWr, WcFlags,
    WcStatus, WindowBinding, WindowType, WordMemory,
};

const START: u32 = 0x1000;
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

fn window(bench: &mut Bench, window_type: WindowType) -> RKey {
    let host = bench.host_mut(Side::B);
    host.engine.allocate_window(host.pd, window_type).expect("there is room")
}

fn binding(bench: &Bench, offset: usize, len: usize, access: Access) -> WindowBinding {
    WindowBinding { region: bench.host(Side::B).region.lkey, addr: address(offset), len, access }
}

fn bind1(bench: &mut Bench, window: RKey, binding: &WindowBinding) -> Result<RKey, KeyError> {
    let host = bench.host_mut(Side::B);
    host.engine.bind_window(host.pd, window, binding)
}

/// Binds a type 2 window by a work request on B's queue pair.
#[track_caller]
fn bind2(bench: &mut Bench, window: RKey, new_rkey: RKey, binding: WindowBinding) -> WcStatus {
    let b = bench.b;
    let op = SendOp::BindWindow { window, new_rkey, binding };
    bench.post_send(Side::B, b, &SendWr::new(70, op, &[])).unwrap();
    bench.collect(Side::B);
    bench.ended(Side::B)[0].1
}

/// Returns the syndrome with which B answers a WRITE of 8 bytes. A refusal moves B's queue pair to ERR.
#[track_caller]
fn probe(bench: &mut Bench, va: u64, rkey: RKey) -> u8 {
    let psn = bench.expected(Side::B);
    let packet = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_ONLY, psn).reth(va, rkey, 8).payload(&[1; 8]);
    bench.arrive(Side::B, &packet).1[0].syndrome.unwrap()
}

/// Replaces B's queue pair with a new connected one for the next probe.
#[track_caller]
fn fresh(bench: &mut Bench) {
    bench.b = bench.create_qp(Side::B, QpType::Rc, &settings());
    let (a, b) = (bench.a, bench.b);
    bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
}

const OPEN: u8 = 0x1f;
const CLOSED: u8 = 0x62;

#[test]
fn type_1_is_bound_by_verb_and_changes_its_key() {
    let mut bench = Bench::rc();
    let unbound = window(&mut bench, WindowType::Type1);
    assert_eq!(probe(&mut bench, address(0), unbound), CLOSED);
    let here = binding(&bench, 64, 16, REMOTE);
    let first = bind1(&mut bench, unbound, &here).unwrap();
    assert_ne!(first, unbound);
    // Every queue pair of the protection domain may use the window, within its range.
    for _ in 0..2 {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, address(64), first), OPEN);
        assert_eq!(probe(&mut bench, address(72), first), OPEN);
    }
    for offset in [63, 73, 56, 80] {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, address(offset), first), CLOSED, "{offset}");
    }
    // The window is bound again to another range: the old key is invalid.
    let there = binding(&bench, 512, 8, REMOTE);
    let second = bind1(&mut bench, first, &there).unwrap();
    fresh(&mut bench);
    assert_eq!(probe(&mut bench, address(512), second), OPEN);
    assert_eq!(probe(&mut bench, address(64), first), CLOSED);
    assert_eq!(bind1(&mut bench, first, &there), Err(KeyError::Unknown));
    // A length of 0 unbinds.
    let nowhere = binding(&bench, 0, 0, REMOTE);
    let third = bind1(&mut bench, second, &nowhere).unwrap();
    for key in [second, third] {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, address(512), key), CLOSED);
    }
}

#[test]
fn type_1_is_bound_by_a_work_request_under_its_next_key() {
    let mut bench = Bench::rc();
    let unbound = window(&mut bench, WindowType::Type1);
    let here = binding(&bench, 64, 16, REMOTE);
    // Only a type 2 window accepts a key that its owner chooses.
    let chosen = RKey(unbound.0 ^ 0x40);
    assert_eq!(bind2(&mut bench, unbound, chosen, here), WcStatus::MemoryWindowBindError);
    fresh(&mut bench);
    let first = unbound.next_variant();
    assert_eq!(bind2(&mut bench, unbound, first, here), WcStatus::Success);
    // Every queue pair may use the window, not only the one that bound it.
    for _ in 0..2 {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, address(64), first), OPEN);
    }
    let nowhere = binding(&bench, 0, 0, Access::empty());
    assert_eq!(bind2(&mut bench, first, first.next_variant(), nowhere), WcStatus::Success);
    for key in [first, first.next_variant()] {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, address(64), key), CLOSED);
    }
}

#[test]
fn window_rights_bound_what_peers_may_do() {
    for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let mut bench = Bench::rc();
        let unbound = window(&mut bench, WindowType::Type1);
        let here = binding(&bench, 0, 64, right);
        let key = bind1(&mut bench, unbound, &here).unwrap();
        let rows = [
            (Opcode::RC_RDMA_READ_REQUEST, Access::REMOTE_READ),
            (Opcode::RC_RDMA_WRITE_ONLY, Access::REMOTE_WRITE),
            (Opcode::RC_FETCH_ADD, Access::REMOTE_ATOMIC),
        ];
        for (opcode, needed) in rows {
            fresh(&mut bench);
            let forge = bench.forge(Side::B, opcode, Psn::new(START));
            let packet = match opcode {
                Opcode::RC_FETCH_ADD => forge.atomic(address(0), key, 1, 0),
                Opcode::RC_RDMA_WRITE_ONLY => forge.reth(address(0), key, 8).payload(&[1; 8]),
                _ => forge.reth(address(0), key, 8),
            };
            let expected = if needed == right { OPEN } else { CLOSED };
            assert_eq!(bench.arrive(Side::B, &packet).1[0].syndrome, Some(expected), "{right:?} {opcode}");
        }
    }
}

/// A bind is refused for a region without MW_BIND, without LOCAL_WRITE below a window with remote writes, or
/// of another protection domain. It is also refused for a range outside the region.
#[test]
fn binds_that_are_refused() {
    let mut bench = Bench::rc();
    let memory = Arc::new(WordMemory::new(4096));
    let host = bench.host_mut(Side::B);
    let (pd, engine) = (host.pd, &mut host.engine);
    let mut region = |pd, access| engine.register(pd, 0x5000, memory.clone(), access).unwrap().lkey;
    let no_bind = region(pd, Access::LOCAL_WRITE);
    let read_only = region(pd, Access::MW_BIND);
    let other = engine_pd(&mut bench);
    let engine = &mut bench.host_mut(Side::B).engine;
    let foreign = engine.register(other, 0x5000, memory, Access::LOCAL_WRITE | Access::MW_BIND).unwrap().lkey;
    let own = bench.host(Side::B).region.lkey;
    let end = address(1 << 21);
    let rows = [
        (no_bind, 0x5000, 8, Access::REMOTE_READ, KeyError::PermissionDenied),
        (read_only, 0x5000, 8, Access::REMOTE_WRITE, KeyError::PermissionDenied),
        (read_only, 0x5000, 8, Access::REMOTE_ATOMIC, KeyError::PermissionDenied),
        (foreign, 0x5000, 8, Access::REMOTE_READ, KeyError::WrongProtectionDomain),
        (roce_transport::LKey(1), 0x5000, 8, Access::REMOTE_READ, KeyError::Unknown),
        (own, address(0) - 1, 8, Access::REMOTE_READ, KeyError::OutOfRange),
        (own, end - 7, 8, Access::REMOTE_READ, KeyError::OutOfRange),
        (own, end, 8, Access::REMOTE_READ, KeyError::OutOfRange),
        (own, u64::MAX - 3, 8, Access::REMOTE_READ, KeyError::OutOfRange),
        (own, u64::MAX, usize::MAX, Access::REMOTE_READ, KeyError::OutOfRange),
        (own, address(0), usize::MAX, Access::REMOTE_READ, KeyError::OutOfRange),
    ];
    for (region, addr, len, access, expected) in rows {
        let key = window(&mut bench, WindowType::Type1);
        let binding = WindowBinding { region, addr, len, access };
        assert_eq!(bind1(&mut bench, key, &binding), Err(expected), "{binding:?}");
        // The window is unchanged: its key is valid and the window can be bound.
        let here = self::binding(&bench, 0, 8, REMOTE);
        assert!(bind1(&mut bench, key, &here).is_ok());
        // The equivalent work request fails with a bind error.
        let key = window(&mut bench, WindowType::Type2);
        fresh(&mut bench);
        let status = bind2(&mut bench, key, key.next_variant(), binding);
        assert_eq!(status, WcStatus::MemoryWindowBindError, "{binding:?}");
        assert_eq!(bench.state(Side::B), QpState::Err);
    }
    // A window that permits only READs requires only MW_BIND of the region.
    let key = window(&mut bench, WindowType::Type1);
    let here = WindowBinding { region: read_only, addr: 0x5000, len: 8, access: Access::REMOTE_READ };
    assert!(bind1(&mut bench, key, &here).is_ok());
    // The verb binds type 1. The work request, with a key that the owner chooses, binds type 2.
    let key = window(&mut bench, WindowType::Type2);
    assert_eq!(bind1(&mut bench, key, &here), Err(KeyError::PermissionDenied));
    let key = window(&mut bench, WindowType::Type1);
    fresh(&mut bench);
    assert_eq!(bind2(&mut bench, key, RKey(key.0 ^ 0x40), here), WcStatus::MemoryWindowBindError);
    let key = window(&mut bench, WindowType::Type2);
    fresh(&mut bench);
    let nothing = WindowBinding { len: 0, ..here };
    assert_eq!(bind2(&mut bench, key, key.next_variant(), nothing), WcStatus::MemoryWindowBindError);
    // The window still has its key, although its owner may expect the new one.
    let engine = &mut bench.host_mut(Side::B).engine;
    assert_eq!(engine.window_key(key.next_variant()), Ok(key));
    assert_eq!(engine.window_key(RKey(key.0 ^ 0x8000_0000)), Err(KeyError::Unknown));
    assert_eq!(engine.window_key(RKey(read_only.0)), Err(KeyError::Unknown));
}

fn engine_pd(bench: &mut Bench) -> roce_transport::PdId {
    bench.host_mut(Side::B).engine.allocate_pd().unwrap()
}

#[test]
fn type_2_belongs_to_one_queue_pair() {
    let mut bench = Bench::rc();
    let owner = bench.b;
    let unbound = window(&mut bench, WindowType::Type2);
    let key = unbound.next_variant();
    let here = binding(&bench, 0, 64, REMOTE);
    assert_eq!(bind2(&mut bench, unbound, key, here), WcStatus::Success);
    assert_eq!(probe(&mut bench, address(0), key), OPEN);
    fresh(&mut bench);
    assert_eq!(probe(&mut bench, address(0), key), CLOSED, "another queue pair");
    // A bound window must be invalidated before it is bound again, and only the variant may change.
    bench.b = owner;
    let stranger = RKey(key.0 ^ 0x0100_0000);
    for (old, new) in [(key, key.next_variant()), (key, stranger)] {
        fresh(&mut bench);
        assert_eq!(bind2(&mut bench, old, new, here), WcStatus::MemoryWindowBindError);
    }
    // The owner's local invalidate request closes the window.
    bench.b = owner;
    let invalidate = SendOp::LocalInvalidate { rkey: key };
    bench.post_send(Side::B, owner, &SendWr::new(71, invalidate, &[])).unwrap();
    bench.collect(Side::B);
    assert_eq!(bench.ended(Side::B), [(71, WcStatus::Success)]);
    // The window can then be bound again under another variant.
    let there = binding(&bench, 512, 64, REMOTE);
    assert_eq!(bind2(&mut bench, key, key.next_variant(), there), WcStatus::Success);
    assert_eq!(probe(&mut bench, address(512), key.next_variant()), OPEN);
    assert_eq!(probe(&mut bench, address(512), key), CLOSED);
}

#[test]
fn local_invalidate_refuses_what_it_must() {
    let mut bench = Bench::rc();
    let owner = bench.b;
    let here = binding(&bench, 0, 64, REMOTE);
    let unbound = window(&mut bench, WindowType::Type2);
    let type_1 = window(&mut bench, WindowType::Type1);
    let type_1 = bind1(&mut bench, type_1, &here).unwrap();
    let foreign = window(&mut bench, WindowType::Type2);
    assert_eq!(bind2(&mut bench, foreign, foreign, here), WcStatus::Success);
    let region = bench.host(Side::B).rkey();
    for (what, rkey) in
        [("unbound", unbound), ("type 1", type_1), ("of another", foreign), ("region", region)]
    {
        fresh(&mut bench);
        let b = bench.b;
        let wr = SendWr::new(71, SendOp::LocalInvalidate { rkey }, &[]).with_flags(SendFlags::empty());
        bench.post_send(Side::B, b, &wr).unwrap();
        bench.collect(Side::B);
        assert_eq!(bench.ended(Side::B), [(71, WcStatus::LocalQpOperationError)], "{what}");
        assert_eq!(bench.state(Side::B), QpState::Err);
    }
    bench.b = owner;
    assert_eq!(probe(&mut bench, address(0), foreign), OPEN, "still bound");
    fresh(&mut bench);
    assert_eq!(probe(&mut bench, address(0), type_1), OPEN, "still bound");
}

/// ```text
/// B  binds a window, A writes through it
/// A  SEND with invalidate -> B   completion: WITH_INV and the key
/// A  WRITE                ->     NAK 0x62
/// ```
#[test]
fn send_with_invalidate_closes_a_type_2_window() {
    for len in [0, 8, 3 * MTU] {
        let mut bench = Bench::rc();
        let unbound = window(&mut bench, WindowType::Type2);
        let (key, here) = (unbound.next_variant(), binding(&bench, 0, 64, REMOTE));
        assert_eq!(bind2(&mut bench, unbound, key, here), WcStatus::Success);
        bench.receive(1, 4096, 4096);
        let write = SendOp::Write { remote_addr: address(0), rkey: key };
        bench.post(1, write, 0, 8);
        bench.post(2, SendOp::SendWithInvalidate(key), 0, len);
        bench.post(3, write, 0, 8);
        bench.drive();
        let statuses = [WcStatus::Success, WcStatus::Success, WcStatus::RemoteAccessError];
        assert_eq!(bench.ended(Side::A).iter().map(|one| one.1).collect::<Vec<_>>(), statuses);
        let wc = bench.completions(Side::B)[0];
        assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (1, WcStatus::Success, len));
        assert!(wc.flags.contains(WcFlags::WITH_INV));
        assert_eq!(wc.invalidated, key);
    }
}

/// Invalidating a bad key: the message arrives, the receive completes with an error, and the peer is not
/// notified.
#[test]
fn send_with_invalidate_of_bad_keys() {
    let make = |bench: &mut Bench| {
        let here = binding(bench, 0, 64, REMOTE);
        let unbound = window(bench, WindowType::Type2);
        let type_1 = window(bench, WindowType::Type1);
        let type_1 = bind1(bench, type_1, &here).unwrap();
        let foreign = window(bench, WindowType::Type2);
        assert_eq!(bind2(bench, foreign, foreign, here), WcStatus::Success);
        [RKey(0x0bad_0000), unbound, type_1, foreign, bench.host(Side::B).rkey()]
    };
    for index in 0..5 {
        let mut bench = Bench::rc();
        let keys = make(&mut bench);
        let settings = Settings { timeout: 8, retry_cnt: 1, ..settings() };
        (bench.a, bench.b) = bench.connect_with(QpType::Rc, &settings);
        bench.receive(1, 4096, 64);
        bench.receive(2, 4096, 64);
        bench.post(1, SendOp::SendWithInvalidate(keys[index]), 0, 8);
        bench.drive();
        let expected = [(1, WcStatus::RemoteInvalidRequestError), (2, WcStatus::WrFlushError)];
        assert_eq!(bench.ended(Side::B), expected, "key {index}");
        assert_eq!(bench.state(Side::B), QpState::Err);
        assert_eq!(bench.trace(Side::B), [], "no answer");
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::RetryExceededError)]);
    }
}

/// The columns "Bind MW" and "Local Invalidate" of the table in section 5.9, and its row "Bind MW". With the
/// fence flag, a bind and an invalidation wait only for earlier READs and atomics. B posts the requests; A
/// observes their effect through the window.
///
/// ```text
/// B  READ ->                        (on its way)
/// B  binds, fenced                  not yet: a WRITE of A through the window is refused
///    <- response A                  now
/// ```
#[test]
fn fences_of_bind_and_local_invalidate() {
    let first_of = |bench: &Bench, name: &str, spare: RKey| {
        let (remote_addr, rkey) = (address(0), bench.host(Side::A).rkey());
        match name {
            "SEND" => SendOp::Send,
            "WRITE" => SendOp::Write { remote_addr, rkey },
            "READ" => SendOp::Read { remote_addr, rkey },
            "FETCH ADD" => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            "COMPARE SWAP" => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
            _ => {
                SendOp::BindWindow { window: spare, new_rkey: spare, binding: binding(bench, 64, 8, REMOTE) }
            }
        }
    };
    for name in ["SEND", "WRITE", "READ", "FETCH ADD", "COMPARE SWAP", "Bind MW"] {
        for invalidates in [false, true] {
            for fenced in [false, true] {
                for at_the_end in [false, true] {
                    let what = format!("{name}, invalidates: {invalidates}, fenced: {fenced}");
                    let mut bench = Bench::rc();
                    let (unbound, spare) =
                        (window(&mut bench, WindowType::Type2), window(&mut bench, WindowType::Type2));
                    let (key, here) = (unbound.next_variant(), binding(&bench, 0, 64, REMOTE));
                    if invalidates {
                        assert_eq!(bind2(&mut bench, unbound, key, here), WcStatus::Success);
                    }
                    let (a, b) = (bench.a, bench.b);
                    bench.post_recv(Side::A, a, 1, 8192, 64).unwrap();
                    let element = bench.host(Side::B).memory_range(4096, 8);
                    let op = first_of(&bench, name, spare);
                    let elements = if name == "Bind MW" { &[][..] } else { &[element] };
                    bench.post_send(Side::B, b, &SendWr::new(1, op, elements)).unwrap();
                    let second = if invalidates {
                        SendOp::LocalInvalidate { rkey: key }
                    } else {
                        SendOp::BindWindow { window: unbound, new_rkey: key, binding: here }
                    };
                    let mut flags = SendFlags::SIGNALED;
                    flags.set(SendFlags::FENCE, fenced);
                    bench.post_send(Side::B, b, &SendWr::new(2, second, &[]).with_flags(flags)).unwrap();
                    bench.collect(Side::B);
                    let mut done = !(fenced && ["READ", "FETCH ADD", "COMPARE SWAP"].contains(&name));
                    if at_the_end {
                        bench.drive();
                        let success = WcStatus::Success;
                        assert_eq!(bench.ended(Side::B), [(1, success), (2, success)], "{what}");
                        done = true;
                    }
                    let expected = if done == invalidates { CLOSED } else { OPEN };
                    assert_eq!(probe(&mut bench, address(0), key), expected, "{what}, end: {at_the_end}");
                }
            }
        }
    }
}

/// The row "Bind MW" for requests on the wire. No request waits for a bind, with or without a fence, and
/// every later request finds the bind done.
#[test]
fn nothing_waits_for_a_binding() {
    for fenced in [false, true] {
        let mut bench = Bench::rc();
        let unbound = window(&mut bench, WindowType::Type2);
        let (key, here) = (unbound.next_variant(), binding(&bench, 0, 64, REMOTE));
        let (a, b) = (bench.a, bench.b);
        bench.post_recv(Side::A, a, 1, 8192, 64).unwrap();
        let (remote_addr, rkey) = (address(0), bench.host(Side::A).rkey());
        let element = bench.host(Side::B).memory_range(4096, 8);
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::FENCE, fenced);
        let bind = SendOp::BindWindow { window: unbound, new_rkey: key, binding: here };
        bench.post_send(Side::B, b, &SendWr::new(0, bind, &[])).unwrap();
        let write = SendOp::Write { remote_addr, rkey };
        let kinds = [SendOp::Send, write, SendOp::FetchAdd { remote_addr, rkey, add: 1 }];
        for (wr_id, op) in (1..).zip(kinds) {
            bench.post_send(Side::B, b, &SendWr::new(wr_id, op, &[element]).with_flags(flags)).unwrap();
        }
        bench.collect(Side::B);
        let sent: Vec<u8> = bench.trace(Side::B).iter().map(|(opcode, _)| opcode.0).collect();
        assert_eq!(sent, [0x04, 0x0a, 0x14], "fenced: {fenced}");
        assert_eq!(probe(&mut bench, address(0), key), OPEN);
        bench.drive();
        let success = WcStatus::Success;
        assert_eq!(bench.ended(Side::B), [(0, success), (1, success), (2, success), (3, success)]);
    }
}

#[test]
fn regions_stay_while_windows_are_bound() {
    let mut bench = Bench::rc();
    let lkey = bench.host(Side::B).region.lkey;
    let here = binding(&bench, 0, 64, REMOTE);
    let type_1 = window(&mut bench, WindowType::Type1);
    let type_1 = bind1(&mut bench, type_1, &here).unwrap();
    let type_2 = window(&mut bench, WindowType::Type2);
    assert_eq!(bind2(&mut bench, type_2, type_2.next_variant(), here), WcStatus::Success);
    let deregister = |bench: &mut Bench| bench.host_mut(Side::B).engine.deregister(lkey);
    assert_eq!(deregister(&mut bench), Err(DestroyError::WindowsBound { windows: 2 }));
    assert_eq!(probe(&mut bench, address(0), type_1), OPEN, "a refusal changes nothing");
    bench.host_mut(Side::B).engine.deallocate_window(type_1).unwrap();
    assert_eq!(deregister(&mut bench), Err(DestroyError::WindowsBound { windows: 1 }));
    // Destroying the queue pair also frees its window.
    let b = bench.b;
    bench.host_mut(Side::B).engine.destroy_qp(b).unwrap();
    assert_eq!(deregister(&mut bench), Ok(()));
    let unknown = Err(DestroyError::Key(KeyError::Unknown));
    assert_eq!(bench.host_mut(Side::B).engine.deallocate_window(type_1), unknown);
}

#[test]
fn reset_of_the_owner_unbinds() {
    let mut bench = Bench::rc();
    let here = binding(&bench, 0, 64, REMOTE);
    let key = window(&mut bench, WindowType::Type2);
    assert_eq!(bind2(&mut bench, key, key, here), WcStatus::Success);
    let (now, a, b) = (bench.now, bench.a, bench.b);
    bench.host_mut(Side::B).engine.modify_qp(now, b, &QpAttr::to_state(QpState::Reset)).unwrap();
    bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
    assert_eq!(probe(&mut bench, address(0), key), CLOSED);
}

/// Peers use offsets from the start of a zero-based window as addresses.
#[test]
fn zero_based_windows() {
    let mut bench = Bench::rc();
    let unbound = window(&mut bench, WindowType::Type1);
    let here = binding(&bench, 512, 64, REMOTE | Access::ZERO_BASED);
    let key = bind1(&mut bench, unbound, &here).unwrap();
    for (va, expected) in [(0, OPEN), (56, OPEN), (57, CLOSED), (address(512), CLOSED)] {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, va, key), expected, "{va:#x}");
    }
    assert_eq!(bench.host(Side::B).read_memory(512, 8), [1; 8]);
    assert_eq!(bench.host(Side::B).read_memory(0, 8), [0; 8]);
}

/// A WRITE that began through one binding does not continue through the next one, even if the owner reuses
/// the key.
///
/// ```text
/// A  WRITE First -> B   into [0, 1024)
///                       B invalidates and binds [4096, 4104) under the same key
/// A  WRITE Last  ->     NAK 0x62
/// ```
#[test]
fn a_write_does_not_outlive_its_binding() {
    let mut bench = Bench::rc();
    let here = binding(&bench, 0, 1024, REMOTE);
    let key = window(&mut bench, WindowType::Type2);
    assert_eq!(bind2(&mut bench, key, key, here), WcStatus::Success);
    let first = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_FIRST, Psn::new(START));
    let first = first.reth(address(0), key, 300).payload(&[1; MTU]);
    assert_eq!(bench.arrive(Side::B, &first).1, [Answer::acknowledge(0x1f, START, 0)]);
    let b: Qpn = bench.b;
    bench.post_send(Side::B, b, &SendWr::new(71, SendOp::LocalInvalidate { rkey: key }, &[])).unwrap();
    bench.collect(Side::B);
    bench.ended(Side::B);
    let there = binding(&bench, 4096, 8, REMOTE);
    assert_eq!(bind2(&mut bench, key, key, there), WcStatus::Success);
    let last = bench.forge(Side::B, Opcode::RC_RDMA_WRITE_LAST, Psn::new(START + 1)).payload(&[2; 44]);
    assert_eq!(bench.arrive(Side::B, &last).1, [Answer::acknowledge(CLOSED, START + 1, 0)]);
    assert_eq!(bench.host(Side::B).read_memory(MTU, 44), [0; 44]);
}

/// A released region is closed to peers and to work requests at once, even if a window is bound over it. The
/// window stays usable until it is unbound; the region is freed then.
#[test]
fn a_released_region_is_closed_outside_the_windows_that_are_bound_over_it() {
    let mut bench = Bench::rc();
    let unbound = window(&mut bench, WindowType::Type1);
    let here = binding(&bench, 64, 16, REMOTE);
    let key = bind1(&mut bench, unbound, &here).unwrap();
    let region = bench.host(Side::B).region;
    let engine = &mut bench.host_mut(Side::B).engine;
    assert_eq!(engine.deregister(region.lkey), Err(DestroyError::WindowsBound { windows: 1 }));
    let keys = engine.keys_in_use();
    engine.release_region(region.lkey).unwrap();
    assert_eq!(engine.keys_in_use(), keys - 1);
    assert_eq!(engine.release_region(region.lkey), Err(DestroyError::Key(KeyError::Unknown)));
    assert_eq!(engine.query_region(region.lkey), Err(KeyError::Unknown));
    // The window is still usable, and only within its range.
    assert_eq!(probe(&mut bench, address(64), key), OPEN);
    for (offset, rkey) in [(64, region.rkey), (512, region.rkey), (56, key), (80, key)] {
        fresh(&mut bench);
        assert_eq!(probe(&mut bench, address(offset), rkey), CLOSED, "{offset} {rkey}");
    }
    // A new region in the same table slot is not the region under the window.
    let host = bench.host_mut(Side::B);
    let memory = Arc::new(WordMemory::new(64));
    let other = host.engine.register(host.pd, 0x9000, memory, Access::MW_BIND).unwrap();
    let nowhere = WindowBinding { len: 0, ..here };
    let unbound = bind1(&mut bench, key, &nowhere).unwrap();
    fresh(&mut bench);
    assert_eq!(probe(&mut bench, address(64), key), CLOSED);
    let engine = &mut bench.host_mut(Side::B).engine;
    engine.deregister(other.lkey).unwrap();
    engine.deallocate_window(unbound).unwrap();
    assert_eq!(engine.keys_in_use(), keys - 2);
}

/// The memory of a released region is freed when the queue pair of the type 2 window over it is destroyed.
#[test]
fn a_window_over_a_released_region_lets_go_of_the_memory_when_it_is_invalidated() {
    let mut bench = Bench::rc();
    let (pd, memory) = (bench.host(Side::B).pd, Arc::new(WordMemory::new(64)));
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let engine = &mut bench.host_mut(Side::B).engine;
    let region = engine.register(pd, 0x9000, memory.clone(), access).unwrap();
    let unbound = window(&mut bench, WindowType::Type2);
    let (key, len) = (unbound.next_variant(), 64);
    let here = WindowBinding { region: region.lkey, addr: 0x9000, len, access: REMOTE };
    assert_eq!(bind2(&mut bench, unbound, key, here), WcStatus::Success);
    bench.host_mut(Side::B).engine.release_region(region.lkey).unwrap();
    assert_eq!(probe(&mut bench, 0x9000, key), OPEN);
    assert_eq!(Arc::strong_count(&memory), 2, "the window holds the memory");
    let b = bench.b;
    bench.host_mut(Side::B).engine.destroy_qp(b).unwrap();
    assert_eq!(Arc::strong_count(&memory), 1);
}
