//! The states of a connection and their transitions (IBTA 12.9), as one table.

/// The state of a connection or of a SIDR request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CmState {
    /// Before the first message; no record exists.
    Idle,
    /// Active side: the REQ was sent.
    ReqSent,
    /// Active side: the peer answered the REQ with an MRA.
    MraReqReceived,
    /// Active side: the REP arrived, and the application has to make its queue pair ready.
    RepReceived,
    /// Active side: as `RepReceived`, and an MRA was sent.
    MraRepSent,
    /// Passive side: the application has to accept or refuse the request.
    ReqReceived,
    /// Passive side: as `ReqReceived`, and an MRA was sent.
    MraReqSent,
    /// Passive side: the REP was sent.
    RepSent,
    /// Passive side: the peer answered the REP with an MRA.
    MraRepReceived,
    /// Both sides may send.
    Established,
    /// The DREQ was sent.
    DreqSent,
    /// The connection has ended; late packets may still arrive.
    Timewait,
    /// A REJ was sent. It is repeated for each duplicate of the refused message.
    Refused,
    /// The SIDR_REQ was sent.
    SidrReqSent,
    /// The application has to answer a SIDR_REQ.
    SidrReqReceived,
    /// The SIDR_REP was sent. It is repeated for each duplicate of the request.
    SidrAnswered,
    /// The record no longer exists.
    Closed,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CmInput {
    /// The application connects.
    Connect,
    /// The application requests a service.
    Resolve,
    /// The application accepts a request.
    Accept,
    /// The application needs more time.
    Delay,
    /// The application's queue pair is ready.
    Ready,
    /// The application refuses, or aborts a handshake.
    Refuse,
    /// The application disconnects.
    Disconnect,
    /// A packet of the connection arrived before the RTU.
    FirstPacket,
    /// The application answers a SIDR_REQ.
    Answer,
    /// A REQ arrives.
    Req,
    /// An MRA arrives.
    Mra,
    /// A REJ arrives.
    Rej,
    /// A REP arrives.
    Rep,
    /// An RTU arrives.
    Rtu,
    /// A DREQ arrives.
    Dreq,
    /// A DREP arrives.
    Drep,
    /// A SIDR_REQ arrives.
    SidrReq,
    /// A SIDR_REP arrives.
    SidrRep,
    /// The last deadline has passed.
    Expire,
}

