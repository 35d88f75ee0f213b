//! The state of congestion control around an algorithm: the pacer, the window, the measured round trip.

use alloc::boxed::Box;

use roce_packet::{
    Encapsulation, EthernetHeader, Grh, Ipv4Header, Ipv6Header, PREAMBLE_AND_GAP_LEN, Path, Psn, Qpn,
    Telemetry, UdpHeader, VlanHeader,
};

use super::after_loss::AfterLoss;
use super::pacer::Pacer;
use super::{Ack, CongestionControl, Feedback, Loss, Observation, Rate, Trim};
use crate::Instant;
use crate::config::Pacing;

/// The reaction point of one queue pair.
#[derive(Debug)]
pub(crate) struct Control {
    /// The queue pair number, for trace events.
    qpn: Qpn,
    limiter: Limiter,
    pacer: Pacer,
    preamble: bool,
    /// The last rate and window of the algorithm.
    rate: Rate,
    window: Option<u64>,
    /// Unacknowledged payload bytes; after going back, those sent since.
    in_flight: u64,
    /// The packet whose round trip is being measured, and the time at which it left.
    watched: Option<(Psn, Instant)>,
    /// Whether the peer echoed a mark since the last acknowledgement.
    echoed: bool,
    /// Whether data leaves with in-band telemetry.
    telemetry: bool,
    /// Number of packets of which at least one requests an acknowledgement, whatever the window.
    interval: u64,
    /// Number of hops on the path of the last answer.
    hops: Option<u8>,
}

/// The source of the rate and the window.
#[derive(Debug)]
enum Limiter {
    /// The chosen algorithm.
    Algorithm(Box<dyn CongestionControl>),
    /// The law that applies after a loss if no algorithm was chosen.
    AfterLoss(AfterLoss),
}

impl Limiter {
    fn algorithm(&self) -> &dyn CongestionControl {
        match self {
            Self::Algorithm(algorithm) => algorithm.as_ref(),
            Self::AfterLoss(law) => law,
        }
    }

    fn algorithm_mut(&mut self) -> &mut dyn CongestionControl {
        match self {
            Self::Algorithm(algorithm) => algorithm.as_mut(),
            Self::AfterLoss(law) => law,
        }
    }
}

/// The properties of a sent request packet for [`Control::request_sent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    /// The PSN of the answer that acknowledges the packet.
    pub(crate) psn: Psn,
    pub(crate) payload: u64,
    pub(crate) ack_req: bool,
    /// Whether the answer measures a round trip. It does not after a retransmission, or if the answer takes
    /// long.
    pub(crate) measures: bool,
}

impl Control {
    pub(crate) fn new(
        algorithm: Box<dyn CongestionControl>,
        qpn: Qpn,
        now: Instant,
        pacing: &Pacing,
    ) -> Self {
        Self::with_limiter(Limiter::Algorithm(algorithm), qpn, now, pacing)
    }

    /// Creates the control of a queue pair without an algorithm, after a loss.
    pub(crate) fn after_loss(law: AfterLoss, qpn: Qpn, now: Instant, pacing: &Pacing) -> Self {
        let control = Self::with_limiter(Limiter::AfterLoss(law), qpn, now, pacing);
        control.trace_changes(Rate::UNLIMITED, None);
        control
    }

    fn with_limiter(limiter: Limiter, qpn: Qpn, now: Instant, pacing: &Pacing) -> Self {
        let (rate, window) = (limiter.algorithm().rate(), limiter.algorithm().window());
        let telemetry = limiter.algorithm().wants_telemetry();
        let interval = match limiter.algorithm().feedback() {
            _ if telemetry => 1,
            Feedback::Packets(packets) => packets.into(),
            Feedback::Window => u64::MAX,
        };
        Self {
            qpn,
            limiter,
            pacer: Pacer::new(now, pacing.burst),
            preamble: pacing.preamble,
            rate,
            window,
            in_flight: 0,
            watched: None,
            echoed: false,
            telemetry,
            interval,
            hops: None,
        }
    }

    /// Notifies the algorithm of an event that may change the rate. Settles the elapsed time at the old rate.
    fn tell(&mut self, now: Instant, what: impl FnOnce(&mut dyn CongestionControl)) {
        self.pacer.settle(now, self.rate);
        self.notify(what);
    }

    fn notify(&mut self, what: impl FnOnce(&mut dyn CongestionControl)) {
        let (rate, window) = (self.rate, self.window);
        what(self.limiter.algorithm_mut());
        self.rate = self.limiter.algorithm().rate();
        self.window = self.limiter.algorithm().window();
        if self.rate != rate || self.window != window {
            self.trace_changes(rate, window);
        }
    }

