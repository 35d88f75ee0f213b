//! Habits of perftest users: its options, and options of the two sides that do not match.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::common;
use crate::common::{Finished, Running, on_idle, own_address, roce};
use serde_json::Value;

/// Returns the commands of both sides, which have their own addresses, the client first.
fn commands(tests: [&[&str]; 2], of_client: &[&str], of_server: &[&str]) -> [std::process::Command; 2] {
    let (server, client) = (own_address(), own_address());
    let [mut client_command, mut server_command] = [roce(), roce()];
    client_command.arg("perf").args(tests[0]).arg(server.to_string()).args(of_client);
    client_command.args(["-d", &format!("udp:{client}")]);
    server_command.arg("perf").args(tests[1]).args(of_server).args(["-d", &format!("udp:{server}")]);
    [client_command, server_command]
}

/// Runs both sides; returns the output of each, the client first.
fn meet(tests: [&[&str]; 2], of_client: &[&str], of_server: &[&str]) -> [Finished; 2] {
    let [mut client, mut server] = commands(tests, of_client, of_server);
    let server = Running::start(&mut server);
    [Running::start(&mut client).finish(100), server.finish(100)]
}

/// Runs both sides of a test with the same options, which must succeed; returns their documents, the client
/// first.
#[track_caller]
fn documents(test: &[&str], options: &[&str]) -> [Value; 2] {
    let options = [options, &["--json", "--patience", "20", "-u", "16"]].concat();
    meet([test, test], &options, &options).map(|finished| {
        assert!(finished.success, "{test:?} {options:?}: {finished:?}");
        serde_json::from_str(&finished.stdout).expect("JSON")
    })
}

/// Regression: two such sides waited for 30 s, or printed figures that the other side had never measured.
#[test]
fn sides_that_do_not_match_name_what_differs_at_once() {
    let send: &[&str] = &["send", "bw"];
    let write: &[&str] = &["write", "bw"];
    let plain: &[&str] = &["-n", "50"];
    for (tests, of_client, of_server, [ours, theirs]) in [
        ([send, send], &["-n", "50", "-s", "90"][..], plain, ["-s 90", "-s 65536"]),
        ([send, send], &["-n", "50", "-b"], plain, ["-b", "no -b"]),
        ([send, send], plain, &["-n", "50", "--reversed"], ["no --reversed", "--reversed"]),
        ([write, write], &["-D", "2", "--report_gbits"], plain, ["-D 2", "-n 50"]),
        ([write, write], &["-a", "-n", "50"], plain, ["-a", "-s 65536"]),
        ([write, write], &["-n", "50", "-q", "3"], plain, ["-q 3", "-q 1"]),
        ([send, write], plain, plain, ["ib_send_bw", "ib_write_bw"]),
    ] {
        let [client, server] = meet(tests, of_client, of_server);
        for (finished, [ours, theirs]) in [(client, [ours, theirs]), (server, [theirs, ours])] {
            let expected = format!("this side has {ours}, the other side has {theirs}");
            assert!(!finished.success && finished.stderr.contains(&expected), "`{expected}`: {finished:?}");
            // This takes a second on an idle machine.
            assert!(on_idle(finished.took) < Duration::from_secs(8), "{finished:?}");
        }
    }
}

/// Regression: a report does not contain its unit, so the side without `--report_gbits` mistook gigabits for
/// megabytes.
#[test]
fn each_side_reports_in_a_unit_of_its_own() {
    let options = ["-D", "1", "--json", "-s", "4096"];
    let with_gigabits = [&options[..], &["--report_gbits"]].concat();
    let write: &[&str] = &["write", "bw"];
    let [client, server] = meet([write, write], &options, &with_gigabits);
    let [client, server] = [client, server].map(|finished| {
        assert!(finished.success, "{finished:?}");
        let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        document["rows"][0]["bandwidth"]["average"]["bytes_per_second"].as_f64().unwrap()
    });
    assert!((client - server).abs() < 0.01 * client, "{client} {server}");
}

