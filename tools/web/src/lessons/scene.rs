//! Two hosts in virtual time and small networks, from which the lessons compute their answers.

use roce_packet::{Datagram, Opcode, Operation, Qpn, Syndrome};
use roce_scenario::Scenario;
use roce_sim::net::Results;
use roce_sim::pair::{Action, Pair, Sent, Settings, Side};
use roce_transport::{EngineConfig, QpType, RKey, SendOp, SendWr, Sge, Wc, WcStatus};

/// Bytes of memory of each host.
const MEMORY: usize = 1 << 16;
/// Maximum number of packets in [`Scene::lines`].
const MOST_LINES: usize = 24;

/// Two hosts with a connected queue pair each: [`Side::A`] is the requester, and [`Side::B`] the responder.
/// Every packet that leaves is recorded.
pub(super) struct Scene {
    pub(super) pair: Pair,
    requester: Qpn,
    pub(super) responder: Qpn,
    /// The time at which the scene began, in nanoseconds.
    start_ns: u64,
}

impl Scene {
    /// Connects the hosts over a link that delivers every packet.
    pub(super) fn new(settings: &Settings) -> Self {
        Self::with_config(EngineConfig::from_number(6), MEMORY, settings)
    }

    /// Like [`new`](Self::new), with other settings of the engines and another size of the memories.
    pub(super) fn with_config(config: EngineConfig, memory: usize, settings: &Settings) -> Self {
        let mut pair = Pair::with_config(config, memory);
        pair.record = true;
        let (requester, responder) = pair.connect_with(QpType::Rc, settings);
        let start_ns = pair.now.as_nanos();
        Self { pair, requester, responder, start_ns }
    }

    /// Like [`new`](Self::new), over a link on which `fate` chooses the action for each packet.
    pub(super) fn with_fate(settings: &Settings, fate: impl FnMut(&Sent) -> Action + 'static) -> Self {
        let mut scene = Self::new(settings);
        scene.pair.set_script(fate);
        scene
    }

    /// Posts a request of the requester for the first bytes of both memories. `make` gets the remote address
    /// and the key. Returns `None` if the engine refuses the request.
    pub(super) fn post(
        &mut self,
        wr_id: u64,
        bytes: usize,
        make: impl FnOnce(u64, RKey) -> SendOp,
    ) -> Option<()> {
        let remote: Sge = self.pair.host(Side::B).memory_range(0, bytes);
        let op = make(remote.addr, self.pair.host(Side::B).rkey());
        self.post_op(wr_id, bytes, op)
    }

    /// Posts a request of the requester with the first bytes of its memory. Returns `None` if the engine
    /// refuses the request.
    pub(super) fn post_op(&mut self, wr_id: u64, bytes: usize, op: SendOp) -> Option<()> {
        let local = [self.pair.host(Side::A).memory_range(0, bytes)];
        let elements = if bytes == 0 { &[][..] } else { &local[..] };
        self.pair.post_send(Side::A, self.requester, &SendWr::new(wr_id, op, elements)).ok()
    }

    /// Posts a WRITE at the requester. Returns `None` if the engine refuses it.
    pub(super) fn write(&mut self, bytes: usize) -> Option<()> {
        self.post(1, bytes, |remote_addr, rkey| SendOp::Write { remote_addr, rkey })
    }

    /// Posts a SEND at the requester. Returns `None` if the engine refuses it.
    pub(super) fn send(&mut self, bytes: usize) -> Option<()> {
        self.post_op(1, bytes, SendOp::Send)
    }

    /// Posts a receive at the responder. Returns `None` if the engine refuses it.
    pub(super) fn receive(&mut self, bytes: usize) -> Option<()> {
        self.pair.post_recv(Side::B, self.responder, 1, 0, bytes).ok()
    }

    /// Runs until both hosts are idle, and returns the status of each completion of the requester.
    pub(super) fn run(&mut self) -> Vec<WcStatus> {
        self.pair.drive();
        self.pair.completions(Side::A).iter().map(|completion| completion.status).collect()
    }

    /// Runs for this number of microseconds, or until both hosts are idle.
    pub(super) fn run_for(&mut self, most_us: u64) {
        let limit = self.pair.now.plus_nanos(most_us * 1000);
        self.pair.drive_until(limit);
    }

