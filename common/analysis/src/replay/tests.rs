use roce_packet::{Msn, NakCode, Opcode, Psn, Reth, RnrTimer, Syndrome};

use super::*;
use crate::record::{Extension, StreamId};
use crate::testing::records::Traffic;

const REQUESTS: StreamId = StreamId(0);
const ANSWERS: StreamId = StreamId(1);
const HALF: Half = Half { requests: Some(REQUESTS), answers: Some(ANSWERS) };
/// PSNs begin shortly before they wrap around.
const FIRST: u32 = 0xff_fffe;

/// Packets of one direction, a microsecond apart unless a test waits.
#[derive(Default)]
struct Wire(Traffic);

impl Wire {
    fn push(&mut self, stream: StreamId, opcode: Opcode, psn: u32, extension: Extension) -> usize {
        let index = self.0.records.len();
        let payload_len = match opcode {
            Opcode::RC_RDMA_WRITE_FIRST
            | Opcode::RC_RDMA_WRITE_MIDDLE
            | Opcode::RC_RDMA_READ_RESPONSE_FIRST => 1024,
            Opcode::RC_RDMA_READ_RESPONSE_MIDDLE | Opcode::RC_RDMA_READ_RESPONSE_LAST => 1024,
            _ => 64,
        };
        let record = self.0.add(stream == ANSWERS, 7, opcode, (FIRST + psn) & Psn::MASK);
        assert_eq!(record.stream, stream, "requests come first");
        (record.payload_len, record.extension) = (payload_len, extension);
        (record.icrc, record.payload_crc) = (psn, psn + 1);
        index
    }

    fn wait_us(&mut self, us: u64) {
        self.0.now_ns += us * 1000;
    }

    fn send(&mut self, psn: u32) -> usize {
        self.push(REQUESTS, Opcode::RC_SEND_ONLY, psn, Extension::None)
    }

    fn read(&mut self, psn: u32, va: u64, dma_len: u32) -> usize {
        let reth = Reth { va, rkey: 7, dma_len };
        self.push(REQUESTS, Opcode::RC_RDMA_READ_REQUEST, psn, Extension::Reth(reth))
    }

    fn answer(&mut self, psn: u32, syndrome: Syndrome) -> usize {
        self.push(ANSWERS, Opcode::RC_ACKNOWLEDGE, psn, Extension::Aeth(syndrome, Msn::new(0)))
    }

    fn ack(&mut self, psn: u32) -> usize {
        self.answer(psn, Syndrome::ACK_UNLIMITED)
    }

    fn nak(&mut self, psn: u32) -> usize {
        self.answer(psn, Syndrome::Nak(NakCode::PsnSequence))
    }

    fn response(&mut self, psn: u32) -> usize {
        self.push(ANSWERS, Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, psn, Extension::None)
    }

    fn replay(&self) -> Replay {
        let indices: Vec<usize> = (0..self.0.records.len()).collect();
        replay(&self.0.records, &indices, HALF)
    }
}

const fn psn(number: u64) -> u64 {
    ORIGIN + number
}

#[test]
fn a_lost_request_is_a_gap_that_a_nak_closes() {
    let mut wire = Wire::default();
    for number in [0, 1, 3, 4] {
        wire.send(number);
    }
    let nak = wire.nak(2);
    let again = wire.send(2);
    for number in [3, 4, 5] {
        wire.send(number);
    }
    wire.ack(5);
    let replay = wire.replay();
    let expected = Gap { first: psn(2), count: 1, after: 2, is_of_resend: false, end: GapEnd::Resent };
    assert_eq!(replay.gaps, [expected]);
    let [resend] = *replay.resends else { panic!("{:?}", replay.resends) };
    assert_eq!((resend.psn, resend.at, resend.packets, resend.needless), (psn(2), again, 3, 0));
    assert_eq!(resend.cause, Cause::Nak(nak));
    let [nak] = *replay.naks else { panic!("{:?}", replay.naks) };
    assert!(nak.has_later && !nak.was_seen && !nak.was_acknowledged && nak.repeats.is_none());
    assert_eq!((nak.resend, replay.unacknowledged, replay.messages.len()), (Some(0), psn(6), 6));
}

#[test]
fn a_second_nak_for_one_packet_repeats_the_first() {
    let mut wire = Wire::default();
    for number in [0, 1, 2] {
        wire.send(number);
    }
    let first = wire.nak(1);
    wire.nak(1);
    let replay = wire.replay();
    assert_eq!(replay.naks.iter().map(|nak| nak.repeats).collect::<Vec<_>>(), [None, Some(first)]);
    // The second copy may be lost, too.
    let mut wire = Wire::default();
    for number in [0, 1, 2] {
        wire.send(number);
    }
    wire.nak(1);
    wire.send(1);
    wire.send(2);
    wire.nak(1);
    assert!(wire.replay().naks.iter().all(|nak| nak.repeats.is_none()));
}

