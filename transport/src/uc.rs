//! Unreliable connection: packets have PSNs, but lost packets are not retransmitted (IBTA 9.8.2).

use roce_packet::{Datagram, DatagramWriter, Operation, Position, Psn, Transport};

use crate::completion::WcStatus;
use crate::counters::count;
use crate::inbound::{Inbound, PlaceError, check_length};
use crate::io::TxSlot;
use crate::memory::Access;
use crate::qp::{Failure, QpCapabilities, QpCore};
use crate::rq::Receive;
use crate::segment::{Sealed, packets, segment, write_headers};
use crate::shared::Shared;
use crate::sq::{Progress, SendQueue};
use crate::verdict::{DropReason, Verdict};
use crate::wr::{MAX_MESSAGE, SendFlags};

/// The requester of UC: a request completes when its last packet is sent.
#[derive(Debug)]
pub(crate) struct UcRequester {
    pub(crate) sq: SendQueue,
    psn: Psn,
}

impl UcRequester {
    pub(crate) fn new(capabilities: &QpCapabilities) -> Self {
        Self { sq: SendQueue::new(capabilities), psn: Psn::new(0) }
    }

    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.psn = sq_psn;
    }

    pub(crate) fn next_psn(&self) -> Psn {
        self.psn
    }

    pub(crate) fn transmit(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        let position = self.sq.head();
        let psn = self.psn;
        let starts = core.attr.state.starts_requests();
        if self.sq.get(position).is_none() || !core.may_send(shared.now) {
            return None;
        }
        let wqe = self.sq.get_mut(position)?;
        if wqe.progress == Progress::Posted {
            if !starts {
                return None;
            }
            wqe.progress = Progress::Started;
            wqe.first_psn = psn;
            wqe.psns = packets(wqe.len, core.mtu());
        }
        let wqe = *wqe;
        let index = wqe.first_psn.distance_to(psn);
        let segment = segment(Transport::Uc, &wqe, index, core.mtu())?;
        let mut bth = core.bth(shared, segment.opcode, psn);
        bth.solicited = segment.is_end && wqe.flags.contains(SendFlags::SOLICITED);
        let mut writer = DatagramWriter::new(slot.buffer, &bth).ok()?;
        write_headers(&mut writer, &wqe, index, segment.is_end)?;
        let target = writer.payload_slot(segment.len).ok()?;
        if let Err(error) = self.sq.gather(&shared.keys, core.pd, position, segment.offset, target) {
            let rule = self.sq.denied(&shared.keys, core.pd, position, error);
            self.sq.pop();
            core.fail_send(shared, &wqe, WcStatus::LocalProtectionError, rule);
            core.fail(Failure::SendQueue);
            return None;
        }
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        core.charge(shared.now, sealed.len);
        self.psn = psn.next();
        if segment.is_end {
            self.sq.pop();
            core.complete_send(shared, &wqe);
            core.drained(shared);
        }
        Some(sealed)
    }
}

/// Maximum distance behind the expected PSN at which a packet counts as duplicated or overtaken. Such a
/// packet is dropped, because otherwise a message could arrive twice or after a later one. For a packet
/// further behind, the sender must have advanced by more than half of all PSNs while no packet arrived.
const LATE_PACKETS: u32 = 1 << 16;

/// The responder of UC: a lost packet loses its whole message.
#[derive(Debug)]
pub(crate) struct UcResponder {
    epsn: Psn,
    inbound: Inbound,
    /// A receive whose message was abandoned. The next message uses it.
    spare: Option<Receive>,
    /// Whether the rest of the current message is dropped.
    skipping: bool,
}

impl UcResponder {
    pub(crate) fn new() -> Self {
        let epsn = Psn::new(0);
        Self { epsn, inbound: Inbound::Idle, spare: None, skipping: false }
    }

