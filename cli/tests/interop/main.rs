//! `roce` against the kernel's Soft-RoCE in a small virtual machine.
//!
//! `cli/tests/interop/run` boots the machine, starts this program inside the network namespace that both
//! share, and creates a table of the results. Plain `cargo test` has no peer, so it ignores these tests.

#[path = "../command/common/mod.rs"]
mod common;
use roce_testing as namespaces;

mod bridge;
mod case;
mod differences;
mod end;
mod flush;
mod killed;
mod many;
mod matrix;
mod peer;
mod programs;
mod scripts;
mod setting;
mod work;

use std::time::Instant;

use case::Family;
use setting::Setting;

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn every_operation_in_both_directions() {
    let Some(setting) = Setting::read() else { return };
    let (count, failed) = matrix::run(&setting).expect("the matrix");
    assert!(count > 0, "no case is called `{}`", setting.only);
    assert!(failed.is_empty(), "{} of {count} cases failed: {failed:?}", failed.len());
    println!("{count} cases passed");
}

/// Runs a test that is not a cell of the matrix, and records it.
#[track_caller]
fn special(setting: &Setting, name: &str, test: impl FnOnce() -> anyhow::Result<String>) {
    let begun = Instant::now();
    let outcome = test();
    setting.record_special(name, &outcome, begun.elapsed()).expect("writing the results");
    match outcome {
        Ok(text) => println!("{name}: {text}, {} ms in all", begun.elapsed().as_millis()),
        Err(error) => panic!("{name}: {error:#}"),
    }
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn many_queue_pairs_at_once() {
    let Some(setting) = Setting::read() else { return };
    for family in [Family::V4, Family::V6] {
        special(&setting, &format!("256 queue pairs, {}", family.name()), || many::run(&setting, family));
    }
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn a_peer_that_is_killed() {
    let Some(setting) = Setting::read() else { return };
    special(&setting, "peer's process killed", || killed::process(&setting));
    special(&setting, "our queue pair destroyed", || killed::we(&setting));
    special(&setting, "peer's machine suspended", || killed::machine(&setting));
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn flush_of_the_kernel() {
    let Some(setting) = Setting::read() else { return };
    special(&setting, "FLUSH", || flush::run(&setting));
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn scripts_of_roce_peer() {
    let Some(setting) = Setting::read() else { return };
    special(&setting, "scripts of `roce peer`", || scripts::run(&setting));
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn scripts_over_rdma_cm() {
    let Some(setting) = Setting::read() else { return };
    special(&setting, "scripts of `roce peer` over rdma_cm", || scripts::run_by_rdma_cm(&setting));
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn bridge_between_us_and_the_kernel() {
    let Some(setting) = Setting::read() else { return };
    special(&setting, "marks and losses by `roce bridge`", || bridge::run(&setting));
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn perftest_in_both_roles() {
    let Some(setting) = Setting::read() else { return };
    programs::run(&setting, &programs::perftest::pairs(&setting)).expect("perftest");
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn pingpongs_in_both_roles() {
    let Some(setting) = Setting::read() else { return };
    programs::run(&setting, &programs::pingpong::pingpongs(&setting)).expect("ping-pongs");
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn rping_in_both_roles() {
    let Some(setting) = Setting::read() else { return };
    programs::run(&setting, &programs::pingpong::rpings(&setting)).expect("rping");
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn ucmatose_in_both_roles() {
    let Some(setting) = Setting::read() else { return };
    for family in [Family::V4, Family::V6] {
        let name = |role: &str| format!("ucmatose, {role}, {}", family.name());
        special(&setting, &name("we serve"), || programs::cmatose::as_server(&setting, family));
        special(&setting, &name("they serve"), || programs::cmatose::as_client(&setting, family));
    }
}

#[test]
#[ignore = "needs a guest with kernel Soft-RoCE: run cli/tests/interop/run"]
fn connections_leave_nothing_behind() {
    let Some(setting) = Setting::read() else { return };
    special(&setting, "connections, we connect", || programs::connections::we_ask(&setting));
    special(&setting, "connections, they connect", || programs::connections::they_ask(&setting));
}
