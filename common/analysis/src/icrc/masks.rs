//! Fields that routers change, and that entered a CRC with a value.
//!
//! A CRC is linear, so each value of each field has a difference of its own, and the difference of several
//! fields is their sum. About two thousand combinations cost as many additions.

use super::crc::{ETHERNET, back_by, multiply, update};
use super::mistake::{Detail, Mistake, Trials};
use super::subject::{Subject, Version};

/// A field that should be masked.
struct Masked {
    mistake: Mistake,
    name: &'static str,
    /// Offset from the start of layer 3, in bytes.
    at: usize,
    /// Length of the bytes that contain it; at most 4.
    len: usize,
    /// The bits of the field in these bytes.
    mask: u32,
    /// The lowest bit of the field.
    shift: u32,
}

/// A value of a field in a computation without its mask.
struct Choice {
    /// Difference to the correct ICRC.
    difference: u32,
    value: u32,
    is_found: bool,
}

/// The field with its values that lead to another ICRC.
struct Unmasked {
    field: Masked,
    found: u32,
    choices: Vec<Choice>,
}

/// Tries every combination of fields that are not masked.
pub(super) fn try_masks(subject: &Subject<'_>, trials: &mut Trials) {
    let fields: Vec<Unmasked> =
        masked_fields(subject.version).into_iter().map(|field| unmasked(subject, field)).collect();
    let mut chosen = Vec::with_capacity(fields.len());
    let wanted = subject.correct ^ subject.found;
    // Fewer mistakes are likelier.
    for count in 1..=fields.len() {
        combine(&fields, count, wanted, &mut chosen, trials, subject);
    }
}

/// Adds `count` of the fields to those that are chosen, in every possible way.
fn combine<'a>(
    fields: &'a [Unmasked],
    count: usize,
    wanted: u32,
    chosen: &mut Vec<(&'a Unmasked, &'a Choice)>,
    trials: &mut Trials,
    subject: &Subject<'_>,
) {
    if count == 0 {
        if wanted == 0 {
            let (mistakes, detail) = describe(subject, chosen);
            trials.offer(subject.found, &mistakes, detail);
        }
        return;
    }
    let Some((first, rest)) = fields.split_first() else { return };
    for choice in &first.choices {
        chosen.push((first, choice));
        combine(rest, count - 1, wanted ^ choice.difference, chosen, trials, subject);
        chosen.pop();
    }
    combine(rest, count, wanted, chosen, trials, subject);
}

/// Names the mistakes of a combination.
fn describe(subject: &Subject<'_>, chosen: &[(&Unmasked, &Choice)]) -> (Vec<Mistake>, Option<Detail>) {
    let all = masked_fields(subject.version).len();
    // A field that contains ones already has no effect on the ICRC.
    let is_whole = chosen.len() >= 2 && chosen.len() + neutral(subject) == all;
    if is_whole && chosen.iter().all(|(_, choice)| choice.is_found) {
        return (vec![Mistake::NothingMasked], None);
    }
    if chosen.len() == all && chosen.iter().all(|(_, choice)| choice.value == 0) {
        return (vec![Mistake::MaskedWithZeros], None);
    }
    let other = chosen.iter().find(|(_, choice)| !choice.is_found);
    let detail = other.map(|(unmasked, choice)| Detail::Field {
        name: unmasked.field.name,
        computed_with: choice.value,
        in_packet: unmasked.found,
    });
    let mut mistakes: Vec<Mistake> = Vec::with_capacity(chosen.len());
    // The detail belongs to the first mistake.
    mistakes.extend(other.map(|(unmasked, _)| unmasked.field.mistake));
    for (unmasked, _) in chosen {
        if !mistakes.contains(&unmasked.field.mistake) {
            mistakes.push(unmasked.field.mistake);
        }
    }
    (mistakes, detail)
}

/// Returns the number of fields whose bits are all ones in the packet.
fn neutral(subject: &Subject<'_>) -> usize {
    let is_neutral = |field: &&Masked| value(subject, field) == field.mask >> field.shift;
    masked_fields(subject.version).iter().filter(is_neutral).count()
}

