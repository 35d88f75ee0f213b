//! Trimmed packets, whose payload a switch removed: the checks before any queue pair handles them.

use roce_packet::{Bth, Direction, Opcode, OpcodeInfo, Operation, Qpn};

use super::Engine;
use super::qp::{Halves, Qp};
use super::receive::{Marked, is_marked, notify, parse_failure};
use crate::io::Received;
use crate::shared::Shared;
use crate::verdict::{DropReason, Verdict};

impl Engine {
    /// Handles a datagram whose payload a congested switch removed; see [`Body::Trimmed`](crate::Body).
    #[inline(never)]
    pub(super) fn handle_trimmed(&mut self, received: &Received<'_>, headers: &[u8]) -> Verdict {
        let counters = &mut self.shared.counters;
        counters.rdma_rx_packets += 1;
        counters.rdma_rx_bytes += headers.len() as u64;
        counters.rx_trimmed += 1;
        let verdict = match Bth::parse(headers) {
            Ok((bth, _)) => match bth.opcode.info() {
                Some(info) if headers.len() < info.header_len => Verdict::Dropped(DropReason::Short),
                Some(info) => self.dispatch_trimmed(received, headers.len(), &bth, info),
                None => Verdict::Dropped(DropReason::UnknownOpcode),
            },
            Err(error) => Verdict::Dropped(parse_failure(error)),
        };
        self.count_verdict(received, verdict);
        verdict
    }

    fn dispatch_trimmed(
        &mut self,
        received: &Received<'_>,
        len: usize,
        bth: &Bth,
        info: &'static OpcodeInfo,
    ) -> Verdict {
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
        qp.core.counters.rdma_rx_bytes += len as u64;
        qp.core.counters.others().rx_trimmed += 1;
        let verdict = match qp.admit_fields(received, info, bth.p_key) {
            Ok(()) => {
                let is_expected = qp.awaits(info.direction, bth.psn);
                let port = is_expected.then_some(received.path.source_port);
                let verdict = qp.handle_trimmed(shared, (bth, info), port);
                let reads = shared.reads.as_mut().filter(|_| info.operation == Operation::ReadResponse);
                if let Some(reads) = reads.filter(|_| verdict == Verdict::Handled) {
                    reads.on_trimmed(shared.now, qp.core.number, is_marked(received));
                }
                // Only RC recovers trimmed packets, and its connection identifies their sender.
                if verdict == Verdict::Handled && is_expected && is_marked(received) {
                    // A trimmed packet had a payload.
                    let marked = Marked { info, dest_qp: bth.dest_qp, deth: None, has_payload: true };
                    notify(&mut self.notifier, shared, &mut qp.core, received, &marked);
                }
                verdict
            }
            Err(reason) => Verdict::Dropped(reason),
        };
        match verdict {
            Verdict::Dropped(reason) => reason.count(qp.core.counters.others()),
            Verdict::Handled => {
                qp.core.counters.rx_handled += 1;
                self.settle(index);
            }
        }
        verdict
    }
}

impl Qp {
    /// `port` is the source port of an expected packet.
    fn handle_trimmed(
        &mut self,
        shared: &mut Shared,
        packet: (&Bth, &OpcodeInfo),
        port: Option<u16>,
    ) -> Verdict {
        match (&mut self.halves, packet.1.direction) {
            (Halves::Rc(requester, _), Direction::Response) => {
                requester.handle_trimmed(&mut self.core, shared, packet)
            }
            (Halves::Rc(_, responder), Direction::Request) => {
                let verdict = responder.handle_trimmed(&mut self.core, shared, packet);
                if let Some(port) = port.filter(|_| verdict == Verdict::Handled) {
                    responder.arrived_on(port);
                }
                verdict
            }
            _ => Verdict::Dropped(DropReason::Trimmed),
        }
    }
}
