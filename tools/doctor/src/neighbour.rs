//! Checks that the Ethernet address that answers for the peer belongs to the peer, and is the only one.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use roce::observe::with_causes;
use roce_device::LocalAddress;
use roce_device::raw::who_has;
use roce_packet::MacAddr;

use super::finding::{Finding, Step};
use super::wire::{Introduction, Link};

/// The host that takes packets for the peer: the peer itself or a gateway.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    /// The interface that leads to the host.
    pub(super) interface: String,
    pub(super) address: IpAddr,
    pub(super) is_gateway: bool,
    /// The Ethernet address in the neighbour table.
    pub(super) mac: MacAddr,
    /// All Ethernet addresses that answer for `address`; empty without a request.
    pub(super) answers: Vec<MacAddr>,
    /// The address of this side, and the Ethernet addresses of other hosts that answer for it.
    pub(super) own: IpAddr,
    pub(super) own_answers: Vec<MacAddr>,
}

/// Time limit for answers. Hosts answer within milliseconds; a busy host answers within this time.
const PATIENCE: Duration = Duration::from_millis(300);

impl Hop {
    /// Sends requests for both addresses to the link, and collects all answers. Without the permission for a
    /// packet socket, only the neighbour table is known.
    pub(super) fn ask(
        local: &LocalAddress,
        own: IpAddr,
        address: IpAddr,
        is_gateway: bool,
        mac: MacAddr,
    ) -> Self {
        let ask = |address: IpAddr| match address {
            IpAddr::V4(address) => who_has(&local.interface, address, PATIENCE).unwrap_or_else(|error| {
                if error.kind() != io::ErrorKind::PermissionDenied {
                    tracing::debug!(error = %with_causes(&error), "cannot ask who has {address}");
                }
                Vec::new()
            }),
            // Hosts check that no other host has an IPv6 address before they use it (RFC 4862 section 5.4).
            IpAddr::V6(_) => Vec::new(),
        };
        let interface = local.interface.clone();
        Self { interface, address, is_gateway, mac, answers: ask(address), own, own_answers: ask(own) }
    }

    /// Returns the Ethernet addresses that answer for the other side, and that of the neighbour table.
    fn all(&self) -> Vec<MacAddr> {
        let mut all = self.answers.clone();
        if !all.contains(&self.mac) {
            all.push(self.mac);
        }
        all
    }

    /// Returns the command that makes the kernel resolve the address again.
    fn forget(&self) -> String {
        format!("`ip neigh del {} dev {}`", self.address, self.interface)
    }
}

/// Compares the answers with the interfaces of both sides. `peer` is unknown if no doctor waits there.
/// `own_links` contains the interfaces of this side.
pub(super) fn judge(hop: &Hop, peer: Option<&Introduction>, own_links: &[(String, MacAddr)]) -> Finding {
    let foreign = hop.own_answers.iter().find(|mac| own_links.iter().all(|(_, own)| own != *mac));
    if let Some(foreign) = foreign {
        return duplicate(hop, hop.own, &[*foreign], "this machine");
    }
    let is_flux_here = !hop.own_answers.is_empty();
    let peer = peer.filter(|_| !hop.is_gateway);
    let Some(right) = peer.and_then(|peer| peer.interface.as_ref()) else {
        return without_peer(hop, is_flux_here);
    };
    let links = peer.map_or(&[][..], |peer| &peer.links);
    let all = hop.all();
    let link_of = |mac: &MacAddr| links.iter().find(|link| link.mac == mac.0);
    let strangers: Vec<MacAddr> =
        all.iter().filter(|mac| mac.0 != right.mac && link_of(mac).is_none()).copied().collect();
    if !strangers.is_empty() && all.len() > 1 {
        return duplicate(hop, hop.address, &strangers, "the peer");
    }
    if let Some(wrong) = all.iter().filter(|mac| mac.0 != right.mac).find_map(link_of) {
        return flux_of_peer(hop, right, wrong, is_flux_here);
    }
    if is_flux_here {
        return flux_here(hop);
    }
    let Some(stranger) = strangers.first() else {
        return Finding::ok(
            Step::Neighbour,
            format!("{} is the address of {} of the peer{}", hop.mac, right.name(), only(hop)),
        );
    };
    Finding::ok(
        Step::Neighbour,
        format!(
            "{stranger} answers for {}, whose own Ethernet address is {}; packets still reach it",
            hop.address,
            MacAddr(right.mac)
        ),
    )
    .with_hint("a router answers for the peer (proxy ARP), as in many clouds")
}

/// Describes whether the answer was the only one, if a request was sent.
fn only(hop: &Hop) -> &'static str {
    if hop.answers.is_empty() {
        "; checking whether other machines also answer requires CAP_NET_RAW"
    } else {
        ", and no other machine answers"
    }
}

fn without_peer(hop: &Hop, is_flux_here: bool) -> Finding {
    let all = hop.all();
    if all.len() > 1 {
        let (address, list) = (hop.address, list(&all));
        return Finding::problem(
            Step::Neighbour,
            format!("{} Ethernet addresses answer for {address}: {list}", all.len()),
            format!(
                "compare them with `ip -br link` on {address}. An Ethernet address that is not listed there \
                 belongs to another machine: remove {address} from that machine (`ip address del`), then run \
                 {}. If all are listed, {address} answers on every interface: run `{ARP_IGNORE}` there",
                hop.forget()
            ),
        );
    }
    if is_flux_here {
        return flux_here(hop);
    }
    Finding::ok(Step::Neighbour, format!("{} answers for {}{}", hop.mac, hop.address, only(hop)))
}

