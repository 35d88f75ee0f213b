//! One side of a test, from the exchange before the first message to the exchange after the last one.

use std::io;
use std::time::Duration;

use roce_exchange::{ToolError, source_address};
use roce_packet::Gid;
use roce_transport::QpCapabilities;
use serde::Serialize;

use super::buffers::Buffers;
use super::end::{End, Lane};
use super::{Bandwidth, ConnectMethod, Latency, Length, Plan, Size, Test, Verb};
use super::{bandwidth, buffers::Geometry, latency};
use crate::harness::{DropWatch, Role, await_silence, check_length};
use crate::perf::exchange::{Agreement, FIRST_KEYS, Keys, Link, Report, Stream};
use roce::verbs::{Context, QueuePairOptions};

/// Time that an original may take to say that it is done, or to continue.
const PARTING: Duration = Duration::from_secs(1);

/// The result for one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of a message.
    pub size: usize,
    /// The bandwidth of this side, or of both sides together if both send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// The latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Packets that this side retransmitted.
    pub retransmitted_packets: u64,
}

/// A function that prints a row when its size is finished.
type OnRow<'a> = &'a mut dyn FnMut(&Row) -> io::Result<()>;

/// A step of the opening.
#[derive(Clone, Copy, Debug)]
enum Step {
    Keys,
    Connect,
    Barrier,
}

/// Returns the steps before the first message, which differ from program to program.
fn opening(plan: &Plan, method: &ConnectMethod) -> Vec<Step> {
    use Step::{Barrier, Connect, Keys};
    let rest: &[Step] = match (plan.verb, plan.test) {
        (Verb::Send, _) => &[Keys, Connect, Barrier, Keys],
        (_, Test::Bandwidth) => &[Keys, Connect, Keys, Barrier],
        (_, Test::Latency) => &[Barrier, Keys, Connect, Keys, Barrier],
    };
    if matches!(method, ConnectMethod::Keys(_)) {
        return rest.to_vec();
    }
    // rdma_cm connects first of all, between two barriers.
    let rest = rest.iter().copied().filter(|step| !matches!(step, Connect));
    [Barrier, Connect, Barrier].into_iter().chain(rest).collect()
}

/// One connected side.
#[derive(Debug)]
pub struct Session<S> {
    link: Link<S>,
    end: End,
    sizes: Vec<usize>,
    watch: DropWatch,
}

impl<S: Stream> Session<S> {
    /// Agrees with the other side, and creates and connects queue pairs with `method`. Reads of `stream`
    /// should time out after about 50 ms, so that the session checks for other signs of life.
    ///
    /// # Errors
    ///
    /// The plan is impossible, or the other side has left, is another program or cannot be reached.
    pub fn open(
        context: &Context,
        plan: &Plan,
        stream: S,
        role: Role,
        method: &ConnectMethod,
    ) -> Result<Self, ToolError> {
        let watch = DropWatch::start(context);
        let opened = Self::connect(context, plan, stream, role, method, &watch);
        watch.explain(opened)
    }

