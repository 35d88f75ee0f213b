//! The kernel as the host of a device, for packet sockets and AF_XDP, which share an interface with it.
//!
//! The addresses are those of the kernel on the interface. The kernel answers ARP and NDP requests for them,
//! and this host queries routes and neighbours by rtnetlink. The output and changes of `ip neigh` and
//! `ip route` apply here too, including static entries and gateways.
//!
//! # Making the kernel ask
//!
//! For an unknown neighbour, this host sends an empty datagram to the discard port, with hop limit 1, so it
//! is not forwarded. Like for any program that sends, the kernel then resolves the neighbour, keeps the
//! answer, confirms it while it is used and later forgets it. This requires no privilege. (`RTM_NEWNEIGH`
//! with `NTF_USE` would avoid the datagram, but requires `CAP_NET_ADMIN`, unlike a packet socket.) A stale
//! neighbour is handled in the same way, because frames of this device bypass the kernel, which otherwise
//! would not notice that the neighbour is in use or has moved.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::time::Duration;

use roce_machine::interfaces::gid_order;
use roce_machine::netlink::Netlink;
use roce_machine::routes::{Neighbour, Route};
use roce_packet::{MacAddr, ROCE_UDP_PORT};
use roce_transport::Instant;
use socket2::{Domain, Protocol, Socket, Type};

use crate::OpenError;
use crate::counters::counters;
use crate::fork::Process;
use crate::framed::{Host, Resolution, Unreachable};
use crate::link::Link;
use crate::sockets::{check_group, receive_nothing, set_member, set_send_queue, with_scope};

pub use roce_machine::routes::{NextHop, next_hop};

/// A host that shares the addresses of an interface with the kernel.
pub(crate) struct KernelHost {
    interface: u32,
    mac: MacAddr,
    addresses: Vec<IpAddr>,
    netlink: Netlink,
    solicitor: Solicitor,
    known: HashMap<IpAddr, Entry>,
    /// The neighbours that the kernel is resolving for this host, by destination, with start times. Some of
    /// them may have answered.
    asked: VecDeque<(IpAddr, Instant)>,
    /// Time of the next removal of those that have answered.
    sort_out_at: Instant,
    /// Each socket keeps the kernel in one multicast group.
    groups: Vec<(IpAddr, Socket)>,
    process: Process,
    /// Sockets bound to port 4791 of every address, which receive nothing.
    _reservations: Vec<Socket>,
    counters: Counters,
}

/// The state of one destination.
#[derive(Clone, Debug)]
struct Entry {
    /// The neighbour that frames go to; `None` before the first lookup and if no neighbour is needed.
    next_hop: Option<IpAddr>,
    answer: Resolution,
    /// Until this time, `answer` is returned without a lookup.
    check_at: Instant,
    /// When the kernel was made to ask, unless it has resolved the neighbour since.
    asked_at: Option<Instant>,
    /// When the kernel was last made to ask.
    asked_last: Instant,
    /// Time until the next lookup while the kernel asks.
    wait_ns: u64,
}

impl Entry {
    /// Returns whether a lookup starts a new resolution: the last one failed, or was not checked for longer
    /// than a resolution may take.
    fn must_restart(&self, now: Instant) -> bool {
        let unwatched = now.since(self.check_at).as_nanos();
        matches!(self.answer, Resolution::Failed(_)) || unwatched >= u128::from(GIVE_UP_NS)
    }
}

counters! {
    struct Counters {
        /// Requests to the kernel for the route or the neighbour of a destination.
        lookups => "host_lookups",
        /// Datagrams that made the kernel resolve a neighbour.
        asked => "host_asked",
        /// Neighbours that appeared with another Ethernet address.
        moved => "host_moved",
        /// Neighbours that were given up because they did not answer.
        unanswered => "host_unanswered",
        /// Requests that the kernel failed to answer.
        errors => "host_errors",
    }
}

