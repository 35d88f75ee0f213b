//! Reports of `roce sim` about flows that fail or do not end, and about runs that do not fit into memory.

use crate::common::{Finished, Running, roce};
use serde_json::{Value, json};

/// Two flows to a host that is cut off during the run.
const CUT_OFF: &str = r#"
name = "a destination that is cut off"
stop = "3s"
[topology]
kind = "star"
hosts = 3
[host]
timeout = 8
retry_cnt = 2
[[flows]]
kind = "incast"
degree = 2
to = "h0"
bytes = "10MB"
[[failure]]
link = ["h0", "s0"]
at = "100us"
"#;

/// Two flows that do not end before the run does.
const ENDLESS: &str = r#"
name = "endless"
stop = "200us"
[topology]
kind = "star"
hosts = 3
[[flows]]
kind = "incast"
degree = 2
to = "h2"
bytes = "1GB"
"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new(scenario: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("scenario.toml", scenario);
        place
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[track_caller]
    fn sim(&self, options: &[&str]) -> Finished {
        Running::start(roce().current_dir(self.0.path()).arg("sim").args(options)).finish(60)
    }

    fn run(&self, options: &[&str]) -> Finished {
        self.sim(&[&["scenario.toml"], options].concat())
    }
}

/// Returns the values of the summary's rows with this name.
fn rows<'a>(printed: &'a str, name: &str) -> Vec<&'a str> {
    let rows = printed.lines().filter_map(|line| line.strip_prefix("  ")?.split_at_checked(36));
    rows.filter(|(row, _)| row.trim() == name).map(|(_, value)| value.trim()).collect()
}

