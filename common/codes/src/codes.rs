//! Numbers and names of errors that programs print: the status of a completion, the vendor error of this
//! library, and the numbers of mlx5 with a public source.

use roce_transport::{Cause, WcStatus};

use super::likely::{CHECKS, Check, Likely, check};

/// The list to which a number belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodeKind {
    /// `ibv_wc.status`, of any vendor.
    Status,
    /// `ibv_wc.vendor_err` of this library: the number of a [`Cause`].
    Vendor,
    /// `ibv_wc.vendor_err` of mlx5.
    Mlx5Vendor,
    /// The syndrome of a completion of mlx5, which UCX and the kernel print as `synd`.
    Mlx5Syndrome,
}

impl CodeKind {
    /// Returns the name of the list.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Status => "status of a work completion",
            Self::Vendor => "vendor_err of roce",
            Self::Mlx5Vendor => "vendor_err of mlx5 (ConnectX)",
            Self::Mlx5Syndrome => "CQE syndrome of mlx5 (ConnectX)",
        }
    }
}

/// An error number with its explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorCode {
    /// The list to which the number belongs.
    pub kind: CodeKind,
    /// The number.
    pub number: u32,
    /// The name of the number in its list.
    pub name: String,
    /// The status of a completion with this number.
    pub status: WcStatus,
    /// What happened.
    pub meaning: &'static str,
    /// Where the meaning of the number is published.
    pub source: &'static str,
    /// Likely causes, the most likely one first.
    pub likely: Vec<Likely>,
}

/// Returns every known number, list by list.
#[must_use]
pub fn codes() -> Vec<ErrorCode> {
    let statuses = WcStatus::ALL.into_iter().map(of_status);
    let vendor = CHECKS.iter().map(of_check);
    let mlx5 = [(CodeKind::Mlx5Vendor, MLX5_VENDOR), (CodeKind::Mlx5Syndrome, MLX5_SYNDROMES)];
    let mlx5 = mlx5.into_iter().flat_map(|(kind, rows)| rows.iter().map(move |row| of_mlx5(kind, row)));
    statuses.chain(vendor).chain(mlx5).collect()
}

/// Returns the explanations of a number or name as programs print it. A decimal number below 24 is a status
/// first; other numbers are vendor errors. One number may be in several lists.
///
/// ```
/// use roce_codes::{CodeKind, look_up};
/// use roce_transport::WcStatus;
///
/// for text in ["12", "IBV_WC_RETRY_EXC_ERR", "retry_exc_err"] {
///     let code = &look_up(text)[0];
///     assert_eq!((code.kind, code.status), (CodeKind::Status, WcStatus::RetryExceededError));
/// }
/// assert_eq!(look_up("129")[0].kind, CodeKind::Mlx5Vendor);
/// assert_eq!(look_up("0x81"), look_up("129"));
/// assert!(look_up("nothing").is_empty());
/// ```
#[must_use]
pub fn look_up(text: &str) -> Vec<ErrorCode> {
    let text = text.trim();
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = match hexadecimal {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let Some(number) = number else { return by_name(text) };
    let is_wanted =
        |code: &ErrorCode| code.number == number && (hexadecimal.is_none() || code.kind != CodeKind::Status);
    codes().into_iter().filter(is_wanted).collect()
}

/// Returns the explanations of a name: that of a status with or without a prefix, or that of a cause.
fn by_name(text: &str) -> Vec<ErrorCode> {
    let plain = |text: &str| text.to_ascii_uppercase().replace('-', "_");
    let wanted = plain(text);
    let wanted = wanted.strip_prefix("IBV_WC_").or_else(|| wanted.strip_prefix("IB_WC_")).unwrap_or(&wanted);
    let is_wanted = |code: &ErrorCode| {
        matches!(code.kind, CodeKind::Status | CodeKind::Vendor) && plain(&code.name) == wanted
    };
    codes().into_iter().filter(is_wanted).collect()
}

fn of_status(status: WcStatus) -> ErrorCode {
    ErrorCode {
        kind: CodeKind::Status,
        number: u32::from(status as u8),
        name: status.name().to_owned(),
        status,
        meaning: meaning_of_status(status),
        source: "libibverbs, enum ibv_wc_status",
        likely: likely_of_status(status),
    }
}

fn of_check(check: &Check) -> ErrorCode {
    ErrorCode {
        kind: CodeKind::Vendor,
        number: check.cause as u32,
        name: format!("{:?}", check.cause),
        status: check.status,
        meaning: check.meaning,
        source: "roce, enum Cause",
        likely: check.likely.to_vec(),
    }
}

fn of_mlx5(kind: CodeKind, row: &Mlx5) -> ErrorCode {
    let Mlx5 { number, status, source } = *row;
    let (name, meaning, likely) =
        (status.name().to_owned(), meaning_of_status(status), likely_of_status(status));
    ErrorCode { kind, number, name, status, meaning, source, likely }
}

/// Returns the causes of this library that lead to a status, the most frequent one first.
const fn causes_of(status: WcStatus) -> &'static [Cause] {
    match status {
        WcStatus::LocalLengthError => &[Cause::MessageTooLong],
        WcStatus::LocalQpOperationError => &[Cause::LocalInvalidate],
        WcStatus::LocalProtectionError => &[
            Cause::LocalKeyUnknown,
            Cause::LocalKeyRange,
            Cause::LocalKeyPermission,
            Cause::LocalKeyWrongDomain,
        ],
        WcStatus::WrFlushError => &[Cause::Flushed],
        WcStatus::MemoryWindowBindError => &[Cause::WindowBind],
        WcStatus::BadResponseError => &[Cause::ResponseLength, Cause::UnexpectedResponse],
        WcStatus::LocalAccessError => &[Cause::RemoteAccessRefused],
        WcStatus::RemoteInvalidRequestError => &[Cause::NakInvalidRequest],
        WcStatus::RemoteAccessError => &[Cause::NakRemoteAccess],
        WcStatus::RemoteOperationError => &[Cause::NakRemoteOperational],
        WcStatus::RetryExceededError => &[Cause::AckTimeout, Cause::SequenceRetries],
        WcStatus::ResponseTimeoutError => &[Cause::AckTimeout],
        WcStatus::RnrRetryExceededError => &[Cause::RnrRetries],
        WcStatus::GeneralError | WcStatus::FatalError => &[Cause::CompletionQueueOverflow],
        WcStatus::Success
        | WcStatus::LocalEecOperationError
        | WcStatus::LocalRddViolationError
        | WcStatus::RemoteInvalidRdRequestError
        | WcStatus::RemoteAbortedError
        | WcStatus::InvalidEecNumberError
        | WcStatus::InvalidEecStateError
        | WcStatus::TagMatchingError
        | WcStatus::TagMatchingRendezvousIncomplete => &[],
    }
}

