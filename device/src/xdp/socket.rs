//! Opening an AF_XDP socket (memory, rings, program, queue) and explaining what prevents it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::program::roce_program;
use super::reserve::Reserve;
use super::rings::{Consumer, Producer};
use super::spec::{XdpBackend, XdpMode, XdpSpec};
use super::umem::{RX_CHUNKS, TX_CHUNKS, Umem};
use super::{bpf, umem};
use crate::OpenError;
use crate::link::Link;
use crate::sockets::{set_option, set_send_queue};

/// The privilege for opening a socket and loading its program. It must be held in the initial user namespace.
pub(super) const PRIVILEGE: &str = "CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, which root has (`sudo setcap cap_bpf,cap_net_admin,cap_net_raw+ep \
     PROGRAM` gives them to a program); being root inside `unshare -Urn` is not enough";

/// An open socket. Fields are dropped in this order, because the kernel keeps the socket and its queue while
/// a ring is mapped.
pub(super) struct Opened {
    /// Attaches the program to the interface; the kernel detaches it when the process ends in any way.
    pub(super) link: OwnedFd,
    pub(super) rings: Rings,
    pub(super) umem: Umem,
    pub(super) reserve: Reserve,
    pub(super) socket: OwnedFd,
    pub(super) report: Report,
}

pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) rx: Consumer<XdpDesc>,
    pub(super) tx: Producer<XdpDesc>,
}

/// The properties that the kernel granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Whether the program runs in the driver.
    pub(super) is_native: bool,
    /// Whether the interface directly accesses the memory of this process.
    pub(super) is_zero_copy: bool,
    /// Whether frames may occupy several chunks.
    pub(super) takes_fragments: bool,
}

/// Creates a socket without memory, rings and queue.
pub(super) fn create() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?)
}

/// Sets a socket up to send on and receive from a queue.
pub(super) fn set_up(spec: &XdpSpec, link: &Link, socket: OwnedFd) -> Result<Opened, OpenError> {
    let opening = Opening { spec, link, text: spec.to_string() };
    opening.check_queue()?;
    // First, so that a missing privilege is the reported error.
    let map = bpf::create_socket_map(spec.queue.saturating_add(1))
        .map_err(opening.fail("create a map for the XDP program"))?;
    let umem = Umem::new().map_err(opening.fail("allocate memory for frames"))?;
    let mut rings = opening.make_rings(&socket, &umem)?;
    let program = roce_program(map.as_raw_fd(), link.mac);
    // Kernels before 5.18 do not support fragments.
    let program = bpf::load(&program, true)
        .or_else(|error| if is_unknown(&error) { bpf::load(&program, false) } else { Err(error) })
        .map_err(opening.fail("load the XDP program"))?;
    let (attached, is_native) =
        opening.in_the_first_mode(|native| bpf::attach(program.as_fd(), link.index, native))?;
    let takes_fragments = opening.bind(&socket, is_native)?;
    let options = sockopt::xdp_options(&socket).unwrap_or(XdpOptionsFlags::empty());
    let is_zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    let mut reserve = Reserve::new(Umem::rx_chunks(), is_zero_copy);
    for chunk in reserve.lend() {
        let _ = rings.fill.push(chunk);
    }
    rings.fill.submit();
    // From here on, frames arrive.
    bpf::put_socket(map.as_fd(), spec.queue, socket.as_fd())
        .map_err(opening.fail("put the socket into the map of the XDP program"))?;
    let report = Report { is_native, is_zero_copy, takes_fragments };
    Ok(Opened { link: attached, rings, umem, reserve, socket, report })
}

/// The parameters of all steps.
pub(super) struct Opening<'a> {
    pub(super) spec: &'a XdpSpec,
    pub(super) link: &'a Link,
    pub(super) text: String,
}