fn duplicate(hop: &Hop, address: IpAddr, strangers: &[MacAddr], of: &str) -> Finding {
    Finding::problem(
        Step::Neighbour,
        format!("another machine also has the address {address} of {of}: {} answers for it", list(strangers)),
        format!(
            "remove {address} from the machine with that Ethernet address (`ip address del {address}/LENGTH \
             dev IFNAME` there; the MAC table of the switch shows its port), then run {}",
            hop.forget()
        ),
    )
}

fn flux_of_peer(hop: &Hop, right: &Link, wrong: &Link, is_flux_here: bool) -> Finding {
    let address = hop.address;
    Finding::problem(
        Step::Neighbour,
        format!(
            "{address} is on {} of the peer ({}), but {} ({}) answers for it too (ARP flux): packets take the wrong \
             interface",
            right.name(),
            MacAddr(right.mac),
            wrong.name(),
            MacAddr(wrong.mac)
        ),
        format!(
            "run `{ARP_IGNORE}` on {}, then {} here",
            if is_flux_here { "both machines".to_owned() } else { address.to_string() },
            hop.forget()
        ),
    )
}

fn flux_here(hop: &Hop) -> Finding {
    Finding::problem(
        Step::Neighbour,
        format!(
            "another interface of this machine answers for {} too (ARP flux, {}): packets take the wrong interface",
            hop.own,
            list(&hop.own_answers)
        ),
        format!("run `{ARP_IGNORE}` here, then `ip neigh del {}` on the peer", hop.own),
    )
}

fn list(macs: &[MacAddr]) -> String {
    macs.iter().map(MacAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// The command that makes interfaces answer only for their own addresses, and send requests only with them.
const ARP_IGNORE: &str = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2";

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const WRONG: [u8; 6] = [2, 0, 0, 0, 0, 3];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn hop(mac: [u8; 6], answers: &[[u8; 6]]) -> Hop {
        Hop {
            interface: "eth0".into(),
            address: [198, 18, 0, 2].into(),
            is_gateway: false,
            mac: MacAddr(mac),
            answers: answers.iter().copied().map(MacAddr).collect(),
            own: [198, 18, 0, 1].into(),
            own_answers: Vec::new(),
        }
    }

    fn peer() -> Introduction {
        let link = |name: &str, mac| Link { name: name.into(), mac };
        Introduction {
            interface: Some(link("eth1", RIGHT)),
            links: vec![link("eth0", WRONG), link("eth1", RIGHT)],
            ..crate::judge::tests::introduction(2)
        }
    }

    #[track_caller]
    fn check(hop: &Hop, peer: Option<&Introduction>, text: Option<&str>, remedy: &str) {
        let finding = judge(hop, peer, &[("eth0".into(), MacAddr([2, 0, 0, 0, 0, 1]))]);
        assert_eq!(finding.is_problem(), text.is_some(), "{finding:?}");
        assert!(finding.text.contains(text.unwrap_or_default()), "{finding:?}");
        assert!(finding.remedy.clone().unwrap_or_default().contains(remedy), "{finding:?}");
    }

    #[test]
    fn the_address_that_answers_is_compared_with_those_of_the_peer() {
        let peer = peer();
        let some = Some(&peer);
        check(&hop(RIGHT, &[RIGHT]), some, None, "");
        check(&hop(RIGHT, &[]), some, None, "");
        let flux = "eth0 (02:00:00:00:00:03) answers for it too (ARP flux)";
        check(&hop(WRONG, &[]), some, Some(flux), "arp_ignore=1");
        check(
            &hop(RIGHT, &[RIGHT, WRONG]),
            some,
            Some(flux),
            "on 198.18.0.2, then `ip neigh del 198.18.0.2 dev eth0`",
        );
        check(
            &hop(RIGHT, &[RIGHT, OTHER]),
            some,
            Some("of the peer: 02:00:00:00:00:09"),
            "ip address del 198.18.0.2",
        );
        // A single answer from an unknown address comes from a router: the peer itself reports that it is
        // reached.
        check(&hop(OTHER, &[OTHER]), some, None, "proxy ARP");
        check(&hop(OTHER, &[OTHER]), None, None, "");
        check(
            &hop(RIGHT, &[RIGHT, OTHER]),
            None,
            Some("2 Ethernet addresses answer for 198.18.0.2"),
            "ip -br link",
        );
        let gateway = Hop { is_gateway: true, ..hop(OTHER, &[OTHER]) };
        check(&gateway, some, None, "");
    }

    #[test]
    fn answers_for_the_own_address_are_noticed() {
        let taken = Hop { own_answers: vec![MacAddr(OTHER)], ..hop(RIGHT, &[RIGHT]) };
        check(
            &taken,
            Some(&peer()),
            Some("also has the address 198.18.0.1 of this machine"),
            "ip address del",
        );
        let flux = Hop { own_answers: vec![MacAddr([2, 0, 0, 0, 0, 1])], ..hop(RIGHT, &[RIGHT]) };
        check(&flux, Some(&peer()), Some("another interface of this machine"), "arp_ignore=1");
        let both = Hop { mac: MacAddr(WRONG), ..flux };
        check(&both, Some(&peer()), Some("ARP flux"), "on both machines");
    }
}
