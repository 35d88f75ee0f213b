//! Packets in a few words.

use roce_packet::{Datagram, Direction};

/// Describes a datagram, BTH to ICRC: `ACKNOWLEDGE, PSN 5, AETH ACK, MSN 1`.
pub(super) fn describe(bytes: &[u8]) -> String {
    let datagram = match Datagram::parse(bytes, &[]) {
        Ok(datagram) => datagram,
        Err(error) => return format!("a packet that cannot be read: {error}"),
    };
    let (bth, info) = (datagram.bth(), datagram.info());
    let name = info.name.split_once('_').map_or(info.name, |(_, name)| name).replace('_', " ");
    if info.direction == Direction::Cnp {
        return format!("{name} for queue pair {}", bth.dest_qp);
    }
    let mut text = format!("{name}, PSN {}", bth.psn);
    if let Some(aeth) = datagram.aeth() {
        text += &format!(", AETH {}, MSN {}", aeth.syndrome, aeth.msn);
    }
    if let Some(atomic) = datagram.atomic_ack_eth() {
        text += &format!(", old value 0x{:016x}", atomic.original);
    }
    match datagram.payload_len() {
        0 => {}
        1 => text += ", 1 byte of payload",
        len => text += &format!(", {len} bytes of payload"),
    }
    text
}
