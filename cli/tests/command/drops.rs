//! After a failed exchange, both sides report the packets that they dropped.

use crate::common::{Finished, Running, own_address, roce};

/// Runs a server on its own address, and a client all of whose packets are damaged.
fn run_damaged(command: &[&str], server: &[&str], client: &[&str]) -> [Finished; 2] {
    let (there, here) = (own_address().to_string(), own_address().to_string());
    let devices = [format!("udp:{there}"), format!("udp:{here}")];
    let mut serving = Running::start(roce().args(command).args(server).args(["--device", &devices[0]]));
    serving.wait_for_line("waiting on");
    let client: Vec<&str> = client.iter().map(|arg| if *arg == "SERVER" { &*there } else { *arg }).collect();
    let calling = Running::start(roce().args(command).args(client).args([
        "--device",
        &devices[1],
        "--fault",
        "corrupt=100%",
    ]));
    [serving.finish(90), calling.finish(90)]
}

/// Asserts that both sides report the dropped packets. Regression: with `--fault corrupt=100%`, no server
/// did, and one server reported that nothing had arrived.
#[track_caller]
fn assert_both_sides_name_what_was_dropped(command: &[&str], server: &[&str], client: &[&str]) {
    let [served, called] = run_damaged(command, server, client);
    assert_eq!((served.code, called.code), (Some(1), Some(1)), "{command:?}: {served:?} {called:?}");
    let text = [&served.stdout[..], &served.stderr].concat();
    assert!(
        text.contains("dropped because their ICRC is wrong (rx_icrc_encapsulated): "),
        "{command:?}: {text}"
    );
    assert!(text.contains("packets were") || text.contains("1 packet was"), "{command:?}: {text}");
    assert!(!text.contains("nothing arrived"), "{command:?}: {text}");
    assert!(called.stderr.contains("(fault_tx_corrupted): "), "{command:?}: {}", called.stderr);
}

/// Both sides wait for seconds without computing, so all cases run at the same time.
#[test]
fn a_failed_exchange_names_the_packets_that_were_dropped() {
    let cases: [[&[&str]; 3]; 5] = [
        [&["ping"], &["--once"], &["SERVER", "-n", "10"]],
        [&["blast"], &["--once"], &["SERVER", "-n", "10"]],
        [&["pingpong", "rc"], &["--patience", "5"], &["SERVER", "--patience", "5"]],
        [
            &["perf", "write", "bw"],
            &["--patience", "5", "-n", "10"],
            &["SERVER", "--patience", "5", "-n", "10"],
        ],
        [
            &["perf", "send", "lat"],
            &["--patience", "5", "-n", "10"],
            &["SERVER", "--patience", "5", "-n", "10"],
        ],
    ];
    std::thread::scope(|scope| {
        for [command, server, client] in cases {
            scope.spawn(move || assert_both_sides_name_what_was_dropped(command, server, client));
        }
    });
}
