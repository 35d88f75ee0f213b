//! Connection requests, and the responses to them that events of identifiers require.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use roce::packet::mad::IpCm;
use roce::verbs::{
    CmQpParameters, CmTiming, CommId, Path, PathOptions, RawConnect, RawRequest, RejReason, TransportService,
};

use super::id::{Id, State, id_of, is_datagram, is_uc, queue_pair};
use super::identifiers::{Wanted, create, destroy};
use super::parameters::offer;
use super::states::{bring_up, to_error};
use super::{Cm, DeviceIndex, errno_of, with};
use crate::abi::{rdma_cm_id, rdma_event_channel};
use crate::answer::Errno;

/// Time between two requests for a port without a listener.
const LISTEN_PAUSE: Duration = Duration::from_millis(10);

fn path_options(state: &State) -> PathOptions {
    let vector = state.address_vector();
    let entry = state.open.as_ref().and_then(|open| open.gids.get(usize::from(vector.grh.sgid_index)));
    PathOptions::default()
        .sgid_index(entry.map_or(0, |entry| entry.index))
        .traffic_class(crate::address::marked(vector.grh.traffic_class))
}

/// Sends the request of an identifier with a known peer.
pub(super) fn request(cm: &mut Cm, id: &Id) -> Result<(), Errno> {
    let mut state = id.state();
    if state.is_withdrawn {
        return Err(Errno::INVALID);
    }
    let open = state.open()?;
    let index = state.device.ok_or(Errno::INVALID)?;
    if state.comm.is_some() {
        return Err(Errno::INVALID);
    }
    let to = RawRequest {
        peer: state.peer.ok_or(Errno::INVALID)?,
        port_space: state.port_space,
        own_port: state.source.map_or(0, |source| source.port()),
        path: path_options(&state),
        timing: CmTiming::default(),
        private_data: &state.request.private_data,
    };
    let comm = if is_datagram(id) {
        open.raw().request_datagrams(&to)
    } else {
        open.raw().request_connection(
            &to,
            &RawConnect {
                transport: if is_uc(id) { TransportService::Uc } else { TransportService::Rc },
                offer: offer(&state, &state.request),
                path_mtu: open.context.largest_path_mtu().ok_or(Errno::INVALID)?,
                retry_count: state.request.retry_count,
            },
        )
    };
    let comm = comm.map_err(|error| errno_of(&error))?;
    state.comm = Some(comm);
    state.is_active = true;
    cm.connections.insert((index, comm), id.pointer());
    Ok(())
}

/// Repeats a request to a peer without a listener after a pause, if
/// [`Refusals`](super::refusals::Refusals) permits it.
pub(super) fn ask_again(id: &Id, device: DeviceIndex) -> bool {
    let may_repeat = with(|cm| {
        let mut state = id.state();
        let (Some(peer), true) = (state.peer, state.is_active) else { return false };
        let may_repeat = cm.refusals.may_repeat((device, state.port_space, peer), Instant::now());
        if may_repeat && let Some(comm) = state.comm.take() {
            cm.connections.remove(&(device, comm));
        }
        may_repeat
    });
    if may_repeat {
        std::thread::sleep(LISTEN_PAUSE);
    }
    may_repeat && with(|cm| request(cm, id)).is_ok()
}

/// Returns the identifier of a request that the application fetches now. If it cannot be created, refuses the
/// request and returns `None`.
pub(super) fn take_request(
    listener: &Id,
    device: DeviceIndex,
    comm: CommId,
    path: &Path,
    ip_cm: Option<IpCm>,
) -> Option<*mut rdma_cm_id> {
    let (is_synchronous, source) = {
        let state = listener.state();
        (state.is_synchronous, state.source)
    };
    // SAFETY: the listener is alive; the application changes these fields only in its own threads.
    let wanted = unsafe {
        let abi = listener.abi();
        let channel: *mut rdma_event_channel =
            if is_synchronous { std::ptr::null_mut() } else { (*abi).channel };
        Wanted { channel, context: (*abi).context, port_space: (*abi).ps, qp_type: (*abi).qp_type }
    };
    let new = create(wanted);
    let peer = SocketAddr::new(path.destination, ip_cm.map_or(0, |header| header.source_port));
    let own = SocketAddr::new(path.source, source.map_or(0, |source| source.port()));
    let adopted = with(|cm| {
        let adopted = new.and_then(|new| {
            // SAFETY: the identifier was created just now.
            let id = unsafe { id_of(new)? };
            id.bind_device(cm, device)?;
            {
                let mut state = id.state();
                state.comm = Some(comm);
                state.is_active = false;
                state.source = Some(own);
                state.peer = Some(peer);
            }
            id.show_addresses(Some(own), Some(peer));
            cm.connections.insert((device, comm), id.pointer());
            Ok(new)
        });
        if adopted.is_err()
            && let Ok(device) = cm.device(device)
        {
            device.open.raw().release_connection(comm);
        }
        adopted.ok()
    });
    if adopted.is_none()
        && let Ok(new) = new
    {
        // SAFETY: nothing else uses it.
        let _ = unsafe { destroy(new) };
    }
    adopted
}

/// Brings the queue pair up after the peer has accepted, and notifies the peer. Returns `false` if the
/// identifier has no queue pair, so that the application must do this.
pub(super) fn finish(id: &Id, parameters: &CmQpParameters) -> Result<bool, Errno> {
    id.state().parameters = Some(*parameters);
    if queue_pair(id).is_none() {
        return Ok(false);
    }
    let (open, comm) = id.connection()?;
    let finished = bring_up(id)
        .and_then(|()| open.raw().establish_connection(comm, &[]).map_err(|error| errno_of(&error)));
    if finished.is_err() {
        to_error(id);
        // The connection may be gone already.
        let _ = open.raw().reject_connection(comm, RejReason::NO_RESOURCES, &[]);
    }
    finished.map(|()| true)
}
