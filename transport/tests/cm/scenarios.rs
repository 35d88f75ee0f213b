//! Scenarios of connections, one in each test.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use roce_packet::fields::{self, Value};
use roce_packet::mad::{
    CmMessage, CmTimeout, CommId, MadHeader, PortSpace, RejReason, SidrStatus, TransportService,
};
use roce_packet::{PathMtu, Psn, Qpn, flow};
use roce_transport::ProcessSlot;
use roce_transport::cm::{
    CmAccepts, CmConfig, CmConnect, CmError, CmEvent, CmListen, CmState, ConnectionManager,
};

use crate::world::{ACTIVE, Fate, PASSIVE, SERVICE, World, address, bytes, offer, question, request};

/// Both ends get matching parameters.
#[test]
fn what_queue_pairs_need() {
    let mut world = World::new();
    let mut connect = request(0x11);
    connect.offer.responder_resources = 3;
    connect.offer.initiator_depth = 16;
    connect.offer.rnr_retry_count = 5;
    connect.offer.srq = true;
    connect.retry_count = 6;
    let active = world.sides[ACTIVE].connect(world.now, &connect).unwrap();
    let CmEvent::ConnectRequest(asked) = world.event(PASSIVE) else { panic!("not asked") };
    assert_eq!(asked.request.local_qpn, Qpn::new(0x11));
    assert_eq!((asked.request.primary.local_lid, asked.request.primary.remote_lid), (0xffff, 0xffff));
    assert_eq!((asked.request.primary.hop_limit, asked.request.p_key), (64, 0xffff));
    let mut own = offer(0x22);
    own.responder_resources = 8;
    own.initiator_depth = 2;
    own.rnr_retry_count = 4;
    let before = world.sides[PASSIVE].preview(asked.id, &own).unwrap();
    let passive = world.sides[PASSIVE].accept(world.now, asked.id, &own, b"").unwrap();
    assert_eq!(before, passive);
    let CmEvent::ConnectResponse { id, parameters, .. } = world.event(ACTIVE) else { panic!("no response") };
    assert_eq!(id, active);

    let port = flow::flow_label_to_port(flow::rdma_cm_flow_label(40_000, 7174));
    for (side, end) in [(ACTIVE, &parameters), (PASSIVE, &passive)] {
        assert_eq!((end.path.source, end.path.destination), (address(side), address(1 - side)));
        assert_eq!((end.path.source_port, end.path.flow_label), (port, 0));
        assert_eq!((end.path.traffic_class, end.path.hop_limit), (2, 64));
        assert_eq!((end.path_mtu, end.retry_cnt), (PathMtu::Mtu1024, 6));
        assert_eq!(end.transport, TransportService::Rc);
    }
    assert_eq!((parameters.dest_qpn, passive.dest_qpn), (Qpn::new(0x22), Qpn::new(0x11)));
    assert_eq!((parameters.sq_psn, passive.sq_psn), (Psn::new(0x220), Psn::new(0x110)));
    assert_eq!((parameters.rq_psn, passive.rq_psn), (Psn::new(0x110), Psn::new(0x220)));
    // Each side retries after RNR as often as the other side requested.
    assert_eq!((parameters.rnr_retry, passive.rnr_retry), (4, 5));
    assert_eq!((parameters.peer_srq, passive.peer_srq), (false, true));
    // Each side has at most as many outstanding READs as the other side supports.
    assert_eq!((parameters.max_rd_atomic, passive.max_dest_rd_atomic), (8, 8));
    assert_eq!((parameters.max_dest_rd_atomic, passive.max_rd_atomic), (2, 2));
    // The peer announces that it takes up to 134 ms to acknowledge.
    assert_eq!(parameters.timeout, CmTimeout::new(15));
    assert_eq!(passive.timeout, parameters.timeout);
}

