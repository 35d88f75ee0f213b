//! One scenario file on packets and in virtual time: two senders, one receiver, DCQCN.
//!
//! ```text
//!  h0 198.18.0.11 --+
//!                   +- br0 l0 --- m0 [ roce bridge ] m1 --- r0 198.18.0.2 (from h0), 198.18.0.4 (from h1)
//!  h1 198.18.0.12 --+
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use roce_plot::{Chart, Figure, Line, Width};
use serde_json::Value;
use toml::Table;

use super::{Row, end};
use crate::common::{Running, roce, skip_unless, within};
use roce_testing::{Namespace, is_too_busy_for_rates};

/// The scenario file that both commands read.
const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/scenario/shipped/two-to-one-bridge.toml");
pub(super) const RECEIVERS: [&str; 2] = ["198.18.0.2", "198.18.0.4"];
pub(super) const SENDERS: [&str; 2] = ["198.18.0.11", "198.18.0.12"];

/// The values of the scenario that the hosts on packets need.
struct Hosts {
    congestion: String,
    line_rate: String,
    line_mbps: f64,
    timeout: String,
    /// Start of the second flow, and end of the run, in seconds.
    joins: f64,
    stop: f64,
}

impl Hosts {
    fn read(text: &str) -> Self {
        let table: Table = text.parse().expect("TOML");
        let word = |value: &toml::Value| value.as_str().expect("a text").to_owned();
        let seconds = |value: &toml::Value| {
            word(value).strip_suffix('s').expect("whole seconds").parse::<f64>().expect("seconds")
        };
        let rate = word(&table["topology"]["rate"]);
        let mbps = rate.strip_suffix("Mbps").expect("a rate in Mbps");
        Self {
            congestion: word(&table["host"]["congestion"]),
            line_rate: format!("{mbps}M"),
            line_mbps: mbps.parse().unwrap(),
            timeout: table["host"]["timeout"].to_string(),
            joins: seconds(&table["flows"][1]["start"]),
            stop: seconds(&table["stop"]),
        }
    }

    /// Returns the goodput of a single flow, in Mb/s of payload: 1,024 bytes of 1,106 on the wire.
    fn goodput_mbps(&self) -> f64 {
        self.line_mbps * 1024.0 / 1106.0
    }
}

/// The result of a run on packets or in the simulator. Times are in seconds from the first packet.
#[derive(Debug, Default)]
struct Outcome {
    /// Mb/s of payload that each flow sent, over time.
    rates: [Vec<(f64, f64)>; 2],
    /// KB in the queue towards the receiver, over time.
    queue: Vec<(f64, f64)>,
    marked: u64,
    cnps: [u64; 2],
    cnps_sent: u64,
    cnps_handled: u64,
    retransmitted: u64,
    dropped: u64,
}

impl Outcome {
    /// Returns the mean rate. Samples are weighted by their duration, because on a busy machine one is long
    /// and the next one short.
    fn mean(&self, flow: usize, from: f64, to: f64) -> f64 {
        let samples = self.rates[flow].windows(2).filter(|two| from < two[1].0 && two[1].0 <= to);
        let (sum, time) = samples.fold((0.0, 0.0), |(sum, time), two| {
            let span = two[1].0 - two[0].0;
            (sum + two[1].1 * span, time + span)
        });
        sum / time
    }

    /// Returns Jain's fairness index of the mean rates.
    fn fairness(&self, from: f64, to: f64) -> f64 {
        let means = [0, 1].map(|flow| self.mean(flow, from, to));
        let (sum, squares) = means.iter().fold((0.0, 0.0), |(sum, squares), r| (sum + r, squares + r * r));
        sum * sum / (2.0 * squares)
    }

    /// Returns mean, median, 90th percentile and maximum of the queue in a period, in KB.
    fn queue(&self, from: f64, to: f64) -> [f64; 4] {
        let inside = self.queue.iter().filter(|(at, _)| from < *at && *at <= to);
        let mut all: Vec<f64> = inside.map(|(_, bytes)| *bytes).collect();
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
        [all.iter().sum::<f64>() / all.len() as f64, at(0.5), at(0.9), at(1.0)]
    }
}