    /// Traces the changes of rate and window, unless the algorithm reports them itself.
    fn trace_changes(&self, rate: Rate, window: Option<u64>) {
        if !tracing::enabled!(tracing::Level::DEBUG) || self.limiter.algorithm().reports_changes() {
            return;
        }
        let qpn = self.qpn.get();
        // The field is missing if there is no limit.
        let bits = |rate: Rate| (!rate.is_unlimited()).then_some(rate.get());
        let (from_bits_per_second, bits_per_second) = (bits(rate), bits(self.rate));
        if self.rate < rate {
            tracing::debug!(qpn, from_bits_per_second, bits_per_second, "rate cut");
        } else if self.rate > rate {
            tracing::debug!(qpn, from_bits_per_second, bits_per_second, "rate increase");
        }
        let wide = |window: Option<u64>| window.unwrap_or(u64::MAX);
        let (from_window_bytes, window_bytes) = (window, self.window);
        if wide(self.window) < wide(window) {
            tracing::debug!(qpn, from_window_bytes, window_bytes, "window cut");
        } else if wide(self.window) > wide(window) {
            tracing::debug!(qpn, from_window_bytes, window_bytes, "window increase");
        }
    }

    /// Returns the time when the next packet may leave, or `None` if it may leave now. The time is at most
    /// that of the next timer, when the rate changes.
    #[inline]
    pub(crate) fn ready_at(&mut self, now: Instant) -> Option<Instant> {
        let timer = self.limiter.algorithm().next_timer();
        if timer.is_some_and(|at| at <= now) {
            self.tell(now, |algorithm| algorithm.on_timer(now));
        } else {
            self.pacer.settle(now, self.rate);
        }
        let ready = self.pacer.ready_at(self.rate)?;
        Some(self.limiter.algorithm().next_timer().map_or(ready, |at| ready.min(at)))
    }

    /// Returns the time when the window changes by itself, if there is a window.
    pub(crate) fn window_timer(&self) -> Option<Instant> {
        self.window.and_then(|_| self.limiter.algorithm().next_timer())
    }

    /// Records that a data packet left.
    pub(crate) fn sent(&mut self, now: Instant, path: &Path, len: usize) {
        let trailer = if self.telemetry { Telemetry::LEN } else { 0 };
        let bytes = wire_len(path, len + trailer, self.preamble);
        self.pacer.settle(now, self.rate);
        self.pacer.charge(bytes, self.rate);
        self.notify(|algorithm| algorithm.on_send(now, bytes));
    }

    /// Records that a request packet left (RC).
    pub(crate) fn request_sent(&mut self, now: Instant, request: SentRequest) {
        self.in_flight += request.payload;
        if request.ack_req && request.measures && self.watched.is_none() {
            self.watched = Some((request.psn, now));
        }
    }

    /// Tells whether the next packet may leave: it may while fewer bytes than the window are in flight,
    /// as in TCP and HPCC's simulator. `absent` bytes of them have left the network: they were received
    /// before earlier ones, or trimmed. One packet may always be in flight. A packet may also leave if
    /// none in flight requests an answer (`!is_asked`), because a reduced window grows only when an
    /// answer arrives.
    pub(crate) fn has_room(&self, absent: u64, is_asked: bool) -> bool {
        let in_flight = self.in_flight.saturating_sub(absent);
        self.window.is_none_or(|window| in_flight < window) || in_flight == 0 || !is_asked
    }

    /// Tells whether a packet of `payload` bytes, after `unasked` packets without a request, should request
    /// an answer. It should as often as the algorithm requires, at quarters of the window, and if it fills
    /// the window.
    pub(crate) fn wants_answer(&self, payload: u64, unasked: u64) -> bool {
        unasked + 1 >= self.interval
            || self.window.is_some_and(|window| {
                self.in_flight + payload >= window || (unasked + 1) * payload >= window / 4
            })
    }

    /// Changes the law that applies without an algorithm, by calling `what`.
    pub(crate) fn change_law(&mut self, now: Instant, what: impl FnOnce(&mut AfterLoss)) {
        self.pacer.settle(now, self.rate);
        let before = self.rate;
        if let Limiter::AfterLoss(law) = &mut self.limiter {
            what(law);
            self.rate = law.rate();
            // A burst must not follow a loss.
            self.pacer.forget_credit();
        }
        if self.rate != before {
            self.trace_changes(before, self.window);
        }
    }

    /// Tells whether an algorithm was chosen.
    pub(crate) fn is_chosen(&self) -> bool {
        matches!(self.limiter, Limiter::Algorithm(_))
    }

