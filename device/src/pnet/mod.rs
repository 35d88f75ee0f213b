//! RoCE over the crate `pnet_datalink`: a packet socket on Linux, `/dev/bpf` on macOS and the BSDs.
//!
//! The device is for systems without `AF_PACKET`. On Linux, `raw` does the same faster and with fewer limits.
//! Like `raw`, it shares the interface, its addresses and its neighbours with the kernel.
//!
//! `pnet_datalink` has no descriptor to wait for, and its receiver waits. Therefore a thread of this port
//! receives: it selects the frames of RoCE and flow control into a queue of fixed size, whose pipe is
//! readable while the port has to look. A frame is sent by the thread that flushes, without waiting.
//!
//! `pnet_datalink` also has neither segmentation offload nor a filter in the kernel, and does not report the
//! tags that the kernel removes. Every frame costs a system call, and so does each frame of other protocols
//! that arrives. A VLAN needs an interface of the kernel.

mod receive;
#[cfg(test)]
mod tests;
mod transmit;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pnet_datalink::{Channel, Config, DataLinkReceiver, DataLinkSender};
use roce_transport::Instant;

use crate::framed::port::{FramePort, Incoming, Outgoing, PortRecord};
use crate::host::kernel::KernelHost;
use crate::link::{Link, usable_addresses};
use crate::spec::{SpecOption, SpecText};
use crate::{Availability, FrameSettings, OpenError};
use receive::Receiver;
use transmit::Transmitter;

/// A port that sends and receives through `pnet_datalink`.
pub(crate) struct PnetPort {
    record: PortRecord,
    transmitter: Transmitter,
    receiver: Receiver,
}

/// Reads a specification such as `pnet:eth0` or `pnet:eth0,prio=3`.
fn parse(spec: &str) -> Result<(String, FrameSettings), OpenError> {
    let text = SpecText::new("pnet", spec);
    let interface = text.interface(INTERFACE)?;
    let mut settings = FrameSettings::default();
    for option in text.options(OPTIONS) {
        let SpecOption { whole, name, value } = option?;
        settings.set(name, value, OPTIONS).map_err(|expected| text.bad(whole, expected))?;
        if settings.vlan.is_some() {
            return Err(text.bad(whole, NO_VLAN));
        }
    }
    Ok((interface, settings))
}

/// Opens the interface of a specification, which shares its addresses with the kernel. Also returns the
/// priority of its frames.
pub(crate) fn open(spec: &str) -> Result<(PnetPort, KernelHost, FrameSettings), OpenError> {
    let (interface, settings) = parse(spec)?;
    let link = Link::find(spec, &interface)?;
    // First, so that a missing privilege is the reported error.
    let step = "open the interface with pnet_datalink";
    let (sender, receiver) =
        channel(&link.name).map_err(OpenError::unless_privileged(spec, step, PRIVILEGE))?;
    let host = KernelHost::open(spec, &link)?;
    let receiver =
        Receiver::start(receiver, &link).map_err(OpenError::at(spec, "start a thread that receives"))?;
    let record = link.record("pnet", 1);
    tracing::debug!(?record, "opened an interface with pnet_datalink");
    Ok((PnetPort { record, transmitter: Transmitter::new(sender), receiver }, host, settings))
}

/// Returns whether interfaces can be opened here, and on which addresses.
pub(crate) fn availability() -> Availability {
    let usable = usable_addresses();
    let Availability::Usable(addresses) = &usable else { return usable };
    match addresses.first().map(|local| channel(&local.interface)) {
        Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            Availability::Lacks(PRIVILEGE.to_owned())
        }
        Some(Err(error)) => Availability::Lacks(format!("an interface for pnet_datalink: {error}")),
        Some(Ok(_)) | None => usable,
    }
}

/// Opens both directions of an interface.
fn channel(name: &str) -> io::Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    let interface = pnet_datalink::interfaces().into_iter().find(|interface| interface.name == name);
    let interface = interface.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let config = Config {
        read_buffer_size: READ_BUFFER_BYTES,
        read_timeout: Some(READ_TIMEOUT),
        // A frame that finds no room is tried again later.
        write_timeout: Some(Duration::ZERO),
        // The kernel joins the groups of the device, so frames to them arrive.
        promiscuous: false,
        ..Config::default()
    };
    match pnet_datalink::channel(&interface, config)? {
        Channel::Ethernet(sender, receiver) => Ok((sender, receiver)),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "the interface does not carry Ethernet")),
    }
}

impl FramePort for PnetPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        self.transmitter.slot()
    }

    fn commit(&mut self, frame: Outgoing) {
        self.transmitter.commit(frame.bytes);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.transmitter.flush(now)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        self.receiver.receive(sink)
    }

    fn deadline(&self) -> Option<Instant> {
        self.transmitter.retry_at
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.transmitter.counters.visit(visit);
        self.receiver.counters().visit(visit);
    }
}

const INTERFACE: &str = "the name of an Ethernet interface such as eth0";
const OPTIONS: &str = "prio=NUMBER";
const NO_VLAN: &str =
    "the kernel's interface for the VLAN, such as pnet:eth0.100, because pnet_datalink does not report tags";
const PRIVILEGE: &str = "CAP_NET_RAW on Linux, which root has, as has every user inside `unshare -Urn` in a network of its own, and \
     read and write access to /dev/bpf on macOS and the BSDs";
/// Room for the longest IP packet. BPF delivers as many frames at once as fit.
const READ_BUFFER_BYTES: usize = 128 << 10;
/// Time after which the thread looks whether the port is gone, if nothing arrives.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
