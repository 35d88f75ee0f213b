//! In-band telemetry behind the ICRC of datagrams, where the settings have it on.

use roce_packet::{Datagram, Telemetry, icrc};

use super::Engine;
use super::receive::{Integrity, check_icrc};
use crate::io::{Identification, Received, Transmit, TxSlot};
use crate::segment::Sealed;
use crate::verdict::{DropReason, Verdict};

impl Engine {
    /// Handles a datagram that a trailer may follow. Apart from [`Engine::handle_datagram`], which most datagrams take.
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

    /// A datagram without its trailer, and what that says. That there is one, the ICRC in front of it shows: with the Identification
    /// that our own peers send, because no others write trailers, so with 25 bits of it at least.
    #[inline(never)]
    fn split_telemetry<'a>(&mut self, received: &Received<'a>) -> Option<(Received<'a>, Telemetry)> {
        if received.identification == Identification::Unsealed {
            return None;
        }
        let (head, tail, telemetry) = Telemetry::split_off(received.head, received.tail)?;
        let rest = Received { head, tail, ..*received };
        let datagram = Datagram::parse(head, tail).ok()?;
        match check_icrc(&mut self.arrival, &rest, &datagram)? {
            // It has been compared.
            Integrity::Exact | Integrity::Segment => {
                Some((Received { identification: Identification::Unsealed, ..rest }, telemetry))
            }
            Integrity::Recovered => None,
        }
    }

    /// The reason to drop a datagram with a trailer where telemetry is off: its ICRC is not at the end. `None` if it has no trailer.
    #[cold]
    pub(super) fn refuse_telemetry(&mut self, received: &Received<'_>) -> Option<DropReason> {
        self.split_telemetry(received)?;
        let refused = &mut self.shared.counters.rx_telemetry_refused;
        if *refused == 0 {
            let peer = tracing::field::display(received.path.source);
            tracing::warn!(
                peer,
                "in-band telemetry arrives, but is off on this side: turn it on here or off at the peer"
            );
        }
        *refused += 1;
        Some(DropReason::BadIcrc)
    }

    /// A datagram leaves with the telemetry that it has to leave with. Its superpacket may have no room for that length: then it gets the
    /// ICRC of a datagram that begins another one.
    #[inline(never)]
    pub(super) fn leave_with_telemetry(
        &mut self,
        index: usize,
        sealed: Sealed,
        slot: &mut TxSlot<'_>,
    ) -> Option<Transmit> {
        let outgoing = self.qps.get(index)?.core.outgoing.as_ref()?;
        let mut transmit = sealed.on(outgoing.path());
        let end = transmit.len + Telemetry::LEN;
        // A device whose slots are shorter than those of our own sends the datagram without telemetry.
        if let Some(telemetry) = self.shared.telemetry_out.take()
            && let Some((datagram, trailer)) =
                slot.buffer.get_mut(..end).and_then(|all| all.split_at_mut_checked(transmit.len))
        {
            let identification = slot.batch.identification(&transmit.path, transmit.remote_qpn, end);
            if identification != transmit.identification
                && let Some((covered, icrc)) = datagram.split_last_chunk_mut::<{ icrc::LEN }>()
            {
                *icrc = outgoing.seed().compute(identification, covered, &[]).to_le_bytes();
                transmit.identification = identification;
            }
            trailer.copy_from_slice(&telemetry.emit());
            transmit.len = end;
        }
        if let Some(limit) = &mut self.line_limit {
            limit.sent(&transmit.path, transmit.len);
        }
        Some(transmit)
    }
}
