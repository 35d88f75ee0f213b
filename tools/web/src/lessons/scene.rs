//! Two hosts and small networks, of which the lessons compute their answers.

use roce_packet::{Datagram, Opcode, Operation, Psn, Qpn};
use roce_scenario::Scenario;
use roce_sim::net::Results;
use roce_sim::pair::{Pair, Sent, Settings, Side};
use roce_transport::{EngineConfig, RKey, SendOp, SendWr, Sge, WcStatus};

/// Bytes of memory of each host.
const MEMORY: usize = 1 << 16;

/// Two hosts with a connected queue pair each. A is the requester. Every packet is recorded.
pub(super) struct Scene {
    pub(super) pair: Pair,
    pub(super) a: Qpn,
    pub(super) b: Qpn,
}

impl Scene {
    pub(super) fn new(settings: &Settings) -> Self {
        Self::with_config(EngineConfig::from_number(6), MEMORY, settings)
    }

    pub(super) fn with_config(config: EngineConfig, memory: usize, settings: &Settings) -> Self {
        let mut pair = Pair::with_config(config, memory);
        pair.record = true;
        let (a, b) = pair.connect_with(roce_transport::QpType::Rc, settings);
        Self { pair, a, b }
    }

    /// Posts a request of A for the first bytes of both memories. `make` gets the remote address and the key.
    /// Returns `None` if the queue pair does not accept the request.
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

    /// Posts a request of A with the first bytes of its memory.
    pub(super) fn post_op(&mut self, wr_id: u64, bytes: usize, op: SendOp) -> Option<()> {
        let local = [self.pair.host(Side::A).memory_range(0, bytes)];
        let elements = if bytes == 0 { &[][..] } else { &local[..] };
        self.pair.post_send(Side::A, self.a, &SendWr::new(wr_id, op, elements)).ok()
    }

    /// Runs until both hosts are idle, and returns the status of each completion of A.
    pub(super) fn run(&mut self) -> Vec<WcStatus> {
        self.pair.drive();
        self.pair.completions(Side::A).iter().map(|completion| completion.status).collect()
    }

    /// Returns the packets of a side with this operation, in their order.
    pub(super) fn sent(&self, from: Side, operation: Operation) -> impl Iterator<Item = &Sent> {
        self.pair.sent.iter().filter(move |sent| sent.from == from && operation_of(sent) == Some(operation))
    }
}

/// Returns the operation of a packet.
pub(super) fn operation_of(sent: &Sent) -> Option<Operation> {
    sent.opcode.info().map(|info| info.operation)
}

/// Returns the syndrome byte of the last acknowledgement or NAK of B.
pub(super) fn last_syndrome(pair: &Pair) -> Option<u8> {
    let is_answer = |sent: &&Sent| sent.from == Side::B && sent.opcode == Opcode::RC_ACKNOWLEDGE;
    let last = pair.sent.iter().rfind(is_answer)?;
    Some(Datagram::parse(&last.bytes, &[]).ok()?.aeth()?.syndrome.to_byte())
}

/// Returns a number as a PSN in decimal, after some steps.
pub(super) fn psn_after(first: u32, steps: u32) -> u64 {
    Psn::new(first).add(steps).get().into()
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
