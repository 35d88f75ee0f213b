//! Trimmed packets, whose payload a switch removed: the checks before any queue pair handles them.

use roce_packet::{Bth, Direction, Opcode, OpcodeInfo, Qpn};

use super::Engine;
use super::qp::{Halves, Qp};
use super::receive::{Marked, is_marked, notify, parse_failure};
use crate::io::Received;
use crate::shared::Shared;
use crate::time::Instant;
use crate::verdict::{DropReason, Verdict};

impl Engine {
    /// Handles a datagram whose payload a congested switch removed, and returns the outcome. `received.head`
    /// begins with the headers that the opcode requires; any bytes after them are ignored.
    ///
    /// The engine recovers the packet at once, as `docs/reference/loss-recovery.md` explains. An RC requester
    /// sends a trimmed packet of a SEND or WRITE again alone if both ends use
    /// [`SelectiveRepeat`](crate::SelectiveRepeat), and otherwise goes back to it. It requests a trimmed READ
    /// response and those after it again. A trimmed packet never changes memory or completes a work request.
    ///
    /// **The ICRC cannot be checked**, because it covers the payload. All other checks of
    /// [`handle_datagram`](Self::handle_datagram) are made: version, opcode, queue pair, state, partition key
    /// and addresses. A damaged or forged packet can only cause a retransmission. Only the simulator, and
    /// devices that know how their network marks such packets, may call this function.
    pub fn handle_trimmed(&mut self, now: Instant, received: &Received<'_>) -> Verdict {
        self.set_now(now);
        let counters = &mut self.shared.counters;
        counters.rdma_rx_packets += 1;
        counters.rdma_rx_bytes += (received.head.len() + received.tail.len()) as u64;
        counters.rx_trimmed += 1;
        let verdict = match Bth::parse(received.head) {
            Ok((bth, _)) => match bth.opcode.info() {
                Some(info) if received.head.len() < info.header_len => Verdict::Dropped(DropReason::Short),
                Some(info) => self.dispatch_trimmed(received, &bth, info),
                None => Verdict::Dropped(DropReason::UnknownOpcode),
            },
            Err(error) => Verdict::Dropped(parse_failure(error)),
        };
        self.count_verdict(received, verdict);
        verdict
    }

    fn dispatch_trimmed(&mut self, received: &Received<'_>, bth: &Bth, info: &'static OpcodeInfo) -> Verdict {
        if bth.dest_qp == Qpn::MULTICAST {
            return Verdict::Dropped(DropReason::Trimmed);
        }
        let Some(index) = self.numbers.get(bth.dest_qp.get()) else {
            if bth.opcode == Opcode::CNP {
                self.shared.counters.rp_cnp_ignored += 1;
            }
            return Verdict::Dropped(DropReason::UnknownQpn);
        };
        let Some(qp) = self.qps.get_mut(index) else { return Verdict::Dropped(DropReason::UnknownQpn) };
        let shared = &mut self.shared;
        qp.core.counters.rdma_rx_packets += 1;
        qp.core.counters.rdma_rx_bytes += (received.head.len() + received.tail.len()) as u64;
        qp.core.counters.rx_trimmed += 1;
        let verdict = match qp.admit_fields(received, info, bth.p_key) {
            Ok(()) => {
                let verdict = qp.handle_trimmed(shared, (bth, info));
                // Only RC recovers trimmed packets, and its connection identifies their sender.
                if verdict == Verdict::Handled && is_marked(received) {
                    // A trimmed packet had a payload.
                    let marked = Marked { info, dest_qp: bth.dest_qp, deth: None, has_payload: true };
                    notify(&mut self.notifier, shared, &mut qp.core, received, &marked);
                }
                verdict
            }
            Err(reason) => Verdict::Dropped(reason),
        };
        match verdict {
            Verdict::Dropped(reason) => reason.count(&mut qp.core.counters),
            Verdict::Handled => {
                qp.core.counters.rx_handled += 1;
                self.settle(index);
            }
        }
        verdict
    }
}

impl Qp {
    fn handle_trimmed(&mut self, shared: &mut Shared, packet: (&Bth, &OpcodeInfo)) -> Verdict {
        match (&mut self.halves, packet.1.direction) {
            (Halves::Rc(requester, _), Direction::Response) => {
                requester.handle_trimmed(&mut self.core, shared, packet)
            }
            (Halves::Rc(_, responder), Direction::Request) => {
                responder.handle_trimmed(&mut self.core, shared, packet)
            }
            _ => Verdict::Dropped(DropReason::Trimmed),
        }
    }
}
