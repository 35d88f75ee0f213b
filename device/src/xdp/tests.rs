//! AF_XDP at both ends of a cable, in the test's namespaces.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant as Clock};

use super::umem::{RX_CHUNKS, TX_CHUNKS};
use super::*;
use crate::framed::FramedDevice;
pub(super) use crate::ports::port_counter as counter;
use crate::ports::{
    PLAIN, Shape, check_devices, check_kinds, check_lengths, check_way, frame, is_to_be_tried_again, put,
    receive, receive_now, send, what_is_taken,
};
use crate::suite::check_other_traffic;
use roce_testing::skip_unless;
use roce_testing::{Cable, Namespace};

pub(super) const MODES: [&str; 2] = ["generic", "native"];

fn try_open(namespace: &Namespace, spec: &str) -> Result<(XdpPort<OwnBackend>, KernelHost), OpenError> {
    let spec: XdpSpec = spec.parse().unwrap();
    namespace.run(move || open_own(&spec))
}

#[track_caller]
fn open_in(namespace: &Namespace, spec: &str) -> (XdpPort<OwnBackend>, KernelHost) {
    try_open(namespace, spec).unwrap()
}

/// Returns whether this process may load programs into the kernel, which a user namespace does not allow.
pub(super) fn has_privilege() -> bool {
    let can = socket::create().and_then(|_| bpf::create_socket_map(1)).is_ok();
    !skip_unless(can, "AF_XDP takes CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW")
}

/// A cable with a port at each end. Dropped in this order, so the queues are free before the cable ends.
struct Rig {
    near: XdpPort<OwnBackend>,
    far: XdpPort<OwnBackend>,
    _hosts: [KernelHost; 2],
    cable: Cable,
}

fn rig(mtu: usize, mode: &str) -> Option<Rig> {
    if !has_privilege() {
        return None;
    }
    let cable = Cable::new(mtu)?;
    let (near, near_host) = open_in(&cable.near, &format!("xdp:v0,mode={mode}"));
    let (far, far_host) = open_in(&cable.far, &format!("xdp:v1,mode={mode}"));
    let is_native = u64::from(mode == "native");
    assert_eq!((counter(&near, "xdp_native"), counter(&far, "xdp_native")), (is_native, is_native));
    Some(Rig { near, far, _hosts: [near_host, far_host], cable })
}

/// Checks that the kernel has counted no problem.
#[track_caller]
fn assert_clean(port: &XdpPort<OwnBackend>) {
    for name in ["xdp_rx_dropped", "xdp_rx_invalid", "xdp_tx_invalid", "xdp_rx_ring_full", "xdp_tx_refused"] {
        assert_eq!(counter(port, name), 0, "{name}");
    }
}

#[test]
fn every_length_arrives_byte_for_byte() {
    for mode in MODES {
        let Some(mut rig) = rig(4200, mode) else { return };
        check_lengths(&mut rig.near, &mut rig.far, 300);
        assert!(counter(&rig.far, "xdp_rx_fragmented") >= 300, "{mode}: 4170 bytes take two chunks");
        assert_clean(&rig.near);
        assert_clean(&rig.far);
        // Every slot was returned.
        rig.near.backend.reap();
        assert_eq!(rig.near.backend.free.len(), TX_SLOTS as usize, "{mode}");
    }
}

#[test]
fn every_kind_of_frame_arrives() {
    for mode in MODES {
        let Some(mut rig) = rig(4200, mode) else { return };
        check_kinds(&mut rig.near, &mut rig.far, true);
    }
}

#[test]
fn only_roce_for_us_is_taken() {
    for mode in MODES {
        let Some(mut rig) = rig(1500, mode) else { return };
        for (name, bytes, is_taken) in what_is_taken() {
            send(&mut rig.near, std::slice::from_ref(&bytes));
            let arrived = receive(&mut rig.far, usize::from(is_taken));
            let expected: Vec<&[u8]> = if is_taken { vec![&bytes] } else { Vec::new() };
            assert_eq!(
                arrived.iter().map(|it| it.bytes.as_slice()).collect::<Vec<_>>(),
                expected,
                "{mode}: {name}"
            );
        }
    }
}

