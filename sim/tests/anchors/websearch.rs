//! The flow completion time slowdown of WebSearch on a leaf-spine, as in published figures. It is the time of
//! a flow divided by the time that the flow would take alone.
//!
//! Four leaves of 8 hosts at 25 Gb/s and two spines at 100 Gb/s. Payload loads half of the capacity of the
//! hosts' links, with 20 ms of arrivals. HPCC's simulator on ns-3 gives a mean slowdown of 2.63 to 2.75 and a
//! 99th percentile of 9.3 to 12.7 (nine runs with these flows).

use std::ops::RangeInclusive;

use roce_sim::net::{
    FlowResult, FlowSizes, FlowSpec, FlowState, Headroom, LinkSpec, Marking, Poisson, Results, Settings,
    Simulation, Threshold, Ties, Time, Topology, poisson, wire_len,
};
use roce_transport::congestion::Congestion;

use super::{in_buffer, link, payload, print_cells};

const HOST: u64 = 25_000_000_000;
const FABRIC: u64 = 100_000_000_000;
const EACH: u32 = 8;
/// The bytes of a full packet on the wire.
const FULL: u64 = 1_106;

/// Returns the time of a flow alone in the network, where every packet is full. The last hop with the rate of
/// the first one spaces the packets, and the acknowledgement of the last packet comes back.
fn alone(flow: &FlowSpec, host: LinkSpec, fabric: LinkSpec) -> Time {
    let is_near = flow.source / EACH == flow.destination / EACH;
    let hops = if is_near { vec![host; 2] } else { vec![host, fabric, fabric, host] };
    let acknowledgement = u64::from(wire_len(20));
    let there_and_back = hops.iter().map(|hop| {
        Time::to_send(FULL, hop.rate_bps)
            + Time::to_send(acknowledgement, hop.rate_bps)
            + hop.delay
            + hop.delay
    });
    let first = there_and_back.fold(Time::ZERO, |sum, hop| sum + hop);
    first + Time::from_ps(Time::to_send(FULL, host.rate_bps).as_ps() * (flow.bytes / 1_024 - 1))
}

type Sizes = fn() -> FlowSizes;

/// The case, or a variant of it.
#[derive(Clone, Copy)]
struct Case {
    congestion: &'static str,
    /// The code point of acknowledgements; `None` for that of data.
    ack_dscp: Option<u8>,
    load: f64,
    sizes: Sizes,
    duration: Time,
    /// The seed of sizes, hosts and starts.
    flows: u64,
}

/// The rates, as all rates of this case, are those of HPCC's simulator times 1106/1048, in whole Mb/s.
const NS3: &str = "dcqcn:ns3,echo=1,rpg_ai_rate=5,rpg_hai_rate=53,rpg_min_rate=106";
/// Acknowledgements wait behind data in switches, as in HPCC's simulator with any configuration: its program
/// passes `ACK_HIGH_PRIO` only to hosts.
const CASE: Case = Case {
    congestion: NS3,
    ack_dscp: None,
    load: 0.5,
    sizes: FlowSizes::web_search,
    duration: Time::from_us(20_000),
    flows: 1,
};

impl Case {
    fn settings(&self, seed: u64) -> Settings {
        let mut settings = Settings { seed, ties: Ties::Port, ..Settings::default() };
        let (congestion, notification) = Congestion::parse(self.congestion).unwrap();
        (settings.host.congestion, settings.host.notification) = (congestion, notification);
        settings.host.ack_dscp = self.ack_dscp;
        settings.host.window_packets = 1 << 20;
        settings.switch.buffer_bytes = in_buffer(32 << 20);
        settings.switch.headroom = Headroom::Auto;
        settings.switch.threshold = Threshold::Dynamic { alpha: 1.0 / 8.0 };
        settings.switch.marking[3] =
            Marking::Red { kmin: in_buffer(100_000), kmax: in_buffer(400_000), pmax: 0.2 };
        settings.switch.marking_rate_bps = Some(link(HOST).rate_bps);
        settings.measure.interval = Time::from_us(20);
        settings
    }

