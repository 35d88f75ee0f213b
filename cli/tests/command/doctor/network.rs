//! Two hosts and a machine between them, in namespaces.
//!
//! ```text
//!  left: e0 198.18.0.1 --- ml [ middle ] mr --- e0 198.18.0.2 :right       third: e0 on a port of the middle
//!                                        mx --- e1 (down)
//! ```

use std::process::Command;
use std::time::{Duration, Instant};

use roce_testing::Namespace;
use serde_json::Value;

use crate::common::{Running, roce};

/// The role of the machine in the middle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Middle {
    /// A kernel bridge.
    Switch,
    /// A router between 198.18.1.0/24 and 198.18.2.0/24.
    Router,
    /// `roce bridge` with these faults.
    Impaired(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Left,
    Middle,
    Right,
    Third,
}

pub(crate) struct Network {
    left: Namespace,
    middle: Namespace,
    right: Namespace,
    third: Namespace,
    kind: Middle,
    /// The process of [`Middle::Impaired`].
    bridge: Option<Running>,
    /// The program that replaces `iptables` in commands.
    iptables: &'static str,
}

impl Network {
    /// Creates a network; returns `None` if the process may not do that.
    pub(crate) fn new(kind: Middle, mtu: usize, iptables: &'static str) -> Option<Self> {
        let (left, middle) = (Namespace::new()?, Namespace::new()?);
        let (right, third) = (Namespace::new()?, Namespace::new()?);
        for (host, name, inner, mac) in [
            (&left, "e0", "ml", 1),
            (&right, "e0", "mr", 2),
            (&right, "e1", "mx", 3),
            (&third, "e0", "mt", 4),
        ] {
            middle.ip(&[
                &format!("link add name {inner} mtu {mtu} type veth peer name {name}"),
                &format!("link set dev {name} netns {}", host.path()),
                &format!("link set dev {inner} up"),
            ]);
            host.ip(&[
                &format!("link set dev {name} address 02:00:00:00:00:0{mac} mtu {mtu}"),
                "link set dev lo up",
            ]);
        }
        let mut network = Self { left, middle, right, third, kind, bridge: None, iptables };
        let [left, right] = network.addresses();
        for (at, own, number) in [(At::Left, left, 1), (At::Right, right, 2)] {
            network.at(at).ip(&[
                &format!("address add {own}/24 dev e0"),
                &format!("address add 2001:db8::{number}/64 dev e0 nodad"),
                "link set dev e0 up",
            ]);
        }
        network.third.ip(&["link set dev e0 up"]);
        match kind {
            Middle::Switch => {
                network.middle.ip(&["link add sw type bridge", "link set dev sw up"]);
                for port in ["ml", "mr", "mx", "mt"] {
                    network.middle.ip(&[&format!("link set dev {port} master sw")]);
                }
            }
            Middle::Router => {
                network
                    .middle
                    .ip(&["address add 198.18.1.254/24 dev ml", "address add 198.18.2.254/24 dev mr"]);
                network.sh(At::Middle, "echo 1 >/proc/sys/net/ipv4/ip_forward");
                network.left.ip(&["route add default via 198.18.1.254"]);
                network.right.ip(&["route add default via 198.18.2.254"]);
            }
            Middle::Impaired(faults) => network.impair(faults),
        }
        network.settle();
        Some(network)
    }

    /// Returns the addresses of both hosts.
    pub(crate) fn addresses(&self) -> [&'static str; 2] {
        match self.kind {
            Middle::Router => ["198.18.1.1", "198.18.2.2"],
            Middle::Switch | Middle::Impaired(_) => ["198.18.0.1", "198.18.0.2"],
        }
    }

    pub(crate) fn at(&self, at: At) -> &Namespace {
        match at {
            At::Left => &self.left,
            At::Middle => &self.middle,
            At::Right => &self.right,
            At::Third => &self.third,
        }
    }

    /// Runs a shell command on a machine.
    #[track_caller]
    pub(crate) fn sh(&self, at: At, command: &str) {
        let line = command.replace("iptables", self.iptables);
        let output =
            self.at(at).run(move || Command::new("sh").args(["-ec", &line]).output()).expect("running sh");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts `roce bridge` with these faults in the middle.
    pub(crate) fn impair(&mut self, faults: &str) {
        self.bridge = None;
        let mut command = roce();
        command.args(["bridge", "--left", "raw:ml", "--right", "raw:mr", "--quiet", "--fault", faults]);
        self.bridge = Some(self.middle.run(move || Running::start(&mut command)));
        self.settle();
    }

    /// Waits until packets pass between both hosts.
    fn settle(&self) {
        let [_, right] = self.addresses();
        let is_there = move || {
            let to = format!("{right}:9").parse().unwrap();
            let result = std::net::TcpStream::connect_timeout(&to, Duration::from_millis(250));
            result.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
        };
        let end = Instant::now() + Duration::from_secs(30);
        while !self.left.run(is_there) {
            assert!(Instant::now() < end, "no packet passes");
        }
    }

    /// Starts `roce doctor` on the right, and examines `peer` from the left. Returns the document.
    #[track_caller]
    pub(crate) fn examine(&self, peer: &str, devices: [&str; 2]) -> Value {
        let mut command = roce();
        command.args(["doctor", "--once"]);
        if !devices[1].is_empty() {
            command.args(["--device", devices[1]]);
        }
        let mut server = self.right.run(move || Running::start(&mut command));
        server.wait_for_output(Duration::from_secs(10));
        let mut command = roce();
        command.args(["doctor", peer, "--device", devices[0], "--json"]);
        let client = self.left.run(move || Running::start(&mut command)).finish(60);
        serde_json::from_str(&client.stdout).unwrap_or_else(|error| panic!("{error}: {client:?}"))
    }
}