fn document(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// Regression: failed flows appeared as "0 of 2 complete", and the exit status was 0.
#[test]
fn failed_flows_are_named_and_set_the_exit_status() {
    let place = Place::new(CUT_OFF);
    let finished = place.run(&["--out", "out"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let error = "2 of 2 flows failed (2 RETRY_EXC_ERR); the first is flow 0, h1 to h0: RETRY_EXC_ERR. ";
    assert!(finished.stderr.contains(error), "{}", finished.stderr);
    assert_eq!(rows(&finished.stdout, "flows"), ["0 of 2 complete, 2 failed (2 RETRY_EXC_ERR)"]);
    let failed = ["flow 0, h1 to h0: RETRY_EXC_ERR", "flow 1, h2 to h0: RETRY_EXC_ERR"];
    assert_eq!(rows(&finished.stdout, "failed"), failed);
    let flows = place.read("out/flows.csv");
    assert!(flows.lines().skip(1).all(|line| line.contains(",RETRY_EXC_ERR,")), "{flows}");
    let page = place.read("out/report.html");
    assert!(failed.iter().all(|row| page.contains(&format!("<td>failed</td><td>{row}</td>"))), "{page}");

    let printed = place.run(&["--json"]);
    assert_eq!(printed.code, Some(1), "{printed:?}");
    let summary = document(&printed);
    assert_eq!(summary, serde_json::from_str::<Value>(&place.read("out/summary.json")).unwrap());
    let failure = |flow: u32, source: &str| json!({ "flow": flow, "source": source, "destination": "h0", "reason": "RETRY_EXC_ERR" });
    assert_eq!(summary["failures"], json!([failure(0, "h1"), failure(1, "h2")]));
    assert_eq!(summary["failed_by_reason"], json!({ "RETRY_EXC_ERR": 2 }));
    let counts = ["failed", "running", "waiting", "incomplete"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!(counts, [2, 0, 0, 2]);
    assert_eq!((&summary["failures_expected"], &summary["open_ended"]), (&false.into(), &false.into()));
}

/// A sweep and its merge report the runs with failed flows, after all results are written.
#[test]
fn failed_flows_of_a_sweep_are_counted_in_each_table() {
    let place = Place::new(CUT_OFF);
    let sweep = ["--sweep", "failure.0.at=100us,2s", "--out", "out"];
    let error =
        "flows failed in 1 of 2 runs:\ncombination 0, failure.0.at=100us: 2 of 2 flows (2 RETRY_EXC_ERR)";
    for finished in [place.run(&sweep), place.sim(&["--merge", "out"])] {
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(finished.stderr.contains(error), "{}", finished.stderr);
        let cells: Vec<Vec<&str>> =
            finished.stdout.lines().take(3).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[0][..3], ["set", "complete", "failed"]);
        assert_eq!(cells[1][..3], ["failure.0.at=100us", "0/2", "2"]);
        assert_eq!(cells[2][..3], ["failure.0.at=2s", "2/2", "0"]);
    }
    let table = place.read("out/sweep.csv");
    let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let column = lines.next().unwrap().iter().position(|name| *name == "failed").unwrap();
    assert_eq!(lines.map(|line| line[column].to_owned()).collect::<Vec<_>>(), ["2", "0"]);
    assert!(place.read("out/report.html").contains("<th>failed</th>"));
    let printed = place.run(&[&sweep[..], &["--json"]].concat());
    assert_eq!(printed.code, Some(1));
    assert_eq!(document(&printed)["groups"][0]["metrics"]["failed"]["mean"], 2.0);
    // Each job of the sweep is a run with its own exit status.
    let job = |index| place.run(&[&sweep[..], &["--index", index]].concat()).code;
    assert_eq!((job("0"), job("1")), (Some(1), Some(0)));
}

/// A scenario about failures states how many failures it expects.
#[test]
fn failures_that_a_scenario_expects_are_no_error() {
    let expect =
        |value: u32| format!("{CUT_OFF}[[expect]]\nmetric = \"failed\"\nrelation = \"=\"\nvalue = {value}\n");
    let place = Place::new(&expect(2));
    let finished = place.run(&[]);
    assert!(finished.success && finished.stdout.contains("met: failed is 2"), "{finished:?}");
    assert!(place.run(&["--set", "flows.0.bytes=9MB"]).success, "it is not evaluated with other values");
    place.write("scenario.toml", &expect(1));
    let finished = place.run(&[]);
    assert!(finished.stderr.contains("does not meet 1 of the 1 expectations"), "{finished:?}");
}

#[test]
fn a_flow_without_a_path_is_refused_with_the_reason() {
    let place = Place::new(
        "name = \"apart\"\n[topology]\nkind = \"rail-optimised\"\nservers = 2\nrails = 2\n\
         [[flows]]\nkind = \"pair\"\nfrom = \"h0r0\"\nto = \"h1r1\"\nbytes = \"1KB\"\n",
    );
    let finished = place.run(&[]);
    assert_eq!(
        (finished.code, &rows(&finished.stdout, "failed")[..]),
        (Some(1), &["flow 0, h0r0 to h1r1: no path"][..])
    );
}

/// Flows that outlast the run have not failed, and the summary says whether the scenario intends that.
#[test]
fn flows_that_outlast_the_run_are_told_from_failed_ones() {
    let place = Place::new(ENDLESS);
    let finished = place.run(&[]);
    assert!(finished.success, "{finished:?}");
    assert_eq!(rows(&finished.stdout, "flows"), ["0 of 2 complete, 2 running at the end"]);
    assert!(rows(&finished.stdout, "not open-ended")[0].contains("set `open_ended = true`"), "{finished:?}");
    place.write("scenario.toml", &format!("open_ended = true\n{ENDLESS}"));
    let finished = place.run(&["--json", "--out", "out"]);
    assert!(finished.success, "{finished:?}");
    let summary = document(&finished);
    let counts = ["failed", "running", "waiting"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!((counts, &summary["open_ended"]), ([0, 2, 0], &true.into()));
    let page = place.read("out/report.html");
    assert!(page.contains("<td>open-ended</td>") && !page.contains("not open-ended"), "{page}");
    let printed = place.run(&[]).stdout;
    assert_eq!(rows(&printed, "open-ended"), ["the flows are meant to outlast the run"]);
}

/// Regression: a sprayed all-to-all used up the memory, and the kernel killed the process without a message.
#[test]
fn a_run_that_does_not_fit_into_memory_is_refused() {
    let text = "name = \"large\"\nstop = \"1ms\"\n[topology]\nkind = \"star\"\nhosts = 256\n\
                [[flows]]\nkind = \"all-to-all\"\nbytes = \"1KB\"\n";
    let place = Place::new(text);
    let finished = place.run(&["--memory", "100MB"]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    for part in [
        "the run needs at least ",
        " of memory, but --memory allows 100 MB. The queue pairs of 65280 flows among 256 hosts take ",
        "change host.depth, [[flows]], [[collective]], [[training]]",
    ] {
        assert!(finished.stderr.contains(part), "`{part}` is missing: {}", finished.stderr);
    }
    // A run that does not fit into memory does not prevent the other runs of its sweep.
    let sweep = ["--memory", "100MB", "--sweep", "topology.hosts=4,256", "--json"];
    let finished = place.run(&sweep);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("1 of 2 runs failed:\ncombination 1, topology.hosts=256: the run needs at least")
    );
    assert_eq!(document(&finished)["runs"].as_array().map(Vec::len), Some(1));
    // With full windows, the run would not fit.
    let finished =
        place.run(&["--memory", "20MB", "--set", "topology.hosts=40", "--set", "flows.0.bytes=10MB"]);
    assert!(finished.success && finished.stderr.contains("the run may need up to "), "{finished:?}");
    // The memory limit of the process also counts.
    let mut shell = std::process::Command::new("sh");
    let limited = "ulimit -v 150000 && exec \"$0\" sim scenario.toml";
    shell.current_dir(place.0.path()).args(["-c", limited, env!("CARGO_BIN_EXE_roce")]);
    let finished = Running::start(&mut shell).finish(60);
    assert!(finished.stderr.contains(" of memory, but 154 MB are available."), "{finished:?}");
}
