//! Checks at the end of a run: all bytes and all counters.

use std::ops::Range;

use roce_transport::{QpType, Recovery, WcStatus};

use super::plan::Mode;
use super::work::{Flow, Kind, Op, SHARED_WORDS, Zone};
use super::world::{Checked, FlowState, World};
use crate::pair::Side;

/// Expected and actual memory, with the number of bytes that differ.
struct Shadow {
    expected: Vec<u8>,
    found: Vec<u8>,
    differing: usize,
}

impl Shadow {
    fn new(expected: &[u8], found: Vec<u8>) -> Self {
        let differing = count_differing(expected, &found);
        Self { expected: expected.to_vec(), found, differing }
    }

    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        self.differing -= count_differing(&self.expected[offset..end], &self.found[offset..end]);
        self.expected[offset..end].copy_from_slice(data);
        self.differing += count_differing(data, &self.found[offset..end]);
    }

    /// Writes the bytes `from..to` of a message whose buffer consists of `pieces` (offset, length).
    fn scatter(&mut self, pieces: &[(usize, usize)], data: &[u8], range: (usize, usize)) {
        for (offset, part) in scattered(pieces, range) {
            self.write(offset, &data[part]);
        }
    }

    /// Tells whether the bytes that [`scatter`](Self::scatter) would write were found.
    fn has(&self, pieces: &[(usize, usize)], data: &[u8], range: (usize, usize)) -> bool {
        scattered(pieces, range).all(|(offset, part)| self.found[offset..][..part.len()] == data[part])
    }

    fn first_difference(&self) -> Option<usize> {
        self.expected.iter().zip(&self.found).position(|(expected, found)| expected != found)
    }
}

/// Returns where the bytes `from..to` of a message belong, whose buffer consists of `pieces` (offset,
/// length): offsets, and the bytes that begin there.
fn scattered(
    pieces: &[(usize, usize)],
    (from, to): (usize, usize),
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut start = 0;
    let place = move |(offset, len): &(usize, usize)| {
        let (first, last) = (from.max(start), to.min(start + len));
        let place = (first < last).then(|| (offset + first - start, first..last));
        start += len;
        place
    };
    pieces.iter().filter_map(place)
}

fn count_differing(a: &[u8], b: &[u8]) -> usize {
    if a == b { 0 } else { a.iter().zip(b).filter(|(a, b)| a != b).count() }
}

