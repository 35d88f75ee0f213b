use roce_packet::mad::{CmMessage, RejReason};
use roce_packet::pause::PauseRequest;
use roce_packet::{MacAddr, NakCode, Opcode, PauseFrame, RnrTimer, Syndrome};

use super::{Event, EventKind, Where, events};
use crate::testing::management::{dreq, rej, rep, req, rtu};
use crate::testing::wire::{Sketch, Wire};

fn kinds(wire: &Wire) -> Vec<EventKind> {
    found(wire).into_iter().map(|event| event.kind).collect()
}

fn found(wire: &Wire) -> Vec<Event> {
    events(&wire.analyze())
}

/// Ten SENDs with an ACK each, 10 µs apart; `change` may alter the packet with a number, or add others.
fn sends(change: impl Fn(&mut Wire, u64, Sketch)) -> Wire {
    let mut wire = Wire::default();
    for psn in 0..10 {
        let time = 10 * u64::from(psn);
        change(&mut wire, time, Sketch::send(1, psn));
        change(&mut wire, time + 2, Sketch::ack(2, psn, psn + 1));
    }
    wire
}

/// Changes the request with PSN 5.
fn fifth(packet: Sketch) -> bool {
    packet.psn == 5 && packet.from == 1
}

#[test]
fn names_are_keys() {
    assert!(EventKind::KEYS.len() >= 25);
    for key in EventKind::KEYS {
        assert!(key.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'), "{key}");
        assert_eq!(EventKind::KEYS.iter().filter(|other| *other == key).count(), 1, "{key}");
    }
    assert_eq!(EventKind::RequestLost(Where::BeforeTap).key(), "request_lost");
}

#[test]
fn a_good_exchange_has_no_events() {
    assert_eq!(found(&sends(|wire, time, packet| wire.at_us(time, packet))), []);
}

#[test]
fn a_damaged_packet_is_one_event() {
    let wire = sends(|wire, time, packet| match fifth(packet) {
        true => {
            wire.damaged(0, time * 1000, packet);
            wire.at_us(time + 1, packet);
        }
        false => wire.at_us(time, packet),
    });
    let found = found(&wire);
    let [event] = &found[..] else { panic!("{found:?}") };
    assert_eq!((event.kind, event.psn), (EventKind::Corrupted, Some(5)));
    assert_eq!((event.connection, event.end), (Some(0), Some(0)));
}

#[test]
fn refusals_are_named_by_their_code() {
    for (code, kind) in [
        (NakCode::InvalidRequest, EventKind::InvalidRequestNak),
        (NakCode::RemoteAccess, EventKind::RemoteAccessNak),
        (NakCode::RemoteOperational, EventKind::OperationalNak),
        (NakCode::Reserved(9), EventKind::OtherNak),
    ] {
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 5));
        wire.at_us(2, Sketch::answer(2, 5, Syndrome::Nak(code), 0));
        assert_eq!(kinds(&wire), [kind]);
    }
    let mut wire = Wire::default();
    let timer = RnrTimer::new(12).unwrap();
    wire.at_us(0, Sketch::send(1, 5));
    wire.at_us(2, Sketch::answer(2, 5, Syndrome::RnrNak { timer }, 0));
    wire.at_us(700, Sketch::send(1, 5));
    wire.at_us(702, Sketch::ack(2, 5, 1));
    assert_eq!(kinds(&wire), [EventKind::RnrNak]);
}

#[test]
fn what_only_the_capture_lacks_is_not_a_loss() {
    let wire = sends(|wire, time, packet| {
        if !fifth(packet) {
            wire.at_us(time, packet);
        }
    });
    let found = found(&wire);
    let [event] = &found[..] else { panic!("{found:?}") };
    assert_eq!((event.kind, event.psn), (EventKind::NotCaptured, Some(5)));
}

#[test]
fn marks_and_notifications_are_events() {
    let wire = sends(|wire, time, packet| match fifth(packet) {
        true => {
            wire.at_us(time, packet.marked());
            wire.at_us(time + 1, Sketch::cnp(2));
        }
        false => wire.at_us(time, packet),
    });
    assert_eq!(kinds(&wire), [EventKind::EcnMark, EventKind::Cnp]);
}

