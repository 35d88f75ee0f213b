//! `roce sim --figure`: figures for papers.

use std::path::{Path, PathBuf};

use crate::common::{Finished, Running, roce};

/// Flows of several sizes into one port.
const SIZES: &str = r#"
name = "sizes"
[topology]
kind = "star"
hosts = 5
[[flows]]
kind = "incast"
degree = 2
to = "h4"
bytes = "20KB"
[[flows]]
kind = "incast"
degree = 4
to = "h4"
bytes = "300KB"
jitter = "20us"
"#;

/// A directory that contains the scenario.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        std::fs::write(place.path("sizes.toml"), SIZES).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn sim(&self, options: &[&str]) -> Finished {
        Running::start(roce().current_dir(self.0.path()).arg("sim").args(options)).finish(60)
    }

    /// Draws a figure, and returns its text and its table.
    #[track_caller]
    fn draw(&self, options: &[&str], file: &str) -> (String, String) {
        let finished = self.sim(&[options, &["--out", file]].concat());
        assert!(finished.success, "{options:?}: {}", finished.stderr);
        let read = |path: &Path| std::fs::read(path).unwrap();
        let text = String::from_utf8_lossy(&read(&self.path(file))).into_owned();
        let table = self.path(file).with_extension("tsv");
        (text, String::from_utf8(read(&table)).unwrap())
    }
}

/// Returns the lines of a table that have points.
fn points(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.map(|line| line.split('\t').collect()).collect()
}

#[test]
fn every_figure_of_one_run_is_a_file_with_its_table() {
    let place = Place::new();
    for figure in ["slowdown", "queue", "rates", "cdf"] {
        let options = ["sizes.toml", "--seed", "7", "--figure", figure];
        let (svg, table) = place.draw(&options, &format!("{figure}.svg"));
        assert!(svg.contains(" width=\"3.3in\"") && svg.trim_end().ends_with("</svg>"), "{figure}: {svg}");
        assert!(table.contains("Scenario sizes, seed 7"), "{figure}: {table}");
        assert!(!points(&table).is_empty(), "{figure}");
        let (pdf, again) = place.draw(&[&options[..], &["--figure-width", "7"]].concat(), "new/figure.pdf");
        assert!(pdf.starts_with("%PDF-1.4") && pdf.contains("/MediaBox [0 0 504 "), "{figure}");
        assert_eq!(again, table, "{figure}: the points do not depend on the width");
    }
    assert!(!place.path("report.html").exists() && !place.path("new/report.html").exists());
    // The table has the number of flows of both sizes.
    let (_, table) = place.draw(&["sizes.toml", "--figure", "slowdown"], "counts.svg");
    let counts: Vec<f64> =
        points(&table).iter().filter(|row| row[0] == "2").map(|row| row[3].parse().unwrap()).collect();
    assert_eq!(counts, [2.0, 4.0], "{table}");
}

#[test]
fn several_seeds_and_algorithms_are_lines_with_intervals() {
    let place = Place::new();
    let sweep = ["--sweep", "host.congestion=none;dcqcn:paper", "--seeds", "3"];
    for figure in ["slowdown", "queue", "rates", "cdf"] {
        let options = [&["sizes.toml", "--figure", figure], &sweep[..]].concat();
        let (svg, table) = place.draw(&options, "figure.svg");
        for text in ["no congestion control", "DCQCN", "95 % confidence of the mean"] {
            assert!(svg.contains(&format!(">{text}<")), "{figure} lacks {text}: {svg}");
        }
        assert!(table.contains("Scenario sizes, seeds 1 to 3."), "{figure}: {table}");
        let with_interval = points(&table).into_iter().filter(|row| !row[4].is_empty());
        for row in with_interval {
            let [y, low, high] = [3, 4, 5].map(|column| row[column].parse::<f64>().unwrap());
            assert!(low <= y && y <= high, "{figure}: {row:?}");
        }
    }
}

#[test]
fn a_sweep_in_a_directory_is_drawn_as_the_sweep_itself() {
    let place = Place::new();
    let sweep = ["--sweep", "flows.1.degree=2,3,4", "--seeds", "2"];
    let (now, table) = place.draw(&[&["sizes.toml", "--figure", "incast"], &sweep[..]].concat(), "now.svg");
    assert!(now.contains(">senders<") && !now.contains("flows.1.degree"), "{now}");
    assert_eq!(points(&table).iter().filter(|row| row[0] == "1" && row[1] == "median").count(), 3);
    let kept = place.sim(&[&["sizes.toml", "--out", "runs"], &sweep[..]].concat());
    assert!(kept.success, "{}", kept.stderr);
    let report = std::fs::read(place.path("runs/report.html")).unwrap();
    let later = place.draw(&["--merge", "runs", "--figure", "incast"], "later.svg");
    assert_eq!(later, (now, table));
    for figure in ["queue", "rates", "cdf", "slowdown"] {
        let (svg, _) = place.draw(&["--merge", "runs", "--figure", figure], "other.svg");
        assert!(svg.contains(">senders 3<"), "{figure}: {svg}");
    }
    assert_eq!(std::fs::read(place.path("runs/report.html")).unwrap(), report);
}

#[test]
fn errors_of_figures_say_what_to_do() {
    let place = Place::new();
    let wrong: [(&[&str], &str); 5] = [
        (&["sizes.toml", "--figure", "cdf", "--out", "runs"], "ends neither in .svg nor in .pdf"),
        (&["sizes.toml", "--figure", "cdf"], "--out"),
        (&["sizes.toml", "--figure", "incast", "--out", "a.svg"], "--sweep flows.0.degree=2,4,8"),
        (&["sizes.toml", "--figure", "cdf", "--figure-width", "5", "--out", "a.svg"], "3.3"),
        (&["sizes.toml", "--figure", "bars", "--out", "a.svg"], "slowdown"),
    ];
    for (options, text) in wrong {
        let finished = place.sim(options);
        assert!(!finished.success && finished.stderr.contains(text), "{options:?}: {}", finished.stderr);
        assert!(!place.path("a.svg").exists() && !place.path("runs").exists(), "{options:?}");
    }
}
