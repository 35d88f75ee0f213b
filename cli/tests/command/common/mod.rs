//! Helpers of the tests of the command.
#![allow(dead_code, unused_imports, reason = "every test file takes a part of it")]

pub(crate) mod frames;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use roce_testing::{
    Finished, Running, TAPS_ON_A_BRIDGE, all_captures, as_nobody, captures_in, free_v6_port, has_program,
    is_too_busy_for_rates, kernel_captures, on_idle, own_address, script, shared, skip_unless, tshark,
    within,
};

/// States of TCP sockets in the kernel's table.
pub(crate) const TCP_ESTABLISHED: &str = "01";
pub(crate) const TCP_LISTEN: &str = "0A";

/// Returns whether this network has a TCP socket in a state whose local address, in the hexadecimal form of
/// the kernel's table, is the wanted one.
pub(crate) fn has_tcp_socket(is_wanted: impl Fn(&str) -> bool, state: &str) -> bool {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).any(|line| {
        // Number, local address, address of the peer, state.
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(&is_wanted) && fields.nth(1) == Some(state)
    })
}

/// Returns the command under test.
pub(crate) fn roce() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce"));
    command.env_remove("NO_COLOR").env_remove("ROCE_LOG");
    command
}

/// Installs only the command below this prefix, as `cargo install` does, and returns its path.
pub(crate) fn installed_command(prefix: &Path) -> PathBuf {
    let bin = prefix.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let own = bin.join("roce");
    // A copy takes longer, and is needed if the folder is a mount of its own.
    let built = env!("CARGO_BIN_EXE_roce");
    std::fs::hard_link(built, &own).or_else(|_| std::fs::copy(built, &own).map(drop)).unwrap();
    own
}

/// Puts the command under test into `folder/bin`, for users who have no access to the build folder.
pub(crate) fn share_command(folder: &Path) {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_roce"), bin.join("roce")).unwrap();
    for path in [folder, &bin] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
}

/// Returns a shell that runs this line as an ordinary user, who finds the command in `shared/bin` and begins
/// in the folder `home`.
pub(crate) fn shell_of_user(line: &str, shared: &Path, home: &Path) -> Command {
    let mut command = as_nobody().expect("setpriv");
    let path = format!("{}:{}", shared.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.args(["sh", "-c", line]).env_clear().env("PATH", path);
    command.env("HOME", home).env("XDG_RUNTIME_DIR", home).current_dir(home);
    command
}

/// Runs `roce` with these arguments, for at most 60 seconds.
#[track_caller]
pub(crate) fn run(args: &[&str]) -> Finished {
    Running::start(roce().args(args)).finish(60)
}

/// Checks the document of a client with `--json -n 50`, which other lines may surround. It was measured over
/// this kind of device, and it exists only if every message had the right contents.
#[track_caller]
pub(crate) fn check_measured(stdout: &str, kind: &str) {
    let start = stdout.find('{').expect("JSON");
    let end = stdout.rfind('}').expect("JSON");
    let document: serde_json::Value = serde_json::from_str(&stdout[start..=end]).expect("JSON");
    assert_eq!(document["device"], kind);
    assert_eq!(document["plan"]["path_mtu"], 4096);
    assert_eq!(document["rows"][0]["iterations"], 50);
}