#[test]
fn bursts_of_thousands_are_kept() {
    for mode in MODES {
        let Some(mut rig) = rig(4200, mode) else { return };
        // One frame per chunk, without a receiving call meanwhile. On a virtual cable, the driver's own ring
        // holds 256 entries, and the kernel empties it on the sending side.
        let count = if mode == "native" { 3000 } else { 4000 };
        let frames: Vec<Vec<u8>> = (0..count).map(|psn| frame(PLAIN, psn, 1024)).collect();
        if mode == "generic" {
            check_way(&mut rig.near, &mut rig.far, &frames);
        } else {
            let mut arrived = Vec::new();
            for frames in frames.chunks(128) {
                send(&mut rig.near, frames);
                receive_now(&mut rig.far, &mut arrived);
            }
            let end = Clock::now() + Duration::from_secs(5);
            while arrived.len() < frames.len() && Clock::now() < end {
                receive_now(&mut rig.far, &mut arrived);
            }
            assert!(arrived.iter().map(|it| &it.bytes).eq(&frames), "{} arrived", arrived.len());
        }
        assert_clean(&rig.far);
        assert_eq!(counter(&rig.far, "xdp_rx_fill_empty"), 0, "{mode}");
    }
}

#[test]
fn a_port_is_full_until_the_kernel_gives_slots_back() {
    let Some(mut rig) = rig(4200, "generic") else { return };
    let frames: Vec<Vec<u8>> = (0..TX_SLOTS).map(|psn| frame(PLAIN, psn, 4096)).collect();
    for bytes in &frames {
        assert!(put(&mut rig.near, bytes, None));
    }
    assert!(!put(&mut rig.near, &frames[0], None), "all slots are written");
    send(&mut rig.near, &[]);
    assert_eq!(receive(&mut rig.far, frames.len()).len(), frames.len());
    assert!(put(&mut rig.near, &frames[0], None));
    // A lent slot stays lent, with its contents.
    rig.near.slot().unwrap()[0] = 0x77;
    assert_eq!(rig.near.slot().unwrap()[0], 0x77);
}

/// The kernel reports its reading of a ring once per batch. Earlier, it returns chunks whose entries remain.
#[test]
fn rings_have_room_for_chunks_that_come_back_early() {
    let Some(mut rig) = rig(4200, "generic") else { return };
    // Frames wait, and the kernel is shown nothing here, so this is the minimum room.
    send(&mut rig.far, &[frame(Shape { to_far: false, ..PLAIN }, 1, 64)]);
    let end = Clock::now() + Duration::from_secs(10);
    while rig.near.backend.rings.rx.available() == 0 {
        assert!(Clock::now() < end, "no frame arrives");
        std::thread::sleep(Duration::from_millis(1));
    }
    let fill = &mut rig.near.backend.rings.fill;
    assert!((1..RX_CHUNKS).all(|_| fill.push(0)), "every chunk may come back");
    while fill.push(0) {}
    assert_eq!(fill.room(1), 0);
    assert_eq!(rig.near.receive(&mut |_| panic!("its chunk could not go back")).unwrap(), 0);

    let tx = &mut rig.near.backend.rings.tx;
    let nothing = XdpDesc { addr: 0, len: 0, options: XdpDescOptions::empty() };
    assert!((0..TX_CHUNKS).all(|_| tx.push(nothing)), "every slot may come back");
    assert!(rig.near.slot().is_some(), "so that there is room for one more frame");
    rig.near.backend.lent = None;
    while rig.near.backend.rings.tx.room(SLOT_CHUNKS) >= SLOT_CHUNKS {
        assert!(rig.near.backend.rings.tx.push(nothing));
    }
    assert!(rig.near.slot().is_none(), "a slot needs room for a whole frame");
}

