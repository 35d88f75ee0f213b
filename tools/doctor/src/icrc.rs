//! The mistakes behind the wrong ICRCs of received packets.

use roce_analysis::icrc::{Hints, Mistake, Tally, Verdict, examine};
use roce_packet::outer::{Link, Outer};
use roce_packet::{FrameHeaders, MacAddr, NetworkHeader, ROCE_UDP_PORT};
use roce_transport::{Body, Identification, Received};

/// Mistakes of a `udp` device that guesses an Identification, not of the sender.
const GUESSES: [Mistake; 3] =
    [Mistake::IdentificationZero, Mistake::IdentificationSwapped, Mistake::IdentificationChanged];
/// Damage on the path, which is no mistake of either side.
const DAMAGE: [Mistake; 2] = [Mistake::BitFlipped, Mistake::ByteDamaged];

/// Examines the ICRC of a received datagram. Returns `None` if the datagram has none.
pub(super) fn verdict(received: &Received<'_>) -> Option<Verdict> {
    let Body::Whole { head, tail } = received.body else { return None };
    let (identification, dont_fragment, is_known) = match received.identification {
        Identification::Known { identification, dont_fragment } => (identification, dont_fragment, true),
        Identification::Unknown { hint } => (hint, true, false),
        Identification::Unsealed => return None,
    };
    let (path, none) = (&received.path, MacAddr::ZERO);
    let mut headers = FrameHeaders::new(path, identification, none, none, head.len() + tail.len()).ok()?;
    if let NetworkHeader::Ipv4 { ip, .. } = &mut headers.network {
        ip.dont_fragment = dont_fragment;
    }
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).ok()?;
    frame.extend_from_slice(head);
    frame.extend_from_slice(tail);
    let outer = Outer::decode(&frame, Link::Ethernet, frame.len(), ROCE_UDP_PORT);
    let verdict = examine(&outer, &Hints::default());
    if let Verdict::Wrong(wrong) = &verdict
        && let Some(first) = wrong.findings.first()
        && !is_known
        && matches!(first.mistakes[..], [only] if GUESSES.contains(&only))
    {
        return Some(Verdict::Correct);
    }
    Some(verdict)
}

/// Returns the mistakes that certainly lead to the wrong ICRCs, unless packets were damaged on the path.
pub(super) fn cause(tally: &Tally) -> Vec<Mistake> {
    let conclusion = tally.conclusion();
    let is_damage = conclusion.mistakes.iter().any(|mistake| DAMAGE.contains(mistake));
    if conclusion.is_certain && !is_damage { conclusion.mistakes } else { Vec::new() }
}

/// Returns the names of mistakes and their remedies.
pub(super) fn in_words(mistakes: &[Mistake]) -> (String, String) {
    let join = |of: fn(Mistake) -> &'static str, between: &str| {
        mistakes.iter().map(|mistake| of(*mistake)).collect::<Vec<_>>().join(between)
    };
    (join(Mistake::name, " and "), join(Mistake::fix, "; "))
}

#[cfg(test)]
mod tests {
    use roce_packet::{Bth, DatagramWriter, Encapsulation, Envelope, Opcode, Path, Psn, Qpn};

    use super::*;

    fn path() -> Path {
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: [198, 18, 0, 1].into(),
            destination: [198, 18, 0, 2].into(),
            source_port: 50_000,
            traffic_class: 2,
            hop_limit: 63,
            flow_label: 0,
            vlan: None,
        }
    }

    /// A datagram whose ICRC is correct for this envelope.
    fn datagram(envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; 256];
        let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(7), Psn::new(9));
        let mut writer = DatagramWriter::new(&mut buffer, &bth).unwrap();
        writer.payload_slot(payload.len()).unwrap().copy_from_slice(payload);
        let len = writer.finish(envelope).unwrap();
        buffer.truncate(len);
        buffer
    }

    fn judge(datagram: &[u8], identification: Identification) -> Verdict {
        let (head, tail) = datagram.split_at(20);
        let body = Body::Whole { head, tail };
        verdict(&Received { path: path(), identification, body, telemetry: None }).unwrap()
    }

    #[test]
    fn a_guessed_identification_is_no_mistake() {
        for identification in [0, 5, 0xbeef] {
            let datagram = datagram(&Envelope::new(&path(), identification), b"whatever");
            assert_eq!(judge(&datagram, Identification::Unknown { hint: 0 }), Verdict::Correct);
            assert_eq!(judge(&datagram, Identification::Unknown { hint: 5 }), Verdict::Correct);
            let known = Identification::Known { identification, dont_fragment: true };
            assert_eq!(judge(&datagram, known), Verdict::Correct);
            let other = Identification::Known { identification: 77, dont_fragment: true };
            assert!(matches!(judge(&datagram, other), Verdict::Wrong(_)));
        }
    }

    #[test]
    fn the_cause_is_named_after_two_packets_and_damage_is_none() {
        let translated = Envelope { source_port: 61_234, ..Envelope::new(&path(), 0) };
        let mut tally = Tally::default();
        for (payload, expected) in [("one", &[][..]), ("second", &[Mistake::SourcePortChanged][..])] {
            let datagram = datagram(&translated, payload.as_bytes());
            tally.add(&judge(&datagram, Identification::Unknown { hint: 0 }));
            assert_eq!(cause(&tally), expected);
        }
        let (name, remedy) = in_words(&cause(&tally));
        assert!(name == "another UDP source port" && remedy.contains("NAT"), "{name}: {remedy}");
        let mut tally = Tally::default();
        for place in [14, 15, 16] {
            let mut datagram = datagram(&Envelope::new(&path(), 0), b"damaged on the way");
            datagram[place] ^= 4;
            tally.add(&judge(&datagram, Identification::Unknown { hint: 0 }));
        }
        assert_eq!((tally.wrong(), cause(&tally)), (3, Vec::new()));
    }
}
