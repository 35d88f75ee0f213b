//! Datagram rsockets: a UD queue pair for each address of this end, and a UDP socket through which the ends
//! exchange their queue pair numbers.
//!
//! librdmacm has a thread for the UDP socket. Here the calls of the application check the socket: when they
//! wait, and when they send to an end whose queue pair is unknown. Until it is known, datagrams use UDP.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::MutexGuard;

use roce::device::fork::Mutex;
use roce::verbs::{AddressHandle, PathOptions, Qpn};
use rustix::event::epoll;

use super::descriptors::{wait_readable, watch_descriptor};
use super::endpoint::{DatagramEndpoint, LONGEST, Slot};
use super::service::{self, Message};
use super::settings::Options;
use crate::abi::RDMA_UDP_QKEY;
use crate::answer::Errno;

/// Maximum number of peers with remembered queue pairs, and of datagrams that arrived by UDP.
const MOST_DESTINATIONS: usize = 1024;
/// Maximum number of UDP messages per check.
const BURST: usize = 16;

/// A datagram rsocket.
pub(super) struct DatagramSocket {
    pub(super) watch: OwnedFd,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) options: Options,
    pub(super) is_nonblocking: bool,
    is_ipv4: bool,
    is_readable: bool,
    is_writable: bool,
    /// Created when the rsocket is bound or used for the first time.
    udp: Option<UdpSocket>,
    endpoints: Vec<DatagramEndpoint>,
    destinations: HashMap<SocketAddr, Destination>,
    peer: Option<SocketAddr>,
    received: VecDeque<Received>,
}

struct Destination {
    endpoint: usize,
    /// The queue pair of the peer, once the peer has announced it.
    handle: Option<AddressHandle>,
}

/// A datagram that was not read yet.
enum Received {
    /// The datagram is in the memory of an endpoint.
    Slot(usize, Slot),
    /// The datagram arrived by UDP.
    Message(SocketAddr, Vec<u8>),
}

