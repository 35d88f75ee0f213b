//! A bump in the wire. It forwards all frames between two Ethernet devices, and applies the configured faults
//! and the configured congestion of a bad network to RoCE packets.
//!
//! ```text
//!            +--------------------------------------------------------------+
//!  frame --->| RoCE? -- no -------------------------------------------------|--> unchanged, in order
//!            |   |                                                          |
//!            |   +- rules and chance -> queues by priority -> rate -> cable |--> drops, marks, delays, …
//!            +--------------------------------------------------------------+
//! ```
//!
//! [`Bridge`] takes frames and the time, and returns frames. It has neither device nor clock; [`Runner`] is
//! the loop around it. [`Scenario`] reads the settings from a file.
//!
//! The crate may use devices (`roce-device`), captures, faults, and the queues and scenarios of `roce-sim`.
//! It does not use the library `roce`, because a bridge has no queue pair. It has no command line and writes
//! to no terminal.
#![forbid(unsafe_code)]

mod counts;
mod direction;
mod network;
mod packet;
mod queue;
mod run;
mod scenario;
mod settings;
#[cfg(test)]
mod tests;
mod touch;

use roce_fault::FaultPlan;
use roce_packet::pause::PauseRequest;
use roce_packet::{MacAddr, PauseFrame};
use roce_transport::Instant;

use direction::{Direction, Leaving, is_mac_control};
use roce_device::whole::Offload;

pub use counts::{Counts, QueuePairCounts};
pub use run::{BridgeError, Observer, Runner};
pub use scenario::{Origin, Queue, Scenario};
pub use settings::{QueueSettings, Settings, Side};

/// The properties of a device that the bridge uses.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The source address of pause frames.
    pub mac: MacAddr,
    /// The rate of the link, if known: the unit of pauses is 512 bit times.
    pub bits_per_second: Option<u64>,
}

/// A bridge that forwards frames between a left and a right port.
///
/// Call one input function ([`handle_frame`](Self::handle_frame), [`handle_timeout`](Self::handle_timeout)).
/// Then drain [`poll_transmit`](Self::poll_transmit) for both sides, and read
/// [`poll_timeout`](Self::poll_timeout). Time never goes backward.
pub struct Bridge {
    /// The directions from the left and from the right.
    directions: [Direction; 2],
    ports: [Port; 2],
}

impl Bridge {
    /// Creates a bridge between two ports.
    pub fn new(settings: &Settings, ports: [Port; 2]) -> Self {
        let direction = |from: Side, seed| {
            let rates = [from, from.other()].map(|side| ports[side as usize].bits_per_second);
            Direction::new(settings.direction(from), seed, rates)
        };
        // Each direction needs its own seed; otherwise both would use the same draws.
        let directions = [direction(Side::Left, settings.seed), direction(Side::Right, !settings.seed)];
        Self { directions, ports }
    }

    /// Keeps dropped packets for [`poll_lost`](Self::poll_lost).
    pub fn keep_lost(&mut self) {
        self.directions.iter_mut().for_each(Direction::keep_lost);
    }

    /// Handles a frame that arrived from one side, with its VLAN tag in place.
    pub fn handle_frame(&mut self, now: Instant, from: Side, offload: Offload, bytes: &[u8]) {
        if is_mac_control(bytes) {
            // A MAC control frame is not forwarded, because it concerns the traffic towards its sender.
            let direction = &mut self.directions[from.other() as usize];
            if let Ok(pause) = PauseFrame::parse(bytes) {
                direction.advance(now);
                direction.counts.pauses_received += 1;
                direction.pauses.handle(now, &pause);
            }
            return;
        }
        self.directions[from as usize].handle_frame(now, bytes, offload);
    }

    /// Does the work that is due. A call before the deadline has no effect.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.directions.iter_mut().for_each(|direction| direction.advance(now));
    }

    /// Returns the next frame that leaves to a side.
    pub fn poll_transmit(&mut self, now: Instant, to: Side) -> Option<Leaving> {
        if let Some(quanta) = self.directions[to as usize].poll_pauses(now) {
            let request = PauseRequest::PerPriority(quanta);
            let mut bytes = [0; PauseFrame::LEN];
            PauseFrame { source: self.ports[to as usize].mac, request }.emit(&mut bytes);
            return Some(Leaving { bytes: bytes.to_vec(), offload: Offload::NONE, touch: None });
        }
        self.directions[to.other() as usize].poll(now)
    }

    /// Sets whether the device of a side currently accepts no frames. Packets for it then wait in the queue.
    pub const fn set_full(&mut self, to: Side, is_full: bool) {
        self.directions[to.other() as usize].receiver_is_full = is_full;
    }

    /// Returns the next packet from a side that the bridge dropped.
    pub fn poll_lost(&mut self, from: Side) -> Option<Leaving> {
        self.directions[from as usize].poll_lost()
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) has
    /// work to do.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.directions.iter_mut().filter_map(|direction| direction.timeout(now)).min()
    }

    /// Returns the counters of the direction from a side.
    pub fn counts(&self, from: Side) -> Counts {
        self.directions[from as usize].counts()
    }

    /// Returns the counters of the destination queue pairs, in the order of their appearance.
    pub fn queue_pairs(&self, from: Side) -> impl Iterator<Item = &QueuePairCounts> {
        self.directions[from as usize].watch().queue_pairs.values()
    }

    /// Returns the fault plan of the direction from a side.
    pub fn plan(&self, from: Side) -> &FaultPlan {
        self.directions[from as usize].injector().plan()
    }
}
