//! Event counters. Names are those of the kernel's mlx5 driver if it has the counter.

use alloc::boxed::Box;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Event counts since the engine or the queue pair was created. 64 bits, never reset by reading.
        ///
        /// Each event is counted once for the device and, if it belongs to a queue pair, once for that queue
        /// pair. `docs/reference/counters.md` explains all counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// All names, in the order of [`Self::visit`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// Adds the counts of another engine, for a context with several.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// Calls `visit` with each name and value.
            pub fn visit(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit(stringify!($name), self.$name);)+
            }
        }
    };
}

counters! {
    /// WRITE requests accepted, counted at their first packet.
    rx_write_requests,
    /// READ requests accepted.
    rx_read_requests,
    /// COMPARE SWAP, FETCH ADD and ATOMIC WRITE requests accepted.
    rx_atomic_requests,
    /// Requests that needed a receive while none was posted.
    out_of_buffer,
    /// Request packets ahead of the expected PSN.
    out_of_sequence,
    /// Request packets whose PSN was already executed.
    duplicate_request,
    /// Retransmissions because of a NAK for a sequence error.
    packet_seq_err,
    /// Responses that proved the loss of an earlier READ or atomic response.
    implied_nak_seq_err,
    /// Retransmissions because of a report that a packet was trimmed, or of a trimmed READ response.
    packet_trimmed_err,
    /// Retransmissions because of a local ACK timeout.
    local_ack_timeout_err,
    /// Packets retransmitted early, before the local ACK timeout and without using up a retry.
    roce_adp_retrans,
    /// Pauses of retransmission timers because this process did not run.
    timer_pauses,
    /// Retransmissions because of an RNR NAK.
    rnr_nak_retry_err,
    /// Queue pairs that failed because `retry_cnt` was used up.
    req_transport_retries_exceeded,
    /// Queue pairs that failed because `rnr_retry` was used up.
    req_rnr_retries_exceeded,
    /// Send completions with an error.
    req_cqe_error,
    /// Flushed send completions, also counted in `req_cqe_error`.
    req_cqe_flush_error,
    /// Receive completions with an error.
    resp_cqe_error,
    /// Flushed receive completions, also counted in `resp_cqe_error`.
    resp_cqe_flush_error,
    /// NAKs received for a remote access error.
    req_remote_access_errors,
    /// NAKs received for an invalid request.
    req_remote_invalid_request,
    /// Requests refused because of their key, range or permission.
    resp_remote_access_errors,
    /// Messages that were longer than their receive.
    resp_local_length_error,
    /// RoCE packets received with the congestion-experienced mark.
    np_ecn_marked_roce_packets,
    /// CNPs sent.
    np_cnp_sent,
    /// Marked packets without a CNP of their own, because another CNP covers them.
    np_cnp_coalesced,
    /// Marks echoed in acknowledgements.
    np_marks_echoed,
    /// CNPs applied to a rate.
    rp_cnp_handled,
    /// CNPs received without a congestion control that uses them, or refused: for an unknown queue pair, or
    /// from an address that is not the peer's.
    rp_cnp_ignored,
    /// Rate reductions of queue pairs without congestion control after losses.
    loss_rate_cuts,
    /// Packets dropped because of a wrong ICRC.
    rx_icrc_encapsulated,
    /// Packets with in-band telemetry while it is off on this side, also counted in `rx_icrc_encapsulated`.
    rx_telemetry_refused,
    /// Packets sent.
    rdma_tx_packets,
    /// Bytes sent, BTH to ICRC.
    rdma_tx_bytes,
    /// Packets passed to the engine.
    rdma_rx_packets,
    /// Bytes passed to the engine, BTH to ICRC.
    rdma_rx_bytes,
    /// Received packets whose payload a switch had removed, also counted in `rdma_rx_packets`.
    rx_trimmed,
    /// Received packets that were handled instead of dropped.
    rx_handled,
    /// Retransmitted request and READ response packets.
    retransmitted_packets,
    /// Retransmitted bytes, BTH to ICRC.
    retransmitted_bytes,
    /// Acknowledgements that a later acknowledgement covered.
    acks_coalesced,
    /// Acknowledgements and READ responses for packets that had already been answered.
    stale_responses,
    /// Retransmissions whose original had arrived.
    spurious_retransmits,
    /// Retransmission rounds: each go-back to an earlier PSN, whatever its reason.
    retransmit_rounds,
    /// Dropped: shorter than required by headers, padding and ICRC.
    drop_short,
    /// Dropped: the opcode does not allow the length or pad count.
    drop_bad_length,
    /// Dropped: the transport version is not 0.
    drop_bad_version,
    /// Dropped: the opcode does not exist.
    drop_unknown_opcode,
    /// Dropped: the packet does not parse for another reason.
    drop_malformed,
    /// Dropped: the queue pair does not exist.
    drop_unknown_qpn,
    /// Dropped: the opcode belongs to another transport, or this side never receives it.
    drop_bad_opcode_for_qp,
    /// Dropped: the queue pair is in a state that does not receive.
    drop_bad_state,
    /// Dropped: the partition key does not match.
    drop_bad_pkey,
    /// Dropped: the Q_Key does not match (UD).
    drop_bad_qkey,
    /// Dropped: the addresses are not those of the connection.
    drop_bad_address,
    /// Dropped: the request is ahead of the expected PSN, and a NAK for the gap was already sent.
    drop_out_of_sequence,
    /// Dropped: the duplicate READ or atomic requests other data, or its answer is no longer stored.
    drop_duplicate_unanswerable,
    /// Dropped: the acknowledgement or response is for a PSN that was never sent.
    drop_unsent_psn,
    /// Dropped: the response was already handled.
    drop_stale_response,
    /// Dropped: the response follows a lost one; the retransmission is in progress.
    drop_response_gap,
    /// Dropped: the acknowledgement has a reserved syndrome.
    drop_reserved_syndrome,
    /// Dropped: no receive was posted (UC, UD).
    drop_no_receive,
    /// Dropped: the message is longer than its receive (UC, UD).
    drop_receive_too_small,
    /// Dropped: the key, range or permission is wrong (UC).
    drop_access,
    /// Dropped: the packet belongs to a message whose beginning was lost (UC).
    drop_incomplete_message,
    /// Dropped: the packet was duplicated or overtaken in the network (UC).
    drop_late_packet,
    /// Dropped: a switch trimmed the packet, and no retransmission is needed.
    drop_trimmed,
    /// Dropped: no queue pair of this engine joined the multicast group.
    drop_no_multicast_member,
}