    /// Tells whether this is the law after a loss and no longer limits anything.
    pub(crate) fn is_over(&self) -> bool {
        matches!(&self.limiter, Limiter::AfterLoss(law) if law.is_over())
    }

    /// Tells whether packets are spaced although no algorithm was chosen.
    pub(crate) fn is_spaced_after_loss(&self) -> bool {
        !self.is_chosen() && !self.rate.is_unlimited()
    }

    /// Records that everything before `una` is answered, including `bytes` of payload for the first time.
    pub(crate) fn acknowledged(&mut self, now: Instant, una: Psn, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let rtt = self.watched.filter(|(psn, _)| psn.before(una)).map(|(_, left)| now.since(left));
        if rtt.is_some() {
            self.watched = None;
        }
        let marked = core::mem::take(&mut self.echoed);
        let ack = Ack { bytes, in_flight: self.in_flight, rtt, marked, hops: self.hops };
        self.tell(now, |algorithm| algorithm.on_ack(now, &ack));
    }

    /// Records an echoed mark. The algorithm is notified of it with the next acknowledgement.
    pub(crate) fn echo(&mut self) {
        self.echoed = true;
    }

    /// Records the hop limit of an answer, 0 if the device does not report it. Hosts start at 64, 128 or 255,
    /// and these values are further apart than the number of hops of any path.
    #[inline]
    pub(crate) fn answered_over(&mut self, hop_limit: u8) {
        let start = match hop_limit {
            0 => return,
            1..=64 => 64,
            65..=128 => 128,
            129.. => 255,
        };
        self.hops = Some(start - hop_limit);
    }

    /// Tells whether data leaves with in-band telemetry.
    pub(crate) fn wants_telemetry(&self) -> bool {
        self.telemetry
    }

    /// Passes returned telemetry to the algorithm. It takes effect with the acknowledgement that carried it.
    pub(crate) fn stamped(&mut self, now: Instant, telemetry: &Telemetry) {
        self.limiter.algorithm_mut().on_telemetry(now, telemetry);
    }

    /// Records a go-back of the requester: no bytes are in flight.
    pub(crate) fn went_back(&mut self) {
        (self.in_flight, self.watched) = (0, None);
    }

    /// Cancels the measured round trip when a packet is sent again. The next answer may be to either copy, or
    /// may have waited for the missing packet.
    pub(crate) fn forget_round_trip(&mut self) {
        self.watched = None;
    }

    /// Notifies the algorithm of a loss.
    pub(crate) fn lost(&mut self, now: Instant, loss: Loss) {
        self.tell(now, |algorithm| algorithm.on_loss(now, loss));
    }

    /// Notifies the algorithm of a packet that was trimmed.
    pub(crate) fn trimmed(&mut self, now: Instant, trim: Trim) {
        self.tell(now, |algorithm| algorithm.on_trimmed(now, trim));
    }

    /// Notifies the algorithm of a CNP.
    pub(crate) fn notified(&mut self, now: Instant) {
        self.tell(now, |algorithm| algorithm.on_cnp(now));
    }

    /// Returns the state of the algorithm, for plots.
    pub(crate) fn observe(&self, now: Instant) -> Observation {
        self.limiter.algorithm().observe(now)
    }
}

/// Returns the bytes that a datagram takes on Ethernet, with or without preamble and gap.
pub(super) fn wire_len(path: &Path, len: usize, preamble: bool) -> u32 {
    let network = match (path.encapsulation, path.source.is_ipv4()) {
        (Encapsulation::RoceV1, _) => Grh::LEN,
        (Encapsulation::RoceV2, true) => Ipv4Header::LEN + UdpHeader::LEN,
        (Encapsulation::RoceV2, false) => Ipv6Header::LEN + UdpHeader::LEN,
    };
    let tag = if path.vlan.is_some() { VlanHeader::LEN } else { 0 };
    let len = roce_packet::wire_len(EthernetHeader::LEN + tag + network + len);
    u32::try_from(if preamble { len } else { len - PREAMBLE_AND_GAP_LEN }).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn wire_bytes_of_known_packets() {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let path = Path {
            encapsulation: Encapsulation::RoceV2,
            source: address,
            destination: address,
            source_port: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        };
        // A middle packet of path MTU 1024: 12 + 1024 + 4 from BTH to ICRC.
        assert_eq!(wire_len(&path, 1040, true), 1106);
        assert_eq!(wire_len(&path, 1040, false), 1086);
        let on_ipv6 = Path { source: IpAddr::V6(Ipv6Addr::LOCALHOST), ..path };
        assert_eq!(wire_len(&on_ipv6, 1040, false), 1106);
        assert_eq!(wire_len(&path, 16, true), 84);
    }
}
