//! The delivery of packets, and the checks afterwards.

use roce_packet::{AtomicEth, Deth, Ieth};
use roce_packet::{
    Bth, Datagram, Direction, Feth, FlushSelectivity, ImmDt, Opcode, OpcodeInfo, Operation, PayloadRule,
    Position, Psn, Qpn, Reth,
};
use roce_transport::{DropReason, QpState, RKey, Verdict, Wc, WcStatus};

use super::rig::{MTU, PEER_QPN, QKEY, Queue, REGIONS, Rig};
use super::step::{
    FLAG_ACK_REQUEST, FLAG_MARKED, FLAG_OTHER_ADDRESS, FLAG_OTHER_PARTITION, FLAG_OTHER_QKEY, FLAG_REVIVE,
    FLAG_SOLICITED, FLAG_SPLIT, Step,
};
use crate::memory::Change;
use crate::packet::{Fields, GROUP, OWN_ADDRESS, PEER_ADDRESS, build, collect, deliver, path, repair_icrc};

/// Bytes before the message in a UD receive.
const GRH_AREA: usize = roce_transport::GRH_AREA;

/// A packet and its expected effects.
struct Arriving {
    info: &'static OpcodeInfo,
    psn: Psn,
    va: u64,
    /// Whether the key in the packet exists.
    key_exists: bool,
    payload: Vec<u8>,
    bytes: Vec<u8>,
}

impl Rig {
    /// Delivers a packet of the peer.
    pub(super) fn packet(&mut self, step: &Step) {
        let target = usize::from(step.queue & 7);
        if step.flags & FLAG_REVIVE != 0 && self.models.get(target).is_some_and(|m| m.state == QpState::Err) {
            self.revive(target);
        }
        let Some(info) = Opcode(step.opcode).info() else {
            self.unknown_opcode(step);
            return;
        };
        let qpn = match self.models.get(target) {
            Some(model) => model.qpn,
            None if target == 5 => Qpn::MULTICAST,
            None => Qpn::new(u32::from(step.length)),
        };
        let expected = self.expected_psn(qpn);
        let arriving = self.make(step, info, qpn, expected);
        let mut path = path(PEER_ADDRESS, if target == 5 { GROUP } else { OWN_ADDRESS });
        if step.flags & FLAG_OTHER_ADDRESS != 0 {
            path.source = OWN_ADDRESS;
        }
        self.sender = path.source;
        if step.flags & FLAG_MARKED != 0 {
            path.traffic_class |= 0b11;
        }
        let split = (step.flags & FLAG_SPLIT != 0).then(|| info.header_len + usize::from(step.fill));
        let mut bytes = arriving.bytes.clone();
        repair_icrc(&path, &mut bytes);
        let verdict = deliver(&mut self.engine, self.now, path, &bytes, split);
        let changes = self.log.take();
        let in_order = arriving.psn == expected;
        self.check_changes(&arriving, verdict, in_order, &changes);
        self.follow(target, &arriving, verdict, in_order, step);
    }

    fn unknown_opcode(&mut self, step: &Step) {
        let bytes = Bth::new(Opcode(step.opcode), self.numbers()[0], Psn::new(0));
        let mut raw = [0; 64];
        bytes.emit(raw.first_chunk_mut().expect("64 are more than 12"));
        let len = usize::from(step.payload) % 64;
        let path = path(PEER_ADDRESS, OWN_ADDRESS);
        let verdict = deliver(&mut self.engine, self.now, path, &raw[..len], None);
        assert!(matches!(verdict, Verdict::Dropped(_)), "an unknown opcode was {verdict:?}");
        assert_eq!(self.log.take(), [], "an unknown opcode changes nothing");
    }

    /// Builds the packet that a record describes.
    fn make(&self, step: &Step, info: &'static OpcodeInfo, qpn: Qpn, expected: Psn) -> Arriving {
        let left = self.models.get(usize::from(step.queue & 7)).map_or(0, |model| model.left);
        let len = payload_len(step, info, left);
        let payload: Vec<u8> = (0..len).map(|index| step.fill.wrapping_add(index as u8)).collect();
        let psn = match step.psn {
            i8::MIN => expected.add(1 << 23),
            delta => expected.add(i32::from(delta).cast_unsigned()),
        };
        let (va, fields) = self.fields(step, info, len);
        let bth = Bth {
            solicited: step.flags & FLAG_SOLICITED != 0,
            ack_req: step.flags & FLAG_ACK_REQUEST != 0,
            p_key: if step.flags & FLAG_OTHER_PARTITION != 0 { u16::from(step.fill) } else { 0xffff },
            ..Bth::new(info.opcode, qpn, psn)
        };
        let mut bytes = build(&path(PEER_ADDRESS, OWN_ADDRESS), &bth, info, &fields, &payload);
        // Forged padding: the payload is then shorter than the bytes that were written.
        let forged = step.payload_rule >> 6;
        bytes[1] ^= forged << 4;
        if step.payload_rule & 0x20 != 0 {
            let keep = bytes.len().saturating_sub(usize::from(step.fill));
            bytes.truncate(keep);
        }
        let payload = Datagram::parse(&bytes, &[]).map_or(payload, |datagram| datagram.payload().0.to_vec());
        let key_exists = self.key_exists(RKey(fields.reth.rkey));
        Arriving { info, psn, va, key_exists, payload, bytes }
    }

