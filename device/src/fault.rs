//! A device that deliberately loses, duplicates, delays, reorders, damages and marks datagrams.
//!
//! [`roce_fault`] decides about each datagram; this module applies its decisions to a device. Each direction
//! has its own injector. Datagrams pass one by one through a buffer of this wrapper, so the inner device does
//! not use segmentation offload.

use std::io;

use roce_fault::{Delivery, FaultInjector, Held, Verdict};
use roce_packet::Path;
use roce_transport::{Identification, Instant, Received, Transmit, TxSlot};

use super::{Capabilities, Device, forward_to_inner};

/// Records deliberately dropped datagrams, for example in a capture.
pub trait DropRecorder: Send {
    /// Records that this datagram is not sent.
    fn dropped_sent(&mut self, now: Instant, transmit: &Transmit, datagram: &[u8]);

    /// Records that the datagram that the inner device is delivering is dropped.
    fn dropped_received(&mut self);
}

/// A device that applies faults to another device.
pub struct FaultDevice {
    inner: Box<dyn Device>,
    drops: Option<Box<dyn DropRecorder>>,
    capabilities: Capabilities,
    transmit: Option<Side<Transmit>>,
    receive: Option<Side<(Path, Identification)>>,
    /// The slot for the engine.
    scratch: Vec<u8>,
    /// Buffer for damaging received datagrams.
    damaged: Vec<u8>,
    /// Datagrams for which the inner device had no room and that could not be held either.
    no_room: u64,
}

/// The state of one direction.
struct Side<M> {
    injector: FaultInjector,
    held: Held<M>,
    /// Datagrams lost because too many were held.
    overflow: u64,
}

impl<M: Copy> Side<M> {
    fn new(injector: FaultInjector) -> Self {
        Self { injector, held: Held::new(), overflow: 0 }
    }

    fn hold(&mut self, now: Instant, delivery: &Delivery, meta: M, parts: [&[u8]; 2]) {
        for _ in 0..copies(delivery) {
            if !self.held.hold(now, delivery, meta, parts) {
                self.overflow += 1;
            }
        }
    }
}

impl FaultDevice {
    /// Puts injectors around `inner`: one for sent and one for received datagrams.
    #[must_use]
    pub fn new(
        inner: Box<dyn Device>,
        transmit: Option<FaultInjector>,
        receive: Option<FaultInjector>,
    ) -> Self {
        let capabilities = Capabilities { max_segments: 1, ..inner.capabilities().clone() };
        Self {
            scratch: vec![0; capabilities.max_datagram],
            damaged: Vec::with_capacity(capabilities.max_datagram),
            inner,
            drops: None,
            capabilities,
            transmit: transmit.map(Side::new),
            receive: receive.map(Side::new),
            no_room: 0,
        }
    }

    /// Reports every deliberately dropped datagram to `drops`.
    #[must_use]
    pub fn with_drop_recorder(mut self, drops: Box<dyn DropRecorder>) -> Self {
        self.drops = Some(drops);
        self
    }

    /// Returns the injector of sent datagrams.
    #[must_use]
    pub fn transmit_faults(&self) -> Option<&FaultInjector> {
        self.transmit.as_ref().map(|side| &side.injector)
    }

    /// Returns the injector of received datagrams.
    #[must_use]
    pub fn receive_faults(&self) -> Option<&FaultInjector> {
        self.receive.as_ref().map(|side| &side.injector)
    }

    fn release_transmit(&mut self, now: Instant) {
        let inner = &mut self.inner;
        if let Some(side) = &mut self.transmit {
            side.held.release(now, |transmit, bytes| forward(inner.as_mut(), now, transmit, bytes));
        }
    }
}