/// Two taps: the second one sees everything 2 µs later, or 2 µs earlier for answers.
fn two_taps(change: impl Fn(Sketch) -> Option<Sketch>) -> Wire {
    let mut wire = Wire::default();
    for psn in 0..10 {
        let time = 10_000 * u64::from(psn);
        let (send, ack) = (Sketch::send(1, psn), Sketch::ack(2, psn, psn + 1));
        wire.add(0, time, send);
        if let Some(send) = change(send) {
            wire.add(1, time + 2000, send);
        }
        wire.add(1, time + 3000, ack);
        if let Some(ack) = change(ack) {
            wire.add(0, time + 5000, ack);
        }
    }
    wire
}

#[test]
fn both_taps_show_one_event() {
    assert_eq!(found(&two_taps(Some)), []);
    let marked = two_taps(|packet| Some(if fifth(packet) { packet.marked() } else { packet }));
    assert_eq!(kinds(&marked), [EventKind::EcnMark]);
    let class = two_taps(|packet| Some(Sketch { dscp: if packet.from == 1 { 10 } else { 26 }, ..packet }));
    let found = found(&class);
    let [event] = &found[..] else { panic!("{found:?}") };
    assert_eq!(event.kind, EventKind::DscpChanged);
    assert!(event.summary.contains("from 26 to 10 (10 packets)"), "{}", event.summary);
}

#[test]
fn a_packet_that_the_second_capture_lacks_is_not_lost() {
    let wire = two_taps(|packet| (!fifth(packet)).then_some(packet));
    assert_eq!(kinds(&wire), [EventKind::NotCaptured], "the responder acknowledged it");
    let wire = two_taps(|packet| (packet.psn != 5 || packet.from == 1).then_some(packet));
    assert_eq!(kinds(&wire), [EventKind::AckLost(Where::BetweenTaps)]);
}

#[test]
fn late_answers_are_stalls() {
    let wire = sends(|wire, time, packet| {
        let late = if packet.psn == 9 && packet.from == 2 { 5000 } else { 0 };
        wire.at_us(time + late, packet);
    });
    assert_eq!(kinds(&wire), [EventKind::Stall]);
}

#[test]
fn a_wrong_msn_and_an_answer_to_nothing_are_named() {
    let wire = sends(|wire, time, packet| match packet.psn == 5 && packet.from == 2 {
        true => wire.at_us(time, Sketch::ack(2, 5, 60)),
        false => wire.at_us(time, packet),
    });
    assert_eq!(kinds(&wire), [EventKind::MsnJump], "the way back is none");
    let wire = sends(|wire, time, packet| match packet.psn >= 5 && packet.from == 2 {
        true => wire.at_us(time, Sketch::ack(2, packet.psn, packet.psn + 60)),
        false => wire.at_us(time, packet),
    });
    assert_eq!(kinds(&wire), [EventKind::MsnJump], "later ones confirm it");
    let wire = sends(|wire, time, packet| {
        wire.at_us(time, packet);
        if packet.psn == 9 && packet.from == 2 {
            wire.at_us(time + 1, Sketch::ack(2, 400, 10));
        }
    });
    assert_eq!(kinds(&wire), [EventKind::UnsentAnswer]);
    let wire = sends(|wire, time, packet| {
        if packet.psn != 9 || packet.from == 2 {
            wire.at_us(time, packet);
        }
    });
    assert_eq!(kinds(&wire), [EventKind::NotCaptured], "the capture lacks the last request");
}

#[test]
fn a_clock_that_goes_back_is_an_event() {
    let wire = sends(|wire, time, packet| {
        let time = if packet.psn >= 5 { time } else { time + 10_000 };
        wire.at_us(time, packet);
    });
    assert!(kinds(&wire).contains(&EventKind::ClockStep));
}

