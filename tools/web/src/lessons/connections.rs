//! Lesson 8: the messages that set up a connection, and the states of a queue pair.

use roce_packet::mad::{CmMad, CmMessage, CmTimeout, PortSpace, ServiceId, TransportService};
use roce_packet::{Encapsulation, Path, PathMtu, Psn, Qpn};
use roce_sim::pair::{Pair, Settings, Side};
use roce_transport::cm::{
    CmAccepts, CmConfig, CmConnect, CmEvent, CmListen, CmOffer, CmQpParameters, CmTiming, CmTransmit,
    ConnectionManager,
};
use roce_transport::{Instant, QpState, QpType, SendOp, SendWr, Verdict};

use super::{AnswerKey, Expected, Outcome};

/// The port of the service of task 1.
const PORT: u16 = 7_174;
/// The starting PSNs in the REQ and in the REP of task 2.
const PSNS: [u32; 2] = [1_000, 5_000];
/// A message is sent again after 25 ms.
const TIMING: CmTiming =
    CmTiming { response_timeout: CmTimeout::new(12), packet_lifetime: CmTimeout::new(10), max_retries: 7 };
/// Time of a message from one end to the other.
const DELAY_NS: u64 = 1_300;
/// The end of an exchange, after which all messages were sent again several times.
const END_NS: u64 = 200_000_000;

/// Judges an answer to a task of the lesson.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => service(),
        2 => first_psn(),
        3 => lost_message(),
        4 => first_state(),
        _ => None,
    };
    Some(key?.judge(answer))
}

/// A message on its way: time of arrival, receiving end, message.
type Arrival = (Instant, usize, CmTransmit);

/// Two connection managers and the messages between them. End 0 connects, and end 1 listens.
struct Exchange {
    now: Instant,
    ends: [ConnectionManager; 2],
    path: Path,
    /// Messages on their way.
    wire: Vec<Arrival>,
    /// Every message that was sent.
    sent: Vec<CmMessage>,
    /// The message whose first copy is lost.
    lost: Option<&'static str>,
    /// The attributes that the active end got with the REP.
    agreed: Option<CmQpParameters>,
}

/// Returns the service that the passive end listens for.
const fn service_id() -> ServiceId {
    ServiceId::of_port(PortSpace::Tcp, PORT)
}

fn offer(end: usize) -> CmOffer {
    CmOffer {
        qpn: Qpn::new([0x11, 0x22][end & 1]),
        starting_psn: Psn::new(PSNS[end & 1]),
        responder_resources: 16,
        initiator_depth: 16,
        rnr_retry_count: 7,
        srq: false,
    }
}

impl Exchange {
    /// Sets up a connection. The first copy of the message with the name `lost` does not arrive.
    fn run(lost: Option<&'static str>) -> Option<Self> {
        let manager = |seed: u8| ConnectionManager::new(CmConfig::new([seed; 32], seed.into()));
        let mut exchange = Self {
            now: Instant::from_nanos(1),
            ends: [manager(1), manager(2)],
            path: Path { encapsulation: Encapsulation::RoceV2, ..Pair::new(8).path(Side::A) },
            wire: Vec::new(),
            sent: Vec::new(),
            lost,
            agreed: None,
        };
        let listen = CmListen { accepts: CmAccepts::Connections, backlog: 8, ip_cm: false };
        let connect = CmConnect {
            path: exchange.path,
            service_id: service_id(),
            transport: TransportService::Rc,
            offer: offer(0),
            path_mtu: PathMtu::Mtu1024,
            flow_label: 0,
            retry_count: 7,
            timing: TIMING,
            ip_cm: None,
            private_data: b"",
        };
        let [active, passive] = &mut exchange.ends;
        passive.listen(service_id(), listen).ok()?;
        active.connect(exchange.now, &connect).ok()?;
        while exchange.step()? {}
        Some(exchange)
    }

