//! The device that a command opens if the user chose none.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context as _, bail};
use roce_packet::ROCE_UDP_PORT;

use roce_device::local_addresses;
use roce_device::udp::UdpSpec;
use roce_exchange::own_addresses;

/// Returns the default device of a client: the local address of the route to the server. Client and server on
/// one machine need different addresses; 127.0.0.0/8 provides them.
pub(super) fn device_towards(server: SocketAddr) -> anyhow::Result<String> {
    let local: SocketAddr = match server.ip() {
        IpAddr::V4(address) if address.is_loopback() => {
            let other = if address == Ipv4Addr::LOCALHOST {
                Ipv4Addr::new(127, 0, 0, 2)
            } else {
                Ipv4Addr::LOCALHOST
            };
            (other, 0).into()
        }
        IpAddr::V6(address) if address.is_loopback() => bail!(
            "server and client cannot both use [::1], and IPv6 has no second loopback address; use 127.0.0.1 on the server, or \
             give each side a --device with a different port"
        ),
        address => {
            let any: SocketAddr = if address.is_ipv4() {
                (Ipv4Addr::UNSPECIFIED, 0).into()
            } else {
                (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
            };
            // Connecting a UDP socket sends nothing. It makes the kernel choose the route.
            let socket = UdpSocket::bind(any).context("cannot open a socket to look up the route")?;
            let mut there = server;
            there.set_port(ROCE_UDP_PORT);
            socket.connect(there).with_context(|| format!("no route to {address}"))?;
            let local = socket.local_addr().context("cannot read the local address of the route")?;
            if local.ip() == address {
                bail!(
                    "{address} is an address of this machine, and client and server on one machine need two \
                     addresses; use 127.0.0.1 as the address of the server, or give each side a --device"
                );
            }
            local
        }
    };
    Ok(device_at(local))
}

/// Returns the default device on an address with a zone.
pub(super) fn device_at(address: SocketAddr) -> String {
    let mut spec = UdpSpec::new(address.ip());
    if let SocketAddr::V6(local) = address
        && local.scope_id() != 0
    {
        let interfaces = local_addresses().unwrap_or_default();
        let interface = interfaces.into_iter().find(|found| found.index == local.scope_id());
        spec.zone = Some(interface.map_or_else(|| local.scope_id().to_string(), |found| found.interface));
    }
    spec.to_string()
}

/// Returns the default device on an address.
pub(super) fn device_on(address: IpAddr) -> String {
    UdpSpec::new(address).to_string()
}

/// Returns the device on the address that a client called, or on 127.0.0.1 for a TCP of the device's own.
pub(super) fn called_device(called: Option<SocketAddr>) -> String {
    called.map_or_else(|| device_on(Ipv4Addr::LOCALHOST.into()), device_at)
}

/// Returns the device of a server without TCP connections, which would reveal the called address. It is the
/// only address of this machine that others can reach.
pub(super) fn only_device() -> anyhow::Result<String> {
    let addresses = own_addresses();
    let reached: Vec<_> = addresses.iter().filter(|local| !local.is_loopback).collect();
    let of_version = |is_ipv4: bool| {
        let is_usable = |address: IpAddr| match address {
            IpAddr::V4(_) => is_ipv4,
            IpAddr::V6(address) => !is_ipv4 && !address.is_unicast_link_local(),
        };
        reached.iter().filter(|local| is_usable(local.address)).collect::<Vec<_>>()
    };
    let (v4, v6) = (of_version(true), of_version(false));
    match (v4.as_slice(), v6.as_slice()) {
        ([], []) => Ok(device_on(Ipv4Addr::LOCALHOST.into())),
        ([only], _) | ([], [only]) => Ok(device_on(only.address)),
        _ => {
            let all: Vec<String> =
                v4.iter().chain(&v6).map(|local| format!("--device {}", device_on(local.address))).collect();
            bail!("this machine has several addresses; choose one with {}", all.join(" or "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connect::resolve;
    use super::*;

    #[test]
    fn a_link_local_address_keeps_its_zone() {
        let address = resolve("fe80::1%lo", 7).unwrap();
        let SocketAddr::V6(v6) = address else { panic!("{address}") };
        assert!(v6.scope_id() > 0 && v6.port() == 7, "{v6}");
        let listed = local_addresses().unwrap();
        if listed.iter().any(|local| local.interface == "lo") {
            assert_eq!(device_at(address), "udp:[fe80::1%lo]");
        }
        assert_eq!(device_at("[2001:db8::1]:9".parse().unwrap()), "udp:[2001:db8::1]");
        assert_eq!(device_at("192.0.2.1:9".parse().unwrap()), "udp:192.0.2.1");
    }
}
