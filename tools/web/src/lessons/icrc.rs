//! Lesson 2: the ICRC by hand.

use roce_analysis::icrc::{Hints, Verdict, examine};
use roce_packet::fields::{BTH, Header, IPV4, UDP};
use roce_packet::outer::{Link, Outer};
use roce_packet::{EthernetHeader, Frame, FrameHeaders, NetworkHeader, ROCE_UDP_PORT, icrc};

use super::answer::{AnswerKey, Expected, Outcome, digits, from_hex, hex};

/// The frame of all tasks: an ACK without its ICRC, which is four bytes of zeros.
pub const FRAME: &str = "0200c00002010200c0000202080045020030123440003f11a583c0000202c0000201\
    c12312b7001c00001140ffff00000012000000051f00000300000000";
/// Number of bytes of ones before the IP header. They replace the local route header.
const ONES_LEN: usize = 8;

/// Judges an answer.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let bytes = from_hex(FRAME);
    let frame = Frame::parse(&bytes).ok()?;
    match task {
        1 => Some(length_of_input(&frame).judge(answer)),
        2 => Some(masked_bits().judge(answer)),
        3 => Some(name_mistake(&bytes, value(&frame)?.judge(answer), answer)),
        4 => Some(changes_on_path(&frame)?.judge(answer)),
        _ => None,
    }
}

fn number(value: usize) -> Expected {
    Expected::Number(value as u64)
}

fn length_of_input(frame: &Frame<'_>) -> AnswerKey {
    let outer = frame.headers.network.len_bytes();
    let datagram = frame.transport.len() - icrc::LEN;
    let all = ONES_LEN + outer + datagram;
    let shows = format!(
        "{ONES_LEN} bytes of ones, {outer} bytes of IPv4 and UDP, and {datagram} bytes from the BTH to the end \
         of the AETH: {all} bytes."
    );
    AnswerKey::new(number(all), shows)
        .hint(number(all - ONES_LEN), "You have left out the eight bytes of ones before the IP header.")
        .hint(number(all + icrc::LEN), "The field of the ICRC itself is not part of the input.")
        .hint(
            number(all + EthernetHeader::LEN),
            "You have counted the Ethernet header. Routers replace it, so the ICRC does not cover it.",
        )
        .hint(
            number(frame.len_bytes()),
            "That is the length of the frame. The input begins with eight bytes of ones, then the IP header.",
        )
        .hint(number(datagram), "The input begins before the BTH: ones, then the IP and UDP headers.")
        .hint(number(ONES_LEN + datagram), "The IP and UDP headers are also part of the input.")
        .otherwise(
            "Count eight bytes of ones, then all bytes from the IP header to the last before the ICRC.",
        )
}

/// Returns the number of bits of a header that the ICRC does not cover.
fn variant_bits(header: &Header) -> usize {
    header.fields.iter().filter(|field| field.variant).map(|field| field.width).sum()
}

fn masked_bits() -> AnswerKey {
    let parts = [&IPV4, &UDP, &BTH];
    let bits: usize = parts.iter().map(|header| variant_bits(header)).sum();
    let names = |header: &Header| {
        let fields = header.fields.iter().filter(|field| field.variant);
        let list: Vec<String> = fields.map(|field| format!("{} ({})", field.name, field.width)).collect();
        format!("{}: {}", header.name, list.join(", "))
    };
    let shows = format!("{} = {bits} bits.", parts.map(names).join("; "));
    // The reserved bits beside FECN and BECN.
    let reserved = BTH.fields.iter().filter(|field| field.variant && field.width > 1);
    let reserved: usize = reserved.map(|field| field.width).sum();
    AnswerKey::new(number(bits), shows)
        .hint(
            number(bits + ONES_LEN * 8),
            "You have counted the eight bytes of ones. They are not in the frame.",
        )
        .hint(
            number(bits - reserved),
            "The whole byte with FECN and BECN is masked, also its six reserved bits.",
        )
        .hint(
            number(bits - 16),
            "One of the two checksums is missing: that of IPv4 and that of UDP are both masked.",
        )
        .hint(number(bits - variant_bits(&BTH)), "The BTH also has a masked byte, the one after the P_Key.")
        .hint(number(bits / 8), "That is the number of bytes. The question asks for bits.")
        .otherwise("Add the masked fields: type of service, TTL, both checksums, and one byte of the BTH.")
}

