//! Servers as users start them: without a device, on a cable, and with clients that are hostile or leave.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Finished, Running, TCP_ESTABLISHED, has_tcp_socket, on_idle, own_address, roce, run};
use roce_testing::Cable;
use serde_json::json;

/// Starts `roce` at one end of a cable.
fn start_at(end: &roce_testing::Namespace, args: &[&str]) -> Running {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    end.run(move || Running::start(roce().args(args)))
}

/// Each server and its client, without a device. ADDRESS is the address that the client calls.
const PAIRS: [(&str, &str); 6] = [
    ("ping --once", "ping ADDRESS -n 20"),
    ("blast --once", "blast ADDRESS -n 50"),
    ("doctor --once", "doctor ADDRESS"),
    ("limit --once", "limit ADDRESS -n 2000 --round-trips 20"),
    ("pingpong rc -n 20", "pingpong rc ADDRESS -n 20"),
    ("perf write bw -n 20", "perf write bw ADDRESS -n 20"),
];

/// Regression: these servers listened only on 127.0.0.1.
#[test]
fn servers_without_a_device_serve_the_address_that_a_client_calls() {
    let Some(cable) = Cable::new(4200) else { return };
    for (server, client) in PAIRS {
        for address in ["198.18.0.2", "2001:db8::2"] {
            let mut waiting = start_at(&cable.far, &server.split(' ').collect::<Vec<_>>());
            waiting.wait_for_line("waiting on");
            let client = client.replace("ADDRESS", address);
            let finished = start_at(&cable.near, &client.split(' ').collect::<Vec<_>>()).finish(60);
            assert!(finished.success, "roce {client}: {finished:?}");
            let served = waiting.finish(60);
            assert!(served.success, "roce {server}, called by roce {client}: {served:?}");
        }
    }
}

/// If a script starts both at the same time, the client may be first.
#[test]
fn a_client_waits_for_a_server_that_is_started_at_the_same_time() {
    let Some(cable) = Cable::new(4200) else { return };
    for (server, client) in PAIRS.into_iter().filter(|(server, _)| !server.starts_with("doctor")) {
        let client = client.replace("ADDRESS", "198.18.0.2");
        let early = start_at(&cable.near, &client.split(' ').collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(500));
        let server = start_at(&cable.far, &server.split(' ').collect::<Vec<_>>());
        let finished = early.finish(60);
        assert!(finished.success, "roce {client}: {finished:?}");
        assert!(server.finish(60).success, "roce {client}");
    }
}

#[test]
fn a_server_says_what_to_type_on_the_other_side() {
    let Some(cable) = Cable::new(1500) else { return };
    for (server, address, more) in [
        ("ping --once --port 18777", "198.18.0.2", " -n 10"),
        ("blast --once", "2001:db8::2", " -n 10"),
        ("doctor --once --exchange-port 18778", "198.18.0.2", ""),
        ("limit --once --port 18779", "198.18.0.2", " -n 500 --round-trips 10"),
        ("pingpong rc -n 10 -p 18780", "198.18.0.2", " -n 10"),
        ("perf send lat -n 10 -p 18781", "2001:db8::2", " -n 10"),
    ] {
        let mut waiting = start_at(&cable.far, &server.split(' ').collect::<Vec<_>>());
        let line = waiting.wait_for_line(address);
        let command = line.trim().strip_prefix("roce ").expect("a command");
        let command = command.split("   (").next().unwrap().to_owned() + more;
        let finished = start_at(&cable.near, &command.split(' ').collect::<Vec<_>>()).finish(60);
        assert!(finished.success, "roce {command}: {finished:?}");
        assert!(waiting.finish(60).success, "roce {server}");
    }
}

/// Regression: `roce doctor` suggested to run `roce doctor` on the peer, and suggested it again after that
/// was done.
#[test]
fn the_remedy_of_the_doctor_removes_its_finding() {
    let Some(cable) = Cable::new(4200) else { return };
    let examine = || start_at(&cable.near, &["doctor", "198.18.0.2"]).finish(60);
    let alone = examine();
    assert!(!alone.success && alone.stdout.contains("start a RoCE device there: `roce doctor`"), "{alone:?}");
    let mut waiting = start_at(&cable.far, &["doctor", "--once"]);
    waiting.wait_for_line("roce doctor 198.18.0.2");
    let both = examine();
    assert!(both.success && both.stdout.contains("healthy: RoCE works in both directions"), "{both:?}");
    assert!(waiting.finish(60).success);
}

