//! The kinds of events.

use crate::record::Place;

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
    /// A port asked for a pause.
    Pause = "pause";
    /// A port asked for pauses for a long time.
    PauseStorm = "pause_storm";
    /// The network lost a message of connection management.
    CmLost(Where) = "cm_lost";
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
    /// Index of the connection in [`connections`](crate::Analysis::connections).
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
