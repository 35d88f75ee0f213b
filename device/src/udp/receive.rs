//! Receiving: one system call fills many buffers, each with one datagram or several that the kernel joined.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use roce_packet::{Encapsulation, Path};
use roce_transport::{Identification, Received};

use crate::cmsg::{number, read_control, space};
use crate::counters::counters;
use crate::mmsg::Inbox;

counters! {
    pub(super) struct Counters {
        /// Datagrams received for this device.
        datagrams => "udp_rx_datagrams",
        /// Bytes of the datagrams received, BTH to ICRC.
        bytes => "udp_rx_bytes",
        /// Messages taken from the kernel; one with receive offload carries several datagrams.
        messages => "udp_rx_messages",
        /// System calls that received.
        calls => "udp_rx_calls",
        /// Messages dropped because they are longer than the buffers.
        too_long => "udp_rx_too_long",
        /// Messages dropped because their source is an address of the wrong kind.
        bad_source => "udp_rx_bad_source",
    }
}

/// A device that receives only some of the datagrams that arrive at its socket.
pub(super) trait Recipient {
    /// Returns whether a datagram that arrived at the own socket is for this device; otherwise passes it on.
    fn is_own(&mut self, received: &Received<'_>) -> bool;
}

/// Without a recipient, all datagrams are for this device.
impl<R: Recipient> Recipient for Option<R> {
    #[inline]
    fn is_own(&mut self, received: &Received<'_>) -> bool {
        self.as_mut().is_none_or(|recipient| recipient.is_own(received))
    }
}

/// Splits messages of the kernel into datagrams.
pub(super) struct Receiver {
    inbox: Inbox<NAME_LEN, CONTROL_LEN>,
    pub(super) counters: Counters,
    /// Number of errors that other hosts reported about sent datagrams.
    pub(super) reported_errors: u64,
}

/// The contents of the control messages of one message.
#[derive(Clone, Copy, Default)]
struct ControlData {
    traffic_class: u8,
    hop_limit: u8,
    /// Length of each datagram but the last; 0 if the message is one datagram.
    segment_len: usize,
    /// Datagrams that the kernel dropped for lack of room since the socket was opened, modulo 2^32.
    overflow: Option<u32>,
}

impl Receiver {
    /// Allocates buffers for superpackets if the kernel joins datagrams, and otherwise more, smaller buffers.
    pub(super) fn new(gro: bool) -> Self {
        let (count, stride) = if gro { GRO_SHAPE } else { PLAIN_SHAPE };
        Self { inbox: Inbox::new(count, stride), counters: Counters::default(), reported_errors: 0 }
    }

    /// Receives one burst on `socket`, which is bound to `destination` and was opened with the options of
    /// this module. Stores in `overflow` how many datagrams the kernel dropped there. `recipient`
    /// passes on datagrams for other devices. Returns the number of datagrams for this device.
    ///
    /// # Errors
    ///
    /// Fails if the socket itself is broken.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        destination: IpAddr,
        overflow: &mut u32,
        recipient: &mut impl Recipient,
        sink: &mut dyn FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        self.counters.calls += 1;
        let filled = match self.inbox.fill(socket) {
            Ok(filled) => filled,
            Err(error) => match error.raw_os_error().unwrap_or(0) {
                libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS => return Ok(0),
                libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL => return Err(error),
                _ => {
                    // A host could not be reached. The socket itself has no error, and reading this one has
                    // cleared it.
                    self.reported_errors += 1;
                    return Ok(0);
                }
            },
        };
        self.counters.messages += filled as u64;
        let mut count = 0;
        let Self { inbox, counters, .. } = self;
        for message in inbox.messages() {
            if message.is_cut {
                counters.too_long += 1;
                continue;
            }
            let Some((source, source_port)) = sender(message.name) else {
                counters.bad_source += 1;
                continue;
            };
            let data = read_control_data(message.control);
            if let Some(dropped) = data.overflow {
                *overflow = dropped;
            }
            let path = Path {
                encapsulation: Encapsulation::RoceV2,
                source,
                destination,
                source_port,
                traffic_class: data.traffic_class,
                hop_limit: data.hop_limit,
                flow_label: 0,
                vlan: None,
            };
            counters.bytes += message.bytes.len() as u64;
            count += deliver(path, message.bytes, data.segment_len, recipient, sink);
        }
        self.counters.datagrams += count as u64;
        Ok(count)
    }
}

/// Splits a message into its datagrams.
fn deliver(
    path: Path,
    bytes: &[u8],
    segment_len: usize,
    recipient: &mut impl Recipient,
    sink: &mut dyn FnMut(&Received<'_>),
) -> usize {
    let segment_len = if segment_len == 0 { bytes.len().max(1) } else { segment_len };
    // An empty datagram is counted like any other that is too short.
    let empty = bytes.is_empty().then_some(bytes);
    let mut count = 0;
    for (index, head) in empty.into_iter().chain(bytes.chunks(segment_len)).enumerate() {
        let identification = match path.source {
            // A sender of superpackets numbers the segments.
            IpAddr::V4(_) => Identification::Unknown { hint: index as u16 },
            IpAddr::V6(_) => Identification::ABSENT,
        };
        let received = Received::whole(path, identification, head);
        if recipient.is_own(&received) {
            sink(&received);
            count += 1;
        }
    }
    count
}

/// Parses address and port. All Linux architectures have this layout: family, port, then an IPv4 address, or
/// flow label and IPv6 address.
fn sender(name: &[u8]) -> Option<(IpAddr, u16)> {
    let (family, rest) = name.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let address = match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*rest.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some((address, u16::from_be_bytes(*port)))
}

fn read_control_data(control: &[u8]) -> ControlData {
    let mut data = ControlData::default();
    read_control(control, |level, kind, value| {
        let Some(number) = number(value) else { return };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                data.traffic_class = number as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                data.hop_limit = number as u8;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => data.segment_len = number as usize,
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => data.overflow = Some(number),
            _ => {}
        }
    });
    data
}

/// Number and size of buffers for superpackets; IP carries at most 64 KiB.
const GRO_SHAPE: (usize, usize) = (16, 1 << 16);
/// Number and size of buffers for single datagrams.
const PLAIN_SHAPE: (usize, usize) = (64, 9216);
/// Room for the address of a sender.
const NAME_LEN: usize = size_of::<libc::sockaddr_in6>();
/// Room for traffic class, hop limit, segment length and drop count.
const CONTROL_LEN: usize = 4 * space(4);
