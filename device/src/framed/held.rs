//! Datagrams that cannot leave yet because their priority is paused or their neighbour is not resolved.

use std::collections::VecDeque;

use roce_packet::Path;
use roce_transport::Transmit;

/// Maximum number of datagrams that wait for one destination's Ethernet address.
const MAX_PER_DESTINATION: usize = 128;
/// Maximum number of waiting datagrams. Beyond it, the path with the most drops its oldest, as the kernel
/// does while it resolves a neighbour: each path keeps its share, however many neighbours do not answer.
pub(super) const MAX_ALTOGETHER: usize = 4096;
/// Maximum number of waiting paths. One more replaces the path that has waited longest.
const MAX_PATHS: usize = 512;
/// Maximum number of paths per call of [`Held::release`]. The next call continues with the others.
pub(super) const MAX_LOOKS: usize = 64;
/// Above this number of datagrams of paused priorities, the device accepts no more from the engine: they
/// leave at once when the pause ends, and their host must have room. The engine keeps and paces the rest.
const MAX_PAUSED: usize = 32;

/// A datagram and a copy of its bytes.
pub(super) struct HeldDatagram {
    pub(super) transmit: Transmit,
    pub(super) bytes: Vec<u8>,
    /// Whether its priority was paused when it was added.
    pub(super) is_paused: bool,
}

/// The datagrams of one path in order of arrival. Never empty.
struct PathQueue {
    path: Path,
    queue: VecDeque<HeldDatagram>,
    /// Sequence number of this path among all paths that ever waited.
    number: u64,
}

impl PathQueue {
    /// Returns whether its priority is paused; if so, no datagram is dropped, as the neighbour is known.
    fn is_paused(&self) -> bool {
        self.queue.iter().any(|held| held.is_paused)
    }
}

/// All held datagrams.
#[derive(Default)]
pub(super) struct Held {
    /// In the order of the next checks.
    lines: Vec<PathQueue>,
    len: usize,
    /// Number of paths that ever waited.
    paths: u64,
    /// Number of held datagrams that were added during a pause.
    paused: usize,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns whether the engine has to keep its datagrams.
    pub(super) fn is_full(&self) -> bool {
        self.paused >= MAX_PAUSED
    }

    /// Returns whether datagrams of this path wait, which must leave first.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        self.lines.iter().any(|line| line.path == *path)
    }

    /// Makes room for one more datagram that waits until the destination of its path answers. Returns whether
    /// it may wait, and how many others were dropped.
    pub(super) fn make_room(&mut self, path: &Path) -> (bool, usize) {
        let same_destination = self.lines.iter().filter(|line| line.path.destination == path.destination);
        if same_destination.map(|line| line.queue.len()).sum::<usize>() >= MAX_PER_DESTINATION {
            return (false, 0);
        }
        let own_len = self.lines.iter().find(|line| line.path == *path).map_or(0, |line| line.queue.len());
        let mut dropped = 0;
        if own_len == 0 && self.lines.len() >= MAX_PATHS {
            let oldest = self.lines.iter().enumerate().filter(|(_, line)| !line.is_paused());
            let Some((place, _)) = oldest.min_by_key(|(_, line)| line.number) else { return (false, 0) };
            let gone = self.lines.remove(place);
            dropped += gone.queue.len();
            self.len -= gone.queue.len();
            self.spare.extend(gone.queue.into_iter().map(|held| held.bytes));
        }
        if self.len >= MAX_ALTOGETHER {
            let longest = self.lines.iter_mut().filter(|line| !line.is_paused());
            let longest =
                longest.max_by_key(|line| line.queue.len()).filter(|line| line.queue.len() > own_len + 1);
            let Some(gone) = longest.and_then(|line| line.queue.pop_front()) else { return (false, dropped) };
            dropped += 1;
            self.len -= 1;
            self.spare.push(gone.bytes);
        }
        (true, dropped)
    }

    pub(super) fn push(&mut self, transmit: Transmit, datagram: &[u8], is_paused: bool) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(datagram);
        self.len += 1;
        self.paused += usize::from(is_paused);
        let held = HeldDatagram { transmit, bytes, is_paused };
        match self.lines.iter_mut().find(|line| line.path == transmit.path) {
            Some(line) => line.queue.push_back(held),
            None => {
                self.paths += 1;
                let (path, queue) = (transmit.path, VecDeque::from([held]));
                self.lines.push(PathQueue { path, queue, number: self.paths });
            }
        }
    }

    /// Calls `decide` for the datagrams of a path in order, until one stays, and then for those of the next
    /// path, for at most [`MAX_LOOKS`] paths. Stops after `Release::Stop`.
    pub(super) fn release(&mut self, mut decide: impl FnMut(&HeldDatagram) -> Release) {
        let (before, looks) = (self.len, self.lines.len().min(MAX_LOOKS));
        let mut looked = 0;
        'lines: for line in &mut self.lines[..looks] {
            while let Some(first) = line.queue.front() {
                match decide(first) {
                    Release::Gone => {}
                    Release::Stays => break,
                    Release::Stop => break 'lines,
                }
                if let Some(gone) = line.queue.pop_front() {
                    self.len -= 1;
                    self.paused -= usize::from(gone.is_paused);
                    self.spare.push(gone.bytes);
                }
            }
            looked += 1;
        }
        if self.lines.len() > looks {
            self.lines.rotate_left(looked);
        }
        if self.len < before {
            self.lines.retain(|line| !line.queue.is_empty());
        }
    }

    /// Returns the number of waiting datagrams.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

/// The result for a held datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// The datagram was sent or dropped.
    Gone,
    /// The datagram must still wait for the same reason.
    Stays,
    /// The port has no room.
    Stop,
}
