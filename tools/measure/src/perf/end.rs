//! The objects of one side of a test, which every part of the test uses.

use roce_exchange::ToolError;

use super::Plan;
use super::buffers::Buffers;
use super::exchange::{Agreement, Keys};
use crate::harness::Role;
use roce::verbs::{AddressHandle, CompletionQueue, Connection, Context, QueuePair};

/// One queue pair and its peer.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) qp: QueuePair,
    pub(super) local: Keys,
    pub(super) remote: Keys,
    pub(super) destination: Option<AddressHandle>,
    /// The rdma_cm connection.
    pub(super) connection: Option<Connection>,
}

/// The objects of this side, without the exchange.
#[derive(Debug)]
pub(super) struct End {
    pub(super) plan: Plan,
    pub(super) role: Role,
    pub(super) agreement: Agreement,
    pub(super) context: Context,
    pub(super) cq: CompletionQueue,
    pub(super) buffers: Buffers,
    pub(super) lanes: Vec<Lane>,
}

impl End {
    /// Returns the error of a side that has completed only `done` messages.
    pub(super) fn stalled(&self, done: u64, expected: u64) -> ToolError {
        ToolError::Stalled {
            progress: format!("{done} of {expected} messages are complete"),
            patience: self.plan.patience,
            is_reliable: self.plan.is_reliable(),
        }
    }
}
