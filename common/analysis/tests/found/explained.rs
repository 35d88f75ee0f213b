//! Failures that users and studies report, in a capture each, and what the verdicts say about them.

use std::time::Duration;

use roce_analysis::Analysis;
use roce_analysis::counters::{Snapshot, compare};
use roce_analysis::summary::summary;
use roce_analysis::verdict::{Outcome, Verdict, of_capture, of_connection, of_counters};
use roce_packet::{Opcode, Operation, Qpn};
use roce_sim::pair::{Action, Pair, Sent, Side};
use roce_testing::check_table;
use roce_testing::encapsulated::Tunnel;
use roce_transport::{QpType, SendOp, SendWr};

use crate::scene::{DELAY_NS, PACKET_NS, Seen, Style, Tapped, Taps, analyze, tapped};

/// A failure with its captures.
struct Failure {
    /// The failure, as a sentence.
    name: &'static str,
    /// Who reports it.
    source: &'static str,
    /// How the captures were made.
    made: &'static str,
    /// The verdict that explains it.
    key: &'static str,
    outcome: Outcome,
    play: fn() -> Vec<Verdict>,
}

/// Two hosts on a link, whose packets are recorded.
pub(crate) fn pair(script: impl FnMut(&Sent) -> Action + 'static) -> Pair {
    let mut pair = Pair::new(1);
    pair.link_delay_ns = DELAY_NS;
    pair.packet_time_ns = PACKET_NS;
    pair.record = true;
    pair.set_script(script);
    pair
}

pub(crate) fn post(pair: &mut Pair, qpn: Qpn, wr_id: u64, operation: Operation, len: usize) {
    let local = pair.host(Side::A).memory_range(0, len);
    let (remote_addr, rkey) = (pair.host(Side::B).memory_range(0, len).addr, pair.host(Side::B).rkey());
    let op = match operation {
        Operation::ReadRequest => SendOp::Read { remote_addr, rkey },
        Operation::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        Operation::Send => SendOp::Send,
        _ => SendOp::Write { remote_addr, rkey },
    };
    pair.post_send(Side::A, qpn, &SendWr::new(wr_id, op, &[local])).unwrap();
}

/// Eight messages of one kind, in four rounds with pauses; `script` decides about the packets.
fn rounds(operation: Operation, len: usize, script: impl FnMut(&Sent) -> Action + 'static) -> Tapped {
    let mut pair = pair(script);
    let (a, _) = pair.connect(QpType::Rc);
    for round in 0..4 {
        post(&mut pair, a, 2 * round, operation, len);
        post(&mut pair, a, 2 * round + 1, operation, len);
        pair.drive();
        pair.now = pair.now.plus_nanos(100_000);
    }
    tapped(&pair.sent)
}

/// Loses the packet with this number among those that `is_it` chooses.
pub(crate) fn lose(number: usize, is_it: impl Fn(&Sent) -> bool + 'static) -> impl FnMut(&Sent) -> Action {
    let mut seen = 0;
    move |sent| {
        seen += usize::from(is_it(sent));
        if is_it(sent) && seen == number + 1 { Action::Drop } else { Action::Pass }
    }
}

pub(crate) fn is_write(sent: &Sent) -> bool {
    sent.opcode.info().is_some_and(|info| info.operation == Operation::Write)
}

pub(crate) fn is_response(sent: &Sent) -> bool {
    sent.opcode.info().is_some_and(|info| info.operation == Operation::ReadResponse)
}

/// Delays everything from the first packet on that `is_first` chooses.
fn later(taps: &mut Tapped, delay: Duration, is_first: impl Fn(&Seen) -> bool) {
    let first = taps.iter().flatten().filter(|seen| is_first(seen)).map(|seen| seen.sent).min().unwrap();
    for seen in taps.iter_mut().flatten().filter(|seen| seen.sent >= first) {
        seen.time += delay.as_nanos() as u64;
    }
}

