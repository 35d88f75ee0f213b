//! The counters of a connection manager.

/// Counters of connection management: 64 bits, starting at zero, never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmCounters {
    /// Valid messages received.
    pub received: u64,
    /// Datagrams for queue pair 1 that are not connection management messages.
    pub malformed: u64,
    /// Messages queued for sending, including repeated ones.
    pub sent: u64,
    /// Messages sent again because the answer did not arrive or a duplicate arrived.
    pub repeated: u64,
    /// Messages and calls that have no effect in the current state of the connection.
    pub unexpected: u64,
    /// Messages for connections that do not exist, or from a host that is not the peer.
    pub unknown: u64,
    /// Requests refused because a table was full.
    pub refused_full: u64,
    /// Requests for a service without a listener, or of a kind that its listener does not accept.
    pub refused_service: u64,
    /// Requests whose queue pair is still connected according to the records of this end.
    pub stale: u64,
    /// Messages not sent because the send queue was full.
    pub dropped_queue_full: u64,
    /// Messages not sent to an address that has not answered and has used up three messages per request.
    pub withheld: u64,
    /// Connections established, by either side.
    pub established: u64,
    /// Exchanges that ended because the peer did not answer.
    pub timed_out: u64,
}

impl CmCounters {
    /// Calls `visit` with each name and value.
    pub fn visit(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("cm_received", self.received);
        visit("cm_malformed", self.malformed);
        visit("cm_sent", self.sent);
        visit("cm_repeated", self.repeated);
        visit("cm_unexpected", self.unexpected);
        visit("cm_unknown", self.unknown);
        visit("cm_refused_full", self.refused_full);
        visit("cm_refused_service", self.refused_service);
        visit("cm_stale", self.stale);
        visit("cm_dropped_queue_full", self.dropped_queue_full);
        visit("cm_withheld", self.withheld);
        visit("cm_established", self.established);
        visit("cm_timed_out", self.timed_out);
    }
}