    fn key_exists(&self, key: RKey) -> bool {
        let mut living = self.regions.iter().filter(|region| region.alive);
        key == self.window || living.any(|region| region.attributes.rkey == key)
    }

    fn fields(&self, step: &Step, info: &OpcodeInfo, len: usize) -> (u64, Fields) {
        let region = &self.regions[usize::from(step.key) % self.regions.len()].attributes;
        let key = if step.key & 0x80 != 0 { self.window } else { region.rkey };
        let damage = u32::from(step.key_damage);
        let rkey = key.0 ^ (damage & 0x0f) ^ (damage & 0xf0) << 4;
        let va = region.addr.wrapping_add(i64::from(step.offset).cast_unsigned());
        let announced = u32::try_from(len).unwrap_or(0);
        let number = u32::from(step.length);
        let dma_len = match step.length_rule {
            0 if info.operation == Operation::ReadRequest => number % 1024,
            0 if info.position == Position::First => announced + 1 + number % 600,
            0 => announced,
            1 => number,
            2 => 4096,
            3 => 1 << 31,
            4 => (1 << 31) + 1,
            5 => u32::MAX,
            6 => announced + 1,
            7 => announced.saturating_sub(1),
            8 => 4096 - (number & 4095),
            other => u32::from(other) << 24 | number,
        };
        let q_key = if step.flags & FLAG_OTHER_QKEY != 0 { number } else { QKEY };
        let selectivity = FlushSelectivity::from_bits(step.fill & 3);
        let feth =
            Feth { global_visibility: step.fill & 4 == 0, persistence: step.fill & 8 != 0, selectivity };
        let fields = Fields {
            reth: Reth { va, rkey, dma_len },
            atomic: AtomicEth { va, rkey, swap_or_add: number.into(), compare: step.fill.into() },
            deth: Deth { q_key, source_qp: Qpn::new(number) },
            feth,
            imm: ImmDt([step.fill; 4]),
            ieth: Ieth { rkey },
            ..Fields::default()
        };
        (va, fields)
    }

