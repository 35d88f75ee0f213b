//! Addresses with more devices than the initial sockets of a group can serve.

use std::sync::atomic::{AtomicBool, Ordering};

use roce_device::ProcessSlot;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::names::take_names;
use super::*;

fn first_qpn(slot: u16) -> u32 {
    ProcessSlot::new(slot).unwrap().first_qpn()
}

/// Raises the descriptor limit of this process to its maximum: hundreds of devices need thousands.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Sends datagrams for the first and last number of each slot and of its connections. Checks who gets them.
#[track_caller]
fn check_that_each_gets_its_own(devices: &mut [UdpDevice], to: SocketAddr) {
    let sender = sender_to(to);
    let mut expected = Vec::new();
    // Send only a few at once, because no device receives in the meantime.
    for some in devices.chunks_mut(16) {
        expected.clear();
        for device in &*some {
            let slot = device.capabilities().process_slot;
            let last = slot.first_qpn() + (1 << slot.bits_below()) - 1;
            let own = [slot.first_qpn(), last, slot.first_qpn() << 8, last << 8 | 0xff];
            sender.send(&datagram(own[0], own[0], 80)).unwrap();
            sender.send(&datagram(own[1], own[1], 80)).unwrap();
            sender.send(&message(0x13, own[2], 5 << 24, own[2])).unwrap();
            sender.send(&message(SIDR_REP, own[3], own[3], 5 << 24)).unwrap();
            expected.push(own.to_vec());
            expected.last_mut().unwrap().sort_unstable();
        }
        let count = expected.iter().map(Vec::len).sum();
        assert_eq!(numbers(some, count), expected, "slots {:?}", slots(some));
    }
}

#[test]
fn a_group_grows_when_all_slots_are_taken() {
    raise_limit();
    for (text, to) in addresses() {
        let mut devices: Vec<_> = (0..200).map(|_| open(&text)).collect();
        assert_eq!(slots(&devices), (1..=200).collect::<Vec<_>>());
        check_that_each_gets_its_own(&mut devices, to);
        // A superpacket for slots that begin with the same byte.
        let places = [64_u32, 65, 66, 64, 199];
        let datagrams: Vec<_> = (0..)
            .zip(places)
            .map(|(number, slot)| datagram(first_qpn(slot as u16) + 9, number, 300))
            .collect();
        let from = if to.is_ipv4() { format!("udp:{}", own_address()) } else { "udp:[::1]".to_owned() };
        send_joined(&from, to, &datagrams);
        let found = numbers(&mut devices, places.len());
        assert_eq!([63, 64, 65, 198].map(|at| found[at].clone()), [vec![0, 3], vec![1], vec![2], vec![4]]);
        // Some devices are closed, in the first chunk and in later ones, and as many are opened.
        close(devices.extract_if(.., |device| slot(device) % 3 == 1).collect::<Vec<_>>());
        check_that_each_gets_its_own(&mut devices, to);
        let again: Vec<_> = (0..67).map(|_| open(&text)).collect();
        assert_eq!(slots(&again), (1..=200).step_by(3).collect::<Vec<_>>());
        devices.extend(again);
        check_that_each_gets_its_own(&mut devices, to);
        // Only one device is left, in the last chunk, and it admits others.
        close(devices.extract_if(.., |device| slot(device) != 200).collect::<Vec<_>>());
        let again = [open(&text), open(&text)];
        assert_eq!(slots(&again), [1, 2]);
        devices.extend(again);
        check_that_each_gets_its_own(&mut devices, to);
    }
}

/// Processes that have only high slots admit others, as those with low slots do.
#[test]
fn a_process_in_a_later_chunk_lets_others_in() {
    if is_other() {
        return;
    }
    within(60, || {
        let name = "crowd::a_process_in_a_later_chunk_lets_others_in";
        let (text, to) = addresses().swap_remove(0);
        let address = to.ip().to_string();
        let mut first = Other::start(name, &text);
        assert_eq!(first.slot(), 1);
        let taken = take_names(&address, 2..130);
        let mut far = Other::start(name, &text);
        assert_eq!(far.slot(), 130);
        first.kill();
        close(taken);
        let mut again = Other::start(name, &text);
        assert_eq!(again.slot(), 1);
        let sender = sender_to(to);
        for (other, slot) in [(&mut far, 130), (&mut again, 1)] {
            sender.send(&datagram(first_qpn(slot), 100 + u32::from(slot), 80)).unwrap();
            other.expect(100 + u32::from(slot));
        }
    });
}

