//! Queue pairs with several paths: which source ports packets have, and what counts for and against a path.

use std::collections::BTreeMap;

use roce_packet::{Datagram, Operation, Path};
use roce_sim::pair::{Action, Sent, Side};
use roce_transport::congestion::Congestion;
use roce_transport::{
    EngineConfig, QpAttr, QpState, QpType, Recovery, Retransmission, SelectiveRepeat, SendOp, WcStatus,
};

use crate::common::{Bench, MTU, assert_same, pattern, settings};

/// The source port of the first path.
const FIRST: u16 = 0xc000;

fn bench(paths: &str, recovery: Recovery, congestion: &str) -> Bench {
    let congestion = Congestion::parse(congestion).unwrap().0;
    let paths = paths.parse().unwrap();
    let config = EngineConfig { paths, recovery, congestion, ..EngineConfig::from_number(7) };
    let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
    bench.packet_time_ns = 30;
    bench
}

fn selective() -> Recovery {
    Recovery::SelectiveRepeat(SelectiveRepeat { cap: 64, ..SelectiveRepeat::default() })
}

#[track_caller]
fn write(bench: &mut Bench, packets: usize) {
    let data = pattern(packets * MTU);
    bench.host_mut(Side::A).write_memory(0, &data);
    let write = bench.write(300_000);
    bench.post(1, write, 0, data.len());
    bench.drive();
    assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
    assert_same(&bench.host(Side::B).read_memory(300_000, data.len()), &data, "what was written");
}

fn path(sent: &Sent) -> u16 {
    sent.path.source_port - FIRST
}

/// Returns the number of packets of a side on each path, from the packet with this index on.
fn uses(bench: &Bench, from: Side, index: usize) -> BTreeMap<u16, usize> {
    let mut uses = BTreeMap::new();
    for sent in bench.sent.iter().filter(|sent| sent.from == from && sent.index >= index) {
        *uses.entry(path(sent)).or_default() += 1;
    }
    uses
}

/// Every receiver checks the ICRC, which covers the source port.
#[test]
fn each_path_takes_its_share_and_its_answers_follow() {
    let mut bench = bench("round-robin:paths=8", selective(), "dctcp:echo=1");
    write(&mut bench, 64);
    assert_eq!(uses(&bench, Side::A, 0), (0..8).map(|path| (path, 8)).collect());
    let requests: BTreeMap<u32, u16> = bench
        .sent
        .iter()
        .filter(|sent| sent.from == Side::A)
        .map(|sent| (sent.psn.get(), path(sent)))
        .collect();
    let answers: Vec<&Sent> = bench.sent.iter().filter(|sent| sent.from == Side::B).collect();
    assert!(answers.len() > 32, "{}", answers.len());
    for answer in answers {
        assert_eq!(Some(&path(answer)), requests.get(&answer.psn.get()));
    }
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0);
}

#[test]
fn read_responses_take_turns() {
    for recovery in [Recovery::GoBackN, selective()] {
        let mut bench = bench("reps:paths=8", recovery, "none");
        let data = pattern(64 * MTU);
        bench.host_mut(Side::B).write_memory(0, &data);
        let read = bench.read(0);
        bench.post(1, read, 300_000, data.len());
        bench.drive();
        assert_eq!(bench.ended(Side::A), [(1, WcStatus::Success)]);
        assert_same(&bench.host(Side::A).read_memory(300_000, data.len()), &data, "what was read");
        assert_eq!(uses(&bench, Side::B, 0), (0..8).map(|path| (path, 8)).collect());
    }
}

/// Without several paths, there is one source port, at whichever end.
#[test]
fn one_path_has_one_port() {
    let mut bench = bench("one", selective(), "dctcp:echo=1");
    write(&mut bench, 20);
    let mut add = |wr_id| {
        let add = bench.fetch_add(8192, 1);
        bench.post(wr_id, add, 4096, 8);
        bench.drive();
    };
    add(2);
    assert!(bench.sent.iter().all(|sent| path(sent) == 0));
}

/// A path that loses everything is left after two losses. Nothing waits for a timeout, because what is sent
/// again takes a path that works.
#[test]
fn a_path_that_loses_everything_is_left() {
    for paths in ["round-robin:paths=8", "penalty:paths=8", "recycle:paths=8", "reps:paths=8"] {
        let mut bench = bench(paths, selective(), "dctcp:echo=1");
        bench.set_script(
            |sent| {
                if sent.from == Side::A && path(sent) == 3 { Action::Drop } else { Action::Pass }
            },
        );
        write(&mut bench, 150);
        let early = uses(&bench, Side::A, 0).remove(&3).unwrap_or(0);
        write(&mut bench, 250);
        let all = uses(&bench, Side::A, 0).remove(&3).unwrap_or(0);
        assert!((2..=12).contains(&early), "{paths}: {early} in the window of two losses");
        assert!(all <= early + 2, "{paths}: {early}, {all}: one probe in 100 us");
        assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0, "{paths}");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), all as u64, "{paths}");
    }
}

