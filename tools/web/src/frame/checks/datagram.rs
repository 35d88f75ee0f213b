//! The checks of the BTH, of the payload length and of the padding.

use roce_analysis::walk::{Packet, Walk};
use roce_packet::fields::{BTH, PADDING};
use roce_packet::{PathMtu, PayloadRule, Qpn, Transport};

use super::check::{Check, State};

pub(super) fn check(walk: &Walk<'_>, packet: &Packet<'_>, checks: &mut Vec<Check>) {
    checks.push(version(packet));
    checks.push(opcode(packet));
    checks.push(payload(packet));
    checks.push(padding(walk, packet));
    checks.push(partition(packet.bth.p_key()));
    checks.push(queue_pair(packet));
}

fn version(packet: &Packet<'_>) -> Check {
    let version = packet.bth.version();
    let text = match version {
        0 => "The transport version is 0.".to_owned(),
        _ => format!("The transport version is {version}. Receivers drop every version but 0."),
    };
    Check::new(("version", "Transport version", BTH.rule), State::of(version == 0), text)
}

fn opcode(packet: &Packet<'_>) -> Check {
    let subject = ("opcode", "Opcode", BTH.rule);
    let opcode = packet.bth.opcode();
    let number = opcode.0;
    match packet.info {
        Some(info) => {
            Check::new(subject, State::Good, format!("The opcode 0x{number:02x} is {}.", info.name))
        }
        None if opcode.is_vendor_specific() => {
            let text = format!(
                "The opcode 0x{number:02x} is reserved for manufacturers, so the headers after the BTH are \
                 unknown."
            );
            Check::new(subject, State::Unknown, text)
        }
        None => {
            let text = format!("The opcode 0x{number:02x} is not assigned. Receivers drop the packet.");
            Check::new(subject, State::Bad, text)
        }
    }
}

fn payload(packet: &Packet<'_>) -> Check {
    let subject = ("payload", "Payload length", "IBTA 9.7.4.1.6");
    let Some(info) = packet.info else {
        let text = "The opcode decides the length, and it is not known.";
        return Check::new(subject, State::Unknown, text);
    };
    let Some(len) = packet.payload_len else {
        let text = format!("The packet is too short for the headers of {} and the ICRC.", info.name);
        return Check::new(subject, State::Bad, text);
    };
    let largest = PathMtu::Mtu4096.bytes();
    let (holds, needs) = match info.payload {
        PayloadRule::None => (len == 0, "no payload".to_owned()),
        PayloadRule::Exactly(exact) => (len == exact, format!("exactly {exact} bytes of payload")),
        PayloadRule::FullMtu => (
            PathMtu::from_bytes(len).is_some(),
            "exactly the path MTU: 256, 512, 1024, 2048 or 4096 bytes".to_owned(),
        ),
        PayloadRule::OneToMtu => {
            ((1..=largest).contains(&len), "1 byte up to the path MTU, at most 4096".to_owned())
        }
        PayloadRule::ZeroToMtu => (len <= largest, "0 bytes up to the path MTU, at most 4096".to_owned()),
    };
    let text = format!("The opcode {} carries {needs}, and this packet has {len} bytes.", info.name);
    Check::new(subject, State::of(holds), text)
}

fn padding(walk: &Walk<'_>, packet: &Packet<'_>) -> Check {
    let subject = ("padding", "Padding", PADDING.rule);
    let pad = usize::from(packet.bth.pad_count());
    let Some(len) = packet.payload_len else {
        let text = format!("PadCnt is {pad}, but the packet is too short for its headers.");
        return Check::new(subject, State::Unknown, text);
    };
    let sum = len.saturating_add(pad);
    if !sum.is_multiple_of(4) {
        let text = format!(
            "{len} bytes of payload and {pad} bytes of padding are {sum} bytes together, not a multiple of 4. \
             PadCnt or a length is wrong."
        );
        return Check::new(subject, State::Bad, text);
    }
    let part = walk.parts.iter().find(|part| std::ptr::eq(part.header, &PADDING));
    let has_other_bytes = part.is_some_and(|part| walk.part_bytes(part).iter().any(|byte| *byte != 0));
    let text = match pad {
        0 => format!("The {len} bytes of payload need no padding."),
        _ if has_other_bytes => format!(
            "PadCnt is {pad}, which extends the payload to {sum} bytes. The padding is not zero; \
             receivers ignore it."
        ),
        _ => format!("PadCnt is {pad}, which extends the payload to {sum} bytes, a multiple of 4."),
    };
    Check::new(subject, State::Good, text)
}

fn partition(p_key: u16) -> Check {
    let (state, text) = match p_key {
        0xffff => (State::Good, "The P_Key is that of the default partition, 0xffff.".to_owned()),
        0x7fff => {
            let text = "The sender is a limited member of the default partition; full members accept it.";
            (State::Good, text.to_owned())
        }
        _ if p_key & 0x7fff == 0 => (State::Bad, format!("The P_Key 0x{p_key:04x} is not valid.")),
        _ => {
            let text = format!("Only members of the partition 0x{:04x} accept the packet.", p_key & 0x7fff);
            (State::Unknown, text)
        }
    };
    Check::new(("p_key", "P_Key", "IBTA 10.9.1.1"), state, text)
}

fn queue_pair(packet: &Packet<'_>) -> Check {
    let qpn = packet.bth.dest_qp();
    let is_datagram = packet.info.is_some_and(|info| info.transport == Transport::Ud);
    let (state, text) = match (qpn, is_datagram) {
        (Qpn::GSI, true) => (State::Good, "Queue pair 1 receives connection management.".to_owned()),
        (Qpn::GSI, false) => (State::Bad, "Queue pair 1 receives only UD packets.".to_owned()),
        (Qpn::MULTICAST, true) => {
            (State::Good, "0xffffff stands for every queue pair of the multicast group.".to_owned())
        }
        (Qpn::MULTICAST, false) => {
            (State::Bad, "0xffffff stands for a multicast group, which only UD has.".to_owned())
        }
        _ if qpn.get() == 0 => {
            let text = "Queue pair 0 belongs to InfiniBand's subnet management, which RoCE does not have.";
            (State::Bad, text.to_owned())
        }
        _ => (State::Good, format!("The packet is for queue pair {qpn}.")),
    };
    Check::new(("queue_pair", "Destination queue pair", BTH.rule), state, text)
}
