//! Client and server of the measurement.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant as StdInstant};

use roce_exchange::{Exchange, ToolError, tell_failure};
use roce_packet::{Encapsulation, Path, Qpn, flow};
use roce_transport::Transmit;

use super::frames::{MIN_PAYLOAD, OVERHEAD, Purpose, read, set_number, template};
use super::{Introduction, Latency, Outcome, PATIENCE, Plan, Row, tcp};
use crate::harness::statistics::gigabits_per_s;
use crate::harness::{NAP, Role, SPINNING};
use roce::observe::Text;
use roce_device::Clock;
use roce_device::Device;

/// Number of frames per credit.
const CREDIT_EVERY: u64 = 16;
/// Outstanding frames count as lost after this time without a credit.
const LOST_AFTER: Duration = Duration::from_millis(100);

/// The tool name in the greetings of the two sides.
const TOOL: &str = "limit";
/// Time limit for a client that sends nothing.
const IDLE_PATIENCE: Duration = Duration::from_secs(30);

/// A number of attempts that no spinning wait reaches.
const IDLE_ATTEMPTS: u32 = u32::MAX / 2;

/// A device and the path to the other device.
struct End<'a> {
    device: &'a mut dyn Device,
    path: Path,
    clock: Clock,
}

/// Runs the client of the measurement, which sends.
///
/// # Errors
///
/// The other side has left, nothing arrives, or the device failed.
pub fn client(device: &mut dyn Device, mut exchange: Exchange, plan: &Plan) -> Result<Outcome, ToolError> {
    let outcome = measure(device, &mut exchange, plan);
    tell_failure(&mut exchange, &outcome);
    outcome
}

fn measure(device: &mut dyn Device, exchange: &mut Exchange, plan: &Plan) -> Result<Outcome, ToolError> {
    exchange.greet(TOOL)?;
    exchange.send("the plan", plan)?;
    let (mut end, peer) = introduce(device, exchange, plan, Role::Client)?;
    // The measurement excludes everything before the first frame, such as ARP or a link that is coming up.
    ping(&mut end, exchange, 1)?;
    let mut rows = Vec::new();
    for size in &plan.sizes {
        rows.push(blast(&mut end, exchange, plan, *size)?);
    }
    let latency = if plan.round_trips > 0 { Some(ping(&mut end, exchange, plan.round_trips)?) } else { None };
    let mut outcome = Outcome {
        kinds: [end.device.capabilities().kind.to_owned(), Text::new(&peer.kind).to_string()],
        rows,
        latency,
        tcp_gigabits_per_s: None,
        tcp_latency: None,
        tcp_event_latency: None,
    };
    if plan.tcp {
        let tcp = tcp::client(exchange, end.path.source, peer.address, plan.round_trips)?;
        outcome.tcp_gigabits_per_s = Some(tcp.gigabits_per_s);
        (outcome.tcp_latency, outcome.tcp_event_latency) = (tcp.latency, tcp.event_latency);
    }
    Ok(outcome)
}

/// Serves one client.
///
/// # Errors
///
/// The errors of [`client`]. The client is told of every error that is not its own.
pub fn serve(device: &mut dyn Device, mut exchange: Exchange) -> Result<Plan, ToolError> {
    let plan = serve_client(device, &mut exchange);
    tell_failure(&mut exchange, &plan);
    plan
}

fn serve_client(device: &mut dyn Device, exchange: &mut Exchange) -> Result<Plan, ToolError> {
    exchange.greet(TOOL)?;
    let plan: Plan = exchange.receive("the plan")?;
    let (mut end, peer) = introduce(device, exchange, &plan, Role::Server)?;
    exchange.limit(None);
    answer(&mut end, exchange)?;
    for _ in &plan.sizes {
        absorb(&mut end, exchange)?;
    }
    if plan.round_trips > 0 {
        answer(&mut end, exchange)?;
    }
    if plan.tcp {
        tcp::serve(exchange, end.path.source, peer.address)?;
    }
    Ok(plan)
}

/// Checks that the addresses belong to the kernel, as kernel TCP requires.
fn check_kernel_has(device: &mut dyn Device) -> Result<(), ToolError> {
    match device.host_tcp() {
        Some(_) => Err(ToolError::Plan(
            "the addresses of this device are not the kernel's, so kernel TCP cannot be measured between them; leave \
             --tcp out, and measure it on the interface below with --device udp:ADDRESS"
                .into(),
        )),
        None => Ok(()),
    }
}