/// A path may work on the way there, and lose all answers.
#[test]
fn answers_count_for_their_path() {
    let mut bench = bench("round-robin:paths=8", selective(), "dctcp:echo=1");
    // While a packet is missing, each of those behind it has a report of its own.
    let mut is_lost = false;
    bench.set_script(move |sent| match sent.from {
        Side::A if sent.psn.get() == 0x1005 && !is_lost => {
            is_lost = true;
            Action::Drop
        }
        Side::B if path(sent) == 6 => Action::Drop,
        _ => Action::Pass,
    });
    write(&mut bench, 250);
    let first = uses(&bench, Side::A, 0);
    assert!(first[&6] * 2 < first[&5], "{first:?}");
}

/// One lost packet makes the requester send everything behind it again. Only the path of the lost one is to
/// blame.
#[test]
fn a_go_back_blames_one_path() {
    let mut bench = bench("round-robin:paths=8,losses=1,probe=1000000", Recovery::GoBackN, "none");
    let mut is_lost = false;
    bench.set_script(move |sent| {
        if sent.from == Side::A && path(sent) == 5 && !is_lost {
            is_lost = true;
            return Action::Drop;
        }
        Action::Pass
    });
    write(&mut bench, 64);
    let again = bench.sent.iter().filter(|sent| sent.from == Side::A).count();
    write(&mut bench, 70);
    let uses = uses(&bench, Side::A, again);
    assert_eq!(uses.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 7], "{uses:?}");
}

/// A request that finds no receive has arrived, and those behind it may have.
#[test]
fn an_rnr_nak_is_no_loss() {
    for recovery in [Recovery::GoBackN, selective()] {
        let mut bench = bench("round-robin:paths=4,losses=1,probe=1000000", recovery, "none");
        for wr_id in 0..16 {
            bench.post(wr_id, SendOp::Send, 0, 100);
        }
        let soon = bench.now.plus_nanos(50_000);
        bench.drive_until(soon);
        assert_eq!(bench.counter(Side::A, "rnr_nak_retry_err"), 1);
        for wr_id in 0..16 {
            bench.receive(100 + wr_id, 4096, MTU);
        }
        bench.drive();
        assert_eq!(bench.ended(Side::A).len(), 16);
        let before = bench.sent.iter().filter(|sent| sent.from == Side::A).count();
        write(&mut bench, 20);
        assert_eq!(uses(&bench, Side::A, before).len(), 4);
    }
}

/// A peer that does not answer for a while says nothing about the paths, besides that of the oldest packet.
#[test]
fn a_silence_excludes_one_path() {
    // The number of answers to the first packets differs, and all of them are lost.
    for (recovery, answers) in [(Recovery::GoBackN, 1), (selective(), 4)] {
        let mut bench = bench("round-robin:paths=8,losses=1,probe=1000000", recovery, "none");
        let mut left = answers;
        bench.set_script(move |sent| {
            let is_lost = sent.from == Side::B && left > 0;
            left -= usize::from(is_lost);
            if is_lost { Action::Drop } else { Action::Pass }
        });
        write(&mut bench, 64);
        assert!(bench.counter(Side::A, "local_ack_timeout_err") > 0);
        let before = bench.sent.iter().filter(|sent| sent.from == Side::A).count();
        write(&mut bench, 64);
        let uses = uses(&bench, Side::A, before);
        assert!(uses.len() >= 4, "{uses:?}");
    }
}

/// One request at a time, whose loss only the silence shows. Its path is left after two early
/// retransmissions.
#[test]
fn requests_one_by_one_find_a_path_that_loses_everything() {
    for recovery in [Recovery::GoBackN, selective()] {
        let paths = "round-robin:paths=4,probe=1000000".parse().unwrap();
        let retransmission = Retransmission { early: true, least_timeout: 0 };
        let config = EngineConfig { paths, recovery, retransmission, ..EngineConfig::from_number(7) };
        let mut bench = Bench::with_config(QpType::Rc, &settings(), config);
        bench.set_script(
            |sent| {
                if sent.from == Side::A && path(sent) == 3 { Action::Drop } else { Action::Pass }
            },
        );
        for _ in 0..100 {
            write(&mut bench, 1);
        }
        let uses = uses(&bench, Side::A, 0);
        assert_eq!(uses[&3], 2, "{uses:?}");
    }
}

/// READs whose responses are lost exclude no path of requests.
#[test]
fn lost_responses_blame_no_path() {
    for recovery in [Recovery::GoBackN, selective()] {
        let mut bench = bench("round-robin:paths=4,losses=1,probe=1000000", recovery, "none");
        let mut seen = 0_u32;
        bench.set_script(move |sent| {
            seen += u32::from(sent.from == Side::B);
            if sent.from == Side::B && seen.is_multiple_of(7) { Action::Drop } else { Action::Pass }
        });
        for wr_id in 0..20 {
            let read = bench.read(0);
            bench.post(wr_id, read, 300_000, 6 * MTU);
        }
        bench.drive();
        assert_eq!(bench.ended(Side::A).len(), 20);
        assert!(bench.counter(Side::A, "retransmitted_packets") > 5);
        let before = bench.sent.iter().filter(|sent| sent.from == Side::A).count();
        write(&mut bench, 16);
        assert_eq!(uses(&bench, Side::A, before).len(), 4);
    }
}