impl World<'_> {
    pub(super) fn check_end(&mut self, is_idle: bool) -> Checked {
        for index in 0..self.flows.len() {
            let outcome = match self.plan.flows[index].qp_type {
                QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.check_reliable(index, is_idle),
                QpType::Uc => self.check_unreliable(index, is_idle),
                QpType::Ud => self.check_datagrams(index),
            };
            outcome.map_err(|message| format!("flow {index}: {message}"))?;
            let flow = &self.flows[index];
            if flow.source.content() != self.plan.flows[index].source {
                return Err(format!("flow {index}: the source of a request was changed"));
            }
        }
        self.check_shared_words(is_idle)?;
        self.check_counters()
    }

    fn check_reliable(&mut self, index: usize, is_idle: bool) -> Checked {
        let (plan, flow) = (&self.plan.flows[index], &mut self.flows[index]);
        let qpn = self.pairs[flow.pair].qpns[flow.from as usize];
        if is_idle {
            let depths = self.ends[flow.from as usize].engine.queue_depths(qpn);
            let waiting = depths.map_or(0, |(sends, _)| sends);
            if waiting > 0 || flow.posted < plan.ops.len() {
                return Err(format!("{waiting} of {} requests never ended", plan.ops.len()));
            }
            match flow.failed {
                None => flow.completed = plan.ops.len(),
                Some(_) if flow.flushed < flow.posted => {
                    return Err(format!("{} of {} requests were flushed", flow.flushed, flow.posted));
                }
                Some(_) => {}
            }
        }
        let flow = &self.flows[index];
        check_responder(plan, flow, self.plan.mtu.bytes())?;
        let in_order = self.plan.recovery == Recovery::GoBackN;
        check_requester(plan, flow, self.plan.mtu.bytes(), in_order)
    }

    /// Checks UC. Receives and WRITE targets of partially received messages can contain the first bytes of
    /// the message.
    fn check_unreliable(&self, index: usize, is_idle: bool) -> Checked {
        let (plan, flow) = (&self.plan.flows[index], &self.flows[index]);
        if is_idle && flow.posted < plan.ops.len() {
            return Err("requests were never posted".into());
        }
        if flow.local.content() != plan.local {
            return Err("nothing brings anything here".into());
        }
        let mut target = Shadow::new(&plan.target, flow.target.content());
        for op in &plan.ops {
            let Kind::Write(offset, _) = op.kind else { continue };
            for (start, len) in Flow::packets(op.data.len(), self.plan.mtu.bytes()) {
                let found = &target.found[offset + start..offset + start + len];
                if found != &op.data[start..start + len] {
                    break;
                }
                target.write(offset + start, &op.data[start..start + len]);
            }
        }
        if let Some(at) = target.first_difference() {
            return Err(format!("byte {at} of the target"));
        }
        check_guards(plan, flow)
    }

    fn check_datagrams(&self, index: usize) -> Checked {
        let (plan, flow) = (&self.plan.flows[index], &self.flows[index]);
        if flow.local.content() != plan.local || flow.target.content() != plan.target {
            return Err("nothing goes here".into());
        }
        let copies: u32 = flow.copies.iter().map(|copies| copies.saturating_sub(1)).sum();
        if copies > self.pairs[flow.pair].doubled {
            return Err(format!("{copies} messages came twice"));
        }
        check_guards(plan, flow)
    }

    /// Checks that each addition to a shared word counts once. If all results are known, they form a chain.
    fn check_shared_words(&self, is_idle: bool) -> Checked {
        for side in [Side::A, Side::B] {
            let end = &self.ends[side as usize];
            let content = end.shared.content();
            for word in 0..SHARED_WORDS {
                let value =
                    |bytes: &[u8]| bytes[8 * word..8 * word + 8].try_into().map_or(0, u64::from_ne_bytes);
                let start = value(&end.shared_start);
                let sum = value(&content).wrapping_sub(start);
                let (mut known, mut possible) = (Vec::new(), 0);
                for (flow, plan) in self.flows.iter().zip(&self.plan.flows).filter(|(f, _)| f.from != side) {
                    for (number, op) in plan.ops.iter().enumerate().take(flow.posted) {
                        let Kind::SharedAdd(own, add) = op.kind else { continue };
                        if own == word && number < flow.completed {
                            let mut original = [0; 8];
                            flow.local.read(op.pieces[0].offset, &mut original);
                            known.push((u64::from_ne_bytes(original).wrapping_sub(start), add));
                        } else if own == word {
                            possible += add;
                        }
                    }
                }
                check_chain(known, sum, possible, is_idle)
                    .map_err(|message| format!("shared word {word} of {side:?}: {message}"))?;
            }
        }
        Ok(())
    }

    fn check_counters(&self) -> Checked {
        for (end, peer) in [(0, 1), (1, 0)] {
            let (own, peer) = (self.ends[end].engine.counters(), self.ends[peer].engine.counters());
            if own.rdma_rx_packets != own.rx_handled + own.dropped() {
                return Err(format!("packets got lost inside the engine: {own:?}"));
            }
            let rates = self.plan.faults.iter().map(|plan| plan.rates);
            let doubles = rates.clone().any(|rates| rates.duplicate.parts_per_billion() > 0);
            if !doubles && own.packet_seq_err > peer.out_of_sequence {
                return Err(format!("{} NAKs for {} gaps", own.packet_seq_err, peer.out_of_sequence));
            }
            let is_quiet = self.plan.is_faultless() && own.out_of_buffer + peer.out_of_buffer == 0;
            if is_quiet && (own.retransmitted_packets > 0 || own.dropped() > 0) {
                return Err(format!("sent again or dropped although nothing happened: {own:?}"));
            }
        }
        let all_faultless = self.plan.is_faultless() && !matches!(self.plan.mode, Mode::Safety { .. });
        let mut failures = self.flows.iter().filter_map(|flow| flow.failed);
        if all_faultless && failures.any(|(_, status)| status == WcStatus::RetryExceededError) {
            // A queue pair gets no answer after its peer has failed because of missing receives.
            let out_of_receives =
                self.ends.iter().any(|end| end.engine.counters().req_rnr_retries_exceeded > 0);
            if !out_of_receives {
                return Err("failed although nothing happened".into());
            }
        }
        Ok(())
    }
}

/// Checks the bytes between the receives. A receive can contain parts of an incomplete message.
fn check_guards(plan: &Flow, flow: &FlowState) -> Checked {
    let mut found = flow.receive.content();
    for (offset, len) in plan.receives.iter().flat_map(|receive| &receive.pieces) {
        found[*offset..offset + len].copy_from_slice(&plan.receive[*offset..offset + len]);
    }
    if found == plan.receive { Ok(()) } else { Err("bytes between the receives changed".into()) }
}

