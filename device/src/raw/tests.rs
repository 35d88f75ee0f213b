//! Packet sockets at both ends of a cable, in the test's namespaces.

use std::net::{Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;
#[cfg(feature = "whole")]
use std::time::Instant as Clock;

use roce_packet::FrameHeaders;

use super::*;
use crate::framed::port::Split;
use crate::framed::{FrameSettings, Host, Resolution};
use crate::ports::{FAR, NEAR, PLAIN, check_way, frame, port_counter as counter, put, receive, send};
use crate::suite::{PortKind, TAGGED};
use crate::testing::path;
#[cfg(feature = "whole")]
use crate::whole::WholePort;
use roce_testing::{AS_NOBODY, Cable, Namespace, settle_here, skip_unless};

const RAW: PortKind = PortKind {
    name: "raw",
    open: |spec| open(&spec.parse()?).map(|(port, host)| (Box::new(port) as _, Box::new(host) as _)),
    reports_tags: true,
    at_once: 3000,
};

crate::suite::port_suite!(RAW, [FrameSettings::default(), TAGGED]);

fn open_in(namespace: &Namespace, spec: &str) -> (RawPort, KernelHost) {
    let spec: RawSpec = spec.parse().unwrap();
    namespace.run(move || open(&spec)).unwrap()
}

/// Returns a superframe of `count` datagrams of `len` bytes, the datagrams, and how to split it.
fn superframe(is_ipv4: bool, count: usize, len: usize) -> (Vec<u8>, Vec<Vec<u8>>, Split) {
    let addresses = if is_ipv4 { ["198.18.0.1", "198.18.0.2"] } else { ["2001:db8::1", "2001:db8::2"] };
    let path = path(addresses[0].parse().unwrap(), addresses[1].parse().unwrap());
    let datagrams: Vec<Vec<u8>> = (0..count)
        .map(|index| {
            let len = if index + 1 == count { len - 4 } else { len };
            (0..len).map(|at| (at * 3 + index) as u8).collect()
        })
        .collect();
    let payload = datagrams.concat();
    let headers = FrameHeaders::new(&path, 0, FAR, NEAR, payload.len()).unwrap();
    let mut bytes = vec![0; headers.len_bytes()];
    let _ = headers.emit(&mut bytes).unwrap();
    let udp_offset = headers.udp_offset().unwrap();
    let mut words: Vec<u8> = match (path.source, path.destination) {
        (std::net::IpAddr::V4(a), std::net::IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (std::net::IpAddr::V6(a), std::net::IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => unreachable!("both are of one kind"),
    };
    words.extend([0, 17]);
    words.extend(((payload.len() + 8) as u16).to_be_bytes());
    let mut sum: u32 = words.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[udp_offset + 6..udp_offset + 8].copy_from_slice(&(sum as u16).to_be_bytes());
    let split = Split {
        segment_len: len as u16,
        udp_offset: udp_offset as u16,
        headers_len: bytes.len() as u16,
        is_ipv4,
    };
    bytes.extend(payload);
    (bytes, datagrams, split)
}

#[test]
fn superframes_stay_whole_between_packet_sockets() {
    let Some(cable) = Cable::new(4200) else { return };
    let ((mut near, _near_host), (mut far, _far_host)) =
        (open_in(&cable.near, "raw:v0"), open_in(&cable.far, "raw:v1"));
    assert_eq!(near.record().max_segments, 64);
    for is_ipv4 in [true, false] {
        for (count, len) in [(2, 1040), (15, 4112), (60, 1040), (64, 64)] {
            let (bytes, _, split) = superframe(is_ipv4, count, len);
            assert!(put(&mut near, &bytes, Some(split)));
            near.flush(Instant::ZERO).unwrap();
            let arrived = receive(&mut far, 1);
            assert_eq!(arrived[0].segment_len, Some(len as u16), "{count} of {len}");
            // The length fields and the checksum cover the joined frame.
            assert_eq!(arrived[0].bytes, bytes, "{count} of {len}");
        }
    }
    assert_eq!(counter(&near, "raw_tx_superframes"), 8);
    assert_eq!(counter(&far, "raw_rx_superframes"), 8);
}

#[test]
fn sixty_four_frames_go_in_one_call() {
    let Some(cable) = Cable::new(1500) else { return };
    let (mut near, _host) = open_in(&cable.near, "raw:v0");
    send(&mut near, &(0..3000).map(|psn| frame(PLAIN, psn, 1024)).collect::<Vec<_>>());
    assert_eq!(counter(&near, "raw_tx_frames"), 3000);
    assert!(counter(&near, "raw_tx_calls") <= 100);
}

#[test]
fn the_kernel_makes_good_datagrams_of_a_superframe() {
    let Some(cable) = Cable::new(4200) else { return };
    let (mut near, _host) = open_in(&cable.near, "raw:v0");
    // The receiving kernel verifies every checksum.
    for (is_ipv4, address) in [(true, "198.18.0.2:4791"), (false, "[2001:db8::2]:4791")] {
        let socket = cable.far.run(move || UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let (bytes, datagrams, split) = superframe(is_ipv4, 15, 4112);
        assert!(put(&mut near, &bytes, Some(split)));
        near.flush(Instant::ZERO).unwrap();
        for (index, datagram) in datagrams.iter().enumerate() {
            let mut found = vec![0; 9000];
            let len = socket.recv(&mut found).unwrap_or_else(|error| panic!("{address}, {index}: {error}"));
            assert!(found[..len] == **datagram, "{address}, datagram {index}");
        }
    }
}

/// Regression: a frame that the kernel refuses with ENOMEM was retried forever, and later frames waited.
#[cfg(feature = "whole")]
#[test]
fn a_frame_that_the_kernel_never_accepts_does_not_stop_the_others() {
    let Some(cable) = Cable::new(1500) else { return };
    let mut near = cable.near.run(|| open_whole(&"raw:v0".parse().unwrap())).unwrap();
    let mut far = cable.far.run(|| open_whole(&"raw:v1".parse().unwrap())).unwrap();
    // GRE with a sequence number, which its packets would share, around TCP: it cannot be split.
    let mut joined = [&FAR.0[..], &NEAR.0, &[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 47, 0, 0]].concat();
    joined.extend([198, 18, 0, 1, 198, 18, 0, 2, 0x10, 0, 8, 0, 0, 0, 0, 1]);
    joined.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 198, 19, 0, 1, 198, 19, 0, 2]);
    joined.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    joined.extend([7; 5000]);
    let words = [82, 1000, 62, 16].map(u16::to_ne_bytes);
    let mut offload = Offload([1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    offload.0[2..].copy_from_slice(words.as_flattened());
    let plain = [&[0xff; 6][..], &NEAR.0, &[0x88, 0xb5], &[7; 60]].concat();
    assert!(near.send_whole(offload, &joined) && near.send_whole(Offload::NONE, &plain));
    let mut flushes = 0;
    near.flush(Instant::ZERO).unwrap();
    while near.deadline().is_some() {
        flushes += 1;
        assert!(flushes < 10_000, "the frame is tried again without end");
        near.flush(Instant::from_nanos(flushes)).unwrap();
    }
    let dropped = counter(&near, "raw_tx_gave_up") + counter(&near, "raw_tx_refused");
    assert_eq!((dropped, counter(&near, "raw_tx_frames")), (1, 1));
    let (mut has_arrived, end) = (false, Clock::now() + Duration::from_secs(10));
    while !has_arrived {
        assert!(Clock::now() < end, "the frame behind it did not arrive");
        far.receive_whole(&mut |frame| has_arrived |= frame.bytes == plain).unwrap();
    }
}

/// Runs in a process that this test starts as an ordinary user: a packet socket in its own network.
fn as_ordinary_user() {
    let ip = |line: &str| {
        let output = Command::new("ip").args(line.split(' ')).output().expect("running ip");
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    ip("link add v0 address 02:00:00:00:00:01 type veth peer name v1 address 02:00:00:00:00:02");
    for line in [
        "address add 198.18.0.1/24 dev v0",
        "address add 198.18.1.2/24 dev v1",
        "link set v0 up",
        "link set v1 up",
    ] {
        ip(line);
    }
    settle_here();
    let (mut near, mut host) = open(&"raw:v0".parse().unwrap()).unwrap();
    let (mut far, _far_host) = open(&"raw:v1".parse().unwrap()).unwrap();
    assert_ne!(host.resolve(Instant::from_nanos(1), "198.18.0.9".parse().unwrap()), Resolution::Known(FAR));
    assert!(
        matches!(availability(), Availability::Usable(list) if list.iter().any(|it| it.interface == "v1"))
    );
    check_way(&mut near, &mut far, &[frame(PLAIN, 1, 1024)]);
    let (bytes, _, split) = superframe(true, 15, 1040);
    assert!(put(&mut near, &bytes, Some(split)));
    near.flush(Instant::ZERO).unwrap();
    assert_eq!(receive(&mut far, 1)[0].segment_len, Some(1040));
    // XDP programs need other privileges, and the error names them.
    drop((near, far, host, _far_host));
    let error = crate::xdp::open(&"xdp:v0".parse().unwrap()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("CAP_BPF") && error.contains("udp:ADDRESS"), "{error}");
    let lacks = crate::xdp::availability();
    assert!(matches!(&lacks, Availability::Lacks(what) if what.contains("CAP_BPF")), "{lacks:?}");
}

/// Runs in a process that this test starts as an ordinary user without its own network.
fn without_any_privilege() {
    let name = Ipv6Addr::LOCALHOST;
    assert!(UdpSocket::bind((name, 0)).is_ok() || UdpSocket::bind("127.0.0.1:0").is_ok());
    for (error, lacks) in [
        (socket::probe().map(|_| ()).unwrap_err(), availability()),
        (io::ErrorKind::PermissionDenied.into(), crate::xdp::availability()),
    ] {
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(matches!(&lacks, Availability::Lacks(what) if what.contains("CAP_")), "{lacks:?}");
    }
}

#[test]
fn an_ordinary_user_needs_only_a_network_of_its_own() {
    const ROLE: &str = "ROCE_TEST_RAW_ROLE";
    match std::env::var(ROLE).as_deref() {
        Ok("own network") => return as_ordinary_user(),
        Ok(_) => return without_any_privilege(),
        Err(_) => {}
    }
    let test = "raw::tests::an_ordinary_user_needs_only_a_network_of_its_own";
    let program = std::env::current_exe().unwrap();
    let start = |role: &str, wrap: &[&str]| {
        let is_root = rustix::process::getuid().is_root();
        let mut words: Vec<&str> = if is_root { AS_NOBODY.to_vec() } else { Vec::new() };
        words.extend(wrap);
        let mut command = Command::new(words.first().copied().unwrap_or("env"));
        command.args(words.iter().skip(1)).arg(&program).args(["--exact", test, "--nocapture"]);
        command.env(ROLE, role).output()
    };
    let can = start("probe", &["unshare", "-Urn", "--", "true"]).is_ok_and(|output| output.status.success());
    if skip_unless(can, "no user namespaces for ordinary users, or no setpriv and unshare (util-linux)") {
        return;
    }
    for (role, wrap) in [("own network", &["unshare", "-Urn", "--"][..]), ("none", &["env"][..])] {
        let output = start(role, wrap).unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success() && text.contains("1 passed"), "{role}: {text}");
    }
}
