//! Recorded packets.

use std::collections::BTreeSet;

use roce_packet::{Datagram, Direction, Ecn, Operation, Position, Psn, Syndrome, Transport};
use roce_transport::Instant;

use crate::run::Record;
use crate::wire::fault_of;

/// The reason why packets do not become a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoScript(pub String);

impl std::fmt::Display for NoScript {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoScript {}

/// A recorded packet of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// The time.
    pub at: Instant,
    /// Whether the end that the script plays sent it.
    pub is_sent: bool,
    /// The bytes from BTH to ICRC.
    pub bytes: &'a [u8],
    /// Whether it has the congestion-experienced mark.
    pub is_marked: bool,
    /// Whether its ICRC is wrong.
    pub has_wrong_icrc: bool,
}

impl<'a> From<&'a Record> for Recorded<'a> {
    fn from(record: &'a Record) -> Self {
        let Record { at, is_sent, ref path, identification, ref bytes, .. } = *record;
        Self {
            at,
            is_sent,
            bytes,
            is_marked: path.ecn() == Ecn::CongestionExperienced,
            has_wrong_icrc: fault_of(bytes, path, Some(identification)).is_some(),
        }
    }
}

/// A recorded packet. One that does not parse only has its bytes.
pub(super) struct Packet<'a> {
    pub(super) record: &'a Recorded<'a>,
    pub(super) datagram: Option<Datagram<'a>>,
}

impl<'a> Packet<'a> {
    pub(super) fn new(record: &'a Recorded<'a>) -> Result<Self, NoScript> {
        let datagram = Datagram::parse(record.bytes, &[]).ok();
        if datagram.is_none() && !record.is_sent {
            let text = crate::wire::describe(record.bytes, None);
            return Err(NoScript(format!("a packet of the NIC is cut or malformed: {text}")));
        }
        Ok(Self { record, datagram })
    }

    pub(super) fn transport(&self) -> Option<Transport> {
        self.datagram.as_ref().map(|datagram| datagram.info().transport)
    }

    pub(super) fn psn(&self) -> Option<Psn> {
        self.datagram.as_ref().map(|datagram| datagram.bth().psn)
    }

    pub(super) fn syndrome(&self) -> Option<Syndrome> {
        self.datagram.as_ref()?.aeth().map(|aeth| aeth.syndrome)
    }

    /// Whether it is a request of RC, of the script or of the NIC.
    pub(super) fn is_request(&self, is_sent: bool) -> bool {
        self.record.is_sent == is_sent
            && self.datagram.as_ref().is_some_and(|datagram| {
                let info = datagram.info();
                info.direction == Direction::Request && info.transport == Transport::Rc
            })
    }

    /// Whether it is the first packet of a message.
    pub(super) fn begins(&self) -> bool {
        self.datagram
            .as_ref()
            .is_some_and(|datagram| matches!(datagram.info().position, Position::First | Position::Only))
    }

    /// Whether it is the last packet of a message.
    pub(super) fn ends(&self) -> bool {
        self.datagram
            .as_ref()
            .is_some_and(|datagram| matches!(datagram.info().position, Position::Last | Position::Only))
    }

    /// Whether the responder needs a receive for the packet.
    pub(super) fn needs_receive(&self) -> bool {
        self.datagram.as_ref().is_some_and(|datagram| {
            let info = datagram.info();
            match info.operation {
                Operation::Send => matches!(info.position, Position::First | Position::Only),
                _ => datagram.imm_dt().is_some(),
            }
        })
    }
}

/// Returns the PSNs of the answers of the NIC with these syndromes.
pub(super) fn answered_psns(packets: &[Packet<'_>], has: impl Fn(Syndrome) -> bool) -> BTreeSet<u32> {
    let answers = packets.iter().filter(|packet| !packet.record.is_sent);
    let found = answers.filter(|packet| packet.syndrome().is_some_and(&has));
    found.filter_map(|packet| packet.psn().map(Psn::get)).collect()
}

/// Returns key, address and length of the access of a request.
pub(super) fn access(datagram: &Datagram<'_>) -> Option<(u32, u64, u64)> {
    let of_reth = datagram.reth().map(|reth| (reth.rkey, reth.va, reth.dma_len.into()));
    of_reth.or_else(|| datagram.atomic_eth().map(|atomic| (atomic.rkey, atomic.va, 8)))
}
