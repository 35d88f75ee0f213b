//! Passes the smallest and the largest values to `sim`, `bridge` and `demo`, for every number that they read.
//! The command runs or refuses the value with an error. It neither panics nor uses unlimited memory or time.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::Running;

/// Address space of a run, in kilobytes.
const MEMORY_KB: u64 = 3_000_000;
/// Time limit of a run, in seconds. Runs that end by themselves take less than one second.
const LIMIT: u64 = 30;

const SCENARIO: &str = r#"
name = "small"
stop = "200us"
[topology]
kind = "star"
hosts = 3
rate = "40Gbps"
delay = "1us"
[host]
congestion = "dcqcn:paper"
[switch]
buffer = "1MB"
[measure]
interval = "10us"
[[flows]]
kind = "incast"
degree = 2
to = "h2"
bytes = "100KB"
"#;

const SIZES: &[&str] = &["0", "1", "18446744073709551615"];
const TIMES: &[&str] = &["0s", "1ps", "1ns", "18446744073709551615ps"];
const RATES: &[&str] = &["0bps", "1bps", "18446744073709551615bps"];
const COUNTS: &[&str] =
    &["0", "1", "255", "256", "65535", "65536", "4294967295", "4294967296", "9223372036854775807", "-1"];
const SHARES: &[&str] = &["0.0", "1.0", "-1.0", "1e308", "nan", "inf"];

/// Keys of a scenario, with the values to try.
const KEYS: &[(&str, &[&str])] = &[
    ("seed", COUNTS),
    ("stop", TIMES),
    ("topology.hosts", COUNTS),
    ("topology.rate", RATES),
    ("topology.delay", TIMES),
    ("host.delay", TIMES),
    ("host.dscp", COUNTS),
    ("host.ack_dscp", COUNTS),
    ("host.path_mtu", COUNTS),
    ("host.window", COUNTS),
    ("host.timeout", COUNTS),
    ("host.retry_cnt", COUNTS),
    ("host.message", SIZES),
    ("host.depth", COUNTS),
    ("switch.buffer", SIZES),
    ("host.reads.rate", SHARES),
    ("switch.reserve", SIZES),
    ("switch.headroom", SIZES),
    ("switch.xon_offset", SIZES),
    ("switch.lossy_alpha", SHARES),
    ("switch.threshold.bytes", SIZES),
    ("switch.threshold.alpha", SHARES),
    ("switch.marking.step", SIZES),
    ("measure.interval", TIMES),
    ("measure.warm_up", TIMES),
    ("measure.points", COUNTS),
    ("flows.0.degree", COUNTS),
    ("flows.0.bytes", SIZES),
    ("flows.0.start", TIMES),
];

/// Tables with several numbers, in which `N`, `B`, `T` and `R` stand for a count, a size, a time and a rate.
const TABLES: &[&str] = &[
    "switch.marking={ kmin = \"B\", kmax = \"B\", pmax = 1.0 }",
    "switch.watchdog={ after = \"T\", restore = \"T\" }",
    "switch.queue=[{ priority = N, weight = N }]",
    "host.receive_limit={ rate = \"R\", xoff = \"B\" }",
    "host.reads={ packets = N, rate = 1.0 }",
    "storm=[{ host = \"h1\", priority = N, start = \"0s\", end = \"T\" }]",
    "flows=[{ kind = \"pair\", from = \"h0\", to = \"h1\", bytes = \"B\", start = \"T\" }]",
    "flows=[{ kind = \"permutation\", bytes = \"B\", start = \"T\" }]",
    "flows=[{ kind = \"all-to-all\", bytes = \"B\", start = \"T\" }]",
    "flows=[{ kind = \"on-off\", from = \"h0\", to = \"h1\", bytes = \"B\", period = \"T\", count = N }]",
    "flows=[{ kind = \"poisson\", load = 0.5, duration = \"T\", sizes = \"websearch\" }]",
    "topology={ kind = \"leaf-spine\", leaves = N, spines = N, hosts = N }",
    "topology={ kind = \"fat-tree\", k = N }",
    "topology={ kind = \"tree\", depth = N, fanout = N, hosts = N }",
    "topology={ kind = \"ring\", switches = N, hosts = N }",
    "topology={ kind = \"full-mesh\", switches = N, hosts = N }",
    "topology={ kind = \"line\", switches = N, hosts = N }",
    "topology={ kind = \"dumbbell\", left = N, right = N }",
    "topology={ kind = \"clos\", pods = N, tors = N, leaves = N, spines = N, hosts = N }",
    "topology={ kind = \"star\", hosts = 3, rate = \"R\", delay = \"T\" }",
];

/// Returns the error of a run with these arguments, if there is one.
fn problem(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("sh");
    let limited = format!("ulimit -v {MEMORY_KB}; exec \"$0\" \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_roce")]).args(arguments).env_remove("ROCE_LOG");
    // This call panics if the command panics or hangs.
    let running = || Running::start(&mut command).finish(LIMIT);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(running));
    let told = arguments.join(" ");
    match ended {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
            Some(format!("{told}: {}", text.chars().take(400).collect::<String>()))
        }
        Ok(ended) if ended.code.is_none() => Some(format!("{told}: ended by a signal: {}", ended.stderr)),
        Ok(ended) if !ended.success && !ended.stderr.contains(": ") => {
            Some(format!("{told}: failed without an error: {ended:?}"))
        }
        Ok(_) => None,
    }
}

