//! Compares the address rules of rdma_cm with a kernel. `rules/rules.c` asks; `rules/table` contains the
//! answers of a kernel, which `cli/tests/interop/rules` records and checks. `rules/differences` lists answers
//! that intentionally differ here, with reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use roce_testing::{Running, distribution, has_program, in_own_network, skip_unless};

const TABLE: &str = include_str!("rules/table");
const DIFFERENCES: &str = include_str!("rules/differences");
/// Differences for devices with one address each.
const OF_ONE_ADDRESS: &str = include_str!("rules/differences-of-one-address");
/// Some cases wait for an event that never comes.
const SECONDS: u64 = 300;

/// Returns the cases of a list with their answers. Lines that begin with `#` are comments.
fn cases(list: &str) -> BTreeMap<&str, &str> {
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(" -> ").unwrap_or_else(|| panic!("no answer in {line:?}"))).collect()
}

/// Compiles the program into a folder with the libraries; returns `None` if that is not possible.
#[track_caller]
fn compile() -> Option<(tempfile::TempDir, PathBuf)> {
    let root = distribution(env!("CARGO_TARGET_TMPDIR"));
    if skip_unless(root.is_some() && has_program("cc"), "no packages of a Debian system, or no C compiler") {
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let test = std::env::current_exe().expect("the path of the test");
    for name in ["libibverbs", "librdmacm"] {
        for end in ["so.1", "so"] {
            let library = test.with_file_name(format!("{name}.so"));
            symlink(library, folder.path().join(format!("{name}.{end}"))).expect("a link");
        }
    }
    let program = folder.path().join("rules");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(root?.join("usr/include"));
    command.arg("-o").arg(&program).arg(rules("rules.c"));
    command.arg("-L").arg(folder.path()).args(["-lrdmacm", "-libverbs"]);
    let compiled = Running::start(&mut command).finish(60);
    assert!(compiled.success, "{}", compiled.stderr);
    Some((folder, program))
}

fn rules(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules").join(name)
}

/// Compares the answers of the library, with these devices, with those of the kernel.
fn compare(devices: &'static str, allowed: &'static [&'static str]) {
    let Some((folder, program)) = compile() else { return };
    in_own_network(&["link set lo up"], move || {
        let mut network = Command::new("sh");
        let made = Running::start(network.arg(rules("network.sh"))).finish(60);
        assert!(made.success, "{}", made.stderr);
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", folder.path()).env("ROCE_DEVICE", devices);
        let ran = Running::start(&mut command).finish(SECONDS);
        assert!(ran.success, "{}", ran.stderr);
        let wrong = differences(&ran.stdout, allowed);
        assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases(TABLE).len(), wrong.join("\n"));
    });
}

/// Returns the answers that are neither those of the kernel nor allowed differences.
fn differences(answers: &str, allowed: &[&str]) -> Vec<String> {
    let (theirs, ours) = (cases(TABLE), cases(answers));
    let allowed: BTreeMap<&str, &str> = allowed.iter().flat_map(|list| cases(list)).collect();
    let names: BTreeSet<&str> = theirs.keys().chain(ours.keys()).chain(allowed.keys()).copied().collect();
    let explain = |name: &str| {
        let (theirs, ours) = (theirs.get(name), ours.get(name));
        let expected = allowed.get(name).or(theirs);
        if allowed.contains_key(name) && allowed.get(name) == theirs {
            return Some(format!("{name} ->\n  differences has what the kernel answers"));
        }
        if ours == expected {
            return None;
        }
        let text = |answer: Option<&&str>| (*answer.unwrap_or(&"no such case")).to_owned();
        Some(format!("{name} ->\n  expected {}\n  answered {}", text(expected), text(ours)))
    };
    names.into_iter().filter_map(explain).collect()
}

/// Regression: `rdma_bind_addr` to a loopback address chose the first device, so libfabric mistook that
/// address for one of the device.
#[test]
fn addresses_lead_where_they_lead_with_a_kernel() {
    compare("raw:a0;raw:b0", &[DIFFERENCES]);
}

/// Uses the same interfaces, with a separate device for each of their addresses.
#[test]
fn a_device_for_each_address_leads_to_the_same() {
    let devices = "udp:198.18.1.1;udp:[2001:db8:1::1];udp:[fe80::1:1%a0];udp:198.18.1.2;udp:198.18.2.1;udp:[2001:db8:2::1];udp:[fe80::2:1%b0]";
    compare(devices, &[DIFFERENCES, OF_ONE_ADDRESS]);
}
