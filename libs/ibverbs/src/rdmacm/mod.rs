//! librdmacm: connections by addresses and ports, with the interface of `rdma/rdma_cma.h`.
//!
//! `librdmacm.so.1` (the package `roce-rdmacm`) is a library of jumps to this module, so that both libraries
//! share one engine. A device for connection management is opened once in a process and stays open.
//! Connection management does not touch queue pairs. The library moves queue pairs of `rdma_create_qp` when
//! the application calls `rdma_accept` or fetches an event. The application moves its other queue pairs
//! itself.
//!
//! One lock ([`with`]) protects the table of identifiers. If a thread of the engine has events while another
//! thread holds the lock, that other thread takes them in when it releases the lock.

mod addresses;
mod channel;
mod connect;
mod delivery;
mod endpoint;
mod event;
mod exports;
mod handshake;
mod id;
mod identifiers;
mod information;
mod multicast;
mod options;
mod parameters;
mod ports;
mod queue_pairs;
mod refusals;
mod routes;
mod rsocket;
mod sockaddr;
mod sockets;
mod states;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Wake, Waker};
use std::time::Duration;

use roce::device::fork::StaticMutex;
use roce::verbs::{CmEvent, CommId, PortSpace, Qpn, RejReason, SidrStatus};

use crate::abi::{ibv_context, ibv_pd};
use crate::answer::Errno;
use crate::context::{Open, Pointer, open_of};
use crate::device;
use crate::domain::ibv_alloc_pd;
use crate::port::PORT;
use crate::{exit, opening};

use channel::Happening;
use id::{DeviceIndex, Id};
use ports::BoundPorts;
use refusals::Refusals;

/// The service of a listener: port space and port.
type Service = (PortSpace, u16);

/// A device that is open for connection management.
struct CmDevice {
    specification: String,
    context: Pointer<ibv_context>,
    open: Arc<Open>,
    /// The default protection domain for queue pairs; null until it is needed.
    pd: Pointer<ibv_pd>,
}

/// The devices, identifiers and ports of this process.
#[derive(Default)]
struct Cm {
    devices: Vec<CmDevice>,
    connections: HashMap<(DeviceIndex, CommId), Pointer<Id>>,
    /// Listeners of one port differ in their addresses.
    listeners: HashMap<(DeviceIndex, Service), Vec<Pointer<Id>>>,
    refusals: Refusals,
    ports: BoundPorts,
}

static CM: StaticMutex<Option<Cm>> = StaticMutex::new(None);
/// Number of times, 1 ms apart, that the exit of the process tries to take the lock.
const LOCK_ATTEMPTS: usize = 100;
/// Whether devices may have events that were not taken in.
static HAS_NEWS: AtomicBool = AtomicBool::new(false);

struct News;

impl Wake for News {
    fn wake(self: Arc<Self>) {
        HAS_NEWS.store(true, Ordering::Relaxed);
        take_news();
    }
}

/// Runs `work` on the tables. `work` must not call a verb that waits.
fn with<T>(work: impl FnOnce(&mut Cm) -> T) -> T {
    let outcome = work(CM.lock().get_or_insert_default());
    take_news();
    outcome
}

/// Takes in events. If another thread holds the lock, that thread takes them in, because it checks after
/// releasing the lock: the fences ensure that one of two threads sees what the other did before.
fn take_news() {
    loop {
        fence(Ordering::SeqCst);
        if !HAS_NEWS.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut cm) = CM.try_lock() else { return };
        HAS_NEWS.store(false, Ordering::Relaxed);
        if let Some(cm) = &mut *cm {
            cm.take_events();
        }
    }
}

/// Releases the connections of a device when the process exits. This notifies the peers, as the kernel does.
fn disconnect_all(open: &Arc<Open>) {
    // A thread that was killed during its work may hold the lock forever.
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
    /// Opens the remaining devices of this process, as far as possible.
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
        exit::set_end_of_connections(disconnect_all);
        let context = opening::open(Arc::clone(found))?;
        // SAFETY: the context was opened just now.
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

    /// Returns the protection domain that identifiers of a device share.
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

    /// Passes the events of all devices to the channels of their identifiers.
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

    /// Returns the listener of a service for requests to this address of a device.
    fn listener(&self, index: DeviceIndex, service: Service, own: IpAddr) -> Option<&Pointer<Id>> {
        let listeners = self.listeners.get(&(index, service))?;
        // SAFETY: an identifier leaves the tables before it is destroyed.
        listeners.iter().find(|id| unsafe { &*id.0 }.takes(own))
    }

    /// Adds an identifier as a listener at a port of a device. No other identifier of this process has that
    /// port.
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

    /// Removes a listener that [`add_listener`](Self::add_listener) added.
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

impl Id {
    /// Binds the identifier to a device and to an address of it.
    fn bind_device(&self, cm: &mut Cm, index: DeviceIndex) -> Result<(), Errno> {
        let pd = cm.pd(index)?;
        let device = cm.device(index)?;
        {
            let mut state = self.state();
            state.device = Some(index);
            state.open = Some(Arc::clone(&device.open));
        }
        let abi = self.abi();
        // SAFETY: the library may write these fields.
        unsafe {
            (*abi).verbs = device.context.0;
            (*abi).port_num = PORT;
            if (*abi).pd.is_null() {
                (*abi).pd = pd;
            }
        }
        Ok(())
    }
}

/// Refuses a request for an address that the listeners of its port do not accept, as the kernel does.
fn refuse(open: &Open, event: &CmEvent) {
    // If the answer fails, the peer repeats its request and gives up.
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

/// Returns the error number for an error of connection management.
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
