//! `roce bridge` between two hosts: three connected namespaces, which the test creates.
//!
//! ```text
//!  left: l0 198.18.0.1 --- m0 [ roce bridge ] m1 --- r0 198.18.0.2 :right
//! ```

mod telemetry;
mod tunnels;
mod two_to_one;

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Running, has_program, is_too_busy_for_rates, roce, skip_unless, within};
use roce_capture::CaptureReader;
use roce_packet::{Ecn, Frame};
use roce_testing::Namespace;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

struct Row {
    left: Namespace,
    middle: Namespace,
    right: Namespace,
}

impl Row {
    #[track_caller]
    fn new() -> Option<Self> {
        let row = Self { left: Namespace::new()?, middle: Namespace::new()?, right: Namespace::new()? };
        for (end, name, inner, number) in [(&row.left, "l0", "m0", 1), (&row.right, "r0", "m1", 2)] {
            row.middle.ip(&[
                &format!("link add name {inner} type veth peer name {name}"),
                &format!("link set dev {name} netns {}", end.path()),
                &format!("link set dev {inner} mtu 4200 up"),
            ]);
            end.ip(&[
                &format!("link set dev {name} address 02:00:00:00:00:0{number} mtu 4200"),
                &format!("address add 198.18.0.{number}/24 dev {name}"),
                &format!("address add 2001:db8::{number}/64 dev {name} nodad"),
                &format!("link set dev {name} up"),
            ]);
        }
        Some(row)
    }

    /// Starts the bridge with `--json`; waits until it forwards frames.
    #[track_caller]
    fn bridge(&self, args: &[&str]) -> Running {
        let mut command = roce();
        command.args(["bridge", "--left", "raw:m0", "--right", "raw:m1", "--json"]).args(args);
        let running = self.middle.run(move || Running::start(&mut command));
        let refused = || {
            let to: SocketAddr = "198.18.0.2:9".parse().unwrap();
            let result = TcpStream::connect_timeout(&to, Duration::from_millis(250));
            result.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        let end = Instant::now() + Duration::from_secs(20);
        while !self.left.run(refused) {
            assert!(Instant::now() < end, "no frame passes");
        }
        running
    }

    /// Runs a server of `roce` on the right and a client on the left; returns the output of the client.
    #[track_caller]
    fn measure(&self, tool: &'static str, device: [&str; 2], args: &[&str]) -> Value {
        let mut command = roce();
        command.args([tool, "--once", "--device", device[1]]);
        let mut server = self.right.run(move || Running::start(&mut command));
        server.wait_for_line("waiting on");
        let mut command = roce();
        command.args([tool, "198.18.0.2", "--json", "--device", device[0]]).args(args);
        let client = self.left.run(move || Running::start(&mut command)).finish(60);
        assert!(client.success, "{client:?}");
        assert!(server.finish(60).success);
        serde_json::from_str(&client.stdout).expect("JSON")
    }
}

const UDP: [&str; 2] = ["udp:198.18.0.1", "udp:198.18.0.2"];
const RAW: [&str; 2] = ["raw:l0", "raw:r0"];

/// Sends SIGINT; returns the output of the bridge.
#[track_caller]
fn end(bridge: Running) -> Value {
    bridge.interrupt();
    let finished = bridge.finish(60);
    assert!(finished.success, "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// Returns the counters of a process, whose socket is in `folder`. Processes of other tests have the same
/// addresses.
#[track_caller]
fn counters_of(folder: &Path, is_it: impl Fn(&Value) -> bool) -> Value {
    let mut command = roce();
    command.args(["stat", "--all", "--json"]).env("XDG_RUNTIME_DIR", folder);
    let stat = Running::start(&mut command).finish(20);
    let all: Value = serde_json::from_str(&stat.stdout).expect("JSON");
    let processes = all["processes"].as_array().expect("a list");
    let found = processes.iter().find(|one| is_it(one));
    found.expect("the server")["counters"].clone()
}

/// Returns the comments of a capture.
fn comments(path: &Path) -> Vec<String> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        found.extend(packet.unwrap().comment.map(str::to_owned));
    }
    found
}

/// Sends a pattern in both directions, and asserts that it arrives correctly.
fn tcp_there_and_back(from: &Namespace, to: &Namespace, address: &'static str, bytes: usize) {
    let pattern = move || (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<u8>>();
    let listener = to.run(move || TcpListener::bind(address)).unwrap();
    let server_at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = vec![0; bytes];
        stream.read_exact(&mut got).unwrap();
        assert!(got == pattern(), "what came to the right is not what was sent");
        stream.write_all(&got).unwrap();
    });
    let mut stream =
        from.run(move || TcpStream::connect_timeout(&server_at, Duration::from_secs(5))).unwrap();
    stream.write_all(&pattern()).unwrap();
    let mut got = vec![0; bytes];
    stream.read_exact(&mut got).unwrap();
    assert!(got == pattern(), "what came back is not what was sent");
    server.join().unwrap();
}

