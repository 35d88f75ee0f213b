//! What happened, counted. Names follow the kernel's mlx5 driver where it has one.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Event counts since the engine or the queue pair was made. 64-bit, never reset by reading.
        ///
        /// Each event is counted once for the device and, where it belongs to one, once for its queue
        /// pair. `docs/counters.md` explains each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// All names, in the order of [`Self::visit`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// Adds the counts of another engine, for what has several.
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
    /// Request packets whose PSN was executed before.
    duplicate_request,
    /// NAKs for a sequence error that were answered by a retransmission.
    packet_seq_err,
    /// Responses that showed that an earlier READ or atomic response was lost.
    implied_nak_seq_err,
    /// Reports that a packet was trimmed, and trimmed READ responses, that were answered by a retransmission.
    packet_trimmed_err,
    /// Local ACK timeouts that were answered by a retransmission.
    local_ack_timeout_err,
    /// Packets that were sent again early, before the local ACK timeout and without using up a retry.
    roce_adp_retrans,
    /// Times that timers of retransmission stood still, because this process did not run.
    timer_pauses,
    /// RNR NAKs that were answered by a later retransmission.
    rnr_nak_retry_err,
    /// Queue pairs that failed because `retry_cnt` was used up.
    req_transport_retries_exceeded,
    /// Queue pairs that failed because `rnr_retry` was used up.
    req_rnr_retries_exceeded,
    /// Send completions with an error.
    req_cqe_error,
    /// Of those, flushed ones.
    req_cqe_flush_error,
    /// Receive completions with an error.
    resp_cqe_error,
    /// Of those, flushed ones.
    resp_cqe_flush_error,
    /// NAKs received for a remote access error.
    req_remote_access_errors,
    /// NAKs received for an invalid request.
    req_remote_invalid_request,
    /// Requests refused for their key, range or permission.
    resp_remote_access_errors,
    /// Messages longer than the receive they landed in.
    resp_local_length_error,
    /// RoCE packets received with the congestion-experienced mark.
    np_ecn_marked_roce_packets,
    /// CNPs sent.
    np_cnp_sent,
    /// Marked packets that led to no CNP of their own, because another one stood for them.
    np_cnp_coalesced,
    /// Marks echoed in acknowledgements.
    np_marks_echoed,
    /// CNPs applied to a rate.
    rp_cnp_handled,
    /// CNPs received without a congestion control to apply them to, or that were refused: for an unknown queue
    /// pair, from another address than its peer's.
    rp_cnp_ignored,
    /// Losses after which a queue pair without congestion control was slowed down.
    loss_rate_cuts,
    /// Packets dropped for a wrong ICRC.
    rx_icrc_encapsulated,
    /// Of those, packets with in-band telemetry behind the ICRC, which is off on this side.
    rx_telemetry_refused,
    /// Packets sent.
    rdma_tx_packets,
    /// Bytes sent, BTH to ICRC.
    rdma_tx_bytes,
    /// Packets handed to the engine.
    rdma_rx_packets,
    /// Bytes handed to the engine, BTH to ICRC.
    rdma_rx_bytes,
    /// Of those, packets whose payload a switch had cut away.
    rx_trimmed,
    /// Packets that an engine worked on: all received ones but the dropped.
    rx_handled,
    /// Request and READ response packets sent again.
    retransmitted_packets,
    /// Payload bytes sent again.
    retransmitted_bytes,
    /// Acknowledgements that one later acknowledgement stood for.
    acks_coalesced,
    /// Acknowledgements and READ responses for what had been answered already.
    stale_responses,
    /// Retransmissions whose original turned out to have arrived.
    spurious_retransmits,
    /// Retransmission rounds: each go-back to an earlier PSN, whatever its reason.
    retransmit_rounds,
    /// Dropped: shorter than its headers, pad and ICRC say.
    drop_short,
    /// Dropped: a length or pad count that the opcode does not allow.
    drop_bad_length,
    /// Dropped: a transport version other than 0.
    drop_bad_version,
    /// Dropped: an opcode that does not exist.
    drop_unknown_opcode,
    /// Dropped: anything else that does not parse.
    drop_malformed,
    /// Dropped: no such queue pair.
    drop_unknown_qpn,
    /// Dropped: an opcode of another transport, or of the side that this queue pair does not play.
    drop_bad_opcode_for_qp,
    /// Dropped: a state that receives nothing.
    drop_bad_state,
    /// Dropped: a partition key that does not match.
    drop_bad_pkey,
    /// Dropped: a Q_Key that does not match (UD).
    drop_bad_qkey,
    /// Dropped: addresses other than those of the connection.
    drop_bad_address,
    /// Dropped: the request is ahead of the expected PSN, and a NAK for the gap is out already.
    drop_out_of_sequence,
    /// Dropped: a duplicate READ or atomic whose answer is no longer kept, or that asks for something else.
    drop_duplicate_unanswerable,
    /// Dropped: an acknowledgement or response for something never sent.
    drop_unsent_psn,
    /// Dropped: a response that repeats one handled before.
    drop_stale_response,
    /// Dropped: a response behind a lost one; the retransmission is under way.
    drop_response_gap,
    /// Dropped: an acknowledgement with a reserved syndrome.
    drop_reserved_syndrome,
    /// Dropped: no receive was posted (UC, UD).
    drop_no_receive,
    /// Dropped: longer than the receive that was posted (UC, UD).
    drop_receive_too_small,
    /// Dropped: a key, range or permission was wrong (UC).
    drop_access,
    /// Dropped: part of a message whose beginning was lost (UC).
    drop_incomplete_message,
    /// Dropped: doubled or overtaken on the way (UC).
    drop_late_packet,
    /// Dropped: a switch cut its payload away, and nothing is to be asked for.
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
        $own.counters.$name = $own.counters.$name.wrapping_add(by);
    }};
}
pub(crate) use count;

impl Counters {
    /// Expired timers of retransmission: early ones and local ACK timeouts.
    #[must_use]
    pub fn expired_timers(&self) -> u64 {
        self.roce_adp_retrans + self.local_ack_timeout_err
    }

    /// All packets that were dropped, whatever the reason.
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