    /// Advances to the next arrival or timeout. Returns `false` at the end.
    fn step(&mut self) -> Option<bool> {
        self.answer()?;
        let arrivals = self.wire.iter().map(|(at, ..)| *at);
        let timeouts = self.ends.iter().filter_map(ConnectionManager::poll_timeout);
        let Some(next) = arrivals.chain(timeouts).min().filter(|next| next.as_nanos() < END_NS) else {
            return Some(false);
        };
        self.now = self.now.max(next);
        let now = self.now;
        let all = std::mem::take(&mut self.wire);
        let (due, later): (Vec<Arrival>, Vec<Arrival>) = all.into_iter().partition(|(at, ..)| *at <= now);
        self.wire = later;
        for (_, end, message) in due {
            let end = self.ends.get_mut(end)?;
            end.handle_mad(now, &message.path, Qpn::GSI, &message.mad[..]);
        }
        self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
        self.answer()?;
        Some(true)
    }

    /// Answers the events as applications do, and sends the messages.
    fn answer(&mut self) -> Option<()> {
        let now = self.now;
        for (number, end) in self.ends.iter_mut().enumerate() {
            while let Some(event) = end.poll_event() {
                match event {
                    CmEvent::ConnectRequest(request) => {
                        end.accept(now, request.id, &offer(number), b"").ok()?;
                    }
                    CmEvent::ConnectResponse { id, parameters, .. } => {
                        self.agreed = Some(parameters);
                        end.ready(now, id, b"").ok()?;
                    }
                    _ => {}
                }
            }
            while let Some(transmit) = end.poll_transmit(now) {
                let message = CmMad::parse(&transmit.mad[..]).ok()?.message;
                let is_lost = self.lost == Some(message.name());
                self.sent.push(message);
                if is_lost {
                    self.lost = None;
                } else {
                    self.wire.push((now.plus_nanos(DELAY_NS), 1 - number, transmit));
                }
            }
        }
        Some(())
    }

    /// Returns the names of all messages, separated by commas.
    fn names(&self) -> String {
        self.sent.iter().map(CmMessage::name).collect::<Vec<_>>().join(", ")
    }
}

/// The service ID of a port.
fn service() -> Option<AnswerKey> {
    let exchange = Exchange::run(None)?;
    let found = exchange.sent.iter().find_map(|message| match message {
        CmMessage::Req(req) => Some(req.service_id.0),
        _ => None,
    })?;
    let of = |space, port| Expected::Number(ServiceId::of_port(space, port).0);
    let (space, swapped) = (found >> 16, PORT.swap_bytes());
    let shows = format!(
        "A connection manager sent a REQ for port {PORT} of {}.\n\
         The service ID in it is {found:#018x}: {space:#x} for the port space, and {PORT:#06x} for the port.",
        PortSpace::Tcp.name(),
    );
    let key = AnswerKey::new(Expected::Number(found), shows)
        .hint(
            Expected::Number(PORT.into()),
            "This is the port only. The bits above it name the port space of rdma_cm.",
        )
        .hint(
            of(PortSpace::Udp, PORT),
            "This port space is that of datagrams, whose services answer SIDR_REQ. Connections use another \
             one.",
        )
        .hint(
            of(PortSpace::Tcp, swapped),
            "The bytes of the port are in the wrong order. All numbers on the wire are big-endian.",
        )
        .otherwise("Add the number of the port space, shifted to the left by 16 bits, to the port.");
    Some(key)
}

