//! An open device.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use roce_packet::{PathMtu, Psn, Qpn};
use roce_transport::{AsyncEvent, Cause, Counters, Ends, EngineConfig, Wc, WorkError, with_causes};

use super::VerbsError;
use crate::device::Capabilities;
use crate::observe::{CounterSource, Explanation};
use crate::runtime::{Engines, Runtime};

/// Bytes of headers around the payload of the largest ordinary packet: IP, UDP, BTH, RETH, ImmDt and ICRC.
const OVERHEAD_V4: usize = 20 + 8 + 12 + 16 + 4 + 4;
pub(super) const OVERHEAD_V6: usize = 40 + 8 + 12 + 16 + 4 + 4;

/// An open device: engine, device and clock behind one lock, or several of these
/// ([`ContextBuilder::engines`](super::ContextBuilder::engines)). Clones are handles to the same context.
#[derive(Clone, Debug)]
pub struct Context(pub(super) Arc<Engines>);

pub(super) fn largest_mtu(capabilities: &Capabilities, overhead: usize) -> Option<PathMtu> {
    PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + overhead <= capabilities.link_mtu)
}

/// The attributes that `ibv_query_device` and `ibv_query_port` return.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, _far) = ends()?;
/// let attributes = near.context.query();
/// println!("{}, MTU {:?}", attributes.capabilities.kind, attributes.active_mtu);
/// for entry in near.context.gid_table() {
///     println!("GID {}: {} ({:?})", entry.index, entry.address(), entry.gid_type);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Capabilities of the device.
    pub capabilities: Capabilities,
    /// Addresses of the GID table, in its order.
    pub addresses: Vec<IpAddr>,
    /// Largest path MTU that the link carries.
    pub active_mtu: Option<PathMtu>,
    /// Limits of the engine.
    pub limits: EngineConfig,
}

impl Context {
    /// Returns the attributes of the device and the port.
    #[must_use]
    pub fn query(&self) -> DeviceAttributes {
        let capabilities = self.runtime().capabilities.clone();
        let active_mtu = self.largest_path_mtu();
        let limits = self.runtime().lock().nic.engine.config().clone();
        DeviceAttributes { capabilities, addresses: self.runtime().addresses.clone(), active_mtu, limits }
    }

    /// Returns the address that this device sends from.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.runtime().addresses.first().copied()
    }

    /// Returns the largest path MTU that the link carries.
    #[must_use]
    pub fn largest_path_mtu(&self) -> Option<PathMtu> {
        largest_mtu(&self.runtime().capabilities, self.overhead())
    }

    fn overhead(&self) -> usize {
        let headers =
            if self.runtime().addresses.iter().any(IpAddr::is_ipv6) { OVERHEAD_V6 } else { OVERHEAD_V4 };
        headers + self.runtime().trailer
    }

    pub(crate) fn check_path_mtu(&self, mtu: PathMtu) -> Result<(), VerbsError> {
        let (path_mtu, link_mtu) = (mtu.bytes(), self.runtime().capabilities.link_mtu);
        let (needed, telemetry) = (path_mtu + self.overhead(), self.runtime().trailer);
        if needed > link_mtu {
            return Err(VerbsError::PathMtu { path_mtu, needed, link_mtu, telemetry });
        }
        Ok(())
    }

    /// Returns the next asynchronous event, or `None` if no event waits.
    #[must_use]
    pub fn async_event(&self) -> Option<AsyncEvent> {
        self.runtime().async_events.pop()
    }

    /// Returns a descriptor that is readable while asynchronous events wait.
    #[must_use]
    pub fn async_descriptor(&self) -> BorrowedFd<'_> {
        self.runtime().async_events.as_fd()
    }

    /// Returns the sum of the counters of all engines.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.0.iter().for_each(|runtime| sum.add(runtime.lock().nic.engine.counters()));
        sum
    }

    /// Visits all counters by name: those of the engines, connection management and devices, summed over the
    /// engines.
    pub fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters().visit_counters(visit);
    }

    /// Receives and sends once in each engine, for applications that do not poll any queue.
    pub fn progress(&self) {
        self.0.iter().for_each(Runtime::progress_for_memory);
    }

    /// Returns the completion if the work request succeeded, as [`Wc::result`] does. While its queue pair
    /// exists, the error names the addresses of both ends of the connection and the check that failed.
    ///
    /// # Errors
    ///
    /// Fails if the work request failed.
    pub fn result(&self, wc: &Wc) -> Result<Wc, WorkError> {
        wc.result().map_err(|error| {
            let engine = &self.of_qp(wc.qpn).lock().nic.engine;
            let reason = engine.reason(wc.qpn).filter(|reason| match wc.cause {
                Cause::Flushed => true,
                _ => reason.request == Some((wc.wr_id, wc.status)),
            });
            WorkError { ends: engine.ends(wc.qpn), rule: reason.map(|reason| reason.rule), ..error }
        })
    }

    /// Explains the failure of a queue pair, or the state of one that has not failed: the failed check,
    /// packets that were dropped here, and likely causes, each with the next step. Returns `None` if the
    /// queue pair does not exist.
    #[must_use]
    pub fn why(&self, qpn: Qpn) -> Option<Explanation> {
        Explanation::of(&self.of_qp(qpn).lock().nic, qpn)
    }

    /// Returns the addresses of both ends of a connection; `None` for UD, and for a queue pair that does not
    /// exist or is not connected.
    #[must_use]
    pub fn ends(&self, qpn: Qpn) -> Option<Ends> {
        self.of_qp(qpn).lock().nic.engine.ends(qpn)
    }

    /// Returns a PSN to start with: a random one, or one from the seed.
    #[must_use]
    pub fn random_psn(&self) -> Psn {
        Psn::new(self.runtime().random_u64() as u32)
    }

    /// Checks whether a device error has ended all traffic of an engine.
    ///
    /// # Errors
    ///
    /// Fails with the first such error.
    pub fn check_device(&self) -> Result<(), VerbsError> {
        self.0.iter().try_for_each(|runtime| match runtime.lock().nic.failure() {
            Some(error) => Err(VerbsError::DeviceFailed(with_causes(error).to_string())),
            None => Ok(()),
        })
    }

    /// Returns engine 0.
    #[inline]
    pub(crate) fn runtime(&self) -> &Runtime {
        self.0.first()
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl CounterSource for Context {
    fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters().visit_counters(visit);
    }

    fn visit_engine_counters(&self, visit: &mut dyn FnMut(usize, &'static str, u64)) {
        self.0.counters().visit_engine_counters(visit);
    }
}
