//! `roce ping`, `roce blast` and `roce devices` as users run them, in two processes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, free_v6_port, on_idle, own_address, roce, run, skip_unless};
use serde_json::Value;

/// A server that is waiting.
struct Server {
    address: Ipv4Addr,
    running: Running,
}

impl Server {
    #[track_caller]
    fn start(tool: &str, more: &[&str]) -> Self {
        Self::on(own_address(), tool, more)
    }

    #[track_caller]
    fn on(address: Ipv4Addr, tool: &str, more: &[&str]) -> Self {
        let mut command = roce();
        command.args([tool, "--device", &format!("udp:{address}")]).args(more);
        let mut running = Running::start(&mut command);
        let line = running.wait_for_line("waiting on");
        assert!(line.contains(&format!("{address}, TCP port")), "{line}");
        Self { address, running }
    }

    /// Runs a client until it ends.
    #[track_caller]
    fn client(&self, tool: &str, more: &[&str]) -> Finished {
        self.client_start(tool, more).finish(60)
    }

    #[track_caller]
    fn client_start(&self, tool: &str, more: &[&str]) -> Running {
        let (server, device) = (self.address.to_string(), format!("udp:{}", own_address()));
        Running::start(roce().args([tool, &server, "--device", &device]).args(more))
    }

    /// Waits until a client has started to measure.
    #[track_caller]
    fn until_it_receives(&self) {
        let address = self.address.to_string();
        let end = Instant::now() + Duration::from_secs(20);
        let receives = || {
            let all: Value = serde_json::from_str(&run(&["stat", "--all", "--json"]).stdout).ok()?;
            let own =
                all["processes"].as_array()?.iter().find(|one| one["addresses"][0] == address.as_str())?;
            own["counters"]["rdma_rx_packets"].as_u64().filter(|count| *count > 0)
        };
        while receives().is_none() {
            assert!(Instant::now() < end, "nothing arrives at {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a client and returns its rows.
    #[track_caller]
    fn rows(&self, tool: &str, more: &[&str]) -> Vec<Value> {
        // Eight times 268 ms, because a process may not run for a while on a busy machine.
        let patient = ["--json", "--timeout", "16"];
        let finished = self.client(tool, &[&patient[..], more].concat());
        assert!(finished.success, "{tool} {more:?}: {}", finished.stderr);
        check_document(&finished.stdout)
    }
}

const ROW: [&str; 8] = [
    "size",
    "iterations",
    "elapsed_seconds",
    "bits_per_second",
    "messages_per_second",
    "one_way_seconds",
    "client",
    "server",
];
const SIDE: [&str; 4] = ["cpu", "retransmitted_packets", "timeouts", "rnr_naks"];

/// Checks the output of `--json`; returns its rows.
#[track_caller]
fn check_document(text: &str) -> Vec<Value> {
    let document: Value = serde_json::from_str(text).expect("JSON and nothing else");
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(document["device"], "udp");
    let sizes = document["plan"]["sizes"].as_array().expect("sizes").clone();
    let rows = document["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), sizes.len());
    for (row, size) in rows.iter().zip(sizes) {
        for key in ROW {
            assert!(!row[key].is_null(), "no {key} in {row}");
        }
        for side in ["client", "server"] {
            for key in SIDE {
                assert!(!row[side][key].is_null(), "no {side}.{key} in {row}");
            }
        }
        assert_eq!(row["size"], size);
        assert_eq!(row["iterations"], document["plan"]["iterations"]);
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("elapsed_seconds") > 0.0 && number("messages_per_second") > 0.0, "{row}");
        // The three rates are consistent.
        let bits = number("messages_per_second") * number("size") * 8.0;
        assert!((bits - number("bits_per_second")).abs() <= 1e-6 * bits, "{row}");
        let percentiles = row.get("percentiles_seconds").map(|values| {
            values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(percentiles.is_some(), document["plan"]["tool"] == "ping");
        if let Some(values) = percentiles {
            assert!(values.len() == 4 && values.is_sorted() && values[0] > 0.0, "{values:?}");
            assert!(
                values[0] <= number("one_way_seconds") && number("one_way_seconds") <= values[3],
                "{row}"
            );
        } else {
            let one_way = number("elapsed_seconds") / number("iterations");
            assert!((one_way - number("one_way_seconds")).abs() < 1e-6 * one_way, "{row}");
        }
    }
    rows
}

#[test]
fn a_client_that_gives_up_is_not_taken_for_wrong_contents() {
    let mut server = Server::start("blast", &[]);
    let fails = ["--op", "write", "-n", "50", "--timeout", "8", "--fault", "drop=100%"];
    let finished = server.client("blast", &fails);
    assert!(!finished.success && finished.stderr.contains("RETRY_EXC_ERR"), "{}", finished.stderr);
    // The causes follow, with the address of the peer.
    let next = format!("roce doctor {}", server.address);
    assert!(finished.stderr.contains("likely causes") && finished.stderr.contains(&next), "{finished:?}");
    let line = server.running.wait_for_line("RETRY_EXC_ERR");
    assert!(!line.contains("is wrong"), "{line}");
    // The client names the queue pair that did not answer, and the server repeats it.
    let remote = server.address;
    for text in [&finished.stderr, &line] {
        assert!(text.contains(" at 127.") && text.contains(" towards queue pair "), "{text}");
        assert!(text.contains(&format!(" at {remote} ended with RETRY_EXC_ERR")), "{text}");
    }
}

#[test]
fn ping_by_every_operation_in_every_way() {
    let server = Server::start("ping", &[]);
    for op in ["send", "write", "write-imm"] {
        for more in [
            &[][..],
            &["--inline", "--size", "64"],
            &["--completion", "event"],
            &["--post", "single"],
            &["--signal", "periodic", "--buffers", "8"],
            &["--sizes", "1..300", "--mtu", "256"],
        ] {
            let rows = server.rows("ping", &[&["--op", op, "-n", "60"], more].concat());
            assert_eq!(rows.len(), if more.contains(&"--sizes") { 9 } else { 1 });
        }
    }
}

/// The sizes include those for which the numbers at both ends of a message overlap, and messages of several
/// packets.
#[test]
fn ping_by_writes_that_the_other_side_finds_in_its_memory() {
    let server = Server::start("ping", &[]);
    let memory = ["--op", "write", "--completion", "memory", "-n", "300"];
    for more in [
        &["--sizes", "1..300", "--mtu", "256"][..],
        &["--size", "9", "--size", "15", "--size", "16", "--size", "17", "--size", "5K"],
        &["--inline", "--size", "1", "--size", "12", "--size", "64"],
        &["--signal", "periodic", "--buffers", "8", "--fault", "drop=2%", "--seed", "1"],
    ] {
        server.rows("ping", &[&memory[..], more].concat());
    }
}

#[test]
fn blast_by_every_operation_in_every_way() {
    let server = Server::start("blast", &[]);
    for op in ["send", "write", "write-imm", "read"] {
        for more in [
            &[][..],
            &["--inline", "--size", "512"],
            &["--completion", "event", "--size", "3000"],
            &["--post", "single", "--size", "1"],
            &["--signal", "periodic", "--buffers", "7", "--size", "5K"],
            &["--sizes", "1..5000", "--mtu", "512"],
            &["--buffers", "1", "--size", "100"],
            &["--size", "0"],
            &["--size", "1M", "--size", "17"],
        ] {
            if op == "read" && more.contains(&"--inline") {
                continue;
            }
            let rows = server.rows("blast", &[&["--op", op, "-n", "50"], more].concat());
            let expected = if more.contains(&"--sizes") { 13 } else { more.len().max(2) / 2 };
            assert!(rows.len() == expected || !more.contains(&"--size") || more.len() > 2, "{rows:?}");
        }
    }
}

#[test]
fn the_tables_for_people_have_a_line_for_each_size() {
    for (tool, line) in [("ping", "ping by send"), ("blast", "blast by send")] {
        let server = Server::start(tool, &["--once"]);
        let finished = server.client(tool, &["--sizes", "64..256", "-n", "50"]);
        assert!(finished.success, "{}", finished.stderr);
        assert!(finished.stdout.starts_with(line), "{}", finished.stdout);
        let sizes: Vec<&str> =
            finished.stdout.lines().skip(3).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(sizes, ["64", "128", "256"], "{}", finished.stdout);
        let served = server.running.finish(60);
        assert!(served.success && served.stdout.contains("served"), "{served:?}");
    }
}

#[test]
fn over_ipv6() {
    let (Some(a), Some(b)) = (free_v6_port(), free_v6_port()) else {
        skip_unless(false, "there is no ::1");
        return;
    };
    let tcp = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().port().to_string();
    let device = |own, peer| format!("udp:[::1],port={own},peer_port={peer}");
    let mut server =
        Running::start(roce().args(["blast", "--once", "--port", &tcp, "--device", &device(a, b)]));
    server.wait_for_line("waiting on ::1");
    let client = ["blast", "::1", "--port", &tcp, "--device", &device(b, a), "-n", "100", "--json"];
    let finished = run(&client);
    assert!(finished.success, "{}", finished.stderr);
    check_document(&finished.stdout);
    assert!(server.finish(60).success);
}

#[test]
fn under_loss_everything_arrives_and_the_capture_shows_it() {
    let folder = tempfile::tempdir().unwrap();
    for (tool, op) in [("blast", "write"), ("blast", "read"), ("blast", "send"), ("ping", "send")] {
        let capture = folder.path().join(format!("{tool}-{op}.pcapng"));
        let capture = capture.to_str().unwrap();
        let server = Server::start(tool, &["--fault", "drop=1%"]);
        let more = ["--op", op, "-n", "300", "--size", "4000", "--mtu", "1024", "--pcap", capture];
        let rows =
            server.rows(tool, &[&["--fault", "drop=1%,reorder=1%", "--seed", "7"][..], &more].concat());
        let resent = |side: &str| rows[0][side]["retransmitted_packets"].as_u64().unwrap();
        assert!(resent("client") + resent("server") > 0, "{tool} {op}: {rows:?}");
        let bad = run(&["dissect", "--bad-icrc", capture]);
        assert!(bad.success && bad.stdout.is_empty(), "{bad:?}");
        let packets: usize = bad.stderr.split(' ').next().unwrap().parse().unwrap();
        assert!(packets > 300, "{}", bad.stderr);
        assert!(bad.stderr.contains(" 0 bad"), "{}", bad.stderr);
    }
}

/// Selective repeat reports early packets in acknowledgements; go-back-N never sends these.
#[test]
fn what_is_sent_again_after_a_loss_is_a_choice() {
    let folder = tempfile::tempdir().unwrap();
    // Longer timeouts than the default, because a process may not be scheduled for some time.
    for (recovery, is_selective) in
        [("go-back-n", false), ("selective-repeat:cap=64,rto_low=200000,rto_high=200000", true)]
    {
        let capture = folder.path().join(format!("{is_selective}.pcapng"));
        let capture = capture.to_str().unwrap();
        let server = Server::start("blast", &["--recovery", recovery]);
        let fault = ["--recovery", recovery, "--fault", "drop=1%", "--seed", "7", "--pcap", capture];
        let more = ["--op", "write", "-n", "300", "--size", "16000", "--mtu", "1024"];
        let rows = server.rows("blast", &[&fault[..], &more].concat());
        assert!(rows[0]["client"]["retransmitted_packets"].as_u64().unwrap() > 0, "{rows:?}");
        let answers = run(&["dissect", "--json", "--opcode", "ACKNOWLEDGE", capture]);
        let early = answers.stdout.lines().filter(|line| {
            let packet: Value = serde_json::from_str(line).unwrap();
            packet["infiniband.aeth.syndrome"] == 0x40
        });
        assert_eq!(early.count() > 0, is_selective, "{recovery}");
    }
}

/// A queue pair with several paths uses as many source ports, and its peer answers from as many.
#[test]
fn packets_take_several_source_ports() {
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("paths.pcapng");
    let capture = capture.to_str().unwrap();
    let own = [
        "--paths",
        "recycle:paths=4",
        "--recovery",
        "selective-repeat:cap=64,reorder=64,rto_low=200000,rto_high=200000",
    ];
    let server = Server::start("blast", &own);
    let more = ["--op", "write", "-n", "300", "--size", "16000", "--mtu", "1024", "--pcap", capture];
    server.rows("blast", &[&own[..], &more].concat());
    for (opcode, least) in [("RDMA_WRITE_MIDDLE", 1_000), ("ACKNOWLEDGE", 50)] {
        let packets = run(&["dissect", "--json", "--opcode", opcode, capture]);
        let ports = packets.stdout.lines().map(|line| {
            let packet: Value = serde_json::from_str(line).unwrap();
            packet["udp.srcport"].as_u64().unwrap()
        });
        let ports: Vec<u64> = ports.collect();
        assert!(ports.len() >= least, "{} of {opcode}", ports.len());
        let different: BTreeSet<u64> = ports.iter().copied().collect();
        assert!((3..=4).contains(&different.len()), "{opcode}: {different:?}");
    }
}

#[test]
fn a_seed_gives_the_same_queue_pair_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start("blast", &[]);
    let first_packet = |name: &str, seed: &[&str]| -> Value {
        let capture = folder.path().join(name);
        let capture = capture.to_str().unwrap();
        server.rows("blast", &[&["-n", "4", "--op", "write", "--pcap", capture][..], seed].concat());
        let answers = run(&["dissect", "--json", "--opcode", "ACKNOWLEDGE", "--limit", "1", capture]);
        let packet: Value = serde_json::from_str(answers.stdout.lines().next().unwrap()).unwrap();
        [packet["infiniband.bth.destqp"].clone(), packet["infiniband.bth.psn"].clone()].into()
    };
    let qp = |value: &Value| value[0].clone();
    let first = first_packet("a.pcapng", &["--seed", "5"]);
    assert_eq!(qp(&first), qp(&first_packet("b.pcapng", &["--seed", "5"])));
    assert_ne!(qp(&first), qp(&first_packet("c.pcapng", &["--seed", "6"])));
}

/// Checks that the command fails and that its error contains all parts.
#[track_caller]
fn refused(args: &[&str], parts: &[&str]) {
    let finished = run(args);
    assert!(matches!(finished.code, Some(1 | 2)), "{args:?}: {:?} {}", finished.code, finished.stdout);
    for part in parts {
        assert!(finished.stderr.contains(part), "{args:?}: `{part}` is missing: {}", finished.stderr);
    }
    assert_eq!(finished.stdout, "", "{args:?}");
    assert!(on_idle(finished.took) < Duration::from_secs(20), "{args:?} took {:?}", finished.took);
}

#[test]
fn impossible_options_are_named() {
    let table: &[(&str, &[&str], &[&str])] = &[
        ("ping", &["--op", "read"], &["ping does not support --op read", "--op write is"]),
        ("ping", &["--completion", "memory"], &["--completion memory is possible for ping with --op write"]),
        ("ping", &["--completion", "memory", "--op", "write", "--size", "0"], &["0 bytes"]),
        ("blast", &["--op", "fly"], &["'fly'", "--op", "write-imm"]),
        ("blast", &["--inline", "--op", "read"], &["--inline with --op read"]),
        ("blast", &["--inline", "--size", "513"], &["--inline with a message of 513", "at most 512"]),
        ("blast", &["--inline"], &["--inline with a message of 65536"]),
        ("ping", &["--inline", "--sizes", "1..1K"], &["--inline with a message of 1024"]),
        ("blast", &["--size", "2000M"], &["2097152000 bytes", "1073741824"]),
        ("blast", &["--size", "99999999999999999999"], &["--size", "99999999999999999999"]),
        ("blast", &["--size", "18446744073709551615K"], &["--size", "is too large"]),
        ("blast", &["--size", "1X"], &["--size", "\"1X\" is not a size", "64K, 400KB"]),
        ("blast", &["--size", "-1"], &["-1"]),
        ("blast", &["--size", "K"], &["\"K\" is not a size"]),
        ("blast", &["--size", "1", "--sizes", "1..2"], &["--size", "--sizes", "cannot be used"]),
        ("blast", &["--sizes", "0..8"], &["--sizes", "at least 1"]),
        ("blast", &["--sizes", "9..8"], &["9..8 is an empty range"]),
        ("blast", &["--sizes", "9"], &["--sizes", "such as 1..1048576"]),
        ("blast", &["--sizes", "1..x"], &["\"x\" is not a size"]),
        ("blast", &["-n", "0"], &["--iterations is 0"]),
        ("ping", &["-n", "many"], &["many", "--iterations"]),
        ("blast", &["--buffers", "0"], &["--buffers is 0", "1 to 16384"]),
        ("blast", &["--buffers", "20000"], &["--buffers is 20000"]),
        (
            "blast",
            &["--buffers", "10000", "--size", "1M"],
            &["limit is 268435456", "fewer --buffers", "--max-memory"],
        ),
        ("blast", &["--mtu", "1500"], &["--mtu", "1500", "1024, 2048 or 4096"]),
        ("blast", &["--timeout", "0"], &["--timeout", "1..=31"]),
        ("blast", &["--timeout", "32"], &["--timeout", "1..=31"]),
        ("blast", &["--window", "0"], &["--window"]),
        ("blast", &["--window", "8388608"], &["--window", "8388607"]),
        ("blast", &["--port", "65536"], &["--port", "65536"]),
        ("blast", &["--completion", "hope"], &["--completion", "poll, event"]),
        ("blast", &["--post", "x"], &["--post", "single, list"]),
        ("blast", &["--signal", "x"], &["--signal", "full, periodic"]),
        ("blast", &["--fault", "drop=lots"], &["--fault", "drop=lots"]),
        ("blast", &["--fault", "explode=1%"], &["--fault", "explode"]),
        ("blast", &["--congestion", "dcqn"], &["no congestion control \"dcqn\"", "none, fixed, dcqcn"]),
        ("blast", &["--congestion", "dcqcn:rpg_gd=16"], &["rpg_gd is \"16\" and must be 0 to 15"]),
        ("blast", &["--recovery", "luck"], &["no loss recovery \"luck\"", "go-back-n and selective-repeat"]),
        ("blast", &["--recovery", "selective-repeat:cap=0"], &["cap is \"0\" and must be 1 to 4096 packets"]),
        ("blast", &["--paths", "ecmp"], &["no policy for paths \"ecmp\"", "one, round-robin"]),
        ("blast", &["--paths", "reps:cache=0"], &["cache is \"0\" and must be 1 to 1024"]),
        ("blast", &["--line-rate", "fast"], &["\"fast\" is not a rate", "for example 10Gbps"]),
        ("blast", &["--seed", "x"], &["--seed"]),
        ("blast", &["--nonsense"], &["--nonsense"]),
    ];
    for (tool, options, parts) in table {
        // No server runs, and the client must not try to connect.
        refused(&[&[*tool, "127.0.0.1"], *options].concat(), parts);
    }
}

#[test]
fn wrong_devices_are_named() {
    let taken = own_address();
    let _owner = UdpSocket::bind((taken, 4791)).unwrap();
    let taken = format!("udp:{taken}");
    for (spec, parts) in [
        ("udp:203.0.113.77", &["203.0.113.77", "it has 127.0.0.1"][..]),
        ("udp:0.0.0.0", &["stands for every address", "choose one"]),
        ("udp:localhost", &["`localhost`", "expected an address"]),
        ("udp:127.0.0.1,mtu=9000", &["`mtu=9000`", "expected port=NUMBER"]),
        ("udp:127.0.0.1,port=99999", &["`port=99999`", "0 to 65535"]),
        ("xdp:nosuch0", &["there is no interface `nosuch0`", "this machine has"]),
        ("raw:nosuch0", &["there is no interface `nosuch0`", "this machine has"]),
        ("tap:roce0", &["expected an address behind the name", "ip=198.18.0.2/24"]),
        ("memory", &["exist only as a pair", "udp:127.0.0.2"]),
        ("", &["`` is not a kind of device", "roce devices"]),
        (&taken, &["UDP port 4791", "is taken", "use another address"]),
    ] {
        refused(&["blast", "127.0.0.1", "--device", spec], parts);
        refused(&["ping", "--device", spec], parts);
    }
    let nowhere = "/nonexistent/folder/x.pcapng";
    let device = format!("udp:{}", own_address());
    refused(
        &["blast", "127.0.0.1", "--device", &device, "--pcap", nowhere],
        &["cannot create the capture file", nowhere],
    );
}

#[test]
fn missing_servers_and_taken_ports_are_reported() {
    let device = format!("udp:{}", own_address());
    let nobody = own_address().to_string();
    let said = [nobody.as_str(), "refused", "check that the server runs there"];
    refused(&["blast", &nobody, "--device", &device], &said);
    refused(
        &["blast", "no-such-host.invalid", "--device", &device],
        &["cannot resolve no-such-host.invalid"],
    );
    refused(&["blast", "::1"], &["cannot both use [::1]", "127.0.0.1"]);

    let server = Server::start("blast", &[]);
    let spec = format!("udp:{}", server.address);
    refused(
        &["blast", "--device", &format!("{spec},share=off")],
        &["UDP port 4791", "share=off requests it exclusively"],
    );
    // Devices share the UDP port, but only one server can listen on the TCP port.
    let said = [&format!("cannot listen on {} port 18520", server.address)[..], "choose another with --port"];
    refused(&["blast", "--device", &spec], &said);
    refused(&["blast", "--device", &format!("{spec},port=14791")], &said);
    // The first server still works.
    server.rows("blast", &["-n", "10"]);
}

#[test]
fn an_impossible_plan_is_rejected_with_a_reason() {
    let mut server = Server::start("blast", &[]);
    let mut stream = TcpStream::connect((server.address, 18_520)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let plan = serde_json::json!({
        "tool": "blast", "op": "send", "sizes": [8], "iterations": 1, "buffers": 1_000_000_000_u64, "inline": false,
        "completion": "poll", "post": "list", "signal": "full", "path_mtu": 1024, "timeout": 12,
    });
    let greeting = serde_json::json!({"roce": "ping` or `roce blast", "protocol": 2, "version": "0"});
    writeln!(stream, "{greeting}\n{plan}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("--buffers is 1000000000"), "{answer}");
    assert!(server.running.is_alive());
    server.running.wait_for_line("asked for a plan that cannot be carried out");
    server.rows("blast", &["-n", "10"]);
}

#[test]
fn invalid_tcp_clients_do_not_end_the_server() {
    let mut server = Server::start("ping", &[]);
    let connect = || TcpStream::connect((server.address, 18_520)).unwrap();
    let endless = vec![b'x'; 3 << 20];
    for (name, bytes) in [
        ("nothing", &b""[..]),
        ("an empty line", b"\n"),
        ("another protocol", b"GET / HTTP/1.1\r\n\r\n"),
        ("no text", b"\xff\xfe\x00\x80\n"),
        ("another version", b"{\"tool\":\"ping\",\"op\":\"send\",\"flavour\":7}\n"),
        ("JSON of another kind", b"[1,2,3]\n"),
        ("half a line", b"{\"tool\":"),
        ("a line without an end", &endless),
    ] {
        let mut stream = connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
        drop(stream);
        assert!(server.running.is_alive(), "{name} ended the server");
    }
    // One client closes the connection after the plan, during a measurement; another client is killed.
    let mut client = server.client_start("ping", &["-n", "100000000", "--json"]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(client.is_alive());
    drop(client);
    let rows = server.rows("ping", &["-n", "10"]);
    assert_eq!(rows.len(), 1);
    assert!(server.running.is_alive());
}

#[test]
fn a_client_whose_server_dies_ends_too() {
    for tool in ["ping", "blast"] {
        let server = Server::start(tool, &[]);
        let mut client = server.client_start(tool, &["-n", "1000000000", "--json"]);
        server.until_it_receives();
        assert!(client.is_alive());
        drop(server);
        let finished = client.finish(45);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        // The error contains the cause and a remedy. The cause depends on what the client detects first: a
        // missing acknowledgement, a missing answer, or the end of the TCP connection.
        let advised = [
            ("RETRY_EXC_ERR, AckTimeout", "UDP port 4791"),
            ("no message or acknowledgement was accepted for 30 s", "check that the other side still runs"),
            ("127.", "the messages there may state the reason"),
        ];
        let says = |(what, advice): &(&str, &str)| {
            finished.stderr.split_once(what).is_some_and(|(_, rest)| rest.contains(advice))
        };
        assert!(advised.iter().any(says), "{}", finished.stderr);
    }
}

/// ROCE_LOG logs events with their spans, and each span with its times when it ends.
#[test]
fn a_log_with_spans_is_written_when_it_is_asked_for() {
    let server = Server::start("ping", &["--once"]);
    let (to, device) = (server.address.to_string(), format!("udp:{}", own_address()));
    let args = ["ping", &to, "--device", &device, "-n", "10"];
    let finished = Running::start(roce().env("ROCE_LOG", "debug").args(args)).finish(60);
    assert!(finished.success, "{}", finished.stderr);
    for part in ["session{side=\"client\"", "exchange{", "queue_pair{", "modify{to=\"RTS\"}", "time.busy="] {
        assert!(finished.stderr.contains(part), "`{part}` is missing: {}", finished.stderr);
    }
    assert!(!finished.stderr.contains('\x1b'), "colors are for terminals: {}", finished.stderr);
    assert!(!finished.stdout.contains("queue_pair"), "{}", finished.stdout);
    let wrong = Running::start(roce().env("ROCE_LOG", "roce=loud").arg("devices")).finish(60);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(
        wrong.stderr.contains("ROCE_LOG=roce=loud is not a valid filter; write a level"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn devices_lists_what_there_is() {
    let plain = run(&["devices"]);
    assert!(plain.success, "{}", plain.stderr);
    let verbose = run(&["devices", "-v"]);
    for part in ["udp", "memory", "tap", "xdp", "raw", "pnet", "hca_id:", "PORT_ACTIVE", "active_mtu:"] {
        assert!(plain.stdout.contains(part), "{part}: {}", plain.stdout);
        assert!(verbose.stdout.contains(part), "{part}: {}", verbose.stdout);
    }
    for part in ["max_qp:", "max_mr_size:", "GID[  0]:", "::ffff:127.0.0.1", "RoCE v2", "netdev:"] {
        assert!(verbose.stdout.contains(part), "{part}: {}", verbose.stdout);
        assert!(!plain.stdout.contains(part), "{part}: {}", plain.stdout);
    }
    for args in [&["devices", "--json"][..], &["devices", "--json", "-v"]] {
        let finished = run(args);
        let document: Value = serde_json::from_str(&finished.stdout).unwrap();
        let kinds = document["kinds"].as_array().unwrap();
        assert_eq!(kinds.len(), 6);
        let udp = &kinds[0];
        assert_eq!((&udp["device"], &udp["usable"]), (&"udp".into(), &true.into()));
        for device in udp["devices"].as_array().unwrap() {
            let id = device["device_spec"].as_str().unwrap();
            let address = id.strip_prefix("udp:").unwrap().trim_matches(['[', ']']);
            // A link-local address is followed by its zone.
            let address = address.split('%').next().unwrap();
            address.parse::<IpAddr>().unwrap();
            assert_eq!(device["limits"].is_object(), args.contains(&"-v"));
        }
    }
}

#[test]
fn no_arguments_and_help_print_help() {
    let help = run(&["--help"]);
    assert!(help.success);
    for command in ["demo", "devices", "ping", "blast", "dissect", "explain"] {
        assert!(help.stdout.contains(command), "{}", help.stdout);
        let finished = run(&[command, "--help"]);
        assert!(finished.success && finished.stdout.contains("Usage:"), "{finished:?}");
    }
    let nothing = run(&[]);
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.stderr.contains("Usage:"), "{}", nothing.stderr);
    let wrong = run(&["bang"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("bang"), "{wrong:?}");
}

#[test]
fn a_silent_tcp_client_blocks_others_only_briefly() {
    let mut server = Server::start("blast", &[]);
    let silent = TcpStream::connect((server.address, 18_520)).unwrap();
    let finished = server.client("blast", &["-n", "10", "--json"]);
    assert!(finished.success, "{}", finished.stderr);
    assert!(on_idle(finished.took) < Duration::from_secs(15), "it took {:?}", finished.took);
    assert!(server.running.is_alive());
    drop(silent);
}

/// Regression: `roce sim` alone and misspelled names gave no suggestions, and escape sequences of a scenario
/// reached the terminal.
#[test]
fn first_contact_with_scenarios_and_faults() {
    let listed = run(&["sim"]);
    assert!(listed.success, "{}", listed.stderr);
    assert!(listed.stdout.lines().count() > 20 && listed.stdout.contains("\n  incast "), "{}", listed.stdout);
    refused(&["sim", "two-to-on"], &["cannot read the scenario two-to-on", "did you mean two-to-one?"]);
    refused(&["sim", "two-to-one", "--set", "host.congestoin=hpcc"], &["did you mean `congestion`?"]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("evil.toml");
    std::fs::write(&path, "\"\\u001b[2J\" = 1\n").unwrap();
    let finished = run(&["sim", path.to_str().unwrap()]);
    assert!(!finished.success && !finished.stderr.contains('\x1b'), "{:?}", finished.stderr);
    let finished = run(&["blast", "127.0.0.1", "--fault", "drop=200%"]);
    assert!(finished.stderr.contains("drop=`200%`: expected at most 100%"), "{}", finished.stderr);
}