/// The PSN of the first packet of the active end.
fn first_psn() -> Option<AnswerKey> {
    let exchange = Exchange::run(None)?;
    let agreed = exchange.agreed?;
    let first = u64::from(agreed.sq_psn.get());
    let [own, peer] = PSNS;
    let shows = format!(
        "Two connection managers exchanged {}.\n\
         The REQ had starting PSN {own}, and the REP {peer}.\n\
         The active end got sq_psn = {} and rq_psn = {} for its queue pair.",
        exchange.names(),
        agreed.sq_psn.get(),
        agreed.rq_psn.get(),
    );
    let key = AnswerKey::new(Expected::Number(first), shows)
        .hint(
            Expected::Number(own.into()),
            "An end writes into its message which PSN it expects first. So this PSN is for the packets of \
             the other end.",
        )
        .hint(
            Expected::Number(first + 1),
            "Messages of connection management use queue pair 1, so they take no PSN of the new connection.",
        )
        .hint(
            Expected::Number(0),
            "PSNs begin at a random number, so that late packets of an older connection do not fit. The \
             messages carry that number.",
        )
        .otherwise("One of the two messages has the PSN with which the active end begins.");
    Some(key)
}

/// The message that is sent again after the RTU was lost.
fn lost_message() -> Option<AnswerKey> {
    let exchange = Exchange::run(Some("RTU"))?;
    let lost = exchange.sent.iter().position(|message| message.name() == "RTU")?;
    let next = exchange.sent.get(lost + 1)?.name();
    let shows = format!(
        "Two connection managers exchanged these messages, and the first RTU was lost: {}.\n\
         The passive end sent its {next} again, because no answer to it had come.",
        exchange.names(),
    );
    let key = AnswerKey::new(Expected::text(next), shows)
        .hint(
            Expected::text("RTU"),
            "The RTU has no answer, so the active end has no timer for it. It sends an RTU again only if it \
             is asked.",
        )
        .hint(Expected::text("REQ"), "The REQ was answered, so the active end no longer repeats it.")
        .hint(Expected::text("DREQ"), "DREQ ends a connection. One lost message does not end it.")
        .otherwise("Which end still waits for an answer to its message?");
    Some(key)
}

/// Tells whether a queue pair in this state handles a SEND. The verdict of the engine is the second value.
fn handles(state: QpState) -> Option<(bool, Verdict)> {
    let settings = Settings::default();
    let mut pair = Pair::with_config(roce_transport::EngineConfig::from_number(8), 1 << 13);
    let a = pair.create_qp(Side::A, QpType::Rc, &settings);
    let b = pair.create_qp(Side::B, QpType::Rc, &settings);
    pair.bring_up(Side::A, a, b, &settings, QpState::Rts);
    if state != QpState::Reset {
        pair.bring_up(Side::B, b, a, &settings, state);
        pair.post_recv(Side::B, b, 1, 0, 64).ok()?;
    }
    let element = pair.host(Side::A).memory_range(0, 16);
    pair.post_send(Side::A, a, &SendWr::new(2, SendOp::Send, &[element])).ok()?;
    let soon = pair.now.plus_nanos(10_000);
    pair.drive_until(soon);
    let (_, verdict) = pair.verdicts.iter().find(|(side, _)| *side == Side::B)?;
    Some((*verdict == Verdict::Handled, *verdict))
}

/// The first state in which a queue pair receives.
fn first_state() -> Option<AnswerKey> {
    let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
    let mut shows = "An engine got a SEND for a queue pair in each state:\n".to_owned();
    let mut first = None;
    for state in states {
        let (is_handled, verdict) = handles(state)?;
        let end = match verdict {
            Verdict::Handled => "handled".to_owned(),
            Verdict::Dropped(reason) => format!("dropped, counter {}", reason.counter()),
        };
        shows.push_str(&format!("{}: {end}\n", state.name()));
        first = first.or(is_handled.then_some(state));
    }
    let key = AnswerKey::new(Expected::text(first?.name()), shows)
        .hint(
            Expected::text(QpState::Init.name()),
            "In INIT a queue pair accepts receives, but it does not know its peer yet. It drops packets.",
        )
        .hint(
            Expected::text(QpState::Rts.name()),
            "In RTS a queue pair may also send. It receives in the state before.",
        )
        .hint(
            Expected::text(QpState::Reset.name()),
            "A new queue pair is in RESET. It has neither a port nor a peer, and no receive can be posted.",
        )
        .otherwise("The names of the states say what a queue pair is ready for.");
    Some(key)
}