/// Returns the likely causes of a status, without repetitions.
fn likely_of_status(status: WcStatus) -> Vec<Likely> {
    let mut all: Vec<Likely> = Vec::new();
    for likely in causes_of(status).iter().filter_map(|cause| check(*cause)).flat_map(|check| check.likely) {
        if !all.contains(likely) {
            all.push(*likely);
        }
    }
    all
}

/// Returns the meaning of a status, on hardware and here.
const fn meaning_of_status(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "the request succeeded",
        WcStatus::LocalLengthError => "a message was longer than its receive, or than the device supports",
        WcStatus::LocalQpOperationError => {
            "the work request is inconsistent, or a local operation was refused"
        }
        WcStatus::LocalProtectionError => "a local key, range or right of the request is wrong",
        WcStatus::WrFlushError => {
            "the request was not carried out, because the queue pair is in the error state"
        }
        WcStatus::MemoryWindowBindError => "a memory window could not be bound",
        WcStatus::BadResponseError => "the response of the peer does not match its request",
        WcStatus::LocalAccessError => "memory of this side refused an access of the peer",
        WcStatus::RemoteInvalidRequestError => "the peer refused the request as invalid",
        WcStatus::RemoteAccessError => "the peer refused the rkey, range or right of the request",
        WcStatus::RemoteOperationError => "the peer could not execute the request",
        WcStatus::RetryExceededError => "the peer did not acknowledge within all retries",
        WcStatus::RnrRetryExceededError => "the peer had no receive posted within all retries",
        WcStatus::RemoteAbortedError => "the peer gave up the operation",
        WcStatus::FatalError => "the device failed",
        WcStatus::ResponseTimeoutError => "no response arrived in time",
        WcStatus::GeneralError => "the transport failed in another way",
        WcStatus::TagMatchingError => "a tag of a shared receive queue did not match",
        WcStatus::TagMatchingRendezvousIncomplete => "a rendezvous with tag matching needs software",
        WcStatus::LocalEecOperationError
        | WcStatus::LocalRddViolationError
        | WcStatus::RemoteInvalidRdRequestError
        | WcStatus::InvalidEecNumberError
        | WcStatus::InvalidEecStateError => "an error of reliable datagrams, which no current device has",
    }
}

/// A number of mlx5 with its public source.
struct Mlx5 {
    number: u32,
    status: WcStatus,
    source: &'static str,
}

const fn mlx5(number: u32, status: WcStatus, source: &'static str) -> Mlx5 {
    Mlx5 { number, status, source }
}