/// Checks that the responder has executed a prefix of the requests, with whole packets of the next one. The
/// prefix contains at least the completed requests.
fn check_responder(plan: &Flow, flow: &FlowState, mtu: usize) -> Checked {
    let mut target = Shadow::new(&plan.target, flow.target.content());
    let mut receive = Shadow::new(&plan.receive, flow.receive.content());
    let least = flow.completed.max(flow.arrived);
    let mut received = 0;
    for (number, op) in plan.ops.iter().enumerate() {
        for (offset, len) in Flow::packets(op.data.len(), mtu) {
            let is_possible = number >= least && flow.received == received;
            if is_possible && target.differing == 0 && receive.differing == 0 {
                return Ok(());
            }
            let pieces = || plan.receives[received].pieces.as_slice();
            execute(op, (offset, len), &mut target, &mut receive, pieces);
        }
        received += usize::from(op.kind.takes_receive());
    }
    if flow.received != received || target.differing + receive.differing > 0 {
        return Err(format!(
            "no prefix of the requests explains the memory of the responder ({} messages arrived, {} completed, \
             first differences in target {:?}, receive {:?})",
            flow.received,
            flow.completed,
            target.first_difference(),
            receive.first_difference()
        ));
    }
    Ok(())
}

/// Applies one packet of a request to the expected memory of the responder.
fn execute<'a>(
    op: &Op,
    (offset, len): (usize, usize),
    target: &mut Shadow,
    receive: &mut Shadow,
    pieces: impl Fn() -> &'a [(usize, usize)],
) {
    let part = offset..offset + len;
    match op.kind {
        Kind::Send(_) => receive.scatter(pieces(), &op.data, (offset, offset + len)),
        Kind::Write(at, _) => target.write(at + offset, &op.data[part]),
        Kind::AtomicWrite(at) => target.write(at, &op.data),
        // The expected result of an atomic is the value that it finds.
        Kind::CompareSwap(at, expected, new) => {
            if op.data == expected.to_ne_bytes() {
                target.write(at, &new.to_ne_bytes());
            }
        }
        Kind::FetchAdd(at, add) => {
            let found = op.data.as_slice().try_into().map_or(0, u64::from_ne_bytes);
            target.write(at, &found.wrapping_add(add).to_ne_bytes());
        }
        Kind::Read(_) | Kind::SharedAdd(..) | Kind::Flush(..) => {}
    }
}

/// Checks the results of READs and atomics: those of all completed requests, and the first bytes of one more.
/// If responses are not accepted in order only, any packets of the others may have arrived too.
fn check_requester(plan: &Flow, flow: &FlowState, mtu: usize, in_order: bool) -> Checked {
    let found = flow.local.content();
    let mut start = plan.local.clone();
    for op in &plan.ops {
        if let (Kind::SharedAdd(..), [piece]) = (op.kind, op.pieces.as_slice()) {
            let range = piece.offset..piece.offset + piece.len;
            start[range.clone()].copy_from_slice(&found[range]);
        }
    }
    let mut local = Shadow::new(&start, found);
    for (number, op) in plan.ops.iter().enumerate() {
        let brings = op.kind.brings() && !matches!(op.kind, Kind::SharedAdd(..));
        let pieces: Vec<(usize, usize)> = op
            .pieces
            .iter()
            .filter(|piece| piece.zone == Zone::Local)
            .map(|piece| (piece.offset, piece.len))
            .collect();
        for (offset, len) in Flow::packets(op.data.len(), mtu) {
            if number >= flow.completed && local.differing == 0 {
                return Ok(());
            }
            if in_order && flow.failed.is_some_and(|(failed, _)| number > failed) {
                break;
            }
            let has_arrived = || {
                in_order || number < flow.completed || local.has(&pieces, &op.data, (offset, offset + len))
            };
            if brings && has_arrived() {
                local.scatter(&pieces, &op.data, (offset, offset + len));
            }
        }
    }
    match local.first_difference() {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of what READs and atomics brought, {} completed", flow.completed)),
    }
}

/// Checks additions. `known` contains the found values relative to the start, with their addends.
fn check_chain(mut known: Vec<(u64, u64)>, sum: u64, possible: u64, is_idle: bool) -> Checked {
    known.sort_unstable();
    let known_sum: u64 = known.iter().map(|(_, add)| add).sum();
    if sum < known_sum || sum > known_sum + possible {
        return Err(format!("{sum} was added, {known_sum} is known and {possible} more is possible"));
    }
    for pair in known.windows(2) {
        if pair[0].0 + pair[0].1 > pair[1].0 {
            return Err(format!("two additions found overlapping values: {pair:?}"));
        }
    }
    let mut expected = 0;
    for (found, add) in known.iter().filter(|_| possible == 0 && is_idle) {
        if *found != expected {
            return Err(format!("an addition found {found} instead of {expected}"));
        }
        expected += add;
    }
    Ok(())
}
