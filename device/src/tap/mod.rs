//! TAP devices: a virtual Ethernet interface of the kernel with a host of this process behind it. For virtual
//! machines, bridges and private network namespaces, without hardware.

mod ioctl;
mod spec;
#[cfg(test)]
mod tests;
mod vnet;
#[cfg(feature = "whole")]
mod whole;

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use roce_machine::interfaces::Interface;
use roce_machine::netlink::Netlink;
use roce_transport::Instant;
use rustix::io::Errno;

use super::framed::port::{FRAME_ROOM, FramePort, Incoming, Outgoing, PortRecord, SUPERFRAME_ROOM};
use super::{Availability, OpenError};
use crate::counters::counters;
use crate::host::own::{HostConfig, OwnHost};
use crate::offload::Offload;

pub use spec::TapSpec;

/// Maximum number of frames received by one call.
const BURST: usize = 64;
/// Datagrams of one frame (`UDP_MAX_SEGMENTS` of kernels before 6.11; more is not faster).
const MAX_SEGMENTS: u16 = 64;
/// Maximum frame from the kernel: the longest IP packet, with Ethernet header and tag.
const LONGEST_FRAME: usize = 65_535 + 18;
const DRIVER: &str = "/dev/net/tun";
const DRIVER_PRIVILEGE: &str = "the right to read and write it, which root has, and every user after \
                                `chmod 666 /dev/net/tun` by root";
const PRIVILEGE: &str = "CAP_NET_ADMIN, which root has, and any user inside `unshare -Urn`; or root creates the interface for \
                         a user with `ip tuntap add dev NAME mode tap user USER`";

/// A port that is a TAP interface.
pub(crate) struct TapPort {
    record: PortRecord,
    tun: File,
    slot: Vec<u8>,
    /// A committed frame that the kernel did not accept; it lies in the slot.
    waiting: Option<Outgoing>,
    /// A lasting error of an earlier commit.
    failure: Option<io::Error>,
    buffer: Vec<u8>,
    /// The number of packets of the current frame that have been sent, and one packet of it.
    #[cfg(feature = "whole")]
    finished: usize,
    #[cfg(feature = "whole")]
    single: Vec<u8>,
    counters: Counters,
}

counters! {
    struct Counters {
        /// Frames that the kernel did not accept immediately.
        tx_waited => "tap_tx_waited",
        /// Frames dropped because the interface is down or the kernel has no memory.
        tx_dropped => "tap_tx_dropped",
        /// Frames dropped because the kernel found them invalid.
        tx_refused => "tap_tx_refused",
        /// Frames of several packets, or with an incomplete checksum, that this process completed because the
        /// kernel cannot.
        tx_finished => "tap_tx_finished",
        /// Frames dropped because their offload header is missing or unknown.
        rx_malformed => "tap_rx_malformed",
    }
}

/// Opens or creates the TAP interface that `spec` names, and the host behind it.
pub(crate) fn open(spec: &TapSpec) -> Result<(TapPort, OwnHost), OpenError> {
    let port = open_port(spec)?;
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| OpenError::at(&spec.to_string(), "get random numbers")(error.into()))?;
    let host = OwnHost::new(&HostConfig {
        mac: spec.mac(),
        addresses: spec.addresses(),
        gateway_v4: spec.gateway_v4,
        gateway_v6: spec.gateway_v6,
        link_mtu: port.record.link_mtu,
        seed: u64::from_ne_bytes(seed),
    });
    Ok((port, host))
}

/// Opens or creates a TAP interface without a host behind it.
#[cfg(feature = "whole")]
pub(crate) fn open_whole(spec: &TapSpec) -> Result<TapPort, OpenError> {
    open_port(spec)
}

