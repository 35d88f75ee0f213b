//! The send path of the responder: acknowledgements, NAKs, READ responses, results of atomics.

use roce_packet::{Aeth, AtomicAckEth, DatagramWriter, Msn, NakCode, Opcode, Psn, Qpn, Syndrome};

use super::owed::Reply;
use super::resources::{Answer, Sending};
use super::responder::RcResponder;
use crate::completion::WcStatus;
use crate::counters::count;
use crate::ids::{PdId, RKey};
use crate::io::TxSlot;
use crate::memory::{Access, KeyError, KeyTable};
use crate::qp::QpCore;
use crate::reason::{Denial, Rule};
use crate::recovery::{SELECTIVE_SYNDROME, TRIMMED_SYNDROME};
use crate::segment::Sealed;
use crate::shared::Shared;

impl RcResponder {
    /// Tells whether a fatal NAK is still to be sent, which the error state allows.
    ///
    /// Pending responses go first: all of them answer requests with an earlier PSN, because the refused
    /// request was the expected one. A requester that receives a NAK while an earlier READ or atomic is
    /// unanswered takes that response for lost (IBTA 9.7.5.2.9). It requests the response again, but this
    /// queue pair no longer answers. The requester would then report exhausted retries instead of the actual
    /// reason, and lose the results of executed requests. Only the turns of the engine limit the time that
    /// this takes. The owner ends it by moving the queue pair to ERR, see [`Self::abandon_answers`].
    pub(crate) fn owes_fatal_nak(&self) -> bool {
        matches!(self.reply, Some(Reply::FatalNak { .. }))
    }

    /// Tells whether one acknowledgement, which is not a NAK, is all that is to be sent.
    pub(crate) fn owes_only_acknowledgement(&self) -> bool {
        self.reply == Some(Reply::Ack) && self.resources.is_idle() && !self.owes_reports()
    }

    /// Tells whether the next packet belongs to a READ response.
    pub(crate) fn sends_read_response(&mut self) -> bool {
        self.resources.next().is_some_and(|resource| matches!(resource.answer, Answer::Read { .. }))
    }

    /// Tells whether at most an acknowledgement is to be sent.
    pub(crate) fn owes_at_most_acknowledgement(&self) -> bool {
        let is_quiet = self.resources.is_idle() && !self.owes_reports();
        matches!(self.reply, None | Some(Reply::Ack)) && is_quiet
    }

    /// Drops all pending answers: the owner moved the queue pair to ERR, which sends nothing (IBTA 10.3.1).
    pub(crate) fn abandon_answers(&mut self) {
        self.resources.abandon();
        self.forget_reports();
        self.reply = None;
    }

    /// Writes the next pending packet into `slot`. Responses precede the acknowledgement: it covers
    /// everything up to its PSN, so earlier responses must be sent first (IBTA 9.7.5.1.2).
    pub(crate) fn transmit(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        while let Some(resource) = self.resources.next() {
            // The bytes of a READ are paced as data. Later answers wait with them.
            let is_data = matches!(resource.answer, Answer::Read { .. });
            if is_data && !core.may_send(shared.now) {
                return None;
            }
            let waiting = self.resources.waiting();
            self.choose_path(core, is_data);
            if let Some(sealed) = self.send_response(core, shared, slot) {
                if is_data {
                    core.charge(shared.now, sealed.len);
                }
                return Some(sealed);
            }
            // An answer that may not be sent any more makes room for the next one.
            if self.resources.waiting() == waiting {
                break;
            }
        }
        let report = if self.owes_reports() { self.next_report() } else { None };
        let reply = report.or(self.reply)?;
        let (syndrome, psn, msn) = match reply {
            Reply::Trimmed(psn) => (Syndrome::Reserved(TRIMMED_SYNDROME), self.epsn, Msn::new(psn.get())),
            Reply::Kept(received) => {
                (Syndrome::Reserved(SELECTIVE_SYNDROME), self.epsn, Msn::new(received.get()))
            }
            Reply::Ack => {
                let Some((newest, msn)) = self.acknowledgeable else {
                    self.reply = None;
                    return None;
                };
                (Syndrome::ACK_UNLIMITED, newest, msn)
            }
            Reply::SequenceNak => (Syndrome::Nak(NakCode::PsnSequence), self.epsn, self.msn),
            Reply::Rnr => (Syndrome::RnrNak { timer: core.attr.min_rnr_timer }, self.epsn, self.msn),
            Reply::FatalNak { code, psn } => (Syndrome::Nak(code), psn, self.msn),
        };
        self.choose_path(core, false);
        let mut bth = core.bth(shared, Opcode::RC_ACKNOWLEDGE, psn);
        bth.becn = core.echo_owed;
        let mut writer = DatagramWriter::new(slot.buffer, &bth).ok()?;
        writer.aeth(&Aeth { syndrome, msn }).ok()?;
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        match report {
            Some(report) => self.reported(report),
            None => self.reply = None,
        }
        if core::mem::take(&mut core.echo_owed) {
            count!(shared, core, np_marks_echoed);
        }
        if core::mem::take(&mut core.telemetry_owed) {
            shared.telemetry_out = core.telemetry.as_deref().map(|telemetry| telemetry.echo());
        }
        Some(sealed)
    }

