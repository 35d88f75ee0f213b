//! Counters compared with what a capture at the same port shows.

use super::compare::Comparison;
use super::event::Event;

/// Numbers that a capture at the port of a NIC shows. `None` means that the capture cannot tell, for example
/// because it contains only one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// RoCE packets that the NIC sent.
    pub packets_sent: Option<u64>,
    /// RoCE packets that the NIC received.
    pub packets_received: Option<u64>,
    /// Requests to the NIC ahead of the expected PSN.
    pub out_of_sequence: Option<u64>,
    /// NAKs "PSN sequence error" that the NIC received.
    pub naks_sequence_received: Option<u64>,
    /// Responses to the NIC after a missing one.
    pub implied_naks: Option<u64>,
    /// Requests that the NIC received again.
    pub duplicate_requests: Option<u64>,
    /// RNR NAKs that the NIC sent.
    pub rnr_naks_sent: Option<u64>,
    /// RNR NAKs that the NIC received.
    pub rnr_naks_received: Option<u64>,
    /// Retransmissions of the NIC after a timeout.
    pub timeouts: Option<u64>,
    /// CNPs that the NIC sent.
    pub cnps_sent: Option<u64>,
    /// CNPs that the NIC received.
    pub cnps_received: Option<u64>,
    /// Packets with the mark CE that the NIC received.
    pub ecn_marked: Option<u64>,
    /// Packets with a wrong ICRC that the NIC received.
    pub wrong_icrcs: Option<u64>,
    /// First packets of WRITE requests that the NIC received.
    pub write_requests: Option<u64>,
    /// READ requests that the NIC received.
    pub read_requests: Option<u64>,
    /// Atomic requests that the NIC received.
    pub atomic_requests: Option<u64>,
}

impl WireCounts {
    /// No events.
    pub(crate) const fn nothing() -> Self {
        Self {
            packets_sent: Some(0),
            packets_received: Some(0),
            out_of_sequence: Some(0),
            naks_sequence_received: Some(0),
            implied_naks: Some(0),
            duplicate_requests: Some(0),
            rnr_naks_sent: Some(0),
            rnr_naks_received: Some(0),
            timeouts: Some(0),
            cnps_sent: Some(0),
            cnps_received: Some(0),
            ecn_marked: Some(0),
            wrong_icrcs: Some(0),
            write_requests: Some(0),
            read_requests: Some(0),
            atomic_requests: Some(0),
        }
    }

    /// Returns the numbers with the events that NICs count.
    #[must_use]
    pub const fn events(&self) -> [(Event, Option<u64>); 16] {
        [
            (Event::WrongIcrc, self.wrong_icrcs),
            (Event::OutOfSequence, self.out_of_sequence),
            (Event::NakSequenceReceived, self.naks_sequence_received),
            (Event::ImpliedNak, self.implied_naks),
            (Event::DuplicateRequest, self.duplicate_requests),
            (Event::Timeout, self.timeouts),
            (Event::RnrNakSent, self.rnr_naks_sent),
            (Event::RnrNakReceived, self.rnr_naks_received),
            (Event::EcnMarked, self.ecn_marked),
            (Event::CnpSent, self.cnps_sent),
            (Event::CnpHandled, self.cnps_received),
            (Event::PacketsSent, self.packets_sent),
            (Event::PacketsReceived, self.packets_received),
            (Event::WriteRequests, self.write_requests),
            (Event::ReadRequests, self.read_requests),
            (Event::AtomicRequests, self.atomic_requests),
        ]
    }
}

/// Whether a counter agrees with a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Both have the same number.
    Equal,
    /// The capture has events, and the counter did not change: it is stuck, or counts something else.
    Stuck,
    /// The numbers differ.
    Different,
}

impl Agreement {
    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Stuck => "stuck",
            Self::Different => "different",
        }
    }
}

/// A counter beside the number of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Name of the counter.
    pub counter: String,
    /// The event.
    pub event: Event,
    /// Growth of the counter.
    pub counted: u64,
    /// Number in the capture.
    pub seen: u64,
    /// Whether they agree.
    pub agreement: Agreement,
}

impl Beside {
    /// Returns the result as a sentence without a full stop.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { counter, event, counted, seen, agreement } = self;
        let meaning = match event {
            // Those of a capture need not have an effect.
            Event::CnpHandled => "received congestion notifications (CNP)",
            _ => event.meaning(),
        };
        match agreement {
            Agreement::Equal => format!("{counter} grew by {counted}, as many {meaning} as in the capture"),
            Agreement::Stuck => {
                format!("{counter} is stuck: it did not change, but the capture has {seen} {meaning}")
            }
            Agreement::Different => {
                format!("{counter} grew by {counted}, but the capture has {seen} {meaning}")
            }
        }
    }
}

/// Compares counters with a capture of the same time at the same port. Events without a counter, and those
/// that the capture cannot tell, are left out.
#[must_use]
pub fn beside(comparison: &Comparison, wire: &WireCounts) -> Vec<Beside> {
    let known = wire.events().into_iter().filter_map(|(event, seen)| Some((event, seen?)));
    known
        .filter_map(|(event, seen)| {
            let (counter, counted) = growth(comparison, event)?;
            let agreement = match (counted, seen) {
                _ if counted == seen => Agreement::Equal,
                (0, _) => Agreement::Stuck,
                _ => Agreement::Different,
            };
            Some(Beside { counter, event, counted, seen, agreement })
        })
        .collect()
}

/// Returns the counter of an event that a capture shows, with its growth. A capture does not tell whether a
/// CNP had an effect, so both kinds count.
fn growth(comparison: &Comparison, event: Event) -> Option<(String, u64)> {
    let (name, count) = comparison.growth(event)?;
    match comparison.growth(Event::CnpIgnored).filter(|_| event == Event::CnpHandled) {
        Some((ignored, more)) => Some((format!("{name} + {ignored}"), count.saturating_add(more))),
        None => Some((name.to_owned(), count)),
    }
}
