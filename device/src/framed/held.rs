//! Datagrams that cannot leave yet: their priority is paused, or their neighbour is not resolved.

use std::collections::VecDeque;
use std::net::IpAddr;

use roce_packet::Path;
use roce_transport::Transmit;

/// Datagrams that wait for one destination's Ethernet address.
const MAX_PER_DESTINATION: usize = 128;
/// Datagrams that wait altogether. More are dropped, as the kernel does while it resolves a neighbour: an unresolved
/// neighbour must not hold up the others.
const MAX_ALTOGETHER: usize = 4096;
/// Above this number of datagrams of paused priorities the device takes no more from the engine: they leave at once when
/// the pause ends, and the host that asked for it must have room for them. The engine keeps the rest, and paces it.
const MAX_PAUSED: usize = 32;

/// A datagram and a copy of its bytes.
pub(super) struct HeldDatagram {
    pub(super) transmit: Transmit,
    pub(super) bytes: Vec<u8>,
    /// Its priority was paused when it came.
    pub(super) is_paused: bool,
}

/// The datagrams of one path in the order in which they came. Never empty.
struct PathQueue {
    path: Path,
    queue: VecDeque<HeldDatagram>,
}

/// All held datagrams.
#[derive(Default)]
pub(super) struct Held {
    /// The path that waits longest first.
    lines: Vec<PathQueue>,
    len: usize,
    /// How many of them came during a pause.
    paused: usize,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether the engine has to keep what it has.
    pub(super) fn is_full(&self) -> bool {
        self.paused >= MAX_PAUSED
    }

    /// Whether something waits that must go first.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        self.lines.iter().any(|line| line.path == *path)
    }

    /// Whether one more may wait until this destination answers.
    pub(super) fn has_room_for(&self, destination: IpAddr) -> bool {
        let there = self.lines.iter().filter(|line| line.path.destination == destination);
        self.len < MAX_ALTOGETHER && there.map(|line| line.queue.len()).sum::<usize>() < MAX_PER_DESTINATION
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
            None => self.lines.push(PathQueue { path: transmit.path, queue: VecDeque::from([held]) }),
        }
    }

    /// Calls `decide` for the datagrams of every path in order, until one stays. After `Release::Stop` it is not called
    /// again.
    pub(super) fn release(&mut self, mut decide: impl FnMut(&HeldDatagram) -> Release) {
        'lines: for line in &mut self.lines {
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
        }
        self.lines.retain(|line| !line.queue.is_empty());
    }
}

/// What became of a held datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// It was sent or dropped.
    Gone,
    /// The reason for which it waits still holds.
    Stays,
    /// The port has no room.
    Stop,
}