    fn send_response(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        let resource = *self.resources.next()?;
        let sending = resource.sending?;
        match resource.answer {
            Answer::Read { pd, rkey, binding, .. } => {
                let has_left = resource.answered || self.resources.parts() > 0;
                let source = Source { pd, rkey, binding, has_left };
                self.send_read_packet(core, shared, slot, (&source, resource.msn), sending)
            }
            Answer::Atomic { .. } | Answer::Empty => {
                let opcode = match resource.answer {
                    Answer::Atomic { .. } => Opcode::RC_ATOMIC_ACKNOWLEDGE,
                    Answer::Read { .. } | Answer::Empty => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
                };
                let bth = core.bth(shared, opcode, sending.psn);
                let mut writer = DatagramWriter::new(slot.buffer, &bth).ok()?;
                writer.aeth(&ack(resource.msn)).ok()?;
                if let Answer::Atomic { original } = resource.answer {
                    writer.atomic_ack_eth(&AtomicAckEth { original }).ok()?;
                }
                let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
                self.resources.finished(shared.now);
                Some(sealed)
            }
        }
    }

    /// Sends one packet of a READ response. The bytes are read now, and the key is checked again, because the
    /// owner may have revoked it since the request arrived.
    fn send_read_packet(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
        (source, msn): (&Source, Msn),
        sending: Sending,
    ) -> Option<Sealed> {
        let len = (sending.left as usize).min(core.mtu());
        let ends = sending.left as usize <= core.mtu();
        let opcode = match (sending.begun, ends) {
            (false, true) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
            (false, false) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
            (true, false) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
            (true, true) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
        };
        let bth = core.bth(shared, opcode, sending.psn);
        let mut writer = DatagramWriter::new(slot.buffer, &bth).ok()?;
        if opcode != Opcode::RC_RDMA_READ_RESPONSE_MIDDLE {
            writer.aeth(&ack(msn)).ok()?;
        }
        let target = writer.payload_slot(len).ok()?;
        if len > 0 {
            let read = source.read(&shared.keys, core.number, sending.va, target);
            if read.is_err() && source.has_left {
                count!(shared, core, resp_remote_access_errors);
                // The peer may have it by now, and have allowed that the key is revoked.
                self.resources.finished(shared.now);
                return None;
            }
            if let Err(error) = read {
                let denial = Denial { error, rkey: source.rkey, va: sending.va, len: len as u32 };
                self.response_refused(core, shared, sending.psn, denial);
                return None;
            }
        }
        let sealed = core.outgoing.as_ref()?.seal(writer, bth.dest_qp, slot.batch)?;
        if !sending.begun {
            self.resources.begins(sending.psn, shared.now, self.losses);
        }
        if ends {
            self.resources.finished(shared.now);
        } else if let Some(resource) = self.resources.next() {
            resource.sending = Some(Sending {
                psn: sending.psn.next(),
                va: sending.va.wrapping_add(len as u64),
                left: sending.left - len as u32,
                begun: true,
            });
        }
        Some(sealed)
    }

    /// Handles a READ whose key was revoked while its response was being sent.
    fn response_refused(&mut self, core: &mut QpCore, shared: &mut Shared, psn: Psn, denial: Denial) {
        count!(shared, core, resp_remote_access_errors);
        self.resources.abandon();
        let code = NakCode::RemoteAccess;
        self.reply = Some(Reply::FatalNak { code, psn });
        self.fail_with(core, shared, code, WcStatus::LocalAccessError, Rule::RemoteAccess { psn, denial });
    }
}

/// The memory from which the response to a READ is read.
struct Source {
    pd: PdId,
    rkey: RKey,
    /// The binding of the key when the READ was executed. The response does not continue under another one.
    binding: u32,
    /// Whether these bytes have left before.
    has_left: bool,
}

impl Source {
    fn read(&self, keys: &KeyTable, qpn: Qpn, va: u64, target: &mut [u8]) -> Result<(), KeyError> {
        let range = (va, target.len() as u64);
        let resolved = keys.resolve_remote(self.rkey, self.pd, qpn, range, Access::REMOTE_READ)?;
        if resolved.binding() != self.binding {
            return Err(KeyError::Unknown);
        }
        Ok(keys.memory(&resolved)?.read(resolved.offset, target)?)
    }
}

fn ack(msn: Msn) -> Aeth {
    Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn }
}
