//! Writes the bytes of a packet from BTH to ICRC, right or wrong.

use roce_packet::{
    Bth, Envelope, Opcode, OpcodeInfo, Operation, Path, PayloadRule, Psn, Qpn, Syndrome, icrc,
};

use super::names::{AnswerKind, Slot, slot};

/// The ICRC of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IcrcDamage {
    /// The right ICRC.
    #[default]
    None,
    /// One bit of the right ICRC is inverted.
    Wrong,
    /// This value, as a number of the four bytes on the wire.
    Value(u32),
}

/// The damage of a packet. All of it except the inverted bit precedes the ICRC, which therefore covers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The ICRC.
    pub icrc: IcrcDamage,
    /// Bytes from the BTH on that are left, without the ICRC.
    pub truncated: Option<usize>,
    /// Zero bytes between padding and ICRC.
    pub extra: usize,
    /// The bit that is inverted after the ICRC was computed, counted from the first bit of the BTH.
    pub flip: Option<usize>,
}

/// A packet to write.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    /// The opcode, which determines the headers.
    pub info: &'static OpcodeInfo,
    /// The kind of an ACKNOWLEDGE packet.
    pub answer: Option<AnswerKind>,
    /// The receiving queue pair, unless a field replaces it.
    pub dest_qp: Qpn,
    /// The fields that the script sets.
    pub fields: &'a [(Slot, u64)],
    /// The payload; `None` for the payload that the opcode requires.
    pub payload: Option<&'a [u8]>,
    /// The damage.
    pub damage: Damage,
}

/// Returns the bytes from BTH to ICRC.
#[must_use]
pub fn assemble(draft: &Draft<'_>, path: &Path) -> Vec<u8> {
    let Draft { info, damage, .. } = *draft;
    let is_cnp = info.opcode == Opcode::CNP;
    let bth = Bth { mig_req: !is_cnp, becn: is_cnp, ..Bth::new(info.opcode, draft.dest_qp, Psn::new(0)) };
    let mut packet = vec![0; info.header_len];
    if let Some(header) = packet.first_chunk_mut() {
        bth.emit(header);
    }
    let mut set = |name: &str, value: u64| {
        if let Some(slot) = slot(name, info) {
            slot.write(&mut packet, info, value);
        }
    };
    set("syndrome", syndrome(draft.answer).to_byte().into());
    if info.operation == Operation::Flush {
        set("visible", 1);
    }
    let required = match info.payload {
        PayloadRule::Exactly(len) => len,
        _ => 0,
    };
    let zeros = vec![0; required];
    let payload = draft.payload.unwrap_or(&zeros);
    let pad = payload.len().wrapping_neg() & 0b11;
    set("pad", pad as u64);
    for (slot, value) in draft.fields {
        slot.write(&mut packet, info, *value);
    }
    packet.extend_from_slice(payload);
    packet.resize(packet.len() + pad + damage.extra, 0);
    if let Some(len) = damage.truncated {
        packet.truncate(len);
    }
    let icrc = match damage.icrc {
        IcrcDamage::None => icrc::compute(&Envelope::new(path, 0), &packet, &[]),
        IcrcDamage::Wrong => icrc::compute(&Envelope::new(path, 0), &packet, &[]) ^ 1 << 24,
        IcrcDamage::Value(value) => value.swap_bytes(),
    };
    packet.extend(icrc.to_le_bytes());
    if let Some(bit) = damage.flip
        && let Some(byte) = packet.get_mut(bit / 8)
    {
        *byte ^= 0x80 >> (bit % 8);
    }
    packet
}

/// Returns the syndrome of a packet with an AETH.
fn syndrome(answer: Option<AnswerKind>) -> Syndrome {
    match answer {
        None | Some(AnswerKind::Ack) => Syndrome::ACK_UNLIMITED,
        Some(AnswerKind::Nak(code)) => Syndrome::Nak(code.unwrap_or(roce_packet::NakCode::PsnSequence)),
        Some(AnswerKind::Rnr) => Syndrome::RnrNak { timer: roce_packet::RnrTimer::default() },
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::{Datagram, Encapsulation};

    use super::*;

    const PATH: Path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 1)),
        destination: std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2)),
        source_port: 0xc000,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };

    fn draft(opcode: Opcode) -> Draft<'static> {
        let info = opcode.info().unwrap();
        Draft {
            info,
            answer: None,
            dest_qp: Qpn::new(7),
            fields: &[],
            payload: None,
            damage: Damage::default(),
        }
    }

    #[test]
    fn whole_packets_are_right() {
        for info in (0..=u8::MAX).filter_map(|code| Opcode(code).info()) {
            let bytes = assemble(&draft(info.opcode), &PATH);
            let datagram = Datagram::parse(&bytes, &[]).unwrap();
            assert_eq!(datagram.icrc(), datagram.compute_icrc(&Envelope::new(&PATH, 0)), "{}", info.name);
            assert_eq!(datagram.bth().dest_qp, Qpn::new(7));
        }
        let payload = [1, 2, 3, 4, 5];
        let odd = Draft { payload: Some(&payload), ..draft(Opcode::RC_SEND_ONLY) };
        assert_eq!(Datagram::parse(&assemble(&odd, &PATH), &[]).unwrap().payload().0, payload);
    }

    #[test]
    fn each_damage_has_its_effect() {
        let with = |damage| assemble(&Draft { damage, ..draft(Opcode::RC_SEND_ONLY) }, &PATH);
        let whole = with(Damage::default());
        let wrong = with(Damage { icrc: IcrcDamage::Wrong, ..Damage::default() });
        assert_ne!(whole.last(), wrong.last());
        let value = with(Damage { icrc: IcrcDamage::Value(0x0102_0304), ..Damage::default() });
        assert_eq!(value[12..], [1, 2, 3, 4]);
        assert_eq!(with(Damage { truncated: Some(8), ..Damage::default() }).len(), 12);
        assert_eq!(with(Damage { extra: 1, ..Damage::default() }).len(), whole.len() + 1);
        let flipped = with(Damage { flip: Some(8 * 11 + 7), ..Damage::default() });
        assert_eq!((flipped[11] ^ whole[11], &flipped[12..]), (1, &whole[12..]));
    }
}
