//! In-band telemetry between two contexts: all combinations of enabling it, and the effect on algorithms.

use std::io;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use roce::device::memory::MemoryDevice;
use roce::device::pcap::CaptureFile;
use roce::device::{Body, Device, Identification, Instant, OpenOptions, Received, Transmit, TxSlot};
use roce::verbs::*;
use roce_capture::CaptureReader;
use roce_fault::FaultInjector;
use roce_packet::{Envelope, Frame, Telemetry, TelemetryHop, icrc};

use crate::common::within;
use crate::world::*;

/// Long enough for any machine to send a message here without a new window.
const HPCC: &str = "hpcc,base_rtt=1000000";
const LINE: u64 = 10_000_000_000;
/// Bytes that the line carries in a base round trip.
const FIRST_WINDOW: u64 = LINE / 8 / 1_000;

fn builder(telemetry: bool, congestion: &str) -> ContextBuilder {
    Context::builder()
        .telemetry(telemetry)
        .congestion(Congestion::parse(congestion).unwrap())
        .line_rate(Rate::bits_per_second(LINE))
}

/// Transfers messages of all lengths in both directions and compares their contents, with READs and atomics
/// in between.
fn exercise(near: &Side, far: &Side, rounds: u64) {
    for round in 0..rounds {
        let len = 1 + (round as usize * 7_919) % 60_000;
        for (one, other) in [(near, far), (far, near)] {
            one.fill(1_000, len, round);
            let elements = [one.region.element(1_000..1_000 + len)];
            other.receive(round, 70_000, len);
            one.carry_out(1, SendOp::Send, &elements);
            one.carry_out(2, other.write_op(130_000), &elements);
            one.carry_out(3, other.read_op(130_000), &[one.region.element(190_000..190_000 + len)]);
            let (remote_addr, rkey) = (other.region.addr(), other.region.rkey());
            one.carry_out(4, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, &[one.region.element(8..16)]);
            assert_eq!(succeed(&other.recv_cq).byte_len as usize, len);
            other.check(70_000, len, round);
            other.check(130_000, len, round);
            one.check(190_000, len, round);
        }
    }
}

fn window(side: &Side) -> u64 {
    side.qp.congestion().and_then(|seen| seen.window).expect("the algorithm has a window")
}

/// Asserts that no packet counted as damaged. Copies may be dropped, because a busy machine retransmits
/// packets.
#[track_caller]
fn assert_nothing_is_refused(sides: [&Side; 2]) {
    for side in sides {
        let counters = side.context.counters();
        let copies =
            counters.drop_stale_response + counters.drop_response_gap + counters.drop_out_of_sequence;
        assert_eq!((counters.dropped() - copies, counters.rx_telemetry_refused), (0, 0), "{counters:?}");
    }
}

/// Without a switch on the path no telemetry arrives, so the window does not change.
#[test]
fn both_ends_on_and_no_switch_between_them() {
    within(120, || {
        for wire in Wire::ALL {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("near.pcapng");
            let [file] = CaptureFile::create(&path, &["near"]).unwrap().try_into().ok().unwrap();
            let options = OpenOptions { capture: Some(Box::new(file)), ..OpenOptions::default() };
            let near = builder(true, HPCC).options(options);
            let Some(contexts) = wire.open_with(near, builder(true, "none")) else { continue };
            let (near, far) = connect(contexts, QpType::Rc, &ConnectOptions::default());
            exercise(&near, &far, 20);
            assert_eq!(window(&near), FIRST_WINDOW, "{wire:?}");
            assert_nothing_is_refused([&near, &far]);
            if wire == Wire::UdpV4 {
                assert_eq!(near.counter("udp_tx_resealed") + near.counter("pcap_damaged"), 0);
            }
            drop((near, far));
            check_capture(&path);
        }
    });
}

/// Checks that exactly the data of the side with the algorithm, and the acknowledgements of these data, have
/// trailers.
fn check_capture(path: &FilePath) {
    let mut reader = CaptureReader::open(path).unwrap();
    let (mut with, mut without) = (0, 0);
    while let Some(packet) = reader.next_packet() {
        let frame = Frame::parse(packet.as_ref().unwrap().bytes).unwrap();
        if let Some((_, telemetry)) = frame.split_telemetry() {
            assert!(telemetry.hops().is_empty());
            with += 1;
        } else {
            assert!(frame.verify_icrc().unwrap().is_good());
            without += 1;
        }
    }
    assert!(with > 200 && without > 200, "{with} with a trailer, {without} without");
}

/// All combinations of enabling telemetry at two ends. If the sender enables it and has an algorithm for it,
/// the receiver must enable it too. Otherwise, the receiver counts the packets as refused telemetry and drops
/// them as damaged.
#[test]
fn every_choice_of_two_ends() {
    within(120, || {
        for wire in Wire::ALL {
            for (own, theirs, congestion) in [
                (false, false, HPCC),
                (false, true, HPCC),
                (true, false, "none"),
                (true, true, "none"),
                (true, true, "powertcp,base_rtt=1000000"),
            ] {
                let (near, far) = (builder(own, congestion), builder(theirs, "none"));
                let Some(contexts) = wire.open_with(near, far) else { continue };
                let (near, far) = connect(contexts, QpType::Rc, &ConnectOptions::default());
                exercise(&near, &far, 3);
                assert!(congestion == "none" || window(&near) == FIRST_WINDOW);
                assert_nothing_is_refused([&near, &far]);
            }
            let Some(contexts) = wire.open_with(builder(true, HPCC), builder(false, "none")) else {
                continue;
            };
            let options = ConnectOptions::default().timeout(8).retry_cnt(2);
            let (near, far) = connect(contexts, QpType::Rc, &options);
            near.post(1, far.write_op(0), &[near.region.element(0..10_000)]);
            assert_eq!(fail(&near.send_cq, WcStatus::RetryExceededError).cause, Cause::AckTimeout);
            // Each attempt sends ten packets.
            until("all have arrived", || far.context.counters().rx_telemetry_refused >= 20);
            let counters = far.context.counters();
            assert_eq!((counters.dropped(), counters.rx_handled), (counters.rx_telemetry_refused, 0));
        }
    });
}