    fn connect(
        context: &Context,
        plan: &Plan,
        stream: S,
        role: Role,
        method: &ConnectMethod,
        watch: &DropWatch,
    ) -> Result<Self, ToolError> {
        plan.check()?;
        let address = source_address(context, plan.gid_index)?;
        let mtu = plan.largest_mtu(context);
        let mut link = Link::new(stream, role, plan.patience);
        if plan.rdma_cm || plan.comm_rdma_cm {
            link = link.with_structures();
        }
        let agreement = link.agree(mtu, &plan.settings());
        let agreement = agreement.map_err(failed(plan, "the release and the settings"))?;
        let role = plan.role(role);
        let sizes = plan.sizes(agreement.mtu)?;
        let pd = context.alloc_pd()?;
        let channel = if plan.events { Some(context.create_channel()?) } else { None };
        let cq = context.create_cq(plan.num_qp * (plan.tx_depth + plan.rx_depth), channel.as_ref())?;
        let buffers = Buffers::new(&pd, plan, &agreement, &sizes, role)?;
        let mut options = QueuePairOptions::new(plan.qp_type(), &cq);
        options.capabilities = QpCapabilities {
            max_send_wr: plan.tx_depth,
            max_recv_wr: plan.rx_depth,
            max_inline: plan.inline,
            ..options.capabilities
        };
        let out_reads = if plan.lands() { plan.out_reads } else { 1 };
        let mut lanes = Vec::new();
        for index in 0..plan.num_qp {
            let qp = pd.create_qp(&options)?;
            let psn = roce_packet::Psn::new(qp.endpoint()?.psn);
            let (vaddr, rkey) = buffers.advertised(index);
            let gid = Gid::from_ip(address);
            let local = Keys { out_reads: out_reads.into(), qpn: qp.number(), psn, rkey: rkey.0, vaddr, gid };
            lanes.push(Lane { qp, local, remote: local, destination: None, connection: None });
        }
        let (plan, context) = (plan.clone(), context.clone());
        let end = End { plan, role, agreement, context, cq, buffers, lanes };
        let mut session = Self { link, end, sizes, watch: watch.clone() };
        for step in opening(&session.end.plan, method) {
            match step {
                Step::Keys => session.keys()?,
                Step::Connect => session.end.connect(method)?,
                Step::Barrier => session.barrier("a barrier")?,
            }
        }
        session.link.end_set_up();
        Ok(session)
    }

    /// Returns the role of this side in the test.
    pub fn role(&self) -> Role {
        self.end.role
    }

    /// Returns the agreement of both sides.
    pub fn agreement(&self) -> &Agreement {
        &self.end.agreement
    }