/// A frame that pauses a priority.
fn pause(priority: usize, quanta: u16) -> Vec<u8> {
    let mut priorities = [None; 8];
    priorities[priority] = Some(quanta);
    let request = PauseRequest::PerPriority(priorities);
    let mut bytes = [0; PauseFrame::LEN];
    PauseFrame { source: MacAddr([2, 0, 0, 0, 0, 9]), request }.emit(&mut bytes);
    bytes.to_vec()
}

#[test]
fn pauses_without_an_end_are_a_storm() {
    let frame = |quanta| pause(3, quanta);
    let mut wire = Wire::default();
    for number in 0..50 {
        wire.raw(0, number * 4_000_000, frame(if number == 24 { 0 } else { 0xffff }));
    }
    assert_eq!(kinds(&wire), [EventKind::Pause, EventKind::Pause], "interrupted");
    let mut wire = Wire::default();
    for number in 0..50 {
        wire.raw(0, number * 4_000_000, frame(0xffff));
    }
    let found = found(&wire);
    let [event] = &found[..] else { panic!("{found:?}") };
    assert_eq!(event.kind, EventKind::PauseStorm);
    assert!(event.summary.contains("priority 3"), "{}", event.summary);
}

#[test]
fn connection_management_is_named() {
    let mut wire = Wire::default();
    wire.cm(0, 1, 1, req());
    wire.cm(500_000, 1, 1, req());
    wire.cm(500_100, 2, 1, rej(RejReason::INVALID_SERVICE_ID));
    assert_eq!(kinds(&wire), [EventKind::CmRepetition, EventKind::CmReject]);
    let mut wire = Wire::default();
    for (time, from, message) in [(0, 1, req()), (1, 2, rep()), (2, 1, rtu()), (3, 2, dreq())] {
        wire.cm(time, from, 1, message);
    }
    wire.at_us(1_000_000, Sketch::send(1, 100));
    assert_eq!(kinds(&wire), [EventKind::NoDisconnectAnswer]);
}

/// Regression: a READ that was requested again counted as doubled by the network if a further response had
/// just passed the place of capture, as between both ends.
#[test]
fn a_response_on_its_way_does_not_make_a_repeated_read_a_copy() {
    let part = |psn: u32, opcode| Sketch { payload: 1024, ..Sketch::new(2, opcode, psn) };
    let responses = [
        Sketch { extension: Sketch::ack(2, 0, 1).extension, ..part(0, Opcode::RC_RDMA_READ_RESPONSE_FIRST) },
        part(1, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE),
        part(2, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE),
        Sketch { extension: Sketch::ack(2, 3, 1).extension, ..part(3, Opcode::RC_RDMA_READ_RESPONSE_LAST) },
    ];
    let mut wire = Wire::default();
    wire.add(0, 0, Sketch::read(1, 0, 4096));
    for (time, response) in (5000..).step_by(300).zip(&responses[..3]) {
        wire.add(0, time, *response);
    }
    // The first response is lost behind the tap. The second one shows it, and the third one is on its way.
    wire.add(0, 5700, Sketch::read(1, 0, 4096));
    wire.add(0, 5900, responses[3]);
    for (time, response) in (10_000..).step_by(300).zip(responses) {
        wire.add(0, time, response);
    }
    let kinds = kinds(&wire);
    assert_eq!(
        kinds,
        [EventKind::ResponseLost(Where::BehindTap), EventKind::ImpliedNak],
        "{:?}",
        found(&wire)
    );
}

/// Messages of connection management at some taps, in milliseconds.
fn managed(messages: &[(u16, u64, u8, CmMessage)]) -> Vec<(EventKind, String)> {
    let mut wire = Wire::default();
    for (capture, ms, from, message) in messages {
        wire.cm_at(*capture, ms * 1_000_000, *from, 1, *message);
    }
    found(&wire).into_iter().map(|event| (event.kind, event.summary)).collect()
}