#[test]
fn long_frames_of_more_than_two_chunks_are_put_together() {
    for mode in MODES {
        let Some(mut rig) = rig(9000, mode) else { return };
        // The port never sends such long frames; the kernel at the other end does.
        let socket = rig.cable.far.run(|| std::net::UdpSocket::bind("198.18.0.2:0")).unwrap();
        let payload: Vec<u8> = (0..8900_usize).map(|at| (at * 7) as u8).collect();
        socket.send_to(&payload, "198.18.0.1:4791").unwrap();
        let arrived = receive(&mut rig.near, 1);
        assert_eq!(arrived[0].bytes.len(), 42 + payload.len(), "{mode}");
        assert!(arrived[0].bytes[42..] == payload, "{mode}");
    }
}

#[test]
fn superpackets_of_a_kernel_are_counted_where_they_cannot_be_told_apart() {
    let Some(mut rig) = rig(1500, "generic") else { return };
    let socket = rig.cable.far.run(|| std::net::UdpSocket::bind("198.18.0.2:0")).unwrap();
    let one = 1040_i32;
    // SAFETY: the value outlives the call and its size is given.
    let result = unsafe {
        use std::os::fd::AsRawFd;
        let fd = socket.as_raw_fd();
        libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const one).cast(), 4)
    };
    assert_eq!(result, 0);
    socket.send_to(&[7; 5 * 1040], "198.18.0.1:4791").unwrap();
    assert!(receive(&mut rig.near, 0).is_empty());
    assert_eq!(counter(&rig.near, "xdp_rx_superpackets"), 1);
}

#[test]
fn superpackets_of_a_kernel_are_split_in_native_mode() {
    let Some(mut rig) = rig(1500, "native") else { return };
    let socket = rig.cable.far.run(|| std::net::UdpSocket::bind("198.18.0.2:0")).unwrap();
    let one = 1040_i32;
    // SAFETY: the value outlives the call and its size is given.
    let result = unsafe {
        use std::os::fd::AsRawFd;
        let fd = socket.as_raw_fd();
        libc::setsockopt(fd, libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const one).cast(), 4)
    };
    assert_eq!(result, 0);
    socket.send_to(&[7; 5 * 1040], "198.18.0.1:4791").unwrap();
    let arrived = receive(&mut rig.near, 5);
    assert!(arrived.iter().all(|it| it.bytes.len() == 42 + 1040));
}

#[test]
fn the_rest_of_the_traffic_goes_on() {
    for mode in MODES {
        let Some(rig) = rig(1500, mode) else { return };
        check_other_traffic(&rig.cable);
    }
}

#[test]
fn whole_devices_talk() {
    for options in ["", ",mode=native", ",vlan=77,prio=5"] {
        if !has_privilege() {
            return;
        }
        let Some(cable) = Cable::new(4200) else { return };
        let mut devices = [(&cable.near, "v0"), (&cable.far, "v1")].map(|(namespace, name)| {
            let spec: XdpSpec = format!("xdp:{name}{options}").parse().unwrap();
            let settings = spec.settings;
            let (port, host) = namespace.run(move || open_own(&spec)).unwrap();
            FramedDevice::new(Box::new(port), Box::new(host), settings)
        });
        let [near, far] = &mut devices;
        check_devices(near, far);
        check_devices(near, far);
    }
}

#[test]
fn a_packet_socket_is_at_the_other_end() {
    for mode in MODES {
        if !has_privilege() {
            return;
        }
        let Some(cable) = Cable::new(4200) else { return };
        let (mut near, _near_host) = open_in(&cable.near, &format!("xdp:v0,mode={mode}"));
        let (mut far, _far_host) = cable.far.run(|| crate::raw::open(&"raw:v1".parse().unwrap())).unwrap();
        check_lengths(&mut near, &mut far, 300);
        check_kinds(&mut near, &mut far, true);
    }
}

