//! The errors of the verbs.

use std::io;

use roce_transport::{
    ChangeError, CqError, CreateQpError, DestroyError, KeyError, ModifyQpError, PdError, PostError,
    RegisterError, SrqError, XrcdError,
};

use crate::driver::GroupError;

/// The reason why a verb failed. The text names the object and the problem. No variant has a source, because
/// a report of the whole chain would repeat the text of the source.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] crate::device::OpenError),
    /// The operating system refused a call.
    #[error("{what}: {error}")]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The device failed earlier and transfers no packets any more.
    #[error("the device failed: {0}; close this context and open it again")]
    DeviceFailed(String),
    /// An operation on a protection domain failed.
    #[error("protection domain: {0}")]
    Pd(PdError),
    /// Registering a memory region failed.
    #[error("memory region: {0}")]
    Register(RegisterError),
    /// An operation on a memory key failed.
    #[error("memory key: {0}")]
    Key(KeyError),
    /// An operation on a completion queue failed.
    #[error("completion queue: {0}")]
    Cq(CqError),
    /// An operation on an XRC domain failed.
    #[error("{0}")]
    Xrcd(XrcdError),
    /// An operation on a shared receive queue failed.
    #[error("shared receive queue: {0}")]
    Srq(SrqError),
    /// Creating a queue pair failed.
    #[error("queue pair: {0}")]
    CreateQp(CreateQpError),
    /// Changing a queue pair failed.
    #[error("queue pair: {0}")]
    ModifyQp(ModifyQpError),
    /// Posting a work request failed.
    #[error("work request: {0}")]
    Post(PostError),
    /// Posting a list of work requests failed; those before `position` were queued.
    #[error("work request {position} of the list: {error}")]
    PostList {
        /// Index in the list.
        position: usize,
        /// The reason.
        error: PostError,
    },
    /// Destroying an object failed.
    #[error("{0}")]
    Destroy(DestroyError),
    /// Objects of two contexts or protection domains were mixed.
    #[error("{0} belongs to another context")]
    OtherContext(&'static str),
    /// Queues of two engines of a context were mixed.
    #[error(
        "the {what} is in engine {other}, but the queue pair would be in engine {engine}; create a queue \
         pair and all its queues in the same engine"
    )]
    OtherEngine {
        /// Kind of the queue.
        what: &'static str,
        /// Engine of the queue.
        other: usize,
        /// The engine of the send completion queue.
        engine: usize,
    },
    /// The context does not have this engine.
    #[error(
        "the context has no engine {engine}, its last engine is {}; open it with more engines \
         (`ContextBuilder::engines`)",
        .engines - 1
    )]
    NoEngine {
        /// Requested engine.
        engine: usize,
        /// Number of engines of the context.
        engines: usize,
    },
    /// The device cannot have several engines.
    #[error("{engines} engines: {problem}")]
    Engines {
        /// Requested number of engines.
        engines: usize,
        /// The reason and the remedy.
        problem: String,
    },
    /// The device has no address that a peer could use.
    #[error("the device has no address; open a device that has one, such as udp:127.0.0.1")]
    NoAddress,
    /// The device cannot carry the path MTU.
    #[error(
        "path MTU {path_mtu} needs a link MTU of {needed}{}, the device has {link_mtu}; use a smaller path MTU or raise \
         the link MTU",
        if *.telemetry > 0 { format!(" ({} of it for in-band telemetry)", .telemetry) } else { String::new() }
    )]
    PathMtu {
        /// Requested path MTU in bytes.
        path_mtu: usize,
        /// Length of the IP packet of the largest request.
        needed: usize,
        /// Link MTU of the device.
        link_mtu: usize,
        /// Bytes of the packet that carry in-band telemetry.
        telemetry: usize,
    },
}

/// Implements conversions without a source, instead of `#[from]`.
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

/// Implements `Debug` as `Display`. `main` prints a returned error with `Debug`, and users need the problem
/// and the remedy, not variant names. `anyhow` and `eyre` do so for the errors that they contain.
macro_rules! debug_is_display {
    ($($error:ty),+ $(,)?) => {
        $(impl std::fmt::Debug for $error {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, formatter)
            }
        })+
    };
}

pub(super) use debug_is_display;

debug_is_display!(VerbsError);

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
