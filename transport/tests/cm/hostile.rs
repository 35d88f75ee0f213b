//! Hostile peers: no input causes a panic, and no table grows beyond its limit.

use roce_packet::Qpn;
use roce_packet::mad::{
    CmMad, CmMessage, CmMessageKind, CmMra, CmRej, CmTimeout, CommId, MAD_LEN, RejReason,
};
use roce_transport::Instant;
use roce_transport::cm::{CmAccepts, CmConfig, CmError, CmEvent, CmListen, CmState, ConnectionManager};

use crate::random::Dice;
use crate::world::{ACTIVE, PASSIVE, SERVICE, World, bytes, offer, path, question, request};

/// Returns a REQ of a peer that never existed.
fn req(local_comm_id: u32, qpn: u32) -> CmMad {
    let mut peer = crate::world::manager(3);
    peer.connect(Instant::ZERO, &request(qpn)).unwrap();
    let mut mad = CmMad::parse(&peer.poll_transmit(Instant::ZERO).unwrap().mad[..]).unwrap();
    if let CmMessage::Req(req) = &mut mad.message {
        req.local_comm_id = CommId(local_comm_id);
    }
    mad
}

fn drain(manager: &mut ConnectionManager, now: Instant) {
    while manager.poll_transmit(now).is_some() {}
    while manager.poll_event().is_some() {}
}

#[test]
fn a_flood_of_requests_fills_no_memory() {
    let mut config = CmConfig::new([1; 32], 1);
    config.max_pending = 100;
    let mut manager = ConnectionManager::new(config);
    manager.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 1_000, ip_cm: true }).unwrap();
    let now = Instant::from_nanos(1);
    for id in 1..20_000 {
        manager.handle_mad(now, &path(ACTIVE), Qpn::GSI, &bytes(&req(id, id)));
        drain(&mut manager, now);
        assert!(manager.len() <= 100);
    }
    assert_eq!(manager.counters().refused_full, 19_999 - 100);
    // Connections of peers that never answer are removed.
    let late = now.plus_nanos(CmTimeout::MAX.nanos());
    manager.handle_timeout(late);
    drain(&mut manager, late);
    assert!(manager.is_empty());
    assert_eq!(manager.poll_timeout(), None);
}

/// Accepted requests whose senders never answer: beyond the limit, the application gets an error and nothing
/// is sent.
#[test]
fn no_more_than_so_many_accepted_requests_wait_for_their_peers() {
    const LIMIT: usize = 3;
    let mut config = CmConfig::new([1; 32], 1);
    config.max_half_open = LIMIT;
    let mut manager = ConnectionManager::new(config);
    manager.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 100, ip_cm: true }).unwrap();
    let now = Instant::from_nanos(1);
    let asked: Vec<CommId> = (1..=2 * LIMIT as u32)
        .map(|number| {
            manager.handle_mad(now, &path(ACTIVE), Qpn::GSI, &bytes(&req(number, number)));
            let Some(CmEvent::ConnectRequest(request)) = manager.poll_event() else { panic!("not asked") };
            request.id
        })
        .collect();
    let accept = |manager: &mut ConnectionManager, index: usize| {
        manager.accept(now, asked[index], &offer(0x100 + index as u32), b"").map(drop)
    };
    for index in 0..LIMIT {
        accept(&mut manager, index).unwrap();
        assert_eq!(manager.half_open(), index + 1);
    }
    assert_eq!(std::iter::from_fn(|| manager.poll_transmit(now)).count(), LIMIT, "a REP each");
    for (index, id) in asked.iter().enumerate().skip(LIMIT).take(LIMIT) {
        assert_eq!(accept(&mut manager, index), Err(CmError::TooManyHalfOpen { limit: LIMIT }));
        assert_eq!(manager.state(*id), CmState::ReqReceived, "it may be accepted later");
    }
    assert_eq!((manager.half_open(), manager.poll_transmit(now)), (LIMIT, None));
    // An abandoned request makes room for another one.
    manager.reject(now, asked[0], RejReason::CONSUMER, b"").unwrap();
    accept(&mut manager, LIMIT).unwrap();
    assert_eq!(accept(&mut manager, LIMIT + 1), Err(CmError::TooManyHalfOpen { limit: LIMIT }));
    // The others time out.
    while let Some(later) = manager.poll_timeout() {
        manager.handle_timeout(later);
        drain(&mut manager, later);
    }
    assert_eq!((manager.half_open(), manager.len()), (0, 0));
}

