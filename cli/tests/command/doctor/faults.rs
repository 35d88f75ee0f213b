//! A matrix of broken networks: the doctor reports each fault, and no problem once its remedy has been
//! applied.

use std::io::Write as _;
use std::net::{TcpListener, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use roce_testing::Namespace;
use serde_json::Value;

use crate::common::skip_unless;
use crate::doctor::network::{At, Middle, Network};

use At::{Left, Middle as Mid, Right, Third};

/// A step that breaks or repairs a network.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Runs a command on a machine.
    Run(At, &'static str),
    /// Changes the faults of `roce bridge` in the middle.
    Impair(&'static str),
    /// Starts a program on the right that occupies a port. Port 18520 is TCP and answers with a line; any
    /// other port is UDP.
    Occupy(u16, &'static str),
    /// Stops this program.
    Vacate,
    /// Changes the devices of both sides.
    Devices([&'static str; 2]),
}

use Act::{Devices, Impair, Occupy, Run, Vacate};

struct Fault {
    name: &'static str,
    middle: Middle,
    mtu: usize,
    /// The examined address, if it is not that of the right host.
    peer: Option<&'static str>,
    harm: &'static [Act],
    /// The expected finding: its step, a part of its text, and a part of its remedy.
    finding: [&'static str; 3],
    /// The steps of the remedy.
    cure: &'static [Act],
}

const PLAIN: Fault = Fault {
    name: "",
    middle: Middle::Switch,
    mtu: 1500,
    peer: None,
    harm: &[],
    finding: ["", "", ""],
    cure: &[],
};

const ACCEPT: &str = "iptables -I INPUT -p udp --dport 4791 -j ACCEPT";
const ACCEPT_OUT: &str = "iptables -I OUTPUT -p udp --dport 4791 -j ACCEPT";
const ACCEPT_FORWARD: &str = "iptables -I FORWARD -p udp --dport 4791 -j ACCEPT";
const NO_MANGLE: &[Act] = &[Run(Mid, "iptables -t mangle -F")];

/// Faults that filters of the kernel cause.
const FILTERS: &[Fault] = &[
    Fault {
        name: "the peer rejects UDP port 4791",
        harm: &[Run(Right, "iptables -A INPUT -p udp --dport 4791 -j REJECT")],
        finding: ["udp_port", "a firewall rejects datagrams", ACCEPT],
        cure: &[Run(Right, ACCEPT)],
        ..PLAIN
    },
    Fault {
        name: "the peer drops what comes to UDP port 4791",
        harm: &[Run(Right, "iptables -A INPUT -p udp --dport 4791 -j DROP")],
        finding: ["arrival", "one direction fails: none of 60 RoCE packets from 198.18.0.1", ACCEPT],
        cure: &[Run(Right, ACCEPT)],
        ..PLAIN
    },
    Fault {
        name: "this machine drops what it sends to UDP port 4791",
        harm: &[Run(Left, "iptables -A OUTPUT -p udp --dport 4791 -j DROP")],
        finding: ["udp_port", "a firewall rule of this machine drops", ACCEPT_OUT],
        cure: &[Run(Left, ACCEPT_OUT)],
        ..PLAIN
    },
    Fault {
        name: "the peer drops what it sends to UDP port 4791",
        harm: &[Run(Right, "iptables -A OUTPUT -p udp --dport 4791 -j DROP")],
        finding: ["arrival", "packets from 198.18.0.2 to 198.18.0.1 arrives", "chain OUTPUT on 198.18.0.2"],
        cure: &[Run(Right, ACCEPT_OUT)],
        ..PLAIN
    },
    Fault {
        name: "a router drops UDP",
        middle: Middle::Router,
        harm: &[Run(Mid, "iptables -A FORWARD -p udp -j DROP")],
        finding: ["arrival", "no RoCE packet arrives in either direction", ACCEPT_FORWARD],
        cure: &[Run(Mid, ACCEPT_FORWARD)],
        ..PLAIN
    },
    Fault {
        name: "a router rejects UDP",
        middle: Middle::Router,
        harm: &[Run(Mid, "iptables -A FORWARD -p udp -j REJECT --reject-with icmp-admin-prohibited")],
        finding: ["udp_port", "are refused", "on a router in chain FORWARD"],
        cure: &[Run(Mid, ACCEPT_FORWARD)],
        ..PLAIN
    },
    Fault {
        name: "the peer drops TCP",
        harm: &[Run(Right, "iptables -A INPUT -p tcp -j DROP")],
        finding: [
            "exchange",
            "TCP port 18520 does not answer within 3 s although the host is up",
            "iptables -I INPUT -p tcp --dport 18520 -j ACCEPT",
        ],
        cure: &[Run(Right, "iptables -I INPUT -p tcp --dport 18520 -j ACCEPT")],
        ..PLAIN
    },
    Fault {
        name: "a router loses packets",
        middle: Middle::Router,
        harm: &[Run(
            Mid,
            "iptables -A FORWARD -p udp -o mr -m statistic --mode random --probability 0.05 -j DROP",
        )],
        finding: ["loss", "of 2048 packets from 198.18.1.1 to 198.18.2.2", "the loss is one-way"],
        cure: &[Run(Mid, "iptables -F FORWARD")],
        ..PLAIN
    },
    Fault {
        name: "a router carries smaller packets and says nothing",
        middle: Middle::Router,
        mtu: 9000,
        harm: &[Run(Mid, "ip link set mr mtu 1500; iptables -A OUTPUT -p icmp -j DROP")],
        finding: ["path_mtu", "1024 works, 2048, 4096 does not: a black hole", "to 9000, the MTU of both"],
        cure: &[Run(Mid, "ip link set mr mtu 9000")],
        ..PLAIN
    },
    Fault {
        name: "a router marks every packet",
        middle: Middle::Router,
        harm: &[Run(Mid, "iptables -t mangle -A FORWARD -p udp -o ml -j TOS --set-tos 0x03/0x03")],
        finding: [
            "ecn",
            "every packet becomes CE from 198.18.2.2 to 198.18.1.1",
            "remove the rule that sets these bits",
        ],
        cure: NO_MANGLE,
        ..PLAIN
    },
    Fault {
        name: "a router clears ECN",
        middle: Middle::Router,
        harm: &[Run(Mid, "iptables -t mangle -A FORWARD -p udp -o mr -j TOS --set-tos 0x00/0x03")],
        finding: ["ecn", "ECT(0) becomes not-ECT from 198.18.1.1", "that clears them"],
        cure: NO_MANGLE,
        ..PLAIN
    },
    Fault {
        name: "a router rewrites the DSCP",
        middle: Middle::Router,
        harm: &[Run(Mid, "iptables -t mangle -A FORWARD -p udp -o mr -j TOS --set-tos 0x00/0xfc")],
        finding: ["dscp", "26 becomes 0 from 198.18.1.1", "iptables -t mangle -S"],
        cure: NO_MANGLE,
        ..PLAIN
    },
    Fault {
        name: "a router translates addresses",
        middle: Middle::Router,
        harm: &[Run(Mid, "iptables -t nat -A POSTROUTING -p udp -o mr -j MASQUERADE")],
        finding: [
            "source_port",
            "packets from 198.18.1.1 arrive with the source 198.18.2.254",
            "iptables -t nat -I POSTROUTING -p udp --dport 4791 -j ACCEPT",
        ],
        cure: &[Run(Mid, "iptables -t nat -I POSTROUTING -p udp --dport 4791 -j ACCEPT")],
        ..PLAIN
    },
];

/// Faults that need no filter.
const OTHERS: &[Fault] = &[
    Fault {
        name: "a switch with a smaller MTU than both hosts",
        mtu: 9000,
        harm: &[Run(Mid, "ip link set ml mtu 1500; ip link set mr mtu 1500")],
        finding: [
            "path_mtu",
            "1024 works, 2048, 4096 does not: a black hole",
            "MTU of every switch and router",
        ],
        cure: &[Run(Mid, "ip link set ml mtu 9000; ip link set mr mtu 9000; ip link set sw mtu 9000")],
        ..PLAIN
    },
    Fault {
        name: "a link that carries small packets only",
        harm: &[Run(Mid, "ip link set ml mtu 200; ip link set mr mtu 200; ip link set sw mtu 200")],
        finding: ["path_mtu", "no packet of 308 bytes arrives", "to 1500, the MTU of both ends"],
        cure: &[Run(Mid, "ip link set ml mtu 1500; ip link set mr mtu 1500; ip link set sw mtu 1500")],
        ..PLAIN
    },
    Fault {
        name: "a link of 576 bytes",
        harm: &[Run(Mid, "ip link set ml mtu 576; ip link set mr mtu 576; ip link set sw mtu 576")],
        finding: ["path_mtu", "512 works, 1024 does not: a black hole", "to 1500, the MTU of both ends"],
        cure: &[Run(Mid, "ip link set ml mtu 1500; ip link set mr mtu 1500; ip link set sw mtu 1500")],
        ..PLAIN
    },
    Fault {
        name: "a router carries smaller packets and says so",
        middle: Middle::Router,
        mtu: 9000,
        harm: &[Run(Mid, "ip link set mr mtu 1500")],
        finding: [
            "mtu",
            "the path to the peer carries only 1500 bytes, so the largest path MTU is 1024",
            "ip route flush cache",
        ],
        cure: &[
            Run(Mid, "ip link set mr mtu 9000"),
            Run(Left, "ip route flush cache"),
            Run(Right, "ip route flush cache"),
        ],
        ..PLAIN
    },
    Fault {
        name: "a small MTU at the peer",
        harm: &[Run(Right, "ip link set dev e0 mtu 300")],
        finding: [
            "exchange",
            "with an MTU of 300, too small even for path MTU 256",
            "`ip link set dev e0 mtu 1500`",
        ],
        cure: &[Run(Right, "ip link set dev e0 mtu 1500")],
        ..PLAIN
    },
    Fault {
        name: "a small MTU here",
        harm: &[Run(Left, "ip link set dev e0 mtu 300")],
        finding: [
            "mtu",
            "e0 has an MTU of 300, too small even for path MTU 256",
            "`ip link set dev e0 mtu 1500`",
        ],
        cure: &[Run(Left, "ip link set dev e0 mtu 1500")],
        ..PLAIN
    },
    Fault {
        name: "the peer answers ARP on two interfaces",
        peer: Some("198.18.0.12"),
        harm: &[Run(Right, "ip link set e1 up; ip address add 198.18.0.12/24 dev e1")],
        finding: [
            "neighbour",
            "198.18.0.12 is on e1 of the peer (02:00:00:00:00:03), but e0 (02:00:00:00:00:02) answers for it too",
            "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        ],
        cure: &[
            Run(Right, "cd /proc/sys/net/ipv4/conf/all; echo 1 >arp_ignore; echo 2 >arp_announce"),
            Run(Left, "ip neigh del 198.18.0.12 dev e0"),
        ],
        ..PLAIN
    },
    Fault {
        name: "another machine has the address of the peer",
        harm: &[
            Run(Left, "ip neigh replace 198.18.0.2 lladdr 02:00:00:00:00:02 dev e0"),
            Run(Third, "ip address add 198.18.0.2/24 dev e0"),
        ],
        finding: [
            "neighbour",
            "another machine also has the address 198.18.0.2 of the peer: 02:00:00:00:00:04",
            "ip address del 198.18.0.2/LENGTH",
        ],
        cure: &[
            Run(Third, "ip address del 198.18.0.2/24 dev e0"),
            Run(Left, "ip neigh del 198.18.0.2 dev e0"),
        ],
        ..PLAIN
    },
    Fault {
        name: "another machine answers for the peer",
        harm: &[
            Run(Third, "ip address add 198.18.0.2/24 dev e0"),
            Run(Left, "ip neigh replace 198.18.0.2 lladdr 02:00:00:00:00:04 dev e0"),
        ],
        finding: ["neighbour", "2 Ethernet addresses answer for 198.18.0.2", "belongs to another machine"],
        cure: &[
            Run(Third, "ip address del 198.18.0.2/24 dev e0"),
            Run(Left, "ip neigh del 198.18.0.2 dev e0"),
        ],
        ..PLAIN
    },
    Fault {
        name: "another machine has the own address",
        harm: &[
            Run(Right, "ip neigh replace 198.18.0.1 lladdr 02:00:00:00:00:01 dev e0"),
            Run(Third, "ip address add 198.18.0.1/24 dev e0"),
        ],
        finding: [
            "neighbour",
            "another machine also has the address 198.18.0.1 of this machine: 02:00:00:00:00:04",
            "ip address del 198.18.0.1/LENGTH",
        ],
        cure: &[
            Run(Third, "ip address del 198.18.0.1/24 dev e0"),
            Run(Right, "ip neigh del 198.18.0.1 dev e0"),
        ],
        ..PLAIN
    },
    Fault {
        name: "damaged packets",
        middle: Middle::Impaired("corrupt=3%"),
        finding: ["icrc", "arrived packets from", "ethtool -S IFNAME"],
        cure: &[Impair("none")],
        ..PLAIN
    },
    Fault {
        name: "packets out of order",
        middle: Middle::Impaired("reorder=5%"),
        finding: ["loss", "arrived out of order", "balance by flow"],
        cure: &[Impair("none")],
        ..PLAIN
    },
    Fault {
        name: "packets that come twice",
        middle: Middle::Impaired("dup=5%"),
        finding: ["loss", "0 arrived out of order and", "sends packets twice"],
        cure: &[Impair("none")],
        ..PLAIN
    },
    Fault {
        name: "a threshold that is too low",
        middle: Middle::Impaired("ecn=100%"),
        finding: ["ecn", "40 of 40 packets were marked CE from", "raise Kmin"],
        cure: &[Impair("none")],
        ..PLAIN
    },
    Fault {
        name: "no route",
        middle: Middle::Router,
        harm: &[Run(Left, "ip route del default")],
        finding: [
            "route",
            "there is no route to 198.18.2.2 through e0",
            "ip route add 198.18.2.2 via GATEWAY dev e0",
        ],
        cure: &[Run(Left, "ip route add 198.18.2.2 via 198.18.1.254 dev e0")],
        ..PLAIN
    },
    Fault {
        name: "the interface of the peer is down",
        harm: &[Run(Left, "ip neigh flush dev e0"), Run(Right, "ip link set e0 down")],
        finding: ["route", "the neighbour does not answer address resolution on e0", "check that it is up"],
        cure: &[Run(Right, "ip link set e0 up")],
        ..PLAIN
    },
    Fault {
        name: "another VLAN",
        harm: &[Devices(["raw:e0", "raw:e0,vlan=5"])],
        finding: ["arrival", "arrive with another VLAN tag, or without one", "the same vlan="],
        cure: &[Devices(["raw:e0", "raw:e0"])],
        ..PLAIN
    },
    Fault {
        name: "an address of IPv6 from a device with IPv4",
        peer: Some("2001:db8::2"),
        finding: ["device", "no IPv6 GID that can send to 2001:db8::2", "with an address of this IP version"],
        cure: &[Devices(["udp:[2001:db8::1]", ""])],
        ..PLAIN
    },
    Fault {
        name: "another program has the TCP port",
        harm: &[Occupy(18520, "HTTP/1.1 400 Bad Request\r\n")],
        finding: ["exchange", "the examination ended early", "the same version of `roce doctor` waits there"],
        cure: &[Vacate],
        ..PLAIN
    },
    Fault {
        name: "a doctor of another version",
        harm: &[Occupy(18520, "{\"roce\":\"doctor\",\"protocol\":1,\"version\":\"0.0.1\"}\n")],
        finding: ["exchange", "the examination ended early", "the same version of `roce doctor`"],
        cure: &[Vacate],
        ..PLAIN
    },
    Fault {
        name: "another program has the UDP port of the peer",
        harm: &[Occupy(4791, "")],
        finding: ["exchange", "the examination ended early", "follow the advice in its message there"],
        cure: &[Vacate],
        ..PLAIN
    },
];

/// A program that occupies a port.
enum Occupant {
    /// A thread that listens on TCP and ends when `is_over` is set.
    Tcp {
        is_over: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    },
    Udp(#[allow(dead_code, reason = "it keeps the port")] UdpSocket),
}

impl Drop for Occupant {
    fn drop(&mut self) {
        if let Self::Tcp { is_over, thread } = self {
            is_over.store(true, Ordering::Relaxed);
            thread.take().map(JoinHandle::join);
        }
    }
}

struct Case {
    network: Network,
    occupant: Option<Occupant>,
    devices: [String; 2],
}

impl Case {
    fn act(&mut self, act: &Act) {
        match *act {
            Run(at, command) => self.network.sh(at, command),
            Impair(faults) => self.network.impair(faults),
            Vacate => self.occupant = None,
            Devices(devices) => self.devices = devices.map(str::to_owned),
            Occupy(18520, line) => {
                let listen = || TcpListener::bind("0.0.0.0:18520");
                let listener = self.network.at(Right).run(listen).expect("a free port");
                listener.set_nonblocking(true).expect("a listener");
                let is_over = Arc::new(AtomicBool::new(false));
                let ends = Arc::clone(&is_over);
                let thread = std::thread::spawn(move || {
                    let mut streams = Vec::new();
                    while !ends.load(Ordering::Relaxed) {
                        if let Ok((mut stream, _)) = listener.accept() {
                            let _ = stream.write_all(line.as_bytes());
                            streams.push(stream);
                        }
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
                self.occupant = Some(Occupant::Tcp { is_over, thread: Some(thread) });
            }
            Occupy(port, _) => {
                let bind = move || UdpSocket::bind(("0.0.0.0", port));
                self.occupant = Some(Occupant::Udp(self.network.at(Right).run(bind).expect("a free port")));
            }
        }
    }

    fn examine(&self, fault: &Fault) -> Value {
        let peer = fault.peer.unwrap_or(self.network.addresses()[1]);
        self.network.examine(peer, self.devices.each_ref().map(String::as_str))
    }

    /// Examines the network up to three times. Returns the first result if none is as expected. On a busy
    /// machine, packets are really lost, which hides what else happens to them.
    fn examine_until(&self, fault: &Fault, is_as_expected: impl Fn(&Value) -> bool) -> Result<(), Value> {
        let first = self.examine(fault);
        let is_met = is_as_expected(&first) || (0..2).any(|_| is_as_expected(&self.examine(fault)));
        if is_met { Ok(()) } else { Err(first) }
    }
}

/// Returns whether the examination reports the problem of this fault, with its remedy.
fn is_found(document: &Value, fault: &Fault) -> bool {
    let [step, text, remedy] = fault.finding;
    let contains = |field: &Value, part| field.as_str().is_some_and(|text| text.contains(part));
    document["findings"].as_array().expect("findings").iter().any(|finding| {
        finding["step"] == step
            && finding["outcome"] == "problem"
            && contains(&finding["text"], text)
            && contains(&finding["remedy"], remedy)
    })
}

/// Breaks a network, has it examined, repairs it as the doctor says, and has it examined again. Returns
/// `None` if the process may not create a network.
fn try_out(fault: &Fault, iptables: &'static str) -> Option<()> {
    let network = Network::new(fault.middle, fault.mtu, iptables)?;
    let devices = [format!("udp:{}", network.addresses()[0]), String::new()];
    let mut case = Case { network, occupant: None, devices };
    fault.harm.iter().for_each(|act| case.act(act));
    let found = case.examine_until(fault, |document| is_found(document, fault));
    found.unwrap_or_else(|document| panic!("no finding {:?} in {document:#}", fault.finding));
    fault.cure.iter().for_each(|act| case.act(act));
    let healthy = case.examine_until(fault, |document| document["healthy"] == true);
    healthy.unwrap_or_else(|document| panic!("after the remedy: {document:#}"));
    Some(())
}

/// Tries all of these faults, some of them at the same time.
fn try_all(faults: &[Fault], iptables: &'static str) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = std::panic::catch_unwind(|| try_out(fault, iptables));
                    if result.is_err() {
                        failures.lock().unwrap().push(fault.name);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {}: {failures:?}; the reasons are above",
        failures.len(),
        faults.len()
    );
}

/// Number of simultaneous examinations, which mostly wait.
const TOGETHER: usize = 3;

/// Returns an `iptables` that works here, with or without nf_tables.
fn iptables(namespace: &Namespace) -> Option<&'static str> {
    ["iptables-nft", "iptables-legacy", "iptables"].into_iter().find(|program| {
        let line = format!(
            "{program} -A FORWARD -p udp -m statistic --mode random --probability 0.5 -j DROP && {program} -A FORWARD -j REJECT && \
             {program} -t mangle -A FORWARD -j TOS --set-tos 0/3 && {program} -t nat -A POSTROUTING -j MASQUERADE"
        );
        let run = move || Command::new("sh").args(["-c", &line]).output();
        namespace.run(run).is_ok_and(|output| output.status.success())
    })
}

#[test]
fn faults_of_filters_are_named_and_their_remedies_help() {
    let Some(namespace) = Namespace::new() else { return };
    let found = iptables(&namespace);
    if skip_unless(
        found.is_some(),
        "iptables is not installed, or the kernel lacks REJECT, TOS, NAT or statistic",
    ) {
        return;
    }
    try_all(FILTERS, found.unwrap_or_default());
}

#[test]
fn other_faults_are_named_and_their_remedies_help() {
    if Namespace::new().is_some() {
        try_all(OTHERS, "iptables");
    }
}

#[test]
fn a_healthy_path_is_healthy_ten_times_of_ten() {
    for middle in [Middle::Switch, Middle::Router] {
        let Some(network) = Network::new(middle, 1500, "iptables") else { return };
        let [left, right] = network.addresses();
        for time in 0..5 {
            let document = network.examine(right, [&format!("udp:{left}"), ""]);
            assert_eq!(document["healthy"], true, "{middle:?}, time {time}: {document:#}");
        }
    }
}
