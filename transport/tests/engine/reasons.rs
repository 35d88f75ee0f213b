//! The reason that a queue pair keeps for each kind of failure: one row for each cause of a completion.

use crate::common::{Bench, Forge, MTU, address, settings};
use roce_packet::{NakCode, Opcode, Psn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::{
    Access, AsyncEvent, Cause, Denial, Invalid, KeyError, LKey, LocalDenial, QpAttr, QpState, QpType, RKey,
    Reason, Rule, SendOp, SendWr, Sge, WcStatus, WindowBinding, WindowType, WordMemory,
};

const START: u32 = 0x1000;

fn psn(offset: u32) -> Psn {
    Psn::new(START + offset)
}

/// Returns a bench whose requests never arrive: the test makes every answer.
#[track_caller]
fn mute(settings: &Settings) -> Bench {
    let mut bench = Bench::new(QpType::Rc, settings);
    bench.set_script(|sent| if sent.from == Side::A { Action::Drop } else { Action::Pass });
    bench
}

#[track_caller]
fn reason(bench: &Bench, side: Side) -> Reason {
    *bench.host(side).engine.reason(bench.qpn(side)).expect("the queue pair has failed")
}

/// Checks the reason of one side: the rule, the failed request, and that its completion has the cause.
#[track_caller]
fn check(bench: &mut Bench, side: Side, wr_id: u64, status: WcStatus, rule: Rule) -> Reason {
    let ended = bench.completions(side);
    let first = ended.iter().find(|wc| wc.status != WcStatus::Success).expect("a failed request");
    assert_eq!((first.wr_id, first.status, first.cause), (wr_id, status, rule.cause()), "{rule}");
    assert!(ended.iter().all(|wc| wc.wr_id == wr_id || matches!(wc.cause, Cause::Flushed | Cause::None)));
    let reason = reason(bench, side);
    assert_eq!((reason.rule, reason.request), (rule, Some((wr_id, status))), "{rule}");
    assert!(matches!(bench.state(side), QpState::Err | QpState::Sqe), "{rule}");
    assert_eq!(reason.from, QpState::Rts, "{rule}");
    reason
}

#[test]
fn a_silent_peer_gives_the_timeouts_and_the_oldest_psn() {
    let mut bench = mute(&Settings { retry_cnt: 3, ..settings() });
    let write = bench.write(0);
    bench.post(1, write, 0, 3 * MTU);
    bench.post(2, write, 0, 8);
    bench.drive();
    let found = reason(&bench, Side::A);
    let Rule::AckTimeout { times, wait_ns, oldest, next } = found.rule else { panic!("{:?}", found.rule) };
    assert_eq!((times, oldest, next), (4, psn(0), psn(4)));
    assert_eq!(found.rule.to_string(), "4 timeouts of 67.10 ms, PSN 4096 to 4099 unacknowledged");
    assert_eq!((wait_ns, found.heard), (4096 << 14, None));
    assert_eq!(found.at, bench.now);
    check(&mut bench, Side::A, 1, WcStatus::RetryExceededError, found.rule);
}

#[test]
fn the_time_of_the_last_packet_of_the_peer_is_kept() {
    let mut bench = mute(&settings());
    let write = bench.write(0);
    bench.post(1, write, 0, 8);
    bench.post(2, write, 0, 8);
    bench.collect(Side::A);
    let before = bench.now;
    let ack = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, psn(0)).silent().aeth(0x1f, 1);
    bench.arrive(Side::A, &ack);
    bench.drive();
    let found = reason(&bench, Side::A);
    assert_eq!((found.heard, found.rule.cause()), (Some(before), Cause::AckTimeout));
    assert!(found.at > before);
}

#[test]
fn sequence_naks_without_progress_give_the_missing_psn() {
    let mut bench = mute(&Settings { retry_cnt: 0, ..settings() });
    let write = bench.write(0);
    bench.post(1, write, 0, 3 * MTU);
    bench.collect(Side::A);
    let nak = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, psn(1)).silent().aeth(0x60, 0);
    bench.arrive(Side::A, &nak);
    // The progress up to the first PSN has loaded the retries again: one NAK needs one of them.
    let rule = Rule::SequenceRetries { retries: 0, oldest: psn(1) };
    check(&mut bench, Side::A, 1, WcStatus::RetryExceededError, rule);
}