/// The field table of `roce dissect` and this engine define a starting PSN alike. It is the first PSN that
/// the sender of the message wants to receive.
#[test]
fn the_field_table_and_the_engine_agree_on_the_starting_psn() {
    let sent = Rc::new(RefCell::new(Vec::new()));
    let mut world = World::with_fate({
        let sent = Rc::clone(&sent);
        move |_, mad| {
            let header = fields::cm_message(mad.message.attribute_id()).unwrap();
            let field = header.fields.iter().find(|field| field.name == "starting PSN");
            sent.borrow_mut().extend(field.map(|field| {
                assert!(field.meaning.contains("the sender of this message wants to receive"));
                let Some(Value::Number(psn)) = field.value(&bytes(mad)[MadHeader::LEN..]) else {
                    panic!("no PSN")
                };
                Psn::new(psn as u32)
            }));
            Fate::Deliver
        }
    });
    world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let id = world.asked();
    let passive = world.sides[PASSIVE].accept(world.now, id, &offer(0x22), b"").unwrap();
    let CmEvent::ConnectResponse { parameters: active, .. } = world.event(ACTIVE) else {
        panic!("no response")
    };
    assert_eq!(*sent.borrow(), [active.rq_psn, passive.rq_psn], "of the REQ and of the REP");
    assert_eq!(*sent.borrow(), [passive.sq_psn, active.sq_psn]);
}

#[test]
fn from_the_first_message_to_the_last() {
    for side in [ACTIVE, PASSIVE] {
        let mut world = World::new();
        let ids = world.connect();
        assert_eq!(world.log, [(ACTIVE, "REQ"), (PASSIVE, "REP"), (ACTIVE, "RTU")]);
        world.run_for(Duration::from_secs(100));
        assert_eq!(world.log.len(), 3, "an established connection is silent");
        let id = if side == ACTIVE { ids.0 } else { ids.1 };
        world.sides[side].disconnect(world.now, id, b"bye").unwrap();
        world.expect_the_end(ids);
        assert_eq!(world.log[3..], [(side, "DREQ"), (1 - side, "DREP")]);
    }
}

#[test]
fn reject_with_reason_and_data() {
    let mut world = World::new();
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].reject(world.now, passive, RejReason::CONSUMER, b"go away").unwrap();
    match world.event(ACTIVE) {
        CmEvent::Rejected { id, reason, private_data } => {
            assert_eq!((id, reason), (active, RejReason::CONSUMER));
            assert_eq!(&private_data[..8], b"go away\0");
        }
        other => panic!("told {other:?}"),
    }
    let again = world.sides[PASSIVE].reject(world.now, passive, RejReason::CONSUMER, b"");
    assert_eq!(again, Err(CmError::WrongState { id: passive, state: CmState::Refused }));
    world.expect_nothing_left();
}

/// The active side may also refuse the REP.
#[test]
fn the_active_side_refuses_a_rep() {
    let mut world = World::new();
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].reject(world.now, active, RejReason::INVALID_PATH_MTU, b"").unwrap();
    world.expect_rejected(PASSIVE, passive, RejReason::INVALID_PATH_MTU);
    world.expect_nothing_left();
}

#[test]
fn nobody_listens() {
    let mut world = World::new();
    world.sides[PASSIVE].unlisten(SERVICE).unwrap();
    let id = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    world.expect_rejected(ACTIVE, id, RejReason::INVALID_SERVICE_ID);
    assert_eq!(world.sides[PASSIVE].counters().refused_service, 1);
    world.expect_nothing_left();
}

#[test]
fn requests_that_cannot_be_taken() {
    let refused = |change: fn(&mut CmMessage), reason: RejReason| {
        let mut world = World::new();
        let id = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
        let transmit = world.sides[ACTIVE].poll_transmit(world.now).unwrap();
        let mut mad = roce_packet::mad::CmMad::parse(&transmit.mad[..]).unwrap();
        change(&mut mad.message);
        let bytes = bytes(&mad);
        world.sides[PASSIVE].handle_mad(world.now, &transmit.path, Qpn::GSI, &bytes);
        world.expect_rejected(ACTIVE, id, reason);
        assert!(world.sides[PASSIVE].is_empty());
    };
    macro_rules! with {
        ($req:ident => $change:expr) => {
            |message| {
                if let CmMessage::Req($req) = message {
                    $change;
                }
            }
        };
    }
    refused(with!(req => req.transport = TransportService::Rd), RejReason::INVALID_TRANSPORT_TYPE);
    refused(with!(req => req.transport = TransportService::Extended), RejReason::INVALID_TRANSPORT_TYPE);
    refused(with!(req => req.path_mtu_code = 6), RejReason::INVALID_PATH_MTU);
    refused(with!(req => req.primary.local_gid.0[15] ^= 1), RejReason::INVALID_GID);
    refused(with!(req => req.primary.remote_gid.0[15] ^= 1), RejReason::INVALID_GID);
    refused(with!(req => req.private_data[0] = 1), RejReason::CONSUMER);
}

