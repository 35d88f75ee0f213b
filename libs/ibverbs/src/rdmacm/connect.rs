//! Connection requests and the responses to them.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use roce::packet::mad::IpCm;
use roce::verbs::{
    CmOffer, CmQpParameters, CmTiming, CommId, Path, PathOptions, PortSpace, Qpn, RawConnect, RawRequest,
    RejReason, SidrStatus, TransportService,
};

use super::addresses::{bind, choose_again};
use super::channel::completed;
use super::id::{Id, State, Wanted, create, destroy, id_of};
use super::routes::any_towards;
use super::states::{bring_up, is_datagram, is_uc, queue_pair, to_error};
use super::{Cm, DeviceIndex, errno_of, with};
use crate::abi::{
    IBV_EVENT_COMM_EST, RDMA_MAX_DEPTH, ibv_ece, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};
use crate::answer::{Errno, count};

/// Minimum backlog, for applications that request less. Kernels count only requests that were not fetched;
/// this library also counts those that were not accepted.
const LEAST_BACKLOG: usize = 128;
const MOST_BACKLOG: usize = 1024;
/// Maximum number of ports to try for a listener without a given port.
const MOST_PORTS_TRIED: u32 = 64;
/// Number of retries after lost packets and RNR NAKs if the application sets none.
const RETRIES: u8 = 7;
const DEEPEST: u8 = roce::transport::MAX_RD_ATOMIC;

/// The application's parameters for a connection.
#[derive(Clone, Default)]
pub(super) struct Given {
    private_data: Vec<u8>,
    retry_count: u8,
    rnr_retry_count: u8,
    qpn: Qpn,
    srq: bool,
}

/// Time during which requests for a port without a listener are repeated. A server may be started at the same
/// time, or may tell its client to connect just before it listens (perftest with `-R`). It is ready after
/// this time. With kernels the steps before a request take longer.
const LISTEN_PATIENCE: Duration = Duration::from_secs(1);
/// The time between two of these requests.
const LISTEN_PAUSE: Duration = Duration::from_millis(10);
/// Time after which a port without a listener is treated as that of a newly started server again.
const REFUSAL_FORGOTTEN: Duration = Duration::from_secs(10);
/// Maximum number of remembered ports.
const MOST_REFUSALS: usize = 256;

/// The ports that had no listener, and the time of the first refusal.
#[derive(Default)]
pub(super) struct Refusals(HashMap<(DeviceIndex, PortSpace, SocketAddr), Instant>);

impl Refusals {
    /// Returns whether a refused request should be repeated.
    fn may_repeat(&mut self, port: (DeviceIndex, PortSpace, SocketAddr), now: Instant) -> bool {
        self.0.retain(|_, since| now.duration_since(*since) < REFUSAL_FORGOTTEN);
        if self.0.len() >= MOST_REFUSALS && !self.0.contains_key(&port) {
            return false;
        }
        let since = *self.0.entry(port).or_insert(now);
        now.duration_since(since) < LISTEN_PATIENCE
    }
}

/// Reads `parameters`, and records the depths in them.
///
/// # Safety
///
/// `parameters` is null or the application's, with valid private data of the given length.
unsafe fn given(id: &Id, parameters: *const rdma_conn_param) -> Result<Given, Errno> {
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters.as_ref() };
    let own = queue_pair(id);
    let mut state = id.state();
    let wanted = |own: u8, wanted: Option<u8>| match wanted {
        Some(wanted) if wanted != RDMA_MAX_DEPTH => {
            if wanted > DEEPEST {
                Err(Errno::INVALID)
            } else {
                Ok(wanted)
            }
        }
        _ => Ok(own.min(DEEPEST)),
    };
    state.initiator_depth = wanted(state.initiator_depth, parameters.map(|given| given.initiator_depth))?;
    state.responder_resources =
        wanted(state.responder_resources, parameters.map(|given| given.responder_resources))?;
    let private_data = match parameters {
        Some(given) if !given.private_data.is_null() => {
            // SAFETY: the caller's promise.
            let data: &[u8] = unsafe {
                std::slice::from_raw_parts(given.private_data.cast(), given.private_data_len.into())
            };
            data.to_vec()
        }
        _ => std::mem::take(&mut state.connect_data),
    };
    let (qpn, srq) =
        own.or_else(|| parameters.map(|given| (Qpn::new(given.qp_num), given.srq != 0))).unwrap_or_default();
    Ok(Given {
        private_data,
        retry_count: parameters.map_or(RETRIES, |given| given.retry_count.min(RETRIES)),
        rnr_retry_count: parameters.map_or(RETRIES, |given| given.rnr_retry_count.min(RETRIES)),
        qpn,
        srq,
    })
}

