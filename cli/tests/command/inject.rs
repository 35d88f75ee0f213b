//! `roce inject`: the injected packets arrive as requested. All tests run in their own namespaces, or on
//! loopback.

use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::frames::{DESTINATION_MAC, SOURCE_MAC, frame, frame_on, path, write_capture};
use crate::common::{roce, skip_unless};
use roce_capture::CaptureReader;
use roce_device::whole::{WholePort, open_to_send, open_whole};
use roce_packet::{EtherType, Frame, MacAddr, Opcode, Psn};
use roce_testing::{in_own_network, settle_here};
use serde_json::Value;

/// Returns the frames that arrive at an interface, with their times. Only frames with this EtherType count,
/// because the kernel also sends frames.
fn record(port: &mut dyn WholePort, count: usize, ether_type: EtherType) -> Vec<(Instant, Vec<u8>)> {
    let end = Instant::now() + Duration::from_secs(20);
    let mut frames = Vec::new();
    while frames.len() < count && Instant::now() < end {
        let received = port.receive(&mut |frame| {
            if frame.head.get(12..14) == Some(&ether_type.0.to_be_bytes()) {
                frames.push((Instant::now(), [frame.head, frame.tail].concat()));
            }
        });
        if received.expect("receiving") == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    frames
}

/// Runs a test between two cables, `v0` and `v1`; skips it if the process may not create them.
fn between_cables(test: impl FnOnce() + Send + 'static) {
    in_own_network(
        &[
            "link set lo up",
            "link add v0 type veth peer name v1",
            "link set v0 address 02:00:00:00:00:01 mtu 4200 up",
            "link set v1 address 02:00:00:00:00:02 mtu 4200 up",
        ],
        move || {
            settle_here();
            test();
        },
    );
}

fn captured(file: &Path) -> Vec<Vec<u8>> {
    let mut reader = CaptureReader::open(file).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().bytes.to_vec());
    }
    frames
}

/// Sends a capture through a device on `v0` and compares the received frames. One of its messages has
/// `largest` bytes.
fn inject_and_compare(device: &'static str, largest: usize) {
    between_cables(move || {
        // An XDP device shares the address of its interface.
        let address = ["address", "add", "198.18.0.1/24", "dev", "v0"];
        assert!(std::process::Command::new("ip").args(address).status().is_ok_and(|status| status.success()));
        let opened = open_to_send(device);
        let lacks = opened.as_ref().is_err_and(|error| error.to_string().contains("CAP_BPF"));
        drop(opened);
        if skip_unless(!lacks, "AF_XDP takes CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("frames.pcapng");
        let mut broken = frame(Opcode::RC_SEND_ONLY, Psn::new(3), b"damaged");
        let last = broken.len() - 1;
        broken[last] ^= 0xff;
        let frames = vec![
            frame(Opcode::RC_SEND_ONLY, Psn::new(1), b"one"),
            frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(2), &vec![7; largest]),
            broken,
        ];
        write_capture(&file, &frames);
        let mut port = open_whole("raw:v1").unwrap();
        let file = file.to_str().unwrap();
        let inject = |more: &[&str]| {
            let mut arguments = vec!["inject", file, "--device", device, "--json"];
            arguments.extend_from_slice(more);
            let finished = common::run(&arguments);
            assert!(finished.success, "{finished:?}");
            serde_json::from_str::<Value>(&finished.stdout).expect("JSON")
        };
        // All frames arrive twice, unchanged.
        let document = inject(&["--keep-icrc", "--count", "2", "--rate", "max"]);
        assert_eq!((&document["frames"], &document["icrc_repaired"]), (&6.into(), &0.into()));
        let arrived = record(port.as_mut(), 6, EtherType::IPV4);
        let arrived: Vec<Vec<u8>> = arrived.into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(arrived, [&frames[..], &frames[..]].concat());
        // Without --keep-icrc, the damaged frame is repaired, and the others are unchanged.
        let document = inject(&["--rate", "max"]);
        assert_eq!(document["icrc_repaired"], 1);
        let arrived = record(port.as_mut(), 3, EtherType::IPV4);
        assert_eq!(arrived[..2].iter().map(|(_, frame)| frame).collect::<Vec<_>>(), [&frames[0], &frames[1]]);
        assert!(Frame::parse(&arrived[2].1).unwrap().verify_icrc().unwrap().is_good());
        // Sends one packet of the file.
        let mut port_of_one = open_whole("raw:v1").unwrap();
        let finished = common::run(&["inject", &format!("{file}:2"), "--device", device]);
        let summary = format!("sent 1 frame, {} bytes in ", frames[1].len());
        assert!(finished.stdout.starts_with(&summary), "{finished:?}");
        assert_eq!(record(port_of_one.as_mut(), 1, EtherType::IPV4)[0].1, frames[1]);
    });
}

