//! Helpers for the tests of all devices: datagrams, and checks of their treatment.
//!
//! Tests of dependent crates include this file, so all paths are those of external users.
#![allow(dead_code, reason = "every test takes a part of it")]

use std::net::IpAddr;
use std::os::fd::AsFd;

use roce_packet::{Bth, Encapsulation, Envelope, Opcode, Path, Psn, Qpn, icrc};
use roce_transport::{Identification, Instant, Transmit};
use rustix::event::{PollFd, PollFlags, poll};

use roce_device::Device;

/// A received datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) path: Path,
    pub(crate) identification: Identification,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn path(source: IpAddr, destination: IpAddr) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        source_port: 4791,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

/// Returns a valid datagram with a payload of `len` bytes, a multiple of four.
pub(crate) fn datagram(path: &Path, psn: u32, len: usize) -> Vec<u8> {
    sealed(path, psn, len, 0)
}

/// Returns a valid datagram for a given Identification.
pub(crate) fn sealed(path: &Path, psn: u32, len: usize, identification: u16) -> Vec<u8> {
    let mut header = [0; Bth::LEN];
    Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(psn)).emit(&mut header);
    let mut bytes = header.to_vec();
    bytes.extend((0..len).map(|place| (place as u8).wrapping_add(psn as u8)));
    let value = icrc::compute(&Envelope::new(path, identification), &bytes, &[]);
    bytes.extend(value.to_le_bytes());
    bytes
}

/// Returns whether the ICRC is valid for this Identification.
pub(crate) fn is_sealed_for(path: &Path, bytes: &[u8], identification: u16) -> bool {
    let (body, found) = bytes.split_last_chunk().unwrap();
    icrc::compute(&Envelope::new(path, identification), body, &[]) == u32::from_le_bytes(*found)
}

/// Puts a datagram into a slot and commits it, ignoring batches.
#[track_caller]
pub(crate) fn put(device: &mut dyn Device, now: Instant, path: &Path, bytes: &[u8]) {
    let slot = device.slot().expect("the device is full");
    slot.buffer[..bytes.len()].copy_from_slice(bytes);
    device.commit(now, &Transmit::new(*path, Qpn::default(), bytes.len(), 0));
}

/// Sends datagrams in one flush.
#[track_caller]
pub(crate) fn send(device: &mut dyn Device, path: &Path, datagrams: &[&[u8]]) {
    for bytes in datagrams {
        put(device, Instant::ZERO, path, bytes);
    }
    device.flush(Instant::ZERO).expect("flush");
}

/// Sends `count` datagrams in one flush like an engine: sealed for the Identification that the batch of the
/// slot returns. Returns their bytes.
#[track_caller]
pub(crate) fn send_batch(device: &mut dyn Device, path: &Path, count: u32, len: usize) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    for psn in 0..count {
        let slot = device.slot().expect("the device is full");
        let whole = Bth::LEN + len + icrc::LEN;
        let identification = slot.batch.identification(path, Qpn::default(), whole);
        let bytes = sealed(path, psn, len, identification);
        slot.buffer[..whole].copy_from_slice(&bytes);
        device.commit(Instant::ZERO, &Transmit::new(*path, Qpn::default(), whole, identification));
        sent.push(bytes);
    }
    device.flush(Instant::ZERO).expect("flush");
    sent
}

/// Receives all datagrams that are available now.
#[track_caller]
pub(crate) fn receive_all(device: &mut dyn Device) -> Vec<Arrived> {
    receive_at(device, Instant::ZERO)
}

/// Receives all datagrams that are available at this time.
#[track_caller]
pub(crate) fn receive_at(device: &mut dyn Device, now: Instant) -> Vec<Arrived> {
    let mut arrived = Vec::new();
    loop {
        let before = arrived.len();
        let count = device.receive(now, &mut |received| {
            let bytes = received.body.pieces().concat();
            arrived.push(Arrived { path: received.path, identification: received.identification, bytes });
        });
        assert_eq!(count.expect("receive"), arrived.len() - before, "the count is right");
        if arrived.len() == before {
            return arrived;
        }
    }
}

/// Returns whether the descriptor is readable.
pub(crate) fn readable(device: &dyn Device) -> bool {
    let fd = device.as_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).unwrap() == 1
}

#[track_caller]
pub(crate) fn counter(device: &dyn Device, name: &str) -> u64 {
    counter_among(|visit| device.counters(visit), name)
}

/// Returns the value of the counter with this name among those that `counters` visits.
#[track_caller]
pub(crate) fn counter_among(counters: impl FnOnce(&mut dyn FnMut(&'static str, u64)), name: &str) -> u64 {
    let mut found = None;
    counters(&mut |known, value| {
        if known == name {
            assert!(found.is_none(), "{name} is counted twice");
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}
