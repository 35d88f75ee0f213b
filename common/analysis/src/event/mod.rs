//! Everything on the wire that is not normal, in time order.
//!
//! Each event is derived once: a packet that two taps show is one event, and a return of a requester that a
//! lost packet explains is one return and one loss. What only the capture lacks is [`EventKind::NotCaptured`].

mod answers;
mod loss;
mod management;
mod order;
mod packets;
mod resends;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use crate::analysis::Analysis;
use crate::connection::{Connection, View};
use crate::copies::{Crossing, Tap};
use crate::record::{Place, Record, StreamId};
use crate::replay::Replay;

/// Where the network lost a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Where {
    /// Between its sender and the tap.
    BeforeTap,
    /// Between the tap and its receiver.
    BehindTap,
    /// Between the two taps.
    BetweenTaps,
}

impl Where {
    /// Returns the place in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeTap => "before the tap",
            Self::BehindTap => "behind the tap",
            Self::BetweenTaps => "between the taps",
        }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $(($place:ident))? = $key:literal;)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventKind {
            $($(#[$doc])* $name $(($place))?,)*
        }

        impl EventKind {
            /// Returns the name in reports: lower case with underscores.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(kinds!(@pattern $name $($place)?) => $key,)*
                }
            }

            /// All names.
            pub const KEYS: &'static [&'static str] = &[$($key),*];
        }
    };
    (@pattern $name:ident) => { Self::$name };
    (@pattern $name:ident $place:ident) => { Self::$name(_) };
}

kinds! {
    /// The network lost a request.
    RequestLost(Where) = "request_lost";
    /// The network lost a READ response.
    ResponseLost(Where) = "response_lost";
    /// The network lost an ACK, a NAK or the answer to an atomic operation.
    AckLost(Where) = "ack_lost";
    /// The network lost a request behind the tap or its answer before the tap; the packets do not tell which.
    RequestOrAnswerLost = "request_or_answer_lost";
    /// The network lost a CNP.
    CnpLost(Where) = "cnp_lost";
    /// A packet has a wrong ICRC.
    Corrupted = "corrupted";
    /// The headers of a packet contradict each other.
    BrokenHeader = "broken_header";
    /// Reserved bits of the BTH are set.
    ReservedBits = "reserved_bits";
    /// The P_Key differs from that of the other packets of the stream.
    WrongPKey = "wrong_p_key";
    /// The packet is a fragment of an IP datagram.
    Fragment = "fragment";
    /// The network delivered a packet twice.
    Doubled = "doubled";
    /// Later packets arrived before this one.
    Overtaken = "overtaken";
    /// A switch marked a packet.
    EcnMark = "ecn_mark";
    /// A congestion notification.
    Cnp = "cnp";
    /// The DSCP differs between the two taps.
    DscpChanged = "dscp_changed";
    /// A NAK for a PSN sequence error.
    SequenceNak = "sequence_nak";
    /// The receiver is not ready.
    RnrNak = "rnr_nak";
    /// A NAK for a remote access error.
    RemoteAccessNak = "remote_access_nak";
    /// A NAK for an invalid request.
    InvalidRequestNak = "invalid_request_nak";
    /// A NAK for a remote operational error.
    OperationalNak = "operational_nak";
    /// A NAK with another code.
    OtherNak = "other_nak";
    /// The requester sent again because no answer came.
    Timeout = "timeout";
    /// The requester sent everything again from the PSN of a NAK on.
    GoBackN = "go_back_n";
    /// The requester sent only some packets again.
    SelectiveResend = "selective_resend";
    /// The requester asked for READ responses again that did not come.
    ImpliedNak = "implied_nak";
    /// The requester sent packets again that were acknowledged.
    NeedlessResend = "needless_resend";
    /// The MSN of an answer does not follow from the one before.
    MsnJump = "msn_jump";
    /// An answer to a PSN that was not sent.
    UnsentAnswer = "unsent_answer";
    /// An answer differs from an earlier one to the same request.
    AnswerChanged = "answer_changed";
    /// A port asked for pauses for a long time.
    PauseStorm = "pause_storm";
    /// A connection was rejected.
    CmReject = "cm_reject";
    /// A message of connection management was sent again.
    CmRepetition = "cm_repetition";
    /// A request to disconnect has no answer.
    NoDisconnectAnswer = "no_disconnect_answer";
    /// The responder answered much later than usual.
    Stall = "stall";
    /// The clock of a capture went back.
    ClockStep = "clock_step";
    /// The capture lacks packets that the receiver acknowledged.
    NotCaptured = "not_captured";
}

/// Something that is not normal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Index of the connection in [`Analysis::connections`].
    pub connection: Option<usize>,
    /// The end that sent the packet.
    pub end: Option<usize>,
    /// The packets that show it. If two taps show the packet, it is named twice.
    pub at: Vec<Place>,
    /// PSN of the packet.
    pub psn: Option<u32>,
    /// One sentence.
    pub summary: String,
}