#[test]
fn it_can_be_opened_again_and_again_at_once() {
    if !has_privilege() {
        return;
    }
    let Some(cable) = Cable::new(4200) else { return };
    for round in 0..50_u32 {
        let mode = MODES[round as usize % 2];
        let (mut near, near_host) = open_in(&cable.near, &format!("xdp:v0,mode={mode}"));
        let (mut far, far_host) = open_in(&cable.far, &format!("xdp:v1,mode={mode}"));
        check_way(&mut near, &mut far, &[frame(PLAIN, round, 4096)]);
        let back = Shape { to_far: false, ..PLAIN };
        check_way(&mut far, &mut near, &[frame(back, round, 1024)]);
        drop((near, near_host, far, far_host));
        until_the_port_is_free(&cable.near);
        until_the_port_is_free(&cable.far);
    }
}

/// Waits until port 4791 is free. Closing a socket frees it at once, unless a process has a copy: each
/// program that another test starts has one between fork and exec, which takes a while on a busy machine.
#[track_caller]
fn until_the_port_is_free(namespace: &Namespace) {
    let is_held = || {
        ["udp", "udp6"].iter().any(|table| {
            let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
            // Local address and port in hexadecimal digits.
            text.lines()
                .any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(":12B7")))
        })
    };
    let end = Clock::now() + Duration::from_secs(20);
    while namespace.run(is_held) {
        assert!(Clock::now() < end, "port 4791 is still held");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(super) fn has_program(namespace: &Namespace) -> bool {
    let output = namespace.run(|| Command::new("ip").args(["link", "show", "dev", "v0"]).output()).unwrap();
    String::from_utf8(output.stdout).unwrap().contains("xdp")
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    const ROLE: &str = "ROCE_TEST_XDP_ROLE";
    if std::env::var_os(ROLE).is_some() {
        // The process that is killed.
        let _held = open_own(&"xdp:v0".parse().unwrap()).unwrap();
        println!("\nopened");
        std::thread::sleep(Duration::from_secs(30));
        return;
    }
    if !has_privilege() {
        return;
    }
    let Some(cable) = Cable::new(4200) else { return };
    let mut child = cable.near.run(|| {
        let program = std::env::current_exe().unwrap();
        let test = "xdp::tests::a_killed_process_leaves_nothing_behind";
        let mut command = Command::new(program);
        command.args(["--exact", test, "--nocapture"]).env(ROLE, "child").stdout(Stdio::piped());
        command.spawn().unwrap()
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "opened"), "the other process opened no device");
    assert!(has_program(&cable.near));
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut near, _near_host) = open_in(&cable.near, "xdp:v0");
    let (mut far, _far_host) = open_in(&cable.far, "xdp:v1");
    check_way(&mut near, &mut far, &[frame(PLAIN, 1, 4096)]);
    assert!(has_program(&cable.near));
    drop(near);
    let end = Clock::now() + Duration::from_secs(2);
    while has_program(&cable.near) {
        assert!(Clock::now() < end, "the program is still there");
    }
}

#[test]
fn an_interface_that_goes_down_comes_back() {
    let Some(mut rig) = rig(1500, "generic") else { return };
    rig.cable.near.ip(&["link set v0 down"]);
    let lost = frame(PLAIN, 0, 64);
    assert!(put(&mut rig.near, &lost, None));
    rig.near.flush(Instant::ZERO).unwrap();
    assert!(is_to_be_tried_again(&rig.near, Instant::ZERO));
    rig.cable.near.ip(&["link set v0 up"]);
    rig.cable.settle();
    send(&mut rig.near, &[frame(PLAIN, 1, 64)]);
    let arrived = receive(&mut rig.far, 2);
    assert_eq!(arrived[0].bytes, lost);
    let back = Shape { to_far: false, ..PLAIN };
    check_way(&mut rig.far, &mut rig.near, &[frame(back, 2, 64)]);
    // A deleted interface is an error.
    rig.cable.near.ip(&["link delete v0"]);
    assert!(put(&mut rig.near, &lost, None));
    assert!(rig.near.flush(Instant::ZERO).is_err());
}