/// All transitions: from a state, by an input, to a state. Any other input has no effect and is counted.
pub const TRANSITIONS: &[(CmState, CmInput, CmState)] = {
    use CmInput as I;
    use CmState as S;
    &[
        (S::Idle, I::Connect, S::ReqSent),
        (S::Idle, I::Req, S::ReqReceived),
        (S::Idle, I::Resolve, S::SidrReqSent),
        (S::Idle, I::SidrReq, S::SidrReqReceived),
        // Active side.
        (S::ReqSent, I::Mra, S::MraReqReceived),
        (S::ReqSent, I::Rep, S::RepReceived),
        (S::ReqSent, I::Rej, S::Closed),
        (S::ReqSent, I::Refuse, S::Closed),
        (S::ReqSent, I::Expire, S::Closed),
        (S::MraReqReceived, I::Mra, S::MraReqReceived),
        (S::MraReqReceived, I::Rep, S::RepReceived),
        (S::MraReqReceived, I::Rej, S::Closed),
        (S::MraReqReceived, I::Refuse, S::Closed),
        (S::MraReqReceived, I::Expire, S::Closed),
        (S::RepReceived, I::Rep, S::MraRepSent),
        (S::RepReceived, I::Delay, S::MraRepSent),
        (S::RepReceived, I::Ready, S::Established),
        (S::RepReceived, I::Refuse, S::Refused),
        (S::RepReceived, I::Rej, S::Closed),
        (S::MraRepSent, I::Rep, S::MraRepSent),
        (S::MraRepSent, I::Delay, S::MraRepSent),
        (S::MraRepSent, I::Ready, S::Established),
        (S::MraRepSent, I::Refuse, S::Refused),
        (S::MraRepSent, I::Rej, S::Closed),
        // Passive side.
        (S::ReqReceived, I::Req, S::MraReqSent),
        (S::ReqReceived, I::Delay, S::MraReqSent),
        (S::ReqReceived, I::Accept, S::RepSent),
        (S::ReqReceived, I::Refuse, S::Refused),
        (S::ReqReceived, I::Rej, S::Closed),
        (S::ReqReceived, I::Expire, S::Closed),
        (S::MraReqSent, I::Req, S::MraReqSent),
        (S::MraReqSent, I::Delay, S::MraReqSent),
        (S::MraReqSent, I::Accept, S::RepSent),
        (S::MraReqSent, I::Refuse, S::Refused),
        (S::MraReqSent, I::Rej, S::Closed),
        (S::MraReqSent, I::Expire, S::Closed),
        (S::RepSent, I::Req, S::RepSent),
        (S::RepSent, I::Mra, S::MraRepReceived),
        (S::RepSent, I::Rtu, S::Established),
        (S::RepSent, I::FirstPacket, S::Established),
        (S::RepSent, I::Dreq, S::Timewait),
        (S::RepSent, I::Refuse, S::Refused),
        (S::RepSent, I::Rej, S::Closed),
        (S::RepSent, I::Expire, S::Closed),
        (S::MraRepReceived, I::Req, S::MraRepReceived),
        (S::MraRepReceived, I::Mra, S::MraRepReceived),
        (S::MraRepReceived, I::Rtu, S::Established),
        (S::MraRepReceived, I::FirstPacket, S::Established),
        (S::MraRepReceived, I::Dreq, S::Timewait),
        (S::MraRepReceived, I::Refuse, S::Refused),
        (S::MraRepReceived, I::Rej, S::Closed),
        (S::MraRepReceived, I::Expire, S::Closed),
        // Both sides.
        (S::Established, I::Rep, S::Established),
        (S::Established, I::Disconnect, S::DreqSent),
        (S::Established, I::Dreq, S::Timewait),
        (S::Established, I::Rej, S::Timewait),
        (S::DreqSent, I::Drep, S::Timewait),
        (S::DreqSent, I::Dreq, S::Timewait),
        (S::DreqSent, I::Rej, S::Timewait),
        (S::DreqSent, I::Expire, S::Timewait),
        (S::Timewait, I::Dreq, S::Timewait),
        (S::Timewait, I::Expire, S::Closed),
        (S::Refused, I::Req, S::Refused),
        (S::Refused, I::Rep, S::Refused),
        // The REJ was lost, and the peer considered the connection established.
        (S::Refused, I::Dreq, S::Refused),
        (S::Refused, I::Expire, S::Closed),
        // SIDR requests.
        (S::SidrReqSent, I::SidrRep, S::Closed),
        (S::SidrReqSent, I::Refuse, S::Closed),
        (S::SidrReqSent, I::Expire, S::Closed),
        (S::SidrReqReceived, I::SidrReq, S::SidrReqReceived),
        (S::SidrReqReceived, I::Answer, S::SidrAnswered),
        (S::SidrReqReceived, I::Expire, S::Closed),
        (S::SidrAnswered, I::SidrReq, S::SidrAnswered),
        (S::SidrAnswered, I::Expire, S::Closed),
    ]
};

impl CmState {
    /// Returns the state after `input`, or `None` if it has no effect in this state.
    #[must_use]
    pub fn after(self, input: CmInput) -> Option<Self> {
        let found = TRANSITIONS.iter().find(|(from, by, _)| (*from, *by) == (self, input));
        found.map(|(_, _, to)| *to)
    }

    /// Tells whether a message is repeated until its answer arrives.
    pub(super) const fn repeats(self) -> bool {
        matches!(
            self,
            Self::ReqSent
                | Self::MraReqReceived
                | Self::RepSent
                | Self::MraRepReceived
                | Self::DreqSent
                | Self::SidrReqSent
        )
    }

    /// Tells whether the record is only kept for late packets.
    #[must_use]
    pub const fn lingers(self) -> bool {
        matches!(self, Self::Timewait | Self::Refused | Self::SidrAnswered)
    }
}
