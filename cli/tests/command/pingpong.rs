//! `roce pingpong` on both sides, in two processes. The interop tests run it against the original programs.

use crate::common;
use crate::common::{Running, own_address, roce};
use serde_json::Value;

/// Runs both sides on their own addresses; returns the output of each.
fn pair(kind: &str, options: &[&str]) -> [common::Finished; 2] {
    pair_with(kind, options, &[])
}

/// Runs both sides, with more options for the client.
fn pair_with(kind: &str, options: &[&str], of_client: &[&str]) -> [common::Finished; 2] {
    let (server, client) = (own_address(), own_address());
    let device = |address| format!("udp:{address}");
    let mut server_command = roce();
    server_command.args(["pingpong", kind, "--device", &device(server)]).args(options);
    let server_process = Running::start(&mut server_command);
    let mut client_command = roce();
    let (device, server) = (device(client), server.to_string());
    client_command.args(["pingpong", kind, &server, "--device", &device]).args(options).args(of_client);
    let client = Running::start(&mut client_command).finish(60);
    [server_process.finish(60), client]
}

#[test]
fn all_four_programs_with_events_and_without() {
    for kind in ["rc", "uc", "ud", "srq"] {
        for options in
            [&["-n", "300", "--timeout", "16"][..], &["-n", "200", "-e", "--json", "--timeout", "16"]]
        {
            for finished in pair(kind, options) {
                assert!(finished.success, "{kind}: {finished:?}");
                if options.contains(&"--json") {
                    let document: Value = serde_json::from_str(&finished.stdout).unwrap();
                    assert_eq!(document["iterations"], 200);
                    assert_eq!(document["program"], format!("ibv_{kind}_pingpong"));
                } else {
                    assert!(finished.stdout.contains("  remote address: LID 0x0000, QPN 0x"), "{finished:?}");
                    assert!(finished.stdout.contains("300 iters in "), "{finished:?}");
                }
            }
        }
    }
}

#[test]
fn rc_and_srq_survive_loss_and_say_how_much_was_sent_again() {
    for kind in ["rc", "srq"] {
        let options = ["-n", "400", "-s", "20000", "--fault", "drop=2%", "--seed", "7", "--timeout", "16"];
        let outputs = pair(kind, &options);
        assert!(outputs.iter().all(|finished| finished.success), "{outputs:?}");
        assert!(
            outputs.iter().any(|finished| finished.stdout.contains("packets were retransmitted")),
            "{outputs:?}"
        );
    }
}

/// The originals exit after their last message, so their last acknowledgement is not repeated if it is lost.
#[test]
fn a_missing_last_acknowledgement_is_not_a_failure() {
    let mute = ["--fault", "rule:opcode=RC_ACKNOWLEDGE,action=drop"];
    for (kind, unacknowledged) in [("rc", "1 of the last"), ("srq", "4 of the last")] {
        let options = ["-n", unacknowledged.split(' ').next().unwrap(), "-q", "4"];
        let [server, client] = pair_with(kind, &options, &mute);
        assert!(server.success && client.success, "{kind}: {server:?} {client:?}");
        assert!(server.stdout.contains(unacknowledged), "{kind}: {server:?}");
    }
    // During the exchange, a missing acknowledgement is a failure.
    let [server, _] = pair_with("rc", &["-n", "3", "--patience", "5"], &mute);
    assert!(server.stderr.contains("RETRY_EXC_ERR"), "{server:?}");
}

#[test]
fn a_lost_datagram_is_explained() {
    let outputs = pair("ud", &["-n", "1000", "--fault", "drop=20%", "--seed", "7", "--patience", "2"]);
    assert!(outputs.iter().any(|finished| finished.stderr.contains("do not retransmit")), "{outputs:?}");
}

#[test]
fn impossible_plans_are_rejected_with_a_reason() {
    for (options, part) in [
        (&["ud", "-s", "2000"][..], "do not fit into one UD message with path MTU 1024"),
        (&["rc", "-s", "0"], "choose 1 byte to 1 GiB"),
        (&["srq", "-q", "257"], "choose 1 to 256"),
        (&["srq", "-r", "3"], "at least one for each queue pair"),
        (&["rc", "-n", "0"], "at least one (-n)"),
        (&["rc", "-g", "9"], "no GID 9"),
    ] {
        let address = format!("udp:{}", own_address());
        let finished = common::run(&[&["pingpong", "--device", &address], options].concat());
        assert!(!finished.success && finished.stderr.contains(part), "{options:?}: {finished:?}");
    }
}