/// Regression: all members watched slot 0 through nested epolls, of which the kernel allows 500 per socket.
#[test]
fn more_devices_than_nested_epolls_may_watch_a_socket() {
    raise_limit();
    let (text, to) = addresses().swap_remove(0);
    let mut devices: Vec<_> = (0..520).map(|_| open(&text)).collect();
    devices.drain(3..510);
    check_that_each_gets_its_own(&mut devices, to);
    // Each device wakes up for a request.
    sender_to(to).send(&message(REQ, 77, 5 << 24, 0)).unwrap();
    for device in &devices {
        let mut polled =
            [rustix::event::PollFd::from_borrowed_fd(device.as_fd().unwrap(), rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut polled, Some(&patience)), Ok(1));
    }
    assert_eq!(numbers(&mut devices, 1).concat(), [77]);
}

#[test]
fn an_address_has_831_slots() {
    raise_limit();
    let (text, to) = addresses().swap_remove(0);
    let first = open(&text);
    let mut taken = take_names(&to.ip().to_string(), 2..831);
    let mut devices = [first, open(&text)];
    assert_eq!(slots(&devices), [1, 831]);
    check_that_each_gets_its_own(&mut devices, to);
    let error = refusal(&text).to_string();
    assert!(
        error.contains("all 831 slots are taken; end one of the processes, or use another address"),
        "{error}"
    );
    close(taken.remove(300));
    assert_eq!(slot(&open(&text)), 302);
}

/// The kernel numbers sockets in the order of their arrival, so a foreign socket would shift all later ones.
///
/// Regression: a foreign socket was overlooked while others came and went, because that hides sockets in the
/// table of the kernel.
#[test]
fn a_group_does_not_grow_around_the_socket_of_another_program() {
    raise_limit();
    for (text, to) in addresses() {
        let mut devices: Vec<_> = (0..63).map(|_| open(&text)).collect();
        let other = Socket::new(Domain::for_address(to), Type::DGRAM, None).unwrap();
        other.set_reuse_port(true).unwrap();
        other.bind(&to.into()).unwrap();
        let is_over = AtomicBool::new(false);
        let refusals: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    drop([(); 500].map(|()| UdpSocket::bind((to.ip(), 0))));
                }
            });
            let results = [(); 5].map(|()| UdpDevice::open(&spec(&text)).map(|device| slot(&device)));
            is_over.store(true, Ordering::Relaxed);
            results.into_iter().map(Result::unwrap_err).collect()
        });
        for error in refusals.iter().map(ToString::to_string) {
            for part in
                ["all 63 slots are taken", "65 sockets use the port instead of 64", "end that program"]
            {
                assert!(error.contains(part), "{error}");
            }
        }
        close(other);
        devices.push(open(&text));
        assert_eq!(slot(&devices[63]), 64);
        check_that_each_gets_its_own(&mut devices, to);
    }
}

/// The kernel limits descriptors in queues. Near the limit a group does not grow, so that others can join.
#[test]
fn a_group_that_may_not_grow_says_why_and_goes_on() {
    if is_other() {
        return;
    }
    let is_root = rustix::process::getuid().is_root();
    if skip_unless(is_root, "root has no such limit, and another user needs root") {
        return;
    }
    within(60, || {
        let name = "crowd::a_group_that_may_not_grow_says_why_and_goes_on";
        const USER: u32 = 1077;
        let (text, to) = addresses().swap_remove(0);
        let mut first = Other::start_as(name, &text, Some(USER));
        assert_eq!(first.slot(), 1);
        let mut taken = take_names(&to.ip().to_string(), 2..64);
        let mut command = Other::command(name, &text, Some(USER));
        // The limit suffices for the sockets of one chunk, but not for those of two.
        let limit = Rlimit { current: Some(120), maximum: Some(120) };
        // SAFETY: the closure makes one system call.
        unsafe {
            command.pre_exec(move || Ok(setrlimit(Resource::Nofile, limit)?));
        }
        let mut second = Other(start(&mut command));
        let refused = second.0.wait_for_line("refused: ");
        for part in ["all 63 slots are taken, and adding more failed", "raise the limit of open files"] {
            assert!(refused.contains(part), "{refused}");
        }
        close(taken.remove(0));
        let mut third = Other::start_as(name, &text, Some(USER));
        assert_eq!(third.slot(), 2);
        let sender = sender_to(to);
        for (other, slot) in [(&mut first, 1), (&mut third, 2)] {
            sender.send(&datagram(first_qpn(slot), 100 + u32::from(slot), 80)).unwrap();
            other.expect(100 + u32::from(slot));
        }
    });
}
