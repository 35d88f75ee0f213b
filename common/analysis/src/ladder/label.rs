//! The texts of the packets of a ladder.

use roce_packet::{Direction, OpcodeInfo, Operation, Position, Psn, Syndrome};

use super::events::{Event, Step};
use super::marks::Marks;
use super::rows::{Arrow, Content, Point};
use crate::analysis::Analysis;
use crate::connection::Connection;
use crate::record::{Extension, Record};
use crate::summary::{is_of, operation_name};
use crate::words::duration;

/// The PSNs of both directions, relative to those of their first requests.
pub(super) struct Psns {
    /// The first PSN, and the last relative one.
    bases: [Option<(Psn, i64)>; 2],
}

impl Psns {
    pub(super) fn new(analysis: &Analysis, connection: &Connection) -> Self {
        let indices = connection.view_of(0).map_or(&[][..], |view| &view.indices);
        let base = |end: usize| {
            let stream = connection.streams.get(end).copied().flatten();
            let mut requests = indices.iter().filter_map(|index| analysis.records.get(*index));
            let first = requests.find(|record| {
                let is_request = record.info().is_some_and(|info| info.direction == Direction::Request);
                is_of(record, stream) && is_request && record.is_sound()
            });
            first.map(|record| (record.psn, 0))
        };
        Self { bases: [base(0), base(1)] }
    }

    /// Returns the PSN of a packet relative to the first request of an end. The number that is closest to the
    /// one before is right, because a PSN has 24 bits.
    fn relative(&mut self, requester: usize, psn: Psn) -> i64 {
        let Some(base) = self.bases.get_mut(requester) else { return 0 };
        let (first, last) = base.get_or_insert((psn, 0));
        let cycle = i64::from(Psn::MASK) + 1;
        let within = i64::from(first.distance_to(psn));
        let ahead = (within - *last).rem_euclid(cycle);
        *last += if ahead > cycle / 2 { ahead - cycle } else { ahead };
        *last
    }
}

/// Returns what a row shows.
pub(super) fn content(
    analysis: &Analysis,
    connection: &Connection,
    event: &Event,
    psns: &mut Psns,
) -> Option<Content> {
    let index = match event.step {
        Step::Packet(index) => index,
        Step::Missing { first, count, is_lost, .. } => {
            return Some(Content::Missing { from: event.from, first, count, is_lost });
        }
        Step::Timeout { waited_ns, since, first } => {
            let since = since.and_then(|index| analysis.place(index));
            let first = first.and_then(|index| {
                let record = analysis.records.get(index)?;
                Some((record.place, event.time_ns.saturating_sub(record.time_ns)))
            });
            return Some(Content::Timeout { end: event.from, waited_ns, since, first });
        }
    };
    let record = analysis.records.get(index)?;
    let from = usize::from(!is_of(record, connection.streams.first().copied().flatten()));
    let Some(info) = record.info() else {
        let label = format!("opcode {}", record.opcode);
        let (place, marks) = (record.place, event.marks);
        let arrow = Arrow { place, from, label, bytes: None, psn: None, marks, is_answer: false };
        return Some(Content::Packet(arrow));
    };
    let psn = match info.direction {
        Direction::Request => Some(psns.relative(from, record.psn)),
        Direction::Response => Some(psns.relative(1_usize.saturating_sub(from), record.psn)),
        Direction::Cnp => None,
    };
    Some(Content::Packet(Arrow {
        place: record.place,
        from,
        label: label(record, info, psn),
        bytes: bytes(record, info),
        psn,
        marks: event.marks,
        is_answer: info.direction == Direction::Response,
    }))
}

/// Returns the points of an event in a chart of PSNs. Of packets that were not captured, only the first ones
/// have a point.
pub(super) fn points(
    analysis: &Analysis,
    connection: &Connection,
    event: &Event,
    psns: &mut Psns,
) -> Vec<Point> {
    const MOST: u64 = 1_000;
    let time_ns = event.time_ns;
    match event.step {
        Step::Packet(index) => {
            let Some(record) = analysis.records.get(index) else { return Vec::new() };
            let direction = record.info().map(|info| info.direction);
            let from = usize::from(!is_of(record, connection.streams.first().copied().flatten()));
            let is_answer = direction == Some(Direction::Response);
            if !is_answer && direction != Some(Direction::Request) {
                return Vec::new();
            }
            let requester = if is_answer { 1_usize.saturating_sub(from) } else { from };
            let psn = psns.relative(requester, record.psn);
            vec![Point { time_ns, requester, psn, marks: event.marks, is_answer }]
        }
        Step::Missing { first, count, is_lost: true, is_answer } => {
            let requester = if is_answer { 1_usize.saturating_sub(event.from) } else { event.from };
            let psns = (0..count.min(MOST)).map(|more| first.saturating_add_unsigned(more));
            let marks = Marks::LOST;
            psns.map(|psn| Point { time_ns, requester, psn, marks, is_answer }).collect()
        }
        Step::Missing { is_lost: false, .. } | Step::Timeout { .. } => Vec::new(),
    }
}

fn label(record: &Record, info: &OpcodeInfo, psn: Option<i64>) -> String {
    let Some(psn) = psn else { return operation_name(info.operation).to_owned() };
    match record.extension {
        Extension::Aeth(syndrome, _) | Extension::AtomicAck(syndrome, ..)
            if !matches!(syndrome, Syndrome::Ack { .. } | Syndrome::Reserved(_)) =>
        {
            return refusal(syndrome, psn);
        }
        _ => {}
    }
    let name = match info.operation {
        Operation::ReadResponse => "READ data",
        other => operation_name(other),
    };
    let position = match info.position {
        Position::First => " first",
        Position::Middle => " middle",
        Position::Last => " last",
        Position::Only => "",
    };
    let immediate = if info.has_immediate() { " imm" } else { "" };
    format!("{name}{position}{immediate} {psn}")
}

/// Returns the length of a message, if this packet shows it.
fn bytes(record: &Record, info: &OpcodeInfo) -> Option<u64> {
    let is_send = info.operation == Operation::Send && info.position == Position::Only;
    match record.extension {
        Extension::Reth(reth) => Some(reth.dma_len.into()),
        _ => is_send.then_some(record.payload_len.into()),
    }
}

fn refusal(syndrome: Syndrome, psn: i64) -> String {
    match syndrome {
        Syndrome::RnrNak { timer } => format!("RNR NAK {psn}, wait {}", duration(timer.delay_ns())),
        Syndrome::Nak(code) => format!("NAK {psn}, {code}"),
        Syndrome::Ack { .. } | Syndrome::Reserved(_) => format!("ACK {psn}"),
    }
}