#[test]
fn an_overtaken_request_is_not_sent_again() {
    let mut wire = Wire::default();
    wire.send(0);
    wire.send(2);
    let late = wire.send(1);
    wire.send(3);
    wire.ack(3);
    let replay = wire.replay();
    assert_eq!(replay.overtaken, [late]);
    assert!(replay.resends.is_empty(), "{:?}", replay.resends);
    assert_eq!(replay.gaps.iter().map(|gap| gap.end).collect::<Vec<_>>(), [GapEnd::Overtaken]);
}

#[test]
fn a_copy_by_the_network_is_not_sent_again() {
    let mut wire = Wire::default();
    let first = wire.send(0);
    wire.send(1);
    let copy = wire.send(0);
    wire.send(2);
    let replay = wire.replay();
    assert_eq!(replay.doubled, [(first, copy)]);
    assert!(replay.resends.is_empty(), "{:?}", replay.resends);
}

#[test]
fn silence_before_a_repetition_is_a_timeout() {
    let mut wire = Wire::default();
    wire.send(0);
    wire.wait_us(67_000);
    wire.send(0);
    wire.wait_us(134_000);
    wire.send(0);
    wire.ack(0);
    let causes: Vec<Cause> = wire.replay().resends.iter().map(|resend| resend.cause).collect();
    let timeout = |us: u64, since| Cause::Timeout { waited_ns: us * 1000, since: Some(since) };
    assert_eq!(causes, [timeout(67_001, 0), timeout(134_001, 1)], "each counts from the last copy");
}

/// Regression: nothing said from which packet the time of a timeout counts.
#[test]
fn a_timeout_counts_from_the_last_copy_or_from_later_progress() {
    let mut wire = Wire::default();
    for number in 0..2 {
        wire.send(number);
    }
    wire.wait_us(30_000);
    wire.ack(0);
    wire.wait_us(67_000);
    wire.send(1);
    let replay = wire.replay();
    let [resend] = &replay.resends[..] else { panic!("{:?}", replay.resends) };
    assert_eq!(resend.cause, Cause::Timeout { waited_ns: 67_001_000, since: Some(2) });
    assert_eq!(resend.first, Some(1));
}

#[test]
fn requests_that_only_the_capture_lacks_are_not_lost() {
    let mut wire = Wire::default();
    wire.send(0);
    wire.send(3);
    wire.ack(3);
    let replay = wire.replay();
    assert_eq!(
        replay.gaps.iter().map(|gap| (gap.count, gap.end)).collect::<Vec<_>>(),
        [(2, GapEnd::NotCaptured)]
    );
}

#[test]
fn a_repetition_goes_on_behind_packets_that_are_lost_again() {
    let mut wire = Wire::default();
    for number in 0..6 {
        wire.send(number);
    }
    wire.nak(1);
    // 3 is lost before this place, and asked for again.
    for number in [1, 2, 4, 5] {
        wire.send(number);
    }
    wire.nak(3);
    for number in [3, 4, 5, 6] {
        wire.send(number);
    }
    let replay = wire.replay();
    assert_eq!(
        replay.resends.iter().map(|resend| (resend.psn, resend.packets)).collect::<Vec<_>>(),
        [(psn(1), 4), (psn(3), 3)]
    );
    let gaps: Vec<_> = replay.gaps.iter().map(|gap| (gap.first, gap.is_of_resend, gap.end)).collect();
    assert_eq!(gaps, [(psn(3), true, GapEnd::Resent)]);
}

/// A requester that probes sends the oldest and the newest packet by turns. What lies between them is not
/// lost in front of the tap.
#[test]
fn probes_after_timeouts_leave_no_gaps() {
    let mut wire = Wire::default();
    for number in 0..6 {
        wire.send(number);
    }
    for number in [5, 0, 5, 0] {
        wire.wait_us(10_000);
        wire.send(number);
    }
    wire.wait_us(10_000);
    for number in 0..6 {
        wire.send(number);
    }
    let replay = wire.replay();
    assert_eq!(replay.gaps, []);
    let returns: Vec<_> = replay.resends.iter().map(|resend| (resend.psn, resend.packets)).collect();
    assert_eq!(returns, [(psn(5), 1), (psn(0), 1), (psn(5), 1), (psn(0), 1), (psn(0), 6)]);
    assert!(replay.resends.iter().all(|resend| matches!(resend.cause, Cause::Timeout { .. })));
}

#[test]
fn missing_responses_are_requested_again() {
    let mut wire = Wire::default();
    wire.read(0, 0x1000, 4096);
    wire.response(0);
    wire.response(2);
    wire.response(3);
    let again = wire.read(1, 0x1400, 3072);
    for number in 1..4 {
        wire.response(number);
    }
    wire.send(4);
    let replay = wire.replay();
    let [gap] = *replay.response_gaps else { panic!("{:?}", replay.response_gaps) };
    assert_eq!((gap.first, gap.count, gap.after, gap.again), (psn(1), 1, 2, Some(again)));
    assert_eq!(replay.resends[0].cause, Cause::ImpliedNak(2));
    assert_eq!(replay.unacknowledged, psn(4));
    assert!(replay.reads.wrong_resumption.is_empty() && replay.changed.is_empty());
    assert!(replay.reads.wrong_length.is_empty());
}