    /// Runs until the requester has a completion, and returns it. Returns `None` after this number of
    /// microseconds.
    pub(super) fn first_completion(&mut self, most_us: u64) -> Option<Wc> {
        let limit = self.pair.now.plus_nanos(most_us * 1000);
        // Lets what was posted leave.
        let mut next = self.pair.now;
        loop {
            self.pair.drive_until(next);
            if let Some(completion) = self.pair.completions(Side::A).first() {
                return Some(*completion);
            }
            next = self.pair.next_time().filter(|next| *next <= limit)?;
        }
    }

    /// Returns the time since the start, in nanoseconds.
    pub(super) fn now_ns(&self) -> u64 {
        self.pair.now.as_nanos() - self.start_ns
    }

    /// Returns the packets that a side has sent so far.
    pub(super) fn sent_by(&self, side: Side) -> Vec<&Sent> {
        self.pair.sent.iter().filter(|sent| sent.from == side).collect()
    }

    /// Returns the packets of a side with this operation, in their order.
    pub(super) fn sent(&self, from: Side, operation: Operation) -> impl Iterator<Item = &Sent> {
        self.pair.sent.iter().filter(move |sent| sent.from == from && operation_of(sent) == Some(operation))
    }

    /// Returns the time from the start until a packet was sent, in nanoseconds.
    pub(super) fn sent_ns(&self, sent: &Sent) -> u64 {
        sent.at.as_nanos() - self.start_ns
    }

    /// Returns the syndrome of the last acknowledgement or NAK of the responder.
    pub(super) fn last_syndrome(&self) -> Option<Syndrome> {
        let is_answer = |sent: &&Sent| sent.from == Side::B && sent.opcode == Opcode::RC_ACKNOWLEDGE;
        syndrome(self.pair.sent.iter().rfind(is_answer)?)
    }

    /// Returns the packets as lines of text, at most [`MOST_LINES`].
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        for sent in self.pair.sent.iter().take(MOST_LINES) {
            let us = self.sent_ns(sent) as f64 / 1000.0;
            let direction = match sent.from {
                Side::A => "requester to responder",
                Side::B => "responder to requester",
            };
            let answer = syndrome(sent).map_or(String::new(), |syndrome| format!(", {syndrome}"));
            let fate = if sent.action == Action::Drop { ", lost" } else { "" };
            let (opcode, psn) = (sent.opcode, sent.psn.get());
            text += &format!("{us:>12.3} us  {direction}  {opcode}, PSN {psn}{answer}{fate}\n");
        }
        if let Some(more @ 1..) = self.pair.sent.len().checked_sub(MOST_LINES) {
            text += &format!("... and {more} more packets\n");
        }
        text
    }
}

/// Returns the operation of a packet.
pub(super) fn operation_of(sent: &Sent) -> Option<Operation> {
    sent.opcode.info().map(|info| info.operation)
}

/// Returns the syndrome of an acknowledgement.
pub(super) fn syndrome(sent: &Sent) -> Option<Syndrome> {
    let datagram = Datagram::parse(&sent.bytes, &[]).ok()?;
    datagram.aeth().map(|aeth| aeth.syndrome)
}

/// Loses the packet of the requester with this index, once.
pub(super) fn lose(index: usize) -> impl FnMut(&Sent) -> Action + 'static {
    move |sent| match sent.from == Side::A && sent.index == index {
        true => Action::Drop,
        false => Action::Pass,
    }
}

/// Loses every packet of the requester.
pub(super) fn lose_requests(sent: &Sent) -> Action {
    if sent.from == Side::A { Action::Drop } else { Action::Pass }
}

/// Runs a scenario to its end, with values replaced.
pub(super) fn simulate(text: &str, sets: &[(&str, &str)]) -> Option<Results> {
    let sets: Vec<(String, String)> =
        sets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let no_file = |name: &str| -> Result<String, String> { Err(format!("the page has no file {name}")) };
    let mut simulation = Scenario::parse_with(text, &sets, &no_file).ok()?.simulation().ok()?;
    simulation.run_to_end();
    Some(simulation.results())
}
