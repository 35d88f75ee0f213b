//! `roce why`: error numbers and their page.

mod common;

use common::run;
use roce::observe::{CodeKind, codes, look_up};

const PAGE: &str = include_str!("../../docs/reference/completion-errors.md");

/// Returns the rows of the section with this heading, as their first two cells.
fn rows(heading: &str) -> Vec<(u32, String)> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows = section.lines().filter(|line| line.starts_with("| 0x")).map(cells);
    rows.map(|row: Vec<String>| {
        let number = u32::from_str_radix(row[0].trim_start_matches("0x"), 16).expect("a number");
        let status = row.iter().rev().find(|cell| cell.contains("_ERR")).expect("a status");
        (number, status.trim_matches('`').to_owned())
    })
    .collect()
}

#[test]
fn the_page_has_every_vendor_error_once_and_no_other() {
    for (kind, heading) in [
        (CodeKind::Vendor, "`vendor_err` of roce"),
        (CodeKind::Mlx5Vendor, "`vendor_err` of mlx5"),
        (CodeKind::Mlx5Syndrome, "Syndromes of mlx5"),
    ] {
        let known = codes().into_iter().filter(|code| code.kind == kind);
        let known: Vec<_> = known.map(|code| (code.number, code.status.name().to_owned())).collect();
        assert_eq!(rows(heading), known, "{heading}");
        for code in codes().iter().filter(|code| code.kind == kind) {
            assert!(code.kind != CodeKind::Vendor || PAGE.contains(&format!("`{}`", code.name)), "{code:?}");
        }
    }
}

#[test]
fn a_status_and_a_vendor_error_of_mlx5_have_ordered_causes_with_commands() {
    for text in ["IBV_WC_RETRY_EXC_ERR", "12", "0x81", "129"] {
        let finished = run(&["why", text]);
        assert!(finished.success, "{finished:?}");
        let out = &finished.stdout;
        assert!(out.contains("RETRY_EXC_ERR") && out.contains("roce doctor HOST"), "{out}");
        assert!(out.find("  1. ") < out.find("  2. ") && out.contains("source: "), "{out}");
    }
    let out = run(&["why", "0x88"]).stdout;
    assert!(out.contains("vendor_err of mlx5") && out.contains("REM_ACCESS_ERR"), "{out}");
    assert!(!look_up("0x88").is_empty());
}

#[test]
fn an_unknown_code_is_an_error_and_no_code_lists_all() {
    let finished = run(&["why", "0x7f"]);
    assert!(!finished.success && finished.stderr.contains("\"0x7f\""), "{finished:?}");
    let list = run(&["why"]).stdout;
    for code in codes() {
        assert!(list.contains(&code.name), "{}: {list}", code.name);
    }
}
