//! Checks each polled completion: its order, its fields, and the corresponding data.

use roce_packet::ImmDt;
use roce_transport::{Cause, GRH_AREA, QpState, QpType, Wc, WcFlags, WcOpcode, WcStatus};

use super::post::RECEIVE;
use super::work::{Flow, Kind, Op, overlap};
use super::world::{Checked, FlowState, World};
use crate::pair::Side;

impl World<'_> {
    pub(super) fn completion(&mut self, side: Side, wc: &Wc) -> Checked {
        self.trace.completion(self.now, side, wc);
        let is_receive = wc.wr_id & RECEIVE != 0;
        let (flow, index) = ((wc.wr_id >> 32) as usize & 0xffff, wc.wr_id as u32 as usize);
        let state = self.flows.get(flow).ok_or("a completion for an unknown flow")?;
        let owner = if is_receive { state.from.other() } else { state.from };
        if owner != side || self.pairs[state.pair].qpns[side as usize] != wc.qpn {
            return Err(format!("a completion for the wrong queue pair: {wc:?}"));
        }
        let outcome = match (is_receive, wc.status) {
            (false, WcStatus::Success) => self.sent(flow, index, wc),
            (false, _) => self.failed(flow, index, wc),
            (true, WcStatus::Success) => self.received(flow, index, wc),
            (true, _) => self.receive_failed(flow, index, wc),
        };
        outcome.map_err(|message| format!("flow {flow}, number {index}: {message}: {wc:?}"))
    }

    /// Checks that all requests between two visible completions are unsignaled.
    fn skips_unseen(&self, flow: usize, from: usize, to: usize) -> Checked {
        let signal_all = self.plan.pairs[self.flows[flow].pair].signal_all;
        let mut ops = self.plan.flows[flow].ops[from.min(to)..to].iter();
        if from > to || signal_all && from < to || ops.any(|op| op.signaled) {
            return Err(format!("out of order after {from}"));
        }
        Ok(())
    }

    fn sent(&mut self, index: usize, number: usize, wc: &Wc) -> Checked {
        let plan = &self.plan.flows[index];
        let flow = &self.flows[index];
        if flow.failed.is_some() || number >= flow.posted {
            return Err("a success after a failure, or of something not posted".into());
        }
        self.skips_unseen(index, flow.completed, number)?;
        let op = &plan.ops[number];
        if !op.signaled && !self.plan.pairs[flow.pair].signal_all {
            return Err("a completion that nobody asked for".into());
        }
        if wc.opcode != opcode(&op.kind) || op.kind.brings() && wc.byte_len as usize != op.data.len() {
            return Err("wrong opcode or length".into());
        }
        if matches!(op.kind, Kind::Read(_)) && !is_disturbed_later(plan, number) {
            let mut brought = Vec::new();
            for piece in &op.pieces {
                let start = brought.len();
                brought.resize(start + piece.len, 0);
                flow.local.read(piece.offset, &mut brought[start..]);
            }
            if brought != op.data {
                return Err("the READ completed without its data".into());
            }
        }
        let now = self.now;
        let flow = &mut self.flows[index];
        flow.completed = number + 1;
        flow.last_progress = now;
        Ok(())
    }

    fn failed(&mut self, index: usize, number: usize, wc: &Wc) -> Checked {
        let flow = &self.flows[index];
        match flow.failed {
            Some(_) if number != flow.flushed || wc.status != WcStatus::WrFlushError => {
                return Err(format!("{} was to be flushed next", flow.flushed));
            }
            Some(_) => {}
            None => {
                self.skips_unseen(index, flow.completed, number)?;
                self.has_reason(flow, wc)?;
                let flow = &mut self.flows[index];
                flow.failed = Some((number, wc.status));
                flow.completed = number;
            }
        }
        self.flows[index].flushed = number + 1;
        Ok(())
    }

    /// Checks that faults or RNR NAKs explain the failure of a request.
    fn has_reason(&self, flow: &FlowState, wc: &Wc) -> Checked {
        if self.plan.pairs[flow.pair].qp_type != QpType::Rc {
            return Err("nothing fails on an unreliable queue pair".into());
        }
        // A fault shortly before the last progress can have an effect after it.
        let recent = self.now.since(flow.last_progress).as_nanos() as u64 + 3 * self.plan.timeout_ns();
        let is_recent = |at: &&roce_transport::Instant| (self.now.since(**at).as_nanos() as u64) < recent;
        match wc.status {
            WcStatus::RetryExceededError => {
                let peer = self.pairs[flow.pair].qpns[flow.from.other() as usize];
                let engine = &self.ends[flow.from.other() as usize].engine;
                let is_dead = engine.query_qp(peer).is_none_or(|attr| attr.state == QpState::Err);
                let faults = self.pairs[flow.pair].disturbed.iter().filter(is_recent).count();
                // One fault can cost two retries, because its NAK can cross the retransmission after a
                // timeout.
                if !is_dead && 2 * faults <= usize::from(self.plan.retry_cnt) {
                    return Err(format!("only {faults} faults, and {} retries", self.plan.retry_cnt));
                }
                Ok(())
            }
            WcStatus::RnrRetryExceededError => {
                let naks = flow.rnr_naks.iter().filter(is_recent).count();
                if self.plan.rnr_retry == 7 || naks <= usize::from(self.plan.rnr_retry) {
                    return Err(format!("only {naks} RNR NAKs, and {} retries", self.plan.rnr_retry));
                }
                Ok(())
            }
            _ => Err("a failure with an impossible status".into()),
        }
    }

    fn received(&mut self, index: usize, number: usize, wc: &Wc) -> Checked {
        let plan = &self.plan.flows[index];
        let flow = &self.flows[index];
        if number != flow.received || flow.receives_flushed > 0 {
            return Err(format!("{} was to complete next", flow.received));
        }
        match plan.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                let message = next_message(plan, flow.arrived).ok_or("more messages than sent")?;
                self.check_message(index, message, number, wc)?;
                self.check_writes_before(index, flow.arrived, message)?;
                self.flows[index].arrived = message + 1;
            }
            QpType::Uc => {
                let mut from = flow.arrived;
                let message = loop {
                    let message = next_message(plan, from).ok_or("no later message is like this one")?;
                    if self.check_message(index, message, number, wc).is_ok() {
                        break message;
                    }
                    from = message + 1;
                };
                self.flows[index].arrived = message + 1;
            }
            QpType::Ud => {
                let message = (0..plan.ops.len())
                    .filter(|message| self.check_message(index, *message, number, wc).is_ok())
                    .min_by_key(|message| self.flows[index].copies[*message])
                    .ok_or("no message is like this one")?;
                self.flows[index].copies[message] += 1;
            }
        }
        self.flows[index].received += 1;
        Ok(())
    }

    /// Checks that the completion of receive `number` and its buffer match message `message`.
    fn check_message(&self, index: usize, message: usize, number: usize, wc: &Wc) -> Checked {
        let plan = &self.plan.flows[index];
        let op = &plan.ops[message];
        let skipped = if plan.qp_type == QpType::Ud { GRH_AREA } else { 0 };
        let expected = match op.kind {
            Kind::Write(..) => WcOpcode::RecvRdmaWithImm,
            _ => WcOpcode::Recv,
        };
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        let same: Option<ImmDt> = op.kind.imm();
        if wc.opcode != expected || imm != same || wc.byte_len as usize != op.data.len() + skipped {
            return Err(format!("not what request {message} sends"));
        }
        let flow = &self.flows[index];
        if let Kind::Write(offset, _) = op.kind {
            let mut found = vec![0; op.data.len()];
            flow.target.read(offset, &mut found);
            let is_stable = plan.qp_type == QpType::Uc || !is_written_later(plan, message);
            if is_stable && found != op.data {
                return Err(format!("the data of request {message} is not there"));
            }
            return Ok(());
        }
        let mut found = Vec::new();
        for (offset, len) in &plan.receives[number].pieces {
            let start = found.len();
            found.resize(start + len, 0);
            flow.receive.read(*offset, &mut found[start..]);
        }
        if found.get(skipped..skipped + op.data.len()) != Some(&op.data[..]) {
            return Err(format!("the receive does not hold what request {message} sent"));
        }
        Ok(())
    }

    /// Checks that the data of WRITEs before a message is complete when the message is.
    fn check_writes_before(&self, index: usize, from: usize, message: usize) -> Checked {
        let plan = &self.plan.flows[index];
        for (number, op) in plan.ops.iter().enumerate().take(message).skip(from) {
            let Kind::Write(offset, _) = op.kind else { continue };
            let mut found = vec![0; op.data.len()];
            self.flows[index].target.read(offset, &mut found);
            if found != op.data && !is_written_later(plan, number) {
                return Err(format!("message {message} arrived before the data of WRITE {number}"));
            }
        }
        Ok(())
    }

    /// Checks that receives fail only because their queue pair failed, in order and once each.
    fn receive_failed(&mut self, index: usize, number: usize, wc: &Wc) -> Checked {
        let flow = &mut self.flows[index];
        let next = flow.received.max(flow.receives_flushed);
        // Only the requester of the same queue pair can have caused the failure.
        if number != next || wc.status != WcStatus::WrFlushError || wc.cause != Cause::Flushed {
            return Err(format!("{next} was to be flushed next"));
        }
        flow.receives_flushed = number + 1;
        Ok(())
    }
}