    /// Runs the case. The seed decides paths and marks.
    fn run(&self, seed: u64) -> Results {
        let topology = Topology::leaf_spine(4, 2, EACH as usize, link(HOST), link(FABRIC)).unwrap();
        let what =
            Poisson { hosts: 32, load: self.load, rate_bps: HOST, duration: self.duration, seed: self.flows };
        let mut flows = poisson(&what, &(self.sizes)()).unwrap();
        for flow in &mut flows {
            flow.bytes = payload(flow.bytes);
        }
        let mut simulation = Simulation::new(&topology, &flows, self.settings(seed)).unwrap();
        simulation.run_to_end();
        simulation.results()
    }

    /// Returns the size and slowdown of every flow, and the 99th percentile of the queues in KB.
    fn slowdowns(&self, seed: u64) -> (Vec<(u64, f64)>, f64) {
        let results = self.run(seed);
        let slowdown = |flow: &FlowResult| {
            assert_eq!(flow.state, FlowState::Complete, "{} seed {seed}: {flow:?}", self.congestion);
            let alone = alone(&flow.spec, link(HOST), link(FABRIC));
            let slowdown = flow.completion_time.unwrap().as_secs_f64() / alone.as_secs_f64();
            assert!(slowdown > 0.999_999, "no flow is faster than alone: {slowdown}");
            (flow.spec.bytes, slowdown)
        };
        let ports = results.ports.iter().filter(|port| !port.is_host);
        let queue = ports.map(|port| port.queue.quantile(0.99)).max().unwrap_or_default();
        (results.flows.iter().map(slowdown).collect(), queue as f64 / 1e3)
    }

    /// Returns a row of the figure. Each seed has its own flows.
    fn row(&self, workload: &str, name: &str) -> String {
        let runs: Vec<_> = (1..=SEEDS).map(|seed| Self { flows: seed, ..*self }.slowdowns(seed)).collect();
        let queue = runs.iter().map(|(_, queue)| queue).sum::<f64>() / SEEDS as f64;
        let runs: Vec<_> = runs.into_iter().map(|(flows, _)| flows).collect();
        let mut sizes: Vec<u64> = runs.iter().flatten().map(|(bytes, _)| *bytes).collect();
        sizes.sort_unstable();
        let (count, load) = (sizes.len(), self.load);
        let mut cells = vec![pooled(&runs, 1..=u64::MAX, mean), pooled(&runs, 1..=u64::MAX, tail)];
        let mut least = 0;
        for most in (1..=10).map(|number| sizes[count * number / 10 - 1]) {
            if most > least {
                cells.push(format!("{}:{most}", pooled(&runs, least + 1..=most, tail)));
            }
            least = most;
        }
        format!("{workload}\t{load}\t{name}\t{count}\t{queue:.0}\t{}", cells.join("\t"))
    }

