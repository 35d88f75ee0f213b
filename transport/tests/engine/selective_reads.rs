//! READs and atomics with selective repeat: responses in any order, of which only the missing ones are
//! requested again.

use crate::common::{Bench, MTU, address, assert_same, pattern, settings};
use roce_packet::{Datagram, Opcode, Operation, Psn};
use roce_sim::pair::{Action, Sent, Settings, Side};
use roce_transport::congestion::Congestion;
use roce_transport::{
    Access, EngineConfig, QpState, QpType, Recovery, SelectiveRepeat, SendFlags, SendOp, SendWr, Verdict,
    WcStatus,
};

const FIRST: u32 = 0x1000;
/// Packets of a READ.
const PACKETS: usize = 40;
/// Where A puts what it reads.
const PLACE: usize = 200_000;

/// Returns a bench whose packets may be overtaken by `reorder` others. Its timeouts are far above its round
/// trip, which is 2 us.
fn bench(reorder: u32) -> Bench {
    let recovery =
        Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, reorder, ..SelectiveRepeat::default() });
    let config = EngineConfig { recovery, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.packet_time_ns = 30;
    bench.host_mut(Side::B).write_memory(0, &pattern(PACKETS * MTU));
    bench
}

fn post_read(bench: &mut Bench) {
    let read = bench.read(0);
    bench.post(1, read, PLACE, PACKETS * MTU);
}

fn assert_read(bench: &Bench) {
    let found = bench.host(Side::A).read_memory(PLACE, PACKETS * MTU);
    assert_same(&found, &pattern(PACKETS * MTU), "what was read");
}

/// Returns the number of packets of READ responses.
fn responses(bench: &Bench) -> usize {
    let is_response =
        |opcode: Opcode| opcode.info().is_some_and(|info| info.operation == Operation::ReadResponse);
    bench.trace(Side::B).into_iter().filter(|(opcode, _)| is_response(*opcode)).count()
}

#[test]
fn only_missing_responses_are_requested_again() {
    for (lost, runs) in
        [(&[3][..], 1), (&[3, 4, 5], 1), (&[0], 1), (&[2, 9, 17, 30], 4), (&[0, 1, 20, 21, 38], 3)]
    {
        let mut bench = bench(0);
        bench.once(Side::B, Operation::ReadResponse, lost, || Action::Drop);
        post_read(&mut bench);
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
        assert_read(&bench);
        assert_eq!(responses(&bench), PACKETS + lost.len(), "{lost:?}");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), runs, "{lost:?}");
        assert_eq!(bench.counter(Side::A, "implied_nak_seq_err"), 1, "{lost:?}");
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{lost:?}");
    }
}

/// The last response has none behind it that would show the loss.
#[test]
fn the_last_response_is_requested_again_after_the_timeout() {
    let mut bench = bench(0);
    bench.once(Side::B, Operation::ReadResponse, &[39], || Action::Drop);
    post_read(&mut bench);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_read(&bench);
    assert_eq!(responses(&bench), PACKETS + 1);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 1);
}

/// A request for missing responses is lost as well.
#[test]
fn a_lost_request_for_responses_is_sent_again_after_the_timeout() {
    let mut bench = bench(0);
    let (mut response, mut request) = (false, false);
    bench.set_script(move |sent: &Sent| {
        let is_read = sent.opcode == Opcode::RC_RDMA_READ_REQUEST;
        let lost = match (sent.from, sent.psn.get() - FIRST) {
            (Side::B, 7) => !core::mem::replace(&mut response, true),
            (Side::A, 7) if is_read => !core::mem::replace(&mut request, true),
            _ => false,
        };
        if lost { Action::Drop } else { Action::Pass }
    });
    post_read(&mut bench);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_read(&bench);
    assert_eq!(responses(&bench), PACKETS + 1);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 1);
}

/// Responses that are late, as in a sprayed network, are not requested again.
#[test]
fn responses_may_overtake_each_other() {
    let mut bench = bench(16);
    bench.once(Side::B, Operation::ReadResponse, &[0, 1, 7, 20, 21, 39], || Action::Delay(300));
    post_read(&mut bench);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_read(&bench);
    assert_eq!(responses(&bench), PACKETS);
    for counter in ["retransmitted_packets", "implied_nak_seq_err", "local_ack_timeout_err"] {
        assert_eq!(bench.counter(Side::A, counter), 0, "{counter}");
    }
}