/// Returns the rows of a CSV file as maps from column names to values.
pub(super) fn csv(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a heading").split(',').collect();
    let row = |line: &str| {
        names
            .iter()
            .zip(line.split(','))
            .map(|(name, value)| ((*name).to_owned(), value.to_owned()))
            .collect()
    };
    lines.map(row).collect()
}

pub(super) fn number(row: &BTreeMap<String, String>, name: &str) -> f64 {
    row[name].parse().unwrap_or_else(|_| panic!("{name} of {row:?}"))
}

/// Runs the scenario with `roce sim`.
fn simulate(folder: &Path, text: &str) -> Outcome {
    let file = folder.join("scenario.toml");
    fs::write(&file, text).unwrap();
    let out = folder.join("simulated");
    let finished =
        Running::start(roce().arg("sim").arg(&file).arg("--out").arg(&out).arg("--json")).finish(120);
    assert!(finished.success, "{finished:?}");
    let summary: Value = serde_json::from_str(&finished.stdout).unwrap();
    let mut outcome = Outcome {
        marked: summary["marked"].as_u64().unwrap(),
        cnps_sent: summary["cnps_sent"].as_u64().unwrap(),
        cnps_handled: summary["cnps_handled"].as_u64().unwrap(),
        retransmitted: summary["retransmitted"].as_u64().unwrap(),
        dropped: summary["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum(),
        ..Outcome::default()
    };
    for row in csv(&out.join("rates.csv")) {
        let flow = number(&row, "flow") as usize;
        outcome.rates[flow].push((number(&row, "time_us") / 1e6, number(&row, "sent_gbps") * 1e3));
    }
    for (flow, row) in csv(&out.join("flows.csv")).iter().enumerate() {
        outcome.cnps[flow] = number(row, "cnps_handled") as u64;
    }
    let kept: BTreeMap<u64, f64> = csv(&out.join("queues.csv"))
        .iter()
        .filter(|row| row["port"] == "s0->h2")
        .map(|row| (number(row, "time_us") as u64, number(row, "bytes") / 1e3))
        .collect();
    // The file does not contain samples of an empty queue.
    let samples = outcome.rates[0].iter().map(|(at, _)| *at);
    outcome.queue =
        samples.map(|at| (at, kept.get(&((at * 1e6).round() as u64)).copied().unwrap_or_default())).collect();
    outcome
}

/// Creates the network. The left side of the bridge is a kernel bridge with two hosts.
pub(super) fn build(row: &Row) -> Option<[Namespace; 2]> {
    let hosts = [Namespace::new()?, Namespace::new()?];
    row.left.ip(&[
        "address flush dev l0",
        "link add name br0 mtu 4200 type bridge forward_delay 0 stp_state 0 mcast_snooping 0",
        "link set dev l0 master br0",
        "link set dev br0 up",
        "address add 198.18.0.1/24 dev br0",
    ]);
    for (number, host) in hosts.iter().enumerate() {
        row.left.ip(&[
            &format!("link add name p{number} type veth peer name h{number}"),
            &format!("link set dev h{number} netns {}", host.path()),
            &format!("link set dev p{number} mtu 4200 master br0 up"),
        ]);
        host.ip(&[
            &format!("link set dev h{number} mtu 4200"),
            &format!("address add {}/24 dev h{number}", SENDERS[number]),
            &format!("link set dev h{number} up"),
        ]);
    }
    row.right.ip(&[&format!("address add {}/24 dev r0", RECEIVERS[1])]);
    Some(hosts)
}

/// Starts one side of a flow.
fn perf(
    place: &Namespace,
    folder: &Path,
    device: &str,
    seconds: f64,
    hosts: &Hosts,
    more: &[&str],
) -> Running {
    let mut command = roce();
    command.args(["perf", "write", "bw", "--device", &format!("udp:{device}")]);
    command.args(["-D", &format!("{seconds}"), "-f", "0", "--mtu", "1024", "-u", &hosts.timeout]);
    command.args(["--window", "4096", "--congestion", &hosts.congestion, "--line-rate", &hosts.line_rate]);
    command.args(more).env("XDG_RUNTIME_DIR", folder);
    place.run(move || Running::start(&mut command))
}

/// Returns the sum of a counter over the commands at these addresses.
fn counter(folder: &Path, addresses: [&str; 2], name: &str) -> u64 {
    let counters = addresses.map(|address| super::counters_of(folder, |one| one["addresses"][0] == address));
    counters.iter().filter_map(|counters| counters[name].as_u64()).sum()
}

/// Runs the scenario with `roce bridge`; returns `None` if the process may not create the network.
fn on_packets(folder: &Path, text: &str) -> Option<Outcome> {
    let hosts = Hosts::read(text);
    let row = Row::new()?;
    let senders = build(&row)?;
    let file = folder.join("scenario.toml");
    fs::write(&file, text).unwrap();
    let out = folder.join("packets");
    let [file, out_text] = [&file, &out].map(|path| path.to_str().unwrap());
    let args = ["--scenario", file, "--out", out_text, "--interval", "20ms", "--quiet"];
    let bridge = row.bridge(&args);
    let rest = hosts.stop - hosts.joins;
    let mut clients = Vec::new();
    for (flow, seconds) in [hosts.stop, rest].into_iter().enumerate() {
        let mut server = perf(&row.right, folder, RECEIVERS[flow], seconds, &hosts, &[]);
        server.wait_for_line("waiting on");
        let client =
            perf(&senders[flow], folder, SENDERS[flow], seconds, &hosts, &[RECEIVERS[flow], "--json"]);
        clients.push((server, client));
        // Read the counters while the processes are still running.
        let wait = if flow == 0 { hosts.joins } else { rest - 2.0 };
        std::thread::sleep(Duration::from_secs_f64(wait));
    }
    // In this order, the number sent can exceed the number handled, but not the other way round.
    let cnps_handled = counter(folder, SENDERS, "rp_cnp_handled");
    let cnps_sent = counter(folder, RECEIVERS, "np_cnp_sent");
    let mut retransmitted = 0;
    for (server, client) in clients {
        let client = client.finish(60);
        assert!(client.success, "{client:?}");
        let measured: Value = serde_json::from_str(&client.stdout).unwrap();
        retransmitted += measured["rows"][0]["retransmitted_packets"].as_u64().unwrap();
        assert!(server.finish(60).success);
    }
    let document = end(bridge);
    let counts = &document["from_left"]["counts"];
    let of_pair = |flow: usize| document["from_right"]["queue_pairs"][flow]["cnps"].as_u64().unwrap();
    let mut outcome = Outcome {
        marked: counts["queue_marked"].as_u64().unwrap(),
        cnps: [of_pair(0), of_pair(1)],
        cnps_sent,
        cnps_handled,
        retransmitted,
        dropped: counts["queue_dropped"].as_u64().unwrap() + counts["no_room"].as_u64().unwrap(),
        ..Outcome::default()
    };
    let rates = csv(&out.join("rates.csv"));
    let data = rates.iter().filter(|row| row["port"] == "left->right");
    // The clock of the bridge started before the first flow.
    let first = data.clone().find(|row| number(row, "sent_gbps") > 0.01).expect("data");
    let zero = number(first, "time_us") / 1e6 - 0.02;
    for row in data {
        let flow = number(row, "queue_pair") as usize - 1;
        outcome.rates[flow].push((number(row, "time_us") / 1e6 - zero, number(row, "sent_gbps") * 1e3));
    }
    let queues = csv(&out.join("queues.csv"));
    let queues = queues.iter().filter(|row| row["port"] == "left->right");
    outcome.queue =
        queues.map(|row| (number(row, "time_us") / 1e6 - zero, number(row, "bytes") / 1e3)).collect();
    Some(outcome)
}

/// Asserts that both flows are slowed down to about the same rate, and use at least a `part` of the line.
fn assert_rates(name: &str, one: &Outcome, line: f64, part: f64, fair: f64) {
    let alone = one.mean(0, 0.5, 1.9);
    let both = [0, 1].map(|flow| one.mean(flow, 4.0, 8.8));
    let fairness = one.fairness(4.0, 8.8);
    println!(
        "{name}: alone {alone:.1}, then {both:.1?} of {line:.1} Mb/s, Jain {fairness:.4}, {} CNPs",
        one.cnps_sent
    );
    assert!((part..1.05).contains(&(alone / line)), "{name}: alone {alone} of {line} Mb/s");
    assert!(both.iter().all(|rate| (part / 4.0..0.75).contains(&(rate / line))), "{name}: {both:?}");
    assert!((part..1.05).contains(&((both[0] + both[1]) / line)), "{name}: {both:?} of {line}");
    assert!(fairness > fair, "{name}: {fairness}");
    assert!(one.marked > 0 && one.cnps.iter().all(|cnps| *cnps > 0), "{name}: {one:?}");
    assert!(one.cnps_handled > 0, "{name}: {one:?}");
}

/// Both commands read the same file; this small run changes only its times.
#[test]
fn one_scenario_on_packets_and_in_the_simulator() {
    within(120, || {
        let text = fs::read_to_string(SCENARIO).unwrap();
        let short =
            text.replace("stop = \"30s\"", "stop = \"9s\"").replace("start = \"5s\"", "start = \"2s\"");
        assert_ne!(short, text);
        let folder = tempfile::tempdir().unwrap();
        let Some(packets) = on_packets(folder.path(), &short) else { return };
        let simulated = simulate(folder.path(), &short);
        let hosts = Hosts::read(&short);
        let line = hosts.goodput_mbps();
        assert_rates("simulated", &simulated, line, 0.8, 0.99);
        assert_eq!(simulated.retransmitted, 0);
        if !is_too_busy_for_rates() {
            assert_rates("packets", &packets, line, 0.2, 0.75);
            // A sender may retransmit a packet early if the queue grows faster than its measurement.
            assert!(packets.retransmitted < 100, "{packets:?}");
            let ratio = packets.cnps_sent as f64 / simulated.cnps_sent as f64;
            assert!((0.2..5.0).contains(&ratio), "{} and {} CNPs", packets.cnps_sent, simulated.cnps_sent);
        }
        for one in [&packets, &simulated] {
            assert!(one.cnps_sent >= one.cnps_handled, "{one:?}");
            assert_eq!(one.dropped, 0, "{one:?}");
        }
        // All CNPs that the receivers had sent passed the bridge, which ran for longer.
        assert!(packets.cnps.iter().sum::<u64>() >= packets.cnps_sent, "{packets:?}");
    });
}

/// Returns means over intervals of 0.1 s.
fn coarse(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut bins: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
    for (at, value) in points.iter().filter(|(at, _)| *at > 0.0) {
        let bin = bins.entry((at * 10.0 - 1e-6).floor() as i64).or_default();
        *bin = (bin.0 + value, bin.1 + 1.0);
    }
    bins.into_iter().map(|(bin, (sum, count))| (bin as f64 / 10.0 + 0.05, sum / count)).collect()
}

fn chart(title: &str, y_label: &str, lines: Vec<(&str, Vec<(f64, f64)>)>) -> Figure {
    let line = |(name, points): (&str, _)| Line { name: name.to_owned(), points };
    let lines = lines.into_iter().map(line).collect();
    let (title, y_label) = (title.to_owned(), y_label.to_owned());
    Chart { title, x_label: "time, s".to_owned(), y_label, lines, ..Chart::default() }.into()
}

/// Number of runs on packets for a report.
const RUNS: usize = 3;

/// Returns the table of `docs/results/bridge-and-simulator.md`: runs on packets, and the simulated run last.
fn table(hosts: &Hosts, all: &[Outcome]) -> String {
    let mut text = format!("|{} | simulated |\n|{}\n", " | on packets".repeat(RUNS), "---|".repeat(RUNS + 2));
    let mut row = |name: &str, value: &dyn Fn(&Outcome) -> String| {
        let values: Vec<String> = all.iter().map(value).collect();
        let _ = writeln!(text, "| {name} | {} |", values.join(" | "));
    };
    let (joins, stop) = (hosts.joins, hosts.stop - 0.2);
    // Ten seconds after the start of the second flow.
    let rest = joins + 10.0;
    row("flow 0 alone, Mb/s", &|it| format!("{:.1}", it.mean(0, 0.5, joins - 0.1)));
    for flow in [0, 1] {
        row(&format!("flow {flow} from {rest} s on, Mb/s"), &|it| {
            format!("{:.1}", it.mean(flow, rest, stop))
        });
    }
    row("both, as a share of the goodput of the line", &|it| {
        format!("{:.3}", (it.mean(0, rest, stop) + it.mean(1, rest, stop)) / hosts.goodput_mbps())
    });
    row("Jain's index from there on", &|it| format!("{:.4}", it.fairness(rest, stop)));
    row("packets marked", &|it| it.marked.to_string());
    row("CNPs to flow 0, to flow 1", &|it| format!("{}, {}", it.cnps[0], it.cnps[1]));
    row("queue from there on, KB: mean, p50, p90, most", &|it| {
        it.queue(rest, stop).map(|kb| format!("{kb:.0}")).join(", ")
    });
    row("queue after the second flow joined, most KB", &|it| format!("{:.0}", it.queue(joins, rest)[3]));
    row("dropped, sent again", &|it| format!("{}, {}", it.dropped, it.retransmitted));
    text
}

/// Writes the plots and the table of `docs/results/bridge-and-simulator.md` into the folder in
/// `ROCE_BRIDGE_REPORT`.
#[test]
#[ignore = "makes a report, in two minutes: ROCE_BRIDGE_REPORT=FOLDER"]
fn report_of_one_scenario_on_packets_and_in_the_simulator() {
    let folder = std::env::var_os("ROCE_BRIDGE_REPORT").unwrap_or_default();
    if skip_unless(!folder.is_empty(), "ROCE_BRIDGE_REPORT names no folder") {
        return;
    }
    within(300, move || {
        let report = Path::new(&folder);
        let text = fs::read_to_string(SCENARIO).unwrap();
        let hosts = Hosts::read(&text);
        let runs = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        for _ in 0..RUNS {
            let Some(packets) = on_packets(runs.path(), &text) else { return };
            all.push(packets);
        }
        let simulated = simulate(runs.path(), &text);
        let save = |name: &str, figure: &Figure| {
            fs::write(report.join(format!("{name}.svg")), figure.to_svg(Width::Screen)).unwrap();
            fs::write(report.join(format!("{name}.tsv")), figure.to_table()).unwrap();
        };
        // Other load of the machine causes marks, so the plots show the run with the fewest marks.
        let quiet = all.iter().min_by_key(|one| one.marked).expect("a run");
        for (name, title, one) in [
            ("bridge-rates", "On packets: payload sent, by flow", quiet),
            ("simulator-rates", "In the simulator: payload sent, by flow", &simulated),
        ] {
            let lines = vec![("flow 0", coarse(&one.rates[0])), ("flow 1", coarse(&one.rates[1]))];
            save(name, &chart(title, "payload rate, Mb/s", lines));
        }
        let cut = |one: &Outcome| one.queue.iter().map(|(at, kb)| (*at, kb.min(400.0))).collect();
        let lines = vec![("on packets", cut(quiet)), ("simulated", cut(&simulated))];
        let title = "Queue in front of the receiver; above 400 KB cut off";
        save("bridge-and-simulator-queue", &chart(title, "queue, KB", lines));
        all.push(simulated);
        println!("{}", table(&hosts, &all));
    });
}
