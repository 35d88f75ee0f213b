//! librdmacm: connections by addresses and ports, as `rdma/rdma_cma.h` has them.
//!
//! `librdmacm.so.1` is a library of jumps to here (the package `roce-rdmacm`), so that both libraries share one engine. A device that
//! connection management uses is opened once in a process and stays open. Connection management does not touch queue pairs: those
//! that an application makes with `rdma_create_qp` are moved when it calls `rdma_accept` or fetches an event, and those that it makes
//! itself are its own.
//!
//! One lock ([`with`]) holds what identifiers are there. Where a thread of the engine has news while another thread has the lock,
//! that thread takes them in when it lets go of it.

mod addresses;
mod channel;
mod connect;
mod endpoint;
mod exports;
mod id;
mod information;
mod multicast;
mod options;
mod ports;
mod queue_pairs;
mod routes;
mod rsocket;
mod sockets;
mod states;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use roce::device::fork::StaticMutex;
use roce::verbs::{CmEvent, CommId, PortSpace, Qpn, RejReason, SidrStatus};

use crate::abi::{ibv_context, ibv_pd};
use crate::answer::Errno;
use crate::context::{self, Open, Pointer, open_of};
use crate::device;
use crate::domain::ibv_alloc_pd;

use channel::Happening;
use id::Id;

/// Names a device among those that are open here.
type DeviceIndex = usize;
/// What a listener takes requests for.
type Service = (PortSpace, u16);

/// A device that is open for connection management.
struct CmDevice {
    specification: String,
    context: Pointer<ibv_context>,
    open: Arc<Open>,
    /// The domain of queue pairs that were made without one; null until it is needed.
    pd: Pointer<ibv_pd>,
}

/// What exists in this process.
#[derive(Default)]
struct Cm {
    devices: Vec<CmDevice>,
    connections: HashMap<(DeviceIndex, CommId), Pointer<Id>>,
    /// Those of one port differ in their addresses.
    listeners: HashMap<(DeviceIndex, Service), Vec<Pointer<Id>>>,
    refusals: connect::Refusals,
    ports: ports::BoundPorts,
}

static CM: StaticMutex<Option<Cm>> = StaticMutex::new(None);
/// How often, a millisecond apart, an exit tries to get the lock.
const LOCK_ATTEMPTS: usize = 100;
/// Devices may have events that nobody has taken in.
static HAS_NEWS: AtomicBool = AtomicBool::new(false);

struct News;

impl Wake for News {
    fn wake(self: Arc<Self>) {
        HAS_NEWS.store(true, Ordering::SeqCst);
        take_news();
    }
}

/// Works on what exists. No verb that waits may be called in there.
fn with<T>(work: impl FnOnce(&mut Cm) -> T) -> T {
    let outcome = work(CM.lock().get_or_insert_default());
    take_news();
    outcome
}

/// Takes in events. Where another thread has the lock, that one does it after it has released the lock, for it looks then.
fn take_news() {
    while HAS_NEWS.load(Ordering::SeqCst) {
        let Some(mut cm) = CM.try_lock() else { return };
        HAS_NEWS.store(false, Ordering::SeqCst);
        if let Some(cm) = &mut *cm {
            cm.take_events();
        }
    }
}

/// Lets go of the connections of a device when the process exits, which tells their peers, as the kernel does.
pub(crate) fn disconnect_all(open: &Arc<Open>) {
    // A thread that was killed in the middle of its work may hold the lock for ever.
    let locked = (0..LOCK_ATTEMPTS).find_map(|_| {
        let locked = CM.try_lock();
        if locked.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        locked
    });
    let Some(Some(cm)) = locked.as_deref() else { return };
    for (index, comm) in cm.connections.keys() {
        if Arc::ptr_eq(&cm.devices[*index].open, open) {
            open.raw().release_connection(*comm);
        }
    }
}

impl Cm {
    /// Opens the devices of this process that are not open yet, as far as they can be.
    fn open_devices(&mut self) -> Result<(), Errno> {
        let mut refused = Errno(libc::ENODEV);
        for found in device::devices() {
            if self.devices.iter().any(|known| known.specification == found.specification()) {
                continue;
            }
            match self.open_device(&found) {
                Ok(()) => {}
                Err(errno) => refused = errno,
            }
        }
        if self.devices.is_empty() { Err(refused) } else { Ok(()) }
    }

    fn open_device(&mut self, found: &Arc<device::Device>) -> Result<(), Errno> {
        let context = context::open(Arc::clone(found))?;
        // SAFETY: it was opened just now.
        let open = Arc::clone(unsafe { open_of(context)? });
        open.raw().watch_connections(Waker::from(Arc::new(News))).map_err(|error| errno_of(&error))?;
        self.devices.push(CmDevice {
            specification: found.specification().to_owned(),
            context: Pointer(context),
            open,
            pd: Pointer(std::ptr::null_mut()),
        });
        Ok(())
    }

