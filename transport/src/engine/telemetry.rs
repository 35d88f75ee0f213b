//! In-band telemetry behind the ICRC of datagrams, if the settings enable it.

use core::num::NonZeroU16;

use roce_packet::{Datagram, Telemetry, icrc};

use super::Engine;
use super::receive::check_icrc;
use crate::integrity::Integrity;
use crate::io::{Body, Identification, Received, Transmit, TxSlot};
use crate::segment::{KnownPath, Sealed};
use crate::verdict::Verdict;

impl Engine {
    /// Handles a datagram that came with telemetry, or that a trailer may follow. A trailer replaces the
    /// telemetry beside the datagram. Kept out of [`Engine::handle`], the path of most datagrams.
    #[inline(never)]
    pub(super) fn handle_with_telemetry(&mut self, received: &Received<'_>) -> Verdict {
        let split = if self.shared.config.telemetry { self.split_telemetry(received) } else { None };
        let (rest, telemetry) = match &split {
            Some((rest, telemetry)) => (rest, Some(*telemetry)),
            None => (received, received.telemetry.copied()),
        };
        self.shared.telemetry_in = telemetry;
        let [head, tail] = rest.body.pieces();
        let verdict = self.handle_sealed(rest, head, tail);
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
        let [head, tail] = received.body.pieces();
        let (head, tail, telemetry) = Telemetry::split_off(head, tail)?;
        let rest = Received { body: Body::Whole { head, tail }, ..*received };
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
        let [head, tail] = received.body.pieces();
        let Ok(datagram) = Datagram::parse(head, tail) else { return false };
        let Some(qp) = self.qp(datagram.bth().dest_qp) else { return false };
        let ends = (received.path.destination, received.path.source);
        qp.core.attr.path.is_none_or(|path| (path.source, path.destination) == ends)
    }

    /// Finishes a datagram that leaves with telemetry: adds the trailer, or returns the telemetry with the
    /// datagram. Kept out of [`Engine::poll_transmit`], the path of most datagrams.
    #[inline(never)]
    pub(super) fn leave_with_telemetry(
        &mut self,
        index: usize,
        sealed: Sealed,
        slot: &mut TxSlot<'_>,
    ) -> Option<Transmit> {
        let outgoing = self.qps.get(index)?.core.outgoing.as_ref()?;
        let telemetry = self.shared.telemetry_out.take()?;
        if self.shared.config.telemetry {
            let sealed = add_trailer(outgoing, sealed, slot, &telemetry);
            return self.leave_on_path(index, sealed);
        }
        let transmit = self.leave_on_path(index, sealed)?;
        Some(Transmit { telemetry: Some(telemetry), ..transmit })
    }
}

/// Adds the trailer to a finished datagram. If the open superpacket has no room for the new length, the
/// datagram gets the ICRC of one that begins a superpacket. If the slot has no room, the datagram stays
/// without telemetry.
fn add_trailer(
    outgoing: &KnownPath,
    mut sealed: Sealed,
    slot: &mut TxSlot<'_>,
    telemetry: &Telemetry,
) -> Sealed {
    let len = usize::from(sealed.len.get());
    let end = len + Telemetry::LEN;
    if let Some(all) = slot.buffer.get_mut(..end)
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
    sealed
}
