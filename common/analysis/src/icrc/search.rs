//! Searches for the value of one field, and for damage, by division.
//!
//! The difference of two CRCs is the change of the packet times a power of x. One walk from the end divides
//! by x^8 at each byte. If the quotient fits into a field that ends there, the difference is a change of that
//! field alone. Therefore a search of 65,536 values costs one step.

use super::crc::{back, back_by, multiply};
use super::forms::headers_of_v2;
use super::mistake::{Certainty, Detail, Mistake, Trials};
use super::subject::{ICRC_LEN, ONES, Subject, UDP_LEN, Version};

/// A field of two bytes that may have changed.
struct Window {
    mistake: Mistake,
    name: &'static str,
    /// Offset from the start of layer 3, in bytes.
    at: usize,
    /// Whether a single wrong bit is rather damage than another value.
    is_fixed: bool,
}

/// Number of values of a field of two bytes.
const VALUES: u32 = 1 << 16;

/// Searches for the value of one field, then for a damaged bit, then for a damaged byte.
pub(super) fn try_searches(subject: &Subject<'_>, trials: &mut Trials) {
    v2_form(subject, trials);
    let windows = windows(subject);
    let Changes { words, bytes } = changes(subject, &windows);
    let change_of = |window: &Window| {
        words.iter().find(|(at, _)| *at == window.at).map(|(_, change)| (*change, change.count_ones() == 1))
    };
    let mut known = Vec::new();
    for window in &windows {
        if let Some((change, is_bit)) = change_of(window)
            && !(window.is_fixed && is_bit)
        {
            offer_word(subject, window, change, trials);
            known.push(window.at..window.at + 2);
        }
    }
    let others: Vec<_> =
        bytes.into_iter().filter(|(at, _)| !known.iter().any(|range| range.contains(at))).collect();
    damage(subject, &others, trials);
    // One wrong bit of the PSN is damage, or the PSN of another packet.
    for window in windows.iter().filter(|window| window.is_fixed) {
        if let Some((change, true)) = change_of(window) {
            offer_word(subject, window, change, trials);
        }
    }
}

fn offer_word(subject: &Subject<'_>, window: &Window, change: u16, trials: &mut Trials) {
    let value = word(subject, window.at);
    let detail = Detail::Field {
        name: window.name,
        computed_with: u32::from(value ^ change),
        in_packet: u32::from(value),
    };
    trials.add(&[window.mistake], Some(detail), Certainty::Probable { tried: VALUES });
}

/// Returns the fields of two bytes that a sender or a device on the path may change, likeliest first.
fn windows(subject: &Subject<'_>) -> Vec<Window> {
    let window = |mistake, name, at, is_fixed| Window { mistake, name, at, is_fixed };
    let network_len = subject.version.network_len();
    let length = subject.version.length_offset();
    let mut windows = Vec::with_capacity(9);
    if subject.version == Version::Ipv4 {
        windows.push(window(Mistake::IdentificationChanged, "Identification", 4, false));
    }
    if subject.udp().is_some() {
        windows.push(window(Mistake::SourcePortChanged, "UDP source port", network_len, false));
        windows.push(window(Mistake::DestinationPortChanged, "UDP destination port", network_len + 2, true));
    }
    if subject.version == Version::Ipv4 {
        windows.push(window(Mistake::FragmentFieldChanged, "fragment field", 6, true));
    }
    windows.push(window(Mistake::IpLengthChanged, "IP length", length, true));
    if subject.udp().is_some() {
        windows.push(window(Mistake::UdpLengthChanged, "UDP length", network_len + 4, true));
    }
    let bth = subject.head_len();
    windows.push(window(Mistake::PsnChanged, "lower 16 bits of the PSN", bth + 10, true));
    windows.push(window(Mistake::QueuePairChanged, "lower 16 bits of the queue pair", bth + 6, true));
    windows.push(window(Mistake::PKeyChanged, "P_Key", bth + 2, true));
    windows
}

/// Returns two bytes as a number; `at` counts from layer 3.
fn word(subject: &Subject<'_>, at: usize) -> u16 {
    match at.checked_sub(subject.head_len()) {
        None => subject.word(at),
        Some(at) => {
            let word = subject.covered.get(at..).and_then(<[u8]>::first_chunk);
            word.map_or(0, |word| u16::from_be_bytes(*word))
        }
    }
}

/// The changes of one field that explain the difference, by the offset from layer 3.
struct Changes {
    /// Changes of the two bytes at an offset.
    words: Vec<(usize, u16)>,
    /// Changes of the byte at an offset.
    bytes: Vec<(usize, u8)>,
}

/// Walks from the end of the covered bytes to their start.
fn changes(subject: &Subject<'_>, windows: &[Window]) -> Changes {
    let mut changes = Changes { words: Vec::new(), bytes: Vec::new() };
    let mut quotient = subject.found ^ subject.correct;
    for at in (0..subject.head_len() + subject.covered.len()).rev() {
        quotient = back(quotient);
        if let Ok(byte) = u8::try_from(quotient) {
            changes.bytes.push((at, byte));
        }
        // The first byte of the field is the low byte of the register.
        if let Ok(change) = u16::try_from(quotient)
            && windows.iter().any(|window| window.at == at)
        {
            changes.words.push((at, change.swap_bytes()));
        }
    }
    changes
}

/// Offers damage of one bit or byte, in the covered bytes or in the ICRC itself.
fn damage(subject: &Subject<'_>, bytes: &[(usize, u8)], trials: &mut Trials) {
    let len = (subject.head_len() + subject.covered.len()) as u32;
    let difference = (subject.found ^ subject.correct).to_le_bytes();
    let in_icrc = difference.iter().enumerate().filter(|(_, bits)| **bits != 0);
    let mut found: Vec<(usize, u8, &'static str)> = Vec::new();
    if in_icrc.clone().count() == 1 {
        let end = subject.transport_offset + subject.covered.len();
        found.extend(in_icrc.map(|(at, bits)| (end + at, *bits, "ICRC")));
    }
    for (at, bits) in bytes {
        if !subject.covers(*at, *bits) {
            continue;
        }
        let offset = match at.checked_sub(subject.head_len()) {
            None if *at < subject.version.network_len() => subject.network_offset + at,
            None => subject.transport_offset.saturating_sub(subject.head_len() - at),
            Some(at) => subject.transport_offset + at,
        };
        found.push((offset, *bits, subject.place(*at, *bits)));
    }
    for (offset, bits, place) in found {
        let is_bit = bits.count_ones() == 1;
        let (mistake, values) = if is_bit { (Mistake::BitFlipped, 8) } else { (Mistake::ByteDamaged, 255) };
        let tried = (len + ICRC_LEN as u32) * values;
        trials.add(&[mistake], Some(Detail::Damage { offset, bits, place }), Certainty::Probable { tried });
    }
}

/// Searches for the UDP source port of the RoCE v2 form of a RoCE v1 packet.
fn v2_form(subject: &Subject<'_>, trials: &mut Trials) {
    for head in headers_of_v2(subject) {
        let with_zero = subject.icrc(&ONES, &head, subject.tail(true));
        // The source port is at the start of the UDP header.
        let quotient = multiply(subject.found ^ with_zero, back_by(UDP_LEN + subject.covered.len()));
        if let Ok(port) = u16::try_from(quotient) {
            let computed_with = port.swap_bytes().into();
            let detail = Detail::Field { name: "UDP source port", computed_with, in_packet: 0 };
            trials.add(&[Mistake::RoceV2Form], Some(detail), Certainty::Probable { tried: VALUES });
        }
    }
}