fn open_port(spec: &TapSpec) -> Result<TapPort, OpenError> {
    let fail = |step| move |error| OpenError::System { spec: spec.to_string(), step, error };
    let tun = open_driver(spec)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(fail("open a socket"))?;
    let find = || find_interface(&spec.name).map_err(fail("find the TAP interface"));
    let existing = find()?;
    ioctl::attach(&tun, &spec.name).map_err(|error| attach_error(spec, existing.is_some(), error))?;
    ioctl::set_header_len(&tun).map_err(fail("set up the TAP interface"))?;
    let splits = ioctl::set_offload(&tun).map_err(fail("set the offloads of the TAP interface"))?;
    let mtu = match existing {
        None => {
            if let Some(mtu) = spec.mtu {
                ioctl::set_mtu(&socket, &spec.name, mtu).map_err(fail("set the MTU"))?;
            }
            ioctl::set_up(&socket, &spec.name).map_err(fail("bring the TAP interface up"))?;
            find()?.ok_or_else(|| fail("find the TAP interface")(io::ErrorKind::NotFound.into()))?.mtu
        }
        Some(existing) => {
            check_existing(spec, &existing)?;
            existing.mtu
        }
    };
    let record = PortRecord {
        kind: "tap",
        interface: spec.name.clone(),
        mac: spec.mac(),
        link_mtu: mtu,
        max_segments: if splits { MAX_SEGMENTS } else { 1 },
        bits_per_second: None,
    };
    Ok(TapPort::new(record, tun))
}

/// Returns whether TAP devices can be opened here. Does not create any.
pub(crate) fn availability() -> Availability {
    let opened = OpenOptions::new().read(true).write(true).open(DRIVER);
    match opened.and_then(|tun| ioctl::check_right(&tun)) {
        Ok(()) => Availability::Usable(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Availability::Lacks(format!("{DRIVER}; `modprobe tun` creates it"))
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Availability::Lacks(
            "the right to create interfaces (CAP_NET_ADMIN), which root has, and any user inside `unshare -Urn`"
                .to_owned(),
        ),
        Err(error) => Availability::Lacks(format!("{DRIVER}: {error}")),
    }
}

fn open_driver(spec: &TapSpec) -> Result<File, OpenError> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DRIVER);
    opened.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OpenError::Unsuitable {
            spec: spec.to_string(),
            problem: format!(
                "{DRIVER} does not exist; `modprobe tun` creates it, and a container needs access to it"
            ),
        },
        _ => OpenError::unless_privileged(&spec.to_string(), "open /dev/net/tun", DRIVER_PRIVILEGE)(source),
    })
}

fn attach_error(spec: &TapSpec, was_there: bool, source: io::Error) -> OpenError {
    let (name, text) = (&spec.name, spec.to_string());
    match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::Unsuitable {
            spec: text,
            problem: format!("another process has the TAP interface {name} open; choose another name"),
        },
        Some(libc::EINVAL) if was_there => OpenError::Unsuitable {
            spec: text,
            problem: format!(
                "{name} exists and is not a TAP interface with one queue (`ip -d link show dev {name}` shows \
                 what it is); choose another name"
            ),
        },
        _ => OpenError::unless_privileged(&text, "open the TAP interface", PRIVILEGE)(source),
    }
}

fn find_interface(name: &str) -> io::Result<Option<Interface>> {
    Ok(Netlink::open()?.interfaces()?.into_iter().find(|interface| interface.name == name))
}

/// Checks an interface that existed before, which is left unchanged.
fn check_existing(spec: &TapSpec, existing: &Interface) -> Result<(), OpenError> {
    let (name, mtu) = (&spec.name, existing.mtu);
    if let Some(wanted) = spec.mtu.filter(|wanted| usize::from(*wanted) != mtu) {
        let problem = format!(
            "{name} exists and has MTU {mtu}; leave mtu= out, or run `ip link set dev {name} mtu {wanted}`"
        );
        return Err(OpenError::Unsuitable { spec: spec.to_string(), problem });
    }
    if !existing.is_up {
        tracing::warn!(interface = %name, "the interface is down; `ip link set dev {name} up` brings it up");
    }
    Ok(())
}

