//! The error of peers and their operations.

use std::io;

use roce_transport::{OutOfBounds, WorkError};

use crate::runtime::WaitFailure;
use crate::verbs::{ConnectionError, VerbsError, WaitError};

/// The reason why a call of a [`Peer`](super::Peer), or one of its operations, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of a peer or listener cannot be used.
    #[error("{problem}")]
    Address {
        /// The problem and the remedy.
        problem: &'static str,
        /// The error of the operating system.
        source: Option<io::Error>,
    },
    /// The context, or an object in it, could not be created, or a request could not be posted.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The connection could not be made.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The operation failed.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// The peer, or this end after an error, has ended the connection.
    #[error("the connection has ended")]
    Disconnected {
        /// The first request that failed and thereby ended the connection, if one did.
        source: Option<WorkError>,
    },
    /// A range exceeds its memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// There are more bytes than the other end takes in a message
    /// ([`PeerOptions::message`](field@super::PeerOptions::message)), or than the specification permits.
    #[error("{len} bytes are too long; at most {limit} are possible")]
    TooLong {
        /// Requested length in bytes.
        len: usize,
        /// Longest possible length in bytes.
        limit: usize,
    },
    /// The time limit of [`Operation::wait_timeout`](super::Operation::wait_timeout) expired.
    #[error("the time limit expired")]
    TimedOut,
    /// The operation has returned its result before.
    #[error("the operation has returned its result before")]
    Finished,
    /// The operating system refused to wait.
    #[error("cannot wait")]
    Wait(#[source] io::Error),
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => Self::TimedOut,
            WaitError::Io(error) => Self::Wait(error),
            WaitError::Verbs(error) => Self::Verbs(error),
        }
    }
}

impl From<WaitFailure> for Error {
    fn from(failure: WaitFailure) -> Self {
        WaitError::from(failure).into()
    }
}