/// Regression: nothing said which message of connection management was lost, and where.
#[test]
fn lost_messages_of_connection_management_are_located() {
    // The tap shows the answer, and the request comes again.
    let messages =
        [(0, 0, 1, req()), (0, 1, 2, rep()), (0, 30, 1, req()), (0, 31, 2, rep()), (0, 32, 1, rtu())];
    let found = managed(&messages);
    assert_eq!(found[0].0, EventKind::CmLost(Where::BehindTap), "{found:?}");
    let text = "the REP of 198.18.0.2 was lost behind the tap: 198.18.0.1 sent REQ again";
    assert_eq!(found[0].1, text);
    // Without the answer, nothing tells whether the request was lost, or its answer.
    let found = managed(&[(0, 0, 1, req()), (0, 30, 1, req()), (0, 31, 2, rep()), (0, 32, 1, rtu())]);
    let [(EventKind::CmRepetition, text)] = &found[..] else { panic!("{found:?}") };
    assert!(text.ends_with("the REQ was lost behind the tap, or its answer before the tap"), "{text}");
    // The second tap lacks the first request. The file of the second tap begins with the second one.
    let found = managed(&[
        (0, 0, 1, req()),
        (0, 30, 1, req()),
        (0, 32, 2, rep()),
        (0, 33, 1, rtu()),
        (1, 31, 1, req()),
        (1, 31, 2, rep()),
        (1, 34, 1, rtu()),
    ]);
    let kinds: Vec<EventKind> = found.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [EventKind::CmLost(Where::BetweenTaps), EventKind::CmRepetition], "{found:?}");
    assert_eq!(found[0].1, "the REQ of 198.18.0.1 was lost between the taps");
}