/// A queue pair that gets another path in SQD begins with it, and with the ports after its own.
#[test]
fn another_path_begins_anew() {
    let mut bench = bench("round-robin:paths=4,losses=1,probe=1000000", selective(), "none");
    bench.set_script(|sent| {
        if sent.from == Side::A && sent.path.source_port == FIRST + 1 { Action::Drop } else { Action::Pass }
    });
    write(&mut bench, 40);
    let (now, own) = (bench.now, bench.qpn(Side::A));
    let path = Path { source_port: 0xd000, ..bench.path(Side::A) };
    let host = bench.host_mut(Side::A);
    for attr in [
        QpAttr::to_state(QpState::Sqd),
        QpAttr { path: Some(path), ..QpAttr::to_state(QpState::Sqd) },
        QpAttr::to_state(QpState::Rts),
    ] {
        host.engine.modify_qp(now, own, &attr).unwrap();
    }
    let others: Vec<u16> = host.engine.other_paths(own).iter().map(|path| path.source_port).collect();
    assert_eq!(others, [0xd001, 0xd002, 0xd003]);
    let before = bench.sent.iter().filter(|sent| sent.from == Side::A).count();
    write(&mut bench, 16);
    let uses = uses(&bench, Side::A, before);
    assert_eq!(uses, (0x1000..0x1004).map(|path| (path, 4)).collect());
}

/// Marks reach the policy by the echo of an acknowledgement, and by the source port of a CNP.
#[test]
fn marks_count_against_their_path() {
    for congestion in ["dctcp:echo=1", "dcqcn,rpg_max_rate=0"] {
        let mut bench = bench("penalty:paths=8", selective(), congestion);
        bench.set_script(
            |sent| {
                if sent.from == Side::A && path(sent) == 3 { Action::Mark } else { Action::Pass }
            },
        );
        for _ in 0..20 {
            write(&mut bench, 32);
            bench.now = bench.now.plus_nanos(100_000);
        }
        let marks = bench.sent.iter().filter(|sent| {
            let datagram = Datagram::parse(&sent.bytes, &[]).unwrap();
            datagram.info().operation == Operation::Cnp || datagram.bth().becn
        });
        assert!(marks.count() >= 5, "{congestion}");
        let uses = uses(&bench, Side::A, 0);
        assert!(uses[&3] + 5 <= uses[&2] && uses[&3] + 5 <= uses[&4], "{congestion}: {uses:?}");
    }
}

/// Trimmed packets count against their path, once, and are sent again on one that works.
#[test]
fn trimmed_packets_count_against_their_path() {
    let mut bench = bench("penalty:paths=8", selective(), "dctcp:echo=1");
    bench
        .set_script(|sent| if sent.from == Side::A && path(sent) == 3 { Action::Trim } else { Action::Pass });
    write(&mut bench, 250);
    let uses = uses(&bench, Side::A, 0);
    // It misses four turns after each.
    assert!(uses[&3] * 2 < uses[&2], "{uses:?}");
    assert_eq!(bench.counter(Side::A, "retransmitted_packets"), uses[&3] as u64);
    assert_eq!(bench.counter(Side::A, "local_ack_timeout_err"), 0);
}

/// One request at a time, whose answers are lost on the way back of one path. Regression: the acknowledgement
/// of a repeated request left on the path of its first copy, until all retries were used up.
#[test]
fn an_answer_to_a_repeated_request_takes_its_path() {
    for recovery in [Recovery::GoBackN, selective()] {
        let mut bench = bench("round-robin:paths=4,probe=1000000", recovery, "none");
        bench.set_script(
            |sent| {
                if sent.from == Side::B && path(sent) == 3 { Action::Drop } else { Action::Pass }
            },
        );
        for _ in 0..100 {
            write(&mut bench, 1);
        }
        let add = bench.fetch_add(8192, 1);
        for wr_id in 0..8 {
            bench.post(wr_id, add, 4096, 8);
            bench.drive();
        }
        assert_eq!(bench.ended(Side::A).len(), 8);
        let uses = uses(&bench, Side::A, 0);
        assert!(uses[&3] <= 4, "{uses:?}");
    }
}

/// A probe that arrives with a mark is a success, although a CNP reports the mark first.
#[test]
fn a_marked_probe_succeeds() {
    let mut bench = bench("round-robin:paths=4,losses=1,probe=20", selective(), "dcqcn,rpg_max_rate=0");
    let mut lost = 0;
    bench.set_script(move |sent| {
        let is_on_it = sent.from == Side::A && path(sent) == 3;
        lost += u32::from(is_on_it && lost == 0);
        match (is_on_it, lost) {
            (true, 1) => {
                lost = 2;
                Action::Drop
            }
            (true, _) => Action::Mark,
            _ => Action::Pass,
        }
    });
    for _ in 0..10 {
        write(&mut bench, 32);
        bench.now = bench.now.plus_nanos(100_000);
    }
    let uses = uses(&bench, Side::A, 0);
    assert!(uses[&3] > 40, "{uses:?}");
}