/// Returns everything that is not normal, in time order.
#[must_use]
pub fn events(analysis: &Analysis) -> Vec<Event> {
    let mut finder = Finder::new(analysis);
    for (number, connection) in analysis.connections.iter().enumerate() {
        for end in 0..2 {
            let Some(side) = Side::new(&finder, number, connection, end) else { continue };
            loss::find(&mut finder, &side);
            resends::find(&mut finder, &side);
            answers::find(&mut finder, &side);
            order::find(&mut finder, &side);
        }
    }
    packets::find(&mut finder);
    management::find(&mut finder);
    finder.found.sort_by_key(|(time, _)| *time);
    finder.found.into_iter().map(|(_, event)| event).collect()
}

/// Collects events.
struct Finder<'a> {
    analysis: &'a Analysis,
    found: Vec<(u64, Event)>,
    /// How far the clock of a tap is ahead.
    offsets: HashMap<Tap, i64>,
    /// Indices of damaged packets by tap.
    damaged: HashMap<Tap, Vec<usize>>,
    /// Damaged packets that explain a missing one.
    claimed: HashSet<usize>,
}

impl<'a> Finder<'a> {
    fn new(analysis: &'a Analysis) -> Self {
        let mut offsets = HashMap::new();
        for connection in &analysis.connections {
            let far = connection.view_of(1).map(|view| view.tap);
            let offset = connection.between.as_ref().and_then(|between| between.offset_ns);
            if let (Some(tap), Some(offset)) = (far, offset)
                && !connection.view_of(0).is_some_and(|near| offsets.contains_key(&near.tap))
            {
                offsets.entry(tap).or_insert(offset);
            }
        }
        let mut damaged: HashMap<Tap, Vec<usize>> = HashMap::new();
        for (index, record) in analysis.records.iter().enumerate() {
            if !record.is_sound() {
                damaged.entry(Tap::of(record)).or_default().push(index);
            }
        }
        Self { analysis, found: Vec::new(), offsets, damaged, claimed: HashSet::new() }
    }

    fn record(&self, index: usize) -> Option<&'a Record> {
        self.analysis.records.get(index)
    }

    /// Returns the time of a packet by the clock of the first tap.
    fn time(&self, index: usize) -> u64 {
        self.record(index).map_or(0, |record| {
            let ahead = self.offsets.get(&Tap::of(record)).copied().unwrap_or(0);
            record.time_ns.saturating_add_signed(ahead.saturating_neg())
        })
    }

    /// Adds an event at some packets; the time is that of the first one.
    fn push(
        &mut self,
        kind: EventKind,
        side: Option<(usize, usize)>,
        at: &[usize],
        psn: Option<u32>,
        summary: String,
    ) {
        let time = at.first().map_or(0, |index| self.time(*index));
        let at = at.iter().filter_map(|index| self.record(*index)).map(|record| record.place).collect();
        let (connection, end) = (side.map(|side| side.0), side.map(|side| side.1));
        self.found.push((time, Event { kind, connection, end, at, psn, summary }));
    }

    /// Takes a damaged packet that explains why one is missing: of this sender, at this tap, between two
    /// indices of the same file.
    fn claim(&mut self, tap: Tap, source: StreamId, indices: std::ops::Range<usize>) -> Option<usize> {
        let sender = self.analysis.streams.get(source)?.key.source;
        let damaged = self.damaged.get(&tap)?;
        let start = damaged.partition_point(|index| *index < indices.start);
        let found =
            damaged.get(start..)?.iter().copied().take_while(|index| *index < indices.end).find(|index| {
                let stream = self
                    .analysis
                    .records
                    .get(*index)
                    .and_then(|record| self.analysis.streams.get(record.stream));
                !self.claimed.contains(index) && stream.is_some_and(|stream| stream.key.source == sender)
            })?;
        self.claimed.insert(found);
        Some(found)
    }
}

/// The requests of one end of a connection, and their answers.
struct Side<'a> {
    /// Number of the connection.
    number: usize,
    /// The requester.
    end: usize,
    /// The requests and the answers.
    streams: [Option<StreamId>; 2],
    /// The tap near the requester, and the one near the responder. With one tap, both are that tap.
    near: &'a View,
    far: &'a View,
    requester: &'a Replay,
    responder: &'a Replay,
    /// The stream of the requester from the tap near it to the other one, and the opposite stream.
    crossings: Option<[&'a Crossing; 2]>,
}

impl<'a> Side<'a> {
    fn new(finder: &Finder<'a>, number: usize, connection: &'a Connection, end: usize) -> Option<Self> {
        let connection: &'a Connection = finder.analysis.connections.get(number).or(Some(connection))?;
        let other = 1_usize.checked_sub(end)?;
        let crossings = match &connection.between {
            Some(between) => Some([between.crossings.get(end)?, between.crossings.get(other)?]),
            None => None,
        };
        Some(Self {
            number,
            end,
            streams: [*connection.streams.get(end)?, *connection.streams.get(other)?],
            near: connection.view_of(end)?,
            far: connection.view_of(other)?,
            requester: connection.requester(end)?,
            responder: connection.responder(end)?,
            crossings,
        })
    }

    /// The connection and the requester.
    const fn requests(&self) -> Option<(usize, usize)> {
        Some((self.number, self.end))
    }

    /// The connection and the responder.
    const fn answers(&self) -> Option<(usize, usize)> {
        Some((self.number, 1 - self.end))
    }
}

/// Returns the 24-bit number of a packet.
fn psn_of(finder: &Finder<'_>, index: usize) -> Option<u32> {
    finder.record(index).map(|record| record.psn.get())
}
