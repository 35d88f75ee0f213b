//! The steps that need only this side.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use roce_packet::{Encapsulation, PathMtu, ROCE_UDP_PORT};
use rustix::net::sockopt;

use super::doctor::Doctor;
use super::finding::{Finding, Step};
use super::neighbour::Hop;
use super::peer::Peer;
use roce::verbs::GidEntry;
use roce_device::host::kernel::{NextHop, next_hop};
use roce_device::{LocalAddress, local_addresses};

/// The IP MTU that permits every path MTU, including IPv6 and immediate data.
const ROOMY_MTU: usize = 4200;
/// Number of knocks on UDP port 4791, and the time limit for an answer to each.
const KNOCKS: usize = 3;
const KNOCK_PATIENCE: Duration = Duration::from_millis(200);

/// The observation of a process without a queue pair about UDP port 4791 of the peer.
#[derive(Debug)]
pub(super) enum Reach {
    /// Neither an answer nor a refusal arrived.
    Silent,
    /// ICMP: no process owns the port, or a rule reports so.
    PortUnreachable,
    /// ICMP or the local kernel: the host cannot be reached, or a filter refuses the packet.
    Refused(io::Error),
    /// A rule of this machine drops sent packets.
    OwnRule,
    /// The port was not tested, for this reason.
    NotTested(&'static str),
}

/// The result of knocking.
#[derive(Debug)]
pub(super) struct Knock {
    pub(super) peer: Peer,
    pub(super) reach: Reach,
    /// The largest packet of the path, as the kernel knows it.
    way_mtu: Option<usize>,
}

/// Returns the finding about the device, its GID table and the used entry.
pub(super) fn device(doctor: &Doctor, peer: &Peer) -> Finding {
    let attributes = doctor.context.query();
    let kind = attributes.capabilities.kind;
    let table = doctor.context.gid_table();
    // The first GID may have several indexes.
    let mut different = table.clone();
    different.dedup_by_key(|entry| (entry.gid, entry.gid_type));
    let Some(used) = used_gid(doctor, &table, peer.address) else {
        let family = if peer.address.is_ipv4() { "IPv4" } else { "IPv6" };
        let have: Vec<String> = different.iter().map(describe).collect();
        return Finding::problem(
            Step::Device,
            format!(
                "{kind} has no {family} GID that can send to {}; it has {}",
                peer.address,
                have.join(", ")
            ),
            "open a device with an address of this IP version, or choose another GID with --gid-index (`roce \
             devices -v` lists them)",
        );
    };
    let count = if different.len() == 1 { "1 GID".to_owned() } else { format!("{} GIDs", different.len()) };
    Finding::ok(Step::Device, format!("{kind} with {count}; {} is used", describe(used)))
}

fn used_gid<'a>(doctor: &Doctor, table: &'a [GidEntry], peer: IpAddr) -> Option<&'a GidEntry> {
    match doctor.path.sgid_index {
        Some(index) => table.get(index).filter(|entry| {
            entry.gid_type == Encapsulation::RoceV1 || entry.address().is_ipv4() == peer.is_ipv4()
        }),
        None => table.iter().find(|entry| entry.address().is_ipv4() == peer.is_ipv4()),
    }
}

fn describe(entry: &GidEntry) -> String {
    format!("GID {} ({}, {})", entry.index, entry.address(), entry.gid_type.name())
}

/// Returns the interface with the device's address, if the kernel has that address.
fn interface(doctor: &Doctor) -> Option<LocalAddress> {
    interface_of(doctor.context.address()?)
}

/// Returns the interface with an address of this machine.
pub(super) fn interface_of(own: IpAddr) -> Option<LocalAddress> {
    let all = local_addresses().ok()?;
    let exact = all.iter().find(|local| local.address == own);
    exact.or_else(|| all.iter().find(|local| own.is_loopback() && local.is_loopback)).cloned()
}

/// The reason why the kernel cannot be asked about the path.
const OWN_HOST: &str = "the device is a separate host, so the kernel of this machine does not know its route";

/// Sends datagrams without RoCE to port 4791 and waits for ICMP messages. Their payload is too short for a
/// header, or has a transport version that does not exist, so every receiver drops them.
pub(super) fn knock(doctor: &Doctor, peer: &Peer) -> Knock {
    let not_tested = |why| Knock { peer: *peer, reach: Reach::NotTested(why), way_mtu: None };
    if interface(doctor).is_none() {
        return not_tested(OWN_HOST);
    }
    let addresses = doctor.context.query().addresses;
    let Some(own) = addresses.into_iter().find(|own| own.is_ipv4() == peer.address.is_ipv4()) else {
        return not_tested("the device has no address of the peer's IP version");
    };
    let link_mtu = doctor.context.query().capabilities.link_mtu;
    match try_knock(own, peer.address, link_mtu) {
        Ok((reach, way_mtu)) => Knock { peer: *peer, reach, way_mtu },
        Err(error) => Knock { peer: *peer, reach: Reach::Refused(error), way_mtu: None },
    }
}

