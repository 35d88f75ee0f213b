//! `roce perf` on both sides, in two processes. The interop tests run it against the original programs.

use crate::common;
use crate::common::{Finished, Running, own_address, roce, within};
use serde_json::Value;

/// Runs both sides on their own addresses; returns the output of each, the client first.
fn pair(test: &[&str], options: &[&str], of_client: &[&str]) -> [Finished; 2] {
    let (server, client) = (own_address(), own_address());
    let device = |address| format!("udp:{address}");
    let mut server_command = roce();
    server_command.arg("perf").args(test).args(["-d", &device(server)]).args(options);
    let server_process = Running::start(&mut server_command);
    let mut client_command = roce();
    let (device, server) = (device(client), server.to_string());
    client_command.arg("perf").args(test).args([&server, "--device", &device]).args(options).args(of_client);
    let client = Running::start(&mut client_command).finish(100);
    [client, server_process.finish(100)]
}

/// Runs both sides, which must succeed; returns their documents.
#[track_caller]
fn documents(test: &[&str], options: &[&str], of_client: &[&str]) -> [Value; 2] {
    let options = [options, &["--json", "--patience", "20", "-u", "16"]].concat();
    pair(test, &options, of_client).map(|finished| {
        assert!(finished.success, "{test:?} {options:?}: {finished:?}");
        serde_json::from_str(&finished.stdout).expect("JSON")
    })
}

/// Two servers on one address and two clients on another: four processes, each with its own queue pairs.
#[test]
fn several_processes_share_an_address() {
    within(120, || {
        let (server, client) = (own_address(), own_address());
        for connected in [&[][..], &["-R"]] {
            let start = |port: &str, of_side: &[&str]| {
                let options = ["-n", "2000", "-s", "65536", "-p", port, "--json", "--patience", "20"];
                let mut command = roce();
                Running::start(
                    command.args(["perf", "write", "bw"]).args(options).args(connected).args(of_side),
                )
            };
            let [server_device, client_device] = [server, client].map(|address| format!("udp:{address}"));
            let ports = ["18600", "18601"];
            let mut servers = ports.map(|port| start(port, &["-d", &server_device]));
            for server in &mut servers {
                // The server has joined the processes on its address before the first client arrives.
                server.wait_for_output(std::time::Duration::from_millis(300));
            }
            let clients = ports.map(|port| start(port, &[&server.to_string(), "-d", &client_device]));
            for process in clients.into_iter().chain(servers) {
                let finished = process.finish(60);
                assert!(finished.success, "{connected:?}: {finished:?}");
                let document: Value = serde_json::from_str(&finished.stdout).expect("JSON");
                assert_eq!(document["rows"][0]["bandwidth"]["messages"], 2000, "{connected:?}");
            }
        }
    });
}

const VERBS: [&str; 4] = ["write", "send", "read", "atomic"];

#[test]
fn all_eight_programs() {
    for verb in VERBS {
        let [client, server] = documents(&[verb, "bw"], &["-n", "150"], &[]);
        assert_eq!(client["program"], format!("ib_{verb}_bw"));
        assert_eq!((&client["role"], &server["role"]), (&"client".into(), &"server".into()));
        for document in [client, server] {
            assert_eq!(document["peer_is_roce"], true);
            let row = &document["rows"][0];
            assert_eq!(row["size"], if verb == "atomic" { 8 } else { 65_536 });
            assert_eq!(row["bandwidth"]["messages"], 150);
            let average = &row["bandwidth"]["average"];
            assert!(average["messages_per_second"].as_f64().unwrap() > 1.0, "{row}");
        }
        let [client, _] = documents(&[verb, "lat"], &["-n", "150"], &[]);
        let times = &client["rows"][0]["latency"]["distribution"];
        let time = |name: &str| times[name].as_f64().unwrap();
        let sorted = [
            "least_seconds",
            "typical_seconds",
            "percentile_99_seconds",
            "percentile_99_9_seconds",
            "most_seconds",
        ]
        .map(time);
        assert!(sorted.is_sorted() && sorted[0] > 0.0, "{times}");
    }
}

/// With one outstanding request in total, twenty queue pairs take turns; each sends all of its messages.
#[test]
fn requests_in_flight_are_shared_by_all_queue_pairs() {
    for verb in VERBS {
        for in_flight in ["1", "7", "1000"] {
            let options = ["-q", "20", "-t", "4", "-n", "50", "--in-flight", in_flight];
            let [client, _] = documents(&[verb, "bw"], &options, &[]);
            assert_eq!(client["in_flight"], in_flight.parse::<u64>().unwrap());
            assert_eq!(client["cq_mod"], 1);
            assert_eq!(client["rows"][0]["bandwidth"]["messages"], 1000, "{verb}, {in_flight} in flight");
        }
    }
}

