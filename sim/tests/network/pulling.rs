//! Receivers that pull: READs in short pieces that are requested at the rate of the link.

use std::sync::{Arc, Mutex};

use roce_sim::net::{
    FlowOperation, LinkSpec, Marking, PayloadMode, ReadSettings, Settings, Time, Topology, Trimming, incast,
};
use roce_transport::congestion::parameters::NoParameters;
use roce_transport::congestion::{Congestion, EvenPull, Pull, PullPolicy, PullStart, Pulled, Pulls, Rate};
use roce_transport::{Instant, Recovery, SelectiveRepeat};

use super::{LINK, assert_complete, flow, longest_queue, run, slowest_us};

const BYTES: u64 = 1_000_000;

fn settings(reads: ReadSettings) -> Settings {
    let mut settings = Settings { stop: Time::from_us(50_000), ..Settings::default() };
    settings.host.operation = FlowOperation::Read;
    settings.host.reads = reads;
    settings
}

fn pulled() -> ReadSettings {
    ReadSettings { packets: 8, rate: Some(1.0), ..ReadSettings::default() }
}

/// An incast takes as long as the link of the receiver needs, without a queue, and all senders have the same
/// share.
#[test]
fn an_incast_that_is_pulled_fills_no_queue() {
    let topology = Topology::star(17, LINK).unwrap();
    let flows = incast(17, 16, 16, BYTES, Time::ZERO).unwrap();
    let [pushed, pulled] = [ReadSettings::default(), pulled()].map(|reads| {
        let results = run(&topology, &flows, settings(reads));
        assert_complete(&results);
        results
    });
    let queues = [&pushed, &pulled].map(longest_queue);
    let ends = [&pushed, &pulled].map(slowest_us);
    println!("longest queue {queues:?} bytes, slowest {ends:?} us");
    // A full packet has 1,106 bytes with preamble and gap.
    let ideal = 16.0 * (BYTES as f64 / 1024.0).ceil() * 1106.0 * 8.0 / 100_000.0;
    assert!(ends[1] < 1.02 * ideal, "{} instead of {ideal}", ends[1]);
    assert!(queues[0] > 1_000_000, "{queues:?}: the incast fills a queue unless it is pulled");
    assert!(queues[1] < 20_000, "{queues:?}: two pieces have 17,000 bytes");
    let times = pulled.completion_times();
    let fastest = times.iter().min().unwrap().as_secs_f64() * 1e6;
    assert!(fastest > 0.95 * ends[1], "the fastest of equal flows ends after {fastest} us of {}", ends[1]);
}

/// A single flow has the whole rate: its pieces are outstanding together.
#[test]
fn a_flow_that_is_pulled_alone_has_the_link() {
    let topology = Topology::star(2, LINK).unwrap();
    let [pushed, pulled] = [ReadSettings::default(), pulled()]
        .map(|reads| slowest_us(&run(&topology, &[flow(0, 1, BYTES)], settings(reads))));
    println!("{pushed} us at once, {pulled} us pulled");
    assert!(pulled < 1.02 * pushed);
}

/// Each receiver asks for no more than its link takes, and half of a rate takes twice the time.
#[test]
fn the_rate_is_a_factor_of_the_link() {
    let topology = Topology::star(2, LINK).unwrap();
    let [whole, half] = [1.0, 0.5].map(|rate| {
        let reads = ReadSettings { rate: Some(rate), ..pulled() };
        slowest_us(&run(&topology, &[flow(0, 1, BYTES)], settings(reads)))
    });
    assert!((1.9..2.05).contains(&(half / whole)), "{whole} and {half} us");
}

/// Four hosts write to the host whose memory is read, so requests in the class of data wait behind WRITEs.
#[test]
fn requests_with_a_priority_do_not_wait_behind_data() {
    let topology = Topology::star(6, LINK).unwrap();
    let mut flows = vec![flow(0, 1, BYTES)];
    flows.extend((2..6).map(|host| flow(host, 0, BYTES)));
    let [without, with] = [None, Some(56)].map(|dscp| {
        let mut settings = settings(ReadSettings { dscp, ..pulled() });
        settings.profiles = vec![settings.host.clone()];
        settings.flow_profiles = vec![1, 0, 0, 0, 0];
        settings.host.operation = FlowOperation::Write;
        let results = run(&topology, &flows, settings);
        assert_complete(&results);
        results.flows[0].completion_time.unwrap().as_secs_f64() * 1e6
    });
    println!("{without} us without, {with} us with a priority");
    assert!(with < 100.0 && without > 2.0 * with);
}