/// Regression: a process that only receives waited forever, because polling reported no error.
#[test]
fn a_deleted_interface_is_an_error_for_a_port_that_only_receives() {
    let Some(mut rig) = rig(1500, "generic") else { return };
    let mut now = Instant::ZERO;
    rig.near.flush(now).unwrap();
    rig.cable.near.ip(&["link set v0 down"]);
    now = rig.near.deadline().expect("it asks now and then");
    rig.near.flush(now).expect("it may come up again");
    rig.cable.near.ip(&["link delete v0"]);
    let end = Clock::now() + Duration::from_secs(10);
    let error = loop {
        now = rig.near.deadline().expect("it asks now and then");
        match rig.near.flush(now) {
            Err(error) => break error,
            Ok(()) => assert!(Clock::now() < end, "no call reports that the interface is deleted"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(error.to_string().contains("interface has been deleted"), "{error}");
}

#[test]
fn errors_say_what_to_do_next() {
    if !has_privilege() {
        return;
    }
    let Some(cable) = Cable::new(1500) else { return };
    let refusal = |spec: &str| try_open(&cable.near, spec).map(|_| ()).unwrap_err().to_string();
    let error = refusal("xdp:v0,queue=7");
    assert!(error.contains("v0 has 1 receive queues") && error.contains("ethtool -L v0"), "{error}");
    let error = refusal("xdp:nothing");
    assert!(error.contains("there is no interface `nothing`; this machine has v0"), "{error}");
    // A program that another process attached.
    let other = cable.near.run(|| {
        let map = bpf::create_socket_map(1).unwrap();
        let program =
            bpf::load(&program::roce_program(std::os::fd::AsRawFd::as_raw_fd(&map), NOBODY), true).unwrap();
        let link = Link::find("xdp:v0", "v0").unwrap();
        bpf::attach(program.as_fd(), link.index, false).unwrap()
    });
    for spec in ["xdp:v0", "xdp:v0,mode=native"] {
        let error = refusal(spec);
        assert!(
            error.contains("another XDP program is on v0") && error.contains("xdp off"),
            "{spec}: {error}"
        );
    }
    drop(other);
    drop(open_in(&cable.near, "xdp:v0"));
}

#[test]
fn a_queue_that_only_receives_is_refused() {
    if !has_privilege() {
        return;
    }
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip(&[
        "link add v0 numrxqueues 4 numtxqueues 2 type veth peer name v1",
        "address add 198.18.0.1/24 dev v0",
        "link set v0 up",
        "link set v1 up",
    ]);
    let error = try_open(&namespace, "xdp:v0,queue=2").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("v0 has 2 send queues") && error.contains("ethtool -L v0 tx"), "{error}");
    let error = try_open(&namespace, "xdp:v0,queue=4").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("v0 has 4 receive queues"), "{error}");
    drop(open_in(&namespace, "xdp:v0,queue=1"));
}

#[cfg(not(feature = "xsk-rs"))]
#[test]
fn the_other_backend_says_how_to_get_it() {
    let error = open(&"xdp:lo,backend=libxdp".parse().unwrap()).map(|_| ()).unwrap_err().to_string();
    for part in ["device `xdp:lo,backend=libxdp`", "--features xsk-rs", "without backend=libxdp"] {
        assert!(error.contains(part), "{error}");
    }
}

const NOBODY: roce_packet::MacAddr = roce_packet::MacAddr([2, 0, 0, 0, 0, 0x7f]);

#[test]
fn a_driver_without_programs_is_named() {
    if !has_privilege() {
        return;
    }
    let Some(namespace) = Namespace::new() else { return };
    let make = |kind| move || Command::new("ip").args(["link", "add", "d0", "type", kind]).output();
    let is_made =
        ["dummy", "ifb"].into_iter().any(|kind| namespace.run(make(kind)).unwrap().status.success());
    if skip_unless(is_made, "this kernel has neither dummy nor ifb interfaces") {
        return;
    }
    namespace.ip(&["address add 198.18.0.1/24 dev d0", "link set d0 up"]);
    let error = try_open(&namespace, "xdp:d0,mode=native").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the driver of d0") && error.contains("use mode=generic"), "{error}");
    // In mode auto, it uses the other mode.
    let (port, _host) = open_in(&namespace, "xdp:d0");
    assert_eq!(counter(&port, "xdp_native"), 0);
}
