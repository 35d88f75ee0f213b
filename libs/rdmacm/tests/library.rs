//! The finished library: its names, version nodes and properties, read from the file.

use std::collections::BTreeSet;
use std::path::PathBuf;

use roce_testing::{
    distribution, exported_names, has_program, is_of_system, needed_libraries, readelf, skip_unless,
};

#[path = "../src/table.rs"]
#[allow(dead_code, reason = "what the names lead to is not asked here")]
mod table;

/// Returns the path of the library, which cargo has built before this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let library = test.with_file_name("librdmacm.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}

#[test]
fn the_names_and_nodes_are_those_of_the_table() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let wanted: BTreeSet<String> = table::NODES
        .iter()
        .flat_map(|node| {
            node.functions.iter().chain(node.unsupported).map(|name| format!("{name}@{}", node.name))
        })
        .collect();
    assert_eq!(exported_names(&library()), wanted);
}

/// Every name of the distribution's library exists, at the same node.
#[test]
fn the_names_and_nodes_are_those_of_the_distribution() {
    let root = distribution(env!("CARGO_TARGET_TMPDIR"));
    if skip_unless(root.is_some() && has_program("readelf"), "no packages of a Debian system, or no readelf")
    {
        return;
    }
    let folder = format!("usr/lib/{}-linux-gnu/librdmacm.so.1", std::env::consts::ARCH);
    let theirs = exported_names(&root.expect("checked").join(folder));
    assert!(theirs.len() > 60, "{} names", theirs.len());
    let ours = exported_names(&library());
    let missing: Vec<&String> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Regression: programs that use names of releases after 44 did not start, because the nodes `RDMACM_1.4` and
/// `RDMACM_1.5` were missing. The names come from a list, so the newest release need not be installed.
#[test]
fn the_names_and_nodes_are_those_of_the_newest_release() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let newest: BTreeSet<String> = include_str!("names/rdma-core-65").lines().map(str::to_owned).collect();
    assert_eq!(exported_names(&library()), newest);
}

/// If a program finds a different libibverbs.so.1, it fails at its start and not later.
#[test]
fn the_library_has_its_name_and_needs_the_other_one() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let dynamic = readelf("-d", &library());
    for part in ["Library soname: [librdmacm.so.1]", "Shared library: [libibverbs.so.1]", "NODELETE"] {
        assert!(dynamic.contains(part), "{part}: {dynamic}");
    }
    let is_expected = |name: &String| is_of_system(name) || *name == "libibverbs.so.1";
    let foreign: Vec<String> =
        needed_libraries(&library()).into_iter().filter(|name| !is_expected(name)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    let versions = readelf("-V", &library());
    assert!(versions.contains(&format!("Name: {}", table::ENTRY_NODE)), "{versions}");
}
