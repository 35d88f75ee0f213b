//! A packet on the link of a pair, and the actions on it.

use roce_packet::{Datagram, Ecn, Path};
use roce_transport::Instant;

use super::Side;

/// The action of a script on a packet that leaves, or of [`Pair::act`](super::Pair::act) on a packet that
/// is on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Deliver it unchanged.
    Pass,
    /// Drop it.
    Drop,
    /// Deliver it twice.
    Duplicate,
    /// Flip this bit, counted from the first bit of the BTH. A bit behind the last one changes nothing.
    FlipBit(usize),
    /// Deliver it this number of nanoseconds later than the link would.
    Delay(u64),
    /// Deliver it with an ECN congestion mark, as a congested switch does.
    Mark,
    /// Deliver its headers only, like a switch that trims a packet because its buffer is full.
    Trim,
}

/// A packet between its departure and its arrival.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) to: Side,
    pub(super) sent: Instant,
    pub(super) path: Path,
    pub(super) identification: u16,
    pub(super) bytes: Vec<u8>,
    pub(super) trimmed: bool,
}

impl InFlight {
    /// Carries out an action that changes the packet itself; other actions have no effect here.
    pub(super) fn change(&mut self, action: Action) {
        match action {
            Action::FlipBit(bit) => {
                if let Some(byte) = self.bytes.get_mut(bit / 8) {
                    *byte ^= 0x80 >> (bit % 8);
                }
            }
            Action::Trim => {
                if let Ok(datagram) = Datagram::parse(&self.bytes, &[]) {
                    let headers = datagram.info().header_len;
                    self.bytes.truncate(headers);
                    self.trimmed = true;
                }
            }
            Action::Mark => self.path = self.path.with_ecn(Ecn::CongestionExperienced),
            Action::Pass | Action::Drop | Action::Duplicate | Action::Delay(_) => {}
        }
    }
}

/// A packet on the link.
#[derive(Clone, Copy, Debug)]
pub struct OnLink<'a> {
    /// The number of the packet, which no other packet of the pair has.
    pub number: u64,
    /// The sender.
    pub from: Side,
    /// The time at which the packet left its sender.
    pub sent: Instant,
    /// The time at which the packet will arrive.
    pub arrives: Instant,
    /// The addresses and the traffic class.
    pub path: Path,
    /// The IPv4 Identification.
    pub identification: u16,
    /// The bytes of the packet from BTH to ICRC.
    pub bytes: &'a [u8],
}
