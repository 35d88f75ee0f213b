//! `roce sim` as users run it: scenarios by name and from files, reports, sweeps and jobs.

use std::path::Path;

use crate::common::{Finished, Running, roce, run};
use serde_json::Value;

const SMALL: &str = r#"
name = "small"
[topology]
kind = "star"
hosts = 3
[[flows]]
kind = "incast"
degree = 2
to = "h2"
bytes = "1MB"
[[sweep]]
name = "host.congestion"
values = ["none", "dcqcn:paper"]
[[sweep]]
name = "flows.0.bytes"
values = ["200KB", "1MB"]
"#;

/// A directory that contains the small scenario.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::write(place.path("small.toml"), SMALL).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs the small scenario.
    #[track_caller]
    fn sim(&self, options: &[&str]) -> Finished {
        let finished = run(&[&["sim", &self.path("small.toml")], options].concat());
        assert!(finished.success, "{options:?}: {}", finished.stderr);
        finished
    }

    /// Runs `roce sim` in this directory.
    #[track_caller]
    fn inside(&self, options: &[&str]) -> Finished {
        Running::start(roce().current_dir(self.0.path()).arg("sim").args(options)).finish(60)
    }

    /// Runs the small scenario as [`Self::sim`] does; returns its JSON output.
    #[track_caller]
    fn document(&self, options: &[&str]) -> Value {
        let finished = self.sim(&[options, &["--json"]].concat());
        serde_json::from_str(&finished.stdout).expect("JSON and nothing else")
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_list_has_every_shipped_scenario_and_each_can_be_named() {
    let list = run(&["sim", "--list"]);
    assert!(list.success);
    let shipped = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/scenario/shipped")).unwrap();
    let shipped = shipped.map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in shipped.filter(|path| path.extension().is_some_and(|extension| extension == "toml")) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(list.stdout.lines().any(|line| line == name), "{name} is not listed:\n{}", list.stdout);
        count += 1;
    }
    assert!(count > 15, "{count}");
    let finished = run(&["sim", "pause-storm", "--json"]);
    let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!((&document["scenario"], &document["incomplete"]), (&"pause storm".into(), &0.into()));
}

/// The first run creates a directory of that name; the second run must not mistake it for the scenario.
#[test]
fn a_shipped_scenario_runs_twice_into_a_directory_of_its_name() {
    let place = Place::new();
    for _ in 0..2 {
        let finished = place.inside(&["pause-storm", "--out", "pause-storm"]);
        assert!(finished.success, "{}", finished.stderr);
    }
}

#[test]
fn a_seed_repeats_a_run_and_another_does_not() {
    let place = Place::new();
    let marking = [
        "--set",
        "host.congestion=dcqcn:paper",
        "--set",
        "switch.marking={ kmin = \"1KB\", kmax = \"200KB\", pmax = 1.0 }",
    ];
    let hash = |seed| place.document(&[&marking[..], &["--seed", seed]].concat());
    let [first, second, other] = ["9223372036854775807", "9223372036854775807", "6"].map(hash);
    assert_eq!(first, second);
    assert!(first["marked"].as_u64().unwrap() > 0, "{first}");
    assert_ne!(first["trace_hash"], other["trace_hash"]);
    assert_ne!(first["configuration_hash"], other["configuration_hash"]);
}

/// The text of the scenario is the same; the contents of its flow file differ.
#[test]
fn the_configuration_hash_knows_the_files_that_a_scenario_names() {
    let place = Place::new();
    let text = "name = \"trace\"\n[topology]\nkind = \"point-to-point\"\n\
                [[flows]]\nkind = \"trace\"\nfile = \"flows.txt\"\n";
    std::fs::write(place.path("trace.toml"), text).unwrap();
    let hash = |flows| {
        std::fs::write(place.path("flows.txt"), flows).unwrap();
        let finished = place.inside(&["trace.toml", "--json"]);
        assert!(finished.success, "{}", finished.stderr);
        let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        document["configuration_hash"].clone()
    };
    let [first, second, other] = ["0 1 1000 0\n", "0 1 1000 0\n", "0 1 2000 0\n"].map(hash);
    assert_eq!(first, second);
    assert_ne!(first, other);
}