fn introduce<'a>(
    device: &'a mut dyn Device,
    exchange: &mut Exchange,
    plan: &Plan,
    role: Role,
) -> Result<(End<'a>, Introduction), ToolError> {
    if plan.tcp {
        check_kernel_has(device)?;
    }
    let capabilities = device.capabilities();
    let ip_overhead = if device.addresses().iter().any(IpAddr::is_ipv4) { 28 } else { 48 };
    let room = capabilities.link_mtu.saturating_sub(ip_overhead).min(capabilities.max_datagram);
    let own = Introduction {
        kind: capabilities.kind.to_owned(),
        address: device
            .addresses()
            .first()
            .copied()
            .ok_or_else(|| ToolError::Plan("the device has no address".into()))?,
        max_payload: room.saturating_sub(OVERHEAD),
    };
    let peer: Introduction = exchange.swap("the introduction", &own)?;
    if role == Role::Server {
        exchange.peers().check(peer.address)?;
    }
    let largest = own.max_payload.min(peer.max_payload);
    if let Some(size) = plan.sizes.iter().find(|size| !(MIN_PAYLOAD..=largest).contains(size)) {
        return Err(ToolError::Plan(format!(
            "frames with {size} bytes of payload do not fit; choose {MIN_PAYLOAD} to {largest} bytes, which \
             both links carry"
        )));
    }
    let same_version = |address: &&IpAddr| address.is_ipv4() == peer.address.is_ipv4();
    let Some(source) = device.addresses().iter().find(same_version).copied() else {
        return Err(ToolError::Plan(format!(
            "this device has the address {} and the other side {}; choose devices with addresses of one IP version",
            own.address, peer.address
        )));
    };
    let mut path = Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination: peer.address,
        source_port: 0,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: device.vlan(0),
    };
    let wanted = flow::flow_label_to_port(flow::qp_pair_flow_label(Qpn::new(1), Qpn::new(2)));
    path.source_port = device
        .bind_source_port(&path, wanted)
        .map_err(|error| ToolError::Io { what: "cannot bind a source port", error })?;
    Ok((End { device, path, clock: Clock::start() }, peer))
}

impl End<'_> {
    /// Sends one frame if there is room for it. Returns whether it was sent.
    fn send(&mut self, template: &[u8], number: u64) -> bool {
        let now = self.clock.now();
        let Some(slot) = self.device.slot() else { return false };
        let Some(room) = slot.buffer.get_mut(..template.len()) else { return false };
        room.copy_from_slice(template);
        set_number(room, number);
        let identification = slot.batch.identification(&self.path, Qpn::default(), template.len());
        self.device.commit(now, &Transmit::new(self.path, Qpn::default(), template.len(), identification));
        true
    }

    fn flush(&mut self) -> Result<(), ToolError> {
        let now = self.clock.now();
        self.device.flush(now).map_err(|error| ToolError::Io { what: "cannot send", error })
    }

    /// Receives one burst, and passes the purpose and the number of each frame to `sink`.
    fn receive(&mut self, mut sink: impl FnMut(Purpose, u64)) -> Result<usize, ToolError> {
        let now = self.clock.now();
        let source = self.path.destination;
        let mut take = |received: &roce_transport::Received<'_>| {
            if received.path.source == source
                && let Some((purpose, number)) = read(received.head())
            {
                sink(purpose, number);
            }
        };
        self.device
            .receive(now, &mut take)
            .map_err(|error: io::Error| ToolError::Io { what: "cannot receive", error })
    }
}

fn silence(sent: u64) -> ToolError {
    let progress = format!("{sent} frames sent; check with tcpdump on both sides whether frames arrive");
    ToolError::Stalled { progress, patience: PATIENCE, is_reliable: true }
}

/// Sends many frames in one direction, with at most `window` frames without a credit.
fn blast(end: &mut End<'_>, exchange: &mut Exchange, plan: &Plan, size: usize) -> Result<Row, ToolError> {
    let frame = template(&end.path, Purpose::Data, size);
    exchange.barrier()?;
    let start = StdInstant::now();
    let mut last_credit = start;
    let (mut sent, mut settled) = (0, 0);
    while settled < plan.frames {
        let before = settled;
        while sent < plan.frames && sent - settled < plan.window && end.send(&frame, sent) {
            sent += 1;
        }
        end.flush()?;
        end.receive(|purpose, number| {
            if purpose == Purpose::Credit {
                settled = settled.max(number.min(sent));
            }
        })?;
        if settled > before {
            last_credit = StdInstant::now();
        } else if last_credit.elapsed() > LOST_AFTER {
            exchange.watch()?;
            if settled == 0 && start.elapsed() > PATIENCE {
                return Err(silence(sent));
            }
            if sent == plan.frames {
                break;
            }
            if settled > 0 {
                settled = sent;
                last_credit = StdInstant::now();
            }
        }
    }
    let elapsed_s = start.elapsed().as_secs_f64();
    // The other side answers with the number of received frames.
    exchange.send("the end of the frames", &sent)?;
    let arrived: u64 = exchange.receive("the number of frames that arrived")?;
    Ok(Row {
        size,
        datagram_bytes: frame.len(),
        sent,
        arrived,
        elapsed_s,
        gigabits_per_s: gigabits_per_s(arrived as f64 * size as f64, elapsed_s),
        frames_per_s: arrived as f64 / elapsed_s,
    })
}

