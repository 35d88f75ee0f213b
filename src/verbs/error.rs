//! What verbs can fail with.

use std::fmt;
use std::io;

use roce_transport::{
    ChangeError, CqError, CreateQpError, DestroyError, KeyError, ModifyQpError, PdError, PostError,
    RegisterError, SrqError, XrcdError,
};

use super::{ConnectionError, WaitError};
use crate::driver::GroupError;

/// Why a verb did nothing. The text says what it was about and what was wrong; so no variant has a source, whose text a
/// report of the whole chain would repeat.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] crate::device::OpenError),
    /// The operating system refused something.
    #[error("{what}: {error}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The operating system's answer.
        error: io::Error,
    },
    /// The device failed earlier and moves nothing any more.
    #[error("the device failed: {0}; close this context and open it again")]
    DeviceFailed(String),
    /// A protection domain.
    #[error("protection domain: {0}")]
    Pd(PdError),
    /// A memory region.
    #[error("memory region: {0}")]
    Register(RegisterError),
    /// A memory key.
    #[error("memory key: {0}")]
    Key(KeyError),
    /// A completion queue.
    #[error("completion queue: {0}")]
    Cq(CqError),
    /// An XRC domain.
    #[error("{0}")]
    Xrcd(XrcdError),
    /// A shared receive queue.
    #[error("shared receive queue: {0}")]
    Srq(SrqError),
    /// Making a queue pair.
    #[error("queue pair: {0}")]
    CreateQp(CreateQpError),
    /// Changing a queue pair.
    #[error("queue pair: {0}")]
    ModifyQp(ModifyQpError),
    /// Posting work.
    #[error("work request: {0}")]
    Post(PostError),
    /// Posting a list of work requests; those before `position` were queued.
    #[error("work request {position} of the list: {error}")]
    PostList {
        /// Index in the list.
        position: usize,
        /// What was wrong with it.
        error: PostError,
    },
    /// Removing something.
    #[error("{0}")]
    Destroy(DestroyError),
    /// Objects of two contexts or protection domains were mixed.
    #[error("{0} belongs to another context")]
    OtherContext(&'static str),
    /// Queues of two engines of a context were mixed.
    #[error(
        "the {what} is in engine {other}, and the queue pair would be in engine {engine}: a queue pair and all its queues are in one \
         engine; make them in the same one"
    )]
    OtherEngine {
        /// The queue.
        what: &'static str,
        /// Its engine.
        other: usize,
        /// The engine of the send completion queue.
        engine: usize,
    },
    /// An engine that the context does not have.
    #[error("the context has no engine {engine}, the last one is {}; open it with more (`ContextBuilder::engines`)", .engines - 1)]
    NoEngine {
        /// Asked for.
        engine: usize,
        /// How many there are.
        engines: usize,
    },
    /// The device that was to have several engines cannot have them.
    #[error("{engines} engines: {problem}")]
    Engines {
        /// Asked for.
        engines: usize,
        /// Why, and what to do.
        problem: String,
    },
    /// The device has no address that a peer could be told.
    #[error("the device has no address; open one that has, such as udp:127.0.0.1")]
    NoAddress,
    /// A path MTU that the device cannot carry.
    #[error(
        "path MTU {path_mtu} needs a link MTU of {needed}{}, the device has {link_mtu}; use a smaller path MTU or raise \
         the link MTU",
        if *.telemetry > 0 { format!(" ({} of it for in-band telemetry)", .telemetry) } else { String::new() }
    )]
    PathMtu {
        /// Asked for, in bytes.
        path_mtu: usize,
        /// The IP packet that the largest request makes.
        needed: usize,
        /// What the link carries.
        link_mtu: usize,
        /// Bytes of the packet that are for in-band telemetry.
        telemetry: usize,
    },
}

/// Conversions without a source, in place of `#[from]`.
macro_rules! from {
    ($($variant:ident($error:ty)),+ $(,)?) => {
        $(impl From<$error> for VerbsError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })+
    };
}

from!(
    Pd(PdError),
    Register(RegisterError),
    Key(KeyError),
    Cq(CqError),
    Xrcd(XrcdError),
    Srq(SrqError),
    CreateQp(CreateQpError),
    ModifyQp(ModifyQpError),
    Post(PostError),
    Destroy(DestroyError),
);

impl From<ChangeError> for VerbsError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Key(error) => Self::Key(error),
            ChangeError::Register(error) => Self::Register(error),
            ChangeError::WindowsBound { windows } => Self::Destroy(DestroyError::WindowsBound { windows }),
            _ => Self::Key(KeyError::Unknown),
        }
    }
}

/// What `main` prints of an error that it returns is the `Debug` text. So that a person reads what failed and what to do, and not
/// the names of variants, it is the `Display` text, as `anyhow` and `eyre` do it for the errors that they hold.
macro_rules! debug_is_display {
    ($($error:ty),+ $(,)?) => {
        $(impl fmt::Debug for $error {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, formatter)
            }
        })+
    };
}

debug_is_display!(VerbsError, WaitError, ConnectionError);

impl VerbsError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { what, error }
    }

    pub(crate) fn group(what: &'static str, error: GroupError) -> Self {
        match error {
            GroupError::QueuePair(error) => error.into(),
            GroupError::Device(error) => Self::Io { what, error },
        }
    }
}
