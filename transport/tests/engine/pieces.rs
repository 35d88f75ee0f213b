//! READs that are requested in pieces: how many are outstanding, and at which rate they are requested.

use roce_packet::{Datagram, Operation};
use roce_sim::pair::{Action, Sent, Settings, Side};
use roce_transport::congestion::Rate;
use roce_transport::{EngineConfig, QpType, Recovery, SelectiveRepeat, SendWr, WcStatus};

use crate::common::{Bench, MTU, assert_same, pattern, settings};

/// Packets of a READ: ten pieces of four, and one of two.
const PACKETS: usize = 42;
const PIECE: u32 = 4;
/// Where A puts what it reads.
const PLACE: usize = 200_000;

fn bench(rd_atomic: u8, recovery: Recovery, read_rate: Rate) -> Bench {
    let mut config =
        EngineConfig { max_read_packets: PIECE, recovery, read_rate, ..EngineConfig::from_number(7) };
    config.pacing.burst = 0;
    let mut bench = Bench::with_config(QpType::Rc, &Settings { rd_atomic, ..settings() }, config);
    bench.packet_time_ns = 30;
    bench.host_mut(Side::B).write_memory(0, &pattern(PACKETS * MTU));
    bench
}

/// A rate at which each piece has its turn at once.
fn any_rate() -> Rate {
    Rate::megabits_per_second(100_000_000)
}

fn recoveries() -> [Recovery; 2] {
    let selective = SelectiveRepeat { cap: 64, reorder: 0, ..SelectiveRepeat::default() };
    [Recovery::GoBackN, Recovery::SelectiveRepeat(selective)]
}

/// Reads all of B's bytes.
#[track_caller]
fn read_all(bench: &mut Bench) {
    let read = bench.read(0);
    bench.post(1, read, PLACE, PACKETS * MTU);
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    let found = bench.host(Side::A).read_memory(PLACE, PACKETS * MTU);
    assert_same(&found, &pattern(PACKETS * MTU), "what was read");
}

/// Returns the times of A's READ requests in nanoseconds, and their lengths.
fn requests(bench: &Bench) -> Vec<(u64, u32)> {
    let length = |sent: &Sent| Some(Datagram::parse(&sent.bytes, &[]).ok()?.reth()?.dma_len);
    let from_a = bench.sent.iter().filter(|sent| sent.from == Side::A);
    from_a.filter_map(|sent| Some((sent.at.as_nanos(), length(sent)?))).collect()
}

fn is_last(sent: &Sent) -> bool {
    matches!(sent.opcode, roce_packet::Opcode::RC_RDMA_READ_RESPONSE_LAST)
}

/// As many pieces are outstanding as READs may be. Each is requested once.
#[test]
fn pieces_of_a_read_are_outstanding_together() {
    for limit in [1, 2, 3, 16] {
        for recovery in recoveries() {
            let mut bench = bench(limit, recovery, any_rate());
            read_all(&mut bench);
            let lengths: Vec<u32> = requests(&bench).iter().map(|(_, len)| *len).collect();
            let expected: Vec<u32> = [vec![PIECE * MTU as u32; 10], vec![2 * MTU as u32]].concat();
            assert_eq!(lengths, expected);
            let (mut outstanding, mut most) = (0_u32, 0);
            for sent in &bench.sent {
                match sent.from {
                    Side::A => outstanding += 1,
                    Side::B => outstanding -= u32::from(is_last(sent)),
                }
                most = most.max(outstanding);
            }
            assert_eq!(most, u32::from(limit).min(11));
        }
    }
}

/// Without a rate, nothing but its length limits the response to a piece.
#[test]
fn without_a_rate_one_piece_is_outstanding() {
    let mut bench = bench(16, Recovery::GoBackN, Rate::UNLIMITED);
    read_all(&mut bench);
    let from: Vec<Side> = bench
        .sent
        .iter()
        .filter(|sent| sent.from == Side::A || is_last(sent))
        .map(|sent| sent.from)
        .collect();
    assert_eq!(from, [Side::A, Side::B].repeat(11));
}

