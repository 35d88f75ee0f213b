//! The destinations of frames: a port that sends them unchanged, a UDP socket, or nothing.

use std::io;
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roce_device::framed::port::{FramePort, Outgoing};
use roce_device::udp::UdpSpec;
use roce_device::whole::open_to_send;
use roce_packet::outer::{Link, Outer};
use roce_packet::{Encapsulation, Envelope, Frame, MacAddr, Path, ROCE_UDP_PORT, icrc};
use roce_transport::Instant;

use super::rewrite::Rewrite;

/// The destination of the frames.
pub(super) enum Port {
    Framed(Box<dyn FramePort>),
    Datagrams(Datagrams),
    /// No destination, for --dry-run.
    Nothing,
}

/// The result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Sent,
    /// There is no room until the device has sent something.
    NoRoom,
    Skipped(Skip),
}

/// The reason why a frame cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skip {
    TooLong,
    TooShort,
    /// A UDP device sends only RoCE v2 datagrams.
    NotADatagram,
}

/// A UDP socket that sends RoCE v2 datagrams. The kernel writes the headers, so address and port of the
/// sender are those of the socket.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    keep_icrc: bool,
    scratch: Vec<u8>,
}

impl Port {
    pub(super) fn open(spec: &str, rewrite: &Rewrite) -> anyhow::Result<Self> {
        if !spec.starts_with("udp:") {
            return Ok(Self::Framed(open_to_send(spec)?));
        }
        let address = spec.parse::<UdpSpec>()?.address;
        let Rewrite { source_mac, destination_mac, source_ip, source_port, .. } = rewrite;
        if source_mac.or(*destination_mac).is_some() || source_ip.is_some() || source_port.is_some() {
            bail!(
                "a udp device sends from its own addresses and port, so only --destination-ip and --destination-port apply; \
                 use raw:INTERFACE or tap:NAME to write every header"
            );
        }
        let socket = UdpSocket::bind((address, 0)).with_context(|| format!("cannot send from {address}"))?;
        Ok(Self::Datagrams(Datagrams { socket, keep_icrc: rewrite.keep_icrc, scratch: Vec::new() }))
    }

    /// Returns the Ethernet address of the interface.
    pub(super) fn mac(&self) -> Option<MacAddr> {
        match self {
            Self::Framed(port) => Some(port.record().mac),
            Self::Datagrams(_) | Self::Nothing => None,
        }
    }

    pub(super) fn send(&mut self, frame: &[u8]) -> anyhow::Result<Taken> {
        match self {
            Self::Framed(port) => Ok(send_frame(port.as_mut(), frame)),
            Self::Datagrams(datagrams) => datagrams.send(frame),
            Self::Nothing => Ok(Taken::Sent),
        }
    }

    /// Passes frames to the wire. Returns the time until the next call if some frames must wait.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<Option<Duration>> {
        let Self::Framed(port) = self else { return Ok(None) };
        port.flush(now)?;
        if port.slot().is_some() && port.is_drained() {
            return Ok(None);
        }
        Ok(Some(port.deadline().map_or(RETRY, |deadline| deadline.since(now))))
    }

    /// Returns the number of frames that the device dropped, by the counters that explain the reasons.
    pub(super) fn refused(&self) -> Vec<(&'static str, u64)> {
        let mut refused = Vec::new();
        if let Self::Framed(port) = self {
            port.counters(&mut |name, value| {
                let is_drop =
                    ["_tx_refused", "_tx_dropped", "_tx_too_long"].iter().any(|end| name.ends_with(end));
                if is_drop && value > 0 {
                    refused.push((name, value));
                }
            });
        }
        refused
    }
}

fn send_frame(port: &mut dyn FramePort, frame: &[u8]) -> Taken {
    // The MTU does not include a tag.
    if frame.len() > port.record().link_mtu + ETHERNET + TAG {
        return Taken::Skipped(Skip::TooLong);
    }
    if frame.len() < ETHERNET {
        return Taken::Skipped(Skip::TooShort);
    }
    let Some(slot) = port.slot() else { return Taken::NoRoom };
    let Some(place) = slot.get_mut(..frame.len()) else { return Taken::Skipped(Skip::TooLong) };
    place.copy_from_slice(frame);
    port.commit(Outgoing { bytes: 0..frame.len(), split: None });
    Taken::Sent
}

impl Datagrams {
    fn send(&mut self, frame: &[u8]) -> anyhow::Result<Taken> {
        let port = destination_port(frame);
        let parsed = port.and_then(|port| Frame::parse_on_port(frame, port).ok());
        let Some(parsed) = parsed else { return Ok(Taken::Skipped(Skip::NotADatagram)) };
        let path = parsed.path();
        let own = self.socket.local_addr().context("the socket has no address")?;
        let (Encapsulation::RoceV2, Some(port), true) =
            (path.encapsulation, port, path.destination.is_ipv4() == own.is_ipv4())
        else {
            return Ok(Taken::Skipped(Skip::NotADatagram));
        };
        self.scratch.clear();
        self.scratch.extend_from_slice(parsed.transport);
        if !self.keep_icrc
            && let Some((covered, found)) = self.scratch.split_last_chunk_mut::<{ icrc::LEN }>()
        {
            // The kernel sends UDP with DF and Identification 0.
            let sent = Path { source: own.ip(), source_port: own.port(), ..path };
            let envelope = Envelope { destination_port: port, ..Envelope::new(&sent, 0) };
            *found = icrc::compute(&envelope, covered, &[]).to_le_bytes();
        }
        match self.socket.send_to(&self.scratch, (path.destination, port)) {
            Ok(_) => Ok(Taken::Sent),
            Err(error) if error.raw_os_error() == Some(EMSGSIZE) => Ok(Taken::Skipped(Skip::TooLong)),
            Err(error) => {
                Err(error).with_context(|| format!("cannot send to {} port {port}", path.destination))
            }
        }
    }
}

/// Returns the UDP port that a frame is sent to.
fn destination_port(frame: &[u8]) -> Option<u16> {
    let outer = Outer::decode(frame, Link::Ethernet, frame.len(), ROCE_UDP_PORT);
    outer.udp.map(|udp| udp.destination_port())
}

const ETHERNET: usize = roce_packet::EthernetHeader::LEN;
const TAG: usize = roce_packet::VlanHeader::LEN;
const EMSGSIZE: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();
/// Time to wait for a device that has no deadline.
const RETRY: Duration = Duration::from_millis(1);