fn try_knock(own: IpAddr, peer: IpAddr, link_mtu: usize) -> io::Result<(Reach, Option<usize>)> {
    let socket = UdpSocket::bind(SocketAddr::new(own, 0))?;
    socket.connect(SocketAddr::new(peer, ROCE_UDP_PORT))?;
    socket.set_read_timeout(Some(KNOCK_PATIENCE))?;
    match peer {
        IpAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?,
        IpAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?,
    }
    let headers = if peer.is_ipv4() { 28 } else { 48 };
    // The largest packet of the link. If a router cannot forward it, the kernel learns the path MTU.
    let mut large = vec![0; link_mtu.min(9216).saturating_sub(headers)];
    if let Some(version) = large.get_mut(1) {
        *version = 0x0f;
    }
    let mut reach = Reach::Silent;
    for knock in 0..KNOCKS {
        let bytes: &[u8] = if knock == 1 { &large } else { &[0] };
        let Err(error) = socket.send(bytes).and_then(|_| socket.recv(&mut [0; 64])) else { continue };
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                reach = Reach::PortUnreachable;
                break;
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
            // A rule that drops packets of this machine causes this error.
            io::ErrorKind::PermissionDenied => {
                reach = Reach::OwnRule;
                break;
            }
            // The packet exceeds the known path MTU, which is read below.
            _ if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {}
            _ => {
                reach = Reach::Refused(error);
                break;
            }
        }
    }
    let way_mtu = match peer {
        IpAddr::V4(_) => sockopt::ip_mtu(&socket),
        IpAddr::V6(_) => sockopt::ipv6_mtu(&socket),
    };
    Ok((reach, way_mtu.ok().map(|mtu| mtu as usize)))
}

/// Returns the finding about the interface MTU, the path MTU and the packets that fit.
pub(super) fn mtu(doctor: &Doctor, knock: &Knock) -> Finding {
    let link_mtu = doctor.context.query().capabilities.link_mtu;
    let name = interface(doctor).map_or_else(|| "the interface".to_owned(), |local| local.interface);
    let raise = |wanted: usize| format!("`ip link set dev {name} mtu {wanted}`");
    let Some(largest) = doctor.context.largest_path_mtu() else {
        return Finding::problem(
            Step::Mtu,
            format!("{name} has an MTU of {link_mtu}, too small even for path MTU 256"),
            format!("raise the MTU to that of the other side, at least 1500: {}", raise(1500)),
        );
    };
    let fits = format!("{name} has an MTU of {link_mtu}, which carries path MTU {}", largest.bytes());
    if let Some(way_mtu) = knock.way_mtu.filter(|way_mtu| *way_mtu < link_mtu) {
        let overhead = link_mtu_overhead(doctor);
        let carried = PathMtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + overhead <= way_mtu);
        if carried.is_none_or(|carried| carried < largest) {
            let carried = carried.map_or_else(|| "less than 256".to_owned(), |mtu| mtu.bytes().to_string());
            return Finding::problem(
                Step::Mtu,
                format!(
                    "{fits}, but the path to the peer carries only {way_mtu} bytes, so the largest path MTU \
                     is {carried}"
                ),
                format!(
                    "raise the MTU of every hop on the path to {link_mtu} (`tracepath -n PEER` shows the hop \
                     with the smaller MTU), then `ip route flush cache` on both sides; or use a smaller path \
                     MTU (--mtu)"
                ),
            );
        }
    }
    let finding = Finding::ok(Step::Mtu, fits);
    if largest == PathMtu::Mtu4096 {
        return finding;
    }
    finding.with_hint(format!(
        "for path MTU 4096, raise the MTU here, on the other side and on every switch: {}",
        raise(ROOMY_MTU)
    ))
}

fn link_mtu_overhead(doctor: &Doctor) -> usize {
    if doctor.context.query().addresses.iter().any(IpAddr::is_ipv6) { 84 } else { 64 }
}