#[test]
fn rnr_naks_give_their_number_and_delay() {
    let mut bench = Bench::new(QpType::Rc, &Settings { rnr_retry: 2, ..settings() });
    bench.post(1, SendOp::Send, 0, 8);
    bench.drive();
    let rule = Rule::RnrRetries { retries: 2, delay_ns: 640_000, psn: psn(0) };
    assert_eq!(rule.to_string(), "3 RNR NAKs, the last for PSN 4096 asked for 0.64 ms");
    check(&mut bench, Side::A, 1, WcStatus::RnrRetryExceededError, rule);
    // The peer has not failed: it asked for patience.
    assert!(bench.host(Side::B).engine.reason(bench.b).is_none());
}

#[test]
fn every_nak_gives_its_code_and_psn() {
    for (syndrome, code, status, cause) in [
        (0x61, NakCode::InvalidRequest, WcStatus::RemoteInvalidRequestError, Cause::NakInvalidRequest),
        (0x62, NakCode::RemoteAccess, WcStatus::RemoteAccessError, Cause::NakRemoteAccess),
        (0x63, NakCode::RemoteOperational, WcStatus::RemoteOperationError, Cause::NakRemoteOperational),
        (0x65, NakCode::Reserved(5), WcStatus::RemoteInvalidRequestError, Cause::NakUnknown),
    ] {
        let mut bench = mute(&settings());
        let write = bench.write(0);
        bench.post(1, write, 0, 8);
        bench.post(2, write, 0, 8);
        bench.collect(Side::A);
        let nak = bench.forge(Side::A, Opcode::RC_ACKNOWLEDGE, psn(1)).silent().aeth(syndrome, 0);
        bench.arrive(Side::A, &nak);
        let rule = Rule::Nak { code, psn: psn(1) };
        assert_eq!(rule.cause(), cause);
        assert!(rule.to_string().starts_with(&format!("NAK {syndrome:#x} (")), "{rule}");
        check(&mut bench, Side::A, 2, status, rule);
    }
}

#[test]
fn bad_responses_give_what_was_expected() {
    let mut bench = mute(&settings());
    let read = bench.read(0);
    bench.post(1, read, 4096, 10);
    bench.collect(Side::A);
    let short = bench.forge(Side::A, Opcode::RC_RDMA_READ_RESPONSE_ONLY, psn(0)).silent();
    bench.arrive(Side::A, &short.aeth(0x1f, 1).payload(&[1; 9]));
    let rule = Rule::ResponseLength { psn: psn(0), len: 9, expected: 10 };
    check(&mut bench, Side::A, 1, WcStatus::BadResponseError, rule);

    let mut bench = mute(&settings());
    bench.post(1, SendOp::Send, 0, 8);
    bench.collect(Side::A);
    let opcode = Opcode::RC_ATOMIC_ACKNOWLEDGE;
    let atomic = bench.forge(Side::A, opcode, psn(0)).silent().aeth(0x1f, 1).atomic_ack(1);
    bench.arrive(Side::A, &atomic);
    let rule = Rule::UnexpectedResponse { psn: psn(0), opcode };
    check(&mut bench, Side::A, 1, WcStatus::BadResponseError, rule);
}

/// Posts a SEND with a good and a bad element, and returns the rule.
#[track_caller]
fn with_bad_element(qp_type: QpType, error: KeyError, make: impl Fn(&mut Bench) -> Sge) {
    let mut bench = Bench::new(qp_type, &settings());
    let good = bench.host(Side::A).memory_range(0, 8);
    let element = make(&mut bench);
    let a = bench.a;
    bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &[good, element])).unwrap();
    bench.collect(Side::A);
    let rule = Rule::LocalKey(LocalDenial { error, index: Some(1), element });
    assert!(rule.to_string().starts_with("element 1 (lkey 0x"), "{rule}");
    check(&mut bench, Side::A, 1, WcStatus::LocalProtectionError, rule);
}