/// The source of the syndromes.
const HEADER: &str = "rdma-core, providers/mlx5, MLX5_CQE_SYNDROME_*";

/// Vendor errors of mlx5 that public reports show together with their status. The vendor publishes no list.
const MLX5_VENDOR: &[Mlx5] = &[
    mlx5(0x32, WcStatus::LocalProtectionError, "Linux, commit messages of mlx5 (syndrome 0x4)"),
    mlx5(0x51, WcStatus::LocalProtectionError, "linux-rdma/perftest #173, NVIDIA/nccl #928"),
    mlx5(0x52, WcStatus::LocalProtectionError, "FDio/csit #3988"),
    mlx5(0x53, WcStatus::LocalProtectionError, "Juniper/warp17 #81 (dump of the CQE)"),
    mlx5(0x68, WcStatus::LocalQpOperationError, "Linux, commit messages of mlx5 (syndromes 0x1 and 0x2)"),
    mlx5(0x81, WcStatus::RetryExceededError, "openucx/ucx #2973, NVIDIA/nccl #1664"),
    mlx5(0x88, WcStatus::RemoteAccessError, "openucx/ucx #1569, spdk/spdk #964"),
    mlx5(0x8a, WcStatus::RemoteInvalidRequestError, "charmplusplus/charm #2532"),
    mlx5(0xf4, WcStatus::WrFlushError, "public logs of NCCL (error 5, vendor err 244)"),
    mlx5(0xf9, WcStatus::WrFlushError, "NVIDIA/nccl #1353, linux-nvme/nvme-cli #3268"),
];

/// Syndromes of completions of mlx5.
const MLX5_SYNDROMES: &[Mlx5] = &[
    mlx5(0x01, WcStatus::LocalLengthError, HEADER),
    mlx5(0x02, WcStatus::LocalQpOperationError, HEADER),
    mlx5(0x04, WcStatus::LocalProtectionError, HEADER),
    mlx5(0x05, WcStatus::WrFlushError, HEADER),
    mlx5(0x06, WcStatus::MemoryWindowBindError, HEADER),
    mlx5(0x10, WcStatus::BadResponseError, HEADER),
    mlx5(0x11, WcStatus::LocalAccessError, HEADER),
    mlx5(0x12, WcStatus::RemoteInvalidRequestError, HEADER),
    mlx5(0x13, WcStatus::RemoteAccessError, HEADER),
    mlx5(0x14, WcStatus::RemoteOperationError, HEADER),
    mlx5(0x15, WcStatus::RetryExceededError, HEADER),
    mlx5(0x16, WcStatus::RnrRetryExceededError, HEADER),
    mlx5(0x22, WcStatus::RemoteAbortedError, HEADER),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_is_in_its_list_once() {
        let mut seen = BTreeSet::new();
        for code in codes() {
            assert!(seen.insert((code.kind.name(), code.number)), "{code:?}");
            assert!(code.source.len() > 5 && code.meaning.len() > 10, "{code:?}");
        }
        let count = |kind| codes().iter().filter(|code| code.kind == kind).count();
        assert_eq!((count(CodeKind::Status), count(CodeKind::Vendor)), (24, Cause::ALL.len() - 1));
    }

    /// Numbers of both vendors never mean different things: those of mlx5 begin above ours.
    #[test]
    fn vendor_errors_of_roce_are_none_of_mlx5() {
        let largest =
            codes().iter().filter(|code| code.kind == CodeKind::Vendor).map(|code| code.number).max();
        assert!(MLX5_VENDOR.iter().all(|row| Some(row.number) > largest));
    }

    #[test]
    fn statuses_with_a_cause_have_a_next_step() {
        for check in CHECKS {
            assert!(!likely_of_status(check.status).is_empty(), "{:?}", check.status);
        }
        for code in codes().iter().filter(|code| code.kind == CodeKind::Mlx5Vendor) {
            assert!(!code.likely.is_empty(), "{code:?}");
        }
    }

    #[test]
    fn numbers_and_names_are_found_as_programs_print_them() {
        let kinds = |text: &str| look_up(text).iter().map(|code| code.kind).collect::<Vec<_>>();
        assert_eq!(kinds("12"), [CodeKind::Status, CodeKind::Vendor]);
        assert_eq!(kinds("0x13"), [CodeKind::Vendor, CodeKind::Mlx5Syndrome]);
        assert_eq!(kinds("AckTimeout"), [CodeKind::Vendor]);
        assert_eq!(kinds("wr-flush-err")[0], CodeKind::Status);
        assert!(kinds("0x7f").is_empty() && kinds("0xffffffffff").is_empty() && kinds("").is_empty());
    }
}
