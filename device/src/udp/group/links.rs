//! Passing datagrams on to other processes of the address.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

use roce_packet::{Encapsulation, Path};
use roce_transport::{Identification, ProcessSlot, Received};
use rustix::net::{SendFlags, send};

use super::names::{self, Names, Peer};
use super::protocol::PASSED_ON;
use crate::counters::counters;

counters! {
    pub(in crate::udp) struct Counters {
        /// Datagrams that arrived here and were passed on to their process.
        forwarded => "udp_rx_forwarded",
        /// Datagrams dropped because their process does not exist or does not read them.
        forward_dropped => "udp_rx_forward_dropped",
    }
}

/// The process that a datagram is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Slot(ProcessSlot),
    /// The process that accepts connection requests for this service.
    Service(u64),
}

/// Connections to other processes, made on first use.
pub(super) struct Links {
    names: Names,
    open: BTreeMap<Target, OwnedFd>,
    message: Vec<u8>,
    pub(super) counters: Counters,
}

impl Links {
    pub(super) fn new(names: Names) -> Self {
        Self { names, open: BTreeMap::new(), message: Vec::new(), counters: Counters::default() }
    }

    /// Passes a datagram on without waiting. Returns `false` if no process accepts requests for this service.
    pub(super) fn pass_on(&mut self, target: Target, received: &Received<'_>) -> bool {
        let mut message = std::mem::take(&mut self.message);
        write(&mut message, received);
        let outcome = self.send(target, &message);
        self.message = message;
        match outcome {
            Ok(()) => self.counters.forwarded += 1,
            Err(error) if is_gone(&error) && matches!(target, Target::Service(_)) => return false,
            // Lost, as on a network.
            Err(_) => self.counters.forward_dropped += 1,
        }
        true
    }

    fn send(&mut self, target: Target, message: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Some(link) = self.open.get(&target) {
            match send(link, message, flags) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
                // The process has ended; another one may have its name.
                Err(_) => self.open.remove(&target),
            };
        }
        let link = names::connect(&match target {
            Target::Slot(slot) => self.names.slot(slot),
            Target::Service(service) => self.names.service(service),
        })?;
        if !Peer::of(&link)?.is_trusted() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        send(&link, message, flags)?;
        if self.open.len() >= MOST_LINKS {
            self.open.clear();
        }
        self.open.insert(target, link);
        Ok(())
    }
}

/// Returns whether no process has the name, or its process has ended.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Writes a datagram: path and position in a superpacket, then the bytes.
fn write(message: &mut Vec<u8>, received: &Received<'_>) {
    let path = &received.path;
    let hint = match received.identification {
        Identification::Unknown { hint } => hint,
        Identification::Known { .. } | Identification::Unsealed => 0,
    };
    let source = match path.source {
        IpAddr::V4(source) => source.to_ipv6_mapped(),
        IpAddr::V6(source) => source,
    };
    message.clear();
    message.extend([PASSED_ON, path.traffic_class, path.hop_limit]);
    message.extend(path.source_port.to_be_bytes());
    message.extend(hint.to_be_bytes());
    message.extend(source.octets());
    for piece in received.body.pieces() {
        message.extend_from_slice(piece);
    }
}

/// Reverses [`write`]; `None` if the message is something else.
pub(super) fn read(message: &[u8], destination: IpAddr) -> Option<Received<'_>> {
    let (&[PASSED_ON, traffic_class, hop_limit], rest) = message.split_first_chunk()? else { return None };
    let (source_port, rest) = rest.split_first_chunk()?;
    let (hint, rest) = rest.split_first_chunk()?;
    let (source, head) = rest.split_first_chunk::<16>()?;
    let source = Ipv6Addr::from(*source);
    let (source, identification) = if destination.is_ipv4() {
        let hint = u16::from_be_bytes(*hint);
        (source.to_ipv4_mapped()?.into(), Identification::Unknown { hint })
    } else {
        (source.into(), Identification::ABSENT)
    };
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        source_port: u16::from_be_bytes(*source_port),
        traffic_class,
        hop_limit,
        flow_label: 0,
        vlan: None,
    };
    Some(Received::whole(path, identification, head))
}

/// Each link is a descriptor of the program. Beyond this number, all are closed and made again on demand.
const MOST_LINKS: usize = 256;
