//! `roce counters` with files in the forms of several tools.

use crate::common;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Writes a file, and returns its path.
fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn problems_are_explained_and_set_the_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let before = file(
        folder.path(),
        "before",
        "link mlx5_0/1 out_of_sequence 4294967290 np_cnp_sent 2 rx_write_requests 7 duplicate_request 1 odd 1\n",
    );
    let after = file(
        folder.path(),
        "after",
        "link mlx5_0/1 out_of_sequence 14 np_cnp_sent 5 rx_write_requests 9 duplicate_request 1 odd 3\n",
    );
    let finished = common::run(&["counters", &before, &after]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    for part in [
        "mlx5_0/1 (mlx5)",
        "problem     out_of_sequence +20 (4294967290 to 14, past 2^32): requests ahead of the expected PSN",
        "cause: a request before them was lost",
        "next:  look for drops at switch ports",
        "congestion  np_cnp_sent +3 (2 to 5): sent congestion notifications",
        "traffic     rx_write_requests +2 (7 to 9)",
        "without a description: odd +2 (1 to 3)",
        "without a change: 1",
        "One counter of problems grew.",
    ] {
        assert!(finished.stdout.contains(part), "{part}: {}", finished.stdout);
    }
    let json = common::run(&["counters", "--json", &before, &after]);
    let document: Value = serde_json::from_str(&json.stdout).expect("only JSON");
    assert_eq!(document["problems"], 1);
    let first = &document["devices"][0]["counters"][0];
    assert_eq!(
        (&first["name"], &first["outcome"], &first["growth"]),
        (&"out_of_sequence".into(), &"wrapped".into(), &20.into())
    );
    let finished = common::run(&["counters", &after, &after]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.contains("No counter of problems grew."), "{finished:?}");
}

#[test]
fn files_without_counters_are_refused_with_the_known_forms() {
    let folder = tempfile::tempdir().unwrap();
    let text = file(folder.path(), "text", "nothing here\n");
    let finished = common::run(&["counters", &text, &text]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    for part in ["no counters; expected the output of `rdma statistic`", "text"] {
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
    }
    let missing = format!("{text}.gone");
    let finished = common::run(&["counters", &missing, &text]);
    assert!(finished.stderr.contains("cannot read") && finished.stderr.contains("text.gone"), "{finished:?}");
}

/// The names come from a file of another machine.
#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let before = file(folder.path(), "before", "NIC statistics:\n  bad\u{1b}[2Jname: 1\n");
    let after = file(folder.path(), "after", "NIC statistics:\n  bad\u{1b}[2Jname: 2\n");
    let finished = common::run(&["counters", &before, &after]);
    assert!(!finished.stdout.contains('\u{1b}') && finished.stdout.contains("name"), "{finished:?}");
}