/// Acknowledgements and results of requests behind a READ overtake its responses. Nothing is sent again, and
/// the requests complete in order.
#[test]
fn later_answers_may_overtake_responses() {
    let mut bench = bench(64);
    bench.once(Side::B, Operation::ReadResponse, &[0, 1, 2, 3, 4, 5, 6, 7], || Action::Delay(3_000));
    let (read, write, add) = (bench.read(0), bench.write(100_000), bench.fetch_add(90_000, 5));
    bench.post(1, read, PLACE, 8 * MTU);
    bench.post(2, write, 0, 3 * MTU);
    bench.post(3, add, 4_096, 8);
    bench.post(4, read, PLACE + 8 * MTU, 8 * MTU);
    bench.post(5, write, 0, MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [1, 2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::Success)));
    for place in [PLACE, PLACE + 8 * MTU] {
        assert_same(&bench.host(Side::A).read_memory(place, 8 * MTU), &pattern(8 * MTU), "what was read");
    }
    for counter in ["retransmitted_packets", "implied_nak_seq_err", "local_ack_timeout_err"] {
        assert_eq!(bench.counter(Side::A, counter), 0, "{counter}");
    }
}

/// A READ whose request is lost between other requests: the request is sent again as a whole.
#[test]
fn a_lost_request_of_a_read_is_repeated_as_a_whole() {
    for (behind, reorder) in [(true, 0), (true, 2), (false, 0)] {
        let mut bench = bench(reorder);
        bench.once(Side::A, Operation::ReadRequest, &[3], || Action::Drop);
        let (read, write, add) = (bench.read(0), bench.write(100_000), bench.fetch_add(90_000, 5));
        bench.post(1, write, 0, 3 * MTU);
        bench.post(2, read, PLACE, 8 * MTU);
        if behind {
            bench.post(3, write, 0, 3 * MTU);
            bench.post(4, add, 4_096, 8);
        }
        bench.drive();
        assert_eq!(bench.ended(Side::A).len(), if behind { 4 } else { 2 });
        assert_same(&bench.host(Side::A).read_memory(PLACE, 8 * MTU), &pattern(8 * MTU), "what was read");
        let reads = bench.sent.iter().filter(|sent| sent.opcode == Opcode::RC_RDMA_READ_REQUEST);
        let lengths = reads.map(|sent| Datagram::parse(&sent.bytes, &[]).unwrap().reth().unwrap().dma_len);
        assert_eq!(lengths.collect::<Vec<_>>(), [8 * MTU as u32; 2], "{behind} {reorder}");
        if reorder == 0 {
            assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 1, "only the request");
            assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), u64::from(!behind));
        }
        let added = if behind { 5_u64 } else { 0 };
        assert_eq!(bench.host(Side::B).read_memory(90_000, 8), added.to_ne_bytes(), "once");
    }
}

/// The result of an atomic is lost: it is requested again, and the operation is not executed again.
#[test]
fn a_lost_result_of_an_atomic_is_requested_again() {
    let mut bench = bench(0);
    bench.once(Side::B, Operation::AtomicAcknowledge, &[1], || Action::Drop);
    let (write, add) = (bench.write(100_000), bench.fetch_add(90_000, 5));
    bench.post(1, write, 0, MTU);
    bench.post(2, add, 4_096, 8);
    bench.post(3, add, 4_104, 8);
    bench.post(4, write, 0, MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::Success)));
    assert_eq!(bench.host(Side::B).read_memory(90_000, 8), 10_u64.to_ne_bytes());
    assert_eq!(bench.host(Side::A).read_memory(4_096, 8), 0_u64.to_ne_bytes());
    assert_eq!(bench.host(Side::A).read_memory(4_104, 8), 5_u64.to_ne_bytes());
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 1);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// A trimmed response is requested again at once, and by itself.
#[test]
fn trimmed_responses_are_requested_again_one_by_one() {
    let mut bench = bench(16);
    bench.once(Side::B, Operation::ReadResponse, &[0, 3, 4, 39], || Action::Trim);
    post_read(&mut bench);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_read(&bench);
    assert_eq!(responses(&bench), PACKETS + 4);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 4);
    assert_eq!(bench.counter(Side::A, "packet_trimmed_err"), 4);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// A trimmed header has no ICRC that can be checked, so it proves nothing about the requests before it. Here
/// they were lost, and the responses before them arrive after the forged header.
#[test]
fn a_forged_header_of_a_response_acknowledges_nothing() {
    let mut bench = bench(64);
    let mut lost = Vec::new();
    bench.set_script(move |sent: &Sent| {
        let number = sent.psn.get() - FIRST;
        match sent.from {
            Side::A if number >= 8 && !lost.contains(&number) => {
                lost.push(number);
                Action::Drop
            }
            Side::B if number < 8 => Action::Delay(5_000),
            _ => Action::Pass,
        }
    });
    bench.host_mut(Side::A).write_memory(0, &pattern(3 * MTU));
    let (read, write) = (bench.read(0), bench.write(100_000));
    bench.post(1, read, PLACE, 8 * MTU);
    bench.post(2, write, 0, 3 * MTU);
    bench.post(3, read, PLACE + 8 * MTU, 8 * MTU);
    let soon = bench.now.plus_nanos(3_000);
    bench.drive_until(soon);
    let psn = Psn::new(FIRST + 11);
    let forge = bench.forge(Side::A, Opcode::RC_RDMA_READ_RESPONSE_FIRST, psn).aeth(0x1f, 1);
    let verdict = bench.deliver_trimmed(Side::A, forge.path, &forge.build()[..16]);
    assert_eq!(verdict, Verdict::Handled);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
    assert_same(&bench.host(Side::B).read_memory(100_000, 3 * MTU), &pattern(3 * MTU), "what was written");
    for place in [PLACE, PLACE + 8 * MTU] {
        assert_same(&bench.host(Side::A).read_memory(place, 8 * MTU), &pattern(8 * MTU), "what was read");
    }
}