/// Regression: a request that the network delivered twice counted as one that its sender repeated.
#[test]
fn a_doubled_message_of_connection_management_is_no_repetition() {
    let found = managed(&[(0, 0, 1, req()), (0, 0, 1, req()), (0, 1, 2, rep()), (0, 2, 1, rtu())]);
    let [(EventKind::Doubled, text)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(text, "the REQ of 198.18.0.1 was delivered twice");
}

/// Regression: a silence during a pause of the link counted as one of the responder.
#[test]
fn a_pause_explains_a_late_answer() {
    let mut wire = sends(|wire, time, packet| {
        let late = if packet.psn == 9 && packet.from == 2 { 5000 } else { 0 };
        wire.at_us(time + late, packet);
    });
    for (time, quanta) in [(91_000, 0xffff), (4_900_000, 0)] {
        wire.raw(0, time, pause(3, quanta));
    }
    let found = found(&wire);
    let [event] = &found[..] else { panic!("{found:?}") };
    assert_eq!(event.kind, EventKind::Pause);
    assert_eq!(event.summary, "02:00:00:00:00:09 stops priority 3 with 1 pause frame");
}

/// Regression: of a packet that the network fragmented, both taps counted as a loss.
#[test]
fn fragments_between_two_taps_are_not_lost() {
    let mut wire = Wire::default();
    for psn in 0..10_u32 {
        let time = 10_000 * u64::from(psn);
        wire.add(0, time, Sketch::send(1, psn));
        if psn == 5 {
            wire.first_fragment(1, time + 2000, Sketch::send(1, psn));
        } else {
            wire.add(1, time + 2000, Sketch::send(1, psn));
        }
        wire.add(1, time + 3000, Sketch::ack(2, psn, psn + 1));
        wire.add(0, time + 5000, Sketch::ack(2, psn, psn + 1));
    }
    let found = found(&wire);
    let [event] = &found[..] else { panic!("{found:?}") };
    assert_eq!((event.kind, event.psn, event.at.len()), (EventKind::Fragment, Some(5), 2));
}

fn nak(psn: u32) -> Sketch {
    Sketch::answer(2, psn, Syndrome::Nak(NakCode::PsnSequence), psn)
}

fn response(psn: u32) -> Sketch {
    let extension = Sketch::ack(2, psn, 1).extension;
    Sketch { extension, payload: 1024, ..Sketch::new(2, Opcode::RC_RDMA_READ_RESPONSE_ONLY, psn) }
}

/// Regression: a request that came after its own retransmission counted as lost, and as a timeout.
#[test]
fn a_request_may_come_after_its_retransmission() {
    let mut wire = Wire::default();
    for (time, psn) in [(0, 0), (1, 2), (2, 3)] {
        wire.at_us(time, Sketch::send(1, psn));
    }
    wire.at_us(3, nak(1));
    for psn in 1..4 {
        wire.at_us(9 + u64::from(psn), Sketch::send(1, psn));
    }
    wire.at_us(14, Sketch::ack(2, 3, 4));
    wire.at_us(15, Sketch::send(1, 1));
    assert_eq!(kinds(&wire), [EventKind::SequenceNak, EventKind::GoBackN, EventKind::Overtaken]);
}

/// Regression: two taps took the retransmission for the late packet, and the other way round, so that both
/// counted as late.
#[test]
fn a_late_packet_is_not_its_retransmission_at_the_other_tap() {
    let mut wire = Wire::default();
    for psn in 0..10_u32 {
        let time = 1000 * u64::from(psn);
        wire.add(0, time, Sketch::send(1, psn));
        if psn == 6 {
            wire.add(1, 7500, nak(4));
        }
        if psn != 4 {
            wire.add(1, time + 2000, Sketch::send(1, psn));
        }
    }
    wire.add(0, 10_000, nak(4));
    for psn in 4..10_u32 {
        let time = 10_000 + 1000 * u64::from(psn);
        wire.add(0, time, Sketch::send(1, psn));
        wire.add(1, time + 2000, Sketch::send(1, psn));
    }
    wire.add(1, 22_000, Sketch::ack(2, 9, 10));
    wire.add(0, 24_000, Sketch::ack(2, 9, 10));
    wire.add(1, 34_000, Sketch::send(1, 4));
    let found = found(&wire);
    let late: Vec<&Event> = found.iter().filter(|event| event.kind == EventKind::Overtaken).collect();
    let [event] = &late[..] else { panic!("{found:?}") };
    assert_eq!((event.psn, event.at.len()), (Some(4), 2));
    assert!(!found.iter().any(|event| matches!(event.kind, EventKind::RequestLost(_))), "{found:?}");
}

/// Regression: a response that came after it had been requested again counted as lost.
#[test]
fn a_response_may_come_after_it_was_requested_again() {
    let run = |is_late: bool| {
        let mut wire = Wire::default();
        for psn in 0..4 {
            wire.at_us(psn.into(), Sketch::read(1, psn, 1024));
        }
        for psn in [0, 2, 3] {
            wire.at_us(10 + u64::from(psn), response(psn));
        }
        for psn in 1..4 {
            wire.at_us(15 + u64::from(psn), Sketch::read(1, psn, 1024));
        }
        if is_late {
            wire.at_us(20, response(1));
        }
        for psn in 1..4 {
            wire.at_us(25 + u64::from(psn), response(psn));
        }
        kinds(&wire)
    };
    assert!(run(true).contains(&EventKind::Overtaken), "{:?}", run(true));
    assert!(!run(true).contains(&EventKind::ResponseLost(Where::BeforeTap)), "{:?}", run(true));
    assert!(run(false).contains(&EventKind::ResponseLost(Where::BeforeTap)), "{:?}", run(false));
}

/// Regression: if an acknowledgement of a later request showed that a response was missing, the requester
/// that asked for it again counted as one with a timeout, and the acknowledgement as lost.
#[test]
fn an_acknowledgement_shows_that_a_response_is_missing() {
    let mut wire = Wire::default();
    wire.at_us(0, Sketch::read(1, 0, 1024));
    wire.at_us(1, Sketch::send(1, 1));
    wire.at_us(10, Sketch::ack(2, 1, 2));
    wire.at_us(150, Sketch::read(1, 0, 1024));
    wire.at_us(151, Sketch::send(1, 1));
    wire.at_us(160, response(0));
    wire.at_us(161, Sketch::ack(2, 1, 2));
    let kinds = kinds(&wire);
    assert_eq!(kinds, [EventKind::ResponseLost(Where::BeforeTap), EventKind::ImpliedNak]);
}