#[test]
fn local_keys_give_the_element() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        with_bad_element(qp_type, KeyError::Unknown, |bench| Sge {
            lkey: LKey(0x0bad_0000),
            ..bench.host(Side::A).memory_range(0, 8)
        });
        with_bad_element(qp_type, KeyError::OutOfRange, |bench| Sge {
            addr: address(1 << 21),
            ..bench.host(Side::A).memory_range(0, 8)
        });
        with_bad_element(qp_type, KeyError::WrongProtectionDomain, |bench| {
            let engine = &mut bench.host_mut(Side::A).engine;
            let pd = engine.allocate_pd().unwrap();
            let memory = std::sync::Arc::new(WordMemory::new(64));
            let region = engine.register(pd, 0x9000, memory, Access::empty()).unwrap();
            Sge { addr: 0x9000, length: 8, lkey: region.lkey }
        });
    }
}

#[test]
fn a_read_into_memory_without_the_right_gives_the_right() {
    let mut bench = Bench::rc();
    let host = bench.host_mut(Side::A);
    let memory = std::sync::Arc::new(WordMemory::new(64));
    let region = host.engine.register(host.pd, 0x9000, memory, Access::empty()).unwrap();
    let element = Sge { addr: 0x9000, length: 8, lkey: region.lkey };
    let (a, read) = (bench.a, bench.read(0));
    bench.post_send(Side::A, a, &SendWr::new(1, read, &[element])).unwrap();
    bench.drive();
    let rule = Rule::LocalKey(LocalDenial { error: KeyError::PermissionDenied, index: Some(0), element });
    assert_eq!(rule.cause(), Cause::LocalKeyPermission);
    check(&mut bench, Side::A, 1, WcStatus::LocalProtectionError, rule);
}

#[test]
fn receives_give_their_length_and_their_elements() {
    let mut bench = Bench::rc();
    bench.receive(1, 0, 100);
    bench.post(7, SendOp::Send, 0, 101);
    bench.drive();
    let rule = Rule::MessageTooLong { len: 101, capacity: 100 };
    check(&mut bench, Side::B, 1, WcStatus::LocalLengthError, rule);
    let refused = Rule::Nak { code: NakCode::InvalidRequest, psn: psn(0) };
    check(&mut bench, Side::A, 7, WcStatus::RemoteInvalidRequestError, refused);

    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut bench = Bench::new(qp_type, &settings());
        let element = Sge { addr: address(1 << 21), length: 64, ..bench.host(Side::B).memory_range(0, 8) };
        let (b, wr) = (bench.b, roce_transport::RecvWr { wr_id: 1, elements: &[element] });
        bench.host_mut(Side::B).engine.post_recv(b, &wr).unwrap();
        bench.post(7, SendOp::Send, 0, 8);
        bench.drive();
        let rule = Rule::LocalKey(LocalDenial { error: KeyError::OutOfRange, index: Some(0), element });
        check(&mut bench, Side::B, 1, WcStatus::LocalProtectionError, rule);
    }
}

/// Refuses a packet at B while no receive is in use, and checks event and reason.
#[track_caller]
fn refused(bench: &mut Bench, packet: &Forge, rule: Rule) {
    bench.take_events(Side::B);
    bench.arrive(Side::B, packet);
    let found = reason(bench, Side::B);
    assert_eq!((found.rule, found.request), (rule, None), "{rule}");
    let event = match rule {
        Rule::RemoteAccess { .. } => AsyncEvent::QpAccessError(bench.b),
        _ => AsyncEvent::QpRequestError(bench.b),
    };
    assert_eq!(bench.take_events(Side::B), [event], "{rule}");
    assert!(rule.to_string().starts_with("PSN 4096: "), "{rule}");
}