/// Regression: the server waited for 30 s and held its ports.
#[test]
fn a_server_ends_soon_after_its_client_is_stopped() {
    for test in [["send", "bw"], ["send", "lat"], ["write", "bw"]] {
        let [mut client, mut server] = commands([&test, &test], &["-D", "60"], &["-D", "60"]);
        let mut server = Running::start(&mut server);
        let mut client = Running::start(&mut client);
        server.wait_for_line("#bytes");
        client.wait_for_line("#bytes");
        std::thread::sleep(Duration::from_millis(500));
        client.interrupt();
        let stopped = std::time::Instant::now();
        let server = server.finish(60);
        assert!(on_idle(stopped.elapsed()) < Duration::from_secs(10), "{test:?}: {server:?}");
        assert!(!server.success && server.stderr.contains("closed the connection"), "{test:?}: {server:?}");
    }
}

#[test]
fn a_reversed_test_sends_from_the_server() {
    for verb in ["send", "write", "read"] {
        let [client, server] = documents(&[verb, "bw"], &["-n", "60", "--reversed"]);
        assert_eq!((&client["role"], &server["role"]), (&"server".into(), &"client".into()));
        assert_eq!(server["rows"][0]["bandwidth"]["messages"], 60, "{server}");
    }
    documents(&["send", "lat"], &["-n", "60", "--reversed"]);
}

#[test]
fn lists_events_and_retries_are_those_of_perftest() {
    let [client, _] = documents(&["write", "bw"], &["-n", "120", "-l", "4", "--retry_count=3"]);
    assert_eq!((&client["post_list"], &client["cq_mod"]), (&4.into(), &4.into()));
    documents(&["send", "bw"], &["-n", "1280", "-l", "64", "-Q", "32", "-s", "64"]);
    documents(&["write", "bw"], &["-D", "1", "-l", "20", "-s", "64"]);
    documents(&["send", "bw"], &["-n", "120", "-e"]);
    documents(&["read", "lat"], &["-n", "120", "-e"]);
    documents(&["send", "lat"], &["-n", "120", "--events"]);
}

#[test]
fn blocks_go_over_rdma_cm_and_queue_pairs_connect_without() {
    for (test, options) in [
        (["write", "bw"], &["-n", "60", "-z"][..]),
        (["write", "bw"], &["-n", "60", "-z", "-c", "UC"]),
        (["send", "lat"], &["-n", "60", "--comm_rdma_cm", "-c", "UD"]),
    ] {
        let [client, _] = documents(&test, options);
        assert_eq!(client["rdma_cm"], false, "{client}");
    }
}

#[test]
fn ud_queue_pairs_connect_through_rdma_cm() {
    for (test, options) in [
        (["send", "bw"], &["-n", "100", "-s", "1000", "-t", "8"][..]),
        (["send", "bw"], &["-n", "50", "-s", "1000", "-t", "8", "-q", "3"]),
        (["send", "bw"], &["-n", "50", "-s", "64", "-t", "4", "-b"]),
        (["send", "lat"], &["-n", "100"]),
    ] {
        let [client, _] = documents(&test, &[options, &["-c", "UD", "-R"]].concat());
        assert_eq!((&client["rdma_cm"], &client["connection"]), (&true.into(), &"UD".into()));
    }
}

#[test]
fn packets_bear_the_traffic_class_of_tclass_and_tos() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--tclass", "-T"] {
        let file = folder.path().join("sent.pcapng");
        let file = file.to_str().unwrap();
        let send: &[&str] = &["send", "lat"];
        let options = ["-n", "5", option, "104"];
        let of_client = [&options[..], &["--pcap", file]].concat();
        let outputs = meet([send, send], &of_client, &options);
        assert!(outputs.iter().all(|finished| finished.success), "{outputs:?}");
        let listed = common::run(&["dissect", file, "--json"]);
        let points: Vec<String> = listed
            .stdout
            .lines()
            .filter_map(|line| Some(serde_json::from_str::<Value>(line).ok()?["ip.dsfield.dscp"].to_string()))
            .collect();
        // Acknowledgements have the traffic class of the packets that they acknowledge.
        assert!(points.len() >= 10 && points.iter().all(|point| point == "26"), "{option}: {points:?}");
    }
}