/// A client may exchange over IPv4 for packets over IPv6, if the user of the server allows its other address.
#[test]
fn a_device_with_ipv6_only_is_called_over_ipv4() {
    let Some(cable) = Cable::new(4200) else { return };
    let device = ["-d", "udp:[2001:db8::1]", "-n", "20"];
    for is_allowed in [false, true] {
        let mut server =
            vec!["perf", "write", "bw", "-d", "udp:[2001:db8::2]", "-n", "20", "--patience", "5"];
        if is_allowed {
            server.extend(["--allow-peer", "2001:db8::1"]);
        }
        let mut waiting = start_at(&cable.far, &server);
        waiting.wait_for_line("waiting on");
        let client = [&["perf", "write", "bw", "198.18.0.2"][..], &device].concat();
        let finished = start_at(&cable.near, &client).finish(60);
        let served = waiting.finish(60);
        assert_eq!((finished.success, served.success), (is_allowed, is_allowed), "{finished:?} {served:?}");
        assert_eq!(served.stderr.contains("--allow-peer 2001:db8::1"), !is_allowed, "{served:?}");
    }
}

/// Regression: a client that called another address truncated the file.
#[test]
fn the_capture_of_a_server_goes_on_when_another_address_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcapng").to_str().unwrap().to_owned();
    let mut waiting = Running::start(roce().args(["ping", "--port", "18791", "--pcap", &file]));
    waiting.wait_for_line("waiting on");
    let addresses = [own_address(), own_address()].map(|address| address.to_string());
    // The first address is called again at the end.
    for address in [&addresses[0], &addresses[1], &addresses[0]] {
        let device = format!("udp:{}", own_address());
        let finished = run(&["ping", address, "--port", "18791", "-n", "5", "--device", &device]);
        assert!(finished.success, "{finished:?}");
    }
    waiting.interrupt();
    waiting.finish(30);
    let listed = run(&["dissect", "--json", &file]);
    assert!(listed.success, "{listed:?}");
    let mut sources: Vec<String> = Vec::new();
    for line in listed.stdout.lines() {
        let packet: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let source = packet["ip.src"].as_str().expect("an address").to_owned();
        if addresses.contains(&source) && sources.last() != Some(&source) {
            sources.push(source);
        }
    }
    assert_eq!(
        sources,
        [&addresses[0], &addresses[1], &addresses[0]].map(String::as_str),
        "{}",
        listed.stdout
    );
}

#[test]
fn a_client_on_the_same_machine_is_told_to_use_another_address() {
    let Some(cable) = Cable::new(1500) else { return };
    cable.near.ip(&["link set lo up"]);
    let finished = start_at(&cable.near, &["ping", "198.18.0.1"]).finish(20);
    assert!(!finished.success && finished.stderr.contains("use 127.0.0.1 as the address"), "{finished:?}");
    let mut waiting = start_at(&cable.near, &["ping", "--once"]);
    waiting.wait_for_line("roce ping 127.0.0.1");
    let finished = start_at(&cable.near, &["ping", "localhost", "-n", "10"]).finish(20);
    assert!(finished.success && waiting.finish(20).success, "{finished:?}");
}

/// Starts a server on its own address.
fn server(args: &[&str]) -> (Ipv4Addr, Running) {
    let address = own_address();
    let device = format!("udp:{address}");
    let mut waiting = Running::start(roce().args(args).args(["--device", &device]));
    waiting.wait_for_line("waiting on");
    (address, waiting)
}