/// Sends an ICMP echo request from the left, which the kernel on the right answers.
fn ping(row: &Row) {
    let answer = row.left.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let to: SocketAddr = "198.18.0.2:0".parse().unwrap();
        // Type 8, its checksum, identifier 0x1234, number 1, and a payload.
        let mut request = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1, 0xab, 0xcd];
        let sum: u32 = request.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        request[2..4].copy_from_slice(&sum.to_be_bytes());
        socket.send_to(&request, &to.into()).unwrap();
        let mut buffer = [MaybeUninit::new(0_u8); 256];
        let (len, _) = socket.recv_from(&mut buffer).expect("an answer");
        // SAFETY: every byte was set above, and the kernel only writes more.
        buffer[..len].iter().map(|byte| unsafe { byte.assume_init() }).collect::<Vec<u8>>()
    });
    assert_eq!(answer[20..22], [0, 0], "an echo reply");
    assert_eq!(answer[24..], [0x12, 0x34, 0, 1, 0xab, 0xcd]);
}

#[test]
fn what_is_not_roce_passes_untouched() {
    within(60, || {
        let Some(row) = Row::new() else { return };
        let bridge = row.bridge(&["--fault", "drop=100%", "--rate", "1Mbps", "--delay", "1s"]);
        ping(&row);
        tcp_there_and_back(&row.left, &row.right, "198.18.0.2:5000", 8 << 20);
        tcp_there_and_back(&row.left, &row.right, "[2001:db8::2]:5000", 2 << 20);
        let document = end(bridge);
        for direction in ["from_left", "from_right"] {
            let Value::Object(counts) = &document[direction]["counts"] else { panic!("{document}") };
            let not_zero: Vec<_> =
                counts.iter().filter(|(_, value)| **value != 0).map(|(name, _)| name).collect();
            assert_eq!(not_zero, ["other_frames"], "{document}");
            assert_eq!(document[direction]["device_counters"]["raw_rx_bad_kind"], 0);
        }
    });
}

/// The kernel removes tags from frames before a packet socket receives them.
#[test]
fn frames_keep_their_tags() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let bridge = row.bridge(&[]);
        let tagged = ["raw:l0,vlan=5,prio=3", "raw:r0,vlan=5,prio=3"];
        row.measure("blast", tagged, &["-n", "4", "-s", "64K", "--timeout", "18"]);
        let document = end(bridge);
        assert!(document["from_left"]["counts"]["packets"].as_u64().unwrap() >= 4 * 16, "{document}");
    });
}

#[test]
fn a_packet_dropped_once_is_sent_again_once() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let pcap = folder.path().join("bridge.pcapng");
        let rule = "rule:rqp=1,rpsn=5,opcode=RC_SEND_*,pass=1,action=drop";
        let bridge = row.bridge(&["--from", "left", "--fault", rule, "--pcap", pcap.to_str().unwrap()]);
        let measured = row.measure("ping", UDP, &["-n", "20", "--timeout", "18"]);
        assert_eq!(measured["rows"][0]["iterations"], 20);
        let document = end(bridge);
        let counts = &document["from_left"]["counts"];
        assert_eq!(counts["fault_dropped"], 1, "{document}");
        // On a busy machine the sender may probe more than once for the answer.
        let again = &measured["rows"][0]["client"]["retransmitted_packets"];
        assert!(again.as_u64().unwrap() >= 1, "{measured}");
        assert_eq!(&counts["retransmissions"], again, "{document}");
        assert_eq!(&document["from_left"]["queue_pairs"][0]["retransmissions"], again, "{document}");
        assert_eq!(document["from_right"]["counts"]["fault_dropped"], 0);
        assert_eq!(comments(&pcap), [format!("rule 1 ({rule}): dropped")]);
        check_with_tshark(&pcap);
    });
}

