//! Ports of pnet_datalink at both ends of a cable, in the test's namespaces.

use std::sync::mpsc;
use std::time::Instant as Clock;

use roce_testing::Cable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::ports::{FAR, PLAIN, Shape, frame, port_counter as counter, put, receive, send};
use crate::suite::PortKind;

const PNET: PortKind = PortKind {
    name: "pnet",
    open: |spec| open(spec).map(|(port, host, _)| (Box::new(port) as _, Box::new(host) as _)),
    reports_tags: false,
    // The socket of pnet_datalink has the default queue of the kernel, with room for 48 of the longest
    // frames.
    at_once: 24,
};

const WITH_PRIORITY: FrameSettings = FrameSettings { vlan: None, priority: Some(5) };

crate::suite::port_suite!(PNET, [FrameSettings::default(), WITH_PRIORITY]);

#[test]
fn specifications_have_a_priority_and_no_vlan() {
    assert_eq!(parse("pnet:eth0").unwrap(), ("eth0".to_owned(), FrameSettings::default()));
    assert_eq!(parse("pnet:eth0.100,prio=5").unwrap(), ("eth0.100".to_owned(), WITH_PRIORITY));
    for (spec, part) in [
        ("pnet", "the name of an Ethernet interface"),
        ("pnet:a/b", "`a/b`"),
        ("pnet:eth0,fast", "`fast`: expected prio=NUMBER"),
        ("pnet:eth0,queue=1", "`queue=1`: expected prio=NUMBER"),
        ("pnet:eth0,prio=8", "from 0 to 7"),
        ("pnet:eth0,vlan=7", "pnet:eth0.100, because pnet_datalink does not report tags"),
    ] {
        let error = parse(spec).unwrap_err().to_string();
        assert!(error.contains(part), "{spec}: {error}");
    }
}

#[track_caller]
fn open_both(cable: &Cable) -> [(PnetPort, KernelHost, FrameSettings); 2] {
    [(&cable.near, "pnet:v0"), (&cable.far, "pnet:v1")]
        .map(|(namespace, spec)| namespace.run(move || open(spec)).unwrap())
}

