//! Two senders share one port of `roce bridge`, which reports its queue by in-band telemetry. The network is
//! that of `two_to_one`.

use std::path::Path;

use serde_json::Value;

use super::two_to_one::{RECEIVERS, SENDERS, build, csv, number};
use super::{Row, end};
use crate::common::{Running, roce, within};
use roce_testing::Namespace;

/// The parameters of the two senders.
struct Load<'a> {
    congestion: &'a str,
    telemetry: bool,
    /// Rate of the port.
    rate: &'a str,
    /// Initial rate of the algorithms.
    line_rate: &'a str,
    /// Additional options of the queue.
    queue: &'a [&'a str],
    /// Number of messages of 64 KiB that each sender sends.
    messages: u64,
}

/// The result of a run.
#[derive(Debug)]
struct Outcome {
    /// Bytes in the queue while both senders were active: median and 99th percentile.
    queue: [f64; 2],
    /// Maximum queue length, in bytes.
    longest: f64,
    /// Mb/s of payload that left the port during the same time.
    goodput_mbps: f64,
    stamped: u64,
    dropped: u64,
    marked: u64,
}

fn blast(place: &Namespace, folder: &Path, device: &str, load: &Load<'_>, more: &[&str]) -> Running {
    let mut command = roce();
    command.args(["blast", "--device", &format!("udp:{device}"), "--mtu", "1024", "--timeout", "18"]);
    command.args(["--congestion", load.congestion]).args(more).env("XDG_RUNTIME_DIR", folder);
    if load.telemetry {
        command.arg("--telemetry");
    }
    place.run(move || Running::start(&mut command))
}

