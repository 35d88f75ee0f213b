//! A program in C with both libraries, as a C compiler and the loader see them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use roce_testing::{Running, distribution, has_program, skip_unless};

#[test]
fn a_program_in_c_connects_to_itself() {
    let root = distribution(env!("CARGO_TARGET_TMPDIR"));
    if skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return;
    }
    let headers = root.expect("checked").join("usr/include");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let test = std::env::current_exe().expect("the path of the test");
    for name in ["libibverbs", "librdmacm"] {
        for end in ["so.1", "so"] {
            let library = test.with_file_name(format!("{name}.so"));
            symlink(library, folder.path().join(format!("{name}.{end}"))).expect("a link");
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/connections.c");
    let program = folder.path().join("connections");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Werror", "-I"]).arg(headers).arg("-o").arg(&program).arg(source);
    command.arg("-L").arg(folder.path()).args(["-lrdmacm", "-libverbs"]);
    let compiled = Running::start(&mut command).finish(60);
    assert!(compiled.success, "{}", compiled.stderr);
    let address = "127.83.0.9";
    let mut command = Command::new(program);
    command.arg(address).env("LD_LIBRARY_PATH", folder.path()).env("ROCE_DEVICE", format!("udp:{address}"));
    let ran = Running::start(&mut command).finish(60);
    assert!(ran.success && ran.stdout.contains("all is as it should be"), "{ran:?}");
}
