//! The errors of the verbs.

use std::io;

use roce_transport::{
    ChangeError, CqError, CreateQpError, DestroyError, KeyError, ModifyQpError, PdError, PostError,
    RegisterError, SrqError, XrcdError,
};

use crate::driver::GroupError;

/// The reason why a verb failed. The text names the object; the [source](std::error::Error::source), if there
/// is one, is the problem. [`with_causes`](crate::observe::with_causes) prints both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] crate::device::OpenError),
    /// The operating system refused a call.
    #[error("{what}")]
    Io {
        /// The attempted operation.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
    /// The device failed earlier and transfers no packets any more.
    #[error("the device failed: {0}; close this context and open it again")]
    DeviceFailed(String),
    /// An operation on a protection domain failed.
    #[error("operation failed on the protection domain")]
    Pd(#[from] PdError),
    /// Registering memory, changing its registration or creating a window failed.
    #[error("cannot set up the window or memory region")]
    Register(#[from] RegisterError),
    /// An operation on a memory key failed.
    #[error("operation failed on the memory key")]
    Key(#[from] KeyError),
    /// An operation on a completion queue failed.
    #[error("operation failed on the completion queue")]
    Cq(#[from] CqError),
    /// An operation on an XRC domain failed.
    #[error(transparent)]
    Xrcd(#[from] XrcdError),
    /// An operation on a shared receive queue failed.
    #[error("operation failed on the shared receive queue")]
    Srq(#[from] SrqError),
    /// Creating a queue pair failed.
    #[error("cannot create the queue pair")]
    CreateQp(#[from] CreateQpError),
    /// Changing a queue pair failed.
    #[error("cannot change the queue pair")]
    ModifyQp(#[from] ModifyQpError),
    /// Posting a work request failed.
    #[error("cannot post the work request")]
    Post(#[from] PostError),
    /// Posting a list of work requests failed; those before `position` were queued.
    #[error("cannot post work request {position} of the list")]
    PostList {
        /// Index in the list.
        position: usize,
        /// The reason.
        #[source]
        error: PostError,
    },
    /// Destroying an object failed.
    #[error(transparent)]
    Destroy(#[from] DestroyError),
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
