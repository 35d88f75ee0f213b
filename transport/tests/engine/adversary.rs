//! Thousands of runs of two engines over very bad links, each derived from one number and checked byte by
//! byte: see `roce_sim::adversary`.
//!
//! - `ROCE_SEEDS=1000000` runs the seeds from `ROCE_FIRST_SEED` (0) up to this one instead of the default;
//! - `ROCE_SEED=123` runs one seed; `-- --nocapture` shows it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use roce_sim::adversary::{Plan, Report, run, run_plan};
use roce_transport::SelectiveRepeat;
use roce_transport::congestion::{Congestion, Rate};

/// The seeds that every test run covers.
const SEEDS: u64 = 10_000;
const THREADS: u64 = 2;
/// The local ACK timeout with exponent 4.
const SMALLEST_TIMEOUT_NS: u64 = 4_096 << 4;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Returns the report of a seed, or a description of its failure.
fn attempt(seed: u64) -> Result<Report, String> {
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("(see above)", String::as_str);
            Err(format!("seed {seed}: panic: {text}"))
        }
    }
}

/// Returns the first seed of a run over many.
fn first_seed() -> u64 {
    number("ROCE_FIRST_SEED").unwrap_or(0)
}

fn replay(seed: u64) -> String {
    format!(
        "replay with: ROCE_SEED={seed} cargo test -p roce-transport --test engine adversary:: -- --nocapture"
    )
}

/// Totals of all runs, to check that they cover the intended cases.
#[derive(Debug, Default)]
struct Totals {
    packets: usize,
    completed: usize,
    failed: usize,
    naks: u64,
    implied_naks: u64,
    timeouts: u64,
    rnr_naks: u64,
    duplicates: u64,
    bad_icrcs: u64,
    out_of_retries: u64,
    out_of_rnr_retries: u64,
    retransmitted: u64,
    notifications: u64,
    trimmed: u64,
    asked: u64,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.packets += report.packets;
        self.completed += report.completed;
        self.failed += report.failed;
        for counters in &report.counters {
            self.naks += counters.packet_seq_err;
            self.implied_naks += counters.implied_nak_seq_err;
            self.timeouts += counters.local_ack_timeout_err;
            self.rnr_naks += counters.rnr_nak_retry_err;
            self.duplicates += counters.duplicate_request;
            self.bad_icrcs += counters.rx_icrc_encapsulated;
            self.out_of_retries += counters.req_transport_retries_exceeded;
            self.out_of_rnr_retries += counters.req_rnr_retries_exceeded;
            self.retransmitted += counters.retransmitted_packets;
            self.notifications += counters.rp_cnp_handled;
            self.trimmed += counters.rx_trimmed;
            self.asked += counters.packet_trimmed_err;
        }
    }
}

/// Runs every `THREADS`-th seed from `first` on, until one fails in any thread.
fn run_share(first: u64, seeds: u64, stop: &AtomicBool) -> Result<Totals, (u64, String)> {
    let mut totals = Totals::default();
    for seed in (first..seeds).step_by(THREADS as usize) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let report = attempt(seed).map_err(|message| {
            stop.store(true, Ordering::Relaxed);
            (seed, message)
        })?;
        totals.add(&report);
    }
    Ok(totals)
}

#[test]
fn no_seed_finds_anything() {
    if let Some(seed) = number("ROCE_SEED") {
        println!("{:#?}", Summary(&Plan::new(seed)));
        match attempt(seed) {
            Ok(report) => println!("seed {seed}: {report:#?}"),
            Err(message) => panic!("{message}"),
        }
        return;
    }
    let seeds = number("ROCE_SEEDS").unwrap_or(SEEDS);
    let stop = AtomicBool::new(false);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let stop = &stop;
        let threads: Vec<_> = (0..THREADS)
            .map(|share| scope.spawn(move || run_share(first_seed() + share, seeds, stop)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("panics were caught")).collect()
    });
    for outcome in outcomes {
        match outcome {
            Ok(totals) => println!("{totals:?}"),
            Err((seed, message)) => panic!("{message}\n{}", replay(seed)),
        }
    }
}

