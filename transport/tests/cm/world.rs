//! Two connection managers and the wire between them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use roce_packet::mad::{
    CmMad, CmTimeout, CommId, IpCm, MAD_LEN, PortSpace, RejReason, ServiceId, TransportService,
};
use roce_packet::{Encapsulation, Path, PathMtu, Psn, Qpn, flow};
use roce_transport::Instant;
use roce_transport::cm::{
    CmAccepts, CmConfig, CmConnect, CmEvent, CmListen, CmOffer, CmResolve, CmTiming, CmTransmit,
    ConnectionManager,
};

pub(crate) const ACTIVE: usize = 0;
pub(crate) const PASSIVE: usize = 1;
pub(crate) const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7174);
pub(crate) const LATENCY: Duration = Duration::from_millis(1);
/// Answers arrive within 17 ms; packets take at most 4 ms.
pub(crate) const TIMING: CmTiming =
    CmTiming { response_timeout: CmTimeout::new(12), packet_lifetime: CmTimeout::new(10), max_retries: 7 };

pub(crate) fn address(side: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1 + side as u8))
}

pub(crate) fn path(from: usize) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(from),
        destination: address(1 - from),
        source_port: 55410,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

pub(crate) fn ip_cm() -> IpCm {
    IpCm { source_port: 40_000, source: address(ACTIVE), destination: address(PASSIVE) }
}

pub(crate) fn offer(qpn: u32) -> CmOffer {
    CmOffer {
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(qpn << 4),
        responder_resources: 4,
        initiator_depth: 8,
        rnr_retry_count: 7,
        srq: false,
    }
}

pub(crate) fn request(qpn: u32) -> CmConnect<'static> {
    CmConnect {
        path: path(ACTIVE),
        service_id: SERVICE,
        transport: TransportService::Rc,
        offer: offer(qpn),
        path_mtu: PathMtu::Mtu1024,
        flow_label: flow::rdma_cm_flow_label(40_000, 7174),
        retry_count: 7,
        timing: TIMING,
        ip_cm: Some(ip_cm()),
        private_data: b"hello",
    }
}

pub(crate) fn question() -> CmResolve<'static> {
    CmResolve {
        path: path(ACTIVE),
        service_id: SERVICE,
        timing: TIMING,
        ip_cm: Some(ip_cm()),
        private_data: b"where?",
    }
}

pub(crate) fn manager(seed: u8) -> ConnectionManager {
    ConnectionManager::new(CmConfig::new([seed; 32], 0x0200_00ff_fe00_0000 | u64::from(seed)))
}

/// The treatment of a message on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    Twice,
    Late,
}

/// Decides the fate of a message, given the sending side and the message.
type FateOf = dyn FnMut(usize, &CmMad) -> Fate;

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) sides: [ConnectionManager; 2],
    pub(crate) events: [VecDeque<CmEvent>; 2],
    /// The messages on the wire: time of arrival, receiving side, message.
    wire: Vec<(Instant, usize, CmTransmit)>,
    /// Every message sent: the sending side and the name.
    pub(crate) log: Vec<(usize, &'static str)>,
    fate: Box<FateOf>,
}

impl World {
    /// Returns two managers, of which the passive side listens.
    pub(crate) fn new() -> Self {
        let mut world = Self {
            now: Instant::from_nanos(1),
            sides: [manager(1), manager(2)],
            events: Default::default(),
            wire: Vec::new(),
            log: Vec::new(),
            fate: Box::new(|_, _| Fate::Deliver),
        };
        world.sides[PASSIVE]
            .listen(SERVICE, CmListen { accepts: CmAccepts::Both, backlog: 8, ip_cm: true })
            .unwrap();
        world
    }

    pub(crate) fn with_fate(fate: impl FnMut(usize, &CmMad) -> Fate + 'static) -> Self {
        Self { fate: Box::new(fate), ..Self::new() }
    }

    pub(crate) fn set_fate(&mut self, fate: impl FnMut(usize, &CmMad) -> Fate + 'static) {
        self.fate = Box::new(fate);
    }

    /// Sends pending messages and collects events.
    pub(crate) fn drain(&mut self) {
        for side in [ACTIVE, PASSIVE] {
            while let Some(transmit) = self.sides[side].poll_transmit(self.now) {
                assert_eq!(transmit.remote_qpn, Qpn::GSI);
                assert_eq!(
                    (transmit.path.source, transmit.path.destination),
                    (address(side), address(1 - side))
                );
                let mad = CmMad::parse(&transmit.mad[..]).expect("what is sent can be read");
                self.log.push((side, mad.message.name()));
                let copies: &[u32] = match (self.fate)(side, &mad) {
                    Fate::Deliver => &[1],
                    Fate::Drop => &[],
                    Fate::Twice => &[1, 2],
                    Fate::Late => &[60],
                };
                for copy in copies {
                    self.wire.push((self.now + LATENCY * *copy, 1 - side, transmit.clone()));
                }
            }
            while let Some(event) = self.sides[side].poll_event() {
                self.events[side].push_back(event);
            }
        }
    }