/// Receives the frames of [`blast`].
fn absorb(end: &mut End<'_>, exchange: &mut Exchange) -> Result<(), ToolError> {
    let credit = template(&end.path, Purpose::Credit, MIN_PAYLOAD);
    exchange.barrier()?;
    let (mut arrived, mut next, mut credited) = (0, 0, 0);
    let mut idle = Idle::default();
    loop {
        let count = end.receive(|purpose, number| {
            if purpose == Purpose::Data {
                arrived += 1;
                next = next.max(number + 1);
            }
        })?;
        let is_owed = next - credited >= CREDIT_EVERY || count == 0 && next > credited;
        if is_owed && end.send(&credit, next) {
            credited = next;
        }
        // Flushes even without a pending credit: a device with its own host has answers to send, for example
        // to ARP.
        if is_owed || count == 0 {
            end.flush()?;
        }
        // The other side sends this only after its last frame.
        if idle.step(count > 0, 1024)? && exchange.has_input()? {
            let _: u64 = exchange.receive("the end of the frames")?;
            exchange.send("the number of frames that arrived", &arrived)?;
            return Ok(());
        }
    }
}

/// Measures round trips of one frame. Repeats the first one until it succeeds.
fn ping(end: &mut End<'_>, exchange: &mut Exchange, round_trips: u64) -> Result<Latency, ToolError> {
    let frame = template(&end.path, Purpose::Ping, MIN_PAYLOAD);
    exchange.barrier()?;
    let begin = StdInstant::now();
    let mut times = Vec::with_capacity(round_trips as usize);
    let mut number = 0;
    while number < round_trips || times.is_empty() {
        let start = StdInstant::now();
        let _ = end.send(&frame, number);
        end.flush()?;
        let mut is_back = false;
        while !is_back && start.elapsed() < LOST_AFTER {
            end.receive(|purpose, found| is_back |= purpose == Purpose::Pong && found == number)?;
        }
        if is_back {
            times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        } else if exchange.watch().and(Ok(times.is_empty()))? && begin.elapsed() > PATIENCE {
            return Err(silence(number + 1));
        }
        number += 1;
    }
    exchange.send("the end of the round trips", &0_u64)?;
    Ok(Latency::of(&mut times))
}

/// The time that a server has waited for frames.
#[derive(Default)]
struct Idle {
    attempts: u32,
    since: Option<StdInstant>,
}

impl Idle {
    /// Records whether a frame arrived. Returns true on every `every`th attempt without a frame, when the
    /// caller must check the exchange. After a while without frames, it sleeps first and returns true on
    /// every attempt.
    fn step(&mut self, has_come: bool, every: u32) -> Result<bool, ToolError> {
        if has_come {
            *self = Self::default();
            return Ok(false);
        }
        self.attempts = self.attempts.wrapping_add(1);
        if !self.attempts.is_multiple_of(every) && self.attempts < IDLE_ATTEMPTS {
            return Ok(false);
        }
        let waited = self.since.get_or_insert_with(StdInstant::now).elapsed();
        if waited > IDLE_PATIENCE {
            let progress = "waiting for frames of the client".into();
            return Err(ToolError::Stalled { progress, patience: IDLE_PATIENCE, is_reliable: true });
        }
        if waited > SPINNING {
            self.attempts = IDLE_ATTEMPTS;
            std::thread::sleep(NAP);
        }
        Ok(true)
    }
}

fn answer(end: &mut End<'_>, exchange: &mut Exchange) -> Result<(), ToolError> {
    let frame = template(&end.path, Purpose::Pong, MIN_PAYLOAD);
    exchange.barrier()?;
    let mut idle = Idle::default();
    loop {
        let mut ping = None;
        end.receive(|purpose, number| {
            if purpose == Purpose::Ping {
                ping = Some(number);
            }
        })?;
        if let Some(number) = ping {
            let _ = end.send(&frame, number);
        }
        // Flushes even without a ping, because the host behind the device may have an answer.
        end.flush()?;
        if idle.step(ping.is_some(), 4096)? && exchange.has_input()? {
            let _: u64 = exchange.receive("the end of the round trips")?;
            return Ok(());
        }
    }
}