/// Runs a share of all seeds with a change of each plan; returns the sums of the counters.
#[track_caller]
fn run_changed(seeds: u64, change: impl Fn(&mut Plan) + Sync) -> Totals {
    let all = first_seed()..number("ROCE_SEEDS").unwrap_or(seeds);
    let all = &number("ROCE_SEED").map_or(all, |only| only..only + 1);
    let run = |seed| {
        let mut plan = Plan::new(seed);
        change(&mut plan);
        match catch_unwind(AssertUnwindSafe(|| run_plan(&plan))) {
            Ok(Ok(report)) => report,
            Ok(Err(failure)) => panic!("{failure}"),
            Err(_) => panic!("seed {seed}: see above"),
        }
    };
    let mut totals = Totals::default();
    std::thread::scope(|scope| {
        let run = &run;
        let share = |first: u64| {
            move || {
                let mut totals = Totals::default();
                for seed in all.clone().skip(first as usize).step_by(THREADS as usize) {
                    totals.add(&run(seed));
                }
                totals
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(share(first))).collect();
        for thread in threads {
            let part = thread.join().expect("no seed finds anything");
            totals.packets += part.packets;
            totals.completed += part.completed;
            totals.naks += part.naks;
            totals.retransmitted += part.retransmitted;
            totals.notifications += part.notifications;
            totals.trimmed += part.trimmed;
            totals.asked += part.asked;
        }
    });
    totals
}

/// Changes a plan to selective repeat.
fn selective(plan: &mut Plan) {
    let seed = plan.seed as usize;
    plan.select(selective_repeat(plan, [1, 4, 64, 256][seed % 4], [0, 2, 0, 16][seed / 4 % 4]));
}

/// Returns selective repeat whose lower timeout is half of the upper one, but at least the smallest timeout
/// of any plan. That is longer than all round trips, with the queue of the link.
fn selective_repeat(plan: &Plan, cap: u32, reorder: u32) -> SelectiveRepeat {
    let micros = |nanos: u64| (nanos / 1_000) as u32;
    let (timeout, smallest) = (micros(plan.timeout_ns()), micros(SMALLEST_TIMEOUT_NS));
    let rto_low = (timeout / 2).max(smallest);
    SelectiveRepeat { cap, rto_low, rto_high: timeout, few: 3, reorder }
}

/// Changes a plan to congestion control.
fn congested(plan: &mut Plan) {
    plan.congestion = Congestion::parse("dcqcn,rpg_max_rate=40000,rpg_min_rate=5000").unwrap().0;
}

/// Packets that are kept and executed later are executed exactly once and in order.
#[test]
fn no_seed_finds_anything_with_selective_repeat() {
    let totals = run_changed(4_000, selective);
    println!("{totals:?}");
    assert!(number("ROCE_SEED").is_some() || totals.naks > 0 && totals.retransmitted > 0, "{totals:?}");
}

/// Trimmed packets are requested again and never executed, with both recoveries.
#[test]
fn no_seed_finds_anything_with_trimmed_packets() {
    let totals = run_changed(4_000, |plan| {
        plan.trimmed_per_mille = [10, 100, 300, 600][plan.seed as usize / 2 % 4];
        // If most packets are trimmed, the rate after losses is too low for the bound of liveness.
        plan.after_loss &= plan.trimmed_per_mille < 300;
        if plan.seed & 8 == 0 {
            let seed = plan.seed as usize;
            plan.select(selective_repeat(plan, [1, 4, 64, 256][seed / 16 % 4], [0, 2, 0, 16][seed / 64 % 4]));
        }
    });
    println!("{totals:?}");
    let reaches = totals.trimmed > 10_000 && totals.asked > 10_000 && totals.completed > 10_000;
    assert!(number("ROCE_SEED").is_some() || reaches, "{totals:?}");
}

/// Packets that wait for their turn are not lost, repeated or treated as lost.
#[test]
fn no_seed_finds_anything_under_congestion_control() {
    let totals = run_changed(2_000, congested);
    println!("{totals:?}");
    assert!(number("ROCE_SEED").is_some() || totals.notifications > 0, "{totals:?}");
}

/// READ requests that wait for their turn are not treated as lost, with both recoveries.
#[test]
fn no_seed_finds_anything_while_reads_take_turns() {
    let totals = run_changed(2_000, |plan| {
        plan.max_read_packets = [1, 3][plan.seed as usize / 2 % 2];
        plan.read_rate = Rate::megabits_per_second([2_000, 40_000][plan.seed as usize / 4 % 2]);
        if plan.seed & 8 == 0 {
            selective(plan);
        }
    });
    println!("{totals:?}");
    assert!(number("ROCE_SEED").is_some() || totals.completed > 10_000, "{totals:?}");
}

/// Whatever the policy for paths learns, requests end as with one path, with both recoveries.
#[test]
fn no_seed_finds_anything_over_several_paths() {
    let totals = run_changed(2_000, |plan| {
        let paths = ["round-robin:paths=2", "penalty:losses=1,probe=5", "recycle:paths=4", "reps:freeze=20"];
        plan.paths = paths[plan.seed as usize / 2 % 4].parse().unwrap();
        if plan.seed & 8 == 0 {
            plan.trimmed_per_mille = [0, 100][plan.seed as usize / 16 % 2];
            selective(plan);
        }
        if plan.seed & 32 == 0 {
            congested(plan);
        }
    });
    println!("{totals:?}");
    assert!(number("ROCE_SEED").is_some() || totals.completed > 10_000, "{totals:?}");
}

/// A seed beyond the default numbers that once failed, the change of its plan, and its failure.
type Found = (u64, fn(&mut Plan), &'static str);
const FOUND: [Found; 7] = [
    // Regression: the observer took the silence after a lost response, behind which an RNR NAK is dropped,
    // for a delay.
    (293_991, |_| {}, "an RNR NAK behind a lost ATOMIC WRITE response"),
    (8_068, congested, "an RNR NAK that arrives after the requester went back for a damaged atomic response"),
    (
        14_651,
        congested,
        "an RNR NAK that arrives after the requester went back for a damaged atomic response",
    ),
    // Regression: the observer did not know that a NAK waits behind READ responses.
    (55_703, |_| {}, "an RNR NAK that leaves after paced READ responses, when a receive is there again"),
    // Regression: half of the timeout was less than a round trip through the queue of the link.
    (88_148, selective, "a retransmission without faults"),
    // Regression: each lost response of a one-packet READ halved the rate, finally to one packet in 50 us.
    (106_311, selective, "requests that do not end in time"),
    // Regression: half of the timeout was less than a round trip through the queue of the link.
    (146_553, selective, "a timeout without faults, where no retry is left"),
];

#[test]
fn seeds_that_found_something_once() {
    for (seed, change, what) in FOUND {
        let mut plan = Plan::new(seed);
        change(&mut plan);
        if let Err(failure) = run_plan(&plan) {
            panic!("{what}: {failure}\n{}", replay(seed));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut different = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let hashes = [(); 2].map(|()| match attempt(seed) {
            Ok(report) => report.hash,
            Err(message) => panic!("{message}\n{}", replay(seed)),
        });
        assert_eq!(hashes[0], hashes[1], "seed {seed}");
        different.insert(hashes[0]);
    }
    assert_eq!(different.len(), 200, "different seeds give different runs");
}

/// A plan without the bytes of its memory.
struct Summary<'a>(&'a Plan);

impl std::fmt::Debug for Summary<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plan = self.0;
        f.debug_struct("Plan")
            .field("mode", &plan.mode)
            .field("mtu", &plan.mtu)
            .field("window", &plan.window)
            .field("max_read_packets", &plan.max_read_packets)
            .field("timeout", &plan.timeout)
            .field("retry_cnt", &plan.retry_cnt)
            .field("rnr_retry", &plan.rnr_retry)
            .field("min_rnr_timer", &plan.min_rnr_timer)
            .field("rd_atomic", &plan.rd_atomic)
            .field("max_send_wr", &plan.max_send_wr)
            .field("bursts", &plan.bursts)
            .field("faults", &plan.faults.each_ref().map(ToString::to_string))
            .field("pairs", &plan.pairs)
            .field(
                "flows",
                &plan
                    .flows
                    .iter()
                    .map(|flow| {
                        let op = |op: &roce_sim::adversary::Op| {
                            let fence = if op.fence { " fenced" } else { "" };
                            format!("{:?} {} bytes{fence} after {} ns", op.kind, op.data.len(), op.wait_ns)
                        };
                        flow.ops.iter().map(op).collect::<Vec<_>>()
                    })
                    .collect::<Vec<_>>(),
            )
            .finish()
    }
}