/// Returns the finding about the route, and the host that takes the packets.
pub(super) fn route(doctor: &Doctor, peer: &Peer) -> (Finding, Option<Hop>) {
    let Some(local) = interface(doctor) else { return (Finding::not_tested(Step::Route, OWN_HOST), None) };
    let hop = next_hop(peer.address, local.index);
    let finding = describe_hop(&local, peer, &hop);
    let Ok(NextHop::Neighbour { address, mac: Some(mac) }) = hop else { return (finding, None) };
    let own = doctor.address().unwrap_or(local.address);
    (finding, Some(Hop::ask(&local, own, address, address != peer.address, mac)))
}

fn describe_hop(local: &LocalAddress, peer: &Peer, hop: &io::Result<NextHop>) -> Finding {
    let (name, address) = (&local.interface, peer.address);
    match hop {
        Err(error) => Finding::not_tested(Step::Route, format!("cannot read the route: {error}")),
        Ok(NextHop::Local) => Finding::ok(Step::Route, format!("{address} is on this machine")),
        Ok(NextHop::Multicast) => Finding::problem(
            Step::Route,
            format!("{address} is a multicast group"),
            "give the address of one machine",
        ),
        Ok(NextHop::Unreachable) => Finding::problem(
            Step::Route,
            format!("there is no route to {address} through {name}"),
            format!(
                "add a route (`ip route add {address} via GATEWAY dev {name}`), or choose another --device"
            ),
        ),
        Ok(NextHop::Neighbour { address: next_hop, mac }) => neighbour(name, address, *next_hop, *mac),
    }
}

fn neighbour(name: &str, address: IpAddr, next_hop: IpAddr, mac: Option<roce_packet::MacAddr>) -> Finding {
    let who = if next_hop == address { "neighbour".to_owned() } else { format!("gateway {next_hop}") };
    match mac {
        Some(mac) => Finding::ok(Step::Route, format!("through {name} to the {who}, Ethernet address {mac}")),
        // Neighbours on tunnels have no Ethernet addresses. Therefore this counts only if the knock was sent.
        None => Finding::problem(
            Step::Route,
            format!(
                "the {who} does not answer address resolution on {name}: it is down, or not on this link"
            ),
            format!(
                "check that it is up and has the address {next_hop} (`ip neigh show dev {name}`, `arping -I \
                 {name} {next_hop}`), that both are in the same VLAN, and that the netmask is correct"
            ),
        ),
    }
}

/// Returns the finding of the knock about UDP port 4791. `is_served` means that our program answers there
/// over TCP, after it has opened its device.
pub(super) fn udp_port(peer: &Peer, reach: &Reach, is_served: bool) -> Finding {
    let address = peer.address;
    match reach {
        Reach::NotTested(why) => Finding::not_tested(Step::UdpPort, *why),
        Reach::Silent => Finding::ok(
            Step::UdpPort,
            format!("{address} does not refuse datagrams: a process uses the port, or a firewall drops them"),
        ),
        Reach::PortUnreachable if is_served => Finding::problem(
            Step::UdpPort,
            format!(
                "a firewall rejects datagrams (ICMP port unreachable), although `roce doctor` uses the port \
                 at {address}"
            ),
            format!(
                "accept UDP port 4791 before the rule that rejects it, on {address} (`{ACCEPT}`) or on the \
                 router that rejects it (chain FORWARD)"
            ),
        ),
        Reach::OwnRule => Finding::problem(
            Step::UdpPort,
            format!("a firewall rule of this machine drops datagrams to {address}"),
            format!("accept UDP port 4791: `{}`", ACCEPT.replace("INPUT", "OUTPUT")),
        ),
        Reach::PortUnreachable => Finding::problem(
            Step::UdpPort,
            format!("{address} is up, but nothing uses the port (ICMP port unreachable)"),
            "start a RoCE device there: `roce doctor` itself, kernel Soft-RoCE (`rdma link add rxe0 type rxe netdev \
             IFNAME`), or load the driver of the card (`rdma link`, `ibv_devinfo`)",
        ),
        Reach::Refused(error) => Finding::problem(
            Step::UdpPort,
            format!("datagrams to {address} are refused: {error}"),
            format!(
                "if a firewall rule of a router or of {address} rejects them, accept UDP port 4791 before \
                 that rule (`{ACCEPT}`, on a router in chain FORWARD); if a router has no route, find it \
                 with `ip route get {address}` on each router"
            ),
        ),
    }
}

/// The rule that accepts RoCE. With nftables, `nft insert rule` has the same effect.
pub(super) const ACCEPT: &str = "iptables -I INPUT -p udp --dport 4791 -j ACCEPT";