    /// Returns the keys of the queue pairs: those of this side and those of the other side.
    pub fn keys_of_all(&self) -> impl Iterator<Item = (Keys, Keys)> + '_ {
        self.end.lanes.iter().map(|lane| (lane.local, lane.remote))
    }

    fn keys(&mut self) -> Result<(), ToolError> {
        for index in 0..self.end.lanes.len() {
            let local = self.end.lanes[index].local;
            let keys = self.link.keys(FIRST_KEYS, local, &mut || false);
            let keys = keys.map_err(failed(&self.end.plan, "keys"))?;
            self.end.check_memory(&keys)?;
            self.end.lanes[index].remote = keys;
        }
        Ok(())
    }

    /// Waits for the other side, as long as packets or blocks arrive.
    fn barrier(&mut self, what: &'static str) -> Result<(), ToolError> {
        self.barrier_counted(what).map(drop)
    }

    /// Waits at a barrier. Returns how many requests of the other side arrived before it had reached the
    /// barrier.
    fn barrier_counted(&mut self, what: &'static str) -> Result<u64, ToolError> {
        let Some(lane) = self.end.lanes.first() else { return Ok(0) };
        let mut alive = packets_come(&self.end.context);
        let mut taken = 0;
        let mut arrived = || taken = self.end.requests_sent_before();
        let keys = self.link.keys_with(what, lane.local, &mut alive, &mut arrived);
        keys.map_err(failed(&self.end.plan, what))?;
        Ok(taken)
    }

    /// Passes the last barrier.
    fn leave(&mut self) -> Result<(), ToolError> {
        let Some(lane) = self.end.lanes.first() else { return Ok(()) };
        let mut alive = packets_come(&self.end.context);
        let left = self.link.final_keys("the end", lane.local, &mut alive);
        left.map_err(failed(&self.end.plan, "the end"))?;
        self.end.check_end(self.link.part(PARTING))
    }

    /// Exchanges the number of messages sent on each queue pair, and checks the received ones. Only between
    /// two sides of this program.
    fn tally(&mut self, size: usize, sent: &[u64], received: &[u64]) -> Result<(), ToolError> {
        if !self.end.agreement.is_ours {
            return Ok(());
        }
        let mut theirs = Vec::new();
        for index in 0..self.end.lanes.len() {
            let count = sent.get(index).copied().unwrap_or(0);
            let mut block = [0; 16];
            block[..8].copy_from_slice(&(size as u64).to_be_bytes());
            block[8..].copy_from_slice(&count.to_be_bytes());
            let mut alive = packets_come(&self.end.context);
            let found = self.link.swap("tally", &block, &mut alive);
            let found = u128::from_be_bytes(found.map_err(failed(&self.end.plan, "a tally"))?);
            let (found, count) = ((found >> 64) as usize, found as u64);
            check_length(0, size, found)?;
            theirs.push(count);
        }
        self.end.check_tally(size, &theirs, received)?;
        // Neither side sends before both sides have checked.
        let verdict = self.link.swap("verdict", b"fine", &mut || true);
        verdict.map_err(failed(&self.end.plan, "a verdict"))?;
        Ok(())
    }

    fn report(&mut self, ours: &Report) -> Result<Report, ToolError> {
        self.link.report(ours).map_err(failed(&self.end.plan, "reports"))
    }

    /// Measures every size, and calls `on_row` with each row.
    ///
    /// # Errors
    ///
    /// A message is lost or wrong, or the connection broke.
    pub fn run(&mut self, on_row: OnRow<'_>) -> Result<Vec<Row>, ToolError> {
        let rows = self.run_test(on_row);
        self.watch.explain(rows)
    }

    fn run_test(&mut self, on_row: OnRow<'_>) -> Result<Vec<Row>, ToolError> {
        let (verb, is_server) = (self.end.plan.verb, self.end.role == Role::Server);
        if let Length::Endless { interval } = self.end.plan.length {
            return self.endless(Duration::from_secs(interval), on_row);
        }
        let rows = match self.end.plan.test {
            Test::Bandwidth if is_server && verb != Verb::Send && !self.end.plan.bidirectional => {
                self.stand_by_for_bandwidth(on_row)?
            }
            Test::Bandwidth => self.bandwidth(on_row)?,
            Test::Latency if is_server && self.end.plan.lands() => {
                self.stand_by()?;
                Vec::new()
            }
            Test::Latency => self.latency(on_row)?,
        };
        // ib_write_lat exits without a barrier.
        if (verb, self.end.plan.test) != (Verb::Write, Test::Latency) {
            self.leave()?;
        }
        Ok(rows)
    }

    fn bandwidth(&mut self, on_row: OnRow<'_>) -> Result<Vec<Row>, ToolError> {
        let (verb, bidirectional) = (self.end.plan.verb, self.end.plan.bidirectional);
        let is_send = verb == Verb::Send;
        let in_seconds = matches!(self.end.plan.length, Length::Seconds { .. });
        let mut rows = Vec::new();
        let mut last = Report::default();
        for size in self.sizes.clone() {
            let geometry = Geometry::new(&self.end.plan, &self.end.agreement, size);
            let before = self.end.context.counters().retransmitted_packets;
            let mut traffic = bandwidth::prepare(&self.end, geometry)?;
            if is_send || bidirectional {
                let taken = self.barrier_counted("the barrier before a size")?;
                if rows.is_empty() && self.link.role() == Role::Server {
                    self.end.check_begin(taken)?;
                }
            }
            let measured = bandwidth::run(&mut traffic, &self.end, &mut || self.link.look())?;
            last = self.end.report_of(size, &measured);
            let mut total = measured;
            for step in after_a_size(verb, bidirectional, self.end.plan.size, in_seconds) {
                match step {
                    AfterSize::Barrier => self.barrier("the barrier after a size")?,
                    AfterSize::Reports => {
                        let theirs = self.report(&last)?;
                        self.end.check_direction()?;
                        total = add(&measured, &self.end.reported(&theirs, &[size])?);
                    }
                }
            }
            if !(is_send && in_seconds) {
                self.tally(size, &traffic.sent(), &traffic.received())?;
            }
            rows.push(self.end.row(size, before, Some(total), None, on_row)?);
        }
        if !is_send && !bidirectional {
            self.barrier("the barrier before reports")?;
            self.report(&last)?;
            self.end.check_direction()?;
        }
        Ok(rows)
    }

    /// Serves a test that needs only the memory of this side. Checks the memory after each size.
    fn stand_by(&mut self) -> Result<(), ToolError> {
        (0..self.sizes.len()).try_for_each(|index| self.tally(self.sizes[index], &[], &[]))
    }

    /// Serves a bandwidth test that needs only the memory of this side.
    fn stand_by_for_bandwidth(&mut self, on_row: OnRow<'_>) -> Result<Vec<Row>, ToolError> {
        let before = self.end.context.counters().retransmitted_packets;
        self.stand_by()?;
        let at_barrier = self.barrier_counted("the barrier before reports")?;
        let theirs = self.report(&Report::default())?;
        // The report describes the last size of the other side.
        let last = self.sizes.len().saturating_sub(1);
        let bandwidth = self.end.reported(&theirs, self.sizes.get(last..).unwrap_or_default())?;
        if !self.end.agreement.is_ours {
            if self.link.role() == Role::Server {
                self.end.check_passive(at_barrier, &theirs)?;
            }
            self.end.check_foreign(theirs.iterations)?;
        }
        Ok(vec![self.end.row(theirs.size as usize, before, Some(bandwidth), None, on_row)?])
    }

    /// Runs a test without end. Reports a row after each interval, until the other side leaves.
    fn endless(&mut self, interval: Duration, on_row: OnRow<'_>) -> Result<Vec<Row>, ToolError> {
        let mut rows = Vec::new();
        let Some(size) = self.sizes.first().copied() else { return Ok(rows) };
        let geometry = Geometry::new(&self.end.plan, &self.end.agreement, size);
        let mut traffic = bandwidth::prepare(&self.end, geometry)?;
        if self.end.plan.verb == Verb::Send {
            self.barrier("the barrier before a size")?;
        }
        while traffic.is_idle() {
            if self.link.look().is_err() {
                return Ok(rows);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        loop {
            let before = self.end.context.counters().retransmitted_packets;
            let measured = bandwidth::stretch(&mut traffic, &self.end, interval, &mut || self.link.look())?;
            let Some(measured) = measured else { return Ok(rows) };
            // Only the last row is kept, because the test may run for days.
            rows = vec![self.end.row(size, before, Some(measured), None, on_row)?];
        }
    }

    fn latency(&mut self, on_row: OnRow<'_>) -> Result<Vec<Row>, ToolError> {
        let is_send = self.end.plan.verb == Verb::Send;
        let in_seconds = matches!(self.end.plan.length, Length::Seconds { .. });
        let mut rows = Vec::new();
        for size in self.sizes.clone() {
            let before = self.end.context.counters().retransmitted_packets;
            let mut run = latency::Run::new(&self.end, size)?;
            if is_send {
                self.barrier("the barrier before a size")?;
            }
            let measured = run.run(&self.end, &mut || self.link.look())?;
            // When time is up, one side may be ahead of the other by a message.
            if !in_seconds || self.end.plan.lands() {
                self.tally(size, &run.traffic.sent(), &[run.received()])?;
            }
            rows.push(self.end.row(size, before, None, Some(measured), on_row)?);
        }
        Ok(rows)
    }

    /// Waits until the other side, which may have lost the last acknowledgement, has nothing left to
    /// retransmit. Then ends rdma_cm connections.
    pub fn linger(&mut self) {
        if (self.end.plan.verb, self.end.plan.test) == (Verb::Write, Test::Latency) {
            // Twice the time after which the other side retransmits unacknowledged packets.
            let quiet = Duration::from_nanos(4096 << self.end.plan.timeout.clamp(14, 19)) * 2;
            await_silence(&self.end.context, quiet);
        }
        self.end.disconnect();
    }
}

impl End {
    /// Creates and reports the row of a size; `before` is the number of retransmissions before the size.
    fn row(
        &self,
        size: usize,
        before: u64,
        bandwidth: Option<Bandwidth>,
        latency: Option<Latency>,
        on_row: OnRow<'_>,
    ) -> Result<Row, ToolError> {
        let retransmitted_packets = self.context.counters().retransmitted_packets - before;
        let row = Row { size, bandwidth, latency, retransmitted_packets };
        on_row(&row).map_err(|error| ToolError::Io { what: "cannot print", error })?;
        Ok(row)
    }

    /// Returns the bandwidth that the other side reports.
    fn reported(&self, report: &Report, sizes: &[usize]) -> Result<Bandwidth, ToolError> {
        let most =
            self.plan.iterations().map(|iterations| iterations.saturating_mul(self.plan.num_qp as u64));
        Bandwidth::reported(report, sizes, most)
    }

    /// Refuses keys whose memory does not fit into the address space.
    fn check_memory(&self, keys: &Keys) -> Result<(), ToolError> {
        let bytes = self.buffers.area() as u64;
        if self.plan.verb == Verb::Send || keys.vaddr.checked_add(bytes).is_some() {
            return Ok(());
        }
        Err(ToolError::Peer(format!(
            "announced memory at {:#x}, where no {bytes} bytes are left in the address space; check that {} runs there",
            keys.vaddr,
            self.plan.program()
        )))
    }

    fn report_of(&self, size: usize, measured: &Bandwidth) -> Report {
        let gigabits = self.plan.gigabits;
        Report {
            size: size as u64,
            iterations: measured.messages,
            peak: measured.peak.map_or(0.0, |peak| peak.bandwidth(gigabits)),
            average: measured.average.bandwidth(gigabits),
            rate: measured.average.messages_per_s / 1e6,
        }
    }
}

/// Returns a function that tells whether packets have arrived since its last call.
fn packets_come(context: &Context) -> impl FnMut() -> bool + '_ {
    let mut before = context.counters().rdma_rx_packets;
    move || {
        let now = context.counters().rdma_rx_packets;
        std::mem::replace(&mut before, now) != now
    }
}