/// Runs both senders; the receivers check the contents. Returns `None` if the process may not create the
/// network.
fn run(load: &Load<'_>) -> Option<Outcome> {
    let row = Row::new()?;
    let senders = build(&row)?;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("bridge");
    let mut args = vec!["--from", "left", "--rate", load.rate, "--queue", "8MB", "--quiet"];
    args.extend(["--out", out.to_str().unwrap(), "--interval", "10ms"]);
    args.extend(load.queue);
    let bridge = row.bridge(&args);
    let servers = RECEIVERS.map(|address| {
        let mut server = blast(&row.right, folder.path(), address, load, &["--once"]);
        server.wait_for_line("waiting on");
        server
    });
    let messages = load.messages.to_string();
    let clients = [0, 1].map(|flow| {
        let more = [RECEIVERS[flow], "-s", "64K", "-n", &messages, "--line-rate", load.line_rate, "--json"];
        blast(&senders[flow], folder.path(), SENDERS[flow], load, &more)
    });
    for one in clients.into_iter().chain(servers) {
        let finished = one.finish(60);
        assert!(finished.success, "{}: {finished:?}", load.congestion);
    }
    let document: Value = end(bridge);
    let counts = &document["from_left"]["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap();
    // Both flows are active between the later first sample and the earlier last sample with payload.
    let rates = csv(&out.join("rates.csv"));
    let sent = |flow: usize| -> Vec<(f64, f64)> {
        let own = rates
            .iter()
            .filter(|row| row["port"] == "left->right" && number(row, "queue_pair") as usize == flow);
        own.map(|row| (number(row, "time_us"), number(row, "sent_gbps")))
            .filter(|(_, rate)| *rate > 1e-4)
            .collect()
    };
    let flows = [sent(1), sent(2)];
    let begin = flows.iter().map(|flow| flow.first().expect("data").0).fold(0.0, f64::max);
    let stop = flows.iter().map(|flow| flow.last().expect("data").0).fold(f64::MAX, f64::min);
    // Omit the first fifth, in which the flows start.
    let begin = begin + (stop - begin) / 5.0;
    let both = |at: f64| (begin..stop).contains(&at);
    let mut lengths: Vec<f64> = csv(&out.join("queues.csv"))
        .iter()
        .filter(|row| row["port"] == "left->right" && both(number(row, "time_us")))
        .map(|row| number(row, "bytes"))
        .collect();
    lengths.sort_by(f64::total_cmp);
    let at = |share: f64| lengths[((lengths.len() - 1) as f64 * share) as usize];
    let payload: f64 =
        flows.iter().flatten().filter(|(time, _)| both(*time)).map(|(_, gbps)| gbps * 1e3 * 10_000.0).sum();
    Some(Outcome {
        queue: [at(0.5), at(0.99)],
        longest: at(1.0),
        goodput_mbps: payload / (stop - begin),
        stamped: count("telemetry_stamped"),
        dropped: count("queue_dropped"),
        marked: count("queue_marked"),
    })
}

/// The first windows are ten times the base bandwidth-delay product. Only the telemetry of the port reduces
/// them.
#[test]
fn what_the_port_writes_keeps_its_queue_short() {
    within(120, || {
        let load = |congestion, telemetry, queue| Load {
            congestion,
            telemetry,
            rate: "100Mbps",
            line_rate: "1Gbps",
            queue,
            messages: 200,
        };
        const HPCC: &str = "hpcc,base_rtt=4000000,min_rate=1";
        const POWERTCP: &str = "powertcp,base_rtt=4000000,min_rate=1,flows=100";
        // Two windows of 500 KB, or as much of them as 256 packets contain. On a busy machine the queue is
        // often empty, so the test uses the maximum length in several runs.
        let mut blind: Option<Outcome> = None;
        for _ in 0..5 {
            let Some(outcome) = run(&load(HPCC, true, &[])) else { return };
            println!("without hops: {outcome:?}");
            assert_eq!(outcome.stamped, 0);
            blind = blind.filter(|longest| longest.longest > outcome.longest).or(Some(outcome));
            if blind.as_ref().is_some_and(|blind| blind.longest > 300_000.0) {
                break;
            }
        }
        let blind = blind.expect("at least one run");
        assert!(blind.longest > 150_000.0, "{blind:?}");
        for congestion in [HPCC, POWERTCP] {
            let Some(seen) = run(&load(congestion, true, &["--telemetry"])) else { return };
            println!("{congestion}: {seen:?}");
            assert!(seen.stamped >= 2 * 200 * 64, "{congestion}: {seen:?}");
            assert!(seen.queue[0] < blind.longest / 4.0, "{congestion}: {seen:?} instead of {blind:?}");
            assert_eq!(seen.dropped, 0);
        }
    });
}

/// Telemetry works in frames of this project and in those of the kernel, whose UDP checksum must be updated.
#[test]
fn every_device_and_both_versions_of_ip() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let bridge = row.bridge(&["--rate", "200Mbps", "--telemetry", "--quiet"]);
        for (own, peer, server) in [
            ("raw:l0", "raw:r0", "198.18.0.2"),
            ("udp:198.18.0.1", "raw:r0", "198.18.0.2"),
            ("raw:l0", "udp:198.18.0.2", "198.18.0.2"),
            ("udp:2001:db8::1", "udp:2001:db8::2", "2001:db8::2"),
            ("xdp:l0", "udp:198.18.0.2", "198.18.0.2"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let start = |place: &Namespace, device: &str, more: &[&str]| {
                let mut command = roce();
                command.args(["blast", "--device", device, "--telemetry", "--timeout", "18"]).args(more);
                command.env("XDG_RUNTIME_DIR", folder.path());
                place.run(move || Running::start(&mut command))
            };
            let mut waits = start(&row.right, peer, &[]);
            waits.wait_for_line("waiting on");
            let hpcc = ["--congestion", "hpcc,base_rtt=4000000,min_rate=1", "--line-rate", "200M"];
            let more = [&hpcc[..], &["-s", "20000", "-n", "100", server]].concat();
            let client = start(&row.left, own, &more).finish(60);
            assert!(client.success, "{own} to {peer}: {client:?}");
            let counters = super::counters_of(folder.path(), |one| one["pid"] == waits.pid());
            for name in ["rx_icrc_encapsulated", "rx_telemetry_refused", "drop_malformed"] {
                assert_eq!(counters[name], 0, "{own} to {peer}: {name}");
            }
            waits.interrupt();
            waits.finish(60);
        }
        let document = end(bridge);
        let stamped = document["from_left"]["counts"]["telemetry_stamped"].as_u64().unwrap();
        // Ten packets per message with path MTU 2048.
        assert!(stamped >= 5 * 100 * 10, "{stamped}");
        assert_eq!(document["from_right"]["counts"]["telemetry_stamped"], 0, "acknowledgements are echoes");
    });
}

/// Prints a table of the queue and the goodput of each algorithm at one port.
#[test]
#[ignore = "makes a report, in two minutes"]
fn report_of_algorithms_at_one_port() {
    within(300, || {
        println!("| port | algorithm | queue, median | queue, 99 % | goodput | dropped | marked |");
        println!("|---|---|---|---|---|---|---|");
        for (rate, messages) in [("300Mbps", 1_500), ("1Gbps", 5_000)] {
            for (congestion, telemetry, queue) in [
                ("none", false, &[][..]),
                ("dcqcn", false, &["--kmin", "40KB", "--kmax", "160KB", "--pmax", "0.2"]),
                ("hpcc,base_rtt=500000,min_rate=10", true, &["--telemetry"]),
                ("powertcp,base_rtt=500000,min_rate=10", true, &["--telemetry"]),
            ] {
                let load = Load { congestion, telemetry, rate, line_rate: rate, queue, messages };
                let Some(seen) = run(&load) else { return };
                let [median, most] = seen.queue.map(|bytes| bytes / 1e3);
                println!(
                    "| {rate} | `{congestion}` | {median:.0} KB | {most:.0} KB | {:.0} Mb/s | {} | {} |",
                    seen.goodput_mbps, seen.dropped, seen.marked
                );
            }
        }
    });
}
