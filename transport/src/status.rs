//! The status of a completion, and the cause of an error.

/// The result of a work request. The numbers are those of libibverbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// The request succeeded.
    #[default]
    Success = 0,
    /// The message was longer than its buffer.
    LocalLengthError = 1,
    /// The work request was malformed.
    LocalQpOperationError = 2,
    /// RD only.
    LocalEecOperationError = 3,
    /// A local key, range or permission was wrong.
    LocalProtectionError = 4,
    /// An earlier request failed, or the queue pair was in the error state.
    WrFlushError = 5,
    /// A memory window could not be bound.
    MemoryWindowBindError = 6,
    /// The response did not match its request.
    BadResponseError = 7,
    /// The peer's access to local memory was refused while this receive was in use.
    LocalAccessError = 8,
    /// The peer refused the request as invalid.
    RemoteInvalidRequestError = 9,
    /// The peer refused the key, range or permission.
    RemoteAccessError = 10,
    /// The peer could not execute the request.
    RemoteOperationError = 11,
    /// The peer did not answer within all retries.
    RetryExceededError = 12,
    /// The peer had no receive posted within all retries.
    RnrRetryExceededError = 13,
    /// RD only.
    LocalRddViolationError = 14,
    /// RD only.
    RemoteInvalidRdRequestError = 15,
    /// The peer aborted the operation.
    RemoteAbortedError = 16,
    /// RD only.
    InvalidEecNumberError = 17,
    /// RD only.
    InvalidEecStateError = 18,
    /// The device failed.
    FatalError = 19,
    /// No response arrived in time.
    ResponseTimeoutError = 20,
    /// Any other error.
    GeneralError = 21,
    /// Tag matching only.
    TagMatchingError = 22,
    /// Tag matching only.
    TagMatchingRendezvousIncomplete = 23,
}

impl WcStatus {
    /// All values, by number.
    pub const ALL: [Self; 24] = [
        Self::Success,
        Self::LocalLengthError,
        Self::LocalQpOperationError,
        Self::LocalEecOperationError,
        Self::LocalProtectionError,
        Self::WrFlushError,
        Self::MemoryWindowBindError,
        Self::BadResponseError,
        Self::LocalAccessError,
        Self::RemoteInvalidRequestError,
        Self::RemoteAccessError,
        Self::RemoteOperationError,
        Self::RetryExceededError,
        Self::RnrRetryExceededError,
        Self::LocalRddViolationError,
        Self::RemoteInvalidRdRequestError,
        Self::RemoteAbortedError,
        Self::InvalidEecNumberError,
        Self::InvalidEecStateError,
        Self::FatalError,
        Self::ResponseTimeoutError,
        Self::GeneralError,
        Self::TagMatchingError,
        Self::TagMatchingRendezvousIncomplete,
    ];

    /// Returns the name of the number in libibverbs, without its prefix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::LocalLengthError => "LOC_LEN_ERR",
            Self::LocalQpOperationError => "LOC_QP_OP_ERR",
            Self::LocalEecOperationError => "LOC_EEC_OP_ERR",
            Self::LocalProtectionError => "LOC_PROT_ERR",
            Self::WrFlushError => "WR_FLUSH_ERR",
            Self::MemoryWindowBindError => "MW_BIND_ERR",
            Self::BadResponseError => "BAD_RESP_ERR",
            Self::LocalAccessError => "LOC_ACCESS_ERR",
            Self::RemoteInvalidRequestError => "REM_INV_REQ_ERR",
            Self::RemoteAccessError => "REM_ACCESS_ERR",
            Self::RemoteOperationError => "REM_OP_ERR",
            Self::RetryExceededError => "RETRY_EXC_ERR",
            Self::RnrRetryExceededError => "RNR_RETRY_EXC_ERR",
            Self::LocalRddViolationError => "LOC_RDD_VIOL_ERR",
            Self::RemoteInvalidRdRequestError => "REM_INV_RD_REQ_ERR",
            Self::RemoteAbortedError => "REM_ABORT_ERR",
            Self::InvalidEecNumberError => "INV_EECN_ERR",
            Self::InvalidEecStateError => "INV_EEC_STATE_ERR",
            Self::FatalError => "FATAL_ERR",
            Self::ResponseTimeoutError => "RESP_TIMEOUT_ERR",
            Self::GeneralError => "GENERAL_ERR",
            Self::TagMatchingError => "TM_ERR",
            Self::TagMatchingRendezvousIncomplete => "TM_RNDV_INCOMPLETE",
        }
    }
}

/// The check that failed. It is more detailed than the status, and than the information that a peer receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Cause {
    /// Nothing failed.
    #[default]
    None = 0,
    /// The queue pair failed or was moved to the error state before this request completed.
    Flushed = 1,
    /// The local ACK timer expired `retry_cnt` + 1 times: the peer never answered.
    AckTimeout = 2,
    /// Sequence-error NAKs or lost responses used up `retry_cnt`.
    SequenceRetries = 3,
    /// RNR NAKs used up `rnr_retry`: the peer posted no receive.
    RnrRetries = 4,
    /// The peer sent NAK 0x61.
    NakInvalidRequest = 5,
    /// The peer sent NAK 0x62.
    NakRemoteAccess = 6,
    /// The peer sent NAK 0x63.
    NakRemoteOperational = 7,
    /// The peer sent a NAK code that this engine does not know.
    NakUnknown = 8,
    /// The response had the wrong kind for the oldest outstanding request.
    UnexpectedResponse = 9,
    /// The READ response had more or fewer bytes than its position in the message requires.
    ResponseLength = 10,
    /// A local key is unknown or was revoked.
    LocalKeyUnknown = 11,
    /// The local key belongs to another protection domain.
    LocalKeyWrongDomain = 12,
    /// The local key lacks the required permission.
    LocalKeyPermission = 13,
    /// The local range is outside its region.
    LocalKeyRange = 14,
    /// The incoming message was longer than its receive.
    MessageTooLong = 15,
    /// The key in a remote invalidate cannot be invalidated.
    RemoteInvalidate = 16,
    /// An access of the peer to local memory was refused within a message.
    RemoteAccessRefused = 17,
    /// A request of the peer was invalid within a message.
    RemoteRequestInvalid = 18,
    /// A bind of a memory window was refused.
    WindowBind = 19,
    /// A local invalidate was refused.
    LocalInvalidate = 20,
    /// The completion queue overflowed.
    CompletionQueueOverflow = 21,
}

impl Cause {
    /// All values, by number.
    pub const ALL: [Self; 22] = [
        Self::None,
        Self::Flushed,
        Self::AckTimeout,
        Self::SequenceRetries,
        Self::RnrRetries,
        Self::NakInvalidRequest,
        Self::NakRemoteAccess,
        Self::NakRemoteOperational,
        Self::NakUnknown,
        Self::UnexpectedResponse,
        Self::ResponseLength,
        Self::LocalKeyUnknown,
        Self::LocalKeyWrongDomain,
        Self::LocalKeyPermission,
        Self::LocalKeyRange,
        Self::MessageTooLong,
        Self::RemoteInvalidate,
        Self::RemoteAccessRefused,
        Self::RemoteRequestInvalid,
        Self::WindowBind,
        Self::LocalInvalidate,
        Self::CompletionQueueOverflow,
    ];
}
