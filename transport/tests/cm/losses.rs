//! Tests in which each message is lost, repeated or late.

use std::time::Duration;

use roce_packet::Qpn;
use roce_packet::mad::{CmMad, RejReason, SidrStatus};
use roce_transport::cm::{CmEvent, CmState};

use crate::world::{ACTIVE, Fate, PASSIVE, TIMING, World, offer, question, request};

const HANDSHAKE: [&str; 5] = ["REQ", "REP", "RTU", "DREQ", "DREP"];

/// Returns a wire that gives the first messages of one kind this fate.
fn treat(name: &'static str, count: usize, fate: Fate) -> impl FnMut(usize, &CmMad) -> Fate {
    let mut left = count;
    move |_, mad| {
        if mad.message.name() == name && left > 0 {
            left -= 1;
            fate
        } else {
            Fate::Deliver
        }
    }
}

/// ```text
///   active    passive
///     REQ ──x
///     REQ ─────▶  (again, after the interval)
/// ```
#[test]
fn each_message_lost_once_and_often() {
    for name in HANDSHAKE {
        for count in [1, 2, 7] {
            // The REP is sent three times to a peer that does not answer, so an RTU that is lost three times
            // stays lost.
            if (name, count) == ("RTU", 7) {
                continue;
            }
            let mut world = World::with_fate(treat(name, count, Fate::Drop));
            let ids = world.connect();
            world.sides[ACTIVE].disconnect(world.now, ids.0, b"").unwrap();
            world.expect_the_end(ids);
            // The RTU and the DREP are repeated when the message before them is repeated.
            let by = usize::from(matches!(name, "REP" | "DREP"));
            assert_eq!(world.sent(by, name), count + 1, "{name} lost {count} times: {:?}", world.log);
        }
    }
}

#[test]
fn each_message_twice() {
    for name in HANDSHAKE {
        let mut world = World::with_fate(treat(name, usize::MAX, Fate::Twice));
        let ids = world.connect();
        world.run_for(Duration::from_millis(10));
        world.sides[PASSIVE].disconnect(world.now, ids.1, b"").unwrap();
        world.expect_the_end(ids);
    }
}

/// The message is so late that it is repeated first and that the messages after it overtake it.
#[test]
fn each_message_late() {
    for name in HANDSHAKE {
        let mut world = World::with_fate(treat(name, 1, Fate::Late));
        let ids = world.connect();
        world.run_for(Duration::from_millis(200));
        world.sides[ACTIVE].disconnect(world.now, ids.0, b"").unwrap();
        world.expect_the_end(ids);
    }
}

/// A repeated request that was refused is refused again; the application is asked only once.
#[test]
fn a_lost_rejection() {
    let mut world = World::with_fate(treat("REJ", 1, Fate::Drop));
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].reject(world.now, passive, RejReason::CONSUMER, b"no").unwrap();
    world.expect_rejected(ACTIVE, active, RejReason::CONSUMER);
    assert_eq!((world.sent(ACTIVE, "REQ"), world.sent(PASSIVE, "REJ")), (2, 2));
    world.expect_nothing_left();
}

#[test]
fn a_lost_rejection_of_a_rep() {
    let mut world = World::with_fate(treat("REJ", 1, Fate::Drop));
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].reject(world.now, active, RejReason::CONSUMER, b"").unwrap();
    world.expect_rejected(PASSIVE, passive, RejReason::CONSUMER);
    world.expect_nothing_left();
}

/// The active side does not learn that the passive side refused after its REP. The passive side still answers
/// the DREQ and each of its repetitions.
///
/// ```text
///   active    passive
///        ◀─── REP
///     RTU ──x
///        x─── REJ
///     DREQ ──▶
///        x─── DREP
///     DREQ ──▶  (again, after the interval)
///        ◀─── DREP
/// ```
#[test]
fn a_lost_rejection_after_the_rep() {
    let mut drep = treat("DREP", 1, Fate::Drop);
    let mut world = World::with_fate(move |side, mad| match mad.message.name() {
        "RTU" | "REJ" => Fate::Drop,
        _ => drep(side, mad),
    });
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].ready(world.now, active, b"").unwrap();
    assert!(matches!(world.event(ACTIVE), CmEvent::Established { .. }));
    world.sides[PASSIVE].reject(world.now, passive, RejReason::CONSUMER, b"").unwrap();
    world.sides[ACTIVE].disconnect(world.now, active, b"").unwrap();
    assert_eq!(world.event(ACTIVE), CmEvent::Disconnected { id: active });
    assert_eq!((world.sent(ACTIVE, "DREQ"), world.sent(PASSIVE, "DREP")), (2, 2));
    assert_eq!(world.sides[PASSIVE].state(passive), CmState::Refused);
    assert_eq!(world.event(ACTIVE), CmEvent::TimewaitExit { id: active });
    world.expect_nothing_left();
}

/// A lost MRA causes one more repetition.
#[test]
fn a_lost_mra() {
    let mut world = World::with_fate(treat("MRA", 1, Fate::Drop));
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.sent(ACTIVE, "REQ"), world.sent(PASSIVE, "MRA")), (3, 2));
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"welcome").unwrap();
    world.finish_connecting(active, passive);
}

