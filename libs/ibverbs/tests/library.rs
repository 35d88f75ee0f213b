//! The finished library: its names, version nodes and properties, read from the file.

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use roce_testing::{exported_names, has_program, is_of_system, needed_libraries, readelf, skip_unless};

#[path = "../src/table.rs"]
#[allow(dead_code, reason = "what the names answer is not asked here")]
mod table;

/// Returns the names of the table, in the same form.
fn wanted() -> BTreeSet<String> {
    let public = table::PUBLIC.iter().flat_map(|node| {
        let names = node.functions.iter().copied().chain(node.unused.iter().map(|(name, _)| *name));
        names.map(|name| format!("{name}@{}", node.name))
    });
    let private = table::PRIVATE_NODES.iter().flat_map(|number| {
        let names = table::PRIVATE.iter().map(|(name, _)| *name);
        let names = names.chain([table::PRIVATE_FLAG, table::PRIVATE_FUNCTION]).map(str::to_owned);
        let names = names.chain([format!("verbs_register_driver_{number}")]);
        names.map(move |name| format!("{name}@IBVERBS_PRIVATE_{number}"))
    });
    let of_rdmacm = table::OF_RDMACM.iter().map(|name| format!("roce_{name}@{}", table::RDMACM_NODE));
    public.chain(private).chain(of_rdmacm).collect()
}

/// Some linkers ignore the version script without a warning, which would leave names without a version.
#[test]
fn the_names_and_nodes_are_those_of_the_table() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let (exported, wanted) = (exported_names(&common::library()), wanted());
    let missing: Vec<&String> = wanted.difference(&exported).collect();
    let extra: Vec<&String> = exported.difference(&wanted).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing: {missing:?}, not in the table: {extra:?}");
    assert!(exported.len() > 350, "{} names", exported.len());
}

/// Programs that open the library with `dlopen` look this name up without a node, which finds only a default
/// version.
#[test]
fn the_private_function_that_programs_call_is_found_without_its_node() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let symbols = readelf("--dyn-syms", &common::library());
    let default = format!("{}@@IBVERBS_PRIVATE_34", table::PRIVATE_FUNCTION);
    assert!(symbols.contains(&default), "{default} is not in: {symbols}");
}

#[test]
fn the_library_has_its_name_and_stays_loaded() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let dynamic = readelf("-d", &common::library());
    for part in ["Library soname: [libibverbs.so.1]", "NODELETE"] {
        assert!(dynamic.contains(part), "{part}: {dynamic}");
    }
    let foreign: Vec<String> =
        needed_libraries(&common::library()).into_iter().filter(|name| !is_of_system(name)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

/// Returns why a name of another library is missing here, if that is intended.
fn exception(name: &str, current: &BTreeSet<&str>) -> Option<&'static str> {
    let (function, node) = name.split_once('@')?;
    match node {
        "IBVERBS_1.0" if current.contains(function) => {
            Some("the version of 2006, with another layout: docs/reference/verbs.md")
        }
        "IBVERBS_1.0" if function == "ibv_register_driver" => Some("for providers of 2006"),
        _ => None,
    }
}

/// Compares the names and nodes of this library with those of another one.
#[track_caller]
fn compare(with: &Path) {
    let theirs = exported_names(with);
    assert!(theirs.len() > 150, "{}: {} names", with.display(), theirs.len());
    assert_nothing_is_missing(&with.display().to_string(), &theirs);
}

#[track_caller]
fn assert_nothing_is_missing(what: &str, theirs: &BTreeSet<String>) {
    let ours = exported_names(&common::library());
    let function = |name: &String| name.split('@').next().unwrap_or_default().to_owned();
    let current: BTreeSet<&str> =
        theirs.iter().filter_map(|name| name.strip_suffix("@IBVERBS_1.1")).collect();
    let missing: Vec<&String> =
        theirs.difference(&ours).filter(|name| exception(name, &current).is_none()).collect();
    assert!(missing.is_empty(), "{what}: missing here: {missing:?}");
    // Private nodes have the names of all releases, and each name at each node.
    let known: BTreeSet<String> = theirs.iter().map(function).collect();
    let wrong: Vec<&String> = ours
        .difference(theirs)
        .filter(|name| !name.contains("@IBVERBS_PRIVATE_") && known.contains(&function(name)))
        .collect();
    assert!(wrong.is_empty(), "{what}: at another node here: {wrong:?}");
    println!("{what}: {} names, {} of them here", theirs.len(), theirs.intersection(&ours).count());
}

/// Every name of the distribution's library exists at the same node, and so does every name of the files in
/// `ROCE_TEST_LIBRARIES`, separated by `:`.
#[test]
fn nothing_that_other_libraries_have_is_missing() {
    let root = common::distribution();
    if skip_unless(root.is_some() && has_program("readelf"), "no packages of a Debian system, or no readelf")
    {
        return;
    }
    compare(&common::distributions_library(root.expect("checked")));
    let named = std::env::var_os("ROCE_TEST_LIBRARIES").unwrap_or_default();
    std::env::split_paths(&named).filter(|file| !file.as_os_str().is_empty()).for_each(|file| compare(&file));
}

