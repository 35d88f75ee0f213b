//! Calls every public function that takes a number with 0, 1 and the largest value: no call panics.

#[path = "../src/framed/tests/rig.rs"]
#[allow(unreachable_pub, reason = "it is a module of the crate as well")]
mod rig;

use std::net::IpAddr;

use rig::{OUR_MAC, PEER_MAC, device_of, us, us6};
use roce_capture::{PcapWriter, WriterOptions};
use roce_device::fault::FaultDevice;
use roce_device::framed::pauses::Pauses;
use roce_device::memory::MemoryDevice;
use roce_device::pcap::{CaptureFile, PcapDevice};
use roce_device::udp::UdpDevice;
use roce_device::whole::Offload;
use roce_device::{Clock, Device, Encapsulation, FrameSettings, Instant, Path, Qpn, Transmit, VlanTag};
use roce_packet::PauseFrame;
use roce_packet::pause::PauseRequest;

const TIMES: [Instant; 3] = [Instant::ZERO, Instant::from_nanos(1), Instant::FAR_FUTURE];

/// Returns paths to these destinations with the smallest and largest value of every field.
fn paths(source: IpAddr, destinations: &[IpAddr]) -> Vec<Path> {
    let mut paths = Vec::new();
    for destination in destinations.iter().copied() {
        for encapsulation in [Encapsulation::RoceV2, Encapsulation::RoceV1] {
            for (byte, port, flow_label, vlan) in [
                (0, 0, 0, None),
                (1, 1, 1, Some(VlanTag { pcp: 0, dei: false, vid: 0 })),
                (u8::MAX, u16::MAX, u32::MAX, Some(VlanTag { pcp: u8::MAX, dei: true, vid: u16::MAX })),
            ] {
                paths.push(Path {
                    encapsulation,
                    source,
                    destination,
                    source_port: port,
                    traffic_class: byte,
                    hop_limit: byte,
                    flow_label,
                    vlan,
                });
            }
        }
    }
    paths
}

/// Calls every method of a device with every kind of argument.
fn check(device: &mut dyn Device, paths: &[Path]) {
    let largest = device.capabilities().max_datagram;
    let lens = [0, 1, 3, 4, 5, 16, largest, largest.saturating_add(1), usize::MAX];
    for now in TIMES {
        for path in paths {
            for port in [0, 1, u16::MAX] {
                let _ = device.bind_source_port(path, port);
            }
            for len in lens {
                for identification in [0, 1, u16::MAX] {
                    let transmit = Transmit::new(*path, Qpn::default(), len, identification);
                    // Twice with a slot, so that both packets may join, and once without a slot.
                    for _ in 0..2 {
                        let _ = device.slot();
                        device.commit(now, &transmit);
                    }
                    device.commit(now, &transmit);
                }
            }
            let _ = device.flush(now);
            let _ = device.receive(now, &mut |_| {});
            let _ = device.set_multicast(path.destination, true);
            let _ = device.set_multicast(path.destination, false);
            for port in [0, 1, u16::MAX] {
                device.release_source_port(port);
            }
        }
        for traffic_class in [0, 1, u8::MAX] {
            let _ = device.vlan(traffic_class);
        }
        let _ = (device.deadline(), device.scope_id(), device.host_tcp().is_some());
        device.counters(&mut |_, _| {});
    }
}

#[test]
fn memory() {
    let (a, b) = (us(1), us(2));
    let (mut near, mut far) = MemoryDevice::pair(a, b).unwrap();
    check(&mut near, &paths(a, &[b, a, us6(1)]));
    check(&mut far, &paths(b, &[a]));
}