/// A peer that never answers: the connection attempt ends after all repetitions, in the time that the formula
/// gives.
#[test]
fn a_silent_peer() {
    let mut world = World::with_fate(|_, _| Fate::Drop);
    let begin = world.now;
    let id = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let event = world.event(ACTIVE);
    assert_eq!(event, CmEvent::Unreachable { id, state: CmState::ReqSent });
    let retries = u64::from(TIMING.max_retries);
    assert_eq!(world.sent(ACTIVE, "REQ") as u64, 1 + retries);
    let took = world.now.since(begin).as_nanos() as u64;
    assert_eq!(took, (1 + retries) * TIMING.interval_ns());
    assert_eq!(world.sent(ACTIVE, "REJ"), 1);
    world.expect_nothing_left();

    let mut world = World::with_fate(|_, _| Fate::Drop);
    let id = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
    assert_eq!(world.event(ACTIVE), CmEvent::Unreachable { id, state: CmState::SidrReqSent });
    world.expect_nothing_left();
}

/// The peer vanishes at different stages of a connection.
#[test]
fn a_peer_that_vanishes() {
    // The peer vanishes after its REQ and restarts.
    let mut world = World::new();
    world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[ACTIVE] = crate::world::manager(9);
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    // The restarted peer answers that it does not know the connection.
    world.expect_rejected(PASSIVE, passive, RejReason::INVALID_COMM_ID);
    world.expect_nothing_left();

    // The peer vanishes for good after its REQ, before and after the answer.
    for accept in [false, true] {
        let mut world = World::new();
        world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
        let passive = world.asked();
        world.sides[ACTIVE] = crate::world::manager(9);
        world.set_fate(|_, _| Fate::Drop);
        let mut state = CmState::ReqReceived;
        if accept {
            world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
            state = CmState::RepSent;
        }
        assert_eq!(world.event(PASSIVE), CmEvent::Unreachable { id: passive, state });
        world.expect_nothing_left();
    }

    // The peer vanishes from an established connection: the connection still ends.
    let mut world = World::new();
    let ids = world.connect();
    world.sides[ACTIVE] = crate::world::manager(9);
    world.set_fate(|_, _| Fate::Drop);
    world.sides[PASSIVE].disconnect(world.now, ids.1, b"").unwrap();
    assert_eq!(world.event(PASSIVE), CmEvent::Disconnected { id: ids.1 });
    assert_eq!(world.sent(PASSIVE, "DREQ"), 1 + usize::from(TIMING.max_retries));
    assert_eq!(world.event(PASSIVE), CmEvent::TimewaitExit { id: ids.1 });
    world.expect_nothing_left();
}

/// The RTU never arrives; the DREQ implies it.
#[test]
fn disconnected_before_the_rtu() {
    let mut world = World::with_fate(treat("RTU", usize::MAX, Fate::Drop));
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].ready(world.now, active, b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].disconnect(world.now, active, b"").unwrap();
    world.expect_the_end((active, passive));
}

/// The passive side gives up while the active side considers the connection established. It must send nothing
/// more to an address that has never answered, but it still answers the DREQ.
#[test]
fn an_rtu_that_never_arrives() {
    let mut world = World::with_fate(treat("RTU", usize::MAX, Fate::Drop));
    let active = world.sides[ACTIVE].connect(world.now, &request(0x11)).unwrap();
    let passive = world.asked();
    world.sides[PASSIVE].accept(world.now, passive, &offer(0x22), b"").unwrap();
    world.event(ACTIVE);
    world.sides[ACTIVE].ready(world.now, active, b"").unwrap();
    world.event(ACTIVE);
    assert_eq!(world.event(PASSIVE), CmEvent::Unreachable { id: passive, state: CmState::RepSent });
    assert_eq!((world.sent(PASSIVE, "REP"), world.sent(PASSIVE, "REJ")), (3, 0));
    world.sides[ACTIVE].disconnect(world.now, active, b"").unwrap();
    assert_eq!(world.event(ACTIVE), CmEvent::Disconnected { id: active });
    assert_eq!(world.event(ACTIVE), CmEvent::TimewaitExit { id: active });
    world.expect_nothing_left();
}

#[test]
fn lost_questions_and_answers() {
    for name in ["SIDR_REQ", "SIDR_REP"] {
        for fate in [Fate::Drop, Fate::Twice, Fate::Late] {
            let mut world = World::with_fate(treat(name, 2, fate));
            let id = world.sides[ACTIVE].resolve(world.now, &question()).unwrap();
            let CmEvent::SidrRequest(asked) = world.event(PASSIVE) else { panic!("not asked") };
            let there = (Qpn::new(7), 8);
            world.sides[PASSIVE].answer(world.now, asked.id, SidrStatus::VALID, there, b"").unwrap();
            let event = world.event(ACTIVE);
            assert!(matches!(event, CmEvent::Resolved { .. }), "{name} {fate:?}: {event:?}");
            assert_eq!(event.id(), id);
            world.expect_nothing_left();
        }
    }
}