/// Counts an event for the device and for the queue pair.
macro_rules! count {
    ($shared:expr, $own:expr, $name:ident) => {
        $crate::counters::count!($shared, $own, $name, 1)
    };
    ($shared:expr, $own:expr, $name:ident, $by:expr) => {{
        let by: u64 = $by;
        $shared.counters.$name = $shared.counters.$name.wrapping_add(by);
        let own: &mut u64 = $crate::counters::of_queue_pair!($own.counters, $name);
        *own = own.wrapping_add(by);
    }};
}
pub(crate) use count;

/// Defines the counters of a queue pair from the names of its fields. `$d` stands for the dollar sign of the
/// macro that it defines as well.
macro_rules! qp_counters {
    ($d:tt $($name:ident),+) => {
        /// The counters of one queue pair. All of them would be a quarter of its memory, and most stay zero,
        /// so only the most frequent ones have a place from the beginning.
        #[derive(Debug, Default)]
        pub(crate) struct QpCounters {
            $(pub(crate) $name: u64,)+
            /// Those that have no field here.
            others: Option<Box<Counters>>,
        }

        impl QpCounters {
            /// Returns the counters that have no field here. The first call allocates them.
            pub(crate) fn others(&mut self) -> &mut Counters {
                self.others.get_or_insert_default()
            }

            /// Returns all counters.
            pub(crate) fn all(&self) -> Counters {
                let others = self.others.as_deref().copied().unwrap_or_default();
                Counters { $($name: self.$name,)+ ..others }
            }
        }

        /// Returns a counter of [`QpCounters`]: a field, or one of the others.
        macro_rules! of_queue_pair {
            $(($d counters:expr, $name) => { &mut $d counters.$name };)+
            ($d counters:expr, $d name:ident) => { &mut $d counters.others().$d name };
        }
        pub(crate) use of_queue_pair;
    };
}

qp_counters!($ rdma_tx_packets, rdma_tx_bytes, rdma_rx_packets, rdma_rx_bytes, rx_handled, rx_write_requests,
    acks_coalesced);

impl Counters {
    /// Returns the number of expired retransmission timers: early ones and local ACK timeouts.
    #[must_use]
    pub fn expired_timers(&self) -> u64 {
        self.roce_adp_retrans + self.local_ack_timeout_err
    }

    /// Returns the number of all dropped packets, whatever the reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let mut sum = self.rx_icrc_encapsulated;
        self.visit(&mut |name, value| {
            if name.starts_with("drop_") {
                sum = sum.wrapping_add(value);
            }
        });
        sum
    }
}
