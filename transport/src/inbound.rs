//! The destination of an arriving message, for the responders of RC and UC.

use roce_packet::{Datagram, PayloadRule, Position, Reth};

use crate::completion::{Wc, WcFlags, WcOpcode};
use crate::ids::RKey;
use crate::memory::{Access, KeyError, Resolved};
use crate::qp::QpCore;
use crate::reason::Denial;
use crate::rq::Receive;
use crate::shared::Shared;

/// The reason why a payload could not be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceError {
    /// The payload length contradicts the opcode or the RETH.
    Length,
    /// The key, range or permission of a WRITE is wrong.
    Access(Denial),
    /// The message has more bytes than the receive can hold.
    TooLong { len: u64, capacity: u64 },
    /// The keys of the receive itself are wrong.
    Local(KeyError),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Inbound {
    /// No message is in progress.
    Idle,
    Send(InboundSend),
    Write(InboundWrite),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundSend {
    receive: Receive,
    received: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundWrite {
    /// `None` for a WRITE of 0 bytes, whose key is not checked.
    target: Option<Resolved>,
    received: u32,
    total: u32,
}

/// A complete message.
#[derive(Debug)]
pub(crate) struct Ended {
    wr_id: u64,
    len: u32,
    opcode: WcOpcode,
}

impl Ended {
    /// Returns the receive completion of the message.
    pub(crate) fn completion(&self, core: &QpCore, datagram: &Datagram<'_>) -> Wc {
        let mut wc = Wc {
            wr_id: self.wr_id,
            opcode: self.opcode,
            byte_len: self.len,
            qpn: core.number,
            src_qp: core.attr.dest_qpn,
            ..Wc::default()
        };
        if let Some(imm) = datagram.imm_dt() {
            wc.imm = imm;
            wc.flags |= WcFlags::WITH_IMM;
        }
        wc
    }
}

/// Checks the payload length against the opcode: exactly the path MTU for First and Middle, at least one byte
/// for Last, never more than the path MTU (IBTA 9.7.4.1.6).
pub(crate) fn check_length(datagram: &Datagram<'_>, mtu: usize) -> Result<(), PlaceError> {
    let len = datagram.payload_len();
    let legal = match datagram.info().payload {
        PayloadRule::None => len == 0,
        PayloadRule::FullMtu => len == mtu,
        PayloadRule::OneToMtu => (1..=mtu).contains(&len),
        PayloadRule::ZeroToMtu => len <= mtu,
        PayloadRule::Exactly(exact) => len == exact,
    };
    if legal { Ok(()) } else { Err(PlaceError::Length) }
}

impl Inbound {
    pub(crate) fn send(receive: Receive) -> Self {
        Self::Send(InboundSend { receive, received: 0 })
    }

    /// Starts a WRITE, and checks its whole range at the first packet.
    #[inline]
    pub(crate) fn write(core: &QpCore, shared: &Shared, reth: &Reth) -> Result<Self, PlaceError> {
        let target = if reth.dma_len == 0 {
            None
        } else {
            let range = (reth.va, u64::from(reth.dma_len));
            let resolved = shared
                .keys
                .resolve_remote(RKey(reth.rkey), core.pd, core.number, range, Access::REMOTE_WRITE)
                .map_err(|error| {
                    let (rkey, va, len) = (RKey(reth.rkey), reth.va, reth.dma_len);
                    PlaceError::Access(Denial { error, rkey, va, len })
                })?;
            Some(resolved)
        };
        Ok(Self::Write(InboundWrite { target, received: 0, total: reth.dma_len }))
    }

    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        let Self::Send(InboundSend { receive, .. }) = *self else { return None };
        *self = Self::Idle;
        Some(receive)
    }

    /// Checks that the payload of a WRITE packet fits the length in the RETH: the last packet has exactly the
    /// missing bytes, and any other packet has fewer.
    #[inline]
    pub(crate) fn check_place(&self, datagram: &Datagram<'_>) -> Result<(), PlaceError> {
        let Self::Write(write) = self else { return Err(PlaceError::Length) };
        let left = (write.total - write.received) as usize;
        let fits =
            if is_end(datagram) { datagram.payload_len() == left } else { datagram.payload_len() < left };
        if fits { Ok(()) } else { Err(PlaceError::Length) }
    }

    /// Places the payload, whose length was checked. At the end of a message, returns it and becomes idle.
    pub(crate) fn place(
        &mut self,
        core: &QpCore,
        shared: &Shared,
        datagram: &Datagram<'_>,
    ) -> Result<Option<Ended>, PlaceError> {
        let len = u32::try_from(datagram.payload_len()).map_err(|_| PlaceError::Length)?;
        let ended = match self {
            Self::Idle => return Err(PlaceError::Length),
            Self::Send(send) => {
                send.place(core, shared, datagram, len)?;
                Ended { wr_id: send.receive.wr_id, len: send.received, opcode: WcOpcode::Recv }
            }
            Self::Write(write) => {
                write.place(shared, datagram, len)?;
                Ended { wr_id: 0, len: write.total, opcode: WcOpcode::RecvRdmaWithImm }
            }
        };
        if !is_end(datagram) {
            return Ok(None);
        }
        *self = Self::Idle;
        Ok(Some(ended))
    }
}

fn is_end(datagram: &Datagram<'_>) -> bool {
    matches!(datagram.info().position, Position::Last | Position::Only)
}

impl InboundSend {
    fn place(
        &mut self,
        core: &QpCore,
        shared: &Shared,
        datagram: &Datagram<'_>,
        len: u32,
    ) -> Result<(), PlaceError> {
        let end = u64::from(self.received) + u64::from(len);
        if end > self.receive.capacity || end > u64::from(crate::wr::MAX_MESSAGE) {
            return Err(PlaceError::TooLong { len: end, capacity: self.receive.capacity });
        }
        if self.received == 0 {
            core.landing.check(&shared.keys, core.receive_pd).map_err(PlaceError::Local)?;
        }
        core.landing
            .scatter(&shared.keys, core.receive_pd, self.received, datagram.payload())
            .map_err(PlaceError::Local)?;
        self.received += len;
        Ok(())
    }
}

impl InboundWrite {
    fn place(&mut self, shared: &Shared, datagram: &Datagram<'_>, len: u32) -> Result<(), PlaceError> {
        if let Some(target) = &self.target
            && len > 0
        {
            let (head, tail) = datagram.payload();
            // The key may have been revoked since the first packet; this lookup fails then.
            let denied = |error| PlaceError::Access(Denial { error, rkey: target.rkey(), va: 0, len: 0 });
            let memory = shared.keys.memory(target).map_err(denied)?;
            let at = target.offset + self.received as usize;
            memory.write(at, head).map_err(|error| denied(error.into()))?;
            if !tail.is_empty() {
                memory.write(at + head.len(), tail).map_err(|error| denied(error.into()))?;
            }
        }
        self.received += len;
        Ok(())
    }
}