#[test]
fn all_sizes() {
    for (test, options, count) in [
        (["write", "bw"], &["-a", "-n", "5"][..], 23),
        (["send", "bw"], &["-a", "-n", "5", "-b"], 23),
        (["read", "bw"], &["-a", "-n", "5"], 23),
        (["write", "lat"], &["-a", "-n", "5"], 23),
        (["send", "lat"], &["-a", "-n", "5"], 23),
        (["read", "lat"], &["-a", "-n", "5"], 23),
        (["send", "lat"], &["-a", "-n", "20", "-c", "UD", "-m", "512"], 9),
    ] {
        let [client, _] = documents(&test, options, &[]);
        let rows = client["rows"].as_array().unwrap();
        assert_eq!(rows.len(), count, "{test:?} {options:?}");
        assert_eq!(rows[count - 1]["size"], 1_u64 << count);
    }
}

#[test]
fn both_ways_on_four_queue_pairs() {
    for verb in VERBS {
        let [client, server] = documents(&[verb, "bw"], &["-b", "-q", "4", "-n", "60", "-Q", "7"], &[]);
        for document in [client, server] {
            assert_eq!(document["rows"][0]["bandwidth"]["messages"], 240, "{verb}");
        }
    }
}

#[test]
fn for_a_second() {
    for verb in VERBS {
        for test in ["bw", "lat"] {
            let [client, _] = documents(&[verb, test], &["-D", "1"], &[]);
            let row = &client["rows"][0];
            let messages = if test == "bw" { &row["bandwidth"] } else { &row["latency"] };
            assert!(messages["messages"].as_u64().unwrap() > 0, "{row}");
        }
    }
}

#[test]
fn an_operation_that_is_under_way_when_time_is_up_is_finished() {
    for verb in ["read", "atomic"] {
        // The fourth message begins after 0.9 s and arrives after 1.05 s. The timeout is longer than a round
        // trip.
        let options = ["-D", "1", "--fault", "delay=150ms"];
        let [client, _] = documents(&[verb, "lat"], &options, &[]);
        assert!(client["rows"][0]["latency"]["messages"].as_u64().unwrap() > 0, "{client}");
    }
}

#[test]
fn unreliable_transports() {
    for (test, connection, size) in [
        (["send", "bw"], "UC", "3000"),
        (["write", "bw"], "UC", "3000"),
        (["send", "bw"], "UD", "1000"),
        (["send", "lat"], "UC", "3000"),
        (["send", "lat"], "UD", "3"),
        (["write", "lat"], "uc", "3000"),
    ] {
        let options = ["-c", connection, "-s", size, "-n", "100", "-t", "8", "-I", "16"];
        let [client, _] = documents(&test, &options, &[]);
        assert_eq!(client["connection"], connection.to_uppercase());
    }
}

#[test]
fn faults_change_nothing_but_the_time() {
    for verb in VERBS {
        for test in ["bw", "lat"] {
            let size = if verb == "atomic" { "8" } else { "9000" };
            let options = ["-s", size, "-n", "400", "--fault", "drop=1%,reorder=1%,dup=1%", "--seed", "7"];
            let [client, server] = documents(&[verb, test], &options, &[]);
            let again = |document: &Value| {
                let rows = document["rows"].as_array().unwrap();
                rows.iter().map(|row| row["retransmitted_packets"].as_u64().unwrap()).sum::<u64>()
            };
            assert!(again(&client) + again(&server) > 0, "{verb} {test}: {client} {server}");
        }
    }
}

#[test]
fn messages_lost_without_retransmission_are_counted() {
    let options = ["-c", "UD", "-s", "64", "-n", "500", "--patience", "3"];
    let [_, server] = pair(&["send", "bw"], &options, &["--fault", "drop=20%", "--seed", "7"]);
    assert!(!server.success, "{server:?}");
    let text = server.stderr;
    assert!(text.contains("of 500 messages") && !text.contains("500 of 500"), "{text}");
}

#[test]
fn connected_by_rdma_cm() {
    for verb in VERBS {
        for (test, options) in [
            ("bw", &["-n", "60"][..]),
            ("lat", &["-n", "60"]),
            ("bw", &["-n", "30", "-q", "4", "-b"]),
            ("bw", &["-D", "1"]),
        ] {
            let [client, server] = documents(&[verb, test], &[options, &["-R", "-m", "512"]].concat(), &[]);
            for document in [client, server] {
                assert_eq!((&document["rdma_cm"], &document["path_mtu"]), (&true.into(), &512.into()));
                assert_eq!(document["peer_is_roce"], true);
            }
        }
    }
    let [client, _] = documents(&["send", "bw"], &["-R", "-a", "-n", "5"], &[]);
    assert_eq!(client["rows"].as_array().unwrap().len(), 23);
}

#[test]
fn faults_do_not_harm_connections_of_rdma_cm() {
    for verb in VERBS {
        let size = if verb == "atomic" { "8" } else { "9000" };
        let faults = ["-n", "100", "-q", "3", "--fault", "drop=2%,reorder=1%,dup=1%", "--seed", "9"];
        documents(&[verb, "bw"], &[&["-R", "-s", size], &faults[..]].concat(), &[]);
    }
}

