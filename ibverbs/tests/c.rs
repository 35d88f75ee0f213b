//! What a C compiler makes of the interface: the layouts of the header, and a program that uses what others do not.

mod common;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use roce_testing::{Running, has_program, skip_unless};

/// The structures whose sizes and offsets this crate asserts.
const SOURCES: [&str; 5] = [
    include_str!("../src/abi/attributes.rs"),
    include_str!("../src/abi/connection.rs"),
    include_str!("../src/abi/context.rs"),
    include_str!("../src/abi/objects.rs"),
    include_str!("../src/abi/work.rs"),
];

/// Fields that have another name in C; in an empty name there is no such field in the header of the distribution.
const NAMES: &[(&str, &str)] = &[
    ("verbs_context.private", "priv"),
    ("ibv_mw.mw_type", "type"),
    ("ibv_send_wr.remote_srqn", "qp_type.xrc.remote_srqn"),
    ("ibv_send_wr.special", "bind_mw"),
    ("ibv_device_attr_ex.tso_rss_and_pacing", "tso_caps"),
    ("ibv_device_attr_ex.odp_general_caps", "odp_caps.general_caps"),
    ("ibv_device_attr_ex.odp_caps_of_rc", "odp_caps.per_transport_caps.rc_odp_caps"),
    ("ibv_device_attr_ex.odp_caps_of_uc", "odp_caps.per_transport_caps.uc_odp_caps"),
    ("ibv_device_attr_ex.odp_caps_of_ud", "odp_caps.per_transport_caps.ud_odp_caps"),
    ("ibv_qp_ex.wr_flush", ""),
    ("rdma_addr.dst", "dst_addr"),
    ("rdma_addr.ibaddr", "addr.ibaddr"),
];

/// The structure that later releases appended to.
const LONGER: &str = "ibv_qp_ex";

/// The assertions of `layout!` as those of C.
fn assertions() -> String {
    let mut text =
        String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n");
    for source in SOURCES {
        let (_, layout) = source.split_once("layout! {").expect("a table of layouts");
        let code = layout.lines().map(|line| line.split("//").next().unwrap_or_default());
        let layout: String = code.collect::<Vec<_>>().join(" ");
        for part in layout.split('}') {
            let Some((head, fields)) = part.split_once('{') else { continue };
            let (name, size) = head.trim().split_once(": ").expect("a name and a size");
            let relation = if name == LONGER { "<=" } else { "==" };
            writeln!(text, "_Static_assert(sizeof(struct {name}) {relation} {size}, \"{name}\");")
                .expect("a text");
            for field in fields.split(',').map(str::trim).filter(|field| !field.is_empty()) {
                let (field, offset) = field.split_once(' ').expect("a field and its offset");
                let path = format!("{name}.{field}");
                let field = NAMES.iter().find(|(known, _)| *known == path).map_or(field, |(_, in_c)| in_c);
                if !field.is_empty() {
                    writeln!(
                        text,
                        "_Static_assert(offsetof(struct {name}, {field}) == {offset}, \"{path}\");"
                    )
                    .expect("a text");
                }
            }
        }
    }
    // A union in C.
    text.replace("struct ibv_gid)", "union ibv_gid)")
}

fn compiler(root: &Path) -> Command {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Werror", "-I"]).arg(root.join("usr/include"));
    command
}

#[test]
fn layouts_are_those_of_the_header() {
    let root = common::distribution();
    let can_run = root.is_some() && has_program("cc") && cfg!(target_arch = "x86_64");
    if skip_unless(can_run, "no packages of a Debian system, no C compiler, or not x86_64") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("layouts.c");
    let text = assertions();
    assert!(text.lines().count() > 150, "{text}");
    std::fs::write(&source, text).expect("a file");
    let mut command = compiler(root.expect("checked"));
    let compiled = Running::start(command.arg("-fsyntax-only").arg(&source)).finish(60);
    assert!(compiled.success, "{}", compiled.stderr);
}

/// Compiles a program of the folder `c`, runs it with the library, and looks for its last line.
fn run_program(name: &str, device: &str) {
    let root = common::distribution();
    if skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let (root, library) = (root.expect("checked"), common::library_folder());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let program = library.path().join("program");
    let mut command = compiler(root);
    command.arg("-o").arg(&program).arg(source).arg("-L").arg(library.path()).arg("-libverbs");
    let compiled = Running::start(&mut command).finish(60);
    assert!(compiled.success, "{}", compiled.stderr);
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library.path()).env("ROCE_DEVICE", device);
    let ran = Running::start(&mut command).finish(60);
    assert!(ran.success && ran.stdout.contains("all is as it should be"), "{ran:?}");
}

#[test]
fn a_program_in_c_uses_what_others_do_not() {
    run_program("verbs.c", "udp:127.83.0.3");
}

#[test]
fn a_program_in_c_uses_domains_and_memory_that_others_do_not() {
    run_program("memory.c", "udp:127.83.0.5");
}
