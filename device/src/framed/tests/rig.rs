//! A port and a host in memory for tests of framed devices; they keep sent frames and deliver given frames.
//!
//! Tests of dependent crates include this file, so all paths are those of external users.
#![allow(dead_code, reason = "every test takes a part of it")]

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use roce_device::FrameSettings;
use roce_device::framed::FramedDevice;
use roce_device::framed::port::{
    FRAME_ROOM, FramePort, Incoming, Outgoing, PortRecord, SUPERFRAME_ROOM, Split,
};
use roce_device::framed::{Host, Resolution};
use roce_packet::{MacAddr, VlanTag};
use roce_transport::Instant;
use rustix::event::{EventfdFlags, eventfd};

pub(crate) const OUR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

pub(crate) fn us(last: u8) -> IpAddr {
    IpAddr::from([198, 18, 0, last])
}

pub(crate) fn us6(last: u16) -> IpAddr {
    IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last])
}

/// The state that the port and the host share with a test.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) sent: Vec<(Vec<u8>, Option<Split>)>,
    pub(crate) arriving: Vec<(Vec<u8>, Option<u16>, Option<VlanTag>)>,
    pub(crate) neighbours: HashMap<IpAddr, Resolution>,
    pub(crate) host_frames: Vec<Vec<u8>>,
    pub(crate) host_sends: Vec<Vec<u8>>,
    /// The time of the last lookup of a neighbour.
    pub(crate) resolved_at: Instant,
    /// The number of lookups.
    pub(crate) lookups: usize,
    /// Frames that the port accepts until it is flushed.
    pub(crate) room: usize,
}

pub(crate) type Link = Arc<Mutex<Shared>>;

pub(crate) struct TestPort {
    record: PortRecord,
    slot: Vec<u8>,
    committed: usize,
    link: Link,
    event: OwnedFd,
}

impl FramePort for TestPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        (self.committed < self.link.lock().unwrap().room).then_some(&mut self.slot[..])
    }

    fn commit(&mut self, frame: Outgoing) {
        self.committed += 1;
        self.link.lock().unwrap().sent.push((self.slot[frame.bytes].to_vec(), frame.split));
        self.slot.fill(0xee);
    }

    fn flush(&mut self, _now: Instant) -> io::Result<()> {
        self.committed = 0;
        Ok(())
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        let arriving = std::mem::take(&mut self.link.lock().unwrap().arriving);
        for (bytes, segment_len, vlan) in &arriving {
            // All headers in the head, like AF_XDP in its first chunk.
            let (head, tail) =
                bytes.split_at(bytes.len().min(if segment_len.is_some() { usize::MAX } else { 200 }));
            sink(&Incoming { head, tail, segment_len: *segment_len, vlan: *vlan });
        }
        Ok(arriving.len())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}
}

pub(crate) struct TestHost {
    addresses: Vec<IpAddr>,
    link: Link,
}

impl Host for TestHost {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn resolve(&mut self, now: Instant, destination: IpAddr) -> Resolution {
        let mut shared = self.link.lock().unwrap();
        shared.resolved_at = now;
        shared.lookups += 1;
        shared.neighbours.get(&destination).cloned().unwrap_or(Resolution::Pending)
    }

    fn handle_frame(&mut self, _now: Instant, frame: &Incoming<'_>) {
        self.link.lock().unwrap().host_frames.push([frame.head, frame.tail].concat());
    }

    fn poll_transmit(&mut self, _now: Instant, buffer: &mut [u8]) -> Option<usize> {
        let frame = self.link.lock().unwrap().host_sends.pop()?;
        buffer[..frame.len()].copy_from_slice(&frame);
        Some(frame.len())
    }

    fn set_multicast(&mut self, _group: IpAddr, _join: bool) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn device(max_segments: u16, settings: FrameSettings) -> (FramedDevice, Link) {
    device_of(OUR_MAC, vec![us(1), us6(1)], max_segments, settings)
}

/// Returns a device with these addresses and the usual neighbours of tests.
pub(crate) fn device_of(
    mac: MacAddr,
    addresses: Vec<IpAddr>,
    max_segments: u16,
    settings: FrameSettings,
) -> (FramedDevice, Link) {
    let link = Link::default();
    {
        let mut shared = link.lock().unwrap();
        shared.room = 64;
        for peer in [us(2), us6(2)] {
            shared.neighbours.insert(peer, Resolution::Known(PEER_MAC));
        }
    }
    let record = PortRecord {
        kind: "tap",
        interface: "test0".to_owned(),
        mac,
        link_mtu: 4200,
        max_segments,
        bits_per_second: Some(1_000_000_000),
    };
    let port = TestPort {
        record,
        slot: vec![0; if max_segments > 1 { SUPERFRAME_ROOM } else { FRAME_ROOM }],
        committed: 0,
        link: link.clone(),
        event: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
    };
    let host = TestHost { addresses, link: link.clone() };
    (FramedDevice::new(Box::new(port), Box::new(host), settings), link)
}

pub(crate) fn sent(link: &Link) -> Vec<Vec<u8>> {
    link.lock().unwrap().sent.drain(..).map(|(bytes, _)| bytes).collect()
}
