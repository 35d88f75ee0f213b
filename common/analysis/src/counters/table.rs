//! The names of counters by driver.
//!
//! The names are those of the kernel's drivers. `docs/reference/counters.md` lists those of this program.

use super::event::Event;

/// A driver of RoCE NICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// ConnectX and BlueField of NVIDIA: `mlx5_ib`, and `mlx5_core` for `ethtool -S`.
    Mlx5,
    /// NetXtreme of Broadcom: `bnxt_re`, and `bnxt_en` for `ethtool -S`.
    BnxtRe,
    /// E810 and later of Intel: `irdma`, and `ice` for `ethtool -S`.
    Irdma,
    /// The kernel's Soft-RoCE.
    Rxe,
    /// This program.
    Roce,
}

impl Driver {
    /// All drivers.
    pub const ALL: &[Self] = &[Self::Mlx5, Self::BnxtRe, Self::Irdma, Self::Rxe, Self::Roce];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlx5 => "mlx5",
            Self::BnxtRe => "bnxt_re",
            Self::Irdma => "irdma",
            Self::Rxe => "rxe",
            Self::Roce => "roce",
        }
    }

    /// Returns the driver that has these counters, or that names devices like this.
    pub(super) fn of(device: &str, counters: &[(String, u64)]) -> Option<Self> {
        let has = |name: &str| counters.iter().any(|(known, _)| known == name);
        let by_name = SIGNATURES.iter().find(|(_, names)| names.iter().any(|name| has(name)));
        let by_name = by_name.map(|(driver, _)| *driver);
        // Devices of every driver may have names like rocep65s0f0.
        let by_device = || Self::ALL.iter().find(|driver| device.starts_with(driver.name())).copied();
        by_name.or_else(|| by_device().filter(|driver| *driver != Self::Roce))
    }
}

/// Names that only one driver has. The first match decides.
const SIGNATURES: &[(Driver, &[&str])] = &[
    (Driver::Roce, &["rx_handled", "stale_responses", "retransmit_rounds", "drop_short"]),
    (Driver::BnxtRe, &["to_retransmits", "seq_err_naks_rcvd", "rx_cnp_pkts", "rx_fcs_err_frames"]),
    (
        Driver::Irdma,
        &["cnpSent", "cnpHandled", "RxECNMrkd", "InRdmaReads", "iwInRdmaReads", "rx_crc_errors.nic"],
    ),
    (Driver::Rxe, &["rcvd_pkts", "out_of_seq_request", "rcvd_seq_err"]),
    (
        Driver::Mlx5,
        &[
            "out_of_sequence",
            "np_cnp_sent",
            "roce_adp_retrans",
            "rx_discards_phy",
            "rx_vport_rdma_unicast_packets",
        ],
    ),
];

/// A counter of a driver.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// The driver.
    pub driver: Driver,
    /// Name of the counter; `#` stands for a number, such as that of a priority.
    pub name: &'static str,
    /// What it counts.
    pub event: Event,
    /// Number of bits in the NIC, after which the counter begins at zero again.
    pub bits: u32,
}

/// Returns the counter of a driver with this name. Without a driver, the name alone decides.
#[must_use]
pub fn find(driver: Option<Driver>, name: &str) -> Option<Counter> {
    let of =
        |driver: Driver| counters().find(|counter| counter.driver == driver && matches(counter.name, name));
    match driver {
        // Most counters of this program have the names of mlx5.
        Some(Driver::Roce) => {
            let found = of(Driver::Roce).or_else(|| of(Driver::Mlx5));
            let found = found.map(|found| Counter { driver: Driver::Roce, bits: 64, ..found });
            found.or_else(|| dropped(name))
        }
        Some(driver) => of(driver),
        None => Driver::ALL.iter().find_map(|driver| of(*driver)),
    }
}

/// This program has one counter for each reason of a drop.
fn dropped(name: &str) -> Option<Counter> {
    let event = Event::Dropped;
    name.starts_with("drop_").then_some(Counter {
        driver: Driver::Roce,
        name: "drop_REASON",
        event,
        bits: 64,
    })
}

/// Returns all counters.
pub fn counters() -> impl Iterator<Item = Counter> {
    COUNTERS.iter().flat_map(|(driver, bits, rows)| {
        let counter = |(name, event): &(&'static str, Event)| Counter {
            driver: *driver,
            name,
            event: *event,
            bits: *bits,
        };
        rows.iter().map(counter)
    })
}

/// Returns the place of a name in the table.
pub(super) fn rank(name: &str) -> usize {
    counters().position(|counter| matches(counter.name, name)).unwrap_or(usize::MAX)
}

/// Returns whether a name has the form of a pattern, in which `#` stands for one or more digits.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('#') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let number = rest.trim_start_matches(|sign: char| sign.is_ascii_digit());
            number.len() < rest.len() && matches(after, number)
        }),
    }
}

