//! Parameters of the connections of identifiers.

use roce::verbs::{CmOffer, CmQpParameters};

use super::errno_of;
use super::id::{Given, Id, State, queue_pair};
use crate::answer::Errno;

/// Number of retries after lost packets and RNR NAKs if the application sets none.
pub(super) const RETRIES: u8 = 7;
/// Maximum number of outstanding READs and atomics.
pub(super) const DEEPEST: u8 = roce::transport::MAX_RD_ATOMIC;

pub(super) fn offer(state: &State, given: &Given) -> CmOffer {
    CmOffer {
        qpn: given.qpn,
        starting_psn: state.psn,
        responder_resources: state.responder_resources.min(DEEPEST),
        initiator_depth: state.initiator_depth.min(DEEPEST),
        rnr_retry_count: given.rnr_retry_count,
        srq: given.srq,
    }
}

/// Returns the parameters that the queue pair of an identifier needs to reach its peer, if they are known.
pub(super) fn parameters(id: &Id) -> Result<CmQpParameters, Errno> {
    let own = queue_pair(id);
    let state = id.state();
    if let Some(parameters) = state.parameters {
        return Ok(parameters);
    }
    if state.is_active {
        return Err(Errno::INVALID);
    }
    let (qpn, srq) = own.unwrap_or_default();
    let given = Given { private_data: Vec::new(), retry_count: RETRIES, rnr_retry_count: RETRIES, qpn, srq };
    let (open, comm) = state.connection()?;
    let preview = open.raw().preview_connection(comm, &offer(&state, &given));
    preview.map_err(|error| errno_of(&error))
}