/// A report contains tables, pictures and a page, all of the same run.
#[test]
fn a_report_has_tables_pictures_and_where_they_come_from() {
    let place = Place::new();
    let out = place.path("out");
    let options =
        ["--out", &out, "--set", "host.congestion=dcqcn:paper", "--pcap-port", "h2", "--pcap-port", "s0:h2"];
    let printed = place.document(&options);
    assert_eq!(serde_json::from_str::<Value>(&read(&format!("{out}/summary.json"))).unwrap(), printed);
    let (flows, rates) = (read(&format!("{out}/flows.csv")), read(&format!("{out}/rates.csv")));
    assert_eq!(flows.lines().count(), 3, "{flows}");
    assert!(flows.lines().skip(1).all(|line| line.contains(",1000000,") && line.contains(",complete,")));
    // 2 MB take at least 160 us at 100 Gb/s, with one point per 10 us.
    assert!(rates.lines().count() > 2 * 16, "{rates}");
    assert!(rates.lines().skip(1).all(|line| line.split(',').count() == 6), "{rates}");
    let page = read(&format!("{out}/report.html"));
    for name in ["rates", "alpha", "allowed", "total", "jain", "queues"] {
        let picture = read(&format!("{out}/{name}.svg"));
        assert!(picture.contains("<svg") && picture.trim_end().ends_with("</svg>"), "{name}");
        assert!(picture.contains("<polyline") || picture.contains("<path"), "{name} has no line");
        assert!(picture.contains("Scenario small, seed 1, DCQCN"), "{name} does not name its run");
        let table = read(&format!("{out}/{name}.tsv"));
        assert!(table.lines().any(|line| line.starts_with("1\t")), "{name}: {table}");
    }
    for known in ["configuration_hash", "trace_hash", "version"] {
        assert!(page.contains(printed[known].as_str().unwrap()), "{known}");
    }
    assert_eq!(page.matches("<svg").count(), 6);
    assert!(page.contains("<td>congestion control</td><td>dcqcn:"), "{page}");
    let capture = run(&["dissect", "--bad-icrc", &format!("{out}/h2.pcapng")]);
    assert!(capture.success && capture.stderr.contains(" 0 bad"), "{capture:?}");
    let switch = run(&["dissect", "--bad-icrc", &format!("{out}/s0-h2.pcapng")]);
    assert_eq!(switch.stderr, capture.stderr, "the other end of the same link");
    let packets: u64 = capture.stderr.split(' ').next().unwrap().parse().unwrap();
    assert!(packets >= printed["data_packets"].as_u64().unwrap(), "{}", capture.stderr);
}

