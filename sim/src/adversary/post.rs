//! Calls of the applications at the two hosts: connecting and posting.

use roce_packet::{Qpn, RnrTimer};
use roce_transport::{
    Access, FlushPlacement, Payload, PostError, QpAttr, QpCapabilities, QpInit, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Sge, UdDestination,
};

use super::work::{Kind, MAX_ELEMENTS, MAX_INLINE, Op, Zone};
use super::world::{FlowState, PairState, World};
use crate::pair::Side;

/// The bit of a work request ID that marks receives.
pub(super) const RECEIVE: u64 = 1 << 63;
const Q_KEY: u32 = 0x0bad_cafe;

/// Returns the ID of a work request, which consists of its kind, flow and number.
pub(super) const fn wr_id(kind: u64, flow: usize, index: usize) -> u64 {
    kind | (flow as u64) << 32 | index as u64
}

impl World<'_> {
    /// Creates and connects the queue pairs of a pair.
    pub(super) fn connect(&mut self, pair: usize) {
        let qp_type = self.plan.pairs[pair].qp_type;
        let qpns = [Side::A, Side::B].map(|side| {
            let depth = self.plan.flows[2 * pair + side.other() as usize].receives.len();
            let capabilities = QpCapabilities {
                max_send_wr: self.plan.max_send_wr,
                max_recv_wr: depth.max(1),
                max_send_sge: MAX_ELEMENTS,
                max_recv_sge: MAX_ELEMENTS,
                max_inline: MAX_INLINE,
            };
            let signal_all = self.plan.pairs[pair].signal_all;
            let end = self.end(side);
            let (pd, cq) = (end.pd, end.cq);
            let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, capabilities, signal_all };
            end.engine.create_qp(&init).expect("there is room")
        });
        for side in [Side::A, Side::B] {
            let steps = self.attributes(pair, side, qpns[side.other() as usize]);
            let now = self.now;
            for attr in steps {
                let own = qpns[side as usize];
                self.end(side).engine.modify_qp(now, own, &attr).expect("the attributes are right");
            }
        }
        self.pairs.push(PairState { qpns, disturbed: Vec::new(), doubled: 0 });
    }

    fn attributes(&self, pair: usize, side: Side, peer: Qpn) -> [QpAttr; 3] {
        let (plan, psns) = (self.plan, self.plan.pairs[pair].psns);
        let mut init = QpAttr { pkey_index: Some(0), port: Some(1), ..QpAttr::to_state(QpState::Init) };
        let mut rtr = QpAttr::to_state(QpState::Rtr);
        let mut rts = QpAttr { sq_psn: Some(psns[side as usize]), ..QpAttr::to_state(QpState::Rts) };
        if plan.pairs[pair].qp_type == QpType::Ud {
            init.qkey = Some(Q_KEY);
            return [init, rtr, rts];
        }
        init.access = Some(Access::REMOTE);
        rtr.path = Some(Self::path(side));
        rtr.path_mtu = Some(plan.mtu);
        rtr.dest_qpn = Some(peer);
        rtr.rq_psn = Some(psns[side.other() as usize]);
        if plan.pairs[pair].qp_type == QpType::Rc {
            rtr.max_dest_rd_atomic = Some(plan.rd_atomic.1);
            rtr.min_rnr_timer = RnrTimer::new(plan.min_rnr_timer);
            rts.timeout = Some(plan.timeout);
            rts.retry_cnt = Some(plan.retry_cnt);
            rts.rnr_retry = Some(plan.rnr_retry);
            rts.max_rd_atomic = Some(plan.rd_atomic.0);
        }
        [init, rtr, rts]
    }

    /// Posts the requests and receives that are due and fit into their queues.
    pub(super) fn post(&mut self) {
        for flow in 0..self.flows.len() {
            while self.post_receive(flow) {}
            while self.post_request(flow) {}
        }
    }

    fn post_receive(&mut self, index: usize) -> bool {
        let (flow, plan) = (&mut self.flows[index], &self.plan.flows[index]);
        let Some(receive) = plan.receives.get(flow.receives_posted) else { return false };
        if flow.next_receive > self.now {
            return false;
        }
        let region = &flow.receive.attributes;
        let elements: Vec<Sge> = receive
            .pieces
            .iter()
            .map(|(offset, len)| element(region.addr, *offset, *len, region.lkey))
            .collect();
        let id = wr_id(RECEIVE, index, flow.receives_posted);
        let side = flow.from.other();
        let qpn = self.pairs[flow.pair].qpns[side as usize];
        let wr = RecvWr { wr_id: id, elements: &elements };
        self.ends[side as usize].engine.post_recv(qpn, &wr).expect("a legal receive is taken");
        if flow.receives_posted == flow.received {
            flow.empty_until = Some(self.now);
        }
        flow.receives_posted += 1;
        if self.stopped_at.is_none() {
            let wait = plan.receives.get(flow.receives_posted).map_or(0, |next| next.wait_ns);
            flow.next_receive = self.now.plus_nanos(wait);
        }
        self.trace.posted();
        true
    }

    fn post_request(&mut self, index: usize) -> bool {
        let (flow, plan) = (&self.flows[index], &self.plan.flows[index]);
        let Some(op) = plan.ops.get(flow.posted).filter(|_| flow.next_post <= self.now) else { return false };
        let side = flow.from;
        let qpns = self.pairs[flow.pair].qpns;
        let elements: Vec<Sge> = op
            .pieces
            .iter()
            .map(|piece| {
                let region = match piece.zone {
                    Zone::Source => &flow.source.attributes,
                    Zone::Local => &flow.local.attributes,
                };
                element(region.addr, piece.offset, piece.len, region.lkey)
            })
            .collect();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, op.signaled);
        flags.set(SendFlags::FENCE, op.fence);
        let payload = if op.inline { Payload::Inline(&op.data) } else { Payload::Elements(&elements) };
        let destination = (plan.qp_type == QpType::Ud).then(|| UdDestination {
            path: Self::path(side),
            remote_qpn: qpns[side.other() as usize],
            remote_qkey: Q_KEY,
        });
        let id = wr_id(0, index, flow.posted);
        let wr =
            SendWr { wr_id: id, op: self.operation(flow, op), flags, payload, destination, remote_srqn: 0 };
        match self.ends[side as usize].engine.post_send(self.now, qpns[side as usize], &wr) {
            Ok(()) => {}
            Err(PostError::QueueFull { .. }) => return false,
            Err(error) => panic!("a legal request was not taken: {error}"),
        }
        let flow = &mut self.flows[index];
        flow.posted += 1;
        if self.stopped_at.is_none() {
            let wait = plan.ops.get(flow.posted).map_or(0, |next| next.wait_ns);
            flow.next_post = self.now.plus_nanos(wait);
        }
        self.trace.posted();
        true
    }

    fn operation(&self, flow: &FlowState, op: &Op) -> SendOp {
        let region = &flow.target.attributes;
        let (rkey, at) = (region.rkey, |offset: usize| region.addr + offset as u64);
        match op.kind {
            Kind::Send(None) => SendOp::Send,
            Kind::Send(Some(imm)) => SendOp::SendWithImm(imm),
            Kind::Write(offset, None) => SendOp::Write { remote_addr: at(offset), rkey },
            Kind::Write(offset, Some(imm)) => SendOp::WriteWithImm { remote_addr: at(offset), rkey, imm },
            Kind::Read(offset) => SendOp::Read { remote_addr: at(offset), rkey },
            Kind::CompareSwap(offset, compare, swap) => {
                SendOp::CompareSwap { remote_addr: at(offset), rkey, compare, swap }
            }
            Kind::FetchAdd(offset, add) => SendOp::FetchAdd { remote_addr: at(offset), rkey, add },
            Kind::SharedAdd(word, add) => {
                let shared = &self.ends[flow.from.other() as usize].shared.attributes;
                SendOp::FetchAdd { remote_addr: shared.addr + 8 * word as u64, rkey: shared.rkey, add }
            }
            Kind::AtomicWrite(offset) => SendOp::AtomicWrite { remote_addr: at(offset), rkey },
            Kind::Flush(offset, len) => SendOp::Flush {
                remote_addr: at(offset),
                rkey,
                length: len as u32,
                placement: FlushPlacement::GLOBAL_VISIBILITY,
                whole_region: offset.is_multiple_of(2),
            },
        }
    }
}

fn element(base: u64, offset: usize, len: usize, lkey: roce_transport::LKey) -> Sge {
    Sge { addr: base + offset as u64, length: len as u32, lkey }
}