impl Device for FaultDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()?;
        Some(TxSlot::new(&mut self.scratch))
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        let Some(bytes) = self.scratch.get_mut(..transmit.len) else {
            self.no_room += 1;
            return;
        };
        let inner = self.inner.as_mut();
        let Some(side) = &mut self.transmit else {
            self.no_room += u64::from(!forward(inner, now, transmit, bytes));
            return;
        };
        side.held.release(now, |transmit, bytes| forward(inner, now, transmit, bytes));
        let Verdict::Deliver(delivery) = side.injector.inject(now, transmit.path.ecn(), bytes) else {
            if let Some(drops) = &mut self.drops {
                drops.dropped_sent(now, transmit, bytes);
            }
            return;
        };
        let transmit = Transmit { path: delivery.path(transmit.path), ..*transmit };
        if delivery.delay_ns > 0 || delivery.reorder.is_some() {
            side.hold(now, &delivery, transmit, [bytes, &[]]);
            return;
        }
        delivery.flips.apply(bytes);
        for _ in 0..copies(&delivery) {
            // Datagrams for which the device has no room wait.
            let waits = side.held.has_due(now) || !forward(inner, now, &transmit, bytes);
            if waits {
                side.hold(now, &Delivery::UNTOUCHED, transmit, [bytes, &[]]);
            } else {
                side.held.overtake();
            }
        }
        side.held.release(now, |transmit, bytes| forward(inner, now, transmit, bytes));
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.release_transmit(now);
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let Some(side) = &mut self.receive else { return self.inner.receive(now, sink) };
        let (damaged, drops) = (&mut self.damaged, &mut self.drops);
        let mut count = 0;
        let mut deliver = |received: &Received<'_>| {
            count += 1;
            sink(received);
        };
        release_received(side, now, &mut deliver);
        self.inner.receive(now, &mut |received| {
            let is_delivered = take_received(side, damaged, now, received, &mut deliver);
            if let Some(drops) = drops.as_mut().filter(|_| !is_delivered) {
                drops.dropped_received();
            }
        })?;
        release_received(side, now, &mut deliver);
        Ok(count)
    }

    fn deadline(&self) -> Option<Instant> {
        let transmit = self.transmit.as_ref().and_then(|side| side.held.next_due());
        let receive = self.receive.as_ref().and_then(|side| side.held.next_due());
        [transmit, receive, self.inner.deadline()].into_iter().flatten().min()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        if let Some(side) = &self.transmit {
            side.injector.counters().visit_transmit(visit);
            visit("fault_tx_overflow", side.overflow + self.no_room);
        }
        if let Some(side) = &self.receive {
            side.injector.counters().visit_receive(visit);
            visit("fault_rx_overflow", side.overflow);
        }
        self.inner.counters(visit);
    }
}

impl std::fmt::Debug for FaultDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultDevice")
            .field("transmit", &self.transmit_faults())
            .field("receive", &self.receive_faults())
            .finish_non_exhaustive()
    }
}

/// Copies a datagram into a slot of `inner`; `false` if it has none even after a flush. The next flush
/// reports the error of this one again.
fn forward(inner: &mut dyn Device, now: Instant, transmit: &Transmit, bytes: &[u8]) -> bool {
    if inner.slot().is_none() {
        let _ = inner.flush(now);
    }
    let Some(slot) = inner.slot() else { return false };
    let Some(room) = slot.buffer.get_mut(..bytes.len()) else { return false };
    room.copy_from_slice(bytes);
    inner.commit(now, transmit);
    true
}

/// Decides on one received datagram; `false` if it is lost.
fn take_received(
    side: &mut Side<(Path, Identification)>,
    damaged: &mut Vec<u8>,
    now: Instant,
    received: &Received<'_>,
    deliver: &mut dyn FnMut(&Received<'_>),
) -> bool {
    let [head, tail] = received.body.pieces();
    let whole = if tail.is_empty() {
        head
    } else {
        join(damaged, head, tail);
        damaged.as_slice()
    };
    let Verdict::Deliver(delivery) = side.injector.inject(now, received.path.ecn(), whole) else {
        return false;
    };
    if delivery == Delivery::UNTOUCHED {
        deliver(received);
        side.held.overtake();
        return true;
    }
    let path = delivery.path(received.path);
    if delivery.delay_ns > 0 || delivery.reorder.is_some() {
        side.hold(now, &delivery, (path, received.identification), [head, tail]);
        return true;
    }
    join(damaged, head, tail);
    delivery.flips.apply(damaged);
    for _ in 0..copies(&delivery) {
        deliver(&Received::whole(path, received.identification, damaged));
        side.held.overtake();
    }
    true
}

fn release_received(
    side: &mut Side<(Path, Identification)>,
    now: Instant,
    deliver: &mut dyn FnMut(&Received<'_>),
) {
    side.held.release(now, |(path, identification), head| {
        deliver(&Received::whole(*path, *identification, head));
        true
    });
}

fn join(whole: &mut Vec<u8>, head: &[u8], tail: &[u8]) {
    whole.clear();
    whole.extend_from_slice(head);
    whole.extend_from_slice(tail);
}

const fn copies(delivery: &Delivery) -> usize {
    if delivery.duplicate { 2 } else { 1 }
}