/// Returns the fields of these headers that the ICRC does not cover.
fn masked_fields(version: Version) -> Vec<Masked> {
    let field = |mistake, name, at, len, mask: u32| Masked {
        mistake,
        name,
        at,
        len,
        mask,
        shift: mask.trailing_zeros(),
    };
    let mut fields = match version {
        Version::Ipv4 => vec![
            field(Mistake::TrafficClassNotMasked, "TOS", 1, 1, 0xff),
            field(Mistake::TtlNotMasked, "TTL", 8, 1, 0xff),
            field(Mistake::HeaderChecksumNotMasked, "header checksum", 10, 2, 0xffff),
        ],
        Version::Ipv6 | Version::Grh => vec![
            field(Mistake::TrafficClassNotMasked, "traffic class", 0, 2, 0x0ff0),
            field(Mistake::FlowLabelNotMasked, "flow label", 1, 3, 0x000f_ffff),
            field(Mistake::HopLimitNotMasked, "hop limit", 7, 1, 0xff),
        ],
    };
    let network_len = version.network_len();
    let bth = match version {
        Version::Grh => network_len,
        Version::Ipv4 | Version::Ipv6 => {
            let at = network_len + 6;
            fields.push(field(Mistake::UdpChecksumNotMasked, "UDP checksum", at, 2, 0xffff));
            network_len + 8
        }
    };
    fields.push(field(Mistake::CongestionByteNotMasked, "FECN and BECN byte", bth + 4, 1, 0xff));
    fields
}

/// Returns the value of a field in the packet.
fn value(subject: &Subject<'_>, field: &Masked) -> u32 {
    let head = subject.head(false);
    let bytes = match field.at.checked_sub(head.len()) {
        None => head.get(field.at..field.at + field.len),
        Some(at) => subject.covered.get(at..at + field.len),
    };
    let whole = bytes.unwrap_or_default().iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
    (whole & field.mask) >> field.shift
}

/// Returns the values that a field may have had when the ICRC was computed.
fn unmasked(subject: &Subject<'_>, field: Masked) -> Unmasked {
    let found = value(subject, &field);
    let mut values = vec![found, 0];
    match field.mistake {
        // Switches change the two bits of ECN.
        Mistake::TrafficClassNotMasked => values.extend((0..4).map(|ecn| found & 0xfc | ecn)),
        // Routers decrement it from one of the usual values.
        Mistake::TtlNotMasked | Mistake::HopLimitNotMasked => values.extend([found + 1, 64, 128]),
        Mistake::HeaderChecksumNotMasked => {
            let ttl = subject.word(8) >> 8;
            values.extend([ttl.saturating_add(1), 64, 128].map(|ttl| header_checksum(subject, ttl as u8)));
        }
        _ => {}
    }
    let ones = field.mask >> field.shift;
    let mut choices: Vec<Choice> = Vec::with_capacity(values.len());
    for value in values {
        let is_known = choices.iter().any(|choice| choice.value == value);
        if value < ones && !is_known {
            let difference = difference(subject, &field, value);
            choices.push(Choice { difference, value, is_found: value == found });
        }
    }
    Unmasked { field, found, choices }
}

/// Returns the difference to the correct ICRC, in which the field counts as ones.
fn difference(subject: &Subject<'_>, field: &Masked, value: u32) -> u32 {
    let change = (value << field.shift ^ field.mask).to_be_bytes();
    let bytes = change.get(change.len() - field.len..).unwrap_or_default();
    let behind = subject.head_len().checked_sub(field.at + field.len);
    let zeros = [0; 48];
    match behind {
        Some(behind) => {
            let register = update(&ETHERNET, 0, bytes);
            let register = update(&ETHERNET, register, zeros.get(..behind).unwrap_or_default());
            multiply(register, subject.tail(true).power)
        }
        // Within the BTH: the factor of the tail without the bytes up to the field.
        None => {
            let inside = field.at + field.len - subject.head_len();
            let power = multiply(subject.tail(true).power, back_by(inside));
            multiply(update(&ETHERNET, 0, bytes), power)
        }
    }
}

/// Returns the checksum of the IPv4 header with another TTL.
fn header_checksum(subject: &Subject<'_>, ttl: u8) -> u32 {
    let mut sum: u32 = 0;
    for offset in (0..20).step_by(2) {
        sum += match offset {
            8 => u32::from(ttl) << 8 | u32::from(subject.word(8) & 0xff),
            10 => 0,
            _ => u32::from(subject.word(offset)),
        };
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !sum & 0xffff
}