#[test]
fn accesses_of_the_peer_give_the_check_and_the_range() {
    type Row = (fn(&mut Bench) -> (RKey, u64), KeyError);
    let rows: [Row; 4] = [
        (|_| (RKey(0x1234_5678), address(0)), KeyError::Unknown),
        (|bench| (bench.host(Side::B).rkey(), address((1 << 21) - 4)), KeyError::OutOfRange),
        (|bench| (region(bench, true, Access::empty()), 0x9000), KeyError::PermissionDenied),
        (|bench| (region(bench, false, Access::REMOTE), 0x9000), KeyError::WrongProtectionDomain),
    ];
    for (make, error) in rows {
        for opcode in [
            Opcode::RC_RDMA_WRITE_ONLY,
            Opcode::RC_RDMA_READ_REQUEST,
            Opcode::RC_FETCH_ADD,
            Opcode::RC_ATOMIC_WRITE,
        ] {
            let mut bench = Bench::rc();
            let (rkey, va) = make(&mut bench);
            // An atomic needs an aligned address.
            let va = va & !7;
            let va = if error == KeyError::OutOfRange { address(1 << 21) } else { va };
            let packet = bench.forge(Side::B, opcode, psn(0));
            let packet = match opcode {
                Opcode::RC_FETCH_ADD => packet.atomic(va, rkey, 1, 0),
                Opcode::RC_RDMA_READ_REQUEST => packet.reth(va, rkey, 8),
                _ => packet.reth(va, rkey, 8).payload(&[1; 8]),
            };
            let denial = Denial { error, rkey, va, len: 8 };
            refused(&mut bench, &packet, Rule::RemoteAccess { psn: psn(0), denial });
        }
    }
}

/// Registers memory at 0x9000 of B, in the protection domain of its queue pair or in another one.
fn region(bench: &mut Bench, own_domain: bool, access: Access) -> RKey {
    let host = bench.host_mut(Side::B);
    let pd = if own_domain { host.pd } else { host.engine.allocate_pd().unwrap() };
    let memory = std::sync::Arc::new(WordMemory::new(64));
    host.engine.register(pd, 0x9000, memory, access | Access::LOCAL_WRITE).unwrap().rkey
}

#[test]
fn invalid_requests_give_the_violated_rule() {
    type Make = fn(&Bench) -> Forge;
    let rows: &[(Make, Invalid)] = &[
        (|b| b.forge(Side::B, Opcode::RC_SEND_LAST, psn(0)).payload(&[1; 8]), Invalid::Order),
        (|b| b.forge(Side::B, Opcode::RC_SEND_ONLY, psn(0)).payload(&[1; MTU + 4]), Invalid::Length),
        (
            |b| b.forge(Side::B, Opcode::RC_FETCH_ADD, psn(0)).atomic(address(4), RKey(1), 1, 0),
            Invalid::Misaligned,
        ),
        (
            |b| b.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, psn(0)).reth(address(0), RKey(1), u32::MAX),
            Invalid::TooLong,
        ),
    ];
    for (make, problem) in rows {
        let mut bench = Bench::rc();
        let packet = make(&bench);
        refused(&mut bench, &packet, Rule::RemoteInvalid { psn: psn(0), problem: *problem });
    }
    let mut bench = Bench::new(QpType::Rc, &Settings { access: Access::empty(), ..settings() });
    let packet = bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, psn(0)).reth(address(0), RKey(1), 8);
    refused(&mut bench, &packet, Rule::RemoteInvalid { psn: psn(0), problem: Invalid::NotAllowed });
    let mut bench = Bench::new(QpType::Rc, &Settings { rd_atomic: 0, ..settings() });
    let rkey = bench.host(Side::B).rkey();
    let packet = bench.forge(Side::B, Opcode::RC_RDMA_READ_REQUEST, psn(0)).reth(address(0), rkey, 8);
    refused(&mut bench, &packet, Rule::RemoteInvalid { psn: psn(0), problem: Invalid::TooManyOutstanding });
}

