//! The neighbour table, which maps IP addresses to Ethernet addresses. ARP and neighbour discovery share one
//! table and the rules of RFC 4861 7.3.
//!
//! It owns no clock and sends nothing: [`Neighbours::poll_ask`] returns the requests to send.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use roce_packet::MacAddr;
use roce_transport::Instant;

use crate::framed::{Resolution, Unreachable};

/// Maximum number of neighbours.
pub(super) const CAPACITY: usize = 1024;
/// Time for which an answer is valid (`REACHABLE_TIME`, RFC 4861 10).
pub(super) const REACHABLE: Duration = Duration::from_secs(30);
/// Time to wait for an answer (`RETRANS_TIMER`).
pub(super) const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of requests, first by unicast if the address was known, then by multicast (`MAX_UNICAST_SOLICIT`,
/// `MAX_MULTICAST_SOLICIT`).
pub(super) const ASK_TIMES: u8 = 3;
/// Time until an unanswered neighbour is asked again.
pub(super) const GIVE_UP: Duration = Duration::from_secs(1);

/// A request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// The address whose Ethernet address is requested.
    pub(super) target: IpAddr,
    /// The known Ethernet address, to ask by unicast; `None` to ask by multicast.
    pub(super) at: Option<MacAddr>,
}

/// The reason for believing an Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// An answer to this host. `replaces` is whether the address replaces another one (the override flag of
    /// neighbour discovery; always set in ARP).
    Answer { replaces: bool },
    /// A request to this host, which will have to answer soon.
    Question,
    /// An announcement to all hosts.
    Announcement { replaces: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All hosts have been asked `asked` times; the next request, or giving up, is at `next`.
    Asking { asked: u8, next: Instant },
    /// The neighbour answered, which is valid until `until`.
    Reachable { mac: MacAddr, until: Instant },
    /// The neighbour had this address earlier.
    Stale { mac: MacAddr },
    /// The neighbour had this address earlier, is in use, and has been asked by unicast.
    Probing { mac: MacAddr, asked: u8, next: Instant },
    /// No host answered.
    Failed { until: Instant },
}

impl State {
    const fn mac(&self) -> Option<MacAddr> {
        match *self {
            Self::Reachable { mac, .. } | Self::Stale { mac } | Self::Probing { mac, .. } => Some(mac),
            Self::Asking { .. } | Self::Failed { .. } => None,
        }
    }

