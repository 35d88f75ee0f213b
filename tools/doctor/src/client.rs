//! The client, which examines the other side.

use std::io;
use std::time::Duration;

use roce::observe::with_causes;
use roce_exchange::{Exchange, ExchangeError, ToolError, tell_failure};
use roce_packet::PathMtu;

use super::doctor::Doctor;
use super::finding::{Diagnosis, Finding, Step};
use super::judge::{self, Both, Tried};
use super::local::{Knock, Reach};
use super::neighbour::{self, Hop};
use super::peer::Peer;
use super::probe::Probe;
use super::serve::ask_for_trips;
use super::wire::{
    Burst, Introduction, PROBE_BYTES, PROTOCOL, SMALL_PROBE_BYTES, TOOL, Trial, Trips, unreasonable,
};
use super::{cm, local};

/// Time limit for connecting over TCP.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// Number of probes for changes of headers; a multiple of the number of classes.
const HEADER_PROBES: u32 = 60;
/// Number of probes for losses.
const LOSS_PROBES: u32 = 2048;
/// DSCP 0, 26 (the default of RNICs for RoCE), 46 and 48 (CNPs), and every code point of ECN.
const CLASSES: [u8; 6] = [0b10, 26 << 2 | 0b10, 46 << 2 | 0b01, 48 << 2 | 0b10, 26 << 2 | 0b11, 0];
/// Any value except 0.
const FLOW_LABEL: u32 = 0x6_9ce5;
/// Number of round trips for each path MTU, and to measure the time.
const TRIPS: u32 = 3;
const TIMED_TRIPS: u32 = 200;

/// The findings so far; each is reported at once.
struct Notes<'a> {
    diagnosis: Diagnosis,
    on_finding: &'a mut dyn FnMut(&Finding),
}

impl Notes<'_> {
    fn add(&mut self, finding: Finding) {
        (self.on_finding)(&finding);
        self.diagnosis.findings.push(finding);
    }
}

impl Doctor {
    /// Examines the path to a peer, and calls `on_finding` with each finding at once.
    pub fn examine(&self, peer: &Peer, on_finding: &mut dyn FnMut(&Finding)) -> Diagnosis {
        let mut notes = Notes { diagnosis: Diagnosis::default(), on_finding };
        let device = local::device(self, peer);
        let has_no_gid = device.is_problem();
        notes.add(device);
        if has_no_gid {
            return notes.diagnosis;
        }
        let index = self.path.sgid_index;
        let server = Exchange::connect_at(&self.context, index, peer.exchange(), Some(CONNECT_PATIENCE));
        // A server opens its device when a client connects, and sends its greeting when the device is open.
        // The knock on UDP port 4791 must come after that.
        let server = server.map(|mut exchange| {
            let greeted = exchange.greet(TOOL);
            (exchange, greeted)
        });
        let knock = local::knock(self, peer);
        notes.add(local::mtu(self, &knock));
        // After the knock, which made the kernel resolve the neighbour.
        let (route, hop) = local::route(self, peer);
        let is_lost = route.is_problem();
        notes.add(route);
        match server {
            Ok((mut exchange, greeted)) => {
                let greeted = greeted.map_err(ToolError::from);
                let outcome =
                    greeted.and_then(|()| with_server(self, &mut exchange, &knock, hop, &mut notes));
                tell_failure(&mut exchange, &outcome);
                if let Err(error) = outcome {
                    notes.add(exchange_failed(&error));
                }
            }
            Err(error) => without_server(self, &knock, hop, &error, is_lost, &mut notes),
        }
        notes.diagnosis
    }
}