/// Adds the bandwidths of both sides.
fn add(ours: &Bandwidth, theirs: &Bandwidth) -> Bandwidth {
    let peak = ours.peak.zip(theirs.peak).map(|(ours, theirs)| ours + theirs);
    let messages = ours.messages.max(theirs.messages);
    Bandwidth { messages, peak, average: ours.average + theirs.average }
}

fn failed(plan: &Plan, what: &'static str) -> impl FnOnce(io::Error) -> ToolError {
    let program = plan.program();
    move |error| ToolError::Handshake { what, program, error }
}

/// The steps of the two sides of a bandwidth test once all messages of a size have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterSize {
    Barrier,
    Reports,
}

/// Returns the steps in the order of the original programs; ib_send_bw differs from the others.
fn after_a_size(verb: Verb, bidirectional: bool, size: Size, in_seconds: bool) -> Vec<AfterSize> {
    let is_send = verb == Verb::Send;
    let reports = (bidirectional && !(is_send && in_seconds)).then_some(AfterSize::Reports);
    let barrier = (size == Size::All && (is_send || bidirectional)).then_some(AfterSize::Barrier);
    let order = if is_send { [reports, barrier] } else { [barrier, reports] };
    order.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: ib_send_bw -a -b waited for reports while this side waited at a barrier, forever.
    #[test]
    fn reports_come_before_the_barrier_with_send_and_after_it_without() {
        use AfterSize::{Barrier, Reports};
        assert_eq!(after_a_size(Verb::Send, true, Size::All, false), [Reports, Barrier]);
        assert_eq!(after_a_size(Verb::Write, true, Size::All, false), [Barrier, Reports]);
        assert_eq!(after_a_size(Verb::Read, true, Size::All, false), [Barrier, Reports]);
        assert_eq!(after_a_size(Verb::Send, false, Size::All, false), [Barrier]);
        assert_eq!(after_a_size(Verb::Write, false, Size::All, false), []);
        assert_eq!(after_a_size(Verb::Send, true, Size::Given(8), false), [Reports]);
        assert_eq!(after_a_size(Verb::Send, true, Size::Given(8), true), []);
    }
}
