//! Packet sockets at both ends of a cable, in the test's namespaces.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant as Clock};

use roce_packet::FrameHeaders;
use socket2::{Domain, Protocol, Type};

use super::*;
use crate::Device;
use crate::framed::port::Split;
use crate::framed::{FrameSettings, FramedDevice};
use crate::framed::{Host, Resolution};
use crate::ports::{
    Arrived, FAR, NEAR, PLAIN, Shape, check_devices, check_kinds, check_lengths, check_way, frame,
    is_to_be_tried_again, put, receive, send, what_is_taken,
};
use crate::testing::{datagram, path, put as put_datagram};
#[cfg(feature = "whole")]
use crate::whole::WholePort;
use roce_testing::{AS_NOBODY, Cable, Namespace, settle_here, skip_unless};

fn open_in(namespace: &Namespace, spec: &str) -> (RawPort, KernelHost) {
    let spec: RawSpec = spec.parse().unwrap();
    namespace.run(move || open(&spec)).unwrap_or_else(|error| panic!("{error}"))
}

fn counter(port: &dyn FramePort, name: &str) -> u64 {
    let mut found = None;
    port.counters(&mut |known, value| {
        if known == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}

/// A cable with a port at each end.
struct Rig {
    near: RawPort,
    far: RawPort,
    _hosts: [KernelHost; 2],
    cable: Cable,
}

fn rig(mtu: usize) -> Option<Rig> {
    let cable = Cable::new(mtu)?;
    let (near, near_host) = open_in(&cable.near, "raw:v0");
    let (far, far_host) = open_in(&cable.far, "raw:v1");
    Some(Rig { near, far, _hosts: [near_host, far_host], cable })
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
fn every_length_arrives_byte_for_byte() {
    let Some(mut rig) = rig(4200) else { return };
    assert_eq!(rig.near.record().link_mtu, 4200);
    assert_eq!(rig.near.record().bits_per_second, Some(10_000_000_000));
    check_lengths(&mut rig.near, &mut rig.far);
    for (port, name) in
        [(&rig.near, "raw_rx_overflow"), (&rig.far, "raw_rx_overflow"), (&rig.far, "raw_tx_refused")]
    {
        assert_eq!(counter(port, name), 0, "{name}");
    }
}

#[test]
fn every_kind_of_frame_arrives() {
    let Some(mut rig) = rig(4200) else { return };
    check_kinds(&mut rig.near, &mut rig.far);
}

#[test]
fn only_roce_for_us_is_taken() {
    let Some(mut rig) = rig(1500) else { return };
    for (name, bytes, is_taken) in what_is_taken() {
        send(&mut rig.near, std::slice::from_ref(&bytes));
        println!("{name}");
        let arrived = receive(&mut rig.far, usize::from(is_taken));
        let expected = if is_taken { vec![Arrived { bytes, segment_len: None }] } else { Vec::new() };
        assert_eq!(arrived, expected, "{name}");
    }
}

#[test]
fn bursts_of_thousands_are_kept() {
    let Some(mut rig) = rig(4200) else { return };
    let frames: Vec<Vec<u8>> = (0..3000).map(|psn| frame(PLAIN, psn, 1024)).collect();
    check_way(&mut rig.near, &mut rig.far, &frames);
    assert_eq!(counter(&rig.far, "raw_rx_overflow"), 0);
    assert_eq!(counter(&rig.near, "raw_tx_frames"), 3000);
    assert!(counter(&rig.near, "raw_tx_calls") <= 100, "64 frames go in one call");
}

#[test]
fn superframes_stay_whole_between_packet_sockets() {
    let Some(mut rig) = rig(4200) else { return };
    assert_eq!(rig.near.record().max_segments, 64);
    for is_ipv4 in [true, false] {
        for (count, len) in [(2, 1040), (15, 4112), (60, 1040), (64, 64)] {
            let (bytes, _, split) = superframe(is_ipv4, count, len);
            assert!(put(&mut rig.near, &bytes, Some(split)));
            rig.near.flush(Instant::ZERO).unwrap();
            let arrived = receive(&mut rig.far, 1);
            assert_eq!(arrived[0].segment_len, Some(len as u16), "{count} of {len}");
            // The length fields and the checksum cover the joined frame.
            assert_eq!(arrived[0].bytes, bytes, "{count} of {len}");
        }
    }
    assert_eq!(counter(&rig.near, "raw_tx_superframes"), 8);
    assert_eq!(counter(&rig.far, "raw_rx_superframes"), 8);
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

#[test]
fn the_rest_of_the_traffic_goes_on() {
    let Some(rig) = rig(1500) else { return };
    check_other_traffic(&rig.cable);
}

/// Checks TCP, UDP and ping between the kernels at both ends.
pub(crate) fn check_other_traffic(cable: &Cable) {
    for address in ["198.18.0.2", "[2001:db8::2]"] {
        let listener_at = format!("{address}:7777");
        let listener = cable.far.run(move || TcpListener::bind(listener_at)).unwrap();
        let to = listener.local_addr().unwrap();
        let mut stream =
            cable.near.run(move || TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let bytes: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
        let copy = bytes.clone();
        let writer = std::thread::spawn(move || stream.write_all(&copy));
        let mut found = vec![0; bytes.len()];
        accepted.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        accepted.read_exact(&mut found).unwrap();
        writer.join().unwrap().unwrap();
        assert!(found == bytes);

        let there_at = format!("{address}:7778");
        let there = cable.far.run(move || UdpSocket::bind(there_at)).unwrap();
        there.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let to = there.local_addr().unwrap();
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let here = cable.near.run(move || UdpSocket::bind(any)).unwrap();
        here.send_to(b"hello", to).unwrap();
        assert_eq!(there.recv(&mut [0; 9]).unwrap(), 5);
    }
    ping(cable);
}

fn ping(cable: &Cable) {
    let icmp = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4));
    let mut socket = cable.near.run(icmp).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // Echo request, identifier 1, sequence 2, and its checksum.
    let request = [8, 0, 0xf7, 0xfc, 0, 1, 0, 2];
    let to: std::net::SocketAddr = "198.18.0.2:0".parse().unwrap();
    socket.send_to(&request, &to.into()).unwrap();
    let end = Clock::now() + Duration::from_secs(5);
    loop {
        let mut reply = [0; 100];
        let len = socket.read(&mut reply).unwrap();
        if reply[20..len].starts_with(&[0, 0]) && reply[..len].ends_with(&[0, 1, 0, 2]) {
            return;
        }
        assert!(Clock::now() < end, "no answer to a ping");
    }
}

#[test]
fn the_kernel_does_not_call_the_port_unreachable() {
    let Some(mut rig) = rig(1500) else { return };
    for (address, any) in [("198.18.0.1:4791", "0.0.0.0:0"), ("[2001:db8::1]:4791", "[::]:0")] {
        let socket = rig.cable.far.run(move || UdpSocket::bind(any)).unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.send(&[0; 64]).unwrap();
        let error = socket.recv(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{address}: {error}");
        assert_eq!(receive(&mut rig.near, 1).len(), 1);
    }
}

#[test]
fn what_is_too_long_is_dropped_and_counted() {
    let Some(mut rig) = rig(1500) else { return };
    let frames = [frame(PLAIN, 0, 2048), frame(PLAIN, 1, 1024)];
    send(&mut rig.near, &frames);
    assert_eq!(receive(&mut rig.far, 1)[0].bytes, frames[1]);
    assert_eq!(counter(&rig.near, "raw_tx_too_long"), 1);
}

#[test]
fn an_interface_that_goes_down_comes_back() {
    let Some(mut rig) = rig(1500) else { return };
    rig.cable.near.ip(&["link set v0 down"]);
    let kept = frame(PLAIN, 0, 64);
    assert!(put(&mut rig.near, &kept, None));
    rig.near.flush(Instant::ZERO).unwrap();
    assert!(is_to_be_tried_again(&rig.near, Instant::ZERO));
    assert!(receive(&mut rig.far, 0).is_empty());
    rig.cable.near.ip(&["link set v0 up"]);
    rig.cable.settle();
    send(&mut rig.near, &[frame(PLAIN, 1, 64)]);
    assert_eq!(receive(&mut rig.far, 2)[0].bytes, kept);
    let back = Shape { to_far: false, ..PLAIN };
    check_way(&mut rig.far, &mut rig.near, &[frame(back, 2, 64)]);
    // A deleted interface is an error.
    rig.cable.near.ip(&["link delete v0"]);
    assert!(put(&mut rig.near, &frame(PLAIN, 3, 64), None));
    assert!(rig.near.flush(Instant::ZERO).is_err());
}

#[test]
fn a_deleted_interface_is_an_error_for_a_port_that_only_receives() {
    let Some(mut rig) = rig(1500) else { return };
    rig.cable.near.ip(&["link set v0 down"]);
    assert!(receive(&mut rig.near, 0).is_empty(), "it may come up again");
    rig.cable.near.ip(&["link delete v0"]);
    let end = Clock::now() + Duration::from_secs(10);
    let error = loop {
        match FramePort::receive(&mut rig.near, &mut |_| panic!("a frame")) {
            Err(error) => break error,
            Ok(_) => assert!(Clock::now() < end, "no call reports that the interface is deleted"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(error.to_string().contains("interface has been deleted"), "{error}");
}

#[test]
fn errors_say_what_to_do_next() {
    let Some(cable) = Cable::new(1500) else { return };
    let refusal = |spec: &'static str| {
        cable.near.run(move || open(&spec.parse().unwrap()).map(|_| ()).unwrap_err().to_string())
    };
    assert!(refusal("raw:eth7").contains("there is no interface `eth7`; this machine has v0"));
    assert!(refusal("raw:lo").contains("use udp:127.0.0.1"));
    let _first = open_in(&cable.near, "raw:v0");
    assert!(refusal("raw:v0").contains("UDP port 4791 of 198.18.0.1 is taken"));
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

#[test]
fn whole_devices_talk() {
    for options in ["", ",vlan=77,prio=5"] {
        let Some(cable) = Cable::new(4200) else { return };
        let mut devices = [(&cable.near, "v0"), (&cable.far, "v1")].map(|(namespace, name)| {
            let spec: RawSpec = format!("raw:{name}{options}").parse().unwrap();
            let settings = spec.settings;
            let (port, host) = namespace.run(move || open(&spec)).unwrap();
            FramedDevice::new(Box::new(port), Box::new(host), settings)
        });
        let [near, far] = &mut devices;
        check_devices(near, far);
        let superframes = crate::testing::counter(far, "raw_rx_superframes");
        assert_eq!(superframes > 0, options.is_empty(), "{superframes} superframes");
    }
}

#[test]
fn what_could_not_be_reached_once_can_be_reached_later() {
    let Some(cable) = Cable::new(1500) else { return };
    let (port, host) = open_in(&cable.near, "raw:v0");
    let mut device = FramedDevice::new(Box::new(port), Box::new(host), FrameSettings::default());
    let way = |to: &str| path("198.18.0.1".parse().unwrap(), to.parse().unwrap());
    let at = |second: u64| Instant::from_nanos(second * 1_000_000_000);

    // A route that is added later.
    let far = way("198.19.0.1");
    assert!(device.bind_source_port(&far, 49_152).is_err());
    cable.near.ip(&["route add 198.19.0.0/16 via 198.18.0.2"]);
    device.flush(at(1)).unwrap();
    device.bind_source_port(&far, 49_152).unwrap();

    // A peer that is added later.
    let near = way("198.18.0.3");
    device.bind_source_port(&near, 49_152).unwrap();
    device.flush(at(4)).unwrap();
    let error = device.bind_source_port(&near, 49_152).unwrap_err();
    assert!(error.to_string().contains("198.18.0.3 does not answer"), "{error}");
    cable.far.ip(&["address add 198.18.0.3/24 dev v1"]);
    device.flush(at(5)).unwrap();
    device.bind_source_port(&near, 49_152).unwrap();
    let mut now = at(5);
    put_datagram(&mut device, now, &near, &datagram(&near, 0, 64));
    let end = Clock::now() + Duration::from_secs(20);
    while crate::testing::counter(&device, "frame_tx_frames") == 0 {
        now = now.plus_nanos(1_000_000);
        device.flush(now).unwrap();
        assert!(Clock::now() < end, "no request for 198.18.0.3 comes again");
        std::thread::sleep(Duration::from_millis(1));
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
    let (mut near, mut host) = open(&"raw:v0".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"));
    let (mut far, _far_host) = open(&"raw:v1".parse().unwrap()).unwrap_or_else(|error| panic!("{error}"));
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