/// A response was late and not lost. When the request for it arrives, the READ is complete at its
/// requester, and the owner of the memory has taken the key back.
#[test]
fn a_part_without_its_key_is_dropped() {
    let mut bench = bench(0);
    let mut late = false;
    bench.set_script(move |sent: &Sent| match (sent.from, sent.psn.get() - FIRST) {
        (Side::B, 3) if !late => {
            late = true;
            Action::Delay(200)
        }
        (Side::A, 3) => Action::Delay(20_000),
        _ => Action::Pass,
    });
    let region = bench.host_mut(Side::B).register(Access::REMOTE_READ).unwrap();
    let read = SendOp::Read { remote_addr: address(0), rkey: region.rkey };
    bench.post(1, read, PLACE, PACKETS * MTU);
    let soon = bench.now.plus_nanos(10_000);
    bench.drive_until(soon);
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 1, "the request is on its way");
    bench.host_mut(Side::B).engine.deregister(region.lkey).unwrap();
    bench.drive();
    assert_eq!((bench.state(Side::A), bench.state(Side::B)), (QpState::Rts, QpState::Rts));
    post_read(&mut bench);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_read(&bench);
}

/// The RNR NAK of a SEND comes while a response before it is missing. The SEND fails, not the READ.
#[test]
fn the_request_without_a_receive_is_the_one_that_fails() {
    let recovery = Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() });
    let config = EngineConfig { recovery, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &Settings { rnr_retry: 0, ..settings() }, config);
    bench.packet_time_ns = 30;
    bench.once(Side::B, Operation::ReadResponse, &[3], || Action::Drop);
    let read = bench.read(0);
    bench.post(1, read, PLACE, 8 * MTU);
    bench.post(2, SendOp::Send, 0, MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success), (2, WcStatus::RnrRetryExceededError)]);
}

/// A timeout during a go-back: the READs that are still to be sent again are counted as outstanding, so a
/// fence waits for them.
#[test]
fn a_fence_holds_after_a_timeout_during_a_go_back() {
    let selective = SelectiveRepeat { cap: 64, rto_low: 60, rto_high: 60, ..SelectiveRepeat::default() };
    let (congestion, _) = Congestion::parse("fixed:1Gbps").unwrap();
    let recovery = Recovery::SelectiveRepeat(selective);
    let config = EngineConfig { recovery, congestion, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &Settings { min_rnr_timer: 1, ..settings() }, config);
    bench.packet_time_ns = 30;
    bench.host_mut(Side::B).write_memory(0, &pattern(PACKETS * MTU));
    let lossy = bench.now.plus_nanos(300_000);
    bench.set_script(move |sent: &Sent| match (sent.from, sent.psn.get() - FIRST) {
        (Side::B, 0) if sent.at < lossy => Action::Drop,
        (Side::B, 43..46) => Action::Delay(600_000),
        _ => Action::Pass,
    });
    let (read, later, write) = (bench.read(0), bench.read(8 * MTU), bench.write(100_000));
    bench.post(1, read, PLACE, 3 * MTU);
    bench.post(2, write, 0, 40 * MTU);
    bench.post(3, later, PLACE + 8 * MTU, 3 * MTU);
    bench.post(4, SendOp::Send, 0, MTU);
    let elements = [bench.host(Side::A).memory_range(PLACE + 8 * MTU, 3 * MTU)];
    let (a, fenced) = (bench.a, bench.write(150_000));
    let request = SendWr::new(5, fenced, &elements).with_flags(SendFlags::SIGNALED | SendFlags::FENCE);
    bench.post_send(Side::A, a, &request).unwrap();
    let soon = bench.now.plus_nanos(300_000);
    bench.drive_until(soon);
    assert!(bench.counter(Side::A, "rnr_nak_retry_err") > 0, "the SEND has no receive yet");
    bench.receive(1, 0, MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [1, 2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::Success)));
    let expected = &pattern(11 * MTU)[8 * MTU..];
    assert_same(
        &bench.host(Side::B).read_memory(150_000, 3 * MTU),
        expected,
        "what the fenced WRITE took on",
    );
}