#[test]
fn udp() {
    let own: IpAddr = [127, 0, 0, 1].into();
    let destinations = [own, [127, 0, 0, 2].into(), [239, 1, 2, 3].into(), us6(1), [0, 0, 0, 0].into()];
    for options in ["", ",buffer=0", ",buffer=1", ",buffer=18446744073709551615", ",gso=off,gro=off"] {
        let spec = format!("udp:127.0.0.1,port=0{options}").parse().unwrap();
        let mut device = UdpDevice::open(&spec).unwrap();
        for port in [0, 1, u16::MAX, device.port()] {
            device.set_peer_port(port);
            check(&mut device, &paths(own, &destinations));
        }
    }
}

/// Returns a device with frames. Its peer is known; no other host answers.
fn framed(max_segments: u16, settings: FrameSettings) -> impl Device {
    device_of(OUR_MAC, vec![us(1), us6(1)], max_segments, settings).0
}

fn framed_paths() -> Vec<Path> {
    let group: IpAddr = [239, 1, 2, 3].into();
    let mut paths = paths(us(1), &[us(2), us(9), us(1), group, us6(2)]);
    paths.extend(self::paths(us6(1), &[us6(2), us6(9), us6(1)]));
    paths
}

#[test]
fn frames() {
    for max_segments in [0, 1, 2, 64, u16::MAX] {
        for (vlan, priority) in [(None, None), (Some(0), Some(0)), (Some(u16::MAX), Some(u8::MAX))] {
            check(&mut framed(max_segments, FrameSettings { vlan, priority }), &framed_paths());
        }
    }
}

#[test]
fn wrappers() {
    let device = || Box::new(framed(64, FrameSettings::default()));
    check(&mut FaultDevice::new(device(), None, None), &framed_paths());
    for epoch in [0, 1, u64::MAX] {
        for options in [
            WriterOptions::new(),
            WriterOptions::new().snap_len(1).max_packets(1),
            WriterOptions::new().snap_len(u32::MAX).max_packets(u64::MAX),
        ] {
            let writer = PcapWriter::new_with(std::io::sink(), "nowhere", &["one"], options).unwrap();
            for handles in [0, 1] {
                let Some(file) = CaptureFile::of_writer(
                    PcapWriter::new(std::io::sink(), "nowhere", &["one"]).unwrap(),
                    handles,
                )
                .pop() else {
                    continue;
                };
                check(&mut PcapDevice::new(device(), Box::new(file)).with_epoch(epoch), &framed_paths()[..6]);
            }
            let file = CaptureFile::of_writer(writer, 1).remove(0);
            check(&mut PcapDevice::new(device(), Box::new(file)).with_epoch(epoch), &framed_paths()[..6]);
        }
    }
}

#[test]
fn pauses() {
    for bits_per_second in [None, Some(0), Some(1), Some(u64::MAX)] {
        let mut pauses = Pauses::new(bits_per_second);
        for now in TIMES {
            for quanta in [0, 1, u16::MAX] {
                for request in [PauseRequest::All(quanta), PauseRequest::PerPriority([Some(quanta); 8])] {
                    let frame = PauseFrame { source: PEER_MAC, request };
                    for _ in 0..1_000 {
                        pauses.handle(now, &frame);
                    }
                }
            }
            for priority in [0, 1, 7, 8, u8::MAX] {
                let _ = pauses.is_paused(now, priority);
            }
            pauses.forget_ended(now);
            let _ = pauses.next_end();
        }
    }
}

#[test]
fn small_things() {
    for bytes in [[0; 10], [1; 10], [0xff; 10]] {
        let offload = Offload(bytes);
        for by in [0, 1, u16::MAX] {
            let moved = offload.moved_by(by).of_one();
            let _ = (moved.is_joined(), moved.needs_checksum(), moved.udp_segment_len());
        }
    }
    for interface in [0, 1, u32::MAX] {
        for destination in [us(1), us6(1), [0, 0, 0, 0].into(), [255, 255, 255, 255].into()] {
            let _ = roce_device::host::kernel::next_hop(destination, interface);
        }
    }
    assert!(Clock::start().now() < Instant::FAR_FUTURE);
}