#[test]
fn a_test_below_its_limit_fails_and_names_it() {
    let write: &[&str] = &["write", "bw"];
    let plain = ["-n", "100"];
    for (limit, part) in [
        (&["-n", "100", "-w", "1e9"][..], "MB/s are below the limit of 1000000000 MB/s"),
        (&["-n", "100", "--limit_msgrate", "1e6"], "million messages/s are below the limit of 1000000"),
    ] {
        let [client, server] = meet([write, write], limit, &plain);
        assert!(server.success && !client.success && client.stderr.contains(part), "{client:?}");
    }
    let [client, _] = meet([write, write], &["-n", "100", "-w", "0.000001", "-y", "0.0000001"], &plain);
    assert!(client.success, "{client:?}");
}

#[test]
fn output_prints_one_figure_alone() {
    for (test, figure) in
        [(["write", "bw"], "bandwidth"), (["send", "bw"], "message_rate"), (["send", "lat"], "latency")]
    {
        let options = ["-n", "100", &format!("--output={figure}")];
        let [client, _] = meet([&test, &test], &options, &options);
        assert!(client.success && client.stdout.trim().parse::<f64>().unwrap() > 0.0, "{client:?}");
    }
}

#[test]
fn out_json_writes_the_names_of_perftest() {
    let folder = tempfile::tempdir().unwrap();
    for (test, names) in [
        (["send", "bw"], &["MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate"][..]),
        (
            ["send", "lat"],
            &[
                "MsgSize",
                "n_iterations",
                "t_min",
                "t_max",
                "t_typical",
                "t_avg",
                "t_stdev",
                "percentile_99",
                "percentile_99.9",
            ],
        ),
    ] {
        let file = folder.path().join("result.json");
        let with_file = ["-n", "100", "--out_json", "--out_json_file", file.to_str().unwrap()];
        let [client, server] = meet([&test, &test], &with_file, &["-n", "100"]);
        assert!(client.success && server.success, "{client:?} {server:?}");
        let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for name in names {
            assert!(document["results"][name].is_number(), "{name}: {document}");
        }
        let info = &document["test_info"];
        assert_eq!((&info["Connection_type"], &info["Number_of_qps"]), (&"RC".into(), &1.into()));
        for name in ["test", "Device", "Mtu", "Link_type", "Data_ex_method", "rdma_cm_QPs"] {
            assert!(!info[name].is_null(), "{name}: {info}");
        }
    }
}

#[test]
fn a_test_without_end_reports_each_interval_until_it_is_stopped() {
    for verb in ["write", "send"] {
        let test = [verb, "bw"];
        let options = ["--run_infinitely", "-D", "1", "-s", "4096"];
        let [mut client, mut server] = commands([&test, &test], &options, &options);
        let server = Running::start(&mut server);
        let mut client = Running::start(&mut client);
        for _ in 0..2 {
            client.wait_for_line(" 4096 ");
        }
        client.interrupt();
        let server = server.finish(60);
        assert!(server.success, "{verb}: {server:?}");
    }
}

/// The minimum size of rping is 23 bytes: its text with the largest number, and a NUL.
#[test]
fn rping_takes_the_sizes_of_the_original() {
    for size in ["23", "26", "65535"] {
        let (server, client) = (own_address(), own_address());
        let mut command = roce();
        let mut listening =
            Running::start(command.args(["rping", "-s", "--device", &format!("udp:{server}")]));
        listening.wait_for_line("waiting on");
        let device = format!("udp:{client}");
        let arguments = [
            "rping",
            "-c",
            "-a",
            &server.to_string(),
            "-C",
            "12",
            "-S",
            size,
            "-V",
            "-v",
            "--device",
            &device,
        ];
        let client = common::run(&arguments);
        assert!(client.success && client.stdout.contains("ping data: rdma-ping-11: "), "{client:?}");
        assert!(listening.finish(60).success);
    }
    let refused = common::run(&["rping", "-c", "-a", "127.0.0.1", "-S", "22"]);
    assert!(!refused.success && refused.stderr.contains("must be 23 to 65535"), "{refused:?}");
}