/// Lost requests and responses are requested again, with both recoveries; every byte arrives.
#[test]
fn what_is_pulled_arrives_in_spite_of_losses() {
    let selective = SelectiveRepeat { cap: 512, reorder: 128, ..SelectiveRepeat::default() };
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat(selective)] {
        for seed in 1..20 {
            let mut topology = Topology::star(4, LINK).unwrap();
            for link in &mut topology.links {
                link.set_faults("drop=0.2%;dup=0.5%;reorder=0.5%".parse().unwrap());
            }
            let mut settings = Settings { seed, payload: PayloadMode::Real, ..settings(pulled()) };
            settings.host.recovery = recovery;
            // 1 ms, because a repeated request that is lost costs a timeout.
            settings.host.timeout = 8;
            let results = run(&topology, &incast(4, 3, 3, BYTES, Time::ZERO).unwrap(), settings);
            assert_complete(&results);
            assert_eq!(results.checked, (3 * BYTES, 0), "every byte once, none wrong");
            assert!(slowest_us(&results) < 10_000.0, "{recovery:?}, seed {seed}");
            println!("{recovery:?}, seed {seed}: {:.0} us", slowest_us(&results));
        }
    }
}

/// The counts of a receiver: payload bytes, packets, marks and trimmed packets.
type Seen = Arc<Mutex<[u64; 4]>>;

/// A receiver that halves its rate when a response met congestion, and raises it with each request.
#[derive(Debug)]
struct Cautious {
    even: EvenPull,
    rate: u64,
    line_rate: u64,
    /// Time until which marks belong to packets that were requested before the last cut.
    cut_until: Instant,
    seen: Seen,
}

impl PullPolicy for Cautious {
    fn turn(&mut self, now: Instant, pull: &Pull) -> Instant {
        assert!((1..=8).contains(&pull.packets) && pull.bytes > u64::from(pull.packets) * 80);
        self.rate = (self.rate + self.line_rate / 200).min(self.line_rate);
        self.even.set_rate(Rate::bits_per_second(self.rate));
        self.even.turn(now, pull)
    }

    fn on_response(&mut self, now: Instant, pulled: &Pulled) {
        let mut seen = self.seen.lock().unwrap();
        for (sum, value) in
            seen.iter_mut().zip([pulled.payload.into(), 1, pulled.marked.into(), pulled.trimmed.into()])
        {
            *sum += value;
        }
        if (pulled.marked || pulled.trimmed) && now >= self.cut_until {
            self.rate = (self.rate / 2).max(self.line_rate / 100);
            self.cut_until = now.plus_nanos(20_000);
        }
    }
}

fn cautious(seen: &Seen) -> Pulls {
    let seen = seen.clone();
    Pulls::new("cautious", NoParameters, move |_, start: &PullStart| {
        let line_rate = start.line_rate.get();
        let (even, seen) = (EvenPull::new(start.line_rate, 0), seen.clone());
        Box::new(Cautious { even, rate: line_rate, line_rate, cut_until: Instant::ZERO, seen })
    })
}

/// The queue of another link than that of the receiver is invisible to a rate, but not to a policy.
#[test]
fn a_policy_of_a_program_learns_of_a_queue_elsewhere() {
    let slow = LinkSpec { rate_bps: LINK.rate_bps * 2 / 5, ..LINK };
    let topology = Topology::leaf_spine(2, 1, 2, LINK, slow).unwrap();
    let bytes = 10 * BYTES;
    let seen = Seen::default();
    let outcome = |policy: Option<Pulls>, trims: bool| {
        let rate = if policy.is_some() { None } else { Some(1.0) };
        let mut settings = settings(ReadSettings { rate, policy, ..pulled() });
        settings.switch.marking[3] = Marking::Step { bytes: 50_000 };
        if trims {
            settings.switch.pfc = 0;
            settings.switch.marking[3] = Marking::Off;
            settings.switch.trimming = Some(Trimming { above_bytes: Some(50_000), ..Trimming::default() });
            settings.host.recovery = "selective-repeat:cap=1024".parse().unwrap();
        }
        // Only data of a queue pair with an algorithm is ECN-capable.
        (settings.host.congestion, _) = Congestion::parse("fixed:100Gbps").unwrap();
        let results = run(&topology, &[flow(0, 2, bytes)], settings);
        assert_complete(&results);
        (slowest_us(&results), longest_queue(&results), results.trace_hash)
    };
    let even = outcome(None, false);
    assert_eq!(*seen.lock().unwrap(), [0; 4]);
    let own = outcome(Some(cautious(&seen)), false);
    println!("even {even:?}, cautious {own:?}, {seen:?}");
    let [payload, packets, marks, trimmed] = *seen.lock().unwrap();
    assert_eq!((payload, packets, trimmed), (bytes, bytes.div_ceil(1024), 0));
    assert!(marks > 100, "{marks}");
    assert!(own.1 < even.1 / 4, "{} instead of {} bytes", own.1, even.1);
    assert!(own.0 < 1.3 * even.0, "{} instead of {} us", own.0, even.0);
    assert_eq!(own, outcome(Some(cautious(&Seen::default())), false), "runs are repeatable");
    *seen.lock().unwrap() = [0; 4];
    outcome(Some(cautious(&seen)), true);
    let [payload, _, marks, trimmed] = *seen.lock().unwrap();
    assert!(payload == bytes && marks == 0 && trimmed > 0, "{seen:?}");
}