/// Adds all findings about a peer on which no doctor answers.
fn without_server(
    doctor: &Doctor,
    knock: &Knock,
    hop: Option<Hop>,
    error: &ExchangeError,
    is_lost: bool,
    notes: &mut Notes<'_>,
) {
    let peer = &knock.peer;
    let answers = hop.map(|hop| neighbour::judge(&hop, None, &own_links()));
    let is_taken = answers.as_ref().is_some_and(Finding::is_problem);
    answers.into_iter().for_each(|answers| notes.add(answers));
    let exchange = no_server(peer, error, &knock.reach);
    let is_filtered = exchange.is_problem() && !is_lost && !is_taken;
    let root = match (is_lost, is_taken, is_filtered) {
        (true, ..) => Some("no packet reaches the peer; see the finding about the route"),
        (_, true, _) => Some("another machine may answer for the peer; see the finding about Ethernet"),
        (.., true) => Some("`roce doctor` opens its device after a TCP connection; see the other side"),
        _ => None,
    };
    if let Some(root) = root {
        notes.add(Finding::not_tested(Step::UdpPort, root));
        notes.add(if is_filtered { exchange } else { Finding::not_tested(Step::Exchange, root) });
        return;
    }
    notes.add(local::udp_port(peer, &knock.reach, false));
    notes.add(exchange);
    notes.add(cm::ask(doctor, peer, &knock.reach));
}

fn own_links() -> Vec<(String, roce_packet::MacAddr)> {
    roce_device::ethernet_interfaces().unwrap_or_default()
}

fn exchange_failed(error: &ToolError) -> Finding {
    let remedy = match error {
        ToolError::Exchange(
            ExchangeError::Closed { .. }
            | ExchangeError::Unexpected { .. }
            | ExchangeError::OtherTool { .. }
            | ExchangeError::OtherVersion { .. }
            | ExchangeError::Silent { .. },
        ) => "check that the same version of `roce doctor` waits there, and read its messages",
        ToolError::Exchange(ExchangeError::Failed { .. }) => {
            "the other side cannot perform this examination; follow the advice in its message there"
        }
        ToolError::NotSent { .. } => {
            "check that the link is up (`ip link`) and that the neighbour answers (`ip neigh`)"
        }
        _ => "read the messages of the other side, and repeat with ROCE_LOG=debug",
    };
    Finding::problem(Step::Exchange, format!("the examination ended early: {}", with_causes(error)), remedy)
}