pub(crate) fn edit(taps: &mut Tapped, is_it: impl Fn(&Seen) -> bool, change: impl Fn(&mut Seen)) {
    let all = taps.iter_mut().flatten().filter(|seen| is_it(seen));
    let count = all.map(|seen| {
        change(seen);
        seen.seal();
    });
    assert!(count.count() > 0, "the captures have no packet to change");
}

fn both(taps: &Tapped) -> Analysis {
    analyze(taps, Style { taps: Taps::Both, tunnel: Tunnel::ALL[0], is_truncated: false })
}

fn judge(taps: &Tapped) -> Vec<Verdict> {
    judged(&both(taps))
}

pub(crate) fn judged(analysis: &Analysis) -> Vec<Verdict> {
    let of_connections = analysis.connections.iter().flat_map(|one| of_connection(analysis, one));
    of_connections.chain(of_capture(analysis)).collect()
}

pub(crate) fn is_nak(seen: &Seen) -> bool {
    seen.opcode() == Opcode::RC_ACKNOWLEDGE && seen.bytes[12] >> 5 == 3
}

pub(crate) fn is_rnr(seen: &Seen) -> bool {
    seen.opcode() == Opcode::RC_ACKNOWLEDGE && seen.bytes[12] >> 5 == 1
}

/// The first request that goes back behind PSNs of the same connection, at the tap near the requester.
pub(crate) fn first_again(taps: &Tapped) -> Seen {
    let mut highest = 0;
    let again = taps[0].iter().find(|seen| {
        let is_again = seen.from == Side::A && highest > 0 && seen.psn() <= highest;
        highest = highest.max(seen.psn());
        is_again
    });
    again.expect("a packet that was sent again").clone()
}

/// Regression: acknowledgements that were lost between two taps counted as lost requests of their sender.
#[test]
fn lost_acknowledgements_are_counted_as_answers() {
    let is_ack = |sent: &Sent| sent.opcode == Opcode::RC_ACKNOWLEDGE;
    let taps = rounds(Operation::Write, 4000, lose(1, is_ack));
    let analysis = both(&taps);
    let summary = summary(&analysis, &analysis.connections[0]);
    let lost: Vec<u64> = summary.requests.iter().map(|one| one.lost).collect();
    let lost_answers: Vec<u64> = summary.requests.iter().map(|one| one.lost_answers).collect();
    assert_eq!((lost, lost_answers), (vec![0, 0], vec![1, 0]));
}

/// CNPs are longer than acknowledgements: a network that loses only CNPs has no small MTU.
#[test]
fn lost_notifications_say_nothing_about_the_path_mtu() {
    let taps = rounds(Operation::Write, 4000, |sent| match sent.opcode {
        Opcode::CNP => Action::Drop,
        _ => Action::Mark,
    });
    let verdicts = judge(&taps);
    let mtu = verdicts.iter().find(|verdict| verdict.rule.key == "mtu").expect("a verdict");
    assert_eq!(mtu.outcome, Outcome::Pass, "{mtu:?}");
    let cnp = verdicts.iter().find(|verdict| verdict.rule.key == "cnp").expect("a verdict");
    assert_eq!(cnp.outcome, Outcome::Fail, "{cnp:?}");
    assert!(cnp.summary.contains("CNPs were lost between the places of capture"), "{cnp:?}");
}

/// Returns the row of a failure.
fn row(failure: &Failure) -> String {
    let Failure { name, source, made, key, outcome, play } = failure;
    let verdicts = play();
    let of_rule = || verdicts.iter().filter(|verdict| verdict.rule.key == *key);
    let told = of_rule().rfind(|verdict| verdict.outcome == *outcome);
    let told = told.unwrap_or_else(|| panic!("{name}: no verdict is {}: {verdicts:#?}", outcome.name()));
    let at: Vec<String> = told.packets.iter().take(3).map(ToString::to_string).collect();
    let at = if at.is_empty() { String::new() } else { format!(" (packets {})", at.join(", ")) };
    let text = told.summary.replace('|', "\\|");
    format!("| {name} | {source} | {made} | **{key}**, {}: {text}{at} |\n", outcome.name())
}