#[test]
fn a_server_without_rdma_cm_is_distinguished_from_no_server() {
    let (server, client) = (own_address(), own_address());
    let mut command = roce();
    let mut listening = Running::start(command.args(["perf", "send", "bw", "-d", &format!("udp:{server}")]));
    listening.wait_for_line("waiting on");
    let device = format!("udp:{client}");
    let finished = common::run(&["perf", "send", "bw", &server.to_string(), "-R", "-d", &device]);
    let text = &finished.stderr;
    assert!(!finished.success && text.contains("ib_send_bw runs there with -R"), "{finished:?}");
}

#[test]
fn the_table_is_that_of_the_originals() {
    let [client, server] = pair(&["write", "bw"], &["-n", "100", "--report_gbits", "-F", "-u", "16"], &[]);
    for finished in [&client, &server] {
        assert!(finished.success, "{finished:?}");
        for part in [
            "RDMA_Write BW Test",
            " Number of qps   : 1",
            " Connection type : RC",
            " CQ Moderation   : 1",
            " Data ex. method : Ethernet",
            " remote address: LID 0000 QPN 0x",
            " GID: 00:00:00:00:00:00:00:00:00:00:255:255:127:",
            "BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
            "\n 65536      100 ",
        ] {
            assert!(finished.stdout.contains(part), "`{part}` is missing: {}", finished.stdout);
        }
    }
    let [client, _] = pair(&["send", "lat"], &["-n", "100", "-U", "-u", "16"], &[]);
    for part in ["t_typical[usec]", "99% percentile[usec]", "#, usec\n1, ", "\n99, ", "\n 2       100 "] {
        assert!(client.stdout.contains(part), "`{part}` is missing: {}", client.stdout);
    }
}

#[test]
fn sides_with_different_options_are_reported() {
    let (server, client) = (own_address(), own_address());
    let mut command = roce();
    command.args(["perf", "send", "bw", "-s", "100", "-n", "50", "--patience", "3"]);
    let server_process = Running::start(command.args(["-d", &format!("udp:{server}")]));
    let device = format!("udp:{client}");
    let arguments =
        ["perf", "send", "bw", &server.to_string(), "-d", &device, "-s", "90", "-n", "50", "--patience", "3"];
    let client = common::run(&arguments);
    let server = server_process.finish(60);
    assert!(!client.success && !server.success, "{client:?} {server:?}");
    assert!(server.stderr.contains("this side has -s 100, the other side has -s 90"), "{server:?}");
}

#[test]
fn another_program_on_the_port_is_rejected_with_a_reason() {
    within(60, || {
        let server = own_address();
        let mut command = roce();
        command.args(["perf", "read", "lat", "--patience", "3", "-d", &format!("udp:{server}")]);
        let mut process = Running::start(&mut command);
        process.wait_for_line("waiting on");
        let mut stream = std::net::TcpStream::connect((server, 18_515)).unwrap();
        std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let finished = process.finish(30);
        assert!(!finished.success && finished.stderr.contains("not a release of perftest"), "{finished:?}");
    });
}

#[test]
fn impossible_plans_are_rejected_with_a_reason() {
    for (options, part) in [
        (&["read", "bw", "-c", "UC"][..], "UC supports neither READ nor atomics"),
        (&["write", "bw", "-c", "UD"], "UD supports only SEND"),
        (&["atomic", "bw", "-s", "16"], "atomic operations have 8 bytes"),
        (&["atomic", "lat", "-a"], "atomic operations have 8 bytes"),
        (&["send", "lat", "-q", "2"], "for bandwidth tests"),
        (&["send", "bw", "-s", "0"], "choose a size of 1 byte"),
        (&["send", "bw", "-n", "2"], "choose 5 to"),
        (&["send", "bw", "-D", "2", "-f", "1"], "more than two margins"),
        (&["send", "bw", "-a", "-D", "2"], "-a cannot be combined with -D"),
        (&["send", "bw", "-I", "513"], "at most 512 bytes"),
        (&["send", "bw", "-l", "3", "-n", "100"], "must be a multiple of the length of the list"),
        (&["send", "lat", "-l", "2"], "-l is for bandwidth tests"),
        (&["write", "lat", "-e"], "-e cannot be combined"),
        (&["send", "bw", "-R", "--reversed"], "leave out -R and -z"),
        (&["send", "lat", "--run_infinitely"], "--run_infinitely is for bandwidth tests"),
        (&["write", "bw", "-R", "-c", "UC"], "rdma_cm does not connect UC queue pairs"),
    ] {
        let address = format!("udp:{}", own_address());
        let finished = common::run(&[&["perf"], options, &["--device", &address]].concat());
        assert!(!finished.success && finished.stderr.contains(part), "{options:?}: {finished:?}");
    }
}
