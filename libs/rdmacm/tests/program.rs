//! A C program with both libraries, compiled and loaded as usual.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use roce_testing::{Finished, Running, distribution, has_program, skip_unless};

/// Compiles a program of `tests/c` into a folder with the libraries; returns `None` if that is not possible.
fn compile(name: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    let root = distribution(env!("CARGO_TARGET_TMPDIR"));
    if skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return None;
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let program = folder.path().join(name);
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Werror", "-I"]).arg(headers).arg("-o").arg(&program).arg(source);
    command.arg("-L").arg(folder.path()).args(["-lrdmacm", "-libverbs"]);
    let compiled = Running::start(&mut command).finish(60);
    assert!(compiled.success, "{}", compiled.stderr);
    Some((folder, program))
}

/// Returns the command for a program on a device with this address.
fn command(program: &Path, device: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", program.parent().expect("its folder"));
    command.env("ROCE_DEVICE", format!("udp:{device}"));
    command
}

#[test]
fn a_program_in_c_connects_to_itself() {
    let Some((_folder, program)) = compile("connections") else { return };
    let address = "127.83.0.9";
    let ran = Running::start(&mut command(&program, address, &[address])).finish(60);
    assert!(ran.success && ran.stdout.contains("all is as it should be"), "{ran:?}");
}

/// A plan names the functions of both libraries. The program ends at the first error.
#[test]
fn a_function_of_librdmacm_fails_on_demand() {
    let Some((_folder, program)) = compile("connections") else { return };
    for (plan, errno, fault) in [
        ("rdma_create_event_channel:1=ENODEV", 19, "rdma_create_event_channel 1 ENODEV"),
        ("rdma_resolve_addr:1=ETIMEDOUT", 110, "rdma_resolve_addr 1 ETIMEDOUT"),
        // `rdma_create_qp` calls it.
        ("ibv_create_qp:1=ENOSPC", 28, "ibv_create_qp 1 ENOSPC"),
    ] {
        let address = roce_testing::own_address().to_string();
        let mut command = command(&program, &address, &[&address]);
        let ran = Running::start(command.env("ROCE_VERBS_FAULT", plan)).finish(60);
        let parts = [format!("(errno {errno})"), format!("{fault}\n")];
        assert!(!ran.success && parts.iter().all(|part| ran.stderr.contains(part)), "{plan}: {ran:?}");
    }
}

/// Returns the output of a server and a client of `tests/c/processes.c`; `None` if the program cannot be
/// compiled.
fn two_processes(address: &str) -> Option<[Finished; 2]> {
    let (_folder, program) = compile("processes")?;
    let mut server = Running::start(&mut command(&program, address, &["server", address]));
    server.wait_for_line("listening");
    let client = Running::start(&mut command(&program, address, &["client", address])).finish(60);
    Some([server.finish(60), client])
}

/// As in the kernel, the end of a process sends a DREQ for each of its connections.
#[test]
fn the_peer_of_a_process_that_exits_is_told() {
    let Some([server, client]) = two_processes("127.83.0.10") else { return };
    assert!(client.success, "{client:?}");
    assert!(server.success && server.stdout.contains("the peer has gone"), "{server:?}");
}

/// QEMU polls this channel together with the completion channel, and then waits in `rdma_get_cm_event`.
#[test]
fn a_channel_is_readable_only_for_an_event() {
    let Some([_, client]) = two_processes("127.83.0.12") else { return };
    assert!(client.success && client.stdout.contains("the descriptor is not readable"), "{client:?}");
}

/// Calls each function for streams, compares the bytes, and ends the connection.
#[test]
fn a_program_in_c_talks_to_itself_by_rsockets() {
    let Some((_folder, program)) = compile("streams") else { return };
    let address = roce_testing::own_address().to_string();
    let ended = Running::start(&mut command(&program, &address, &[&address])).finish(60);
    assert!(ended.success, "{ended:?}");
}