    pub(crate) fn start(&mut self, rq_psn: Psn) {
        *self = Self { epsn: rq_psn, ..Self::new() };
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.epsn
    }

    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        self.inbound.take_receive().or_else(|| self.spare.take())
    }

    pub(crate) fn handle_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        let psn = datagram.bth().psn;
        if psn.before(self.epsn) && psn.distance_to(self.epsn) <= LATE_PACKETS {
            count!(shared, core, duplicate_request);
            return Verdict::Dropped(DropReason::LatePacket);
        }
        core.established(shared);
        let in_order = psn == self.epsn;
        self.epsn = psn.next();
        if !in_order {
            count!(shared, core, out_of_sequence);
            self.abandon();
        }
        let info = datagram.info();
        let begins = matches!(info.position, Position::First | Position::Only);
        let fits = match self.inbound {
            Inbound::Idle => false,
            Inbound::Send(_) => info.operation == Operation::Send,
            Inbound::Write(_) => info.operation == Operation::Write,
        };
        if begins {
            self.skipping = false;
            self.set_aside();
        } else if self.skipping || !fits {
            self.abandon();
            return Verdict::Dropped(DropReason::IncompleteMessage);
        }
        match self.execute(core, shared, datagram) {
            Ok(()) => Verdict::Handled,
            Err(reason) => {
                self.abandon();
                Verdict::Dropped(reason)
            }
        }
    }

    /// Abandons the current message and skips its remaining packets.
    fn abandon(&mut self) {
        self.set_aside();
        self.skipping = true;
    }

    fn set_aside(&mut self) {
        if let Some(receive) = self.inbound.take_receive() {
            self.spare = Some(receive);
        }
        self.inbound = Inbound::Idle;
    }

    fn receive(&mut self, core: &mut QpCore, shared: &mut Shared) -> Result<Receive, DropReason> {
        if let Some(receive) = self.spare.take().or_else(|| core.take_receive(shared)) {
            return Ok(receive);
        }
        count!(shared, core, out_of_buffer);
        Err(DropReason::NoReceive)
    }

    fn execute(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), DropReason> {
        check_length(datagram, core.mtu()).map_err(reason)?;
        match datagram.info().operation {
            Operation::Send => self.execute_send(core, shared, datagram),
            Operation::Write => self.execute_write(core, shared, datagram),
            Operation::ReadRequest
            | Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Resync
            | Operation::Flush
            | Operation::AtomicWrite
            | Operation::Cnp => Err(DropReason::UnknownOpcode),
        }
    }

    fn execute_send(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), DropReason> {
        if matches!(self.inbound, Inbound::Idle) {
            let receive = self.receive(core, shared)?;
            self.inbound = Inbound::send(receive);
        }
        match self.inbound.place(core, shared, datagram) {
            Ok(None) => {}
            Ok(Some(ended)) => {
                let wc = ended.completion(core, datagram);
                core.complete_recv(shared, wc, datagram.bth().solicited);
            }
            // The receive is faulty, so another message must not use it (IBTA 10.3.1).
            Err(PlaceError::Local(error)) => {
                if let Some(receive) = self.inbound.take_receive() {
                    let rule = core.receive_denied(shared, error);
                    core.fail_recv(shared, receive.wr_id, WcStatus::LocalProtectionError, rule);
                }
                core.fail(Failure::Reported);
            }
            Err(error) => return Err(reason(error)),
        }
        Ok(())
    }

    fn execute_write(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), DropReason> {
        if !core.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(DropReason::Access);
        }
        if let Some(reth) = datagram.reth() {
            if reth.dma_len > MAX_MESSAGE {
                return Err(DropReason::BadLength);
            }
            self.inbound = Inbound::write(core, shared, &reth).map_err(reason)?;
        }
        self.inbound.check_place(datagram).map_err(reason)?;
        let receive = match datagram.imm_dt() {
            Some(_) => Some(self.receive(core, shared)?),
            None => None,
        };
        let placed = self.inbound.place(core, shared, datagram);
        match (placed, receive) {
            (Ok(Some(ended)), Some(receive)) => {
                let mut wc = ended.completion(core, datagram);
                wc.wr_id = receive.wr_id;
                core.complete_recv(shared, wc, datagram.bth().solicited);
            }
            (Ok(_), receive) => self.spare = receive.or_else(|| self.spare.take()),
            (Err(error), receive) => {
                self.spare = receive.or_else(|| self.spare.take());
                return Err(reason(error));
            }
        }
        if datagram.reth().is_some() {
            count!(shared, core, rx_write_requests);
        }
        Ok(())
    }
}

fn reason(error: PlaceError) -> DropReason {
    match error {
        PlaceError::Length => DropReason::BadLength,
        PlaceError::TooLong { .. } => DropReason::ReceiveTooSmall,
        PlaceError::Access(_) | PlaceError::Local(_) => DropReason::Access,
    }
}