/// The names of rdma-core 65, as `name@NODE`. If a function with a 1.0 name also has a newer version there,
/// its 1.0 version is that of 2006.
const NEWEST: &str = include_str!("names/rdma-core-65");

/// Regression: programs built with releases after 64 did not start, because the nodes `IBVERBS_1.15` to
/// `1.18` and `IBVERBS_PRIVATE_65` were missing. The names come from a list, so the release need not be
/// installed.
#[test]
fn nothing_that_the_newest_release_has_is_missing() {
    if skip_unless(has_program("readelf"), "readelf is not installed") {
        return;
    }
    let theirs: BTreeSet<String> = NEWEST.lines().map(str::to_owned).collect();
    assert!(theirs.len() > 200, "{} names", theirs.len());
    assert_nothing_is_missing("rdma-core 65", &theirs);
}

/// Functions that C calls without a guard against panics: constants, texts from a table, and calls of a
/// guarded function.
const WITHOUT_GUARD: &[&str] = &[
    "end_poll",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_get_sysfs_path",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_query_port",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_reg_buf_mr",
    "ibv_reg_mr",
    "ibv_reg_mr_iova",
    "ibv_wc_status_str",
    "mbps_to_ibv_rate",
    "mult_to_ibv_rate",
    "no_rsockets",
    "rdma_event_str",
    "rdma_reject_ece",
    "read_no_byte",
    "read_nothing",
];
/// The functions of `answer.rs` that turn a panic into `EIO`, and functions that call one of these first.
const GUARDS: &[&str] = &[
    "guarded(",
    "chain(",
    "status(",
    "status_or(",
    "pointer(",
    "count(",
    "value(",
    "count_entries(",
    "read(",
    "build(",
    "begin(",
    "wait(",
    "completed(",
];

/// Collects the files of a folder, recursively.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { sources(&path, found) } else { found.push(path) }
    }
}

/// Functions with a guard that no plan of faults can name: they read one field of a completion, add to a
/// request under construction, or run when the process exits.
const WITHOUT_VERB: &[&str] = &[
    "read_byte_len",
    "read_imm_data",
    "read_opcode",
    "read_qp_num",
    "read_sl",
    "read_src_qp",
    "read_vendor_err",
    "read_wc_flags",
    "report_all",
    "wr_atomic_cmp_swp",
    "wr_atomic_fetch_add",
    "wr_atomic_write",
    "wr_bind_mw",
    "wr_flush",
    "wr_local_inv",
    "wr_rdma_read",
    "wr_rdma_write",
    "wr_rdma_write_imm",
    "wr_send",
    "wr_send_imm",
    "wr_send_inv",
    "wr_set_inline_data",
    "wr_set_inline_data_list",
    "wr_set_sge",
    "wr_set_sge_list",
    "wr_set_ud_addr",
    "wr_set_xrc_srqn",
];

/// Returns the functions that C calls: their names, and their text from the name on.
fn entry_points() -> Vec<(String, String)> {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source");
        let starts = ["extern \"C\" fn ", "extern \"C-unwind\" fn "];
        for (at, start) in starts.into_iter().flat_map(|start| text.match_indices(start)) {
            let function = &text[at + start.len()..];
            let name = function.split('(').next().unwrap_or_default();
            // Function types have no name.
            if name.is_empty() {
                continue;
            }
            let end = function.find("\n}\n").unwrap_or(function.len());
            let line_end = function.find("{}\n").unwrap_or(function.len());
            found.push((name.to_owned(), function[name.len()..end.min(line_end)].to_owned()));
        }
    }
    found
}

fn has_guard(body: &str) -> bool {
    GUARDS.iter().any(|guard| body.contains(guard))
}

#[test]
fn no_panic_leaves_an_entry_point() {
    let (with, without): (Vec<_>, Vec<_>) = entry_points().into_iter().partition(|(_, body)| has_guard(body));
    let without: BTreeSet<String> = without.into_iter().map(|(name, _)| name).collect();
    assert_eq!(without, WITHOUT_GUARD.iter().map(|name| (*name).to_owned()).collect());
    assert!(with.len() > 120, "{}", with.len());
}

/// Each entry point tells the guard its own name, so that a plan of faults finds it.
#[test]
fn every_verb_can_have_faults() {
    let mut without = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut named = 0;
    for (name, body) in entry_points().into_iter().filter(|(_, body)| has_guard(body)) {
        let Some((_, rest)) = body.split_once("Verb::") else {
            without.insert(name);
            continue;
        };
        named += 1;
        let verb = rest.split(|next: char| !next.is_alphanumeric() && next != '_').next().unwrap_or_default();
        let function = name.trim_start_matches('_');
        // Functions behind pointers have no prefix here. One function serves all variants of `ibv_reg_mr`.
        let is_own = verb == function || verb == format!("ibv_{function}") || name == "ibv_reg_mr_iova2";
        if !is_own || !roce_fault::verbs::Verb::ALL.iter().any(|known| known.name() == verb) {
            wrong.push(format!("{name}: {verb}"));
        }
    }
    assert_eq!(without, WITHOUT_VERB.iter().map(|name| (*name).to_owned()).collect());
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(named, roce_fault::verbs::Verb::ALL.len());
}