impl Opening<'_> {
    pub(super) fn fail(&self, step: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        OpenError::unless_privileged(&self.text, step, PRIVILEGE)
    }

    pub(super) fn unsuitable(&self, problem: String) -> OpenError {
        OpenError::Unsuitable { spec: self.text.clone(), problem }
    }

    pub(super) fn check_queue(&self) -> Result<(), OpenError> {
        let (name, queue) = (&self.link.name, self.spec.queue);
        if let Some(count) = self.link.rx_queues.filter(|count| queue >= *count) {
            return Err(self.unsuitable(format!(
                "{name} has {count} receive queues, numbered from 0, so queue {queue} does not exist; `ethtool -l {name}` \
                 shows the queues, and `ethtool -L {name} combined NUMBER` changes their number"
            )));
        }
        // The kernel would accept such a socket and silently send nothing.
        if let Some(count) = self.link.tx_queues.filter(|count| queue >= *count) {
            return Err(self.unsuitable(format!(
                "{name} has {count} send queues, numbered from 0, so queue {queue} cannot send; use a lower queue, or add \
                 queues with `ethtool -L {name} tx NUMBER`"
            )));
        }
        if let Some(count) = self.link.rx_queues.filter(|count| *count > 1) {
            tracing::warn!(
                interface = name,
                queue,
                count,
                "frames that arrive at another queue are not received; `ethtool -L {name} combined 1`, or `ethtool -N {name} \
                 flow-type udp4 dst-port 4791 action {queue}`, sends all frames to this queue"
            );
        }
        Ok(())
    }

    fn make_rings(&self, socket: &OwnedFd, umem: &Umem) -> Result<Rings, OpenError> {
        sockopt::set_xdp_umem_reg(socket, umem.registration()).map_err(|error| match error {
            rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM => self.unsuitable(format!(
                "the {} MiB of memory for frames exceed the limit for locked memory; raise it with `ulimit -l unlimited` \
                 before the start, or run with CAP_IPC_LOCK, which root has",
                umem.registration().len >> 20
            )),
            _ => self.fail("share memory with the kernel")(error.into()),
        })?;
        let size = |error: rustix::io::Errno| self.fail("create the rings")(error.into());
        sockopt::set_xdp_umem_fill_ring_size(socket, FILL_RING_LEN).map_err(size)?;
        sockopt::set_xdp_umem_completion_ring_size(socket, TX_CHUNKS).map_err(size)?;
        sockopt::set_xdp_rx_ring_size(socket, RX_CHUNKS).map_err(size)?;
        sockopt::set_xdp_tx_ring_size(socket, TX_RING_LEN).map_err(size)?;
        self.set_optional(socket.as_fd());
        let map = || {
            let offsets = sockopt::xdp_mmap_offsets(socket)?;
            let fd = socket.as_fd();
            Ok::<_, io::Error>(Rings {
                fill: Producer::map(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, FILL_RING_LEN)?,
                completion: Consumer::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, TX_CHUNKS)?,
                rx: Consumer::map(fd, XDP_PGOFF_RX_RING, &offsets.rx, RX_CHUNKS)?,
                tx: Producer::map(fd, XDP_PGOFF_TX_RING, &offsets.tx, TX_RING_LEN)?,
            })
        };
        map().map_err(self.fail("map the rings"))
    }

    /// Sets options that increase speed, if the kernel supports them.
    pub(super) fn set_optional(&self, socket: BorrowedFd<'_>) {
        // Frames queued at the other end of a virtual cable count as sent by this socket.
        set_send_queue(socket, SEND_BUFFER_BYTES);
        let result = set_option(socket, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, TX_BUDGET);
        tracing::debug!(device = self.text, granted = result.is_ok(), "asked for longer runs of frames");
    }

    /// Attaches a program to the interface in the first mode that works; also returns whether that is native.
    pub(super) fn in_the_first_mode<T>(
        &self,
        mut attach: impl FnMut(bool) -> io::Result<T>,
    ) -> Result<(T, bool), OpenError> {
        let modes: &[bool] = match self.spec.mode {
            XdpMode::Native => &[true],
            XdpMode::Generic => &[false],
            // Measurements showed that native mode is slower on a virtual cable.
            XdpMode::Auto if self.link.driver == "veth" => &[false],
            XdpMode::Auto => &[true, false],
        };
        let mut last = None;
        for native in modes.iter().copied() {
            // A program of a process that just ended may still be attached.
            let tries = with_patience(|| attach(native));
            match tries {
                Ok(link) => return Ok((link, native)),
                Err(error) => {
                    tracing::debug!(device = self.text, native, %error, "the XDP program cannot be attached");
                    // If native is the only mode, this error explains why the driver fails.
                    last = Some((error, native));
                }
            }
        }
        let (error, native) = last.unwrap_or((io::ErrorKind::Unsupported.into(), true));
        Err(self.attach_error(error, native))
    }

    fn attach_error(&self, error: io::Error, native: bool) -> OpenError {
        let name = &self.link.name;
        match error.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) if self.spec.backend == XdpBackend::Libxdp => self.unsuitable(format!(
                "another XDP program on {name} cannot be combined with the program of roce: it was not attached by libxdp \
                 (`xdp-loader status` shows programs, `ip link set dev {name} xdp off` removes one), or there is no bpffs \
                 (`mount -t bpf bpf /sys/fs/bpf`), or this kernel allows no dispatcher"
            )),
            Some(libc::EBUSY | libc::EEXIST) => self.unsuitable(format!(
                "another XDP program is on {name}: `ip link show dev {name}` and `bpftool net` show it. End the process that \
                 attached it (which may be another roce), or remove it with `ip link set dev {name} xdp off`; raw:{name} does \
                 not need an XDP program"
            )),
            Some(libc::EOPNOTSUPP) if native => self.unsuitable(format!(
                "the driver of {name} ({}) does not support XDP programs; use mode=generic",
                if self.link.driver.is_empty() { "unknown" } else { &self.link.driver }
            )),
            Some(libc::ERANGE | libc::EINVAL) if native => self.unsuitable(format!(
                "the driver of {name} supports XDP programs only with an MTU below {} ({error}); reduce it with `ip link set \
                 dev {name} mtu 3498` (at both ends of a virtual cable), or use mode=generic",
                self.link.mtu
            )),
            _ => self.fail("attach the XDP program to the interface")(error),
        }
    }

    /// Binds the socket to its queue; returns whether frames may occupy several chunks.
    fn bind(&self, socket: &OwnedFd, is_native: bool) -> Result<bool, OpenError> {
        let bind = |fragments: bool| {
            let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
            flags.set(SocketAddrXdpFlags::XDP_USE_SG, fragments);
            // Without a program in the driver, the driver's queue would never use this memory.
            flags.set(SocketAddrXdpFlags::XDP_COPY, !is_native);
            let address = SocketAddrXdp::new(flags, self.link.index, self.spec.queue);
            with_patience(|| Ok(rustix::net::bind(socket, &address)?))
        };
        self.with_fragments_if_possible(bind).map(|((), takes_fragments)| takes_fragments)
    }

    /// Binds to the queue, if possible with frames of several chunks; also returns whether that is supported.
    pub(super) fn with_fragments_if_possible<T>(
        &self,
        mut bind: impl FnMut(bool) -> io::Result<T>,
    ) -> Result<(T, bool), OpenError> {
        let result = match bind(true) {
            Err(error) if is_unknown(&error) => bind(false).map(|bound| (bound, false)),
            result => result.map(|bound| (bound, true)),
        };
        let (name, queue) = (&self.link.name, self.spec.queue);
        let (bound, takes_fragments) = result.map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => self.unsuitable(format!(
                "another AF_XDP socket uses queue {queue} of {name}; end its process, or use another queue"
            )),
            Some(libc::EINVAL) => self.unsuitable(format!(
                "{name} has no queue {queue}, or its queue cannot be used ({error}); `ethtool -l {name}` shows them"
            )),
            _ => self.fail("bind to the queue of the interface")(error),
        })?;
        if !takes_fragments && self.link.mtu + ETHERNET_AND_TAG > ONE_CHUNK {
            return Err(self.unsuitable(format!(
                "this kernel supports only frames of one page (kernel 6.6 supports longer ones), and the MTU of {name} is {}; \
                 reduce it with `ip link set dev {name} mtu {}`, which still carries path MTU 2048",
                self.link.mtu,
                ONE_CHUNK - ETHERNET_AND_TAG
            )));
        }
        Ok((bound, takes_fragments))
    }
}