/// Checks that tshark shows the comment and reports every ICRC as correct.
fn check_with_tshark(pcap: &Path) {
    if skip_unless(has_program("tshark"), "tshark is not installed") {
        return;
    }
    let output = common::tshark()
        .args(["-r", pcap.to_str().unwrap(), "-Y", "frame.comment", "-T", "fields"])
        .args(["-e", "frame.comment", "-e", "frame.interface_name"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("action=drop): dropped\tfrom left to right"), "{text}");
}

#[test]
fn a_lost_packet_in_a_stream_is_asked_for_again() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        // The bridge receives superframes, in which each packet has its own number.
        let rule = "rule:rqp=1,rpsn=17,pass=1,action=drop";
        let bridge = row.bridge(&["--from", "left", "--fault", rule]);
        row.measure("blast", RAW, &["-n", "8", "-s", "64K", "--timeout", "18"]);
        let document = end(bridge);
        assert_eq!(document["from_left"]["counts"]["fault_dropped"], 1, "{document}");
        assert_eq!(document["from_right"]["counts"]["naks"], 1, "{document}");
        let again = document["from_left"]["counts"]["retransmissions"].as_u64().unwrap();
        assert!((1..256).contains(&again), "{document}");
    });
}

#[test]
fn marks_are_those_that_the_receiver_counts() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let bridge = row.bridge(&[
            "--from",
            "left",
            "--fault",
            "rule:rqp=1,rpsn=3-12,opcode=RC_SEND_*,pass=1,action=force-ecn",
        ]);
        let mut command = roce();
        command.args(["ping", "--device", UDP[1]]).env("XDG_RUNTIME_DIR", folder.path());
        let mut server = row.right.run(move || Running::start(&mut command));
        server.wait_for_line("waiting on");
        let mut command = roce();
        command.args(["ping", "198.18.0.2", "-n", "20", "--device", UDP[0], "--timeout", "18"]);
        let client = row.left.run(move || Running::start(&mut command)).finish(60);
        assert!(client.success, "{client:?}");
        let counters = counters_of(folder.path(), |one| one["pid"] == server.pid());
        assert_eq!(counters["np_ecn_marked_roce_packets"], 10, "{counters}");
        let document = end(bridge);
        assert_eq!(document["from_left"]["counts"]["fault_marked"], 10, "{document}");
        assert_eq!(document["from_right"]["counts"]["cnps"], counters["np_cnp_sent"], "{document}");
    });
}

/// A sender with DCQCN, a queue that marks, and a receiver that sends CNPs.
#[test]
fn a_queue_marks_and_the_sender_is_notified() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let pcap = folder.path().join("bridge.pcapng");
        let queue = ["--from", "left", "--rate", "40Mbps", "--queue", "10MB", "--step", "30KB"];
        let bridge = row.bridge(&[&queue[..], &["--pcap", pcap.to_str().unwrap()]].concat());
        let mut command = roce();
        command.args(["blast", "--device", UDP[1]]).env("XDG_RUNTIME_DIR", folder.path());
        let mut server = row.right.run(move || Running::start(&mut command));
        server.wait_for_line("waiting on");
        let mut command = roce();
        command.args(["blast", "198.18.0.2", "-n", "16", "-s", "64K", "--device", UDP[0], "--timeout", "20"]);
        command.args(["--congestion", "dcqcn"]);
        let client = row.left.run(move || Running::start(&mut command)).finish(60);
        assert!(client.success, "{client:?}");
        let counters = counters_of(folder.path(), |one| one["pid"] == server.pid());
        let document = end(bridge);
        let (there, back) = (&document["from_left"]["counts"], &document["from_right"]["counts"]);
        let marked = there["queue_marked"].as_u64().unwrap();
        // The receiver does not count the marks of copies, which it has seen before.
        let counted = counters["np_ecn_marked_roce_packets"].as_u64().unwrap();
        let copies = there["retransmissions"].as_u64().unwrap();
        assert!(
            marked > 0 && (marked.saturating_sub(copies)..=marked).contains(&counted),
            "{counters} {document}"
        );
        let told = back["cnps"].as_u64().unwrap();
        assert!(told > 0 && told == counters["np_cnp_sent"], "{counters} {document}");
        // Changed headers have correct checksums.
        let comments = comments(&pcap);
        assert_eq!(comments.len() as u64, marked);
        let begin = "marked CE by the queue, which holds ";
        assert!(comments.iter().all(|text| text.starts_with(begin)), "{comments:?}");
        let mut reader = CaptureReader::open(&pcap).unwrap();
        let mut seen = 0;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.unwrap();
            let Ok(frame) = Frame::parse(packet.bytes) else { continue };
            assert!(frame.verify_icrc().unwrap().is_good());
            let is_marked = frame.path().ecn() == Ecn::CongestionExperienced;
            assert_eq!(is_marked, packet.comment.is_some());
            seen += 1;
        }
        assert!(seen > marked, "{seen}");
    });
}

