//! NICs with a defect each, around the engine. The shipped scripts must find every one of them.

use std::collections::{BTreeSet, VecDeque};

use roce_packet::{
    Datagram, Direction, Envelope, NakCode, Opcode, OpcodeInfo, Operation, Path, Syndrome, icrc,
};
use roce_peer::bed::{EngineNic, VirtualNic, run_virtual};
use roce_peer::run::{Answer, MemoryArea, Refusal, Request};
use roce_peer::shipped::{SHIPPED, shipped};
use roce_peer::wire::slot;
use roce_transport::Instant;

/// The defect of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    WrongMsn,
    NakTwice,
    NakOfArrivedPsn,
    DuplicatesNotAcknowledged,
    DuplicatesExecuted,
    AccessAsInvalidRequest,
    AcknowledgesWithoutRequest,
    AcknowledgesOneLess,
    RnrTimerIgnored,
    ReadFromWrongOffset,
    DuplicateReadsUnanswered,
    ResponsesOutOfOrder,
    IcrcUnchecked,
    IcrcWrong,
    PartitionUnchecked,
    VersionUnchecked,
    AddressUnchecked,
    NoAckReq,
    NoNotification,
    NotificationToItself,
    NotificationForEachMark,
    TimerTooLong,
    StopsWithoutCredits,
    RestartsTooEarly,
    ImmediateSwapped,
    RefusesReservedBits,
    SolicitedLost,
    PsnOf16Bits,
}

const DEFECTS: [Defect; 28] = [
    Defect::WrongMsn,
    Defect::NakTwice,
    Defect::NakOfArrivedPsn,
    Defect::DuplicatesNotAcknowledged,
    Defect::DuplicatesExecuted,
    Defect::AccessAsInvalidRequest,
    Defect::AcknowledgesWithoutRequest,
    Defect::AcknowledgesOneLess,
    Defect::RnrTimerIgnored,
    Defect::ReadFromWrongOffset,
    Defect::DuplicateReadsUnanswered,
    Defect::ResponsesOutOfOrder,
    Defect::IcrcUnchecked,
    Defect::IcrcWrong,
    Defect::PartitionUnchecked,
    Defect::VersionUnchecked,
    Defect::AddressUnchecked,
    Defect::NoAckReq,
    Defect::NoNotification,
    Defect::NotificationToItself,
    Defect::NotificationForEachMark,
    Defect::TimerTooLong,
    Defect::StopsWithoutCredits,
    Defect::RestartsTooEarly,
    Defect::ImmediateSwapped,
    Defect::RefusesReservedBits,
    Defect::SolicitedLost,
    Defect::PsnOf16Bits,
];

type Sent = (Path, u16, Vec<u8>);

/// An engine whose packets are changed on their way in and out.
struct Faulty {
    inner: EngineNic,
    defect: Defect,
    queue: VecDeque<Sent>,
    /// PSNs of WRITEs and READs that arrived.
    arrived: BTreeSet<u64>,
    /// PSNs that were acknowledged.
    acknowledged: BTreeSet<u64>,
    /// The PSN of the last request.
    last_psn: u64,
    has_credits: bool,
}

impl Faulty {
    fn new(defect: Defect) -> Self {
        Self {
            inner: EngineNic::new(3),
            defect,
            queue: VecDeque::new(),
            arrived: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            last_psn: 0,
            has_credits: true,
        }
    }

    /// Changes a packet of the script before the engine sees it. Returns `false` to drop the packet.
    fn change_in(&mut self, path: &mut Path, packet: &mut [u8]) -> bool {
        if self.defect == Defect::AddressUnchecked {
            path.source = "198.18.0.1".parse().unwrap();
            seal(path, 0, packet);
        }
        if self.defect == Defect::IcrcUnchecked {
            seal(path, 0, packet);
        }
        let Some(info) = info_of(packet) else { return true };
        let psn = get(packet, info, "psn");
        let is_repeated = info.direction == Direction::Request && !self.arrived.insert(psn);
        self.last_psn = psn;
        match self.defect {
            Defect::PartitionUnchecked => set(packet, info, "pkey", 0xffff),
            Defect::VersionUnchecked => set(packet, info, "tver", 0),
            Defect::AcknowledgesWithoutRequest if info.direction == Direction::Request => {
                set(packet, info, "ackreq", 1);
            }
            Defect::ReadFromWrongOffset if info.operation == Operation::ReadRequest => {
                let va = get(packet, info, "va");
                set(packet, info, "va", va + 1);
            }
            Defect::DuplicateReadsUnanswered if info.operation == Operation::ReadRequest && is_repeated => {
                return false;
            }
            Defect::DuplicatesExecuted if info.opcode == Opcode::RC_RDMA_WRITE_ONLY && is_repeated => {
                self.execute_again(packet);
                return true;
            }
            Defect::RefusesReservedBits if get(packet, info, "reserved7") != 0 => return false,
            Defect::ImmediateSwapped if info.has_immediate() => {
                let imm = get(packet, info, "imm") as u32;
                set(packet, info, "imm", imm.swap_bytes().into());
            }
            Defect::PsnOf16Bits => set(packet, info, "psn", psn & 0xffff),
            Defect::RnrTimerIgnored if is_rnr(packet) => set(packet, info, "timer", 1),
            Defect::RestartsTooEarly if nak_of(packet) == Some(NakCode::PsnSequence) => {
                set(packet, info, "psn", psn.wrapping_sub(1));
            }
            Defect::StopsWithoutCredits if info.operation == Operation::Acknowledge => {
                self.has_credits = get(packet, info, "credits") != 0;
                return true;
            }
            _ => return true,
        }
        seal(path, 0, packet);
        true
    }

