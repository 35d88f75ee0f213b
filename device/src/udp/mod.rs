//! RoCE v2 over an ordinary UDP socket, without any privilege.
//!
//! The ICRC covers the IP header, which the kernel writes, so the socket must make that header predictable:
//! it is bound to one address, not connected, and never fragments. On IPv4, this makes the Identification 0.
//! If possible, the kernel splits superpackets when sending (GSO) and joins received datagrams (GRO), which
//! makes this device fast.
//!
//! A socket cannot report the Identification of received datagrams (the engine derives it from the ICRC),
//! choose the IPv6 flow label, omit the UDP checksum, or carry RoCE v1.
//!
//! Up to 831 devices share an address and port, also across processes of the same user, unless `share=off` or
//! `port=0` is given. Each has a slot, which is the prefix of its queue pair numbers.
//!
//! Path MTU discovery of the kernel applies: datagrams that are too long for a link on the path are dropped
//! and counted as `udp_tx_too_long`.

mod group;
mod receive;
mod socket;
mod spec;
mod transmit;

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roce_packet::Path;
use roce_transport::{Instant, ProcessSlot, Received, Transmit, TxSlot};
use rustix::event::epoll;
use socket2::Socket;

use super::{Capabilities, Device, OpenError};
use crate::MAX_DATAGRAM;
use crate::descriptors::{Identity, aside};
use crate::fork::Process;
use crate::sockets::{check_group, set_member, with_scope};

pub use socket::SocketReport;
pub use spec::UdpSpec;

pub(crate) use socket::bind_problem;

use group::Member;
use receive::Receiver;
use transmit::{Sockets, SourceSocket, Transmitter};

/// A RoCE device that is a UDP socket. See the module documentation.
pub struct UdpDevice {
    spec: UdpSpec,
    capabilities: Capabilities,
    report: SocketReport,
    addresses: [IpAddr; 1],
    sockets: Sockets,
    groups: Vec<Group>,
    /// The membership, if the address is shared with other devices.
    member: Option<Member>,
    /// Becomes readable when any receiving socket does.
    readiness: OwnedFd,
    transmitter: Transmitter,
    receiver: Receiver,
    /// Datagrams dropped at the main socket because its queue was full: in total, and before this device.
    overflow: u32,
    overflow_before: u32,
    /// Datagrams dropped for this reason at groups that were left.
    old_overflow: u64,
    process: Process,
    /// The identity of the main socket, to detect that the program has closed it.
    identity: Identity,
}

/// A joined multicast group and its socket.
struct Group {
    address: IpAddr,
    socket: Socket,
    overflow: u32,
}

impl UdpDevice {
    /// Opens the device's socket.
    ///
    /// # Errors
    ///
    /// Fails if the address is not local or the port is in use; every error names the next step.
    pub fn open(spec: &UdpSpec) -> Result<Self, OpenError> {
        let opened = socket::open(spec)?;
        let report = opened.report;
        let readiness = readiness_of(&opened.socket, opened.member.as_ref())
            .map_err(OpenError::at(&spec.to_string(), "watch the UDP socket"))?;
        let headers = if spec.address.is_ipv4() { IPV4_AND_UDP } else { IPV6_AND_UDP };
        let capabilities = Capabilities {
            kind: "udp",
            max_datagram: MAX_DATAGRAM.min(report.link_mtu.saturating_sub(headers)),
            max_segments: report.max_segments,
            sees_ip_header: false,
            carries_ethernet: false,
            process_slot: opened.member.as_ref().map_or(ProcessSlot::NONE, Member::slot),
            link_mtu: report.link_mtu,
        };
        let (most_segments, gro) = (report.max_segments, report.gro);
        let identity = Identity::of(&opened.socket);
        let sockets = Sockets {
            main: opened.socket,
            others: Vec::new(),
            local: opened.local,
            index: opened.interface.map_or(0, |interface| interface.index),
            peer_port: spec.peer_port.unwrap_or(report.port),
        };
        Ok(Self {
            spec: spec.clone(),
            capabilities,
            report,
            addresses: [spec.address],
            sockets,
            groups: Vec::new(),
            member: opened.member,
            process: Process::current(),
            identity,
            readiness,
            transmitter: Transmitter::new(most_segments),
            receiver: Receiver::new(gro),
            overflow: opened.overflow,
            overflow_before: opened.overflow,
            old_overflow: 0,
        })
    }

    /// Returns the properties that the kernel granted when the socket was opened.
    #[must_use]
    pub const fn report(&self) -> &SocketReport {
        &self.report
    }

    /// Returns the UDP port that it receives on and sends from, unless a path requests another source port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.report.port
    }

    /// Sends to another port from now on; see [`UdpSpec::peer_port`].
    pub const fn set_peer_port(&mut self, port: u16) {
        self.sockets.peer_port = port;
    }

    /// Closes released sockets, unless datagrams are pending, which refer to sockets by their positions.
    fn close_released(&mut self) {
        if self.transmitter.is_idle() {
            self.sockets.others.retain(|other| !other.is_released);
        }
    }
}

