//! Devices with faults: what arrives, when, and what is counted.

#[path = "support/testing.rs"]
mod testing;

use std::net::{IpAddr, Ipv4Addr};

use roce_device::fault::FaultDevice;
use roce_device::memory::MemoryDevice;
use roce_device::{Device, Instant};
use roce_fault::{FaultInjector, FaultPlan};
use roce_packet::Ecn;
use testing::{counter, datagram, is_sealed_for, path, put, receive_all, receive_at, send};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn injector(plan: &str) -> FaultInjector {
    FaultInjector::new(plan.parse::<FaultPlan>().unwrap(), 1)
}

/// Returns a sender with faults and a plain receiver.
fn faulty_sender(plan: &str) -> (FaultDevice, MemoryDevice) {
    let (a, b) = MemoryDevice::pair(A, B).unwrap();
    (FaultDevice::new(Box::new(a), Some(injector(plan)), None), b)
}

/// Returns a plain sender and a receiver with faults.
fn faulty_receiver(plan: &str) -> (MemoryDevice, FaultDevice) {
    let (a, b) = MemoryDevice::pair(A, B).unwrap();
    (a, FaultDevice::new(Box::new(b), None, Some(injector(plan))))
}

fn send_psns(device: &mut dyn Device, now: Instant, psns: impl IntoIterator<Item = u32>) {
    for psn in psns {
        put(device, now, &path(A, B), &datagram(&path(A, B), psn, 8));
        device.flush(now).unwrap();
    }
}

fn psns(device: &mut dyn Device, now: Instant) -> Vec<u8> {
    receive_at(device, now).iter().map(|arrived| arrived.bytes[11]).collect()
}

const fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

#[test]
fn rules_work_in_both_directions() {
    let plan = "rule:psn=2,action=drop;rule:psn=4,action=dup";
    let (mut a, mut b) = faulty_sender(plan);
    send_psns(&mut a, at(0), 1..=5);
    assert_eq!(psns(&mut b, at(0)), [1, 3, 4, 4, 5]);
    assert_eq!(counter(&a, "fault_tx_dropped"), 1);
    assert_eq!(counter(&a, "fault_tx_duplicated"), 1);
    assert_eq!(counter(&a, "memory_tx_datagrams"), 5);

    let (mut a, mut b) = faulty_receiver(plan);
    send_psns(&mut a, at(0), 1..=5);
    assert_eq!(psns(&mut b, at(0)), [1, 3, 4, 4, 5]);
    assert_eq!(counter(&b, "fault_rx_dropped"), 1);
    assert_eq!(b.receive_faults().unwrap().counters().seen, 5);
    assert!(b.transmit_faults().is_none());
}

#[test]
fn delays_hold_until_the_deadline() {
    let (mut a, mut b) = faulty_sender("delay=50us");
    assert_eq!(a.deadline(), None);
    send_psns(&mut a, at(1000), [1, 2]);
    send_psns(&mut a, at(2000), [3]);
    assert!(psns(&mut b, at(0)).is_empty());
    assert_eq!(a.deadline(), Some(at(51_000)));
    a.flush(at(50_999)).unwrap();
    assert!(psns(&mut b, at(0)).is_empty());
    a.flush(at(51_000)).unwrap();
    assert_eq!(psns(&mut b, at(0)), [1, 2]);
    assert_eq!(a.deadline(), Some(at(52_000)));
    a.flush(at(60_000)).unwrap();
    assert_eq!(psns(&mut b, at(0)), [3]);
    assert_eq!(a.deadline(), None);

    let (mut a, mut b) = faulty_receiver("delay=50us");
    send_psns(&mut a, at(0), [1, 2]);
    assert!(psns(&mut b, at(1000)).is_empty());
    assert_eq!(b.deadline(), Some(at(51_000)));
    assert_eq!(psns(&mut b, at(51_000)), [1, 2]);
    assert_eq!(b.deadline(), None);
}

#[test]
fn others_overtake_what_is_reordered() {
    let plan = "reorder-hold=1ms;rule:psn=2,action=reorder:2";
    let (mut a, mut b) = faulty_sender(plan);
    send_psns(&mut a, at(0), 1..=6);
    assert_eq!(psns(&mut b, at(0)), [1, 3, 4, 2, 5, 6]);

    let (mut a, mut b) = faulty_receiver(plan);
    send_psns(&mut a, at(0), 1..=6);
    assert_eq!(psns(&mut b, at(0)), [1, 3, 4, 5, 6, 2]);
}

#[test]
fn nobody_waits_forever_to_be_overtaken() {
    let (mut a, mut b) = faulty_sender("reorder-hold=1ms;rule:psn=2,action=reorder:2");
    send_psns(&mut a, at(0), [1, 2, 3]);
    assert_eq!(psns(&mut b, at(0)), [1, 3]);
    assert_eq!(a.deadline(), Some(at(1_000_000)));
    a.flush(at(1_000_000)).unwrap();
    assert_eq!(psns(&mut b, at(0)), [2]);
}