/// Waits until a counter has reached a value.
#[track_caller]
fn wait_for(port: &PnetPort, name: &str, value: u64) {
    let end = Clock::now() + Duration::from_secs(10);
    while counter(port, name) < value {
        assert!(Clock::now() < end, "{name} is {} and not {value}", counter(port, name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Delivers what a test sends, to a receiver without an interface.
struct Scripted(mpsc::Receiver<io::Result<Vec<u8>>>, Vec<u8>);

impl DataLinkReceiver for Scripted {
    fn next(&mut self) -> io::Result<&[u8]> {
        match self.0.recv_timeout(Duration::from_millis(10)) {
            Ok(frame) => self.1 = frame?,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
        Ok(&self.1)
    }
}

fn scripted() -> (mpsc::Sender<io::Result<Vec<u8>>>, Receiver) {
    let (sender, frames) = mpsc::channel();
    let link = Link {
        name: "gone0".to_owned(),
        index: 7,
        mac: FAR,
        mtu: 4200,
        bits_per_second: None,
        driver: String::new(),
        rx_queues: None,
        tx_queues: None,
    };
    (sender, Receiver::start(Box::new(Scripted(frames, Vec::new())), &link).unwrap())
}

/// Waits until the thread has stored or dropped this number of frames.
#[track_caller]
fn wait_for_thread(receiver: &Receiver, count: u64) {
    let end = Clock::now() + Duration::from_secs(10);
    while receiver.counters().frames + receiver.counters().overflow < count {
        assert!(Clock::now() < end, "the thread does not receive");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_readable(receiver: &Receiver) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(receiver.as_fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
}

#[test]
fn a_full_queue_drops_frames_and_counts_them() {
    let (sender, mut receiver) = scripted();
    let frame = |psn| frame(PLAIN, psn, 4096);
    let fits = (receive::QUEUE_BYTES / frame(0).len()) as u32;
    (0..fits + 10).for_each(|psn| sender.send(Ok(frame(psn))).unwrap());
    wait_for_thread(&receiver, u64::from(fits) + 10);
    let mut arrived = Vec::new();
    while receiver.receive(&mut |incoming| arrived.push(incoming.head.to_vec())).unwrap() > 0 {}
    assert!(arrived.iter().eq(&(0..fits).map(frame).collect::<Vec<_>>()));
    assert_eq!(receiver.counters().overflow, 10);
    sender.send(Ok(frame(7))).unwrap();
    wait_for_thread(&receiver, u64::from(fits) + 11);
    assert_eq!(receiver.receive(&mut |incoming| assert!(incoming.head == frame(7))).unwrap(), 1);
}

/// The runtime waits for the descriptor.
#[test]
fn the_descriptor_is_readable_while_frames_are_left() {
    let (sender, mut receiver) = scripted();
    assert!(!is_readable(&receiver));
    (0..100).for_each(|psn| sender.send(Ok(frame(PLAIN, psn, 64))).unwrap());
    wait_for_thread(&receiver, 100);
    let mut left = 100;
    while left > 0 {
        assert!(is_readable(&receiver), "{left} frames are left");
        left -= receiver.receive(&mut |_| ()).unwrap();
    }
    assert_eq!(receiver.receive(&mut |_| ()).unwrap(), 0);
    assert!(!is_readable(&receiver));
}

#[test]
fn the_thread_ends_with_the_port() {
    let (sender, receiver) = scripted();
    sender.send(Ok(frame(PLAIN, 1, 64))).unwrap();
    drop(receiver);
    let end = Clock::now() + Duration::from_secs(10);
    // Sending fails when the thread has dropped its source.
    while sender.send(Ok(frame(PLAIN, 1, 64))).is_ok() {
        assert!(Clock::now() < end, "the thread does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn frames_before_a_failure_are_received() {
    let (sender, mut receiver) = scripted();
    sender.send(Ok(frame(PLAIN, 1, 64))).unwrap();
    sender.send(Err(io::Error::from_raw_os_error(libc::ENETDOWN))).unwrap();
    let end = Clock::now() + Duration::from_secs(10);
    while sender.send(Ok(Vec::new())).is_ok() {
        assert!(Clock::now() < end, "the thread does not notice that gone0 does not exist");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(receiver.receive(&mut |_| ()).unwrap(), 1);
    for _ in 0..2 {
        let error = receiver.receive(&mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("interface has been deleted"), "{error}");
        assert!(is_readable(&receiver), "a thread that waits looks");
    }
    assert_eq!(receiver.counters().errors, 1);
}

#[test]
fn joined_and_damaged_frames_are_counted() {
    let Some(cable) = Cable::new(4200) else { return };
    let [(mut near, _near_host, _), (mut far, _far_host, _)] = open_both(&cable);
    let mut damaged = frame(PLAIN, 1, 64);
    // The checksum of the IPv4 header.
    damaged[24] ^= 1;
    let from_far = frame(Shape { to_far: false, ..PLAIN }, 1, 64);
    send(&mut near, &[damaged, from_far]);
    wait_for(&far, "pnet_rx_malformed", 1);
    // A higher MTU than the one that the port was opened with.
    cable.near.ip(&["link set v0 mtu 9000"]);
    cable.far.ip(&["link set v1 mtu 9000"]);
    let long = [frame(PLAIN, 2, 4096), vec![0; 100]].concat();
    send(&mut near, &[long, frame(PLAIN, 3, 64)]);
    assert_eq!(receive(&mut far, 1)[0].bytes, frame(PLAIN, 3, 64));
    assert_eq!(counter(&far, "pnet_rx_too_long"), 1);
    assert_eq!((counter(&far, "pnet_rx_frames"), counter(&far, "pnet_rx_malformed")), (1, 1));
    assert!(counter(&far, "pnet_rx_others") >= 1, "the frame with the address of the far end as its source");
}

#[test]
fn a_full_port_lends_no_slot_until_it_has_sent() {
    let Some(cable) = Cable::new(1500) else { return };
    let [(mut near, _near_host, _), _far] = open_both(&cable);
    let mut count = 0;
    while put(&mut near, &frame(PLAIN, count, 64), None) {
        count += 1;
    }
    assert!(near.slot().is_none() && count >= 64, "{count}");
    // The kernel of the far end may not have room for all of them.
    send(&mut near, &[frame(PLAIN, count, 64)]);
    assert_eq!(counter(&near, "pnet_tx_frames"), u64::from(count) + 1);
    assert!(near.slot().is_some());
}
