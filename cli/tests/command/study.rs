//! `roce study`: a small part of the grid, which is run twice, and interrupted.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, roce, run};
use roce_measure::study::{COLUMNS, CONCLUSIONS};

/// Runs the cells of the quick grid whose name contains `only`.
fn study(out: &Path, only: &str) -> Finished {
    let out = out.to_str().unwrap();
    Running::start(roce().args(["study", "--quick", "--only", only, "--out", out])).finish(120)
}

/// Returns the rows of a study: fields by column.
fn rows(out: &Path) -> Vec<BTreeMap<&'static str, String>> {
    let text = std::fs::read_to_string(out.join("study.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next().unwrap(), COLUMNS.join(","));
    lines
        .map(|line| {
            // Only the machine and a reason may contain a comma, in quotes.
            let parts = line.split('"').enumerate();
            let plain = |(index, part): (usize, &str)| {
                if index % 2 == 1 { part.replace(',', ";") } else { part.to_owned() }
            };
            let line: String = parts.map(plain).collect();
            let fields: Vec<String> = line.split(',').map(str::to_owned).collect();
            assert_eq!(fields.len(), COLUMNS.len(), "{line}");
            COLUMNS.into_iter().zip(fields).collect()
        })
        .collect()
}

#[test]
fn a_part_of_the_grid_is_measured_once_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    let finished = study(out, "udp-loopback/ping/send/64/");
    assert!(finished.success, "{finished:?}");
    let first = rows(out);
    assert_eq!(first.len(), 4, "polling and events, inline and not: {first:?}");
    let number = |row: &BTreeMap<&str, String>, name: &str| row[name].parse::<f64>().unwrap();
    for row in &first {
        assert_eq!((row["status"].as_str(), row["test"].as_str()), ("measured", "ping"));
        assert!(number(row, "median_us") >= number(row, "least_us") && number(row, "least_us") > 0.0);
        for side in ["client_cpu_percent", "server_cpu_percent"] {
            assert!(number(row, side) > 0.0, "{row:?}");
        }
    }
    let before = std::fs::read(out.join("study.csv")).unwrap();
    // A new row is added, and the others are unchanged.
    let finished = study(out, "udp-loopback/ping/send/64");
    assert!(finished.success && std::fs::read(out.join("study.csv")).unwrap() == before, "{finished:?}");
    let finished = study(out, "udp-loopback/blast/limit/64/");
    assert!(finished.success, "{finished:?}");
    let after = std::fs::read(out.join("study.csv")).unwrap();
    assert!(after.starts_with(&before) && rows(out).len() == 5);
    // A different grid cannot be written into the same file.
    let finished = run(&["study", "--only", "udp-loopback/ping/send/64/", "--out", out.to_str().unwrap()]);
    assert!(!finished.success && finished.stderr.contains("another grid"), "{finished:?}");
    assert!(finished.stderr.contains("--out"), "{finished:?}");
}

#[test]
fn the_report_has_every_figure_and_every_conclusion() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    // Operations, TCP and the limit, with several workers.
    for only in [
        "udp-loopback/ping/write/8/",
        "udp-loopback/blast/read/64/",
        "loopback/blast/tcp/1024/",
        "/4096/copy/event/list/full/1/4",
    ] {
        let finished = study(out, only);
        assert!(finished.success, "{only}: {finished:?}");
    }
    let rows = rows(out);
    assert!(rows.iter().all(|row| row["status"] == "measured"), "{rows:?}");
    for (test, operation) in [("ping", "write"), ("blast", "read"), ("blast", "tcp"), ("blast", "write")] {
        let of = |row: &&BTreeMap<&str, String>| row["test"] == test && row["operation"] == operation;
        assert!(rows.iter().any(|row| of(&row)), "{test} {operation}: {rows:?}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for conclusion in &CONCLUSIONS {
        assert!(page.contains(&format!("<h3 id=\"{}\">", conclusion.id)), "{}", conclusion.id);
    }
    let figures: Vec<String> = std::fs::read_dir(out)
        .unwrap()
        .filter_map(|entry| {
            entry.unwrap().file_name().into_string().unwrap().strip_suffix(".svg").map(str::to_owned)
        })
        .collect();
    assert!(figures.len() >= 4, "{figures:?}");
    for figure in &figures {
        assert!(page.contains(&format!("<figure id=\"{figure}\">")), "{figure}");
    }
    assert_eq!(page.matches("<svg ").count(), figures.len());
    assert!(!page.contains("<img") && !page.contains("<script") && !page.contains("NaN"));
    // One of them again, for a paper.
    let name = figures[0].as_str();
    let drawn = run(&["study", "--out", out.to_str().unwrap(), "--figure", name, "--figure-width", "7"]);
    assert!(drawn.success && drawn.stdout.lines().count() == 3, "{drawn:?}");
    let read = |ending: &str| std::fs::read(out.join(format!("{name}.{ending}"))).unwrap();
    assert!(
        String::from_utf8(read("svg")).unwrap().contains(" width=\"7in\"")
            && read("pdf").starts_with(b"%PDF-")
    );
    assert!(
        String::from_utf8(read("tsv")).unwrap().lines().filter(|line| !line.starts_with('#')).count() > 1
    );
    let unknown = run(&["study", "--out", out.to_str().unwrap(), "--figure", "none"]);
    assert!(!unknown.success && unknown.stderr.contains(name), "{unknown:?}");
}

#[test]
fn an_interrupted_study_says_how_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let mut command = roce();
    command.args(["study", "--quick", "--only", "udp-loopback/blast/send/", "--out", out]);
    let mut running = Running::start(&mut command);
    // Wait for the first row.
    let has_rows = || {
        std::fs::read_to_string(folder.path().join("study.csv")).is_ok_and(|text| text.lines().count() > 1)
    };
    let end = Instant::now() + Duration::from_secs(30);
    while !has_rows() && Instant::now() < end && running.is_alive() {
        std::thread::sleep(Duration::from_millis(5));
    }
    running.interrupt();
    let finished = running.finish(60);
    assert_eq!(finished.code, Some(130), "{finished:?}");
    assert!(finished.stdout.contains("run the same command to measure them"), "{finished:?}");
    assert!(folder.path().join("report.html").exists());
    let all =
        run(&["study", "--quick", "--only", "udp-loopback/blast/send/", "--list"]).stdout.lines().count();
    assert!(rows(folder.path()).len() < all);
}

#[test]
fn a_text_that_no_cell_contains_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let finished = study(folder.path(), "no-such-cell");
    assert!(!finished.success && finished.stderr.contains("--list"), "{finished:?}");
}
