//! Receiving: one system call fills many buffers, each with one datagram or many that the kernel joined.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use roce_packet::{Encapsulation, Path};
use roce_transport::{Identification, Received};

use crate::cmsg::{ControlBuffer, number, read_control, space};
use crate::counters::counters;
use crate::mmsg;

counters! {
    pub(super) struct Counters {
        /// Datagrams received.
        datagrams => "udp_rx_datagrams",
        /// Their bytes, BTH to ICRC.
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

/// Buffers for one system call, and the headers that describe them to the kernel.
pub(super) struct Receiver {
    /// One stretch of `stride` bytes for each message. Never reallocated: the headers point into it.
    data: Vec<u8>,
    stride: usize,
    names: Vec<Name>,
    controls: Vec<ControlBuffer<CONTROL_LEN>>,
    /// Only the kernel reads them, through the headers.
    _slices: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    /// How many headers the kernel has changed since they were prepared.
    used: usize,
    /// How many messages to ask for. Asking for one more than there is costs a quarter microsecond, so
    /// that one that comes alone is asked for alone.
    ask: usize,
    pub(super) counters: Counters,
    /// Errors that other hosts reported about what was sent.
    pub(super) reported_errors: u64,
}

// SAFETY: the pointers in `headers` and `_slices` lead to memory that the same structure owns, on the heap,
// so that it may move to another thread as a whole.
unsafe impl Send for Receiver {}

/// The address of a sender as the kernel writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; size_of::<libc::sockaddr_in6>()]);

/// The contents of the control messages of one message.
#[derive(Clone, Copy, Default)]
struct ControlData {
    traffic_class: u8,
    hop_limit: u8,
    /// Length of each datagram but the last; 0 if the message is one datagram.
    segment_len: usize,
    /// Datagrams that the kernel dropped for want of room since the socket was opened, modulo 2^32.
    overflow: Option<u32>,
}

impl Receiver {
    /// Buffers for superpackets if the kernel joins datagrams, and otherwise more and smaller ones.
    pub(super) fn new(gro: bool) -> Self {
        let (count, stride) = if gro { GRO_SHAPE } else { PLAIN_SHAPE };
        let mut data = vec![0_u8; count * stride];
        let mut names = vec![Name([0; _]); count];
        let mut controls = vec![ControlBuffer::EMPTY; count];
        let mut slices: Vec<libc::iovec> = data
            .chunks_mut(stride)
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: stride })
            .collect();
        let headers = names
            .iter_mut()
            .zip(&mut controls)
            .zip(&mut slices)
            .map(|((name, control), slice)| {
                // SAFETY: all zeros are a valid header; some C libraries have padding fields in it.
                let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
                header.msg_hdr.msg_name = name.0.as_mut_ptr().cast();
                header.msg_hdr.msg_iov = slice;
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = control.bytes_mut().as_mut_ptr().cast();
                header
            })
            .collect();
        Self {
            data,
            stride,
            names,
            controls,
            _slices: slices,
            headers,
            used: count,
            ask: 1,
            counters: Counters::default(),
            reported_errors: 0,
        }
    }

    /// Receives one burst on `socket`, which is bound to `destination` and was opened with the options of
    /// this module. `overflow` is where to keep how many datagrams the kernel dropped there.
    ///
    /// # Errors
    ///
    /// The socket itself is broken.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        destination: IpAddr,
        overflow: &mut u32,
        sink: &mut dyn FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        let filled = match self.fill(socket) {
            Ok(filled) => filled,
            Err(error) => match error.raw_os_error().unwrap_or(0) {
                libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS => return Ok(0),
                libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL => return Err(error),
                _ => {
                    // Somebody could not be reached. That is not an error of this socket, and asking for
                    // it has cleared it.
                    self.reported_errors += 1;
                    return Ok(0);
                }
            },
        };
        self.counters.messages += filled as u64;
        let mut count = 0;
        let Self { data, stride, names, controls, headers, counters, .. } = self;
        let described = headers.iter().zip(names.iter()).zip(controls.iter());
        for (buffer, ((header, name), control)) in data.chunks(*stride).zip(described).take(filled) {
            let bytes = buffer.get(..header.msg_len as usize).unwrap_or(buffer);
            if header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                counters.too_long += 1;
                continue;
            }
            let Some((source, source_port)) = sender(name) else {
                counters.bad_source += 1;
                continue;
            };
            // The type of the length differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let control_len = header.msg_hdr.msg_controllen as usize;
            let data = read_control_data(control.bytes().get(..control_len).unwrap_or_default());
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
            counters.bytes += bytes.len() as u64;
            count += deliver(path, bytes, data.segment_len, sink);
        }
        self.counters.datagrams += count as u64;
        Ok(count)
    }

    /// One system call; returns how many messages came.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        for header in self.headers.iter_mut().take(self.used) {
            header.msg_hdr.msg_namelen = size_of::<Name>() as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL_LEN as _;
            header.msg_hdr.msg_flags = 0;
        }
        self.used = 0;
        self.counters.calls += 1;
        let asked = self.ask.min(self.headers.len());
        // SAFETY: the headers point to buffers in `self` with the lengths given, and nothing else refers to
        // these during the call.
        let filled = unsafe { mmsg::receive(socket, &mut self.headers[..asked]) };
        self.used = *filled.as_ref().unwrap_or(&0);
        let more = if self.used == self.ask { 4 * self.ask } else { self.used };
        self.ask = more.clamp(1, self.headers.len());
        filled
    }
}

/// Takes a message apart into its datagrams.
fn deliver(path: Path, bytes: &[u8], segment_len: usize, sink: &mut dyn FnMut(&Received<'_>)) -> usize {
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
        sink(&Received { path, identification, head, tail: &[] });
        count += 1;
    }
    count
}

/// Address and port. The layout is the same on every Linux: family, port, then address or flow label and
/// address.
fn sender(name: &Name) -> Option<(IpAddr, u16)> {
    let (family, rest) = name.0.split_first_chunk::<2>()?;
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

/// Number and size of buffers for superpackets; 64 KiB is the longest that IP can carry.
const GRO_SHAPE: (usize, usize) = (16, 1 << 16);
/// Number and size of buffers for single datagrams.
const PLAIN_SHAPE: (usize, usize) = (64, 9216);
/// Traffic class, hop limit, segment length and drop count.
const CONTROL_LEN: usize = 4 * space(4);