/// Regression: a response that is lost behind the place of capture leaves no gap, so the last response to the
/// first READ counted as one to the second, with a gap before it.
#[test]
fn late_responses_of_a_read_do_not_answer_its_resumption() {
    let mut wire = Wire::default();
    wire.read(0, 0x1000, 4096);
    for number in 0..3 {
        wire.response(number);
    }
    wire.read(1, 0x1400, 3072);
    let late = wire.response(3);
    for number in 1..4 {
        wire.response(number);
    }
    let replay = wire.replay();
    assert!(replay.response_gaps.is_empty(), "{:?}", replay.response_gaps);
    assert!(replay.dropped_responses.contains(&late) && replay.dropped_responses.len() == 1);
    assert_eq!(replay.resends[0].cause, Cause::ImpliedNak(3));
    assert_eq!((replay.unacknowledged, replay.repeated_responses), (psn(4), 0));
}

#[test]
fn a_read_that_is_resumed_at_the_wrong_place_is_noticed() {
    for (va, len) in [(0x1000, 3072), (0x1400, 4096)] {
        let mut wire = Wire::default();
        let first = wire.read(0, 0x1000, 4096);
        wire.response(0);
        wire.response(2);
        let again = wire.read(1, va, len);
        assert_eq!(wire.replay().reads.wrong_resumption, [(again, first)]);
    }
}

#[test]
fn an_atomic_operation_that_is_executed_twice_is_noticed() {
    let mut wire = Wire::default();
    wire.push(REQUESTS, Opcode::RC_FETCH_ADD, 0, Extension::None);
    let ack = |original| Extension::AtomicAck(Syndrome::ACK_UNLIMITED, Msn::new(1), original);
    let before = wire.push(ANSWERS, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0, ack(5));
    wire.wait_us(70_000);
    wire.push(REQUESTS, Opcode::RC_FETCH_ADD, 0, Extension::None);
    let now = wire.push(ANSWERS, Opcode::RC_ATOMIC_ACKNOWLEDGE, 0, ack(6));
    let replay = wire.replay();
    let changed: Vec<_> = replay.changed.iter().map(|changed| (changed.before, changed.now)).collect();
    assert_eq!(changed, [(before, now)]);
    assert!(replay.resends[0].was_answered);
}

#[test]
fn an_rnr_nak_is_followed_by_another_try() {
    let mut wire = Wire::default();
    wire.send(0);
    let timer = RnrTimer::new(12).unwrap();
    let nak = wire.answer(0, Syndrome::RnrNak { timer });
    wire.wait_us(700);
    let again = wire.send(0);
    let replay = wire.replay();
    assert_eq!(replay.rnr.iter().map(|rnr| (rnr.at, rnr.again)).collect::<Vec<_>>(), [(nak, Some(again))]);
    assert_eq!(replay.resends[0].cause, Cause::Rnr(nak));
}

/// Regression: the packet counted as lost, because a NAK for a sequence error asks for it, too.
#[test]
fn a_packet_that_an_rnr_nak_refused_is_not_lost() {
    let mut wire = Wire::default();
    for number in [0, 1, 2] {
        wire.send(number);
    }
    wire.answer(1, Syndrome::RnrNak { timer: RnrTimer::new(12).unwrap() });
    wire.nak(1);
    let [nak] = *wire.replay().naks else { panic!("one NAK") };
    assert!(nak.was_seen && nak.follows_rnr && !nak.shows_loss_behind());
}

#[test]
fn a_refusal_counts_the_requests_after_it() {
    let mut wire = Wire::default();
    wire.send(0);
    wire.answer(0, Syndrome::Nak(NakCode::RemoteAccess));
    wire.send(1);
    let replay = wire.replay();
    assert_eq!(replay.refusals.iter().map(|refusal| refusal.later_requests).collect::<Vec<_>>(), [1]);
}

#[test]
fn an_answer_to_nothing_that_was_sent_is_kept_apart() {
    let mut wire = Wire::default();
    wire.send(0);
    let unsent = wire.ack(9);
    let replay = wire.replay();
    assert_eq!((replay.unsent, replay.unacknowledged), (vec![unsent], ORIGIN));
}

#[test]
fn the_queue_pairs_may_be_connected_again() {
    let mut wire = Wire::default();
    wire.send(0);
    wire.ack(0);
    wire.send(5_000_000);
    wire.ack(5_000_000);
    wire.send(9);
    wire.ack(9);
    let replay = wire.replay();
    assert!(replay.gaps.is_empty() && replay.resends.is_empty(), "{replay:?}");
    assert_eq!((replay.sent.len(), replay.messages.len()), (3, 3));
}