impl KernelHost {
    /// Binds port 4791 of the addresses of an interface. `spec` is the user's text, for errors.
    pub(crate) fn open(spec: &str, link: &Link) -> Result<Self, OpenError> {
        let mut netlink = Netlink::open().map_err(OpenError::at(spec, "open a netlink socket"))?;
        let mut own = netlink.addresses().map_err(OpenError::at(spec, "ask for the addresses"))?;
        own.retain(|own| own.interface == link.index);
        let mut addresses: Vec<IpAddr> =
            own.iter().filter(|own| own.is_usable).map(|own| own.address).collect();
        // Otherwise the order would be the kernel's.
        addresses.sort_by_key(|address| gid_order(*address));
        if addresses.is_empty() {
            let name = &link.name;
            let problem = if own.is_empty() {
                format!("{name} has no IP address; add one with `ip address add ADDRESS/LENGTH dev {name}`")
            } else {
                format!(
                    "no address of {name} is usable yet: the kernel checks for two seconds whether another host has it, or has \
                     found such a host (`ip address show dev {name}` shows tentative or dadfailed)"
                )
            };
            return Err(OpenError::Unsuitable { spec: spec.to_owned(), problem });
        }
        let mut reservations = Vec::with_capacity(addresses.len());
        for address in &addresses {
            reservations.push(reserve(spec, *address, link.index)?);
        }
        let solicitor =
            Solicitor::new(link).map_err(OpenError::at(spec, "open a UDP socket on the interface"))?;
        Ok(Self {
            interface: link.index,
            mac: link.mac,
            addresses,
            netlink,
            solicitor,
            known: HashMap::new(),
            asked: VecDeque::new(),
            sort_out_at: Instant::ZERO,
            groups: Vec::new(),
            process: Process::current(),
            _reservations: reservations,
            counters: Counters::default(),
        })
    }

    /// Queries the kernel about a destination.
    fn look(&mut self, now: Instant, destination: IpAddr) -> Resolution {
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        let mut entry = self.known.remove(&destination).unwrap_or(Entry {
            next_hop: None,
            answer: Resolution::Pending,
            check_at: now,
            asked_at: None,
            asked_last: Instant::ZERO,
            wait_ns: FIRST_WAIT_NS,
        });
        self.counters.lookups += 1;
        if let Err(error) = self.update(now, destination, &mut entry) {
            // The old answer remains valid until the kernel can be queried again.
            tracing::debug!(%destination, %error, "the kernel does not answer a request for a route or neighbour");
            self.counters.errors += 1;
            entry.check_at = now.plus_nanos(ERROR_NS);
        }
        let answer = entry.answer.clone();
        self.known.insert(destination, entry);
        answer
    }

    fn update(&mut self, now: Instant, destination: IpAddr, entry: &mut Entry) -> io::Result<()> {
        if entry.must_restart(now) {
            entry.asked_at = None;
            entry.wait_ns = FIRST_WAIT_NS;
        }
        // While the neighbour is being resolved, its route is not looked up repeatedly.
        if entry.answer != Resolution::Pending || entry.next_hop.is_none() {
            let (answer, next_hop) = match self.netlink.route(destination, self.interface)? {
                Route::Neighbour(next_hop) => (None, Some(next_hop)),
                Route::Local => (Some(Resolution::Known(self.mac)), None),
                Route::Multicast => (MacAddr::for_multicast(destination).map(Resolution::Known), None),
                Route::Unreachable => (Some(Resolution::Failed(Unreachable::NoRoute)), None),
            };
            if next_hop != entry.next_hop {
                entry.asked_at = None;
                entry.next_hop = next_hop;
            }
            entry.answer = answer.unwrap_or_else(|| entry.answer.clone());
            entry.check_at = now.plus_nanos(REFRESH_NS);
        }
        match entry.next_hop {
            Some(next_hop) => self.update_neighbour(now, destination, next_hop, entry),
            None => Ok(()),
        }
    }

    /// Returns whether the kernel may resolve one more neighbour. Its table holds about a thousand entries
    /// for the whole machine, so neighbours that do not answer must not fill it.
    fn may_ask(&mut self, now: Instant, destination: IpAddr) -> bool {
        let Self { asked, known, .. } = self;
        if asked.len() >= MAX_ASKED && now >= self.sort_out_at {
            self.sort_out_at = now.plus_nanos(SORT_OUT_NS);
            asked.retain(|(asked_for, at)| {
                let is_pending = |entry: &Entry| entry.answer == Resolution::Pending;
                now.since(*at).as_nanos() < u128::from(GIVE_UP_NS)
                    && known.get(asked_for).is_some_and(is_pending)
            });
        }
        // A neighbour that has not answered promptly probably never will, so it must not delay others.
        let is_slow = |(_, at): &(IpAddr, Instant)| now.since(*at).as_nanos() >= u128::from(PROMPT_NS);
        let place = asked.len().checked_sub(MAX_ASKED_AT_ONCE);
        let has_room =
            asked.len() < MAX_ASKED && place.and_then(|place| asked.get(place)).is_none_or(is_slow);
        if has_room {
            self.asked.push_back((destination, now));
        }
        has_room
    }

