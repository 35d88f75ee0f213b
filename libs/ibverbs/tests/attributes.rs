//! Tests the limits of the attributes of a queue pair against the table in docs/reference/verbs.md.

mod common;

use std::path::Path;
use std::process::Command;

use roce_testing::{Running, has_program, skip_unless};

/// A row of the table: an attribute, its largest value, and the number of its low bits that are used.
#[derive(Debug)]
struct Row {
    name: &'static str,
    largest: u32,
    bits: u32,
}

/// Returns the rows after the heading of the table.
fn table() -> Vec<Row> {
    let page = include_str!("../../../docs/reference/verbs.md");
    let (_, section) = page.split_once("### Limits of the attributes").expect("the section");
    let (section, _) = section.split_once("\n### ").expect("the next section");
    let rows = section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = cells.next()?.trim_end_matches('`');
        let number = |text: &str| text.replace(',', "").parse().ok();
        Some(Row { name, largest: number(cells.next()?)?, bits: number(cells.next()?)? })
    });
    rows.collect()
}

/// Regression: `min_rnr_timer` 32, which DLSlime passes, was refused. Devices use only the low five bits.
#[test]
fn each_attribute_takes_what_the_table_says_and_not_more() {
    let root = common::distribution();
    if skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let library = common::library_folder();
    let program = library.path().join("attributes");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Werror", "-I"]).arg(root.expect("checked").join("usr/include"));
    compiler.arg("-o").arg(&program);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/attributes.c"));
    compiler.arg("-L").arg(library.path()).arg("-libverbs");
    let compiled = Running::start(&mut compiler).finish(60);
    assert!(compiled.success, "{}", compiled.stderr);
    let modified = |name: &str, value: u32| -> (i32, u32) {
        let mut command = Command::new(&program);
        command.args([name, &value.to_string()]);
        command.env("LD_LIBRARY_PATH", library.path()).env("ROCE_DEVICE", "udp:127.83.0.7");
        let ran = Running::start(&mut command).finish(60);
        let numbers: Vec<&str> = ran.stdout.split_whitespace().collect();
        let [failed, found] = numbers[..] else { panic!("{name} {value}: {ran:?}") };
        (failed.parse().expect("an error number"), found.parse().expect("a value"))
    };
    let table = table();
    assert!(table.len() > 10, "{table:?}");
    for row in &table {
        let counts = 1_u32.checked_shl(row.bits).map_or(u32::MAX, |power| power - 1);
        let kept = if row.bits == 0 { 0 } else { row.largest & counts };
        assert_eq!(modified(row.name, row.largest), (0, kept), "the largest value: {row:?}");
        if ![u32::from(u8::MAX), u32::MAX].contains(&row.largest) {
            let (failed, _) = modified(row.name, row.largest + 1);
            assert_eq!(failed, libc::EINVAL, "one more than the largest value: {row:?}");
        }
    }
    assert_eq!(modified("min_rnr_timer", 32), (0, 0));
    assert_eq!(modified("port_num", 0).0, libc::EINVAL);
    assert_eq!(modified("path_mtu", 0).0, libc::EINVAL);
}