impl Device for UdpDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn scope_id(&self) -> Option<u32> {
        Some(self.sockets.index).filter(|index| *index != 0)
    }

    fn bind_source_port(&mut self, path: &Path, wanted: u16) -> io::Result<u16> {
        let local = self.sockets.local;
        if path.source != local.ip() {
            let problem = format!("{} is not the address of this device, {}", path.source, local.ip());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        if wanted == 0 || wanted == local.port() {
            return Ok(local.port());
        }
        if let Some(other) = self.sockets.other(wanted) {
            other.is_released = false;
            return Ok(wanted);
        }
        self.close_released();
        if self.sockets.others.len() >= self.spec.source_ports {
            return Ok(local.port());
        }
        let address = with_scope(local.ip(), wanted, self.sockets.index);
        match socket::open_transmit_only(address, self.sockets.index, self.spec.buffer_bytes) {
            Ok(socket) => {
                self.sockets.others.push(SourceSocket { port: wanted, socket, is_released: false });
                Ok(wanted)
            }
            Err(error) => {
                tracing::debug!(port = wanted, %error, "a source port is not to be had; using the main socket");
                Ok(local.port())
            }
        }
    }

    fn release_source_port(&mut self, port: u16) {
        if let Some(other) = self.sockets.other(port) {
            other.is_released = true;
        }
        self.close_released();
    }

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.transmitter.slot()
    }

    fn commit(&mut self, _now: Instant, transmit: &Transmit) {
        self.transmitter.commit(transmit, &self.sockets);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        let result = self.transmitter.flush(now, &self.sockets);
        self.capabilities.max_segments = self.transmitter.most_segments;
        result
    }

    fn is_flush_due(&self, _now: Instant) -> bool {
        !self.transmitter.is_idle()
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        let (main, address) = (self.sockets.main.as_fd(), self.addresses[0]);
        // Checked before reading: the descriptor may already belong to another socket of the program.
        if self.identity.is_due(now) && !self.identity.is_of(main) {
            let problem = "the program has closed the socket of the device; change the program to close only descriptors that \
                           it opened";
            return Err(io::Error::other(problem));
        }
        let mut count = self.receiver.receive(main, address, &mut self.overflow, &mut self.member, sink)?;
        if let Some(member) = &mut self.member
            && member.is_due(now)
        {
            count += member.look(address, &mut self.receiver, sink)?;
        }
        for group in &mut self.groups {
            let (socket, overflow) = (group.socket.as_fd(), &mut group.overflow);
            count += self.receiver.receive(socket, group.address, overflow, &mut None::<Member>, sink)?;
        }
        Ok(count)
    }

    fn deadline(&self) -> Option<Instant> {
        self.transmitter.retry_at
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }

    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        check_group(group)?;
        let place = self.groups.iter().position(|known| known.address == group);
        match (place, join) {
            (None, true) => {
                let Sockets { local, index, .. } = self.sockets;
                let socket = socket::open_group(group, local, index, &self.spec, self.report.gro)?;
                watch(&self.readiness, &socket)?;
                self.groups.push(Group { address: group, socket, overflow: 0 });
            }
            (Some(place), false) => {
                let left = self.groups.swap_remove(place);
                self.old_overflow += u64::from(left.overflow);
                // Closing the socket does the same, unless a child of a fork has it. In the child, the group
                // and the watch are still those of the parent.
                if self.process.is_current() {
                    let Sockets { local, index, .. } = self.sockets;
                    let _ = set_member(&left.socket, group, (index, Some(local.ip())), false);
                    let _ = epoll::delete(&self.readiness, &left.socket);
                }
            }
            (Some(_), true) | (None, false) => {}
        }
        Ok(())
    }

    fn claim_service(&mut self, service_id: u64) -> io::Result<()> {
        self.member.as_mut().map_or(Ok(()), |member| member.claim_service(service_id))
    }

    fn leave_requests(&mut self) {
        if let Some(member) = &mut self.member {
            member.leave_requests(&self.readiness);
        }
    }

    fn release_service(&mut self, service_id: u64) {
        if let Some(member) = &mut self.member {
            member.release_service(service_id);
        }
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.transmitter.counters.visit(visit);
        self.receiver.counters.visit(visit);
        let overflow = self.groups.iter().map(|group| u64::from(group.overflow)).sum::<u64>();
        let (member, front) = match &self.member {
            Some(member) => (*member.counters(), member.overflow()),
            None => Default::default(),
        };
        member.visit(visit);
        let main = self.overflow.wrapping_sub(self.overflow_before);
        visit("udp_rx_overflow", u64::from(main) + u64::from(front) + self.old_overflow + overflow);
        visit("udp_reported_errors", self.transmitter.reported_errors + self.receiver.reported_errors);
    }
}

impl Drop for UdpDevice {
    fn drop(&mut self) {
        // The child of a fork shares the socket with its parent.
        if let Some(member) = &self.member
            && self.process.is_current()
            && self.identity.is_of(&self.sockets.main)
        {
            member.leave(&self.sockets.main);
        }
    }
}

impl std::fmt::Debug for UdpDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpDevice")
            .field("local", &self.sockets.local)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// Creates a descriptor that stays the same when groups are joined and left.
fn readiness_of(socket: &Socket, member: Option<&Member>) -> io::Result<OwnedFd> {
    let readiness = aside(epoll::create(epoll::CreateFlags::CLOEXEC)?);
    watch(&readiness, socket)?;
    if let Some(member) = member {
        for rare in member.rare() {
            watch(&readiness, rare)?;
        }
    }
    Ok(readiness)
}

fn watch(readiness: &OwnedFd, socket: impl AsFd) -> io::Result<()> {
    Ok(epoll::add(readiness, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

const IPV4_AND_UDP: usize = 20 + 8;
const IPV6_AND_UDP: usize = 40 + 8;