    /// Returns the mean and the 99th percentile of the slowdown, over several seeds.
    fn mean_of(&self, name: &str, seeds: u64) -> (f64, f64) {
        println!("{name}:");
        let run = |seed| {
            let (flows, queue) = self.slowdowns(seed);
            let slowdowns: Vec<f64> = flows.iter().map(|(_, slowdown)| *slowdown).collect();
            let (mean, tail) = (mean(&slowdowns), tail(&slowdowns));
            println!("  seed {seed}: mean {mean:.3}, 99th percentile {tail:.2}, queue {queue:.0} KB");
            (mean, tail)
        };
        let (means, tails): (Vec<_>, Vec<_>) = (1..=seeds).map(run).unzip();
        let range = |values: &[f64]| -> Vec<String> {
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            [mean(values), least, most].map(|value| value.to_string()).into()
        };
        print_cells("websearch", &[vec![name.to_owned()], range(&means), range(&tails)].concat());
        let (all, tail) = (mean(&means), mean(&tails));
        println!("  mean of {seeds} seeds: {all:.3}, 99th percentile {tail:.2}");
        (all, tail)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the 99th percentile.
fn tail(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let place = (values.len() as f64 * 0.99).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Returns a figure of the flows of these sizes: over all runs together, and the range of single runs.
fn pooled(runs: &[Vec<(u64, f64)>], sizes: RangeInclusive<u64>, what: fn(&[f64]) -> f64) -> String {
    let of = |run: &[(u64, f64)]| -> Vec<f64> {
        run.iter().filter(|(bytes, _)| sizes.contains(bytes)).map(|(_, slowdown)| *slowdown).collect()
    };
    let runs: Vec<_> = runs.iter().map(|run| of(run)).filter(|slowdowns| !slowdowns.is_empty()).collect();
    let each = runs.iter().map(|slowdowns| what(slowdowns));
    let (low, high) = each.fold((f64::INFINITY, 0.0), |(low, high), one| (one.min(low), one.max(high)));
    format!("{:.3}:{low:.3}:{high:.3}", what(&runs.concat()))
}

#[test]
fn a_flow_alone_takes_the_time_of_the_closed_form() {
    let topology = Topology::leaf_spine(4, 2, EACH as usize, link(HOST), link(FABRIC)).unwrap();
    for (destination, packets) in [(1, 1), (1, 1_000), (31, 1), (31, 2), (31, 30_000)] {
        let flow = FlowSpec { source: 0, destination, bytes: packets * 1_024, start: Time::ZERO };
        let mut simulation = Simulation::new(&topology, &[flow], CASE.settings(1)).unwrap();
        simulation.run_to_end();
        let time = simulation.results().flows[0].completion_time.unwrap();
        let ideal = alone(&flow, link(HOST), link(FABRIC));
        let parts = time.as_secs_f64() / ideal.as_secs_f64();
        // The closed form omits only the RETH of the first packet, which is 16 bytes.
        assert!((parts - 1.0).abs() < 2.5e-3, "{packets} packets to {destination}: {time:?}, {ideal:?}");
    }
}

/// HPCC's simulator, nine runs with these flows: a mean of 2.633 to 2.745, and a 99th percentile of 9.28 to
/// 12.68.
#[test]
fn the_slowdown_of_web_search() {
    let (mean, tail) = CASE.mean_of("acknowledgements among data", 5);
    assert!((2.633..2.745).contains(&mean), "{mean}");
    assert!((9.28..12.68).contains(&tail), "{tail}");
    let own_priority = Case { ack_dscp: Some(56), ..CASE };
    let (_, short) = own_priority.mean_of("acknowledgements before data in switches", 5);
    assert!(short < tail * 0.9, "{short} against {tail}");
}

/// Other settings of the same case, for the page about validation.
#[test]
#[ignore = "half a minute, for the table in docs/results/simulator-validation.md"]
fn what_matters_for_the_slowdown() {
    for (name, congestion) in [
        ("rates not scaled", "dcqcn:ns3,echo=1,rpg_ai_rate=5,rpg_hai_rate=50"),
        ("ai 20, hai 200", "dcqcn:ns3,echo=1"),
        ("a CNP for each mark", "dcqcn:ns3,rpg_ai_rate=5,rpg_hai_rate=53,rpg_min_rate=106"),
        ("least rate 1 Gb/s", "dcqcn:ns3,echo=1,rpg_ai_rate=5,rpg_hai_rate=53,rpg_min_rate=1055"),
        ("form=device", "dcqcn:hpcc,echo=1,rpg_ai_rate=5,rpg_hai_rate=53,rpg_min_rate=106"),
    ] {
        Case { congestion, ..CASE }.mean_of(name, 5);
    }
}

/// The number of runs of each case of the figure.
const SEEDS: u64 = 5;
/// The algorithms of the figure, with the round trip of this network.
const ALGORITHMS: [(&str, &str); 4] = [
    ("DCQCN", NS3),
    ("HPCC", "hpcc:base_rtt=9000"),
    ("Swift", "swift:base_target=15,fs_range=15,initial_window=28"),
    ("PowerTCP", "powertcp:base_rtt=9000"),
];

/// Prints the data of `docs/results/slowdown.svg`: the 99th percentile of the slowdown by tenths of the
/// flows, ordered by size.
#[test]
#[ignore = "minutes, for the figure in docs/results/"]
fn slowdown_figure() {
    println!(
        "workload\tload\talgorithm\tflows\tqueue_p99_kb\tmean\tp99\tp99 of each tenth, smallest flows first"
    );
    let workloads: [(&str, Sizes); 2] = [("WebSearch", FlowSizes::web_search), ("Hadoop", FlowSizes::hadoop)];
    for (workload, sizes) in workloads {
        for load in [0.3, 0.5, 0.7, 0.8] {
            let row = |(name, congestion)| {
                let case = Case { congestion, sizes, load, duration: Time::from_us(10_000), ..CASE };
                case.row(workload, name)
            };
            let rows = std::thread::scope(|scope| {
                let threads = ALGORITHMS.map(|algorithm| scope.spawn(move || row(algorithm)));
                threads.map(|thread| thread.join().unwrap())
            });
            rows.iter().for_each(|row| println!("{row}"));
        }
    }
}