/// Waits until a client has a connection to the server at this address.
#[track_caller]
fn wait_for_connection(server: Ipv4Addr) {
    let address = format!("{:08X}:", u32::from_ne_bytes(server.octets()));
    let end = Instant::now() + Duration::from_secs(60);
    while !has_tcp_socket(|local| local.starts_with(&address), TCP_ESTABLISHED) {
        assert!(Instant::now() < end, "no client has connected");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn client(tool: &str, server: Ipv4Addr, more: &[&str]) -> Running {
    let (to, device) = (server.to_string(), format!("udp:{}", own_address()));
    Running::start(roce().args([tool, &to, "--device", &device]).args(more))
}

/// Regression: the server stayed for 30 seconds and held its ports.
#[test]
fn a_client_that_is_interrupted_ends_the_server_at_once() {
    for (tool, op) in [("ping", "send"), ("blast", "send"), ("blast", "write"), ("blast", "read")] {
        let (address, waiting) = server(&[tool, "--once"]);
        let measuring = client(tool, address, &["-n", "1000000000", "--op", op]);
        wait_for_connection(address);
        std::thread::sleep(Duration::from_millis(800));
        let left = Instant::now();
        measuring.interrupt();
        let served = waiting.finish(60);
        assert!(on_idle(left.elapsed()) < Duration::from_secs(3), "{tool} {op}: {:?}", left.elapsed());
        assert!(
            !served.success && served.stderr.contains("closed the connection"),
            "{tool} {op}: {served:?}"
        );
        drop(measuring);
    }
}

/// Regression: the server used a processor for 29 s and did not report the reason.
#[test]
fn a_path_that_works_one_way_only_is_reported_on_both_sides_at_once() {
    for fault in ["--fault", "--receive-fault"] {
        let (address, waiting) = server(&["ping", "--once"]);
        let finished = client("ping", address, &[fault, "drop=100%", "--timeout", "10"]).finish(60);
        let served = waiting.finish(60);
        for side in [&finished, &served] {
            assert!(!side.success && side.stderr.contains("roce doctor"), "{fault}: {side:?}");
            assert!(on_idle(side.took) < Duration::from_secs(8), "{fault}: {:?}", side.took);
        }
    }
}

#[test]
fn a_second_client_waits_for_its_turn_and_is_told() {
    let (address, mut waiting) = server(&["blast"]);
    // The server is busy with it for seconds, even if the second client is late.
    let first = client_at_its_second_size("blast", address, "1M", &["-n", "50000"]);
    let second = client("blast", address, &["-n", "10"]);
    std::thread::sleep(Duration::from_secs(2));
    first.interrupt();
    let finished = second.finish(60);
    assert!(finished.success, "{finished:?}");
    assert!(finished.stderr.contains("the server is busy with 127."), "{finished:?}");
    assert!(finished.stderr.contains("position 1 in its queue"), "{finished:?}");
    waiting.wait_for_line("served");
}

/// Starts a client with a short first size, and waits until that is measured. The second size takes long.
fn client_at_its_second_size(tool: &str, server: Ipv4Addr, second: &str, more: &[&str]) -> Running {
    let mut measuring = client(tool, server, &[&["--size", "8", "--size", second], more].concat());
    measuring.wait_for_line("bytes");
    measuring
}

#[test]
fn a_client_that_is_killed_does_not_affect_others_of_the_same_server() {
    let (address, mut waiting) = server(&["blast", "--clients", "3"]);
    let killed = client_at_its_second_size("blast", address, "1M", &["-n", "20000"]);
    let count = ["-n", "500"];
    let others = [("64K", "send"), ("16K", "write")].map(|(size, op)| {
        client_at_its_second_size("blast", address, size, &[&["--op", op], &count[..]].concat())
    });
    killed.interrupt();
    for (other, size) in others.into_iter().zip(["65536", "16384"]) {
        let finished = other.finish(60);
        assert!(finished.success, "{finished:?}");
        let last = finished.stdout.lines().last().unwrap();
        assert_eq!(last.split_whitespace().take(2).collect::<Vec<_>>(), [size, "500"], "{finished:?}");
    }
    let totals = waiting.wait_for_line("served: 2, failed: 1");
    let bytes = 500 * (8 + 65_536 + 8 + 16_384);
    assert!(totals.contains(&format!("2000 messages, {bytes} bytes")), "{totals}");
    let finished = client("blast", address, &["-n", "10"]).finish(60);
    assert!(finished.success, "{finished:?}");
    waiting.wait_for_line("clients: 1, served: 1, failed: 0");
    waiting.interrupt();
    let served = waiting.finish(60);
    let of_clients: Vec<&str> =
        served.stdout.lines().filter(|line| line.starts_with("served 127.")).collect();
    assert_eq!(of_clients.len(), 3, "{served:?}");
    assert!(served.stdout.contains("closed the connection"), "{served:?}");
}

#[test]
fn a_server_of_two_clients_refuses_the_third_with_the_option_to_change() {
    let (address, mut waiting) = server(&["ping", "--clients", "2"]);
    let held = [(); 2].map(|()| client_at_its_second_size("ping", address, "4M", &["-n", "4000"]));
    let third = client("ping", address, &["-n", "10"]).finish(60);
    assert!(!third.success, "{third:?}");
    assert!(third.stderr.contains("the server serves 2 clients; start it with --clients 3"), "{third:?}");
    held.iter().for_each(Running::interrupt);
    waiting.wait_for_line("clients: 2, served: 0, failed: 2");
}

#[test]
fn a_server_that_is_not_the_tool_of_the_client_is_named_on_both_sides() {
    let (address, waiting) = server(&["ping", "--once"]);
    let finished = client("doctor", address, &[]).finish(60);
    // The lines break where the address ends.
    let told = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(told.contains("runs `roce ping` or `roce blast`"), "{finished:?}");
    let served = waiting.finish(60);
    assert!(served.stderr.contains("runs `roce doctor`"), "{served:?}");
}

#[test]
fn the_memory_for_a_client_is_an_option() {
    let (address, waiting) = server(&["blast", "--once", "--max-memory", "1M"]);
    let finished = client("blast", address, &["--size", "64K", "--buffers", "16"]).finish(60);
    let served = waiting.finish(60);
    for side in [&finished, &served] {
        assert!(!side.success && side.stderr.contains("--max-memory 2097152"), "{side:?}");
    }
}

/// Asserts that neither output contains a control character of a terminal.
#[track_caller]
fn is_harmless(what: &str, finished: &Finished) {
    for text in [&finished.stdout, &finished.stderr] {
        let bad = text
            .chars()
            .find(|sign| sign.is_control() && *sign != '\n' || ('\u{202a}'..='\u{202e}').contains(sign));
        assert_eq!(bad, None, "{what}: {text:?}");
    }
}

const ESCAPES: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}";

#[test]
fn texts_of_a_hostile_client_reach_no_terminal() {
    let greetings = [
        json!({"roce": ESCAPES, "protocol": 2, "version": "0"}),
        json!({"roce": "limit", "protocol": 9, "version": ESCAPES}),
        json!({ESCAPES: 1}),
        json!({"roce_failed": ESCAPES}),
    ];
    for tool in ["ping", "blast", "doctor", "limit"] {
        for greeting in &greetings {
            let (address, waiting) = server(&[tool, "--once"]);
            let port = if tool == "limit" { 18_521 } else { 18_520 };
            let mut stream = TcpStream::connect((address, port)).unwrap();
            // Sends raw control characters, as a peer that does not escape its output.
            let raw = greeting.to_string().replace("\\u001b", "\u{1b}").replace("\\u0007", "\u{7}");
            writeln!(stream, "{}", if greeting.get("roce").is_some() { greeting.to_string() } else { raw })
                .unwrap();
            let finished = waiting.finish(60);
            assert!(!finished.success, "{tool}: {finished:?}");
            is_harmless(tool, &finished);
        }
    }
    // The error for an unknown value quotes the value.
    let (address, waiting) = server(&["ping", "--once"]);
    let mut stream = TcpStream::connect((address, 18_520)).unwrap();
    let greeting = json!({"roce": "ping` or `roce blast", "protocol": 2, "version": "0"});
    writeln!(stream, "{greeting}\n{}", json!({"tool": ESCAPES})).unwrap();
    let finished = waiting.finish(60);
    assert!(finished.stderr.contains("did not send the plan"), "{finished:?}");
    is_harmless("a plan", &finished);
}

/// The servers that communicate with original programs.
#[test]
fn bytes_of_a_hostile_original_reach_no_terminal() {
    let mut garbage = ESCAPES.as_bytes().to_vec();
    garbage.resize(300, b'\x1b');
    let mut release = b"6.06\0\x1b[2J\x1b]0;a\x07\0\x00\x00\x10\x00\x00\x00\x00\x403\0".to_vec();
    release.extend(&garbage);
    for (tool, bytes) in [
        ("pingpong rc --patience 2", &garbage),
        ("perf send bw --patience 2", &garbage),
        ("perf read lat --patience 2", &release),
    ] {
        let args: Vec<&str> = tool.split(' ').collect();
        let (address, waiting) = server(&args);
        let mut stream = TcpStream::connect((address, 18_515)).unwrap();
        stream.write_all(bytes).unwrap();
        let finished = waiting.finish(60);
        assert!(!finished.success, "{tool}: {finished:?}");
        is_harmless(tool, &finished);
        // A client connects to such a server.
        let (address, port, serving) = hostile_original(bytes.clone());
        let device = format!("udp:{}", own_address());
        let (to, port) = (address.to_string(), port.to_string());
        let client = [&args[..], &[&to, "-p", &port, "--device", &device]].concat();
        let finished = run(&client);
        assert!(!finished.success, "{tool}: {finished:?}");
        is_harmless(tool, &finished);
        serving.join().unwrap();
    }
}

/// Listens, and writes these bytes to one client.
fn hostile_original(bytes: Vec<u8>) -> (Ipv4Addr, u16, std::thread::JoinHandle<()>) {
    let address = own_address();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(&bytes);
        std::thread::sleep(Duration::from_millis(500));
    });
    (address, port, serving)
}

