//! The notification point: the receiver of marked packets notifies their sender (Annex A17).
//!
//! Two checks limit notifications. A marked packet causes one only if none was made for its flow within
//! `min_time_between_cnps`. A notification may leave later than it was made, because of `cnp_delay` or
//! because the device accepted no packets. It is then dropped if another one left within that time. Two
//! notifications are therefore never closer than the interval, whatever the device does.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use roce_congestion::{CnpScope, NotificationPoint};
use roce_packet::{Cnp, Envelope, Path, Qpn};

use crate::Instant;
use crate::io::{Transmit, TxSlot};

/// The times of the last notifications of one scope.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CnpPace {
    /// Time at which the last notification was made, and at which the last one left.
    made: Option<Instant>,
    left: Option<Instant>,
}

impl CnpPace {
    fn is_too_early(last: Option<Instant>, now: Instant, interval: u64) -> bool {
        last.is_some_and(|last| now < last.plus_nanos(interval))
    }
}

/// A pending notification.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    at: Instant,
    /// The queue pair that received the mark.
    own: Qpn,
    cnp: Cnp,
    path: Path,
}

/// The notification point of an engine, for all of its queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    /// Pending notifications in the order of their time, because each has the same delay.
    waiting: VecDeque<Waiting>,
    port: CnpPace,
    /// Times of pairs of addresses, sorted by pair.
    pairs: Vec<((IpAddr, IpAddr), CnpPace)>,
}

/// Maximum number of pending notifications, and of pairs of addresses.
const MOST_WAITING: usize = 4_096;
const MOST_PAIRS: usize = 4_096;

/// The outcome for a due notification.
pub(crate) enum Leaving {
    /// Another notification of the same scope left too recently.
    TooEarly,
    /// The notification was written into the slot.
    Sent(Transmit),
    /// The slot has no room.
    NoRoom,
}

impl Notifier {
    /// Handles a marked packet that came on `path` for the queue pair `own`: makes a notification `to` its
    /// sender. Returns `false` if one was made recently. `pace` is that of the queue pair.
    pub(crate) fn mark(
        &mut self,
        now: Instant,
        point: &NotificationPoint,
        (own, pace): (Qpn, &mut CnpPace),
        to: Cnp,
        path: &Path,
    ) -> bool {
        if self.waiting.len() >= MOST_WAITING {
            return false;
        }
        let Some(pace) = self.pace(now, point, path, pace) else { return false };
        if CnpPace::is_too_early(pace.made, now, point.interval()) {
            return false;
        }
        pace.made = Some(now);
        // Both values were checked against their ranges.
        let path = Cnp::path(path, point.cnp_dscp as u8, point.cnp_802p_prio as u8);
        let at = now.plus_nanos(point.cnp_delay.into());
        self.waiting.push_back(Waiting { at, own, cnp: to, path });
        true
    }

    /// Returns the pace for the sender of data on `path`, or `None` if too many pairs are in use.
    fn pace<'a>(
        &'a mut self,
        now: Instant,
        point: &NotificationPoint,
        path: &Path,
        own: &'a mut CnpPace,
    ) -> Option<&'a mut CnpPace> {
        match point.cnp_scope {
            CnpScope::QueuePair => Some(own),
            CnpScope::Port => Some(&mut self.port),
            CnpScope::AddressPair => self.pair(now, point.interval(), (path.source, path.destination)),
        }
    }

    fn pair(&mut self, now: Instant, interval: u64, pair: (IpAddr, IpAddr)) -> Option<&mut CnpPace> {
        let index = match self.pairs.binary_search_by_key(&pair, |(known, _)| *known) {
            Ok(index) => index,
            Err(_) => {
                if self.pairs.len() >= MOST_PAIRS {
                    let is_busy = |last| CnpPace::is_too_early(last, now, interval);
                    self.pairs.retain(|(_, pace)| is_busy(pace.made) || is_busy(pace.left));
                    if self.pairs.len() >= MOST_PAIRS {
                        return None;
                    }
                }
                let index = self.pairs.partition_point(|(known, _)| *known < pair);
                self.pairs.insert(index, (pair, CnpPace::default()));
                index
            }
        };
        self.pairs.get_mut(index).map(|(_, pace)| pace)
    }

    /// Returns the time of the next notification.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.at)
    }

    /// Returns the queue pair whose notification is due.
    pub(crate) fn due(&self, now: Instant) -> Option<Qpn> {
        self.waiting.front().filter(|waiting| waiting.at <= now).map(|waiting| waiting.own)
    }

    /// Takes the notification that [`Self::due`] returned. `pace` is that of its queue pair, or a new one if
    /// the queue pair no longer exists.
    pub(crate) fn leave(
        &mut self,
        now: Instant,
        point: &NotificationPoint,
        pace: &mut CnpPace,
        slot: &mut TxSlot<'_>,
    ) -> Option<Leaving> {
        let Waiting { cnp, path, .. } = *self.waiting.front()?;
        let Some(buffer) = slot.buffer.first_chunk_mut::<{ Cnp::LEN }>() else {
            return Some(Leaving::NoRoom);
        };
        self.waiting.pop_front();
        // The reverse path of the notification is the path of the data.
        if let Some(pace) = self.pace(now, point, &path.reply(), pace) {
            if CnpPace::is_too_early(pace.left, now, point.interval()) {
                return Some(Leaving::TooEarly);
            }
            pace.left = Some(now);
        }
        let identification = slot.batch.identification(&path, cnp.dest_qp, Cnp::LEN);
        cnp.emit(&Envelope::new(&path, identification), buffer);
        Some(Leaving::Sent(Transmit::new(path, cnp.dest_qp, Cnp::LEN, identification)))
    }
}