/// Retries for a while if something is in use, because the kernel releases the resources of an ended process
/// with a delay.
pub(super) fn with_patience<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(1);
    loop {
        match attempt() {
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
                    && Instant::now() < end =>
            {
                thread::sleep(pause);
                pause = (2 * pause).min(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}

/// Returns whether the kernel may simply be too old for a flag.
pub(super) fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Rings that this process writes have two entries per chunk: the kernel returns chunks before it reports
/// that it has read their entries, which it does once per batch.
pub(super) const FILL_RING_LEN: u32 = 2 * RX_CHUNKS;
pub(super) const TX_RING_LEN: u32 = 2 * TX_CHUNKS;
const _: () = assert!(TX_CHUNKS.is_power_of_two() && RX_CHUNKS.is_power_of_two());
/// Maximum time that the queue of an ended process may stay in use.
const PATIENCE: Duration = Duration::from_millis(1500);
const SEND_BUFFER_BYTES: usize = 16 << 20;
/// Maximum number of frames in one system call; 32 if the kernel does not support the option.
const TX_BUDGET: u32 = 256;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
/// Bytes of a received frame in the first chunk; the rest is headroom.
const ONE_CHUNK: usize = umem::CHUNK_LEN - 256;
const ETHERNET_AND_TAG: usize = 14 + 4;
