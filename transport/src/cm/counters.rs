//! What a connection manager counts.

/// Counters of connection management: 64 bits, from zero, never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmCounters {
    /// Messages that arrived and were understood.
    pub received: u64,
    /// Datagrams for queue pair 1 that are not messages of connection management.
    pub malformed: u64,
    /// Messages handed out for sending, repeated ones included.
    pub sent: u64,
    /// Messages sent again, because the answer did not come or because a duplicate arrived.
    pub repeated: u64,
    /// Messages and calls that change nothing in the state that the connection is in.
    pub unexpected: u64,
    /// Messages about connections that do not exist, or from another host than the peer.
    pub unknown: u64,
    /// Requests refused because a table was full.
    pub refused_full: u64,
    /// Requests for a service without listener, or whose listener takes only the other kind of request.
    pub refused_service: u64,
    /// Requests whose queue pair is still connected in the records of this end.
    pub stale: u64,
    /// Messages not sent because too many waited.
    pub dropped_queue_full: u64,
    /// Messages not sent because their address has not answered, and three have gone there for each request from it.
    pub withheld: u64,
    /// Connections established, by either side.
    pub established: u64,
    /// Exchanges that ended because the peer did not answer.
    pub timed_out: u64,
}

impl CmCounters {
    /// Calls `visit` with every name and value.
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