    /// Writes the payload of a duplicate into the memory of most scripts.
    fn execute_again(&mut self, packet: &[u8]) {
        let payload = Datagram::parse(packet, &[]).map_or(&[][..], |datagram| datagram.payload().0);
        let area = MemoryArea { memory: "remote".to_owned(), at: 0, len: payload.len() };
        let _ = self.inner.answer(Instant::ZERO, &Request::Write(area, payload.to_vec()));
    }

    /// Changes a packet of the engine, and returns the packets that leave instead.
    fn change_out(&mut self, (path, identification, mut packet): Sent) -> Vec<Sent> {
        let Some(info) = info_of(&packet) else { return vec![(path, identification, packet)] };
        let psn = get(&packet, info, "psn");
        let is_answer = info.operation == Operation::Acknowledge;
        let (is_ack, is_cnp) =
            (is_answer && nak_of(&packet).is_none() && !is_rnr(&packet), info.opcode == Opcode::CNP);
        let is_repeated = is_ack && !self.acknowledged.insert(psn);
        let mut copies = 1;
        match self.defect {
            Defect::WrongMsn if is_ack => {
                let msn = get(&packet, info, "msn");
                set(&mut packet, info, "msn", msn + 1);
            }
            Defect::NakTwice if nak_of(&packet) == Some(NakCode::PsnSequence) => copies = 2,
            Defect::NakOfArrivedPsn if nak_of(&packet) == Some(NakCode::PsnSequence) => {
                set(&mut packet, info, "psn", self.last_psn);
            }
            Defect::DuplicatesNotAcknowledged if is_repeated => copies = 0,
            Defect::AccessAsInvalidRequest if nak_of(&packet) == Some(NakCode::RemoteAccess) => {
                set(&mut packet, info, "syndrome", Syndrome::Nak(NakCode::InvalidRequest).to_byte().into());
            }
            Defect::AcknowledgesOneLess if is_ack => set(&mut packet, info, "psn", psn.wrapping_sub(1)),
            Defect::NoAckReq => set(&mut packet, info, "ackreq", 0),
            Defect::NoNotification if is_cnp => copies = 0,
            Defect::NotificationToItself if is_cnp => {
                let qp = get(&packet, info, "qp");
                set(&mut packet, info, "qp", qp ^ 0xff);
            }
            Defect::NotificationForEachMark if is_cnp => copies = 2,
            Defect::StopsWithoutCredits if info.direction == Direction::Request && !self.has_credits => {
                copies = 0;
            }
            Defect::SolicitedLost => set(&mut packet, info, "se", 0),
            Defect::ImmediateSwapped if info.has_immediate() => {
                let imm = get(&packet, info, "imm") as u32;
                set(&mut packet, info, "imm", imm.swap_bytes().into());
            }
            _ => {}
        }
        seal(&path, identification, &mut packet);
        if self.defect == Defect::IcrcWrong {
            *packet.last_mut().unwrap() ^= 1;
        }
        vec![(path, identification, packet); copies]
    }
}

impl VirtualNic for Faulty {
    fn answer(&mut self, now: Instant, request: &Request) -> Result<Answer, Refusal> {
        self.inner.answer(now, request)
    }

    fn receive(&mut self, now: Instant, path: &Path, packet: &[u8]) {
        let (mut path, mut packet) = (*path, packet.to_vec());
        if self.change_in(&mut path, &mut packet) {
            self.inner.receive(now, &path, &packet);
        }
    }