#[test]
fn windows_and_invalidations_give_the_error_of_the_key() {
    let mut bench = Bench::rc();
    let host = bench.host_mut(Side::A);
    let window = host.engine.allocate_window(host.pd, WindowType::Type2).unwrap();
    let region = host.region.lkey;
    let binding = WindowBinding { region, addr: address(1 << 21), len: 8, access: Access::REMOTE_READ };
    let a = bench.a;
    let bind = SendOp::BindWindow { window, new_rkey: window.next_variant(), binding };
    bench.post_send(Side::A, a, &SendWr::new(1, bind, &[])).unwrap();
    bench.collect(Side::A);
    let rule = Rule::WindowBind { error: KeyError::OutOfRange };
    check(&mut bench, Side::A, 1, WcStatus::MemoryWindowBindError, rule);

    let mut bench = Bench::rc();
    let (a, rkey) = (bench.a, RKey(0x0bad_0000));
    bench.post_send(Side::A, a, &SendWr::new(1, SendOp::LocalInvalidate { rkey }, &[])).unwrap();
    bench.collect(Side::A);
    let rule = Rule::LocalInvalidate { rkey, error: KeyError::Unknown };
    check(&mut bench, Side::A, 1, WcStatus::LocalQpOperationError, rule);

    let mut bench = Bench::rc();
    bench.receive(5, 0, 64);
    bench.post(1, SendOp::SendWithInvalidate(rkey), 0, 8);
    bench.collect(Side::A);
    while bench.host(Side::B).engine.reason(bench.b).is_none() {
        assert!(bench.step(), "the SEND arrives");
    }
    let rule = Rule::RemoteInvalidate { rkey, error: KeyError::Unknown };
    check(&mut bench, Side::B, 5, WcStatus::RemoteInvalidRequestError, rule);
}

#[test]
fn a_move_to_err_is_a_reason_and_reset_ends_it() {
    let mut bench = Bench::rc();
    bench.receive(1, 0, 64);
    let (now, b) = (bench.now, bench.b);
    let engine = &mut bench.host_mut(Side::B).engine;
    assert_eq!(engine.reason(b), None);
    engine.modify_qp(now, b, &QpAttr::to_state(QpState::Err)).unwrap();
    let found = *engine.reason(b).expect("moved");
    assert_eq!((found.rule, found.request, found.from), (Rule::Moved, None, QpState::Rts));
    // The second call keeps the first reason.
    engine.modify_qp(now, b, &QpAttr::to_state(QpState::Err)).unwrap();
    assert_eq!(engine.reason(b), Some(&found));
    engine.modify_qp(now, b, &QpAttr::to_state(QpState::Reset)).unwrap();
    assert_eq!(engine.reason(b), None);
}

#[test]
fn a_queue_pair_that_leaves_sqe_has_no_reason_any_more() {
    let mut bench = Bench::new(QpType::Uc, &settings());
    let element = Sge { lkey: LKey(0x0bad_0000), ..bench.host(Side::A).memory_range(0, 8) };
    let (now, a) = (bench.now, bench.a);
    bench.post_send(Side::A, a, &SendWr::new(1, SendOp::Send, &[element])).unwrap();
    bench.collect(Side::A);
    assert_eq!(bench.state(Side::A), QpState::Sqe);
    assert_eq!(reason(&bench, Side::A).rule.cause(), Cause::LocalKeyUnknown);
    let engine = &mut bench.host_mut(Side::A).engine;
    engine.modify_qp(now, a, &QpAttr::to_state(QpState::Rts)).unwrap();
    assert_eq!(engine.reason(a), None);
}

#[test]
fn a_full_completion_queue_is_the_reason() {
    let mut bench = Bench::rc();
    let host = bench.host_mut(Side::B);
    let cq = host.engine.create_cq(1).unwrap();
    bench.b = bench.create_at_b(QpType::Rc, &settings(), None, Some(cq));
    bench.a = bench.create_qp(Side::A, QpType::Rc, &settings());
    let (a, b) = (bench.a, bench.b);
    bench.bring_up(Side::A, a, b, &settings(), QpState::Rts);
    bench.bring_up(Side::B, b, a, &settings(), QpState::Rts);
    for wr_id in 1..=2 {
        bench.receive(wr_id, 0, 64);
        bench.post(wr_id, SendOp::Send, 0, 8);
    }
    bench.drive();
    let found = reason(&bench, Side::B);
    assert_eq!((found.rule, found.request), (Rule::CompletionQueueOverflow(cq), None));
}
