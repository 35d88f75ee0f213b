//! The paths of a queue pair with several ([`EngineConfig::paths`](crate::EngineConfig::paths)): which UDP
//! source port each packet leaves with, and what the answers say about it.
//!
//! The requester knows the path of each request in flight, so that the answers of any peer tell which paths
//! work. The responder acknowledges on a path that depends on that of the newest request, so a path of the
//! requester stands for a way there and back. READ responses take all paths in turn. Their loss looks like
//! that of the request, so it counts against no path.

use alloc::collections::VecDeque;

use roce_packet::{Psn, Qpn};

use crate::Instant;
use crate::congestion::{PathFeedback, PathSet};

/// The paths of the requests in flight.
#[derive(Debug)]
pub(super) struct Spread {
    paths: PathSet,
    /// The queue pair number, for trace events.
    qpn: Qpn,
    /// The oldest unanswered PSN.
    una: Psn,
    /// The packets in flight, by PSN from `una` on. A READ request has the first PSN of its responses.
    sent: VecDeque<Sent>,
}

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    psn: Psn,
    path: u16,
    /// Whether its path was excluded when it left.
    is_probe: bool,
    /// Whether a CNP reported a mark of it.
    is_marked: bool,
    /// Whether its fate was reported, or will never be known.
    is_known: bool,
}

impl Spread {
    pub(super) fn new(paths: PathSet, qpn: Qpn, una: Psn) -> Self {
        Self { paths, qpn, una, sent: VecDeque::new() }
    }

    /// Begins with this PSN, before any packet leaves.
    pub(super) fn start(&mut self, sq_psn: Psn) {
        self.una = sq_psn;
        self.sent.clear();
    }

    /// Returns the position of a packet in flight, or the one where it would be.
    fn position(&self, psn: Psn) -> Result<usize, usize> {
        let ahead = self.una.distance_to(psn);
        self.sent.binary_search_by_key(&ahead, |sent| self.una.distance_to(sent.psn))
    }

    /// Returns the path of a packet that leaves, for the first time or again.
    pub(super) fn leaves(&mut self, now: Instant, psn: Psn, is_again: bool) -> u16 {
        let probe = if is_again { None } else { self.paths.probe(now) };
        let path = match probe {
            Some(path) => path,
            None if is_again => self.paths.next_again(now),
            None => self.paths.next(now),
        };
        let sent = Sent { psn, path, is_probe: probe.is_some(), is_marked: false, is_known: false };
        match self.position(psn) {
            Ok(position) => {
                if let Some(place) = self.sent.get_mut(position) {
                    *place = sent;
                }
            }
            // Behind all others, or a part of a READ that is requested again.
            Err(position) => self.sent.insert(position, sent),
        }
        path
    }

    /// Tells whether the packet with this PSN is a probe.
    pub(super) fn is_probe(&self, psn: Psn) -> bool {
        self.position(psn).is_ok_and(|position| self.sent.get(position).is_some_and(|sent| sent.is_probe))
    }

    /// Reports the fate of the packet with this PSN, if it is in flight. The first report counts.
    pub(super) fn report(&mut self, now: Instant, psn: Psn, feedback: PathFeedback) {
        if let Ok(position) = self.position(psn)
            && let Some(sent) = self.sent.get_mut(position)
            && !core::mem::replace(&mut sent.is_known, true)
        {
            let sent = *sent;
            self.learn(now, sent, feedback);
        }
    }

    /// Passes the fate of a packet on.
    fn learn(&mut self, now: Instant, Sent { path, is_marked, .. }: Sent, feedback: PathFeedback) {
        if is_marked && feedback == PathFeedback::Delivered {
            self.paths.on_arrival_of_marked(now, path);
        } else if self.paths.on_feedback(now, path, feedback) {
            tracing::debug!(qpn = self.qpn.get(), path, "path excluded");
        }
    }

    /// Gives up to learn the fate of the packets in flight: they may have arrived, and are sent again.
    pub(super) fn forget(&mut self) {
        for sent in &mut self.sent {
            sent.is_known = true;
        }
    }

    /// Reports that everything before `una` arrived.
    pub(super) fn passed(&mut self, now: Instant, una: Psn) {
        let passed = self.una.distance_to(una);
        while let Some(&sent) = self.sent.front()
            && self.una.distance_to(sent.psn) < passed
        {
            self.sent.pop_front();
            if !sent.is_known {
                self.learn(now, sent, PathFeedback::Delivered);
            }
        }
        self.una = una;
    }

    /// Handles a CNP about a packet on this path. Its acknowledgement must not count as one without a mark.
    pub(super) fn marked(&mut self, now: Instant, path: u16) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.path == path && !sent.is_known) {
            sent.is_marked = true;
        }
        self.paths.on_mark(now, path);
    }
}

/// The paths of the answers of a responder.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerPaths {
    /// Number of paths, a power of two.
    count: u16,
    /// The path of acknowledgements: that of the newest request.
    newest: u16,
    /// The path of the last READ response.
    turn: u16,
}

impl AnswerPaths {
    /// Returns the state for this number of paths, or `None` for one.
    pub(super) fn new(count: u16) -> Option<Self> {
        (count > 1).then_some(Self { count, newest: 0, turn: 0 })
    }

    /// Records the source port of a request.
    pub(super) fn arrived_on(&mut self, source_port: u16) {
        self.newest = source_port & (self.count - 1);
    }

    /// Returns the path of the next answer.
    pub(super) fn next(&mut self, is_response: bool) -> u16 {
        if !is_response {
            return self.newest;
        }
        self.turn = (self.turn + 1) & (self.count - 1);
        self.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn spread(una: Psn) -> Spread {
        let paths = PathSet::new(&"round-robin:paths=8".parse().unwrap(), 7).unwrap();
        Spread::new(paths, Qpn::new(2), una)
    }

    /// A READ that is requested again from its middle leaves before the requests behind it, which are known
    /// already. Regression: it was stored behind them and never removed, and near the end of the PSN space
    /// nothing was removed any more.
    #[test]
    fn parts_of_reads_are_removed_when_they_are_answered() {
        let mut una = Psn::new(0xff_fe00);
        let mut spread = spread(una);
        for _ in 0..4_000 {
            spread.leaves(NOW, una, false);
            spread.leaves(NOW, una.add(8), false);
            spread.passed(NOW, una.add(1));
            spread.leaves(NOW, una.add(1), true);
            spread.leaves(NOW, una.add(5), true);
            assert_eq!(spread.sent.len(), 3);
            spread.passed(NOW, una.add(8));
            assert_eq!(spread.sent.len(), 1);
            una = una.add(16);
            spread.passed(NOW, una);
        }
        assert!(spread.sent.is_empty());
    }

    #[test]
    fn each_packet_is_reported_once() {
        let una = Psn::new(0xff_fffe);
        let mut spread = spread(una);
        let paths: alloc::vec::Vec<u16> =
            (0..4).map(|ahead| spread.leaves(NOW, una.add(ahead), false)).collect();
        for _ in 0..5 {
            spread.report(NOW, una.add(1), PathFeedback::Lost);
        }
        assert!(!spread.paths.is_excluded(paths[1]), "five reports of one loss");
        spread.forget();
        spread.report(NOW, una.add(2), PathFeedback::Lost);
        spread.report(NOW, una.add(2), PathFeedback::Lost);
        assert!(!spread.paths.is_excluded(paths[2]));
        spread.report(NOW, una.add(9), PathFeedback::Lost);
        spread.report(NOW, una.sub(1), PathFeedback::Lost);
        assert_eq!(spread.sent.len(), 4);
    }
}