/// Returns the finding that no server runs on the other side. It is a problem only if a firewall is in front
/// of it.
fn no_server(peer: &Peer, error: &ExchangeError, reach: &Reach) -> Finding {
    let port = peer.exchange_port;
    if let ExchangeError::Connect { source, .. } = error
        && matches!(source.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
        && matches!(reach, Reach::PortUnreachable)
    {
        return Finding::problem(
            Step::Exchange,
            format!(
                "TCP port {port} does not answer within {} s although the host is up: a firewall drops \
                 packets to this port",
                CONNECT_PATIENCE.as_secs()
            ),
            format!(
                "accept this port on {}, and start `roce doctor` there: `iptables -I INPUT -p tcp --dport \
                 {port} -j ACCEPT`",
                peer.address
            ),
        );
    }
    let why = match error {
        ExchangeError::Connect { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionRefused => {
                format!("nothing is listening on TCP port {port} there (connection refused)")
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                format!("TCP port {port} does not answer within {} s", CONNECT_PATIENCE.as_secs())
            }
            _ => format!("TCP port {port}: {source}"),
        },
        other => with_causes(other).to_string(),
    };
    Finding::not_tested(Step::Exchange, why).with_hint(
        "to test both directions with all steps, run `roce doctor` without an address on the other side",
    )
}

/// Runs all steps that need both sides.
fn with_server(
    doctor: &Doctor,
    exchange: &mut Exchange,
    knock: &Knock,
    hop: Option<Hop>,
    notes: &mut Notes<'_>,
) -> Result<(), ToolError> {
    let probe = doctor.probe()?;
    let own = probe.introduction()?;
    let peer: Introduction = exchange.swap("the introduction", &own)?;
    if peer.doctor != PROTOCOL {
        return Err(unreasonable(&format!("version {} of the examination", peer.doctor)));
    }
    if let Some(hop) = hop {
        notes.add(neighbour::judge(&hop, Some(&peer), &own_links()));
    }
    notes.add(local::udp_port(&knock.peer, &knock.reach, true));
    let other_side = judge::other_side(&own, &peer);
    let is_unusable = other_side.is_problem();
    notes.add(other_side);
    let outcome = if is_unusable { Ok(()) } else { trials(&probe, exchange, &own, &peer, notes) };
    // In any case, this tells the other side that the examination is over, if it still can.
    let sent = exchange.send("the end", &Trial::End(notes.diagnosis.problems()));
    outcome?;
    Ok(sent?)
}

fn trials(
    probe: &Probe,
    exchange: &mut Exchange,
    own: &Introduction,
    peer: &Introduction,
    notes: &mut Notes<'_>,
) -> Result<(), ToolError> {
    let has_flow_label = own.address.is_ipv6() && own.sees_ip_header && peer.sees_ip_header;
    let headers = Burst {
        number: 1,
        count: HEADER_PROBES,
        bytes: SMALL_PROBE_BYTES,
        classes: CLASSES.to_vec(),
        flow_label: if has_flow_label { FLOW_LABEL } else { 0 },
    };
    let headers = burst(probe, exchange, &headers, own, peer)?;
    let is_named = notes.diagnosis.findings.iter().any(|one| one.step == Step::UdpPort && one.is_problem());
    let arrival = judge::arrival(&headers, is_named);
    let is_dead = headers.is_dead();
    notes.add(arrival);
    if is_dead {
        return Ok(());
    }
    let many =
        Burst { number: 2, count: LOSS_PROBES, bytes: PROBE_BYTES, classes: vec![0b10], flow_label: 0 };
    let many = burst(probe, exchange, &many, own, peer)?;
    notes.add(judge::icrc(&headers, &many));
    if many.is_dead() {
        notes.add(judge::nothing_but_small(&many));
        return Ok(());
    }
    notes.add(judge::loss(&many));
    notes.add(judge::dscp(&headers));
    notes.add(judge::ecn(&headers));
    notes.add(judge::source_port(&headers));
    notes.add(judge::flow_label(&headers, has_flow_label.then_some(FLOW_LABEL)));
    let mut tried = Vec::new();
    let most = own.largest_path_mtu.min(peer.largest_path_mtu);
    for path_mtu in PathMtu::ALL.map(PathMtu::bytes).into_iter().filter(|path_mtu| *path_mtu <= most) {
        // Three packets each; the last one is short.
        let trips = Trips { path_mtu, count: TRIPS, bytes: 3 * path_mtu - 13 };
        tried.push(match ask_for_trips(probe, exchange, peer, trips)? {
            Ok([here, there]) => Tried { path_mtu, here, there },
            Err(refusal) => return Err(unreasonable(&refusal)),
        });
    }
    notes.add(judge::path_mtu(&headers, &tried));
    let Some(best) = tried.iter().rfind(|tried| tried.is_good()) else { return Ok(()) };
    let trips = Trips { path_mtu: best.path_mtu, count: TIMED_TRIPS, bytes: 64 };
    if let Ok([here, there]) = ask_for_trips(probe, exchange, peer, trips)? {
        notes.add(judge::round_trip(&Tried { path_mtu: best.path_mtu, here, there }, TIMED_TRIPS));
    }
    Ok(())
}

fn burst(
    probe: &Probe,
    exchange: &mut Exchange,
    burst: &Burst,
    own: &Introduction,
    peer: &Introduction,
) -> Result<Both, ToolError> {
    exchange.send("the next test", &Trial::Burst(burst.clone()))?;
    let (here, there) = probe.burst(exchange, burst, peer)?;
    Ok(Both { own: own.clone(), peer: peer.clone(), here, there })
}
