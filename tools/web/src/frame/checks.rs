//! What holds in a frame and what does not, each with its rule.

mod check;
mod datagram;
mod extended;
mod network;

use roce_analysis::icrc::{Hints, Verdict, Wrong, examine};
use roce_analysis::walk::{Icrc, Protocol, Walk};
use roce_packet::fields::{self, Value};
use roce_packet::outer::Cut;
use roce_packet::{Layer, ParseError};

pub(super) use check::Check;
use check::State;

/// Returns the checks that apply to the headers which the frame has.
pub(super) fn of(walk: &Walk<'_>) -> Vec<Check> {
    let mut checks = vec![structure(walk)];
    network::check(walk, &mut checks);
    if let Some(packet) = walk.packet() {
        datagram::check(walk, packet, &mut checks);
        extended::check(walk, packet, &mut checks);
        checks.push(reserved(walk));
        checks.push(icrc(walk, packet.icrc));
    }
    checks
}

/// The answer of the parser.
fn structure(walk: &Walk<'_>) -> Check {
    let subject = |rule| ("structure", "Structure", rule);
    match (&walk.protocol, walk.error) {
        (Protocol::Other(name, detail), _) => {
            let detail = if detail.is_empty() { String::new() } else { format!(", {detail}") };
            let text = format!(
                "This is not RoCE ({name}{detail}). RoCE v2 is UDP to port 4791, and RoCE v1 has the EtherType \
                 0x8915."
            );
            Check::new(subject("IBTA A16, A17"), State::Bad, text)
        }
        (_, Some(error)) => Check::new(subject(rule_of(&error)), State::Bad, format!("{error}.")),
        (Protocol::Pause, None) => {
            let text = "This is a pause frame, which a switch or a NIC sends to the other end of a link.";
            Check::new(subject(fields::PAUSE.rule), State::Good, text)
        }
        (Protocol::Roce(None), None) => Check::new(
            subject("IBTA 9.2"),
            State::Unknown,
            "The frame ends before its BTH; add the missing bytes.",
        ),
        (Protocol::Roce(Some(_)), None) => {
            let names: Vec<_> = walk.parts.iter().map(|part| part.header.name).collect();
            let names = names.join(", ");
            match walk.outer.cut {
                None => {
                    let text = format!("The parts of the frame fit together: {names}.");
                    Check::new(subject("IBTA 9.6"), State::Good, text)
                }
                Some(cut) => {
                    let reason = match cut {
                        Cut::Fragment => "the other fragments contain the rest",
                        Cut::Capture | Cut::Mirror => cut.reason(),
                    };
                    let text =
                        format!("The end of the frame is missing ({reason}). These parts are here: {names}.");
                    Check::new(subject("IBTA 9.6"), State::Unknown, text)
                }
            }
        }
    }
}

/// Returns the section that defines the part of the frame with an error.
fn rule_of(error: &ParseError) -> &'static str {
    let header = match error.layer {
        Layer::Ethernet => &fields::ETHERNET,
        Layer::Vlan => &fields::VLAN,
        Layer::Lrh => &fields::LRH,
        Layer::Ipv4 => &fields::IPV4,
        Layer::Ipv6 => &fields::IPV6,
        Layer::Grh => &fields::GRH,
        Layer::Udp => &fields::UDP,
        Layer::Bth => &fields::BTH,
        Layer::Rdeth => &fields::RDETH,
        Layer::Deth => &fields::DETH,
        Layer::Xrceth => &fields::XRCETH,
        Layer::Reth => &fields::RETH,
        Layer::AtomicEth => &fields::ATOMIC_ETH,
        Layer::Aeth => &fields::AETH,
        Layer::Feth => &fields::FETH,
        Layer::ImmDt => &fields::IMMDT,
        Layer::Ieth => &fields::IETH,
        Layer::AtomicAckEth => &fields::ATOMIC_ACK_ETH,
        Layer::Payload => &fields::PAYLOAD,
        Layer::Icrc => &fields::ICRC,
        Layer::Cnp => &fields::CNP,
        Layer::Pause => &fields::PAUSE,
        Layer::Mad => &fields::MAD,
        Layer::IpCm => &fields::IP_CM,
        _ => return "IBTA 9.6",
    };
    header.rule
}

/// Compares the reserved bits of the innermost packet with zero.
fn reserved(walk: &Walk<'_>) -> Check {
    let mut set = Vec::new();
    for part in walk.parts.iter().filter(|part| !part.is_outer) {
        let bytes = walk.part_bytes(part);
        for field in part.header.fields.iter().filter(|field| field.name == "reserved") {
            match field.value(bytes) {
                Some(Value::Number(number @ 1..)) => {
                    set.push(format!("{} in the {} is 0x{number:x}", field.key, part.header.name));
                }
                Some(Value::Bytes(value)) if value.iter().any(|byte| *byte != 0) => {
                    set.push(format!("{} in the {} is not zero", field.key, part.header.name));
                }
                Some(_) | None => {}
            }
        }
    }
    let subject = ("reserved", "Reserved bits", "IBTA 9.2, 9.3");
    match set.is_empty() {
        true => Check::new(subject, State::Good, "All reserved bits are 0."),
        false => {
            let text = format!("{}. Senders write 0, and receivers ignore these bits.", set.join(", "));
            Check::new(subject, State::Bad, text)
        }
    }
}

fn icrc(walk: &Walk<'_>, icrc: Icrc) -> Check {
    let subject = ("icrc", "ICRC", fields::ICRC.rule);
    let wire = |value: u32| {
        let [a, b, c, d] = value.to_le_bytes();
        format!("{a:02x} {b:02x} {c:02x} {d:02x}")
    };
    match icrc {
        Icrc::Unchecked(reason) => {
            Check::new(subject, State::Unknown, format!("The ICRC cannot be checked: {reason}."))
        }
        Icrc::Checked(check, _) if check.is_good() => {
            let text = format!("The ICRC is {}, as computed from the other bytes.", wire(check.found));
            Check::new(subject, State::Good, text)
        }
        Icrc::Checked(check, _) => {
            let (found, computed) = (wire(check.found), wire(check.computed));
            let mistake = match examine(&walk.outer, &Hints::default()) {
                Verdict::Wrong(wrong) => mistake(&wrong),
                Verdict::Correct | Verdict::Unchecked(_) => String::new(),
            };
            let text = format!("The ICRC is {found}, but the other bytes give {computed}.{mistake}");
            Check::new(subject, State::Bad, text)
        }
    }
}

/// Returns the most likely mistake behind a wrong ICRC as sentences, after a space.
fn mistake(wrong: &Wrong) -> String {
    let Some(finding) = wrong.findings.first() else {
        return " None of the known mistakes leads to this value: the frame was changed or damaged after it \
                was sealed."
            .to_owned();
    };
    let mut fix = finding.fix();
    if let Some(first) = fix.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    format!(" The mistake is \"{}\". {} {fix}.", finding.name(), finding.explanation())
}