/// Each MRA of a peer extends the wait for its answer; the total is limited.
#[test]
fn a_peer_that_asks_for_more_time_without_end_is_given_up() {
    for side in [ACTIVE, PASSIVE] {
        let mut manager = crate::world::manager(1);
        let mut now = Instant::from_nanos(1);
        let (id, received) = if side == ACTIVE {
            (manager.connect(now, &request(0x11)).unwrap(), CmMessageKind::Req)
        } else {
            manager.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 1, ip_cm: true }).unwrap();
            manager.handle_mad(now, &path(ACTIVE), Qpn::GSI, &bytes(&req(7, 7)));
            let Some(CmEvent::ConnectRequest(request)) = manager.poll_event() else { panic!("not asked") };
            manager.accept(now, request.id, &offer(0x22), b"").unwrap();
            (request.id, CmMessageKind::Rep)
        };
        let mra = CmMad::new(
            5,
            CmMessage::Mra(CmMra {
                local_comm_id: CommId(7),
                remote_comm_id: id,
                received,
                service_timeout: CmTimeout::MAX,
                private_data: [0; CmMra::PRIVATE_DATA],
            }),
        );
        let mut seconds = 0;
        let told = loop {
            while manager.poll_transmit(now).is_some() {}
            manager.handle_mad(now, &path(1 - side), Qpn::GSI, &bytes(&mra));
            seconds += 1;
            assert!(seconds < 300, "side {side}: it never gives up");
            now = now.plus_nanos(1_000_000_000);
            manager.handle_timeout(now);
            if let Some(event) = manager.poll_event() {
                break event;
            }
        };
        assert!(matches!(told, CmEvent::Unreachable { id: given_up, .. } if given_up == id), "{told:?}");
        assert!(seconds > 120, "side {side}: an MRA has no effect: {seconds} s");
    }
}

/// Refused requests leave records, of which the oldest are removed first.
#[test]
fn refused_requests_fill_no_memory() {
    let mut config = CmConfig::new([1; 32], 1);
    config.max_lingering = 50;
    let mut manager = ConnectionManager::new(config);
    manager.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 10, ip_cm: true }).unwrap();
    let now = Instant::from_nanos(1);
    for number in 1..2_000 {
        manager.handle_mad(now, &path(ACTIVE), Qpn::GSI, &bytes(&req(number, number)));
        let Some(CmEvent::ConnectRequest(request)) = manager.poll_event() else { panic!("not asked") };
        manager.reject(now, request.id, RejReason::CONSUMER, b"").unwrap();
        drain(&mut manager, now);
        assert!(manager.len() <= 50);
    }
}

#[test]
fn answers_that_nobody_fetches_fill_no_memory() {
    let mut config = CmConfig::new([1; 32], 1);
    config.max_queued = 10;
    let mut manager = ConnectionManager::new(config);
    for number in 1..100 {
        manager.handle_mad(Instant::ZERO, &path(ACTIVE), Qpn::GSI, &bytes(&req(number, number)));
    }
    assert_eq!(manager.counters().dropped_queue_full, 89);
    assert_eq!(std::iter::from_fn(|| manager.poll_transmit(Instant::ZERO)).count(), 10);
}

#[test]
fn too_many_connections_of_its_own() {
    let mut config = CmConfig::new([1; 32], 1);
    config.max_connections = 3;
    let mut manager = ConnectionManager::new(config);
    for _ in 0..3 {
        manager.connect(Instant::ZERO, &request(0x11)).unwrap();
    }
    assert!(manager.connect(Instant::ZERO, &request(0x11)).is_err());
    assert!(manager.resolve(Instant::ZERO, &question()).is_err());
}

/// The times that a peer requests are limited, so that no record stays for hours.
#[test]
fn times_of_hours() {
    let mut world = World::new();
    let mut mad = req(7, 7);
    if let CmMessage::Req(req) = &mut mad.message {
        req.local_cm_response_timeout = CmTimeout::MAX;
        req.primary.local_ack_timeout = CmTimeout::MAX;
        req.max_cm_retries = 15;
    }
    world.sides[PASSIVE].handle_mad(world.now, &path(ACTIVE), Qpn::GSI, &bytes(&mad));
    let id = world.asked();
    world.sides[PASSIVE].accept(world.now, id, &offer(0x22), b"").unwrap();
    let begin = world.now;
    while !world.sides[PASSIVE].is_empty() {
        let deadline = world.sides[PASSIVE].poll_timeout().unwrap();
        world.sides[PASSIVE].handle_timeout(deadline);
        drain(&mut world.sides[PASSIVE], deadline);
        world.now = deadline;
    }
    assert!(world.now.since(begin).as_secs() < 20 * 60);
}

