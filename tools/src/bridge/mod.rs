//! A bump in the wire: forwards everything between two devices that carry Ethernet frames, changes nothing that it was
//! not told to, and does to RoCE packets on purpose what a bad network does.
//!
//! ```text
//!            +--------------------------------------------------------------+
//!  frame --->| RoCE? -- no -------------------------------------------------|--> as it is, in order
//!            |   |                                                          |
//!            |   +- rules and chance -> queues by priority -> rate -> cable |--> drops, marks, delays, …
//!            +--------------------------------------------------------------+
//! ```
//!
//! [`Bridge`] is given frames and the time and gives frames back: no device, no clock. [`Runner`] is the loop around it.

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
pub use run::{Observer, Runner};
pub use scenario::{Origin, Queue, Scenario};
pub use settings::{QueueSettings, Settings, Side};

/// What a bridge knows about a device.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Source of pause frames.
    pub mac: MacAddr,
    /// The rate of its link, if it is known: pauses are counted in its bit times.
    pub bits_per_second: Option<u64>,
}

/// Forwards frames between a left and a right port.
///
/// One input ([`handle_frame`](Self::handle_frame), [`handle_timeout`](Self::handle_timeout)), then drain
/// [`poll_transmit`](Self::poll_transmit) for both sides, then read [`poll_timeout`](Self::poll_timeout). Time never goes
/// backward.
pub struct Bridge {
    /// Of what comes from the left, and from the right.
    directions: [Direction; 2],
    ports: [Port; 2],
}

impl Bridge {
    pub fn new(settings: &Settings, ports: [Port; 2]) -> Self {
        let direction = |from: Side, seed| {
            let rates = [from, from.other()].map(|side| ports[side as usize].bits_per_second);
            Direction::new(settings.direction(from), seed, rates)
        };
        // Two directions need two seeds, or the same chance strikes both.
        let directions = [direction(Side::Left, settings.seed), direction(Side::Right, !settings.seed)];
        Self { directions, ports }
    }

    /// Keeps packets that are lost on purpose for [`poll_lost`](Self::poll_lost).
    pub fn keep_lost(&mut self) {
        self.directions.iter_mut().for_each(Direction::keep_lost);
    }

    /// Takes a frame that came from one side, with its tag in it.
    pub fn handle_frame(&mut self, now: Instant, from: Side, offload: Offload, bytes: &[u8]) {
        if is_mac_control(bytes) {
            // Never forwarded: it is about the traffic to whom it came from.
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

    /// Does what is due. Too early is no error.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.directions.iter_mut().for_each(|direction| direction.advance(now));
    }

    /// The next frame that leaves to a side.
    pub fn poll_transmit(&mut self, now: Instant, to: Side) -> Option<Leaving> {
        if let Some(told) = self.directions[to as usize].poll_pauses(now) {
            let request = PauseRequest::PerPriority(told);
            let mut bytes = [0; PauseFrame::LEN];
            PauseFrame { source: self.ports[to as usize].mac, request }.emit(&mut bytes);
            return Some(Leaving { bytes: bytes.to_vec(), offload: Offload::NONE, touch: None });
        }
        self.directions[to.other() as usize].poll(now)
    }

    /// Says whether the device of a side takes nothing for now. Packets for it then wait in the queue.
    pub const fn set_full(&mut self, to: Side, is_full: bool) {
        self.directions[to.other() as usize].receiver_is_full = is_full;
    }

    /// The next packet from a side that was lost on purpose.
    pub fn poll_lost(&mut self, from: Side) -> Option<Leaving> {
        self.directions[from as usize].poll_lost()
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) has something to do.
    pub fn poll_timeout(&mut self, now: Instant) -> Option<Instant> {
        self.directions.iter_mut().filter_map(|direction| direction.timeout(now)).min()
    }

    /// What happened to what came from a side.
    pub fn counts(&self, from: Side) -> Counts {
        self.directions[from as usize].counts()
    }

    /// Counts of the queue pairs to which packets went, in the order of their appearance.
    pub fn queue_pairs(&self, from: Side) -> impl Iterator<Item = &QueuePairCounts> {
        self.directions[from as usize].watch().queue_pairs.values()
    }

    /// The rules for what comes from a side.
    pub fn plan(&self, from: Side) -> &FaultPlan {
        self.directions[from as usize].injector().plan()
    }
}
