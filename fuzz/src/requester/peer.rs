//! The answers of the peer: correct ones, with the changes of a record.

use roce_packet::{Aeth, AtomicAckEth, Bth, Msn, Opcode, Operation, Psn, Syndrome};
use roce_transport::Verdict;

use super::model::{MTU, Rig, Unanswered};
use super::step::{FLAG_KEEP, FLAG_OTHER_ADDRESS, FLAG_SPLIT, Step};
use crate::packet::{Fields, OWN_ADDRESS, PEER_ADDRESS, build, deliver, path};

/// A correct answer, before the changes of the record.
struct Right {
    opcode: Opcode,
    psn: Psn,
    len: usize,
}

impl Rig {
    /// Answers one of the sent packets, correctly or not.
    pub(super) fn answer(&mut self, step: &Step) {
        let right = self.right_answer(step);
        let opcode = match step.rule {
            1 => Opcode::RC_ACKNOWLEDGE,
            2 => Opcode(step.operation),
            _ => right.opcode,
        };
        let Some(info) = opcode.info() else { return };
        let psn = match step.psn {
            i8::MIN => right.psn.add(1 << 23),
            delta => right.psn.add(i32::from(delta).cast_unsigned()),
        };
        let number = usize::from(step.payload);
        let len = match step.payload_rule {
            0 => right.len,
            1 => right.len + 1 + number % 8,
            2 => right.len.saturating_sub(1 + number % 8),
            3 => MTU,
            4 => 0,
            5 => number % 2048,
            _ => right.len,
        };
        let payload: Vec<u8> = (0..len).map(|index| step.fill.wrapping_add(index as u8)).collect();
        let syndrome = match step.syndrome {
            0 => Syndrome::ACK_UNLIMITED,
            byte => Syndrome::from_byte(byte),
        };
        let original = u64::from(step.payload) << 32 | u64::from(step.fill);
        let fields = Fields {
            aeth: Aeth { syndrome, msn: Msn::new(step.length.into()) },
            atomic_ack: AtomicAckEth { original },
            ..Fields::default()
        };
        let mut from = path(PEER_ADDRESS, OWN_ADDRESS);
        if step.flags & FLAG_OTHER_ADDRESS != 0 {
            from.source = OWN_ADDRESS;
        }
        let bytes = build(&from, &Bth::new(opcode, self.qpn, psn), info, &fields, &payload);
        let split = (step.flags & FLAG_SPLIT != 0).then(|| info.header_len + usize::from(step.fill));
        let verdict = deliver(&mut self.engine, self.now, from, &bytes, split);
        let changes = self.log.take();
        assert!(changes.is_empty() || verdict == Verdict::Handled, "{} was dropped: {changes:?}", info.name);
        if info.operation == Operation::AtomicAcknowledge {
            self.check_changes(psn, &original.to_ne_bytes(), &changes);
        } else {
            self.check_changes(psn, &payload, &changes);
        }
    }

    /// Returns the answer of an honest peer to the selected packet, and removes the packet from the list.
    fn right_answer(&mut self, step: &Step) -> Right {
        let acknowledgement = |psn| Right { opcode: Opcode::RC_ACKNOWLEDGE, psn, len: 0 };
        if self.unanswered.is_empty() {
            let next = self.engine.query_qp(self.qpn).map_or(Psn::new(0), |attr| attr.sq_psn);
            return acknowledgement(next.sub(1));
        }
        let position = usize::from(step.pick) % self.unanswered.len();
        let Some(packet) = self.unanswered.get_mut(position) else { return acknowledgement(Psn::new(0)) };
        let (right, done) = match packet.operation {
            Operation::ReadRequest => read_response(packet, usize::from(step.skip)),
            Operation::CompareSwap | Operation::FetchAdd => {
                (Right { opcode: Opcode::RC_ATOMIC_ACKNOWLEDGE, psn: packet.psn, len: 0 }, true)
            }
            Operation::AtomicWrite | Operation::Flush => {
                (Right { opcode: Opcode::RC_RDMA_READ_RESPONSE_ONLY, psn: packet.psn, len: 0 }, true)
            }
            _ => (acknowledgement(packet.psn), true),
        };
        if done && step.flags & FLAG_KEEP == 0 {
            self.unanswered.remove(position);
        }
        right
    }
}

/// Returns the next response packet of a READ, and whether it is the last.
fn read_response(packet: &mut Unanswered, skip: usize) -> (Right, bool) {
    let packets = packet.dma_len.div_ceil(MTU).max(1);
    let index = (packet.given + skip) % packets;
    packet.given = index + 1;
    let last = index + 1 == packets;
    let opcode = match (index == 0, last) {
        (true, true) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
        (true, false) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
        (false, true) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
        (false, false) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
    };
    let len = (packet.dma_len - index * MTU).min(MTU);
    (Right { opcode, psn: packet.psn.add(u32::try_from(index).unwrap_or(0)), len }, last)
}