type Rows = &'static [(&'static str, Event)];

/// The counters by driver and number of bits.
const COUNTERS: &[(Driver, u32, Rows)] = &[
    (Driver::Mlx5, 32, MLX5_QUEUES),
    (Driver::Mlx5, 64, MLX5_PORT),
    (Driver::BnxtRe, 64, BNXT),
    (Driver::Irdma, 32, IRDMA_32),
    (Driver::Irdma, 64, IRDMA_64),
    (Driver::Rxe, 64, RXE),
    (Driver::Roce, 64, ROCE),
];

const MLX5_QUEUES: Rows = &[
    ("rx_write_requests", Event::WriteRequests),
    ("rx_read_requests", Event::ReadRequests),
    ("rx_atomic_requests", Event::AtomicRequests),
    ("out_of_buffer", Event::RnrNakSent),
    ("out_of_sequence", Event::OutOfSequence),
    ("duplicate_request", Event::DuplicateRequest),
    ("rnr_nak_retry_err", Event::RnrNakReceived),
    ("packet_seq_err", Event::NakSequenceReceived),
    ("implied_nak_seq_err", Event::ImpliedNak),
    ("local_ack_timeout_err", Event::Timeout),
    ("resp_local_length_error", Event::LocalError),
    ("resp_cqe_error", Event::LocalError),
    ("req_cqe_error", Event::LocalError),
    ("req_remote_invalid_request", Event::RemoteInvalid),
    ("req_remote_access_errors", Event::RemoteAccess),
    ("resp_remote_access_errors", Event::LocalAccess),
    ("req_transport_retries_exceeded", Event::RetriesExceeded),
    ("req_rnr_retries_exceeded", Event::RnrRetriesExceeded),
    ("roce_adp_retrans", Event::AdaptiveRetransmission),
    ("roce_adp_retrans_to", Event::Timeout),
    ("roce_slow_restart", Event::SlowRestart),
    ("roce_slow_restart_trans", Event::SlowRestart),
];

const MLX5_PORT: Rows = &[
    ("rx_icrc_encapsulated", Event::WrongIcrc),
    ("np_cnp_sent", Event::CnpSent),
    ("np_ecn_marked_roce_packets", Event::EcnMarked),
    ("rp_cnp_handled", Event::CnpHandled),
    ("rp_cnp_ignored", Event::CnpIgnored),
    ("cc_rx_ce_pkts", Event::EcnMarked),
    ("cc_rx_cnp_pkts", Event::CnpHandled),
    ("cc_tx_cnp_pkts", Event::CnpSent),
    ("rdma_tx_packets", Event::PacketsSent),
    ("rdma_rx_packets", Event::PacketsReceived),
    ("rdma_tx_bytes", Event::BytesSent),
    ("rdma_rx_bytes", Event::BytesReceived),
    ("port_xmit_packets", Event::PacketsSent),
    ("port_rcv_packets", Event::PacketsReceived),
    ("port_xmit_data", Event::WordsSent),
    ("port_rcv_data", Event::WordsReceived),
    ("port_rcv_errors", Event::Damaged),
    ("port_xmit_discards", Event::Discarded),
    ("link_downed", Event::LinkDown),
    ("symbol_error", Event::Damaged),
    ("lifespan", Event::Objects),
    ("rx_vport_rdma_unicast_packets", Event::PacketsReceived),
    ("tx_vport_rdma_unicast_packets", Event::PacketsSent),
    ("rx_vport_rdma_unicast_bytes", Event::BytesReceived),
    ("tx_vport_rdma_unicast_bytes", Event::BytesSent),
    ("rx_discards_phy", Event::Discarded),
    ("rx_prio#_discards", Event::Discarded),
    ("rx_out_of_buffer", Event::Discarded),
    ("rx_crc_errors_phy", Event::Damaged),
    ("rx_symbol_err_phy", Event::Damaged),
    ("rx_pcs_symbol_err_phy", Event::Damaged),
    ("link_down_events_phy", Event::LinkDown),
    ("rx_prio#_pause", Event::PauseReceived),
    ("tx_prio#_pause", Event::PauseSent),
    ("rx_global_pause", Event::PauseReceived),
    ("tx_global_pause", Event::PauseSent),
    ("rx_pause_ctrl_phy", Event::PauseReceived),
    ("tx_pause_ctrl_phy", Event::PauseSent),
];

