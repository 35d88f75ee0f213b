//! Connection management around the messages of a scene: two managers set up the connection and end it, or
//! one refuses it.

use roce_packet::mad::{CmMad, CmTimeout, GSI_Q_KEY, MAD_LEN, PortSpace, ServiceId, TransportService};
use roce_packet::{Bth, DatagramWriter, Deth, Encapsulation, Envelope, Opcode, Path, PathMtu, Psn, Qpn};
use roce_sim::pair::{Action, Sent, Side};
use roce_transport::Instant;
use roce_transport::cm::{
    CmAccepts, CmConfig, CmConnect, CmEvent, CmListen, CmOffer, CmTiming, CmTransmit, ConnectionManager,
};

use super::scene::{DELAY_NS, PACKET_NS};

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7174);
/// A message is sent again after 25 ms.
const TIMING: CmTiming =
    CmTiming { response_timeout: CmTimeout::new(12), packet_lifetime: CmTimeout::new(10), max_retries: 7 };
/// Time between two phases: setting up, messages, and disconnecting.
const PAUSE_NS: u64 = 100_000;
/// A time in which every lost message is sent again.
const REPEATED_NS: u64 = 400_000_000;
/// Longest time that setting up or disconnecting takes.
const PHASE_NS: u64 = 400_000_000;