    /// Checks the changes of memory by a packet.
    fn check_changes(&self, packet: &Arriving, verdict: Verdict, in_order: bool, changes: &[Change]) {
        if changes.is_empty() {
            return;
        }
        let what = packet.info.name;
        assert_eq!(verdict, Verdict::Handled, "{what} was dropped and changed {changes:?}");
        let written: Vec<u8> = changes.iter().flat_map(|change| change.bytes.clone()).collect();
        match packet.info.operation {
            Operation::Send if packet.info.transport == roce_packet::Transport::Ud => {
                let message = written.get(GRH_AREA..).expect("the area in front is always written");
                // Every member of a group receives a copy, but only one queue pair here is a member.
                assert_eq!(message, packet.payload, "{what} wrote something else");
            }
            Operation::Send => assert_eq!(written, packet.payload, "{what} wrote something else"),
            Operation::Write | Operation::AtomicWrite => {
                assert_eq!(written, packet.payload, "{what} wrote something else");
                if packet.info.starts_message() {
                    self.check_place(packet, changes);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                assert!(matches!(changes, [Change { atomic: true, .. }]), "{what}: {changes:?}");
                self.check_place(packet, changes);
            }
            other => panic!("{other:?} changed {changes:?}"),
        }
        let reliable = packet.info.transport == roce_packet::Transport::Rc;
        assert!(in_order || !reliable, "{what} out of order changed {changes:?}");
    }

    /// Checks that the bytes were written at the address in the header.
    fn check_place(&self, packet: &Arriving, changes: &[Change]) {
        assert!(packet.key_exists, "{} under a key that does not exist", packet.info.name);
        let first = changes.first().expect("the caller saw one");
        let at = REGIONS.iter().position(|region| region.name() == first.region).expect("one of ours");
        let start = self.regions[at].attributes.addr;
        let named = packet.va.wrapping_sub(start);
        assert_eq!(first.offset as u64, named, "{} at {:#x}", packet.info.name, packet.va);
    }

    /// Updates the model: the remaining bytes of the current WRITE.
    fn follow(&mut self, target: usize, packet: &Arriving, verdict: Verdict, in_order: bool, step: &Step) {
        let Some(model) = self.models.get_mut(target) else { return };
        if verdict == Verdict::Dropped(DropReason::BadState) {
            assert_ne!(model.state, QpState::Rts, "a queue pair in RTS takes packets");
        }
        if verdict != Verdict::Handled || !in_order || packet.info.operation != Operation::Write {
            return;
        }
        model.left = match packet.info.position {
            Position::First => 1 + usize::from(step.length) % 600,
            Position::Middle => model.left.saturating_sub(packet.payload.len()),
            Position::Last | Position::Only => 0,
        };
    }

    /// Checks sent packets, completions and states after a step.
    pub(super) fn settle(&mut self) {
        let (peer, sender) = (path(OWN_ADDRESS, PEER_ADDRESS), path(OWN_ADDRESS, self.sender));
        let (engine, now) = (&mut self.engine, self.now);
        collect(engine, now, |transmit, datagram| {
            let info = datagram.info();
            if info.direction == Direction::Cnp {
                // A received packet carried a congestion mark.
                let path =
                    sender.with_dscp(roce_packet::DEFAULT_CNP_DSCP).with_ecn(roce_packet::Ecn::Capable0);
                assert_eq!(transmit.path, path);
                return;
            }
            assert_eq!(info.direction, Direction::Response, "nobody posted a request");
            assert_eq!(datagram.bth().dest_qp, PEER_QPN);
            assert_eq!(transmit.path, peer);
            assert!(datagram.payload_len() <= MTU.bytes());
        });
        assert_eq!(self.log.take(), [], "sending changes nothing");
        self.poll();
        while self.engine.poll_event().is_some() {}
        for index in 0..self.models.len() {
            self.check_state(index);
        }
    }

    fn poll(&mut self) {
        let mut some = [Wc::default(); 16];
        loop {
            let count = self.engine.poll_cq(self.cq, &mut some).expect("the queue is large enough");
            if count == 0 {
                return;
            }
            for wc in &some[..count] {
                self.complete(wc);
            }
        }
    }

    fn complete(&mut self, wc: &Wc) {
        let model = self.models.iter_mut().find(|model| model.qpn == wc.qpn).expect("one of ours");
        let due = match model.queue {
            // Only one queue pair uses the shared queue here, so the order is that of the queue.
            Queue::RcShared => {
                while self.shared_lost > 0 && self.shared.front().is_some_and(|id| *id != wc.wr_id) {
                    self.shared.pop_front();
                    self.shared_lost -= 1;
                }
                self.shared.pop_front()
            }
            _ => model.posted.pop_front(),
        };
        assert_eq!(due, Some(wc.wr_id), "receives complete in order, each once: {wc:?}");
        if wc.status == WcStatus::Success {
            assert!(wc.byte_len <= 700 || wc.opcode == roce_transport::WcOpcode::RecvRdmaWithImm, "{wc:?}");
        }
        self.revoke_receive(wc.wr_id);
    }

    fn check_state(&mut self, index: usize) {
        let Some(model) = self.models.get_mut(index) else { return };
        let attributes = self.engine.query_qp(model.qpn).expect("it exists");
        let state = attributes.state;
        assert!(
            state == model.state || state == QpState::Err,
            "{:?} went from {:?} to {state:?}",
            model.queue,
            model.state
        );
        model.state = state;
        let (sends, receives) = self.engine.queue_depths(model.qpn).expect("it exists");
        assert_eq!(sends, 0);
        if state == QpState::Err {
            assert_eq!(receives, 0, "everything is flushed in the error state");
            assert!(model.posted.is_empty(), "{:?} kept {:?}", model.queue, model.posted);
        }
    }
}

/// Returns the length of the payload.
fn payload_len(step: &Step, info: &OpcodeInfo, left: usize) -> usize {
    let (mtu, number) = (MTU.bytes(), usize::from(step.payload));
    match step.payload_rule & 0x1f {
        0 => match info.payload {
            PayloadRule::None => 0,
            PayloadRule::FullMtu => mtu,
            PayloadRule::Exactly(exactly) => exactly,
            PayloadRule::OneToMtu if info.operation == Operation::Write && (1..=mtu).contains(&left) => left,
            PayloadRule::OneToMtu => 1 + number % mtu,
            PayloadRule::ZeroToMtu => number % (mtu + 1),
        },
        1 => number % 1024,
        2 => mtu + 1,
        3 => mtu - 1,
        4 => 0,
        5 => left,
        6 => left + 1,
        7 => 4096,
        _ => number % 64,
    }
}