/// A listener refuses the wrong kind of request at once, without using its backlog.
#[test]
fn requests_of_the_wrong_kind() {
    let listen = |accepts| {
        let mut world = World::new();
        world.sides[PASSIVE].unlisten(SERVICE).unwrap();
        world.sides[PASSIVE].listen(SERVICE, CmListen { accepts, backlog: 1, ip_cm: true }).unwrap();
        world
    };
    let mut world = listen(CmAccepts::Connections);
    for _ in 0..3 {
        let id = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
        let event = world.event(ACTIVE);
        assert!(matches!(event, CmEvent::Unresolved { status: SidrStatus::UNSUPPORTED, .. }), "{event:?}");
        assert_eq!(event.id(), id);
    }
    assert_eq!(world.sides[PASSIVE].counters().refused_service, 3);
    world.connect();
    let mut world = listen(CmAccepts::Datagrams);
    for _ in 0..3 {
        let id = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
        world.expect_rejected(ACTIVE, id, RejReason::INVALID_TRANSPORT_TYPE);
    }
    assert_eq!(world.sides[PASSIVE].counters().refused_service, 3);
    world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    let event = world.event(PASSIVE);
    assert!(matches!(event, CmEvent::SidrRequest(_)), "{event:?}");
}

#[test]
fn port_spaces_are_for_one_kind_or_both() {
    let kinds = PortSpace::ALL.map(CmAccepts::from);
    assert_eq!(
        kinds,
        [CmAccepts::Connections, CmAccepts::Datagrams, CmAccepts::Datagrams, CmAccepts::Both],
        "{:?}",
        PortSpace::ALL
    );
}

#[test]
fn too_many_requests() {
    let mut world = World::new();
    let ids: Vec<_> =
        (0..9).map(|qpn| world.sides[ACTIVE].connect(world.now, &request(0x11 + qpn)).unwrap()).collect();
    world.expect_rejected(ACTIVE, ids[8], RejReason::NO_RESOURCES);
    assert_eq!(world.sides[PASSIVE].counters().refused_full, 1);
    // An answered request frees a place.
    let first = world.asked();
    world.sides[PASSIVE].reject(world.now, first, RejReason::CONSUMER, b"").unwrap();
    world.expect_rejected(ACTIVE, ids[0], RejReason::CONSUMER);
    world.sides[ACTIVE].connect(world.now, &request(0x40)).unwrap();
    for _ in 0..8 {
        world.asked();
    }
}

/// A duplicate of a request that the application has not answered yet causes an MRA.
#[test]
fn the_application_takes_its_time() {
    let mut world = World::new();
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.run_for(Duration::from_secs(30));
    assert_eq!(world.log, [(ACTIVE, "REQ"), (ACTIVE, "REQ"), (PASSIVE, "MRA")]);
    assert_eq!(world.sides[ACTIVE].state(active), CmState::MraReqReceived);
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"welcome").unwrap();
    world.finish_connecting(active, passive);
}

/// Either application may send an MRA on its own.
#[test]
fn patience_on_request() {
    let mut world = World::new();
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].delay(world.now, passive, CmTimeout::new(22)).unwrap();
    world.run_for(Duration::from_secs(15));
    assert_eq!(world.sent(ACTIVE, "REQ"), 1);
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"welcome").unwrap();
    assert!(matches!(world.event(ACTIVE), CmEvent::ConnectResponse { .. }));
    world.sides[ACTIVE].delay(world.now, active, CmTimeout::new(22)).unwrap();
    world.run_for(Duration::from_secs(15));
    assert_eq!(world.sent(PASSIVE, "REP"), 1);
    assert_eq!(world.sides[PASSIVE].state(passive), CmState::MraRepReceived);
    world.sides[ACTIVE].ready(world.now, active, b"").unwrap();
    world.event(ACTIVE);
    assert!(matches!(world.event(PASSIVE), CmEvent::Established { .. }));
}