impl DatagramSocket {
    pub(super) fn new(is_ipv4: bool) -> Result<Self, Errno> {
        let state = State {
            options: Options::default(),
            is_nonblocking: false,
            is_ipv4,
            is_readable: true,
            is_writable: true,
            udp: None,
            endpoints: Vec::new(),
            destinations: HashMap::new(),
            peer: None,
            received: VecDeque::new(),
        };
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        Ok(Self { watch, state: Mutex::new(state) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        let mut state = self.state();
        if state.udp.is_some() {
            return Err(Errno::INVALID);
        }
        state.open_udp(&self.watch, address)
    }

    pub(super) fn connect(&self, to: SocketAddr) -> Result<(), Errno> {
        let mut state = self.state();
        state.destination(&self.watch, to)?;
        state.peer = Some(to);
        Ok(())
    }

    pub(super) fn shut_down(&self, how: c_int) -> Result<(), Errno> {
        let mut state = self.state();
        match how {
            libc::SHUT_RD => state.is_readable = false,
            libc::SHUT_WR => state.is_writable = false,
            libc::SHUT_RDWR => (state.is_readable, state.is_writable) = (false, false),
            _ => return Err(Errno::INVALID),
        }
        Ok(())
    }

    /// Returns the address of this end: that of the endpoint towards the peer, if it is connected.
    pub(super) fn own_address(&self) -> Option<SocketAddr> {
        let state = self.state();
        let connected = state.peer.and_then(|peer| state.destinations.get(&peer));
        match connected.and_then(|destination| state.endpoints.get(destination.endpoint)) {
            Some(endpoint) => Some(endpoint.own),
            None => state.udp.as_ref()?.local_addr().ok(),
        }
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        self.state().peer
    }

    /// Makes progress until `test` returns a value.
    fn wait<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        is_nonblocking: bool,
        test: impl Fn(&mut State) -> Option<T>,
    ) -> Result<(MutexGuard<'a, State>, T), Errno> {
        loop {
            state.take_completions()?;
            if let Some(found) = test(&mut state) {
                return Ok((state, found));
            }
            state.serve(&self.watch);
            if let Some(found) = test(&mut state) {
                return Ok((state, found));
            }
            if is_nonblocking {
                return Err(Errno::AGAIN);
            }
            state.arm()?;
            // This check finds completions from before the request for an event.
            state.take_completions()?;
            if let Some(found) = test(&mut state) {
                return Ok((state, found));
            }
            drop(state);
            wait_readable(&self.watch)?;
            state = self.state();
        }
    }

    /// Sends a datagram from several buffers.
    pub(super) fn send(
        &self,
        buffers: &[&[u8]],
        flags: c_int,
        to: Option<SocketAddr>,
    ) -> Result<isize, Errno> {
        let mut state = self.state();
        if !state.is_writable {
            return Err(Errno(libc::EPIPE));
        }
        let is_nonblocking = state.is_nonblocking || flags & libc::MSG_DONTWAIT != 0;
        let to = to.or(state.peer).ok_or(Errno(libc::EDESTADDRREQ))?;
        let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let (mut index, mut handle) = state.destination(&self.watch, to)?;
        if handle.is_none() {
            state.serve(&self.watch);
            (index, handle) = state.destination(&self.watch, to)?;
        }
        let (header, header_len) = service::header(state.endpoints[index].own);
        if header_len + length > state.endpoints[index].longest {
            return Err(Errno(libc::EMSGSIZE));
        }
        let Some(handle) = handle else {
            let qpn = state.endpoints[index].qpn.get();
            let message = Message { qpn, data: Some(&buffers.concat()) }.emit(state.endpoints[index].own);
            state.udp.as_ref().ok_or(Errno::INVALID)?.send_to(&message, to)?;
            return Ok(length.cast_signed());
        };
        let has_slot = |state: &mut State| state.endpoints[index].take_slot();
        let (state, slot) = self.wait(state, is_nonblocking, has_slot)?;
        state.endpoints[index].send(slot, &header[..header_len], buffers, &handle)?;
        Ok(length.cast_signed())
    }

    /// Receives a datagram and passes its bytes to `read`.
    pub(super) fn receive<T>(
        &self,
        flags: c_int,
        read: impl FnOnce(&[u8], SocketAddr) -> T,
    ) -> Result<T, Errno> {
        let state = self.state();
        let is_nonblocking = state.is_nonblocking || flags & libc::MSG_DONTWAIT != 0;
        if !state.is_readable {
            return Err(Errno::INVALID);
        }
        let has_some = |state: &mut State| (!state.received.is_empty()).then_some(());
        let (mut state, ()) = self.wait(state, is_nonblocking, has_some)?;
        let (answer, slot) = match state.received.front() {
            Some(Received::Message(from, data)) => (read(data, *from), None),
            Some(Received::Slot(index, slot)) => {
                let (from, data) = state.endpoints[*index].datagram(slot).ok_or(Errno::IO)?;
                (read(data, from), Some((*index, *slot)))
            }
            None => return Err(Errno::AGAIN),
        };
        if flags & libc::MSG_PEEK == 0 {
            state.received.pop_front();
            if let Some((index, slot)) = slot {
                state.endpoints[index].post_receive(slot.number)?;
            }
        }
        Ok(answer)
    }

    /// Makes progress without waiting, and returns the poll events. Before a sleep, also requests an event
    /// for the next completion.
    pub(super) fn look(&self, is_sleep_next: bool) -> i16 {
        let mut state = self.state();
        let mut progressed = state.take_completions();
        state.serve(&self.watch);
        if is_sleep_next {
            progressed = progressed.and_then(|()| state.arm()).and_then(|()| state.take_completions());
        }
        if progressed.is_err() {
            return libc::POLLERR;
        }
        let can_send = state.is_writable && state.endpoints.iter().all(DatagramEndpoint::has_slot);
        let has_data = !state.received.is_empty() || !state.is_readable;
        (if has_data { libc::POLLIN } else { 0 }) | if can_send { libc::POLLOUT } else { 0 }
    }
}

impl State {
    fn open_udp(&mut self, watch: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
        let udp = UdpSocket::bind(address)?;
        udp.set_nonblocking(true)?;
        watch_descriptor(watch, udp.as_raw_fd())?;
        self.udp = Some(udp);
        Ok(())
    }

