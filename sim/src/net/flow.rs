//! Flows and their results.

use roce_packet::{Psn, Qpn};
use roce_transport::{Counters, RKey, WcStatus};

use super::settings::{FlowOperation, HostSettings};
use super::time::Time;
use super::workload::FlowSpec;

/// The state of a flow during a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) spec: FlowSpec,
    pub(super) state: FlowState,
    /// Queue pairs at both ends, which exist while the flow runs.
    pub(super) source_qpn: Qpn,
    pub(super) destination_qpn: Qpn,
    /// The host that posts the requests, by its number in its part of the network.
    pub(super) requester: u32,
    /// The key of the region of the end that does not post the requests, valid while the flow runs.
    pub(super) rkey: RKey,
    /// Whether the queue pairs are connected and in use.
    pub(super) connected: bool,
    /// Whether the flow consists of the transfers of tasks, which may have to wait.
    pub(super) scheduled: bool,
    /// Requests that are posted and not complete.
    pub(super) outstanding: u32,
    pub(super) posted: u64,
    pub(super) completed: u64,
    pub(super) end: Time,
    /// The counters of the queue pairs, read when the flow ends.
    pub(super) counts: FlowCounts,
    /// Bytes sent up to the last sample, without retransmissions.
    pub(super) sampled: u64,
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowState {
    /// The start time has not come, or a dependency is not complete.
    Waiting,
    /// The flow is running.
    Running,
    /// The flow is complete: the last acknowledgement has arrived.
    Complete,
    /// A queue pair of the flow failed with this status.
    Failed(WcStatus),
    /// The flow could not start or continue.
    Refused(Refusal),
}

/// The reason why a flow could not start or continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No path leads from the sender to the receiver.
    NoPath,
    /// A host has no room for another queue pair.
    NoQueuePair,
    /// A queue pair rejected a request.
    NotPosted,
}

impl FlowState {
    /// Returns the name of the state in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed(status) => status.name(),
            Self::Refused(_) => "refused",
        }
    }

    /// Returns why the flow failed: the status of its queue pair, or the reason of the refusal. `None` if it
    /// did not fail.
    #[must_use]
    pub const fn failure(self) -> Option<&'static str> {
        match self {
            Self::Waiting | Self::Running | Self::Complete => None,
            Self::Failed(status) => Some(status.name()),
            Self::Refused(Refusal::NoPath) => Some("no path"),
            Self::Refused(Refusal::NoQueuePair) => Some("no room for a queue pair"),
            Self::Refused(Refusal::NotPosted) => Some("its request was refused"),
        }
    }
}

/// The counters of the queue pairs of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Datagrams that the sender sent.
    pub packets: u64,
    /// Retransmitted datagrams, included in `packets`. For READs: datagrams in excess of the number required
    /// for the posted bytes.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Datagrams that arrived with a congestion mark.
    pub marked: u64,
    /// CNPs that the receiver sent.
    pub cnps_sent: u64,
    /// CNPs that reached the congestion control of the sender.
    pub cnps_handled: u64,
    /// Datagrams that arrived before an earlier one. For READs: responses that revealed the loss of an
    /// earlier one.
    pub out_of_sequence: u64,
    /// Payload bytes that the receiver has, without gaps and duplicates.
    pub delivered: u64,
}

impl Flow {
    pub(super) fn new(spec: FlowSpec) -> Self {
        Self {
            spec,
            state: FlowState::Waiting,
            source_qpn: Qpn::new(0),
            destination_qpn: Qpn::new(0),
            requester: 0,
            rkey: RKey(0),
            connected: false,
            scheduled: false,
            outstanding: 0,
            posted: 0,
            completed: 0,
            end: Time::NEVER,
            counts: FlowCounts::default(),
            sampled: 0,
        }
    }

    pub(super) fn result(&self, ideal: Option<Time>) -> FlowResult {
        let time = (self.state == FlowState::Complete).then(|| self.end.since(self.spec.start));
        FlowResult {
            spec: self.spec,
            state: self.state,
            completion_time: time,
            ideal,
            counts: self.counts,
            queue_pairs: [self.source_qpn, self.destination_qpn],
        }
    }