#[test]
fn the_page_has_what_the_verdicts_say_about_each_failure() {
    let rows: String = FAILURES.iter().map(row).collect();
    check_table("explained-failures.md", "| failure | reported by | capture | `roce analyze` |", &rows);
}

const FAILURES: &[Failure] = &[
    Failure {
        name: "a flow without losses stalls while others recover",
        source: "Lumina (ConnectX-4 Lx: noisy neighbour)",
        made: "READs, answers are late by 20 ms once",
        key: "in_flight",
        outcome: Outcome::Pass,
        play: || {
            let mut taps = rounds(Operation::ReadRequest, 4000, |_| Action::Pass);
            let third = taps[1].iter().filter(|seen| seen.from == Side::B).nth(12).unwrap().sent;
            later(&mut taps, Duration::from_millis(20), |seen| seen.sent >= third);
            judge(&taps)
        },
    },
    Failure {
        name: "a NIC discards packets of a peer that sends MigReq = 0",
        source: "Lumina (E810 to ConnectX-5), librxe-dev #6",
        made: "WRITEs whose MigReq bit is cleared",
        key: "hygiene",
        outcome: Outcome::Pass,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, |_| Action::Pass);
            edit(&mut taps, |seen| seen.from == Side::A, |seen| seen.bytes[1] &= !0x40);
            judge(&taps)
        },
    },
    Failure {
        name: "implied_nak_seq_err stays at zero",
        source: "Lumina (ConnectX-4 Lx)",
        made: "a READ response is lost; the counters of the requester do not change",
        key: "counters",
        outcome: Outcome::Fail,
        play: || {
            let taps = rounds(Operation::ReadRequest, 4000, lose(5, is_response));
            stuck(&taps, Side::A, "implied_nak_seq_err")
        },
    },
    Failure {
        name: "cnpSent stays at zero",
        source: "Lumina (E810)",
        made: "WRITEs with ECN marks; the counters of the responder do not change",
        key: "counters",
        outcome: Outcome::Fail,
        play: || {
            let taps = rounds(Operation::Write, 4000, |_| Action::Mark);
            stuck(&taps, Side::B, "cnpSent")
        },
    },
    Failure {
        name: "CNPs are paced for another scope than expected",
        source: "Lumina (all NICs)",
        made: "WRITEs of four queue pairs, all marked",
        key: "cnp",
        outcome: Outcome::Pass,
        play: || {
            let mut pair = pair(|_| Action::Mark);
            let qps = [0; 4].map(|_| pair.connect(QpType::Rc).0);
            for round in 0..40 {
                for qpn in qps {
                    post(&mut pair, qpn, round, Operation::Write, 3000);
                }
                pair.drive();
                pair.now = pair.now.plus_nanos(10_000);
            }
            judge(&tapped(&pair.sent))
        },
    },
    Failure {
        name: "timeouts follow an adaptive schedule, not the timer",
        source: "Lumina (ConnectX-5, ConnectX-6 Dx)",
        made: "one WRITE is lost six times",
        key: "timeouts",
        outcome: Outcome::Pass,
        play: || {
            let mut lost = 0;
            let mut taps = rounds(Operation::Write, 500, move |sent| {
                let is_it = is_write(sent) && sent.psn.get() % 8 == 3 && lost < 6;
                lost += i32::from(is_it);
                if is_it { Action::Drop } else { Action::Pass }
            });
            let again = first_again(&taps);
            let tries = taps[0].iter().filter(|seen| seen.from == Side::A && seen.psn() == again.psn());
            let sent: Vec<u64> = tries.map(|seen| seen.sent).collect();
            // The first three come after 4, 8 and 16 ms.
            for (pair, after) in sent.windows(2).zip([4_000_000, 8_000_000, 16_000_000]) {
                for seen in taps.iter_mut().flatten().filter(|seen| seen.sent >= pair[1]) {
                    seen.time -= pair[1] - pair[0] - after;
                }
            }
            judge(&taps)
        },
    },
    Failure {
        name: "the NAK comes late",
        source: "Lumina (10 us on the E810)",
        made: "a WRITE packet is lost; the NAK comes 150 us later",
        key: "causes",
        outcome: Outcome::Pass,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, lose(5, is_write));
            later(&mut taps, Duration::from_micros(150), is_nak);
            judge(&taps)
        },
    },
    Failure {
        name: "the requester answers a NAK late",
        source: "Lumina (hundreds of microseconds on the ConnectX-4 Lx)",
        made: "a WRITE packet is lost; the repetition comes 300 us later",
        key: "causes",
        outcome: Outcome::Pass,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, lose(5, is_write));
            let again = first_again(&taps);
            later(&mut taps, Duration::from_micros(300), |seen| seen.sent >= again.sent);
            judge(&taps)
        },
    },
    Failure {
        name: "a lost READ response is requested again late",
        source: "Lumina (tens of milliseconds on the E810)",
        made: "a READ response is lost; the second request comes 80 ms later",
        key: "causes",
        outcome: Outcome::Pass,
        play: || {
            let mut taps = rounds(Operation::ReadRequest, 4000, lose(5, is_response));
            let again = first_again(&taps);
            later(&mut taps, Duration::from_millis(80), |seen| seen.sent >= again.sent);
            judge(&taps)
        },
    },
    Failure {
        name: "the requester does not wait after an RNR NAK",
        source: "linux-rdma 2022-05-08; slaclab #15",
        made: "a SEND without a receive; the repetition comes at once",
        key: "rnr",
        outcome: Outcome::Fail,
        play: || {
            let mut pair = pair(|_| Action::Pass);
            let (a, b) = pair.connect(QpType::Rc);
            post(&mut pair, a, 1, Operation::Send, 100);
            let soon = pair.now.plus_nanos(200_000);
            pair.drive_until(soon);
            pair.post_recv(Side::B, b, 1, 0, 4096).unwrap();
            pair.drive();
            let mut taps = tapped(&pair.sent);
            let rnr = taps[0].iter().find(|seen| is_rnr(seen)).unwrap().clone();
            let again =
                taps[0].iter().find(|seen| seen.from == Side::A && seen.sent > rnr.sent).unwrap().sent;
            for seen in taps.iter_mut().flatten().filter(|seen| seen.sent >= again) {
                seen.time -= again - rnr.sent - 10_000;
            }
            judge(&taps)
        },
    },
    Failure {
        name: "after a NAK, the requester starts at the wrong packet",
        source: "linux-rdma 2019-11; Coyote #86",
        made: "a WRITE packet is lost; the first repetition is left out",
        key: "restart",
        outcome: Outcome::Fail,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, lose(5, is_write));
            let again = first_again(&taps);
            taps.iter_mut().for_each(|tap| tap.retain(|seen| seen.sent != again.sent));
            judge(&taps)
        },
    },
    Failure {
        name: "a repeated READ is answered with other data",
        source: "linux-rdma 2022-10",
        made: "the last READ response is lost; the one that is sent again has another byte",
        key: "duplicates",
        outcome: Outcome::Pass,
        play: || {
            let mut taps = rounds(Operation::ReadRequest, 4000, lose(5, is_response));
            let again = first_again(&taps);
            edit(
                &mut taps,
                |seen| seen.from == Side::B && seen.sent > again.sent && seen.psn() == again.psn(),
                |seen| seen.bytes[20] ^= 1,
            );
            judge(&taps)
        },
    },
    Failure {
        name: "an atomic operation is executed twice",
        source: "linux-rdma 2022-06",
        made: "the answer to a FetchAdd is lost; the second answer has another value",
        key: "duplicates",
        outcome: Outcome::Fail,
        play: || {
            let is_answer = |sent: &Sent| sent.opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE;
            let mut taps = rounds(Operation::FetchAdd, 8, lose(2, is_answer));
            let again = first_again(&taps);
            edit(
                &mut taps,
                |seen| seen.from == Side::B && seen.sent > again.sent && seen.psn() == again.psn(),
                |seen| seen.bytes[23] ^= 1,
            );
            judge(&taps)
        },
    },
    Failure {
        name: "the ICRC differs from that of hardware",
        source: "rxe-dev #30",
        made: "WRITEs whose ICRC has the wrong byte order",
        key: "icrc",
        outcome: Outcome::Fail,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, |_| Action::Pass);
            for seen in taps.iter_mut().flatten().filter(|seen| seen.from == Side::A) {
                let end = seen.bytes.len() - 4;
                seen.bytes[end..].reverse();
            }
            judge(&taps)
        },
    },
    Failure {
        name: "WRITEs of more than one packet fail",
        source: "rxe-dev #76; tensorflow #9432, nccl-mesh-plugin #12 (path MTU 4096)",
        made: "the network drops packets with more than 600 bytes",
        key: "mtu",
        outcome: Outcome::Fail,
        play: || {
            let mut pair = pair(|sent| if sent.bytes.len() > 600 { Action::Drop } else { Action::Pass });
            let (a, _) = pair.connect(QpType::Rc);
            post(&mut pair, a, 1, Operation::Write, 100);
            post(&mut pair, a, 2, Operation::Write, 3000);
            pair.drive();
            long_after(&mut pair);
            judge(&tapped(&pair.sent))
        },
    },
    Failure {
        name: "the peer answers nothing any more",
        source: "rxe-dev #28; zrlio/disni #37; NCCL #426, #902",
        made: "nothing of the responder arrives behind its third answer",
        key: "times",
        outcome: Outcome::Fail,
        play: || {
            let mut answers = 0;
            let mut pair = pair(move |sent| {
                answers += i32::from(sent.from == Side::B);
                if sent.from == Side::B && answers > 3 { Action::Drop } else { Action::Pass }
            });
            let (a, _) = pair.connect(QpType::Rc);
            for wr_id in 0..6 {
                post(&mut pair, a, wr_id, Operation::Write, 100);
                pair.drive();
            }
            long_after(&mut pair);
            judge(&tapped(&pair.sent))
        },
    },
    Failure {
        name: "acknowledgements count messages wrongly",
        source: "slaclab #15; Coyote #33",
        made: "the MSN of one acknowledgement is nine too high",
        key: "msn",
        outcome: Outcome::Fail,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, |_| Action::Pass);
            let answer = taps[1].iter().filter(|seen| seen.from == Side::B).nth(2).unwrap().sent;
            edit(&mut taps, |seen| seen.sent == answer, |seen| seen.bytes[15] += 9);
            judge(&taps)
        },
    },
    Failure {
        name: "marks cause no CNPs",
        source: "linux-rdma: software without congestion control",
        made: "WRITEs with ECN marks; the CNPs are removed",
        key: "cnp",
        outcome: Outcome::Fail,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, |_| Action::Mark);
            taps.iter_mut().for_each(|tap| tap.retain(|seen| seen.opcode() != Opcode::CNP));
            judge(&taps)
        },
    },
    Failure {
        name: "the network changes the traffic class",
        source: "UCX #2434, #6000",
        made: "the DSCP differs behind the network",
        key: "classes",
        outcome: Outcome::Fail,
        play: || {
            let mut taps = rounds(Operation::Write, 4000, |_| Action::Pass);
            for seen in taps[1].iter_mut().filter(|seen| seen.from == Side::A) {
                seen.path.traffic_class = 10 << 2 | seen.path.traffic_class & 3;
            }
            judge(&taps)
        },
    },
];

/// Traffic of another connection, so that the capture goes on.
fn long_after(pair: &mut Pair) {
    pair.set_script(|_| Action::Pass);
    let (other, _) = pair.connect(QpType::Rc);
    pair.now = pair.now.plus_nanos(20_000_000_000);
    post(pair, other, 9, Operation::Write, 10);
    pair.drive();
}

/// Judges a NIC at the end `side` with one counter that does not change.
fn stuck(taps: &Tapped, side: Side, counter: &str) -> Vec<Verdict> {
    let text = |other: u64| format!("link mlx5_0/1 {counter} 7 unrelated {other}");
    let [before, after] = [1, 2].map(|other| Snapshot::parse(&text(other)).unwrap());
    let address = Pair::new(1).host(side).address;
    of_counters(&both(taps), &compare(&before, &after), Some(address))
}