const BNXT: Rows = &[
    ("to_retransmits", Event::Timeout),
    ("seq_err_naks_rcvd", Event::NakSequenceReceived),
    ("max_retry_exceeded", Event::RetriesExceeded),
    ("rnr_naks_rcvd", Event::RnrNakReceived),
    ("missing_resp", Event::ImpliedNak),
    ("dup_req", Event::DuplicateRequest),
    ("oos_drop_count", Event::OutOfSequence),
    ("rx_out_of_buffer", Event::RnrNakSent),
    ("remote_invalid_req_err", Event::RemoteInvalid),
    ("remote_access_err", Event::RemoteAccess),
    ("res_rx_invalid_rkey", Event::LocalAccess),
    ("res_rx_no_perm", Event::LocalAccess),
    ("res_rx_range_err", Event::LocalAccess),
    ("res_tx_invalid_rkey", Event::LocalAccess),
    ("res_tx_no_perm", Event::LocalAccess),
    ("res_tx_range_err", Event::LocalAccess),
    ("unrecoverable_err", Event::LocalError),
    ("local_qp_op_err", Event::LocalError),
    ("local_protection_err", Event::LocalError),
    ("bad_resp_err", Event::LocalError),
    ("tx_cnp_pkts", Event::CnpSent),
    ("rx_cnp_pkts", Event::CnpHandled),
    ("rx_ecn_marked_pkts", Event::EcnMarked),
    ("rx_roce_errors", Event::Dropped),
    ("rx_roce_discards", Event::Discarded),
    ("tx_roce_discards", Event::Discarded),
    ("tx_pkts", Event::PacketsSent),
    ("rx_pkts", Event::PacketsReceived),
    ("tx_bytes", Event::BytesSent),
    ("rx_bytes", Event::BytesReceived),
    ("rx_write_req", Event::WriteRequests),
    ("rx_read_req", Event::ReadRequests),
    ("rx_atomic_req", Event::AtomicRequests),
    ("active_qps", Event::Objects),
    ("active_rc_qps", Event::Objects),
    ("active_ud_qps", Event::Objects),
    ("active_cqs", Event::Objects),
    ("active_mrs", Event::Objects),
    ("active_pds", Event::Objects),
    ("active_ahs", Event::Objects),
    ("active_mws", Event::Objects),
    ("active_srqs", Event::Objects),
    ("db_fifo_register", Event::Objects),
    ("rx_fcs_err_frames", Event::Damaged),
    ("rx_pfc_ena_frames_pri#", Event::PauseReceived),
    ("tx_pfc_ena_frames_pri#", Event::PauseSent),
    ("rx_pause_frames", Event::PauseReceived),
    ("tx_pause_frames", Event::PauseSent),
];

const IRDMA_32: Rows =
    &[("cnpSent", Event::CnpSent), ("cnpHandled", Event::CnpHandled), ("cnpIgnored", Event::CnpIgnored)];

const IRDMA_64: Rows = &[
    ("RxECNMrkd", Event::EcnMarked),
    ("RxUDP", Event::PacketsReceived),
    ("TxUDP", Event::PacketsSent),
    ("InRdmaWrites", Event::WriteRequests),
    ("InRdmaReads", Event::ReadRequests),
    ("Rx atomics", Event::AtomicRequests),
    ("iwInRdmaWrites", Event::WriteRequests),
    ("iwInRdmaReads", Event::ReadRequests),
    ("RNR sent", Event::RnrNakSent),
    ("RNR received", Event::RnrNakReceived),
    ("Nak Sequence Error", Event::NakSequenceReceived),
    ("Nak Sequence Error Implied", Event::ImpliedNak),
    ("RTO", Event::Timeout),
    ("Rcvd Out of order packets", Event::OutOfSequence),
    ("CRC errors", Event::WrongIcrc),
    ("InProtoErrors", Event::Dropped),
    ("rx_crc_errors.nic", Event::Damaged),
    ("rx_priority_#_xoff.nic", Event::PauseReceived),
    ("tx_priority_#_xoff.nic", Event::PauseSent),
    ("rx_dropped.nic", Event::Discarded),
];

const RXE: Rows = &[
    ("sent_pkts", Event::PacketsSent),
    ("rcvd_pkts", Event::PacketsReceived),
    ("duplicate_request", Event::DuplicateRequest),
    ("out_of_seq_request", Event::OutOfSequence),
    ("rcvd_rnr_err", Event::RnrNakReceived),
    ("send_rnr_err", Event::RnrNakSent),
    ("rcvd_seq_err", Event::NakSequenceReceived),
    ("retry_exceeded_err", Event::RetriesExceeded),
    ("retry_rnr_exceeded_err", Event::RnrRetriesExceeded),
    ("completer_retry_err", Event::Retransmitted),
    ("send_err", Event::LocalError),
    ("link_downed", Event::LinkDown),
];

const ROCE: Rows = &[
    ("retransmitted_packets", Event::Retransmitted),
    ("retransmit_rounds", Event::Retransmitted),
    ("roce_adp_retrans", Event::AdaptiveRetransmission),
];