    const fn next(&self) -> Option<Instant> {
        match *self {
            Self::Asking { next, .. } | Self::Probing { next, .. } => Some(next),
            Self::Reachable { .. } | Self::Stale { .. } | Self::Failed { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// When this host last sent to the neighbour; `None` if never.
    used: Option<Instant>,
    /// When a frame last confirmed the entry.
    confirmed: Instant,
}

/// The neighbour table. Its size is limited: entries caused by other hosts cannot replace those in use.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    // A `HashMap` with random keys, because other hosts choose the addresses. Its order decides nothing.
    entries: HashMap<IpAddr, Entry>,
    asks: VecDeque<Ask>,
    /// The earliest `next` of all entries, or an earlier time.
    due: Option<Instant>,
    /// Number of changed Ethernet addresses.
    pub(super) moved: u64,
    /// Neighbours that were not added because the table was full.
    pub(super) refused: u64,
}

impl Neighbours {
    /// Returns the destination of frames for `next_hop`, and asks for it if it is unknown.
    pub(super) fn resolve(&mut self, now: Instant, next_hop: IpAddr) -> Resolution {
        let answer = self.find(now, next_hop, None);
        if let Some(entry) = self.entries.get_mut(&next_hop) {
            entry.used = Some(now);
        }
        answer
    }

    /// Resolves for a packet that another host may cause: neither replaces an entry in use nor counts as use.
    pub(super) fn resolve_unsolicited(&mut self, now: Instant, next_hop: IpAddr) -> Resolution {
        self.find(now, next_hop, Some(now))
    }

    /// Resolves like `resolve_unsolicited`, but for a packet that already waits. A removed entry is not added
    /// again; otherwise two packets that wait for the last entry would replace each other's entry forever.
    pub(super) fn resolve_again(&mut self, now: Instant, next_hop: IpAddr) -> Resolution {
        if self.entries.contains_key(&next_hop) {
            self.find(now, next_hop, Some(now))
        } else {
            Resolution::Failed(Unreachable::NoAnswer { next_hop })
        }
    }

    /// Implements the resolve functions; `unsolicited_at` is as in [`make_room`](Self::make_room).
    fn find(&mut self, now: Instant, next_hop: IpAddr, unsolicited_at: Option<Instant>) -> Resolution {
        if !self.entries.contains_key(&next_hop) {
            if !self.make_room(unsolicited_at) {
                self.refused += 1;
                return Resolution::Failed(Unreachable::NoAnswer { next_hop });
            }
            let state = State::Failed { until: now };
            self.entries.insert(next_hop, Entry { state, used: None, confirmed: now });
        }
        let Some(entry) = self.entries.get_mut(&next_hop) else { return Resolution::Pending };
        match entry.state {
            State::Reachable { mac, until } if now < until => return Resolution::Known(mac),
            State::Probing { mac, .. } => return Resolution::Known(mac),
            State::Asking { .. } => return Resolution::Pending,
            State::Failed { until } if now < until => {
                return Resolution::Failed(Unreachable::NoAnswer { next_hop });
            }
            State::Reachable { mac, .. } | State::Stale { mac } => {
                entry.state = State::Probing { mac, asked: 0, next: now };
            }
            State::Failed { .. } => entry.state = State::Asking { asked: 0, next: now },
        }
        let answer = entry.state.mac().map_or(Resolution::Pending, Resolution::Known);
        self.advance(now);
        answer
    }

    /// Returns until when the last answer of [`resolve`](Self::resolve) for an address needs no new lookup.
    pub(super) fn settled_until(&self, next_hop: IpAddr) -> Option<Instant> {
        match self.entries.get(&next_hop)?.state {
            State::Reachable { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Returns whether the last requests for this address were unanswered.
    pub(super) fn has_failed(&self, next_hop: IpAddr) -> bool {
        matches!(self.entries.get(&next_hop), Some(Entry { state: State::Failed { .. }, .. }))
    }

    /// Records that `address` has the Ethernet address `mac`.
    pub(super) fn learn(&mut self, now: Instant, address: IpAddr, mac: MacAddr, evidence: Evidence) {
        let Some(entry) = self.entries.get_mut(&address) else {
            // Unrequested answers and announcements create no entry (RFC 4861 7.2.5).
            if evidence != Evidence::Question {
                return;
            }
            if self.make_room(Some(now)) {
                self.entries
                    .insert(address, Entry { state: State::Stale { mac }, used: None, confirmed: now });
            } else {
                self.refused += 1;
            }
            return;
        };
        entry.confirmed = now;
        let was_asked = entry.state.next().is_some();
        let known = entry.state.mac();
        let replaces = match evidence {
            Evidence::Answer { replaces } | Evidence::Announcement { replaces } => replaces,
            Evidence::Question => true,
        };
        if known.is_some_and(|known| known != mac) {
            if !replaces {
                // RFC 4861 7.2.5: doubt, but keep the old address.
                if let State::Reachable { mac, .. } = entry.state {
                    entry.state = State::Stale { mac };
                }
                return;
            }
            self.moved += 1;
        }
        entry.state = match (evidence, entry.state) {
            (Evidence::Answer { .. }, _) => State::Reachable { mac, until: now + REACHABLE },
            // Only an answer shows that frames arrive both ways. A confirmed entry stays confirmed.
            (_, state) if known == Some(mac) => state,
            _ => State::Stale { mac },
        };
        if was_asked {
            self.due = self.entries.values().filter_map(|entry| entry.state.next()).min();
        }
    }

    /// Returns the next request to send.
    pub(super) fn poll_ask(&mut self, now: Instant) -> Option<Ask> {
        if self.due.is_some_and(|due| due <= now) {
            self.advance(now);
        }
        self.asks.pop_front()
    }

    /// Returns when [`poll_ask`](Self::poll_ask) must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.asks.is_empty() { self.due } else { Some(Instant::ZERO) }
    }

    /// Returns the number of neighbours.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Queues the requests that are due, and gives up neighbours that did not answer.
    fn advance(&mut self, now: Instant) {
        let Self { entries, asks, due, .. } = self;
        *due = None;
        for (&target, entry) in entries.iter_mut() {
            if entry.state.next().is_some_and(|next| next <= now) {
                let next = now + ASK_INTERVAL;
                entry.state = match entry.state {
                    State::Asking { asked, .. } if asked < ASK_TIMES => {
                        asks.push_back(Ask { target, at: None });
                        State::Asking { asked: asked + 1, next }
                    }
                    State::Asking { .. } => State::Failed { until: now + GIVE_UP },
                    State::Probing { mac, asked, .. } if asked < ASK_TIMES => {
                        asks.push_back(Ask { target, at: Some(mac) });
                        State::Probing { mac, asked: asked + 1, next }
                    }
                    // The neighbour may have another address now.
                    State::Probing { .. } => {
                        asks.push_back(Ask { target, at: None });
                        State::Asking { asked: 1, next }
                    }
                    state => state,
                };
            }
            *due = [*due, entry.state.next()].into_iter().flatten().min();
        }
    }

    /// Makes room if the table is full; returns whether there is room. For another host, at time
    /// `unsolicited_at`, removes only entries that were not used here recently.
    fn make_room(&mut self, unsolicited_at: Option<Instant>) -> bool {
        if self.entries.len() < CAPACITY {
            return true;
        }
        let free = |entry: &Entry| match (unsolicited_at, entry.used) {
            (None, _) | (_, None) => true,
            (Some(now), Some(used)) => now.since(used) > REACHABLE && entry.state.next().is_none(),
        };
        // Entries that were never used go first, then those not used for the longest time.
        let candidates = self.entries.iter().filter(|(_, entry)| free(entry));
        let oldest =
            candidates.min_by_key(|(_, entry)| (entry.used, entry.confirmed)).map(|(address, _)| *address);
        oldest.is_some_and(|address| self.entries.remove(&address).is_some())
    }
}

#[cfg(test)]
mod tests;