    /// Advances to the next event. Returns `false` if no event is pending.
    pub(crate) fn step(&mut self) -> bool {
        self.drain();
        let arrival = self.wire.iter().map(|(at, _, _)| *at).min();
        let timeouts = self.sides.iter().filter_map(ConnectionManager::poll_timeout);
        let Some(next) = timeouts.chain(arrival).min() else { return false };
        self.now = self.now.max(next);
        while let Some(index) = self.wire.iter().position(|(at, _, _)| *at <= self.now) {
            let (_, side, transmit) = self.wire.remove(index);
            self.sides[side].handle_mad(self.now, &transmit.path, Qpn::GSI, &transmit.mad[..]);
        }
        for side in &mut self.sides {
            side.handle_timeout(self.now);
        }
        self.drain();
        true
    }

    /// Runs until one side gets an event, which is returned.
    #[track_caller]
    pub(crate) fn event(&mut self, side: usize) -> CmEvent {
        loop {
            self.drain();
            if let Some(event) = self.events[side].pop_front() {
                return event;
            }
            assert!(self.step(), "nothing will ever happen; messages so far: {:?}", self.log);
        }
    }

    /// Runs until no event is pending.
    pub(crate) fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "it never ends");
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.drain();
        loop {
            let arrival = self.wire.iter().map(|(at, _, _)| *at).min();
            let timeouts = self.sides.iter().filter_map(ConnectionManager::poll_timeout);
            match timeouts.chain(arrival).min() {
                Some(next) if next <= end => self.step(),
                _ => break,
            };
        }
        self.now = end;
    }

    /// Runs until the passive side is asked, and returns the ID of the request.
    #[track_caller]
    pub(crate) fn asked(&mut self) -> CommId {
        match self.event(PASSIVE) {
            CmEvent::ConnectRequest(request) => {
                assert_eq!(&request.private_data()[..5], b"hello");
                assert_eq!(request.ip_cm, Some(ip_cm()));
                request.id
            }
            other => panic!("not asked, but told {other:?}"),
        }
    }

    /// Connects two queue pairs. Returns both IDs of the connection.
    #[track_caller]
    pub(crate) fn connect(&mut self) -> (CommId, CommId) {
        let active = self.sides[ACTIVE].connect(self.now, &request(0x11)).unwrap();
        let passive = self.asked();
        self.sides[PASSIVE].accept(self.now, passive, &offer(0x22), b"welcome").unwrap();
        self.finish_connecting(active, passive);
        (active, passive)
    }

    #[track_caller]
    pub(crate) fn finish_connecting(&mut self, active: CommId, passive: CommId) {
        match self.event(ACTIVE) {
            CmEvent::ConnectResponse { id, private_data, .. } => {
                assert_eq!(id, active);
                assert_eq!(&private_data[..7], b"welcome");
            }
            other => panic!("told {other:?}"),
        }
        self.sides[ACTIVE].ready(self.now, active, b"").unwrap();
        for (side, id) in [(ACTIVE, active), (PASSIVE, passive)] {
            let event = self.event(side);
            assert!(matches!(event, CmEvent::Established { .. }), "side {side} is told {event:?}");
            assert_eq!(event.id(), id);
        }
    }

    /// Checks that both sides report the end and that no state is left.
    #[track_caller]
    pub(crate) fn expect_the_end(&mut self, ids: (CommId, CommId)) {
        for (side, id) in [(ACTIVE, ids.0), (PASSIVE, ids.1)] {
            assert_eq!(self.event(side), CmEvent::Disconnected { id }, "side {side}");
        }
        for (side, id) in [(ACTIVE, ids.0), (PASSIVE, ids.1)] {
            assert_eq!(self.event(side), CmEvent::TimewaitExit { id }, "side {side}");
        }
        self.expect_nothing_left();
    }

    #[track_caller]
    pub(crate) fn expect_nothing_left(&mut self) {
        self.settle();
        for side in [ACTIVE, PASSIVE] {
            assert!(self.events[side].is_empty(), "side {side}: {:?}", self.events[side]);
            assert!(self.sides[side].is_empty(), "side {side}: {:?}", self.sides[side]);
        }
    }

    #[track_caller]
    pub(crate) fn expect_rejected(&mut self, side: usize, id: CommId, reason: RejReason) {
        match self.event(side) {
            CmEvent::Rejected { id: found, reason: why, .. } => assert_eq!((found, why), (id, reason)),
            other => panic!("told {other:?}"),
        }
    }

    pub(crate) fn sent(&self, side: usize, name: &str) -> usize {
        self.log.iter().filter(|entry| **entry == (side, name)).count()
    }
}

/// Returns the bytes of a message.
pub(crate) fn bytes(mad: &CmMad) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    mad.emit(&mut bytes);
    bytes
}