/// Runs sixteen queue pairs that send at twice the rate of the line. Without pauses, a queue of 4 MB would be
/// too small for their windows. Returns the output of the bridge.
fn paused() -> Option<Value> {
    let row = Row::new()?;
    let queue = ["--from", "left", "--rate", "40Mbps", "--queue", "4MB", "--pfc", "0"];
    let bridge = row.bridge(&queue);
    let perf = |place: &Namespace, args: &[&str]| {
        let mut command = roce();
        command.args(["perf", "write", "bw", "-q", "16", "-n", "20", "--mtu", "1024", "-u", "18"]);
        command.args(["--congestion", "fixed:5M", "--device"]).args(args);
        place.run(move || Running::start(&mut command))
    };
    let mut server = perf(&row.right, &["raw:r0"]);
    server.wait_for_line("waiting on");
    let client = perf(&row.left, &["raw:l0", "198.18.0.2"]).finish(60);
    assert!(client.success && server.finish(60).success, "{client:?}");
    Some(end(bridge))
}

/// The rate is low, so that the bridge may stop for a third of a second on a busy machine. If the bridge or
/// the sender gets no processor for longer, or the sender is too slow to fill the queue, the next attempt
/// counts.
#[test]
fn pauses_keep_a_queue_from_losing_anything_of_ours() {
    within(240, || {
        let (mut attempts, mut pauses) = (Vec::new(), 0);
        for _ in 0..8 {
            let Some(document) = paused() else { return };
            let counts = &document["from_left"]["counts"];
            let number = |name: &str| counts[name].as_u64().unwrap();
            // No packet is lost. While the queue grows, a sender may retransmit a packet early because its
            // acknowledgement is late. On a busy machine all acknowledgements are late.
            let is_lossless = number("queue_dropped") == 0;
            let sends_few_again = number("retransmissions") * 50 < number("packets");
            assert!(!is_lossless || sends_few_again || is_too_busy_for_rates(), "{document}");
            if is_lossless && number("pauses_sent") > 10 && number("queue_most_bytes") > 500_000 {
                return;
            }
            pauses += number("pauses_sent");
            attempts.push(counts.to_string());
        }
        // With this many processes, a host may stop for seconds in each attempt.
        assert!(
            pauses > 0 && is_too_busy_for_rates(),
            "no attempt filled the queue without a loss: {attempts:#?}"
        );
    });
}

/// One of the two hosts is the kernel with a TAP.
#[test]
fn a_tap_can_be_a_side() {
    within(60, || {
        let Some(row) = Row::new() else { return };
        if skip_unless(Path::new("/dev/net/tun").exists(), "there is no /dev/net/tun") {
            return;
        }
        let mut command = roce();
        command.args(["bridge", "--left", "tap:t0,mtu=4200", "--right", "raw:m1"]);
        let mut bridge = row.middle.run(move || Running::start(&mut command));
        bridge.wait_for_line("forwarding between");
        row.middle.ip(&["address add 198.18.0.3/24 dev t0", "address add 2001:db8::3/64 dev t0 nodad"]);
        tcp_there_and_back(&row.middle, &row.right, "198.18.0.2:5000", 4 << 20);
        tcp_there_and_back(&row.middle, &row.right, "[2001:db8::2]:5000", 1 << 20);
        bridge.interrupt();
        let finished = bridge.finish(60);
        assert!(finished.success && finished.stdout.contains("other_frames"), "{finished:?}");
    });
}

