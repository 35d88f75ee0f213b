//! Datagrams that cannot go yet: their priority is paused, or nobody has said where their destination is.

use std::collections::VecDeque;
use std::net::IpAddr;

use roce_packet::Path;
use roce_transport::Transmit;

/// Datagrams that wait for one destination's Ethernet address.
const MAX_PER_DESTINATION: usize = 128;
/// Above so many altogether the device takes no more from the engine.
const FULL: usize = 1024;
/// Above so many of paused priorities neither: they leave at once when the pause ends, and who asked for it must have room for
/// them. What the engine may not hand over it keeps, and the pace with it.
const MAX_PAUSED: usize = 32;

/// A datagram and a copy of its bytes.
pub(super) struct HeldDatagram {
    pub(super) transmit: Transmit,
    pub(super) bytes: Vec<u8>,
    /// Its priority was paused when it came.
    pub(super) is_paused: bool,
}

/// All of them, in the order in which they came.
#[derive(Default)]
pub(super) struct Held {
    queue: VecDeque<HeldDatagram>,
    /// How many of them came during a pause.
    paused: usize,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= FULL || self.paused >= MAX_PAUSED
    }

    /// Whether something waits that must go first.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        self.queue.iter().any(|held| held.transmit.path == *path)
    }

    /// Whether one more may wait until this destination answers.
    pub(super) fn has_room_for(&self, destination: IpAddr) -> bool {
        let waiting = self.queue.iter().filter(|held| held.transmit.path.destination == destination);
        waiting.take(MAX_PER_DESTINATION).count() < MAX_PER_DESTINATION
    }

    pub(super) fn push(&mut self, transmit: Transmit, datagram: &[u8], is_paused: bool) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(datagram);
        self.paused += usize::from(is_paused);
        self.queue.push_back(HeldDatagram { transmit, bytes, is_paused });
    }

    /// Shows every datagram to `decide` in order. What waits behind one of its own path that stays is not
    /// shown, and when `decide` says stop, nothing more is.
    pub(super) fn release(&mut self, mut decide: impl FnMut(&HeldDatagram) -> Release) {
        let mut stuck: Vec<Path> = Vec::new();
        let mut index = 0;
        while let Some(held) = self.queue.get(index) {
            if stuck.contains(&held.transmit.path) {
                index += 1;
                continue;
            }
            match decide(held) {
                Release::Gone => {
                    if let Some(gone) = self.queue.remove(index) {
                        self.paused -= usize::from(gone.is_paused);
                        self.spare.push(gone.bytes);
                    }
                }
                Release::Stays => {
                    stuck.push(held.transmit.path);
                    index += 1;
                }
                Release::Stop => return,
            }
        }
    }
}

/// What became of a held datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// It was sent or dropped.
    Gone,
    /// What held it holds it still.
    Stays,
    /// The port has no room.
    Stop,
}