    /// Returns host and queue pair of the requester, and those of the responder.
    pub(super) fn ends(&self, operation: FlowOperation) -> [(u32, Qpn); 2] {
        operation.order([(self.spec.source, self.source_qpn), (self.spec.destination, self.destination_qpn)])
    }

    /// Returns the counts of a flow whose receiver reads. `unanswered` is the PSN of the oldest packet
    /// without an answer.
    pub(super) fn counts_of_reads(
        &self,
        sent: &Counters,
        received: &Counters,
        unanswered: Psn,
        host: &HostSettings,
    ) -> FlowCounts {
        let packets = |bytes: u64| host.packets_of(bytes);
        let mtu = host.path_mtu.bytes() as u64;
        // Fewer than half of all PSNs are without an answer.
        let more = unanswered.get().wrapping_sub(packets(self.completed) as u32) & Psn::MASK;
        let delivered = (self.completed + u64::from(more) * mtu).min(self.spec.bytes);
        FlowCounts {
            packets: sent.rdma_tx_packets,
            // The responder does not know why a request is repeated.
            retransmitted: sent.rdma_tx_packets.saturating_sub(packets(self.posted)),
            timeouts: received.local_ack_timeout_err,
            marked: received.np_ecn_marked_roce_packets,
            cnps_sent: received.np_cnp_sent,
            cnps_handled: sent.rp_cnp_handled,
            out_of_sequence: received.implied_nak_seq_err,
            delivered,
        }
    }

    /// Returns the number of payload bytes that the receiver has. The receiver expects the PSN `expected`
    /// next. The sender has sent `sent` packets for the first time, and fewer than half of all PSNs are
    /// unacknowledged.
    pub(super) fn delivered(&self, sent: u64, expected: Psn, host: &HostSettings) -> u64 {
        let missing = (sent as u32).wrapping_sub(expected.get()) & Psn::MASK;
        let packets = sent.saturating_sub(missing.into());
        let mtu = host.path_mtu.bytes() as u64;
        let packets_of_message = host.message_bytes.div_ceil(mtu);
        let whole = packets / packets_of_message;
        let rest = (packets % packets_of_message * mtu).min(host.message_bytes);
        (whole * host.message_bytes + rest).min(self.spec.bytes)
    }
}

/// The result of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowResult {
    /// The flow as specified. For a flow that waited for others, the start is the time of its first post.
    pub spec: FlowSpec,
    /// The state at the end.
    pub state: FlowState,
    /// The time from the start to the last acknowledgement, if the flow is complete.
    pub completion_time: Option<Time>,
    /// The completion time of this flow alone in the network, over its fastest path. Every packet is stored
    /// and forwarded; window, congestion control and the number of outstanding requests delay none. `None` if
    /// there is no path, or for a flow of several scheduled transfers, which wait for others.
    pub ideal: Option<Time>,
    /// The counters of the queue pairs.
    pub counts: FlowCounts,
    /// The queue pairs of source and destination; 0 if the flow did not start.
    pub queue_pairs: [Qpn; 2],
}

impl FlowResult {
    /// Returns the completion time relative to the [`ideal`](Self::ideal) one, if the flow is complete.
    #[must_use]
    pub fn slowdown(&self) -> Option<f64> {
        let (time, ideal) = (self.completion_time?, self.ideal?);
        (ideal > Time::ZERO).then(|| time.as_ps() as f64 / ideal.as_ps() as f64)
    }

    /// Returns the payload bits per second from the start to the end, or 0 if the flow is not complete.
    #[must_use]
    pub fn goodput_bps(&self) -> f64 {
        match self.completion_time {
            Some(time) if time > Time::ZERO => self.spec.bytes as f64 * 8.0 / time.as_secs_f64(),
            _ => 0.0,
        }
    }
}