/// Runs them all, two at a time, and fails with all errors at once.
#[track_caller]
fn none_has_a_problem(runs: &[Vec<String>]) {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let arguments: Vec<&str> = run.iter().map(String::as_str).collect();
                    if let Some(problem) = problem(&arguments) {
                        wrong.lock().unwrap().push(problem);
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}\n{} of {} runs", wrong.join("\n"), wrong.len(), runs.len());
}

fn run(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

/// Writes the scenario to a file.
fn scenario() -> (tempfile::TempDir, String) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("small.toml");
    std::fs::write(&path, SCENARIO).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (place, path)
}

#[test]
fn every_key_of_a_scenario_takes_its_extremes() {
    let (_place, file) = scenario();
    let mut runs = vec![run(&["sim", &file])];
    for (key, values) in KEYS {
        for value in *values {
            // Values with units are strings.
            let is_text =
                value.ends_with(['s', 'b']) && value.starts_with(|first: char| first.is_ascii_digit());
            let set = if is_text { format!("{key}=\"{value}\"") } else { format!("{key}={value}") };
            runs.push(run(&["sim", &file, "--set", &set]));
        }
    }
    none_has_a_problem(&runs);
}

#[test]
fn every_table_of_a_scenario_takes_its_extremes() {
    let (_place, file) = scenario();
    let mut runs = Vec::new();
    for table in TABLES {
        // Sets all numbers of a kind at once, to small and to large values.
        for (count, size, time, rate) in [
            ("0", "0", "0s", "0bps"),
            ("1", "1", "1ps", "1bps"),
            ("2", "1KB", "1us", "1Gbps"),
            ("4294967295", "18446744073709551615", "18446744073709551615ps", "18446744073709551615bps"),
            ("9223372036854775807", "9223372036854775807", "100000s", "999Tbps"),
        ] {
            let set = table.replace(" N", &format!(" {count}")).replace("\"B\"", &format!("\"{size}\""));
            let set = set.replace("\"T\"", &format!("\"{time}\"")).replace("\"R\"", &format!("\"{rate}\""));
            runs.push(run(&["sim", &file, "--set", &set]));
        }
    }
    none_has_a_problem(&runs);
}

#[test]
fn options_of_sim_take_their_extremes() {
    let (_place, file) = scenario();
    let mut runs = Vec::new();
    for value in ["0", "1", "9223372036854775807", "18446744073709551615", "-1"] {
        runs.push(run(&["sim", &file, "--seed", value]));
        runs.push(run(&["sim", &file, "--sweep", "seed=1,2", "--index", value, "--out", "/dev/null"]));
    }
    // More combinations than can be listed.
    let many: String = (0..40).map(|number| format!("{number},")).collect::<String>() + "40";
    let names = ["seed", "host.window", "host.depth", "host.timeout", "host.retry_cnt", "flows.0.degree"];
    let sweeps: Vec<String> =
        names.iter().flat_map(|name| ["--sweep".into(), format!("{name}={many}")]).collect();
    let sweeps: Vec<&str> = sweeps.iter().map(String::as_str).collect();
    runs.push(run(&[&["sim", &file][..], &sweeps].concat()));
    none_has_a_problem(&runs);
}

/// The options are read before the missing devices are refused.
#[test]
fn options_of_bridge_take_their_extremes() {
    let devices = ["bridge", "--left", "raw:none0", "--right", "raw:none1"];
    let mut runs = Vec::new();
    let options: &[(&str, &[&str])] = &[
        ("--rate", RATES),
        ("--delay", TIMES),
        ("--queue", SIZES),
        ("--step", SIZES),
        ("--pfc", COUNTS),
        ("--seed", COUNTS),
        ("--duration", TIMES),
    ];
    for (option, values) in options {
        for value in *values {
            let value = format!("{option}={value}");
            runs.push(run(&[&devices[..], &[&value]].concat()));
        }
    }
    for size in SIZES {
        let [kmin, kmax] = ["kmin", "kmax"].map(|name| format!("--{name}={size}"));
        for share in SHARES {
            let pmax = format!("--pmax={share}");
            runs.push(run(&[&devices[..], &[&kmin, &kmax, &pmax]].concat()));
        }
        let [xoff, xon] = ["xoff", "xon"].map(|name| format!("--{name}={size}"));
        runs.push(run(&[&devices[..], &["--pfc=3", &xoff, &xon]].concat()));
    }
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out").to_str().unwrap().to_owned();
    for time in TIMES {
        let interval = format!("--interval={time}");
        runs.push(run(&[&devices[..], &["--out", &out, &interval]].concat()));
    }
    none_has_a_problem(&runs);
}

/// The demo has one number, and its faults.
#[test]
fn options_of_demo_take_their_extremes() {
    let mut runs = Vec::new();
    for value in COUNTS {
        let seed = format!("--seed={value}");
        // No machine has these devices; the options are read before.
        runs.push(run(&["demo", &seed, "--pcap", "/dev/null", "--device", "udp:192.0.2.1", "udp:192.0.2.2"]));
    }
    for plan in ["drop=0%", "drop=100%", "drop=101%", "drop=-1%", "delay=18446744073709551615ns", "delay=0s"]
    {
        let fault = format!("--fault={plan}");
        runs.push(run(&[
            "demo",
            &fault,
            "--pcap",
            "/dev/null",
            "--device",
            "udp:192.0.2.1",
            "udp:192.0.2.2",
        ]));
    }
    none_has_a_problem(&runs);
}