fn offer(state: &State, given: &Given) -> CmOffer {
    CmOffer {
        qpn: given.qpn,
        starting_psn: state.psn,
        responder_resources: state.responder_resources.min(DEEPEST),
        initiator_depth: state.initiator_depth.min(DEEPEST),
        rnr_retry_count: given.rnr_retry_count,
        srq: given.srq,
    }
}

fn path_options(state: &State) -> PathOptions {
    let vector = state.address_vector();
    let entry = state.open.as_ref().and_then(|open| open.gids.get(usize::from(vector.grh.sgid_index)));
    PathOptions::default()
        .sgid_index(entry.map_or(0, |entry| entry.index))
        .traffic_class(crate::address::marked(vector.grh.traffic_class))
}

/// Sends the request of an identifier with a known peer.
fn request(cm: &mut Cm, id: &Id) -> Result<(), Errno> {
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

pub(super) unsafe extern "C-unwind" fn rdma_connect(
    id: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
) -> c_int {
    let answer = count(|| {
        // SAFETY: the application's pointers are an identifier, and parameters or null.
        unsafe {
            let object = id_of(id)?;
            let given = given(object, parameters)?;
            object.state().request = given;
            with(|cm| request(cm, object))?;
        }
        Ok(0)
    });
    // SAFETY: `id` is an identifier, or the answer is an error.
    unsafe { completed(id, answer) }
}

/// Repeats a request to a peer without a listener after a pause, if [`Refusals`] permits it.
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

/// Listens on the device of an identifier, or on all of them.
fn listen(cm: &mut Cm, id: &Id, backlog: usize) -> Result<(), Errno> {
    cm.open_devices()?;
    if id.state().source.is_none() {
        bind(cm, id, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
    }
    let (device, port_space, mut source, is_port_chosen, port) = {
        let state = id.state();
        if !state.listens_on.is_empty() {
            return Err(Errno::INVALID);
        }
        (
            state.device,
            state.port_space,
            state.source.ok_or(Errno::INVALID)?,
            state.is_port_chosen,
            state.port.clone(),
        )
    };
    let devices: Vec<DeviceIndex> =
        device.map_or_else(|| (0..cm.devices.len()).collect(), |index| vec![index]);
    if let Some(port) = &port {
        cm.ports.listen(port)?;
    }
    let mut attempts = if is_port_chosen { MOST_PORTS_TRIED } else { 1 };
    loop {
        attempts -= 1;
        match listen_at(cm, id, &devices, (port_space, source.port()), backlog) {
            Err(Errno(libc::EADDRINUSE)) if attempts > 0 => source = choose_again(cm, id)?,
            Err(errno) => return Err(errno),
            Ok(()) => break,
        }
    }
    id.state().listens_on = devices;
    id.show_addresses(Some(source), Some(any_towards(source)));
    Ok(())
}

/// Listens at a port of several devices, or of none of them.
fn listen_at(
    cm: &mut Cm,
    id: &Id,
    devices: &[DeviceIndex],
    service: (PortSpace, u16),
    backlog: usize,
) -> Result<(), Errno> {
    for (done, index) in devices.iter().enumerate() {
        if let Err(errno) = cm.add_listener(*index, service, id, backlog) {
            devices[..done].iter().for_each(|index| cm.remove_listener(*index, service, id));
            return Err(errno);
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    count(|| {
        // SAFETY: the application's pointer is an identifier.
        let object = unsafe { id_of(id)? };
        let backlog = usize::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(MOST_BACKLOG);
        with(|cm| listen(cm, object, backlog.clamp(LEAST_BACKLOG, MOST_BACKLOG)))?;
        Ok(0)
    })
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

/// Accepts the request of an identifier.
fn accept(id: &Id, given: &Given) -> Result<(), Errno> {
    let (open, comm, qkey, offer) = {
        let state = id.state();
        if state.is_active {
            return Err(Errno::INVALID);
        }
        let (open, comm) = state.connection()?;
        (open, comm, state.qkey, offer(&state, given))
    };
    let raw = open.raw();
    if is_datagram(id) {
        let answer = (given.qpn, qkey);
        let answered = raw.answer_question(comm, SidrStatus::VALID, answer, &given.private_data);
        return answered.map_err(|error| errno_of(&error));
    }
    let preview = raw.preview_connection(comm, &offer).map_err(|error| errno_of(&error))?;
    id.state().parameters = Some(preview);
    if queue_pair(id).is_some() {
        bring_up(id)?;
    }
    let accepted = raw.accept_connection(comm, &offer, &given.private_data);
    accepted.map_err(|error| {
        to_error(id);
        errno_of(&error)
    })
}

pub(super) unsafe extern "C-unwind" fn rdma_accept(
    id: *mut rdma_cm_id,
    parameters: *mut rdma_conn_param,
) -> c_int {
    let mut ends_here = false;
    let answer = count(|| {
        // SAFETY: the application's pointers are an identifier, and parameters or null.
        unsafe {
            let object = id_of(id)?;
            accept(object, &given(object, parameters)?)?;
            ends_here = is_datagram(object);
        }
        Ok(0)
    });
    if ends_here {
        return answer;
    }
    // SAFETY: `id` is an identifier, or the answer is an error.
    unsafe { completed(id, answer) }
}

/// Completes a connection whose queue pair the application has moved.
pub(super) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    count(|| {
        // SAFETY: the application's pointer is an identifier.
        let object = unsafe { id_of(id)? };
        if queue_pair(object).is_some() {
            return Err(Errno::INVALID);
        }
        let (open, comm) = object.connection()?;
        open.raw().establish_connection(comm, &[]).map_err(|error| errno_of(&error))?;
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    count(|| {
        // SAFETY: the application's pointers are an identifier, and `len` bytes or null.
        let (object, data) = unsafe {
            let data = if data.is_null() { &[] } else { std::slice::from_raw_parts(data.cast(), len.into()) };
            (id_of(id)?, data)
        };
        let (open, comm) = object.connection()?;
        let rejected = if is_datagram(object) {
            open.raw().answer_question(comm, SidrStatus::REJECTED, (Qpn::new(0), 0), data)
        } else {
            open.raw().reject_connection(comm, RejReason::CONSUMER, data)
        };
        rejected.map_err(|error| errno_of(&error))?;
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the application's, as for `rdma_reject`. Enhanced connections are not supported.
    unsafe { rdma_reject(id, data, len) }
}

pub(super) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    count(|| {
        // SAFETY: the application's pointer is an identifier.
        let object = unsafe { id_of(id)? };
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::INVALID);
        }
        let (open, comm) = object.connection()?;
        // The RTU may have arrived meanwhile.
        let _ = open.raw().notify_first_packet(comm);
        Ok(0)
    })
}

pub(super) unsafe extern "C-unwind" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    let answer = count(|| {
        // SAFETY: the application's pointer is an identifier.
        unsafe {
            let object = id_of(id)?;
            let (open, comm) = object.connection()?;
            to_error(object);
            // If the peer disconnected first, its DREQ has been answered already.
            let _ = open.raw().disconnect(comm, &[]);
        }
        Ok(0)
    });
    // SAFETY: `id` is an identifier, or the answer is an error.
    unsafe { completed(id, answer) }
}

/// Returns vendor 0, because enhanced connections (ECE) are not supported.
pub(super) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    count(|| {
        // SAFETY: the application's pointers are an identifier and room for the answer.
        unsafe {
            id_of(id)?;
            if ece.is_null() {
                return Err(Errno::INVALID);
            }
            ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
        }
        Ok(0)
    })
}

pub(super) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    count(|| {
        // SAFETY: the application's pointers are an identifier and its options.
        unsafe {
            id_of(id)?;
            let ece = ece.as_ref().ok_or(Errno::INVALID)?;
            if ece.vendor_id == 0 { Ok(0) } else { Err(Errno::INVALID) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_a_port_without_a_listener_are_repeated_for_a_while() {
        let mut refusals = Refusals::default();
        let port = |number: u16| (0, PortSpace::Tcp, SocketAddr::from(([198, 18, 0, 1], number)));
        let start = Instant::now();
        assert!(refusals.may_repeat(port(1), start));
        assert!(refusals.may_repeat(port(1), start + LISTEN_PATIENCE / 2));
        assert!(!refusals.may_repeat(port(1), start + LISTEN_PATIENCE), "for all identifiers together");
        assert!(refusals.may_repeat(port(2), start + LISTEN_PATIENCE));
        assert!(refusals.may_repeat(port(1), start + REFUSAL_FORGOTTEN), "it may have been started");
        for number in 3..1000 {
            refusals.may_repeat(port(number), start + REFUSAL_FORGOTTEN);
        }
        assert_eq!(refusals.0.len(), MOST_REFUSALS);
    }
}