/// A packet on the queue pair replaces a lost RTU.
#[test]
fn the_first_packet_stands_for_the_rtu() {
    let mut world = World::with_fate(|_, mad| match mad.message {
        CmMessage::Rtu(_) => Fate::Drop,
        _ => Fate::Deliver,
    });
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].ready(world.now, active, b"").unwrap();
    world.sides[PASSIVE].notify_first_packet(world.now, passive).unwrap();
    assert!(matches!(world.event(PASSIVE), CmEvent::Established { .. }));
    let again = world.sides[PASSIVE].notify_first_packet(world.now, passive);
    assert_eq!(again, Err(CmError::WrongState { id: passive, state: CmState::Established }));
}

#[test]
fn both_disconnect_at_once() {
    let mut world = World::new();
    let ids = world.connect();
    world.sides[ACTIVE].disconnect(world.now, ids.0, b"").unwrap();
    world.sides[PASSIVE].disconnect(world.now, ids.1, b"").unwrap();
    world.expect_the_end(ids);
    for side in [ACTIVE, PASSIVE] {
        assert_eq!((world.sent(side, "DREQ"), world.sent(side, "DREP")), (1, 1));
    }
}

/// The peer restarts with the same queue pair and no knowledge of the connection.
#[test]
fn stale_connections() {
    let mut world = World::new();
    let (active, passive) = world.connect();
    // A restarted side has other IDs.
    world.sides[ACTIVE] = crate::world::manager(9);
    let next = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    assert_ne!(active, next);
    world.expect_rejected(ACTIVE, next, RejReason::STALE_CONNECTION);
    assert_eq!(world.event(PASSIVE), CmEvent::Disconnected { id: passive });
    assert_eq!(world.sides[PASSIVE].counters().stale, 1);
    // The second attempt succeeds.
    let next = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    loop {
        match world.event(PASSIVE) {
            CmEvent::TimewaitExit { .. } => {}
            CmEvent::ConnectRequest(request) => {
                world.sides[PASSIVE].accept(world.now, request.id, &offer(0x22), b"welcome").unwrap();
                world.sides[PASSIVE].release(world.now, passive);
                break;
            }
            other => panic!("told {other:?}"),
        }
    }
    assert!(matches!(world.event(ACTIVE), CmEvent::ConnectResponse { id, .. } if id == next));
}

/// The passive side restarts and uses the same queue pair for another connection.
#[test]
fn stale_connections_of_the_active_side() {
    let mut world = World::new();
    let (active, _) = world.connect();
    world.sides[PASSIVE] = crate::world::manager(9);
    world.sides[PASSIVE]
        .listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 8, ip_cm: true })
        .unwrap();
    let next = world.sides[ACTIVE].connect(world.now, &request(0x12)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.expect_rejected(ACTIVE, next, RejReason::STALE_CONNECTION);
    world.expect_rejected(PASSIVE, passive, RejReason::STALE_CONNECTION);
    // The restarted side does not know the old connection and says so.
    assert_eq!(world.event(ACTIVE), CmEvent::Disconnected { id: active });
}

#[test]
fn letting_go_in_every_state() {
    // While the REQ is pending: the peer is notified.
    let mut world = World::new();
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[ACTIVE].release(world.now, active);
    world.expect_rejected(PASSIVE, passive, RejReason::TIMEOUT);
    world.expect_nothing_left();
    // A pending request of the peer.
    let mut world = World::new();
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].release(world.now, passive);
    world.expect_rejected(ACTIVE, active, RejReason::CONSUMER);
    world.expect_nothing_left();
    // An established connection.
    let mut world = World::new();
    let (active, passive) = world.connect();
    world.sides[ACTIVE].release(world.now, active);
    assert_eq!(world.event(PASSIVE), CmEvent::Disconnected { id: passive });
    assert_eq!(world.event(PASSIVE), CmEvent::TimewaitExit { id: passive });
    world.expect_nothing_left();
}

