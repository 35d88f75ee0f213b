//! What counters count, in words that do not depend on the driver.

/// The significance of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It does not happen on a healthy network.
    Problem,
    /// It happens on a busy network.
    Congestion,
    /// An amount of traffic.
    Traffic,
    /// A level, which may fall.
    Level,
}

impl Kind {
    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Congestion => "congestion",
            Self::Traffic => "traffic",
            Self::Level => "level",
        }
    }
}

/// Declares the events: variant, kind, meaning, cause and next step.
macro_rules! events {
    ($($variant:ident, $kind:ident, $meaning:literal, $cause:literal, $next:literal;)*) => {
        /// An event that a NIC counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Event {
            $(#[doc = concat!("Counts ", $meaning, ".")] $variant,)*
        }

        impl Event {
            /// All events.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the significance.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            /// Returns what is counted, as a phrase.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }

            /// Returns the usual cause, as a sentence without a full stop.
            #[must_use]
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$variant => $cause,)* }
            }

            /// Returns the next step of a search for the cause, as a sentence without a full stop.
            #[must_use]
            pub const fn next_step(self) -> &'static str {
                match self { $(Self::$variant => $next,)* }
            }
        }
    };
}

events! {
    WrongIcrc, Problem, "packets dropped because of a wrong ICRC",
        "damage on the path, NAT, or a sender that computes the ICRC incorrectly",
        "capture at this side, and run `roce explain FILE NUMBER` for a packet with a bad ICRC";
    OutOfSequence, Problem, "requests ahead of the expected PSN",
        "a request before them was lost, or packets overtook each other",
        "look for drops at switch ports and at this NIC, and check that one connection uses one path";
    NakSequenceReceived, Problem, "received NAKs \"PSN sequence error\"",
        "requests of this side were lost or reordered on the way to the peer",
        "compare with the counter of packets out of sequence at the peer, and look for drops on the path";
    ImpliedNak, Problem, "responses after a missing READ or atomic response",
        "READ or atomic responses to this side were lost",
        "look for drops on the path from the peer to this side";
    DuplicateRequest, Problem, "requests that were executed before",
        "acknowledgements of this side were lost or late, so the peer sent its requests again",
        "look for drops on the path to the peer, and compare the local ACK timeout there with the round trip \
         time";
    Timeout, Problem, "expired local ACK timers",
        "the last packet of a message or its acknowledgement was lost, or the peer is too slow",
        "capture at both sides; raise the timeout if acknowledgements arrive after it";
    AdaptiveRetransmission, Problem, "early retransmissions of the NIC, before the local ACK timeout",
        "packets or acknowledgements were lost",
        "look for drops on the path";
    SlowRestart, Congestion, "restarts at a low rate after an idle time",
        "the NIC limits the rate of a connection that was idle",
        "no step is necessary, unless short bursts are too slow";
    RnrNakReceived, Problem, "received RNR NAKs",
        "the peer had no receive posted when a SEND arrived",
        "post more receives at the peer, or process its completions sooner";
    RnrNakSent, Problem, "requests for which no receive was posted",
        "the application on this side does not post receives fast enough",
        "post more receives, or process completions sooner";
    RetriesExceeded, Problem, "connections that failed because the retry count was used up",
        "the peer is unreachable, or most packets are lost",
        "run `roce doctor` between the two machines";
    RnrRetriesExceeded, Problem, "connections that failed because the RNR retry count was used up",
        "the peer posted no receive for too long",
        "check the application of the peer, or set rnr_retry to 7 (no limit)";
    RemoteAccess, Problem, "requests that the peer refused because of key, range or access right",
        "a wrong remote key or address in the application, or a region that the peer deregistered",
        "check the keys that the applications exchange";
    LocalAccess, Problem, "requests of the peer refused because of key, range or access right",
        "a wrong remote key or address in the application of the peer",
        "check the keys that the applications exchange";
    RemoteInvalid, Problem, "requests that the peer refused as invalid",
        "a message is longer than the receive of the peer, or the peer does not support the operation",
        "compare the sizes of messages and receives";
    LocalError, Problem, "work requests or packets that failed on this side",
        "an error in the application or in its memory registrations",
        "read the status of the completions";
    CnpSent, Congestion, "sent congestion notifications (CNP)",
        "this side received packets with the mark CE",
        "compare with the marked packets; find the congested switch port";
    CnpHandled, Congestion, "congestion notifications (CNP) that reduced a rate",
        "packets of this side were marked on the way to the peer",
        "compare with the notifications that the peer sent; find the congested switch port";
    CnpIgnored, Problem, "congestion notifications (CNP) without effect",
        "congestion control is off for this queue pair or priority",
        "enable congestion control on this NIC (for mlx5: `roce_rp` of the priority)";
    EcnMarked, Congestion, "received packets with the mark CE",
        "a switch on the way to this side was congested",
        "find the congested switch port; if notifications are not sent, enable them on this NIC";
    Discarded, Problem, "packets that the NIC dropped because it had no buffer",
        "the NIC or PCIe is too slow for the arriving packets, and flow control does not stop the sender",
        "check PFC on the switch port and the PCIe width and speed";
    PauseSent, Congestion, "sent pause frames",
        "the receive buffer of this NIC was full: the host or PCIe is too slow",
        "check the PCIe width and speed, and the memory of the host";
    PauseReceived, Congestion, "received pause frames",
        "the switch or the peer was congested, and stopped this side",
        "find the receiver that is too slow; a storm of pause frames stops a whole network";
    Damaged, Problem, "frames with a wrong checksum or invalid symbols",
        "a bad cable, optic or connector",
        "clean or replace cable and optics of this port";
    LinkDown, Problem, "losses of the link",
        "a cable was removed, or the other end restarted",
        "check cable, optics and the log of the switch";
    Dropped, Problem, "packets dropped by checks before any connection",
        "packets that are malformed, or belong to no connection of this side",
        "docs/reference/counters.md explains each reason";
    Retransmitted, Problem, "request packets sent again",
        "losses, timeouts or RNR NAKs; their own counters show which",
        "look at the counters of NAKs and timeouts";
    PacketsSent, Traffic, "sent packets", "traffic", "no step is necessary";
    PacketsReceived, Traffic, "received packets", "traffic", "no step is necessary";
    BytesSent, Traffic, "sent bytes", "traffic", "no step is necessary";
    BytesReceived, Traffic, "received bytes", "traffic", "no step is necessary";
    WordsSent, Traffic, "sent data in units of 4 bytes", "traffic", "multiply by 4 to get bytes";
    WordsReceived, Traffic, "received data in units of 4 bytes", "traffic", "multiply by 4 to get bytes";
    WriteRequests, Traffic, "received WRITE requests", "traffic", "no step is necessary";
    ReadRequests, Traffic, "received READ requests", "traffic", "no step is necessary";
    AtomicRequests, Traffic, "received atomic requests", "traffic", "no step is necessary";
    Objects, Level, "objects that exist now, or a setting", "use by applications", "no step is necessary";
}