#[test]
fn every_column_of_the_tables_is_explained() {
    let place = Place::new();
    place.sim(&["--out", &place.path("out"), "--set", "host.application=polling"]);
    let text = read(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/simulator-output.md"));
    for table in ["flows", "slowdown", "ports", "hosts", "rates", "total", "queues", "queue_cdf"] {
        let head = read(&place.path(&format!("out/{table}.csv"))).lines().next().unwrap().to_owned();
        // All reasons for drops share one row.
        let mut columns: Vec<&str> = head
            .split(',')
            .map(|name| if name.starts_with("dropped_") { "dropped_*" } else { name })
            .collect();
        columns.dedup();
        let section = text.split(&format!("## {table}.csv\n")).nth(1).unwrap_or_default();
        let section = section.split("\n#").next().unwrap_or_default();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let explained: Vec<&str> =
            rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
        assert_eq!(explained, columns, "{table}");
    }
}

/// One process on all cores runs the same combinations as a job, whose results merge to the same table.
#[test]
fn a_sweep_here_and_as_a_job_gives_the_same() {
    let place = Place::new();
    let all = place.document(&["--sweeps"]);
    let all = all["runs"].as_array().expect("a list");
    let sets: Vec<String> = all.iter().map(|run| run["set"].to_string()).collect();
    assert_eq!(sets.len(), 4, "{sets:?}");
    assert!(sets[1].contains("none") && sets[1].contains("1MB") && sets[2].contains("dcqcn"), "{sets:?}");

    let out = place.path("out");
    let job = place.sim(&["--sweeps", "--out", &out, "--emit", "slurm"]).stdout;
    assert!(job.starts_with("#!/bin/sh\n") && job.contains("--array=0-3\n"), "{job}");
    let kubernetes = ["small.toml", "--sweeps", "--out", "out", "--emit", "kubernetes"];
    let kubernetes = place.inside(&kubernetes).stdout;
    assert!(kubernetes.contains("with the same paths: small.toml\n"), "{kubernetes}");
    assert!(kubernetes.contains("completionMode: Indexed") && kubernetes.contains("completions: 4\n"));
    assert!(!Path::new(&out).exists(), "to emit is not to run");
    // Runs each index as a shell would.
    let script = place.path("job.sh");
    let program = roce().get_program().to_str().unwrap().to_owned();
    std::fs::write(&script, job.replace("exec roce ", &format!("exec {program} "))).unwrap();
    for index in 0..4 {
        let mut shell = std::process::Command::new("sh");
        let status = shell.arg(&script).env("SLURM_ARRAY_TASK_ID", index.to_string()).output().unwrap();
        assert!(status.status.success(), "{status:?}");
    }
    let merged = run(&["sim", "--merge", &out, "--json"]);
    assert_eq!(merged.stderr, "", "nothing is missing");
    let merged: Value = serde_json::from_str(&merged.stdout).expect("JSON");
    assert_eq!(merged["runs"].as_array().expect("a list"), all);
    let table = run(&["sim", "--merge", &out]).stdout;
    assert_eq!(table.lines().count(), 5, "{table}");
}

/// Means and intervals over seeds appear in text, JSON, a table and a page, also for merged runs.
#[test]
fn several_seeds_give_means_with_intervals() {
    let place = Place::new();
    let out = place.path("out");
    let marking = "switch.marking={ kmin = \"1KB\", kmax = \"200KB\", pmax = 1.0 }";
    let options = ["--seeds", "3", "--seed", "5", "--sweep", "flows.0.bytes=200KB,1MB", "--set", marking];
    let options = [&options[..], &["--set", "host.congestion=dcqcn:paper", "--out", &out]].concat();
    let document = place.document(&options);
    let seeds: Vec<&Value> = document["runs"].as_array().unwrap().iter().map(|run| &run["seed"]).collect();
    assert_eq!(seeds, [5, 6, 7, 5, 6, 7]);
    let groups = document["groups"].as_array().unwrap();
    assert_eq!((groups.len(), &groups[1]["runs"]), (2, &3.into()));
    // The mean of the three medians, and the interval with t = 4.303.
    let medians: Vec<f64> = document["runs"].as_array().unwrap()[3..]
        .iter()
        .map(|run| run["completion_seconds"]["p50"].as_f64().unwrap())
        .collect();
    let mean = medians.iter().sum::<f64>() / 3.0;
    let deviation = (medians.iter().map(|median| (median - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    let found = &groups[1]["metrics"]["completion_p50_seconds"];
    assert!((found["mean"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9, "{found}");
    let half = 4.303 * deviation / 3.0_f64.sqrt();
    assert!(half > 0.0 && (found["ci95"].as_f64().unwrap() / half - 1.0).abs() < 1e-6, "{found} {half}");

    let (table, page) = (read(&format!("{out}/sweep.csv")), read(&format!("{out}/report.html")));
    assert_eq!(table.lines().count(), 7, "{table}");
    assert!(table.starts_with("run,") && table.contains(",flows.0.bytes,seed,completion_p50_us,"), "{table}");
    for title in
        ["Longest queue", "Payload delivered", "Completion times", "Distribution of the longest queue"]
    {
        assert!(page.contains(title), "{title}");
    }
    assert!(page.contains("95 % confidence") && page.contains("00003/report.html") && !page.contains("NaN"));
    let printed = run(&["sim", "--merge", &out]);
    assert!(printed.success && printed.stdout.contains(" ± "), "{printed:?}");
    assert_eq!((read(&format!("{out}/sweep.csv")), read(&format!("{out}/report.html"))), (table, page));
}

/// The scenario in the report contains values, seed and files, so it also runs where no file exists.
#[test]
fn the_scenario_of_a_report_repeats_the_run() {
    let place = Place::new();
    let text = "name = \"trace\"\n[topology]\nkind = \"file\"\nfile = \"net.txt\"\n\
                [[flows]]\nkind = \"trace\"\nfile = \"flows.txt\"\n\
                [[flows]]\nkind = \"poisson\"\nload = 0.3\nduration = \"100us\"\nsizes = \"sizes.txt\"\n";
    std::fs::write(place.path("trace.toml"), text).unwrap();
    std::fs::write(place.path("net.txt"), "host a b c\nswitch s\nlink a s\nlink b s\nlink c s 100G 2us\n")
        .unwrap();
    std::fs::write(place.path("flows.txt"), "0 1 100000 0\n1 2 200000 5000\n").unwrap();
    std::fs::write(place.path("sizes.txt"), "1000 50\n20000 100\n").unwrap();
    let options =
        ["trace.toml", "--seed", "7", "--set", "host.congestion=dcqcn:paper,rpg_ai_rate=40", "--json"];
    let first = place.inside(&[&options[..], &["--out", "out"]].concat());
    assert!(first.success, "{}", first.stderr);
    let first: Value = serde_json::from_str(&first.stdout).expect("JSON");
    for name in ["trace.toml", "net.txt", "flows.txt", "sizes.txt"] {
        std::fs::remove_file(place.path(name)).unwrap();
    }
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    std::fs::rename(place.path("out/scenario.toml"), place.path("elsewhere/again.toml")).unwrap();
    let again = place.inside(&["elsewhere/again.toml", "--json"]);
    assert!(again.success, "{}", again.stderr);
    let again: Value = serde_json::from_str(&again.stdout).expect("JSON");
    for name in ["trace_hash", "configuration_hash", "seed", "events", "congestion"] {
        assert_eq!(first[name], again[name], "{name}");
    }
    assert_eq!(first["seed"], 7);
    // A different value is a different configuration.
    let other = place.inside(&["elsewhere/again.toml", "--json", "--set", "host.path_mtu=2048"]);
    let other: Value = serde_json::from_str(&other.stdout).expect("JSON");
    assert_ne!(first["configuration_hash"], other["configuration_hash"]);
}

/// Prints met or not met, with the figure. For other values it prints only why nothing was evaluated.
#[test]
fn what_a_scenario_expects_is_evaluated() {
    let place = Place::new();
    let expect = |metric: &str, relation: &str, value: &str| {
        format!("[[expect]]\nmetric = \"{metric}\"\nrelation = \"{relation}\"\nvalue = {value}\n")
    };
    let conditions = [
        expect("dropped", "=", "0"),
        expect("flows.0.slowdown", "<", "1.5"),
        expect("flows.0.completion_seconds", "<=", "\"completion_max_seconds\""),
    ];
    let text = SMALL.replace("[topology]", "expectation = \"Both share the link.\"\n[topology]");
    std::fs::write(place.path("small.toml"), text.clone() + &conditions.concat()).unwrap();
    let unmet = place.inside(&["small.toml", "--out", "out"]);
    assert!(!unmet.success && unmet.stdout.contains("Both share the link."), "{}", unmet.stdout);
    let error = "does not meet 1 of the 3 expectations of the scenario \"small\"";
    assert!(unmet.stderr.contains(error), "{}", unmet.stderr);
    let printed = unmet.stdout;
    assert!(printed.contains(" met: dropped is 0, expected = 0"), "{printed}");
    assert!(printed.contains("NOT MET: flows.0.slowdown is 1.9"), "{printed}");
    assert!(printed.contains("expected <= completion_max_seconds, which is 0.1769 ms"), "{printed}");
    let document: Value = serde_json::from_str(&read(&place.path("out/summary.json"))).unwrap();
    let met: Vec<&Value> = document["expected"].as_array().unwrap().iter().map(|one| &one["met"]).collect();
    assert_eq!(met, [true, false, true]);
    assert!(read(&place.path("out/report.html")).contains("<b>NOT MET</b>: flows.0.slowdown is 1.9"));
    // Setting a value to that of the file changes nothing.
    assert!(!place.inside(&["small.toml", "--set", "flows.0.bytes=1MB", "--seed", "1"]).success);
    let printed = place.sim(&["--set", "flows.0.bytes=2MB"]).stdout;
    assert!(!printed.contains("Both share") && !printed.contains("met:"), "{printed}");
    assert!(printed.contains("not evaluated, because options changed values of the scenario"), "{printed}");
    assert_eq!(place.document(&["--seed", "2"])["expected"], Value::Null);
    std::fs::write(place.path("small.toml"), text + &conditions[0]).unwrap();
    assert_eq!(place.document(&[])["expected"][0]["met"], true);
    for (wrong, reason) in [
        (expect("drops", "=", "0"), "unknown metric drops; known are completion_p50_seconds"),
        (expect("dropped", "=", "\"drops\""), "unknown metric drops"),
        (expect("flows.9.slowdown", "=", "0"), "unknown metric flows.9.slowdown"),
        (expect("dropped", "==", "0"), "there is no relation \"==\"; there are <, <=, =, >= and >"),
    ] {
        std::fs::write(place.path("small.toml"), SMALL.to_owned() + &wrong).unwrap();
        let finished = place.inside(&["small.toml"]);
        assert!(!finished.success && finished.stderr.contains(reason), "{}", finished.stderr);
    }
}

/// Results and trace events are the same for any number of threads.
#[test]
fn threads_change_nothing() {
    let place = Place::new();
    let ran = |threads: &str| {
        let events = place.path(&format!("{threads}.jsonl"));
        let set = "flows.0.bytes=5KB";
        let arguments =
            ["sim", "permutation-k8", "--set", set, "--json", "--threads", threads, "--trace", &events];
        let finished = run(&arguments);
        assert!(finished.success, "{}", finished.stderr);
        let events = read(&events);
        assert!(events.lines().count() > 500, "{events}");
        (finished.stdout, events)
    };
    let first = ran("1");
    for threads in ["2", "3"] {
        let again = ran(threads);
        for (number, (one, other)) in first.1.lines().zip(again.1.lines()).enumerate() {
            assert_eq!(one, other, "line {number} with {threads} threads");
        }
        assert_eq!(again, first, "{threads} threads");
    }
    let without = |threads: &str| {
        run(&["sim", "permutation-k8", "--set", "flows.0.bytes=20KB", "--json", "--threads", threads]).stdout
    };
    assert_eq!(without("2"), without("1"));
    assert!(run(&["sim", "loss", "--threads", "0"]).stderr.contains("expected 1 to 256"));
}

/// Scenarios that take a minute or more here are left out; others check `mixture-of-experts`.
#[test]
fn shipped_scenarios_meet_their_expectations() {
    let list = run(&["sim", "--list", "--json"]);
    let list: Value = serde_json::from_str(&list.stdout).expect("JSON");
    let mut evaluated = 0;
    for name in list["scenarios"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()) {
        if ["clos-1000", "permutation-8192", "mixture-of-experts"].contains(&name) {
            continue;
        }
        let finished = run(&["sim", name, "--json"]);
        assert!(finished.success, "{name}: {}", finished.stderr);
        let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        evaluated += usize::from(!document["expected"].as_array().unwrap().is_empty());
        assert_eq!(document["failed"], 0, "{name}");
        let is_incomplete = document["incomplete"] != 0;
        assert_eq!(
            document["open_ended"], is_incomplete,
            "{name} completes its flows, or says that it does not"
        );
    }
    assert!(evaluated >= 20, "{evaluated}");
}

/// The directory of one run cannot be created, because a file has its name.
#[test]
fn a_failed_run_does_not_affect_its_sweep() {
    let place = Place::new();
    let out = place.path("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(format!("{out}/00001"), "").unwrap();
    let finished = place.inside(&["small.toml", "--sweep", "seed=4,5,6", "--out", "out", "--json"]);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    for part in ["1 of 3 runs failed", "combination 1, seed=5", "00001"] {
        assert!(finished.stderr.contains(part), "`{part}` is missing: {}", finished.stderr);
    }
    let runs: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let seeds: Vec<_> = runs["runs"].as_array().unwrap().iter().map(|run| &run["seed"]).collect();
    assert_eq!(seeds, [4, 6]);
    assert!(Path::new(&format!("{out}/00002/summary.json")).exists());
}

/// In the second run one table cannot be written; the summary of the first run must be removed.
#[test]
fn a_run_that_fails_has_no_summary() {
    let place = Place::new();
    let options = ["small.toml", "--sweep", "seed=4,5", "--out", "out"];
    assert!(place.inside(&options).success);
    let directory = place.path("out/00001");
    std::fs::remove_file(format!("{directory}/queues.csv")).unwrap();
    std::fs::create_dir(format!("{directory}/queues.csv")).unwrap();
    let finished = place.inside(&options);
    assert!(finished.stderr.contains("1 of 2 runs failed"), "{}", finished.stderr);
    assert!(!Path::new(&format!("{directory}/summary.json")).exists());
    let merged = run(&["sim", "--merge", &place.path("out"), "--json"]);
    let merged: Value = serde_json::from_str(&merged.stdout).expect("JSON");
    assert_eq!(merged["runs"].as_array().map(Vec::len), Some(1), "{merged}");
}

#[test]
fn merging_says_what_is_missing_and_what_does_not_belong_together() {
    let place = Place::new();
    let merge = || run(&["sim", "--merge", &place.path("out")]);
    let sweep = |seeds: &str| {
        let finished = place.inside(&["small.toml", "--sweep", &format!("seed={seeds}"), "--out", "out"]);
        assert!(finished.success, "{}", finished.stderr);
    };
    sweep("1,2,3,4");
    std::fs::remove_dir_all(place.path("out/00001")).unwrap();
    let finished = merge();
    assert!(finished.success && lines_of_table(&finished.stdout) == 4, "{finished:?}");
    assert!(finished.stderr.contains("1 of 4 runs are missing: --index 1\n"), "{}", finished.stderr);
    assert!(!finished.stderr.contains("differ"), "{}", finished.stderr);

    // Two runs of a newer, shorter sweep with a different text, in the directory of an old one.
    std::fs::write(place.path("small.toml"), SMALL.replace("\"small\"", "\"changed\"")).unwrap();
    sweep("1,2");
    let told = merge().stderr;
    for part in ["in scenario: changed; small", "in text of the scenario", "number of combinations: 2; 4"] {
        assert!(told.contains(part), "`{part}` is missing: {told}");
    }
    assert!(
        !told.contains("differ in version") && !told.contains("differ in names of the set values"),
        "{told}"
    );
}

/// Counts the lines of a table, without the means over seeds below it.
fn lines_of_table(printed: &str) -> usize {
    printed.lines().take_while(|line| !line.is_empty()).count()
}

/// Older versions did not write the sweep index into summaries.
#[test]
fn old_summaries_can_be_merged() {
    let place = Place::new();
    assert!(place.inside(&["small.toml", "--sweep", "seed=1,2", "--out", "out"]).success);
    for index in 0..2 {
        let file = place.path(&format!("out/0000{index}/summary.json"));
        let mut summary: Value = serde_json::from_str(&read(&file)).unwrap();
        let known = summary.as_object_mut().unwrap();
        assert_eq!(known.remove("combination"), Some(serde_json::json!({ "index": index, "of": 2 })));
        assert!(known.remove("scenario_hash").is_some());
        std::fs::write(&file, summary.to_string()).unwrap();
    }
    let finished = run(&["sim", "--merge", &place.path("out")]);
    assert!(finished.success && lines_of_table(&finished.stdout) == 3, "{finished:?}");
    assert_eq!(finished.stderr, "");
}

/// Values of the command line override the sweeps of the scenario.
#[test]
fn a_value_that_is_set_is_not_swept() {
    let place = Place::new();
    let runs = place.document(&["--sweeps", "--set", "host.congestion=swift", "--sweep", "seed=1,2,3"]);
    let sets: Vec<String> =
        runs["runs"].as_array().unwrap().iter().map(|run| run["set"].to_string()).collect();
    assert_eq!(sets.len(), 6, "{sets:?}");
    assert!(sets.iter().all(|set| set.contains("swift")), "{sets:?}");
}

#[test]
fn errors_have_line_and_reason() {
    let place = Place::new();
    let (file, bad) = (place.path("small.toml"), place.path("bad.toml"));
    std::fs::write(&bad, SMALL.replace("degree", "degrees")).unwrap();
    let out = place.path("out");
    let table: &[(&[&str], &[&str])] = &[
        (&[&bad], &["bad.toml", "line 8", "degrees", "did you mean `degree`?"]),
        (&["no-such"], &["no-such", "--list"]),
        (&[&file, "--set", "host.color=red"], &["host.color=red", "unknown field `color`"]),
        (&[&file, "--set", "host.recovery=luck"], &["no loss recovery \"luck\""]),
        (&[&file, "--set", "host.paths=luck"], &["no policy for paths \"luck\""]),
        (&[&file, "--set", "seed"], &["expected NAME=VALUE"]),
        (&[&file, "--seed", "9223372036854775808"], &["--seed", "is not in 0..=9223372036854775807"]),
        (&[&file, "--sweep", "seed=1,,2"], &["a value is empty"]),
        (&[&file, "--live"], &["--live needs a terminal", "--out DIR"]),
        (&[&file, "--live", "--sweeps"], &["--live", "--sweeps", "cannot be used"]),
        (&[&file, "--pcap-port", "h2"], &["--out"]),
        (
            &[&file, "--pcap-port", "h9", "--out", &out],
            &["the network has no port h9", "s0:h1 for the port of a switch"],
        ),
        (&[&file, "--emit", "slurm", "--out", &out], &["--sweep NAME=A,B,C, --sweeps or --seeds N"]),
        (&[&file, "--seeds", "1"], &["--seeds", "2..=10000"]),
        (&[&file, "--seeds", "3", "--sweep", "seed=1,2"], &["--seeds and --sweep seed=… cannot be used"]),
        (&[&file, "--sweeps", "--index", "4", "--out", &out], &["there are 4 combinations"]),
        (&[&file, "--sweep", "host.congestion=none,luck"], &["combination 1", "host.congestion=luck"]),
        (
            &["incast", "--sweeps", "--emit", "kubernetes", "--out", &out],
            &[&out, "is not on the claim", "at /work"],
        ),
        (
            &[&file, "--emit", "slurm", "--out", &out, "--sweep", "host.congestion=none,luck"],
            &["combination 1", "host.congestion=luck"],
        ),
        (&["--merge", &out], &["out", "No such file"]),
    ];
    for (options, parts) in table {
        let finished = run(&[&["sim"], *options].concat());
        assert!(matches!(finished.code, Some(1 | 2)), "{options:?}: {finished:?}");
        for part in *parts {
            assert!(finished.stderr.contains(part), "{options:?}: `{part}` is missing: {}", finished.stderr);
        }
        assert_eq!(finished.stdout, "", "{options:?}");
    }
}

/// Runs the shipped deadlock by name, with and without a watchdog.
#[test]
fn a_deadlock_is_named_in_the_summary_and_the_steps_of_pauses_are_a_table() {
    let place = Place::new();
    let finished = place.inside(&["pfc-deadlock", "--out", "out"]);
    assert!(finished.success, "{}", finished.stderr);
    let rows: Vec<&str> = finished.stdout.lines().filter(|line| line.starts_with("  deadlock ")).collect();
    let [row] = rows[..] else { panic!("{}", finished.stdout) };
    for part in [
        " us: s0->s1 waits for s1->s2, which waits for s2->s0, which waits for s0->s1; ",
        "; priority 3; held until the end",
    ] {
        assert!(row.contains(part), "{row}");
    }
    let summary: Value = serde_json::from_str(&read(&place.path("out/summary.json"))).unwrap();
    let deadlock = &summary["deadlocks"][0];
    assert_eq!(deadlock["ports"], serde_json::json!(["s0->s1", "s1->s2", "s2->s0"]));
    assert!(
        deadlock["begin_seconds"].as_f64().is_some_and(|begin| begin > 0.0 && begin < 0.001),
        "{deadlock}"
    );
    assert!(deadlock["end_seconds"].is_null() && deadlock["ended_by"].is_null(), "{deadlock}");
    let set = ["--set", "switch.watchdog={ after = \"500us\", restore = \"200us\" }"];
    let opened = place.inside(&[&["pfc-deadlock"], &set[..]].concat());
    assert!(opened.stdout.contains(" us by the watchdog"), "{}", opened.stdout);
    // The table of steps agrees with that of ports.
    let pauses = read(&place.path("out/pauses.csv"));
    let mut lines = pauses.lines();
    assert_eq!(lines.next(), Some("time_us,port,priority,step"));
    let steps: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let end_us = summary["end_seconds"].as_f64().unwrap() * 1e6;
    let (ports, mut is_paused) = (read(&place.path("out/ports.csv")), 0);
    let column =
        |name: &str| ports.lines().next().unwrap().split(',').position(|column| column == name).unwrap();
    let (received, paused_us) = (column("pauses_received"), column("paused_us"));
    for line in ports.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let (mut begins, mut paused, mut since) = (0, 0.0, None);
        for step in steps.iter().filter(|step| step[1] == cells[0]) {
            let time: f64 = step[0].parse().unwrap();
            match step[3] {
                "begins" => (begins, since) = (begins + 1, Some(time)),
                "resumed" | "expired" => paused += time - since.take().unwrap(),
                _ => {}
            }
        }
        paused += since.map_or(0.0, |since| end_us - since);
        assert_eq!(cells[received], begins.to_string(), "{line}");
        let expected: f64 = cells[paused_us].parse().unwrap();
        assert!((paused - expected).abs() < 0.01, "{line}: {paused}");
        is_paused += u32::from(paused > 0.0);
    }
    assert!(is_paused >= 3, "{ports}");
    assert!(read(&place.path("out/pauses.svg")).contains("s2-&gt;s0"));
    assert!(read(&place.path("out/report.html")).contains("held until the end"));
}

/// One flow, whose packets are lost at random.
const LOSSY: &str = r#"
name = "lossy"
[topology]
kind = "star"
hosts = 2
[[topology.faults]]
link = ["h0", "s0"]
plan = "drop=5%"
[[flows]]
kind = "pair"
from = "h0"
to = "h1"
bytes = "100KB"
"#;

#[test]
fn a_flow_is_drawn_as_a_ladder() {
    let place = Place::new();
    std::fs::write(place.path("lossy.toml"), LOSSY).unwrap();
    let finished = place.inside(&["lossy.toml", "--ladder", "--seed", "2"]);
    assert!(finished.success, "{}", finished.stderr);
    let ladder = finished.stdout.split_once("\n\n").expect("a ladder, and the summary").0;
    assert!(ladder.starts_with("Flow 0 from h0 to h1: complete\n"), "{ladder}");
    // Lost, and sent again.
    assert!(ladder.contains("---x") && ladder.contains("===>"), "{ladder}");

    let other = place.sim(&["--ladder=1"]).stdout;
    assert!(other.starts_with("Flow 1 from h1 to h2: complete\n"), "{other}");
    let unknown = place.inside(&["small.toml", "--ladder=2"]);
    assert!(!unknown.success);
    assert!(
        unknown.stderr.contains("there is no flow 2; they are numbered from 0, and there are 2"),
        "{}",
        unknown.stderr
    );
}