#[test]
fn a_rate_is_kept() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let share = || {
            let bridge = row.bridge(&["--from", "left", "--rate", "40Mbps", "--queue", "10MB"]);
            let measured = row.measure("blast", UDP, &["-n", "64", "-s", "64K", "--timeout", "20"]);
            let document = end(bridge);
            assert_eq!(document["from_left"]["counts"]["queue_dropped"], 0, "{document}");
            let most = document["from_left"]["counts"]["queue_most_bytes"].as_u64().unwrap();
            assert!(most > 100_000, "{document}");
            let gigabits = measured["rows"][0]["bits_per_second"].as_f64().unwrap() / 1e9;
            // Overhead per 4,096 bytes: Ethernet, IPv4, UDP, BTH, ICRC, preamble, frame check sequence and
            // gap.
            let expected = 0.040 * 4096.0 / f64::from(4096 + 14 + 20 + 8 + 12 + 4 + 24);
            assert!(gigabits < 1.03 * expected, "{gigabits} Gb/s of {expected}");
            gigabits / expected
        };
        // A busy machine may be late in some of the attempts, but not in all.
        let shares: Vec<f64> = (0..5).map(|_| share()).take_while(|share| *share < 0.9).collect();
        assert!(shares.len() < 5 || is_too_busy_for_rates(), "{shares:?} of the rate");
    });
}

#[test]
fn the_same_seed_makes_the_same_decisions() {
    within(120, || {
        let Some(row) = Row::new() else { return };
        let run = |seed: &str| {
            let bridge = row.bridge(&["--fault", "drop=20%,dup=10%", "--seed", seed]);
            let receiver = row.right.run(|| UdpSocket::bind("198.18.0.2:4791")).unwrap();
            receiver.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
            row.left.run(|| {
                let sender = UdpSocket::bind("198.18.0.1:0").unwrap();
                for psn in 0..100_u8 {
                    // RC SEND Only to queue pair 17; no receiver checks its ICRC.
                    let datagram = [4, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, psn, 1, 2, 3, 4];
                    sender.send_to(&datagram, "198.18.0.2:4791").unwrap();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let mut arrived = Vec::new();
            let mut buffer = [0; 64];
            while let Ok(len) = receiver.recv(&mut buffer) {
                assert_eq!(len, 16);
                arrived.push(buffer[11]);
            }
            let document = end(bridge);
            assert_eq!(document["from_left"]["counts"]["packets"], 100, "{document}");
            arrived
        };
        let first = run("5");
        assert!(first.len() > 50 && first.len() < 110, "{first:?}");
        assert_eq!(first, run("5"));
        assert_ne!(first, run("6"));
    });
}

#[test]
fn a_scenario_file_ends_by_itself_and_errors_say_what_to_do() {
    within(60, || {
        let Some(row) = Row::new() else { return };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bad.toml");
        std::fs::write(
            &file,
            "duration = \"200ms\"\n[left]\ndevice = \"raw:m0\"\n[right]\ndevice = \"raw:m1\"\n",
        )
        .unwrap();
        let run = |args: Vec<String>| {
            let mut command = roce();
            command.arg("bridge").args(args);
            row.middle.run(move || Running::start(&mut command)).finish(20)
        };
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let scenario = format!("--scenario {}", file.display());
        let finished = run(words(&scenario));
        assert!(finished.success && finished.took > Duration::from_millis(200), "{finished:?}");
        assert!(finished.stdout.contains("forwarding between raw:m0 and raw:m1"), "{finished:?}");
        std::fs::write(&file, "[left]\ndevise = \"raw:m0\"\n").unwrap();
        for (args, part) in [
            (scenario.as_str(), "line 2: unknown field `devise`"),
            ("--left raw:m0", "--right is missing"),
            ("--left raw:m0 --right raw:m0", "are both raw:m0"),
            ("--left raw:m0 --right udp:198.18.0.1", "use raw:INTERFACE or tap:NAME"),
            (
                "--left raw:m0 --right xdp:m1",
                "receives only RoCE frames, and the kernel receives the others; use raw:",
            ),
            ("--left raw:m0 --right raw:m7", "there is no interface `m7`"),
            ("--left raw:m0 --right raw:m1 --kmin 5KB", "kmin, kmax and pmax together"),
        ] {
            let finished = run(words(args));
            assert!(!finished.success && finished.stderr.contains(part), "{args}: {finished:?}");
        }
    });
}