/// A message of connection management and what the network does to its first copy.
pub(crate) type Fate = (&'static str, Action);

/// Returns the packets of a connection together with the messages that set it up and end it. `refused` means
/// that nobody listens, so that the packets belong to an older connection. Also returns the PSN of the
/// message with the fate.
pub(crate) fn managed(data: &[Sent], fate: Option<Fate>, refused: bool) -> (Vec<Sent>, Option<u32>) {
    let mut world = World::new(data, fate);
    if !refused {
        let listen = CmListen { accepts: CmAccepts::Both, backlog: 8, ip_cm: false };
        world.sides[1].listen(SERVICE, listen).unwrap();
    }
    let connect = world.request();
    world.sides[0].connect(world.now, &connect).unwrap();
    let limit = world.now.plus_nanos(PHASE_NS);
    while world.begun.is_none() && world.step(limit) {}
    let begin = world.begun.expect("the connection was set up or refused").plus_nanos(PAUSE_NS);
    let (first, last) = (data[0].at, data[data.len() - 1].at);
    let later = |at: Instant| begin.plus_nanos(at.as_nanos() - first.as_nanos());
    let mut all: Vec<Sent> = data.iter().map(|sent| Sent { at: later(sent.at), ..sent.clone() }).collect();
    let end = later(last).max(begin.plus_nanos(REPEATED_NS)).plus_nanos(PAUSE_NS);
    while world.step(end) {}
    world.now = end;
    if let Some(id) = world.id {
        world.sides[0].disconnect(end, id, b"").unwrap();
        while world.step(end.plus_nanos(PHASE_NS)) {}
    }
    all.append(&mut world.sent);
    all.sort_by_key(|sent| sent.at);
    (all, world.psn_of_fate)
}

/// Two managers and the wire between them.
struct World {
    now: Instant,
    sides: [ConnectionManager; 2],
    paths: [Path; 2],
    offers: [CmOffer; 2],
    /// Messages on the wire: time of arrival, receiving side, message.
    wire: Vec<(Instant, usize, CmTransmit)>,
    sent: Vec<Sent>,
    psns: [u32; 2],
    fate: Option<Fate>,
    psn_of_fate: Option<u32>,
    /// When the active side was ready or refused.
    begun: Option<Instant>,
    /// The connection of the active side.
    id: Option<roce_packet::mad::CommId>,
}

impl World {
    fn new(data: &[Sent], fate: Option<Fate>) -> Self {
        let of = |side| data.iter().find(|sent| sent.from == side).expect("both sides send");
        let [a, b] = [Side::A, Side::B].map(of);
        let offer = |qpn: Qpn, starting_psn: Psn| CmOffer {
            qpn,
            starting_psn,
            responder_resources: 16,
            initiator_depth: 16,
            rnr_retry_count: 7,
            srq: false,
        };
        let manager = |seed: u8| {
            ConnectionManager::new(CmConfig::new([seed; 32], 0x0200_00ff_fe00_0000 | u64::from(seed)))
        };
        Self {
            now: Instant::from_nanos(1),
            sides: [manager(1), manager(2)],
            paths: [a.path, b.path],
            // Each side names its queue pair, to which the other one sends.
            offers: [offer(b.dest_qp, b.psn), offer(a.dest_qp, a.psn)],
            wire: Vec::new(),
            sent: Vec::new(),
            psns: [100, 5000],
            fate,
            psn_of_fate: None,
            begun: None,
            id: None,
        }
    }

    fn request(&self) -> CmConnect<'static> {
        CmConnect {
            path: Path { encapsulation: Encapsulation::RoceV2, ..self.paths[0] },
            service_id: SERVICE,
            transport: TransportService::Rc,
            offer: self.offers[0],
            path_mtu: PathMtu::Mtu1024,
            flow_label: 0,
            retry_count: 7,
            timing: TIMING,
            ip_cm: None,
            private_data: b"",
        }
    }

    /// Advances to the next arrival or timeout. Returns `false` if none comes before the limit.
    fn step(&mut self, limit: Instant) -> bool {
        self.drain();
        let arrivals = self.wire.iter().map(|(at, ..)| *at);
        let timeouts = self.sides.iter().filter_map(ConnectionManager::poll_timeout);
        let Some(next) = arrivals.chain(timeouts).min().filter(|next| *next <= limit) else { return false };
        self.now = self.now.max(next);
        while let Some(index) = self.wire.iter().position(|(at, ..)| *at <= self.now) {
            let (_, side, message) = self.wire.remove(index);
            self.sides[side].handle_mad(self.now, &message.path, Qpn::GSI, &message.mad[..]);
        }
        for side in &mut self.sides {
            side.handle_timeout(self.now);
        }
        self.drain();
        true
    }

    /// Sends pending messages, and answers the events as an application does.
    fn drain(&mut self) {
        for side in 0..2 {
            while let Some(event) = self.sides[side].poll_event() {
                match event {
                    CmEvent::ConnectRequest(request) => {
                        self.sides[side].accept(self.now, request.id, &self.offers[side], b"").unwrap();
                    }
                    CmEvent::ConnectResponse { id, .. } => {
                        self.sides[side].ready(self.now, id, b"").unwrap();
                        (self.begun, self.id) = (Some(self.now), Some(id));
                    }
                    CmEvent::Rejected { .. } => self.begun = Some(self.now),
                    _ => {}
                }
            }
        }
        for side in 0..2 {
            while let Some(message) = self.sides[side].poll_transmit(self.now) {
                self.send(side, message);
            }
        }
    }

    fn send(&mut self, side: usize, message: CmTransmit) {
        let name = CmMad::parse(&message.mad[..]).expect("it was built here").message.name();
        let psn = self.psns[side];
        self.psns[side] += 1;
        let mut action = Action::Pass;
        if let Some((_, chosen)) = self.fate.filter(|(fated, _)| *fated == name) {
            (action, self.fate, self.psn_of_fate) = (chosen, None, Some(psn));
        }
        let copies = match action {
            Action::Drop => 0,
            Action::Duplicate => 2,
            _ => 1,
        };
        let arrival = self.now.plus_nanos(DELAY_NS + PACKET_NS);
        self.wire.extend((0..copies).map(|_| (arrival, 1 - side, message.clone())));
        self.sent.push(Sent {
            at: self.now,
            from: [Side::A, Side::B][side],
            opcode: Opcode::UD_SEND_ONLY,
            psn: Psn::new(psn),
            dest_qp: Qpn::GSI,
            path: self.paths[side],
            index: 0,
            bytes: datagram(&self.paths[side], psn, &message.mad),
            action,
        });
    }
}

/// Returns the datagram of a message.
fn datagram(path: &Path, psn: u32, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let mut buffer = vec![0; 512];
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(psn));
    let mut writer = DatagramWriter::new(&mut buffer, &bth).unwrap();
    writer.deth(&Deth { q_key: GSI_Q_KEY, source_qp: Qpn::GSI }).unwrap();
    writer.payload_slot(MAD_LEN).unwrap().copy_from_slice(mad);
    let len = writer.finish(&Envelope::new(path, 0)).unwrap();
    buffer.truncate(len);
    buffer
}