#[test]
fn the_frames_that_arrive_are_those_of_the_capture() {
    inject_and_compare("raw:v0", 4096);
}

/// Regression: the command mistook its next check of the interface for a frame that was still to be sent, and
/// failed after 5 s.
#[test]
fn the_frames_that_leave_through_xdp_are_those_of_the_capture() {
    // A frame must fit into a chunk of the device's memory.
    inject_and_compare("xdp:v0", 2048);
}

#[test]
fn addresses_are_rewritten_and_every_checksum_follows() {
    between_cables(|| {
        let original = frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(9), b"rewritten");
        let digits: String = original.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut port = open_whole("raw:v1").unwrap();
        let new = [
            "--source-mac",
            "02:00:00:00:00:0a",
            "--destination-mac",
            "02:00:00:00:00:0b",
            "--source-ip",
            "198.18.9.1",
            "--destination-ip",
            "198.18.9.2",
            "--source-port",
            "50000",
        ];
        let finished = common::run(&[&["inject", &digits, "--device", "raw:v0"][..], &new].concat());
        assert!(finished.success, "{finished:?}");
        let arrived = &record(port.as_mut(), 1, EtherType::IPV4)[0].1;
        let changed = roce_packet::Path {
            source: [198, 18, 9, 1].into(),
            destination: [198, 18, 9, 2].into(),
            source_port: 50_000,
            ..path()
        };
        // The frame that the frame writer creates for these addresses, except for the Ethernet addresses.
        let mut expected = frame_on(&changed, Opcode::RC_RDMA_WRITE_ONLY, Psn::new(9), b"rewritten");
        expected[..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a]);
        assert_eq!(arrived, &expected);
        // --keep-icrc keeps the ICRC of the old addresses.
        let finished =
            common::run(&[&["inject", &digits, "--device", "raw:v0", "--keep-icrc"][..], &new].concat());
        assert!(finished.success, "{finished:?}");
        let arrived = &record(port.as_mut(), 1, EtherType::IPV4)[0].1;
        assert_eq!(arrived[arrived.len() - 4..], original[original.len() - 4..]);
        assert!(!Frame::parse(arrived).unwrap().verify_icrc().unwrap().is_good());
    });
}

#[test]
fn a_rate_and_the_timing_of_the_capture_are_kept() {
    between_cables(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("frames.pcapng");
        // Frames at intervals of one millisecond.
        let frames: Vec<Vec<u8>> =
            (0..41).map(|psn| frame(Opcode::RC_SEND_ONLY, Psn::new(psn), b"paced")).collect();
        write_capture(&file, &frames);
        let mut port = open_whole("raw:v1").unwrap();
        let file = file.to_str().unwrap();
        for (options, at_least) in
            [(&["--rate", "200/s"][..], 200), (&["--timing"], 40), (&["--timing", "--speed", "0.2"], 200)]
        {
            let finished = common::run(&[&["inject", file, "--device", "raw:v0"][..], options].concat());
            assert!(finished.success, "{finished:?}");
            let arrived = record(port.as_mut(), 41, EtherType::IPV4);
            assert_eq!(arrived.len(), 41);
            let took: f64 = finished
                .stdout
                .split(" in ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next())
                .and_then(|seconds| seconds.parse().ok())
                .expect("the time that it took");
            assert!(took * 1e3 >= f64::from(at_least), "{options:?}: {took} s");
        }
    });
}

#[test]
fn a_tap_delivers_the_frame_to_the_kernel() {
    let ran = in_own_network(&["link set lo up"], || {
        // The TAP is created first, so that a socket can listen on it.
        let made =
            std::process::Command::new("ip").args(["tuntap", "add", "dev", "t0", "mode", "tap"]).output();
        if skip_unless(made.is_ok_and(|made| made.status.success()), "a TAP takes /dev/net/tun") {
            return;
        }
        let link = std::process::Command::new("ip").args(["link", "set", "t0", "up"]).status().unwrap();
        assert!(link.success());
        let mut port = open_whole("raw:t0").unwrap();
        let original = frame(Opcode::RC_SEND_ONLY, Psn::new(5), b"to the kernel");
        let digits: String = original.iter().map(|byte| format!("{byte:02x}")).collect();
        let finished = common::run(&["inject", &digits, "--device", "tap:t0"]);
        assert!(finished.success, "{finished:?}");
        assert_eq!(record(port.as_mut(), 1, EtherType::IPV4)[0].1, original);
    });
    skip_unless(ran, "a network namespace takes root");
}