fn value(frame: &Frame<'_>) -> Option<AnswerKey> {
    let check = frame.verify_icrc().ok()?;
    let bytes = check.computed.to_le_bytes();
    let shows = format!("The CRC is 0x{:08x}. Its lowest byte comes first: {}.", check.computed, hex(&bytes));
    let key = AnswerKey::new(Expected::Bytes(bytes.to_vec()), shows)
        .otherwise("No known mistake leads to this value. Compare your masked bytes with `roce explain`.");
    Some(key)
}

/// Replaces the hint by the mistake that leads to the answer, if it is one that `roce explain` knows.
fn name_mistake(frame: &[u8], outcome: Outcome, answer: &str) -> Outcome {
    let given = from_hex(&digits(answer).unwrap_or_default());
    let Some(field) = frame.len().checked_sub(icrc::LEN).filter(|_| given.len() == icrc::LEN) else {
        return outcome;
    };
    let mut frame = frame.to_vec();
    frame.truncate(field);
    frame.extend(given);
    let outer = Outer::decode(&frame, Link::Ethernet, frame.len(), ROCE_UDP_PORT);
    let Verdict::Wrong(wrong) = examine(&outer, &Hints::default()) else { return outcome };
    match wrong.findings.iter().find(|finding| finding.is_definite()) {
        Some(finding) => Outcome {
            hint: format!("{} To correct it: {}.", finding.explanation(), finding.fix()),
            ..outcome
        },
        None => outcome,
    }
}

/// A change on the path: the text of its choice, the frame's headers and its BTH after the change.
struct Change {
    text: &'static str,
    headers: FrameHeaders,
    transport: Vec<u8>,
}

fn changes_on_path(frame: &Frame<'_>) -> Option<AnswerKey> {
    let mut good = Vec::new();
    let mut bad = None;
    for change in changes(frame) {
        let changed = Frame { headers: change.headers, transport: &change.transport, trailer: frame.trailer };
        if changed.verify_icrc().ok()?.computed == frame.verify_icrc().ok()?.computed {
            good.push(change.text);
        } else {
            bad = Some(change.text);
        }
    }
    let bad = bad?;
    let shows =
        format!("If {bad}, the ICRC changes. Computed again after each other change, it stays equal.");
    let mut key = AnswerKey::new(Expected::text(bad), shows)
        .otherwise("Choose the change of a field that the ICRC covers.");
    for text in good {
        let hint = "Computed again after this change, the ICRC is the same, because the field is masked.";
        key = key.hint(Expected::text(text), hint);
    }
    Some(key)
}

fn changes(frame: &Frame<'_>) -> Vec<Change> {
    let plain = || (frame.headers, frame.transport.to_vec());
    let with_network = |text, alter: fn(&mut NetworkHeader)| {
        let (mut headers, transport) = plain();
        alter(&mut headers.network);
        Change { text, headers, transport }
    };
    let mut changes = vec![
        with_network("a router decrements the TTL", |network| {
            if let NetworkHeader::Ipv4 { ip, .. } = network {
                ip.ttl -= 1;
            }
        }),
        with_network("a switch sets the ECN bits to CE", |network| {
            if let NetworkHeader::Ipv4 { ip, .. } = network {
                ip.traffic_class |= 0b11;
            }
        }),
        with_network("a NAT replaces the UDP source port", |network| {
            if let NetworkHeader::Ipv4 { udp, .. } = network {
                udp.source_port ^= 1;
            }
        }),
    ];
    let (headers, mut transport) = plain();
    if let Some(byte) = transport.get_mut(FECN_BYTE) {
        *byte |= FECN;
    }
    changes.push(Change { text: "a switch sets FECN in the BTH", headers, transport });
    changes
}

/// The byte of the BTH with FECN and BECN, and the bit of FECN.
const FECN_BYTE: usize = 4;
const FECN: u8 = 0x80;