    fn device(&self, index: DeviceIndex) -> Result<&CmDevice, Errno> {
        self.devices.get(index).ok_or(Errno(libc::ENODEV))
    }

    /// The protection domain that identifiers of a device share.
    fn pd(&mut self, index: DeviceIndex) -> Result<*mut ibv_pd, Errno> {
        let device = self.devices.get_mut(index).ok_or(Errno(libc::ENODEV))?;
        if device.pd.0.is_null() {
            // SAFETY: the context is open as long as the process runs.
            let pd = unsafe { ibv_alloc_pd(device.context.0) };
            if pd.is_null() {
                return Err(Errno::NO_MEMORY);
            }
            device.pd = Pointer(pd);
        }
        Ok(device.pd.0)
    }

    /// Gives the events of all devices to the channels of the identifiers that they are about.
    fn take_events(&mut self) {
        for index in 0..self.devices.len() {
            let open = Arc::clone(&self.devices[index].open);
            while let Some(event) = open.raw().next_connection_event() {
                self.pass_on(index, &open, event);
            }
        }
    }

    fn pass_on(&mut self, index: DeviceIndex, open: &Open, event: CmEvent) {
        let comm = event.id();
        let request = match &event {
            CmEvent::ConnectRequest(request) => Some((request.service_id, request.path.source)),
            CmEvent::SidrRequest(question) => Some((question.request.service_id, question.path.source)),
            _ => None,
        };
        let found = match request {
            Some((service, own)) => service.port().and_then(|service| self.listener(index, service, own)),
            None => self.connections.get(&(index, comm)),
        };
        match found {
            // SAFETY: an identifier leaves the tables before it is destroyed.
            Some(id) => unsafe { &*id.0 }.push(Happening::Connection { device: index, event }),
            None if request.is_some() => {
                refuse(open, &event);
                open.raw().release_connection(comm);
            }
            None => {}
        }
    }

    /// The listener of a service for requests to this address of a device.
    fn listener(&self, index: DeviceIndex, service: Service, own: IpAddr) -> Option<&Pointer<Id>> {
        let listeners = self.listeners.get(&(index, service))?;
        // SAFETY: an identifier leaves the tables before it is destroyed.
        listeners.iter().find(|id| unsafe { &*id.0 }.takes(own))
    }

    /// Listens with an identifier at a port of a device. Its port is its own among the identifiers of this process.
    fn add_listener(
        &mut self,
        index: DeviceIndex,
        service: Service,
        id: &Id,
        backlog: usize,
    ) -> Result<(), Errno> {
        let open = Arc::clone(&self.device(index)?.open);
        let listeners = self.listeners.entry((index, service)).or_default();
        if listeners.is_empty() {
            let listening = open.raw().listen(service.0, service.1, backlog);
            listening.map_err(|error| errno_of(&error))?;
        }
        listeners.push(id.pointer());
        Ok(())
    }

    /// The reverse.
    fn remove_listener(&mut self, index: DeviceIndex, service: Service, id: &Id) {
        let Some(listeners) = self.listeners.get_mut(&(index, service)) else { return };
        listeners.retain(|known| !std::ptr::eq(known.0, id));
        if listeners.is_empty() {
            self.listeners.remove(&(index, service));
            if let Ok(device) = self.device(index) {
                device.open.raw().stop_listening(service.0, service.1);
            }
        }
    }
}

/// Refuses a request for an address that the listeners of its port do not take, as the kernel does.
fn refuse(open: &Open, event: &CmEvent) {
    // Without an answer, the peer repeats its request and gives up.
    let _ = match event {
        CmEvent::ConnectRequest(request) => {
            open.raw().reject_connection(request.id, RejReason::CONSUMER, &[])
        }
        CmEvent::SidrRequest(question) => {
            open.raw().answer_question(question.id, SidrStatus::REJECTED, (Qpn::new(0), 0), &[])
        }
        _ => Ok(()),
    };
}

/// The number for an error of connection management.
fn errno_of(error: &roce::verbs::ConnectionError) -> Errno {
    use roce::verbs::{CmError, ConnectionError};
    Errno(match error {
        ConnectionError::Manager(CmError::InUse(_)) => libc::EADDRINUSE,
        ConnectionError::Manager(CmError::TooManyConnections { .. } | CmError::TooManyHalfOpen { .. }) => {
            libc::ENOMEM
        }
        ConnectionError::Verbs(error) => error.errno(),
        ConnectionError::TimedOut | ConnectionError::Unreachable => libc::ETIMEDOUT,
        ConnectionError::Rejected { .. } => libc::ECONNREFUSED,
        _ => libc::EINVAL,
    })
}