impl TapPort {
    fn new(record: PortRecord, tun: File) -> Self {
        let room = if record.max_segments > 1 { SUPERFRAME_ROOM } else { FRAME_ROOM };
        Self {
            record,
            tun,
            slot: vec![0; room],
            waiting: None,
            failure: None,
            buffer: vec![0; Offload::LEN + LONGEST_FRAME],
            #[cfg(feature = "whole")]
            finished: 0,
            #[cfg(feature = "whole")]
            single: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Passes one frame to the kernel; returns it if it must wait.
    fn send(&mut self, frame: Outgoing) -> Option<Outgoing> {
        let Some(bytes) = self.slot.get(frame.bytes.clone()) else {
            self.counters.tx_refused += 1;
            return None;
        };
        match write(&self.tun, Offload::of(frame.split.as_ref()), bytes) {
            Err(error) if self.note(error) => Some(frame),
            _ => None,
        }
    }

    /// Receives one burst and returns the number of frames that `take` accepted.
    fn receive_all(&mut self, take: &mut dyn FnMut(Offload, &mut [u8]) -> bool) -> io::Result<usize> {
        let mut count = 0;
        for _ in 0..BURST {
            let len = match rustix::io::read(&self.tun, &mut self.buffer[..]) {
                Ok(len) => len,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(self.record.lasting(error)),
            };
            let frame = self.buffer.get_mut(..len).and_then(<[u8]>::split_first_chunk_mut);
            if frame.is_some_and(|(header, frame)| take(Offload(*header), frame)) {
                count += 1;
            } else {
                self.counters.rx_malformed += 1;
            }
        }
        Ok(count)
    }

    /// Counts the reason why a frame was not accepted, and returns whether it may wait.
    fn note(&mut self, error: Errno) -> bool {
        match error {
            Errno::AGAIN => self.counters.tx_waited += 1,
            // Down, or out of memory: until that ends, frames are lost, as on a link.
            Errno::IO | Errno::NOBUFS | Errno::NOMEM => self.counters.tx_dropped += 1,
            Errno::INVAL | Errno::MSGSIZE => self.counters.tx_refused += 1,
            error => {
                self.failure.get_or_insert_with(|| self.record.lasting(error));
            }
        }
        error == Errno::AGAIN
    }
}

impl PortRecord {
    /// Returns a lasting error of the TAP driver.
    fn lasting(&self, error: Errno) -> io::Error {
        let (interface, error) = (&self.interface, io::Error::from(error));
        if error.raw_os_error() == Some(libc::EBADFD) {
            let text = format!("the TAP interface {interface} has been deleted; open the device again");
            return io::Error::new(io::ErrorKind::NotConnected, text);
        }
        io::Error::new(error.kind(), format!("TAP interface {interface}: {error}"))
    }
}

impl FramePort for TapPort {
    fn record(&self) -> &PortRecord {
        &self.record
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.waiting.is_some() { None } else { Some(&mut self.slot) }
    }

    /// Sends immediately, because a TAP takes one frame per system call, so collecting frames has no benefit.
    fn commit(&mut self, frame: Outgoing) {
        self.waiting = self.send(frame);
    }

    fn flush(&mut self, _: Instant) -> io::Result<()> {
        if let Some(frame) = self.waiting.take() {
            self.waiting = self.send(frame);
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Incoming<'_>)) -> io::Result<usize> {
        self.receive_all(&mut |offload, frame| {
            let Ok(segment_len) = vnet::receive(offload, frame) else { return false };
            sink(&Incoming { head: frame, tail: &[], segment_len, vlan: None });
            true
        })
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(visit);
    }
}

/// Passes a frame to the driver in one system call.
fn write(tun: &File, offload: Offload, frame: &[u8]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::writev(tun, &[IoSlice::new(&offload.0), IoSlice::new(frame)]))?;
    Ok(())
}