    fn transmit(&mut self, now: Instant) -> Option<Sent> {
        while let Some(sent) = self.inner.transmit(now) {
            let changed = self.change_out(sent);
            if self.defect == Defect::ResponsesOutOfOrder {
                changed.into_iter().for_each(|sent| self.queue.push_front(sent));
            } else {
                self.queue.extend(changed);
            }
        }
        self.queue.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let late = if self.defect == Defect::TimerTooLong { 50_000_000 } else { 0 };
        self.inner.deadline().map(|deadline| deadline.plus_nanos(late))
    }

    fn handle_timeout(&mut self, now: Instant) {
        let is_due = self.deadline().is_some_and(|deadline| deadline <= now);
        if is_due {
            self.inner.handle_timeout(now);
        }
    }
}

fn info_of(packet: &[u8]) -> Option<&'static OpcodeInfo> {
    Datagram::parse(packet, &[]).ok().map(|datagram| datagram.info()).or_else(|| {
        // A packet of another transport version does not parse.
        packet
            .first()
            .and_then(|opcode| Opcode(*opcode).info())
            .filter(|info| packet.len() >= info.header_len + 4)
    })
}

fn get(packet: &[u8], info: &OpcodeInfo, name: &str) -> u64 {
    slot(name, info).and_then(|slot| slot.read(packet, info)).unwrap_or(0)
}

fn set(packet: &mut [u8], info: &OpcodeInfo, name: &str, value: u64) {
    if let Some(slot) = slot(name, info) {
        slot.write(packet, info, value);
    }
}

/// Computes the ICRC again.
fn seal(path: &Path, identification: u16, packet: &mut [u8]) {
    if let Some((covered, found)) = packet.split_last_chunk_mut::<4>() {
        *found = icrc::compute(&Envelope::new(path, identification), covered, &[]).to_le_bytes();
    }
}

fn syndrome_of(packet: &[u8]) -> Option<Syndrome> {
    let datagram = Datagram::parse(packet, &[]).ok()?;
    let is_answer = datagram.info().operation == Operation::Acknowledge;
    datagram.aeth().filter(|_| is_answer).map(|aeth| aeth.syndrome)
}

fn nak_of(packet: &[u8]) -> Option<NakCode> {
    match syndrome_of(packet)? {
        Syndrome::Nak(code) => Some(code),
        _ => None,
    }
}

fn is_rnr(packet: &[u8]) -> bool {
    matches!(syndrome_of(packet), Some(Syndrome::RnrNak { .. }))
}

/// Returns the scripts that fail against a NIC with this defect.
fn found_by(defect: Defect) -> Vec<&'static str> {
    let fails = |name: &&str| {
        let script = shipped(name).unwrap().unwrap();
        !run_virtual(&script, &mut Faulty::new(defect)).has_passed()
    };
    SHIPPED.iter().map(|(name, _)| *name).filter(fails).collect()
}

/// The wrapper itself changes nothing.
#[test]
fn a_nic_without_a_defect_passes() {
    assert_eq!(found_by(Defect::None), [""; 0]);
}

#[test]
fn every_defect_is_found() {
    let missed: Vec<Defect> = DEFECTS.into_iter().filter(|defect| found_by(*defect).is_empty()).collect();
    assert!(missed.is_empty(), "no script finds {missed:?}");
}

/// Each defect is found by the scripts that are about it, not only by chance.
#[test]
fn defects_are_found_by_the_scripts_about_them() {
    for (defect, script) in [
        (Defect::NakTwice, "gap-one-nak.roce"),
        (Defect::DuplicatesNotAcknowledged, "write-duplicate.roce"),
        (Defect::DuplicatesExecuted, "write-duplicate.roce"),
        (Defect::AccessAsInvalidRequest, "key-revoked.roce"),
        (Defect::RnrTimerIgnored, "request-rnr.roce"),
        (Defect::ReadFromWrongOffset, "read-three-packets.roce"),
        (Defect::IcrcUnchecked, "drop-bad-icrc.roce"),
        (Defect::PartitionUnchecked, "drop-partition.roce"),
        (Defect::TimerTooLong, "request-timeout.roce"),
        (Defect::StopsWithoutCredits, "request-credits.roce"),
        (Defect::NotificationForEachMark, "cnp-after-mark.roce"),
        (Defect::PsnOf16Bits, "psn-wrap.roce"),
    ] {
        assert!(found_by(defect).contains(&script), "{defect:?}: {:?}", found_by(defect));
    }
}