#[test]
fn damage_hits_the_datagram_and_not_its_length() {
    for receiver in [false, true] {
        let plan = "corrupt=100%";
        let (mut a, mut b): (Box<dyn Device>, Box<dyn Device>) = if receiver {
            let (a, b) = faulty_receiver(plan);
            (Box::new(a), Box::new(b))
        } else {
            let (a, b) = faulty_sender(plan);
            (Box::new(a), Box::new(b))
        };
        let sent = datagram(&path(A, B), 7, 512);
        send(a.as_mut(), &path(A, B), &[&sent]);
        let arrived = receive_all(b.as_mut());
        assert_eq!(arrived[0].bytes.len(), sent.len());
        let flipped: u32 = arrived[0].bytes.iter().zip(&sent).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert!((1..=3).contains(&flipped), "{flipped}");
    }
}

#[test]
fn marks_reach_the_path() {
    for (ecn, plan, expected) in [
        (Ecn::Capable0, "ecn=100%", Ecn::CongestionExperienced),
        (Ecn::NotCapable, "ecn=100%", Ecn::NotCapable),
        (Ecn::NotCapable, "ecn=100%,force-ecn=on", Ecn::CongestionExperienced),
    ] {
        let path = path(A, B).with_ecn(ecn).with_dscp(26);
        let (mut a, mut b) = faulty_sender(plan);
        send(&mut a, &path, &[&datagram(&path, 1, 8)]);
        assert_eq!(receive_all(&mut b)[0].path, path.with_ecn(expected));
        let (mut a, mut b) = faulty_receiver(plan);
        send(&mut a, &path, &[&datagram(&path, 1, 8)]);
        let arrived = receive_all(&mut b);
        assert_eq!(arrived[0].path, path.with_ecn(expected));
        // The ICRC does not cover the mark.
        assert!(is_sealed_for(&arrived[0].path, &arrived[0].bytes, 0));
    }
}

#[test]
fn several_faults_at_once() {
    let (mut a, mut b) = faulty_sender("dup=100%,delay=10us,ecn=100%,corrupt=100%");
    let path = path(A, B).with_ecn(Ecn::Capable0);
    let sent = datagram(&path, 1, 64);
    send(&mut a, &path, &[&sent]);
    a.flush(at(10_000)).unwrap();
    let arrived = receive_all(&mut b);
    assert_eq!(arrived.len(), 2);
    assert_eq!(arrived[0], arrived[1]);
    assert_eq!(arrived[0].path.ecn(), Ecn::CongestionExperienced);
    assert_ne!(arrived[0].bytes, sent);
}

#[test]
fn no_slot_is_lent_while_the_inner_device_is_full() {
    let (mut a, mut b) = faulty_sender("dup=100%");
    let bytes = datagram(&path(A, B), 1, 8);
    let mut count = 0;
    while a.slot().is_some() && count < 2000 {
        put(&mut a, at(0), &path(A, B), &bytes);
        count += 1;
    }
    // The wrapper flushes for its second copies; at the end, the inner device must not be overrun.
    a.flush(at(0)).unwrap();
    let lost = counter(&a, "memory_tx_overflow") as usize;
    assert_eq!(receive_all(&mut b).len() + lost, 2 * count);
    assert_eq!(counter(&a, "fault_tx_overflow"), 0);
}

#[test]
fn too_many_held_datagrams_are_lost_and_counted() {
    let (mut a, mut b) = faulty_sender("delay=1s");
    let too_many = roce_fault::MAX_HELD + 5;
    let bytes = datagram(&path(A, B), 1, 8);
    for _ in 0..too_many {
        put(&mut a, at(0), &path(A, B), &bytes);
    }
    assert_eq!(counter(&a, "fault_tx_overflow"), 5);
    let mut arrived = 0;
    a.flush(at(1_000_000_000)).unwrap();
    arrived += receive_all(&mut b).len();
    assert_eq!(arrived as u64 + counter(&a, "memory_tx_overflow"), roce_fault::MAX_HELD as u64);
    assert_eq!(a.deadline(), None);
}

#[test]
fn without_injectors_nothing_happens() {
    let (a, mut b) = MemoryDevice::pair(A, B).unwrap();
    let mut a = FaultDevice::new(Box::new(a), None, None);
    send_psns(&mut a, at(0), 1..=5);
    assert_eq!(psns(&mut b, at(0)), [1, 2, 3, 4, 5]);
    send_psns(&mut b, at(0), []);
    assert_eq!(a.capabilities().kind, "memory");
    assert!(a.as_fd().is_some());
}
