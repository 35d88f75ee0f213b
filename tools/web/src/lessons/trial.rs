//! Runs of two hosts in virtual time, from which lessons read their answers.

use roce_packet::{Datagram, Qpn, Syndrome};
use roce_sim::pair::{Action, MEMORY_BASE, Pair, Sent, Settings, Side};
use roce_transport::{QpType, SendOp, SendWr, Wc};

/// Two connected hosts. Side A is the requester. Every packet that leaves is recorded.
pub(super) struct Trial {
    pair: Pair,
    requester: Qpn,
    responder: Qpn,
    /// The time at which the trial began, in nanoseconds.
    start_ns: u64,
}

impl Trial {
    /// Connects the hosts. `fate` chooses the action for each packet.
    pub(super) fn new(settings: &Settings, fate: impl FnMut(&Sent) -> Action + 'static) -> Self {
        let mut pair = Pair::new(1);
        pair.record = true;
        let (requester, responder) = pair.connect_with(QpType::Rc, settings);
        pair.set_script(fate);
        let start_ns = pair.now.as_nanos();
        Self { pair, requester, responder, start_ns }
    }

    /// Posts a WRITE at the requester. Returns `None` if the engine refuses it.
    pub(super) fn write(&mut self, bytes: usize) -> Option<()> {
        let rkey = self.pair.host(Side::B).rkey();
        self.post(SendOp::Write { remote_addr: MEMORY_BASE, rkey }, bytes)
    }

    /// Posts a SEND at the requester. Returns `None` if the engine refuses it.
    pub(super) fn send(&mut self, bytes: usize) -> Option<()> {
        self.post(SendOp::Send, bytes)
    }

    fn post(&mut self, op: SendOp, bytes: usize) -> Option<()> {
        let source = self.pair.host(Side::A).memory_range(0, bytes);
        self.pair.post_send(Side::A, self.requester, &SendWr::new(1, op, &[source])).ok()
    }

    /// Posts a receive at the responder. Returns `None` if the engine refuses it.
    pub(super) fn receive(&mut self, bytes: usize) -> Option<()> {
        self.pair.post_recv(Side::B, self.responder, 1, 0, bytes).ok()
    }

    /// Runs for this time, or until both hosts are idle. Returns whether they are idle.
    pub(super) fn run(&mut self, most_us: u64) -> bool {
        let limit = self.pair.now.plus_nanos(most_us * 1000);
        self.pair.drive_until(limit)
    }

    /// Runs until the requester has a completion, and returns it. Returns `None` after this time.
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

    /// Removes and returns the completions of a side.
    pub(super) fn completions(&mut self, side: Side) -> Vec<Wc> {
        self.pair.completions(side)
    }

    /// Returns the packets that a side has sent so far.
    pub(super) fn sent(&self, side: Side) -> Vec<&Sent> {
        self.pair.sent.iter().filter(|sent| sent.from == side).collect()
    }

    /// Returns the time from the start until a packet was sent, in nanoseconds.
    pub(super) fn sent_ns(&self, sent: &Sent) -> u64 {
        sent.at.as_nanos() - self.start_ns
    }

    /// Returns the one-way delay of the link in nanoseconds.
    pub(super) fn link_ns(&self) -> u64 {
        self.pair.link_delay_ns
    }

    /// Returns the packets as lines of text, at most [`MOST_LINES`].
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        for sent in self.pair.sent.iter().take(MOST_LINES) {
            let us = self.sent_ns(sent) as f64 / 1000.0;
            let direction = if sent.from == Side::A { "A to B" } else { "B to A" };
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

/// Delivers every packet.
pub(super) fn deliver(_: &Sent) -> Action {
    Action::Pass
}

/// Maximum number of packets in [`Trial::lines`].
const MOST_LINES: usize = 24;