#[test]
fn a_udp_device_sends_the_datagram_with_the_icrc_of_its_own_address() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let port = server.local_addr().unwrap().port();
    let on_loopback = roce_packet::Path { destination: [127, 0, 0, 9].into(), ..path() };
    let original = frame_on(&on_loopback, Opcode::RC_SEND_ONLY, Psn::new(5), b"by a socket");
    let digits: String = original.iter().map(|byte| format!("{byte:02x}")).collect();
    let target = ["--destination-ip", "127.0.0.1", "--destination-port", &port.to_string()];
    let finished = common::run(&[&["inject", &digits, "--device", "udp:127.0.0.1"][..], &target].concat());
    assert!(finished.success, "{finished:?}");
    let mut bytes = [0; 200];
    let (len, from) = server.recv_from(&mut bytes).unwrap();
    let (covered, icrc) = bytes[..len].split_last_chunk::<4>().unwrap();
    assert_eq!(covered, &original[42..original.len() - 4]);
    let sent = roce_packet::Path {
        source: from.ip(),
        destination: [127, 0, 0, 1].into(),
        source_port: from.port(),
        ..path()
    };
    let envelope = roce_packet::Envelope { destination_port: port, ..roce_packet::Envelope::new(&sent, 0) };
    assert_eq!(u32::from_le_bytes(*icrc), roce_packet::icrc::compute(&envelope, covered, &[]));
}

#[test]
fn what_cannot_be_sent_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("frames.pcapng");
    write_capture(&file, &[frame(Opcode::RC_SEND_ONLY, Psn::new(1), b"one")]);
    let file = file.to_str().unwrap();
    for (arguments, expected) in [
        (&["x.gone", "--dry-run"][..], "this is neither an existing file nor a frame in hexadecimal digits"),
        (&["11400000", "--dry-run"], "the bytes begin with a BTH"),
        (&[file], "--device"),
        (
            &[file, "--device", "udp:127.0.0.1", "--source-ip", "127.0.0.2"],
            "sends from its own addresses and port",
        ),
        (&[file, "--device", "raw:nosuch0"], "there is no interface `nosuch0`"),
        (&[file, "--device", "tap:t0,ip=198.18.0.1/24"], "expected only mtu=BYTES"),
        (&[file, "--device", "memory"], "carries RoCE datagrams, not Ethernet frames"),
        (&["-", "--count", "2", "--dry-run"], "standard input can be read only once"),
        (&[file, "--rate", "fast", "--dry-run"], "1000/s"),
        (&[file, "--timing", "--rate", "1/s", "--dry-run"], "cannot be used with"),
        (&[file, "--count", "0", "--dry-run"], "0 is not in 1.."),
    ] {
        let finished = common::run(&[&["inject"], arguments].concat());
        assert!(!finished.success, "{arguments:?}");
        assert!(finished.stderr.contains(expected), "{arguments:?}: {}", finished.stderr);
    }
}

#[test]
fn a_dry_run_writes_what_would_be_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("frames.pcapng"), folder.path().join("out.pcapng"));
    let frames: Vec<Vec<u8>> = (0..5).map(|psn| frame(Opcode::RC_SEND_ONLY, Psn::new(psn), b"dry")).collect();
    write_capture(&file, &frames);
    let arguments = [
        "inject",
        file.to_str().unwrap(),
        "--dry-run",
        "--limit",
        "7",
        "--count",
        "3",
        "--pcap",
        out.to_str().unwrap(),
    ];
    let finished = common::run(&arguments);
    assert!(finished.success, "{finished:?}");
    assert!(finished.stdout.starts_with("would send 7 frames, "), "{finished:?}");
    let written = captured(&out);
    assert_eq!(written, [&frames[..], &frames[..2]].concat());
    // Packets without an Ethernet header get one if its addresses are given.
    let digits: String = frames[0][14..].iter().map(|byte| format!("{byte:02x}")).collect();
    let finished = common::run(&["inject", &digits, "--dry-run"]);
    assert!(finished.stderr.contains("--destination-mac and --source-mac"), "{finished:?}");
    let [to, from] = [DESTINATION_MAC, SOURCE_MAC].map(|mac: MacAddr| mac.to_string());
    let finished = common::run(&[
        "inject",
        &digits,
        "--dry-run",
        "--destination-mac",
        &to,
        "--source-mac",
        &from,
        "--pcap",
        out.to_str().unwrap(),
    ]);
    assert!(finished.success, "{finished:?}");
    assert_eq!(captured(&out)[0], frames[0]);
}

#[test]
fn an_interrupted_run_says_what_it_sent() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let digits: String =
        frame(Opcode::RC_SEND_ONLY, Psn::new(5), b"x").iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = roce();
    command.args(["inject", &digits, "--device", "udp:127.0.0.1", "--destination-ip", "127.0.0.1"]);
    command.args(["--destination-port", &port, "--rate", "100/s", "--count", "1000000", "--json"]);
    let child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    for _ in 0..5 {
        server.recv(&mut [0; 200]).unwrap();
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON after the interruption");
    assert_eq!(document["interrupted"], true);
    assert!(document["frames"].as_u64().unwrap() >= 5);
}