    /// Returns the source address of datagrams to another end.
    fn source(&mut self, watch: &OwnedFd, to: SocketAddr) -> Result<SocketAddr, Errno> {
        if to.is_ipv4() != self.is_ipv4 {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        let any: IpAddr =
            if self.is_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if self.udp.is_none() {
            self.open_udp(watch, SocketAddr::new(any, 0))?;
        }
        let own = self.udp.as_ref().ok_or(Errno::INVALID)?.local_addr()?;
        if !own.ip().is_unspecified() {
            return Ok(own);
        }
        let routed = UdpSocket::bind((any, 0))?;
        routed.connect(to)?;
        Ok(SocketAddr::new(routed.local_addr()?.ip(), own.port()))
    }

    /// Returns the endpoint towards another end, which is created if needed, and the queue pair there if it
    /// is known.
    fn destination(
        &mut self,
        watch: &OwnedFd,
        to: SocketAddr,
    ) -> Result<(usize, Option<AddressHandle>), Errno> {
        if let Some(known) = self.destinations.get(&to) {
            return Ok((known.endpoint, known.handle.clone()));
        }
        let own = self.source(watch, to)?;
        let endpoint = match self.endpoints.iter().position(|endpoint| endpoint.own == own) {
            Some(known) => known,
            None => {
                let new = DatagramEndpoint::new(own, &self.options)?;
                watch_descriptor(watch, new.descriptor())?;
                self.endpoints.push(new);
                self.endpoints.len() - 1
            }
        };
        if self.destinations.len() >= MOST_DESTINATIONS {
            // The peer announces its queue pair again when it is needed.
            let other = self.destinations.keys().find(|known| Some(**known) != self.peer).copied();
            other.map(|other| self.destinations.remove(&other));
        }
        self.destinations.insert(to, Destination { endpoint, handle: None });
        Ok((endpoint, None))
    }

    /// Handles messages over UDP.
    fn serve(&mut self, watch: &OwnedFd) {
        let mut bytes = [0; LONGEST];
        for _ in 0..BURST {
            let Some(udp) = &self.udp else { return };
            let Ok((length, from)) = udp.recv_from(&mut bytes) else { return };
            if let Some(message) = Message::parse(&bytes[..length], from) {
                // Ignores a message of an end that cannot be reached from here.
                let _ = self.take_message(watch, from, &message);
            }
        }
    }

    fn take_message(
        &mut self,
        watch: &OwnedFd,
        from: SocketAddr,
        message: &Message<'_>,
    ) -> Result<(), Errno> {
        let (index, handle) = self.destination(watch, from)?;
        let endpoint = &self.endpoints[index];
        if message.data.is_some() {
            let answer = Message { qpn: endpoint.qpn.get(), data: None }.emit(endpoint.own);
            self.udp.as_ref().ok_or(Errno::INVALID)?.send_to(&answer, from)?;
        }
        if handle.is_none_or(|handle| handle.destination().remote_qpn.get() != message.qpn) {
            let options = PathOptions::default().sgid_index(endpoint.gid_index());
            let new = endpoint.open.context.create_address_handle(
                from.ip(),
                Qpn::new(message.qpn),
                RDMA_UDP_QKEY,
                &options,
            );
            let handle = Some(new.map_err(|error| Errno(error.errno()))?);
            self.destinations.insert(from, Destination { endpoint: index, handle });
        }
        if let Some(data) = message.data
            && self.received.len() < MOST_DESTINATIONS
        {
            self.received.push_back(Received::Message(from, data.to_vec()));
        }
        Ok(())
    }

    fn take_completions(&mut self) -> Result<(), Errno> {
        for (index, endpoint) in self.endpoints.iter_mut().enumerate() {
            let received = &mut self.received;
            endpoint.take_completions(|slot| received.push_back(Received::Slot(index, slot)))?;
        }
        Ok(())
    }

    fn arm(&self) -> Result<(), Errno> {
        self.endpoints.iter().try_for_each(DatagramEndpoint::arm)
    }
}
