//! Several engines of one context: their devices, and which engine owns an object.

use roce_packet::Qpn;
use roce_transport::congestion::Rate;
use roce_transport::{Counters, ProcessSlot};

use super::{Context, VerbsError};
use crate::device::{Device, OpenOptions};
use crate::runtime::Runtime;

/// Maximum number of engines: more than a machine with one address has processors for.
const MOST_ENGINES: usize = 63;

/// The devices of all engines except engine 0.
pub(super) type OtherDevices = Vec<Box<dyn Device>>;

/// Opens the devices of `engines` engines.
pub(super) fn open_devices(
    spec: &str,
    engines: usize,
    options: OpenOptions,
) -> Result<(Box<dyn Device>, OtherDevices), VerbsError> {
    let refuse = |problem: String| Err(VerbsError::Engines { engines, problem });
    if !(1..=MOST_ENGINES).contains(&engines) {
        return refuse(format!("a context has from 1 to {MOST_ENGINES} engines"));
    }
    if engines > 1 && !options.is_empty() {
        return refuse(
            "faults and captures apply to a single device; leave them out, or use one engine".to_owned(),
        );
    }
    let first = crate::device::open(spec, options)?;
    let mut others = OtherDevices::with_capacity(engines - 1);
    let mut last_slot = first.capabilities().process_slot;
    for _ in 1..engines {
        if last_slot == ProcessSlot::NONE {
            return refuse(format!(
                "each engine needs a slot of a shared address, but `{spec}` is not shared; use a udp device, \
                 such as udp:127.0.0.1, without share=off and port=0 (ROCE_LOG=info shows why an address is \
                 not shared)"
            ));
        }
        let mut other = crate::device::open(spec, OpenOptions::default())?;
        // Engine 0 runs connection management; only it can refuse a request that has no listener.
        other.leave_requests();
        last_slot = other.capabilities().process_slot;
        others.push(other);
    }
    if engines > 1 && last_slot == ProcessSlot::NONE {
        return refuse(format!("only {} devices of `{spec}` share the address", engines - 1));
    }
    Ok((first, others))
}

/// Returns each engine's share of a rate.
pub(super) fn divided(rate: Rate, engines: usize) -> Rate {
    if rate.is_unlimited() {
        return rate;
    }
    Rate::bits_per_second(rate.get() / engines.max(1) as u64)
}

impl Context {
    /// Returns the number of engines, see [`ContextBuilder::engines`](super::ContextBuilder::engines).
    #[must_use]
    pub fn engines(&self) -> usize {
        self.0.len()
    }

    /// Returns the counters of one engine; `None` if the context does not have this engine.
    #[must_use]
    pub fn engine_counters(&self, engine: usize) -> Option<Counters> {
        Some(*self.0.get(engine)?.lock().nic.engine.counters())
    }

    /// Returns the engine with this index.
    pub(super) fn engine(&self, engine: usize) -> Result<&Runtime, VerbsError> {
        self.0.get(engine).ok_or(VerbsError::NoEngine { engine, engines: self.engines() })
    }

    /// Returns the engine of an object whose number begins with this process slot.
    #[inline]
    pub(crate) fn of_slot(&self, slot: ProcessSlot) -> &Runtime {
        self.0.of_slot(slot)
    }

    #[inline]
    pub(crate) fn of_qp(&self, qpn: Qpn) -> &Runtime {
        self.0.of_slot(ProcessSlot::of(qpn.get()))
    }

    pub(super) fn index_of_slot(&self, slot: ProcessSlot) -> usize {
        self.0.index_of_slot(slot)
    }

    pub(super) fn index_of_qp(&self, qpn: Qpn) -> usize {
        self.0.index_of_slot(ProcessSlot::of(qpn.get()))
    }
}