/// Returns the next request from `from` on that consumes a receive.
fn next_message(plan: &Flow, from: usize) -> Option<usize> {
    (from..plan.ops.len()).find(|index| plan.ops[*index].kind.takes_receive())
}

/// Returns the range of `target` to which a request writes, if any.
fn changed(op: &Op) -> Option<(usize, usize)> {
    match op.kind {
        Kind::Write(offset, _) => Some((offset, op.data.len())),
        Kind::CompareSwap(offset, ..) | Kind::FetchAdd(offset, _) | Kind::AtomicWrite(offset) => {
            Some((offset, 8))
        }
        _ => None,
    }
}

fn is_written_later(plan: &Flow, number: usize) -> bool {
    let Some(range) = changed(&plan.ops[number]) else { return false };
    plan.ops[number + 1..].iter().filter_map(changed).any(|other| overlap(range, other))
}

/// Returns whether a later request overwrites the result of request `number`.
fn is_disturbed_later(plan: &Flow, number: usize) -> bool {
    let own = &plan.ops[number].pieces;
    plan.ops[number + 1..]
        .iter()
        .filter(|op| op.kind.brings())
        .flat_map(|op| &op.pieces)
        .any(|other| own.iter().any(|piece| overlap((piece.offset, piece.len), (other.offset, other.len))))
}

fn opcode(kind: &Kind) -> WcOpcode {
    match kind {
        Kind::Send(_) => WcOpcode::Send,
        Kind::Write(..) => WcOpcode::RdmaWrite,
        Kind::Read(_) => WcOpcode::RdmaRead,
        Kind::CompareSwap(..) => WcOpcode::CompareSwap,
        Kind::FetchAdd(..) | Kind::SharedAdd(..) => WcOpcode::FetchAdd,
        Kind::AtomicWrite(_) => WcOpcode::AtomicWrite,
        Kind::Flush(..) => WcOpcode::Flush,
    }
}