#[test]
fn a_bad_wire_costs_time_and_no_data() {
    const PLAN: &str = "drop=1%,reorder=1%,corrupt=2%,dup=1%,delay=10us-200us@5%";
    within(120, || {
        for (seed, wire) in (0..).zip(Wire::ALL) {
            let options = |seed| OpenOptions {
                transmit_faults: Some(FaultInjector::new(PLAN.parse().unwrap(), seed)),
                ..OpenOptions::default()
            };
            let near = builder(true, HPCC).options(options(seed));
            let far = builder(true, HPCC).options(options(seed + 7));
            let Some(contexts) = wire.open_with(near, far) else { continue };
            let (near, far) = connect(contexts, QpType::Rc, &ConnectOptions::default().timeout(15));
            exercise(&near, &far, 15);
            assert!(far.context.counters().dropped() > 0 && near.context.counters().dropped() > 0);
        }
    });
}

#[test]
fn the_path_mtu_leaves_room_for_the_trailer() {
    within(60, || {
        // 1,024 bytes of payload and 64 bytes of headers are 1,088 bytes, or 1,140 with a trailer of 52
        // bytes.
        for (link_mtu, off, on) in [(1_088, 1_024, 512), (1_139, 1_024, 512), (1_140, 1_024, 1_024)] {
            for (telemetry, expected) in [(false, off), (true, on)] {
                let device = Narrow::new(link_mtu);
                let context = Context::builder().telemetry(telemetry).attach(device).unwrap();
                let largest = context.largest_path_mtu().unwrap();
                assert_eq!(largest.bytes(), expected, "{link_mtu} {telemetry}");
                let side = Side::new(context, QpType::Rc);
                let remote = Endpoint { address: "192.0.2.2".parse().unwrap(), qpn: 17, psn: 0 };
                let options = ConnectOptions::default().path_mtu(PathMtu::Mtu1024);
                let connected = side.qp.connect(&remote, &options);
                if expected == 1_024 {
                    connected.unwrap();
                    continue;
                }
                let text = connected.unwrap_err().to_string();
                let part = "needs a link MTU of 1140 (52 of it for in-band telemetry), the device has";
                assert!(text.contains(part), "{text}");
            }
        }
    });
}

/// A memory device with a different link MTU, and with a switch in front of it if `queue` is set.
struct Narrow {
    inner: MemoryDevice,
    capabilities: Capabilities,
    /// Bytes in the queue of the switch.
    queue: Option<Arc<AtomicU64>>,
}

impl Narrow {
    fn new(link_mtu: usize) -> Self {
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        let (inner, _) = MemoryDevice::pair(a, b).unwrap();
        let capabilities = Capabilities { link_mtu, ..inner.capabilities().clone() };
        Self { inner, capabilities, queue: None }
    }

    fn behind_switch(inner: MemoryDevice, queue: Arc<AtomicU64>) -> Self {
        Self { capabilities: inner.capabilities().clone(), inner, queue: Some(queue) }
    }
}

impl Device for Narrow {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    roce::device::forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.inner.commit(now, transmit);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let Some(queue) = &self.queue else { return self.inner.receive(now, sink) };
        let bytes_in_queue = queue.load(Ordering::Relaxed);
        self.inner.receive(now, &mut |received| {
            let mut bytes = received.body.pieces().concat();
            if let Some((rest, _, mut telemetry)) = Telemetry::split_off(&bytes, &[])
                && let Some((covered, found)) = rest.split_last_chunk()
                && let Identification::Known { identification, .. } = received.identification
                && let envelope = Envelope::new(&received.path, identification)
                && icrc::compute(&envelope, covered, &[]).to_le_bytes() == *found
            {
                let trailer = rest.len();
                // The line is idle, or fully used if there is a queue.
                let sent =
                    if bytes_in_queue > 0 { now.as_nanos() * (LINE / 8 / 1_000_000) / 1_000 } else { 0 };
                telemetry.push(TelemetryHop::new(LINE, now.as_nanos(), sent, bytes_in_queue), 1);
                bytes[trailer..].copy_from_slice(&telemetry.emit());
            }
            sink(&Received { body: Body::whole(&bytes), ..*received });
        })
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}

#[test]
fn a_queue_on_the_way_makes_the_window_smaller() {
    within(60, || {
        for congestion in [HPCC, "powertcp,base_rtt=1000000"] {
            let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
            let (a, b) = MemoryDevice::pair(a, b).unwrap();
            let queue = Arc::new(AtomicU64::new(0));
            let near = builder(true, congestion).attach(a).unwrap();
            let far = builder(true, "none");
            let far = far.attach(Narrow::behind_switch(b, Arc::clone(&queue))).unwrap();
            let (near, far) = connect((near, far), QpType::Rc, &ConnectOptions::default());
            exercise(&near, &far, 5);
            assert_eq!(window(&near), FIRST_WINDOW, "{congestion}: an empty queue");
            // Three windows wait in the switch.
            queue.store(3 * FIRST_WINDOW, Ordering::Relaxed);
            until("the window is small", || {
                exercise(&near, &far, 1);
                near.post(9, far.write_op(0), &[near.region.element(0..60_000)]);
                succeed(&near.send_cq);
                window(&near) < FIRST_WINDOW / 2
            });
        }
    });
}