    fn update_neighbour(
        &mut self,
        now: Instant,
        destination: IpAddr,
        next_hop: IpAddr,
        entry: &mut Entry,
    ) -> io::Result<()> {
        let found = self.netlink.neighbour(next_hop, self.interface)?;
        if let Neighbour::Known { mac, is_stale } = found {
            if matches!(&entry.answer, Resolution::Known(old) if *old != mac) {
                self.counters.moved += 1;
                tracing::debug!(%next_hop, %mac, "a neighbour has a new Ethernet address");
            }
            if is_stale {
                self.ask(now, next_hop, entry);
            }
            entry.answer = Resolution::Known(mac);
            entry.asked_at = None;
            entry.wait_ns = FIRST_WAIT_NS;
            entry.check_at = now.plus_nanos(REFRESH_NS);
            return Ok(());
        }
        let is_known = matches!(entry.answer, Resolution::Known(_));
        if entry.asked_at.is_none() && !is_known && !self.may_ask(now, destination) {
            entry.answer = Resolution::Pending;
            entry.check_at = now.plus_nanos(LONGEST_WAIT_NS);
            return Ok(());
        }
        let is_due = now.since(entry.asked_last).as_nanos() >= u128::from(REFRESH_NS);
        if entry.asked_at.is_none() || is_due && found == Neighbour::Unknown {
            self.ask(now, next_hop, entry);
        }
        let asked_at = *entry.asked_at.get_or_insert(now);
        if now.since(asked_at).as_nanos() >= u128::from(GIVE_UP_NS) {
            self.counters.unanswered += 1;
            entry.answer = Resolution::Failed(Unreachable::NoAnswer { next_hop });
            entry.check_at = now.plus_nanos(RETRY_NS);
            return Ok(());
        }
        // Continue sending to a neighbour that was known, because the kernel may only have forgotten it.
        if !is_known {
            entry.answer = Resolution::Pending;
        }
        entry.check_at = now.plus_nanos(entry.wait_ns);
        entry.wait_ns = (2 * entry.wait_ns).min(LONGEST_WAIT_NS);
        Ok(())
    }

    fn ask(&mut self, now: Instant, next_hop: IpAddr, entry: &mut Entry) {
        entry.asked_last = now;
        self.counters.asked += 1;
        if let Err(error) = self.solicitor.ask(next_hop) {
            self.counters.errors += 1;
            tracing::debug!(%next_hop, %error, "the kernel cannot be made to resolve a neighbour");
        }
    }
}

impl Host for KernelHost {
    fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    fn scope_id(&self) -> Option<u32> {
        Some(self.interface)
    }

    fn resolve(&mut self, now: Instant, destination: IpAddr) -> Resolution {
        if let Some(entry) = self.known.get(&destination)
            && now < entry.check_at
        {
            return entry.answer.clone();
        }
        self.look(now, destination)
    }

    fn set_multicast(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        check_group(group)?;
        let place = self.groups.iter().position(|(known, _)| *known == group);
        match (place, join) {
            (None, true) => self.groups.push((group, member(group, self.interface)?)),
            (Some(place), false) => {
                let (_, socket) = self.groups.swap_remove(place);
                // Closing the socket does the same, unless a child of a fork has it.
                if self.process.is_current() {
                    let _ = set_member(&socket, group, (self.interface, None), false);
                }
            }
            (Some(_), true) | (None, false) => {}
        }
        Ok(())
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.visit(visit);
    }
}

/// Sends datagrams that make the kernel resolve neighbours.
struct Solicitor {
    interface: u32,
    v4: Socket,
    /// `None` if the kernel has no IPv6.
    v6: Option<Socket>,
}