/// Reads a block as long as the answer, then writes the answer.
fn answer(stream: &mut TcpStream, block: &[u8]) {
    stream.read_exact(&mut vec![0; block.len()]).unwrap();
    stream.write_all(block).unwrap();
}

/// Returns keys for memory at this address, as an original sends them.
fn keys(address: u64) -> Vec<u8> {
    let text = format!(
        "0000:0010:000011:abcdef:00001234:{address:016x}:00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:00:01:00000000:"
    );
    let mut block = text.into_bytes();
    block.push(0);
    block
}

/// Runs our client of `ib_write_bw` against a program that sends these blocks after release, geometry and
/// path MTU.
fn against_blocks(blocks: &[Vec<u8>]) -> Finished {
    let (server, client) = (own_address(), own_address());
    let listener = TcpListener::bind((server, 18_515)).unwrap();
    let mut command = roce();
    command.args(["perf", "write", "bw", &server.to_string(), "-n", "5", "-d", &format!("udp:{client}")]);
    let process = Running::start(&mut command);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for block in [&b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"[..], b"\0\0\x10\0", b"\0\0\0\x40", b"3\0"] {
        answer(&mut stream, block);
    }
    for block in blocks {
        answer(&mut stream, block);
    }
    process.finish(60)
}

#[test]
fn memory_beyond_the_last_address_is_refused() {
    let finished = against_blocks(&[keys(u64::MAX)]);
    assert!(!finished.success, "{finished:?}");
    assert!(finished.stderr.contains("announced memory at 0xffffffffffffffff"), "{finished:?}");
}

/// A report arrives where keys are expected: the original runs with -b, this side without.
#[test]
fn a_report_of_an_original_where_keys_are_expected_is_named_at_once() {
    let report = [65_536_u64.to_be_bytes().to_vec(), vec![0; 100]].concat();
    let finished = against_blocks(&[keys(0x7f00_0000_0000), report]);
    assert!(!finished.success && finished.stderr.contains("a report instead of keys"), "{finished:?}");
    assert!(on_idle(finished.took) < Duration::from_secs(8), "{finished:?}");
}

/// Runs our server of `ib_write_bw` against a program that sends these blocks after release, geometry and
/// path MTU.
fn serve_blocks(options: &[&str], blocks: &[Vec<u8>]) -> (Finished, TcpStream) {
    let server = own_address();
    let mut command = roce();
    command.args(["perf", "write", "bw", "-n", "50", "-d", &format!("udp:{server}")]).args(options);
    let mut process = Running::start(&mut command);
    process.wait_for_line("waiting on");
    let mut stream = TcpStream::connect((server, 18_515)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let opening = [&b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"[..], b"\0\0\x10\0", b"\0\0\0\x40", b"3\0"];
    for block in opening.into_iter().chain(blocks.iter().map(Vec::as_slice)) {
        stream.write_all(block).unwrap();
        stream.read_exact(&mut vec![0; block.len()]).unwrap();
    }
    (process.finish(60), stream)
}

/// Regression: `ib_write_bw --reversed` reports an uninitialized value of 140,737,416,798,388 bytes, and our
/// side exited with 0.
#[test]
fn a_report_that_was_never_measured_is_refused() {
    let mut blocks = vec![keys(0x7f00_0000_0000); 4];
    blocks.extend([140_737_416_798_388_u64, 50, 0, 0, 0].map(|number| number.to_be_bytes().to_vec()));
    let (finished, _stream) = serve_blocks(&[], &blocks);
    assert!(!finished.success, "{finished:?}");
    assert!(
        finished.stderr.contains("140737416798388 bytes, which this side does not measure"),
        "{finished:?}"
    );
    assert!(!finished.stdout.contains("140737416798388"), "{finished:?}");
}

#[test]
fn a_warning_names_the_options_when_an_original_does_nothing_for_a_second() {
    // The original keeps its connection and sends no more blocks.
    let (finished, _stream) = serve_blocks(&["--patience", "3"], &vec![keys(0x7f00_0000_0000); 3]);
    assert!(!finished.success && finished.stderr.contains("received nothing within 3 s"), "{finished:?}");
    assert!(finished.stderr.contains("the other side has sent nothing for a second"), "{finished:?}");
}
