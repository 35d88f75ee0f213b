//! In-band telemetry behind the ICRC of datagrams, if the settings enable it.

use core::num::NonZeroU16;

use roce_packet::{Datagram, Telemetry, icrc};

use super::Engine;
use super::receive::check_icrc;
use crate::integrity::Integrity;
use crate::io::{Identification, Received, TxSlot};
use crate::segment::Sealed;
use crate::verdict::Verdict;

impl Engine {
    /// Handles a datagram that a trailer may follow. Kept out of [`Engine::handle_datagram`], the path of
    /// most datagrams.
    #[inline(never)]
    pub(super) fn handle_before_trailer(&mut self, received: &Received<'_>) -> Verdict {
        let verdict = match self.split_telemetry(received) {
            Some((rest, telemetry)) => {
                self.shared.telemetry_in = Some(telemetry);
                self.handle_sealed(&rest)
            }
            None => self.handle_sealed(received),
        };
        self.shared.telemetry_in = None;
        verdict
    }

    /// Splits a datagram into the part before its trailer and the telemetry. A correct ICRC before the
    /// trailer proves that it is one. The Identification must be one that our own peers send, because no
    /// others write trailers, so at least 25 bits of the ICRC are checked.
    #[inline(never)]
    fn split_telemetry<'a>(&mut self, received: &Received<'a>) -> Option<(Received<'a>, Telemetry)> {
        if received.identification == Identification::Unsealed {
            return None;
        }
        let (head, tail, telemetry) = Telemetry::split_off(received.head, received.tail)?;
        let rest = Received { head, tail, ..*received };
        let datagram = Datagram::parse(head, tail).ok()?;
        match check_icrc(&mut self.arrival, &rest, &datagram)? {
            // The ICRC has been compared above.
            Integrity::Known | Integrity::Zero | Integrity::Segment => {
                Some((Received { identification: Identification::Unsealed, ..rest }, telemetry))
            }
            Integrity::Recovered => None,
        }
    }

    /// Tells whether a datagram for a local queue pair has a trailer although telemetry is off, so that its
    /// ICRC is not at the end.
    #[cold]
    pub(super) fn refuse_telemetry(&mut self, received: &Received<'_>) -> bool {
        let Some((rest, _)) = self.split_telemetry(received) else { return false };
        if !self.is_for_queue_pair(&rest) {
            return false;
        }
        let refused = &mut self.shared.counters.rx_telemetry_refused;
        if *refused == 0 {
            let peer = tracing::field::display(received.path.source);
            tracing::warn!(
                peer,
                "in-band telemetry arrives, but is off on this side: turn it on here or off at the peer"
            );
        }
        *refused += 1;
        true
    }

    /// Tells whether the named queue pair exists and, if it is connected, has a peer with this address.
    fn is_for_queue_pair(&self, received: &Received<'_>) -> bool {
        let Ok(datagram) = Datagram::parse(received.head, received.tail) else { return false };
        let Some(qp) = self.qp(datagram.bth().dest_qp) else { return false };
        let ends = (received.path.destination, received.path.source);
        qp.core.attr.path.is_none_or(|path| (path.source, path.destination) == ends)
    }

    /// Adds the trailer to a datagram that has to leave with telemetry. If the open superpacket has no room
    /// for the new length, the datagram gets the ICRC of one that begins a superpacket.
    #[inline(never)]
    pub(super) fn add_telemetry(
        &mut self,
        index: usize,
        mut sealed: Sealed,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        let outgoing = self.qps.get(index)?.core.outgoing.as_ref()?;
        let len = usize::from(sealed.len.get());
        let end = len + Telemetry::LEN;
        // A device with slots that are too short sends the datagram without telemetry.
        if let Some(telemetry) = self.shared.telemetry_out.take()
            && let Some(all) = slot.buffer.get_mut(..end)
            && let Some((datagram, trailer)) = all.split_at_mut_checked(len)
            && let Some(new_len) = u16::try_from(end).ok().and_then(NonZeroU16::new)
        {
            let identification = slot.batch.identification(outgoing.path(), sealed.remote_qpn, end);
            if identification != sealed.identification
                && let Some((covered, icrc)) = datagram.split_last_chunk_mut::<{ icrc::LEN }>()
            {
                *icrc = outgoing.seed().compute(identification, covered, &[]).to_le_bytes();
                sealed.identification = identification;
            }
            trailer.copy_from_slice(&telemetry.emit());
            sealed.len = new_len;
        }
        Some(sealed)
    }
}