impl Solicitor {
    fn new(link: &Link) -> io::Result<Self> {
        let open = |domain| {
            let socket = send_only_socket(domain)?;
            socket.bind_device(Some(link.name.as_bytes()))?;
            // A datagram to an unresolved neighbour is charged until the kernel gives the neighbour up. With
            // the default size, 256 of them would prevent requests for all other neighbours.
            set_send_queue(&socket, SEND_QUEUE_BYTES);
            Ok::<_, io::Error>(socket)
        };
        let v4 = open(Domain::IPV4)?;
        v4.set_ttl_v4(1)?;
        let v6 = open(Domain::IPV6).ok();
        if let Some(v6) = &v6 {
            v6.set_unicast_hops_v6(1)?;
        }
        Ok(Self { interface: link.index, v4, v6 })
    }

    fn ask(&self, next_hop: IpAddr) -> io::Result<()> {
        let to = with_scope(next_hop, DISCARD_PORT, self.interface).into();
        match (next_hop, &self.v6) {
            // A gateway is a neighbour, even if no route leads to it.
            (IpAddr::V4(_), _) => self.v4.send_to_with_flags(&[], &to, libc::MSG_DONTROUTE)?,
            (IpAddr::V6(_), Some(v6)) => v6.send_to(&[], &to)?,
            (IpAddr::V6(_), None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(())
    }
}

/// Binds port 4791 of an address. Otherwise the kernel would answer every frame with "port unreachable", and
/// another RoCE device on the same address would share its packets with this one.
fn reserve(spec: &str, address: IpAddr, interface: u32) -> Result<Socket, OpenError> {
    let local = with_scope(address, ROCE_UDP_PORT, interface);
    let attempt = || {
        let socket = send_only_socket(Domain::for_address(local))?;
        if local.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&local.into())?;
        Ok(socket)
    };
    let mut result: io::Result<Socket> = attempt();
    for _ in 0..PORT_TRIES {
        // The previous owner may just have ended.
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            break;
        }
        std::thread::sleep(PORT_PAUSE);
        result = attempt();
    }
    result.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => {
            OpenError::PortInUse { spec: spec.to_owned(), address, port: ROCE_UDP_PORT }
        }
        _ => OpenError::System { spec: spec.to_owned(), step: "hold UDP port 4791", error: source },
    })
}

/// Opens a socket that keeps the kernel in a group. It is not bound, so it receives no datagrams.
fn member(group: IpAddr, interface: u32) -> io::Result<Socket> {
    let socket = send_only_socket(if group.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 })?;
    set_member(&socket, group, (interface, None), true)?;
    Ok(socket)
}

/// Opens a UDP socket for which the kernel queues nothing.
fn send_only_socket(domain: Domain) -> io::Result<Socket> {
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    receive_nothing(&socket)?;
    let _ = socket.set_recv_buffer_size(0);
    debug_assert!(socket.recv(&mut [MaybeUninit::uninit()]).is_err());
    Ok(socket)
}

/// Maximum age of an answer, and minimum time between two solicitations.
const REFRESH_NS: u64 = 1_000_000_000;
/// Maximum number of neighbours that the kernel is resolving and has not given up.
const MAX_ASKED: usize = 448;
/// Maximum number of those within the time in which a present neighbour answers.
const MAX_ASKED_AT_ONCE: usize = 128;
const PROMPT_NS: u64 = 100_000_000;
/// Room for a datagram to each of them. Unprivileged users get room for 512.
const SEND_QUEUE_BYTES: usize = 1 << 20;
/// Interval between removals of neighbours that have answered.
const SORT_OUT_NS: u64 = 1_000_000;
/// Time until an unanswered neighbour is resolved again.
const RETRY_NS: u64 = 250_000_000;
/// Maximum time for an answer. The kernel asks three times, a second apart.
const GIVE_UP_NS: u64 = 3_000_000_000;
/// Time until the first lookup after asking; an answer from the same switch takes about as long.
const FIRST_WAIT_NS: u64 = 100_000;
/// Maximum time between lookups of an answer.
const LONGEST_WAIT_NS: u64 = 20_000_000;
/// Time until the next request after one that the kernel did not answer.
const ERROR_NS: u64 = 100_000_000;
/// Number of and time between attempts to bind a port that is in use.
const PORT_TRIES: u32 = 10;
const PORT_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of stored destinations.
const MAX_KNOWN: usize = 65_536;
/// The discard port (RFC 863).
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests;