/// Listens, and answers one client with these lines.
fn hostile_server(lines: Vec<String>) -> (Ipv4Addr, u16, std::thread::JoinHandle<()>) {
    let address = own_address();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut heard).unwrap();
        for line in lines {
            let _ = writeln!(stream, "{line}");
        }
        std::thread::sleep(Duration::from_millis(300));
    });
    (address, port, serving)
}

#[test]
fn texts_of_a_hostile_server_reach_no_terminal() {
    for (tool, name) in [
        ("ping", "ping` or `roce blast"),
        ("blast", "ping` or `roce blast"),
        ("doctor", "doctor"),
        ("limit", "limit"),
    ] {
        let greeting = json!({"roce": name, "protocol": 2, "version": "0"}).to_string();
        let busy = json!({"roce_busy": {"position": 1, "serving": ESCAPES}}).to_string();
        for lines in [
            vec![json!({"roce": ESCAPES, "protocol": 2, "version": "0"}).to_string()],
            vec![json!({"roce": name, "protocol": 3, "version": ESCAPES}).to_string()],
            vec![busy, greeting.clone(), json!({"roce_failed": ESCAPES}).to_string()],
            vec![greeting.clone(), json!(ESCAPES).to_string()],
            vec![greeting.clone(), json!({ESCAPES: ESCAPES}).to_string()],
        ] {
            let (address, port, serving) = hostile_server(lines);
            let port_option = if tool == "doctor" { "--exchange-port" } else { "--port" };
            let finished = client(tool, address, &[port_option, &port.to_string()]).finish(60);
            assert!(!finished.success, "{tool}: {finished:?}");
            is_harmless(tool, &finished);
            serving.join().unwrap();
        }
    }
}

/// Regression: a request that its sender never confirmed held the server for 60 s.
#[test]
fn a_request_of_rping_that_is_never_confirmed_holds_up_nobody() {
    let address = own_address().to_string();
    let mut waiting = Running::start(roce().args(["rping", "-s", "-a", &address, "-v"]));
    waiting.wait_for_line("waiting on");
    let deaf = format!("udp:{}", own_address());
    let deaf = ["rping", "-c", "-a", &address, "--device", &deaf, "--receive-fault", "drop=100%"];
    let mut deaf = Running::start(roce().args(deaf));
    std::thread::sleep(Duration::from_millis(700));
    assert!(deaf.is_alive());
    let device = format!("udp:{}", own_address());
    let finished = run(&["rping", "-c", "-a", &address, "--device", &device, "-C", "3", "-V"]);
    assert!(finished.success && on_idle(finished.took) < Duration::from_secs(8), "{finished:?}");
    let served = waiting.finish(60);
    assert!(served.success && served.stdout.contains("3 pings"), "{served:?}");
    assert_eq!(served.stdout.matches("server ping data: rdma-ping-").count(), 3, "{served:?}");
}