/// A REP that names a SIDR request does not answer it, whichever queue pair it names.
#[test]
fn a_rep_to_a_question_changes_nothing() {
    let mut world = World::new();
    let (active, passive) = world.connect();
    let asked = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    let mut peer = crate::world::manager(3);
    peer.listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 1, ip_cm: true }).unwrap();
    peer.handle_mad(world.now, &path(ACTIVE), Qpn::GSI, &bytes(&req(asked.0, 0x33)));
    let Some(CmEvent::ConnectRequest(request)) = peer.poll_event() else { panic!("not asked") };
    // The queue pair of the existing connection.
    peer.accept(world.now, request.id, &offer(0x22), b"").unwrap();
    let rep = peer.poll_transmit(world.now).unwrap();
    world.sides[ACTIVE].handle_mad(world.now, &path(PASSIVE), Qpn::GSI, &rep.mad[..]);
    assert_eq!(world.sides[ACTIVE].poll_event(), None);
    assert_eq!(world.sides[ACTIVE].state(asked), CmState::SidrReqSent);
    assert_eq!(world.sides[ACTIVE].state(active), CmState::Established);
    assert_eq!(world.sides[PASSIVE].state(passive), CmState::Established);
    let counters = world.sides[ACTIVE].counters();
    assert_eq!((counters.unexpected, counters.stale), (1, 0));
}

/// Random bytes, and random messages with the IDs of real connections in them.
#[test]
fn garbage() {
    let mut dice = Dice::new(0x6a2b);
    let mut world = World::new();
    let ids = world.connect();
    let waiting = world.sides[ACTIVE].connect(world.now, &request(0x33)).unwrap();
    world.asked();
    for round in 0..50_000_u64 {
        let mut mad = [0; MAD_LEN];
        mad.iter_mut().for_each(|byte| *byte = dice.next() as u8);
        if round % 8 != 0 {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&(0x10 + dice.below(9) as u16).to_be_bytes());
            if round % 2 == 0 {
                let own = [ids.0, ids.1, waiting][dice.below(3) as usize];
                mad[28..32].copy_from_slice(&own.0.to_be_bytes());
            }
            if round % 3 == 0 {
                mad[24..28].copy_from_slice(&[ids.0, ids.1][dice.below(2) as usize].0.to_be_bytes());
            }
        }
        let len = if round % 16 == 0 { dice.below(300) as usize } else { MAD_LEN };
        let side = dice.below(2) as usize;
        let cut = mad.get(..len).unwrap_or(&mad);
        world.sides[side].handle_mad(world.now, &path(1 - side), Qpn::new(dice.next() as u32), cut);
        if round % 64 == 0 {
            world.now = world.now.plus_nanos(dice.below(1 << 30));
            world.sides[side].handle_timeout(world.now);
        }
        for side in &mut world.sides {
            drain(side, world.now);
            assert!(side.len() < 2_000);
        }
    }
}

/// Returns a REJ with these IDs.
fn rej(local_comm_id: CommId, remote_comm_id: CommId, reason: RejReason) -> CmMad {
    CmMad::new(
        7,
        CmMessage::Rej(CmRej {
            local_comm_id,
            remote_comm_id,
            rejected: CmMessageKind::Req,
            info_length: 0,
            reason,
            info: [0; CmRej::INFO],
            private_data: [0; CmRej::PRIVATE_DATA],
        }),
    )
}

/// Regression: one of the two IDs of an established connection was enough to end it, with 0 as the other one.
#[test]
fn a_rejection_of_an_established_connection_needs_both_ids() {
    let mut world = World::new();
    let (active, passive) = world.connect();
    let now = world.now;
    for (side, own, peer) in [(ACTIVE, active, passive), (PASSIVE, passive, active)] {
        let manager = &mut world.sides[side];
        let path = path(1 - side);
        for (local, remote) in [(CommId(0), own), (peer, CommId(0)), (CommId(0), CommId(0))] {
            for reason in [RejReason::CONSUMER, RejReason::TIMEOUT] {
                manager.handle_mad(now, &path, Qpn::GSI, &bytes(&rej(local, remote, reason)));
                assert_eq!(manager.state(own), CmState::Established, "side {side}: {local:?}, {remote:?}");
            }
        }
    }
    world.sides[ACTIVE].disconnect(now, active, b"").unwrap();
    world.expect_the_end((active, passive));
}