/// Each packet of either side is lost once, and then each two neighbours.
#[test]
fn a_lost_piece_is_requested_again() {
    for recovery in recoveries() {
        for from in [Side::A, Side::B] {
            for at in 0..PACKETS {
                for count in [1, 2] {
                    let mut bench = bench(3, recovery, any_rate());
                    let mut seen = 0;
                    bench.set_script(move |sent| {
                        let is_lost = sent.from == from && (at..at + count).contains(&seen);
                        seen += usize::from(sent.from == from);
                        if is_lost { Action::Drop } else { Action::Pass }
                    });
                    read_all(&mut bench);
                }
            }
        }
    }
}

/// Responses of later pieces arrive after a request for earlier ones was repeated.
#[test]
fn late_responses_of_later_pieces_fit() {
    for recovery in recoveries() {
        for late in 1..PACKETS {
            let mut bench = bench(16, recovery, any_rate());
            let mut seen = 0;
            bench.set_script(move |sent| {
                let is_response =
                    sent.opcode.info().map(|info| info.operation) == Some(Operation::ReadResponse);
                seen += usize::from(is_response);
                match seen {
                    1 if is_response => Action::Drop,
                    // Behind the repeated request.
                    number if is_response && number > late && number < PACKETS => Action::Delay(5_000),
                    _ => Action::Pass,
                }
            });
            read_all(&mut bench);
        }
    }
}

/// The responses to all requests take the rate, and no more.
#[test]
fn requests_take_turns_at_the_rate() {
    for recovery in recoveries() {
        let mut bench = bench(16, recovery, Rate::megabits_per_second(10_000));
        read_all(&mut bench);
        // 20 preamble and gap + 14 + 20 + 8 + 12 + 256 + 4 + 4 FCS, and two AETHs.
        let piece_ns = (4 * 338 + 2 * 4) * 8 / 10;
        let times: Vec<u64> = requests(&bench).iter().map(|(time, _)| *time).collect();
        let expected: Vec<u64> = (0..11).map(|number| times[0] + number * piece_ns).collect();
        assert_eq!(times, expected);
    }
}

/// Several queue pairs share the rate equally, and one alone has all of it.
#[test]
fn queue_pairs_share_the_rate() {
    let mut bench = bench(16, Recovery::GoBackN, Rate::megabits_per_second(10_000));
    let settings = Settings { rd_atomic: 16, ..settings() };
    let mut qps = vec![bench.a];
    for _ in 0..3 {
        qps.push(bench.pair.connect_with(QpType::Rc, &settings).0);
    }
    let read = bench.read(0);
    for qpn in &qps {
        let element = bench.host(Side::A).memory_range(PLACE, PACKETS * MTU);
        bench.post_send(Side::A, *qpn, &SendWr::new(1, read, &[element])).unwrap();
    }
    bench.drive();
    assert_eq!(bench.ended(Side::A).len(), 4);
    let targets: Vec<_> =
        bench.sent.iter().filter(|sent| sent.from == Side::A).map(|sent| sent.dest_qp).collect();
    assert_eq!(targets.len(), 44);
    for round in targets.chunks(4) {
        let mut round = round.to_vec();
        round.sort_unstable();
        round.dedup();
        assert_eq!(round.len(), 4, "each queue pair has one turn in four");
    }
}

/// A READ request that is sent again may wait for its turn longer than the timeout. The timer starts with it.
#[test]
fn a_turn_that_comes_late_is_no_timeout() {
    for recovery in recoveries() {
        // A turn takes 1.1 ms, so eight queue pairs take longer than the timeouts.
        let mut bench = bench(16, recovery, Rate::megabits_per_second(10));
        let settings = Settings { rd_atomic: 16, timeout: 9, retry_cnt: 1, ..settings() };
        let read = bench.read(0);
        for number in 0..8 {
            let qpn = bench.pair.connect_with(QpType::Rc, &settings).0;
            let element = bench.host(Side::A).memory_range(PLACE, PACKETS * MTU);
            bench.post_send(Side::A, qpn, &SendWr::new(number, read, &[element])).unwrap();
        }
        let mut seen = std::collections::BTreeMap::<_, usize>::new();
        bench.set_script(move |sent| {
            let count = seen.entry(sent.dest_qp).or_default();
            *count += 1;
            if sent.from == Side::B && *count == 7 { Action::Drop } else { Action::Pass }
        });
        bench.drive();
        let ended = bench.ended(Side::A);
        assert_eq!(ended.len(), 8, "{recovery:?}");
        assert!(ended.iter().all(|(_, status)| *status == WcStatus::Success), "{recovery:?}: {ended:?}");
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{recovery:?}");
    }
}
