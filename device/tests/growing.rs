//! Kills a process at each step of adding sockets to the group of an address. This test is a program of its
//! own because it forks: the child has copies of all descriptors.

mod names;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant as Clock};

use roce_device::udp::{UdpDevice, UdpSpec};
use roce_device::{Device, Instant};
use roce_testing::{own_address, skip_unless, within};

use names::take_names;

fn open(spec: &UdpSpec) -> UdpDevice {
    UdpDevice::open(spec).unwrap()
}

/// The way in which a process that opens a device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// On its own, after this many system calls.
    Opened(usize),
    Killed,
    /// The system does not allow tracing.
    Untraced,
}

/// An unused argument of `ptrace`.
const NOTHING: *mut libc::c_void = std::ptr::null_mut();

/// Forks a process that opens a device, and kills it when it enters or leaves its system call number `step`.
fn open_and_kill_at(spec: &UdpSpec, step: usize) -> End {
    // SAFETY: the child only uses what `fork` leaves usable (`roce_machine::fork`) and never unwinds. The
    // parent waits for it.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, NOTHING, NOTHING) != 0 {
                libc::_exit(77);
            }
            libc::raise(libc::SIGSTOP);
            let opened = UdpDevice::open(spec);
            libc::_exit(i32::from(opened.is_err()));
        }
        let mut status = 0;
        let mut wait = || {
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        };
        let stopped = wait();
        if libc::WIFEXITED(stopped) {
            assert_eq!(libc::WEXITSTATUS(stopped), 77);
            return End::Untraced;
        }
        for taken in 0.. {
            if taken == step {
                libc::kill(child, libc::SIGKILL);
                assert!(libc::WIFSIGNALED(wait()));
                return End::Killed;
            }
            assert_eq!(libc::ptrace(libc::PTRACE_SYSCALL, child, NOTHING, NOTHING), 0);
            let status = wait();
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0, "the device could not be opened");
                return End::Opened(taken);
            }
        }
        unreachable!()
    }
}

/// Sends a number to the slot of each device, and checks that each device receives its own.
fn check_that_each_gets_its_own(devices: &mut [UdpDevice], step: usize) {
    let to = SocketAddr::new(devices[0].addresses()[0], 4791);
    let sender = UdpSocket::bind(SocketAddr::new(to.ip(), 0)).unwrap();
    for device in devices {
        let slot = device.capabilities().process_slot;
        let mut bytes = [0; 80];
        bytes[4..8].copy_from_slice(&slot.first_qpn().to_be_bytes());
        sender.send_to(&bytes, to).unwrap();
        let (end, mut found) = (Clock::now() + Duration::from_secs(10), 0);
        while found == 0 {
            assert!(Clock::now() < end, "step {step}: nothing arrives at slot {slot}");
            found +=
                device.receive(Instant::ZERO, &mut |received| assert_eq!(received.head(), bytes)).unwrap();
        }
    }
}

/// With slots 1 to 63 taken, kills a process that makes the group grow at this step; the next one succeeds.
fn grow_with_a_death_at(step: usize) -> End {
    let address = own_address();
    let spec: UdpSpec = format!("udp:{address},gso=off").parse().unwrap();
    let first = open(&spec);
    let names = take_names(&address.to_string(), 2..64);
    let end = open_and_kill_at(&spec, step);
    if end == End::Untraced {
        return end;
    }
    let mut devices = [first, open(&spec), open(&spec)];
    let slots = devices.each_ref().map(|device| device.capabilities().process_slot.get());
    assert_eq!(slots, [1, 64, 65], "step {step}");
    check_that_each_gets_its_own(&mut devices, step);
    drop(names);
    end
}

#[test]
fn a_death_at_any_step_leaves_a_group_that_works() {
    within(300, || {
        let all = match grow_with_a_death_at(usize::MAX) {
            End::Opened(all) => all,
            End::Untraced => {
                skip_unless(false, "processes cannot be traced here");
                return;
            }
            End::Killed => panic!("nobody killed it"),
        };
        // Each socket is made by the same calls, so few of those steps suffice. The last 60 are all tested,
        // and half of the 60 before them.
        let is_near = |left: usize| left < 60 || left < 120 && left.is_multiple_of(2);
        let steps = (0..all).filter(|step| step.is_multiple_of(61) || is_near(all - step));
        let mut killed = 0;
        for step in steps {
            killed += usize::from(grow_with_a_death_at(step) == End::Killed);
        }
        assert!(killed > 80, "{killed} of {all} steps");
    });
}