#[test]
fn services_for_datagrams() {
    let mut world = World::new();
    let id = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    let CmEvent::SidrRequest(asked) = world.event(PASSIVE) else { panic!("not asked") };
    assert_eq!(&asked.private_data()[..6], b"where?");
    let there = (Qpn::new(0x77), 0x0123_4567);
    world.sides[PASSIVE].answer(world.now, asked.id, SidrStatus::VALID, there, b"here").unwrap();
    match world.event(ACTIVE) {
        CmEvent::Resolved { id: found, qpn, q_key, private_data } => {
            assert_eq!((found, qpn, q_key), (id, there.0, there.1));
            assert_eq!(&private_data[..4], b"here");
        }
        other => panic!("told {other:?}"),
    }
    // Refused by release.
    let id = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    let CmEvent::SidrRequest(asked) = world.event(PASSIVE) else { panic!("not asked") };
    world.sides[PASSIVE].release(world.now, asked.id);
    let event = world.event(ACTIVE);
    assert!(matches!(event, CmEvent::Unresolved { status: SidrStatus::REJECTED, .. }), "{event:?}");
    assert_eq!(event.id(), id);
    // No listener.
    world.sides[PASSIVE].unlisten(SERVICE).unwrap();
    world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    let event = world.event(ACTIVE);
    assert!(matches!(event, CmEvent::Unresolved { status: SidrStatus::UNSUPPORTED, .. }), "{event:?}");
    world.expect_nothing_left();
}

#[test]
fn calls_that_do_not_fit() {
    let mut world = World::new();
    let now = world.now;
    let listen = CmListen { accepts: CmAccepts::Both, backlog: 1, ip_cm: true };
    assert_eq!(world.sides[PASSIVE].listen(SERVICE, listen), Err(CmError::InUse(SERVICE)));
    assert_eq!(world.sides[ACTIVE].unlisten(SERVICE), Err(CmError::NotListening(SERVICE)));
    let too_long = CmConnect { private_data: &[0; 57], ..request(0x11) };
    let error = CmError::PrivateDataTooLong { have: 57, limit: 56 };
    assert_eq!(world.sides[ACTIVE].connect(now, &too_long), Err(error));
    let datagrams = CmConnect { transport: TransportService::Rd, ..request(0x11) };
    let error = CmError::Transport(TransportService::Rd);
    assert_eq!(world.sides[ACTIVE].connect(now, &datagrams), Err(error));
    let mut mixed = request(0x11);
    mixed.path.source = "2001:db8::1".parse().unwrap();
    assert!(matches!(world.sides[ACTIVE].connect(now, &mixed), Err(CmError::Addresses { .. })));
    let id = world.sides[ACTIVE].connect(now, &request(0x11)).unwrap();
    let wrong = Err(CmError::WrongState { id, state: CmState::ReqSent });
    assert_eq!(world.sides[ACTIVE].disconnect(now, id, b""), wrong);
    assert_eq!(world.sides[ACTIVE].ready(now, id, b""), wrong);
    assert_eq!(world.sides[ACTIVE].accept(now, id, &offer(1), b"").map(|_| ()), wrong);
    assert_eq!(world.sides[ACTIVE].preview(id, &offer(1)).map(|_| ()), wrong);
    let unknown = CommId(1);
    assert_eq!(world.sides[ACTIVE].ready(now, unknown, b""), Err(CmError::Unknown(unknown)));
    assert_eq!(world.sides[ACTIVE].state(unknown), CmState::Closed);
    world.sides[ACTIVE].release(now, unknown);
}

/// If several processes share an address, replies reach the right process by the IDs that it drew.
#[test]
fn ids_are_in_the_slot_of_their_process() {
    let slots = |ids: &[CommId]| ids.iter().map(|id| ProcessSlot::of_id(id.0)).collect::<Vec<_>>();
    for slot in [1, 63, 64, 831].map(|slot| ProcessSlot::new(slot).unwrap()) {
        let mut world = World::new();
        let config = CmConfig { process_slot: slot, ..world.sides[ACTIVE].config().clone() };
        world.sides[ACTIVE] = ConnectionManager::new(config);
        let (active, _) = world.connect();
        let asked = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
        assert_eq!(slots(&[active, asked]), [slot; 2]);
        // The passive side also draws in its slot.
        let mut world = World::new();
        let listen = CmListen { accepts: CmAccepts::Both, backlog: 8, ip_cm: true };
        let config = CmConfig { process_slot: slot, ..world.sides[PASSIVE].config().clone() };
        world.sides[PASSIVE] = ConnectionManager::new(config);
        world.sides[PASSIVE].listen(SERVICE, listen).unwrap();
        assert_eq!(slots(&[world.connect().1]), [slot]);
    }
    // Without a slot, all bits are random.
    let mut world = World::new();
    let mut draw = || world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    let ids: Vec<_> = (0..64).map(|_| draw()).collect();
    let distinct: BTreeSet<_> = slots(&ids).into_iter().collect();
    assert!(distinct.len() > 32, "{distinct:?}");
}
