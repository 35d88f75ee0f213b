//! Choosing the process that gets a datagram: the rule as a program for the kernel, and in Rust.
//!
//! The destination QPN begins with the slot ([`ProcessSlot`]). Datagrams for queue pair 1 carry connection
//! management messages with a connection ID, chosen by the receiver, that begins with the slot too. REQ and
//! SIDR_REQ have no such ID: they go to slot 0, as do datagrams for slots without a socket.

use std::io;
use std::mem::offset_of;

use roce_transport::ProcessSlot;
use socket2::{SockFilter, Socket};

use crate::sockets::set_option;

/// Returns the slot that a datagram, BTH to ICRC, is for.
pub(super) fn slot_of(datagram: &[u8]) -> ProcessSlot {
    if !is_for_gsi(datagram) {
        return ProcessSlot::of(word(datagram, QPN_WORD_AT));
    }
    match attribute_of(datagram) {
        REQ | SIDR_REQ => ProcessSlot::NONE,
        SIDR_REP => ProcessSlot::of_id(word(datagram, REQUEST_ID_AT)),
        _ => ProcessSlot::of_id(word(datagram, REMOTE_ID_AT)),
    }
}

/// Returns whether the QPN of a datagram belongs to this slot, without checking anything else.
#[inline]
pub(super) fn is_plainly_for(slot: ProcessSlot, datagram: &[u8]) -> bool {
    ProcessSlot::of(word(datagram, QPN_WORD_AT)) == slot
}

/// Returns the service ID of a REQ or SIDR_REQ, and `None` for all other datagrams.
pub(super) fn service_asked_for(datagram: &[u8]) -> Option<u64> {
    let is_request = is_for_gsi(datagram) && matches!(attribute_of(datagram), REQ | SIDR_REQ);
    let bytes = datagram.get(SERVICE_ID_AT..)?.first_chunk()?;
    is_request.then_some(u64::from_be_bytes(*bytes))
}

fn is_for_gsi(datagram: &[u8]) -> bool {
    word(datagram, QPN_WORD_AT) & MOST_QPN == 1
}

/// Returns the word at this offset, or 0 if it is incomplete, as in the kernel's program.
#[inline]
fn word(datagram: &[u8], at: usize) -> u32 {
    datagram.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn attribute_of(datagram: &[u8]) -> u16 {
    datagram.get(ATTRIBUTE_AT..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// `struct sock_fprog` without uninitialized padding, because the kernel copies all bytes. `SockFilter` is
/// `sock_filter` (`repr(transparent)`).
#[derive(Clone, Copy)]
#[repr(C)]
struct FilterProgram {
    len: u16,
    padding: [u16; 3],
    filter: *const SockFilter,
}

const _: () = assert!(size_of::<FilterProgram>() == size_of::<libc::sock_fprog>());
const _: () = assert!(offset_of!(FilterProgram, filter) == offset_of!(libc::sock_fprog, filter));

/// Makes the kernel choose a socket of the group by [`slot_of`]; the group has, or will have, `sockets`.
/// Binding an unbound `socket` then fails if another socket has the port, so two groups never mix.
pub(super) fn steer(socket: &Socket, sockets: usize) -> io::Result<()> {
    let program = program(sockets as u32);
    let pointer = FilterProgram { len: program.len() as u16, padding: [0; 3], filter: program.as_ptr() };
    // The program outlives the call, which copies it.
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, pointer)
}

/// Returns the program in classic BPF, where jumps count instructions. The program sees the UDP payload.
fn program(sockets: u32) -> Vec<SockFilter> {
    let put = |code: u32, k: u32| SockFilter::new(code as u16, 0, 0, k);
    let compute = |operation: u32, k: u32| put(libc::BPF_ALU | operation | libc::BPF_K, k);
    // Skips `over` instructions if equal.
    let equal =
        |k: u32, over: u8| SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, over, 0, k);
    let load_word = |at: usize| put(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at as u32);
    let load_half = |at: usize| put(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at as u32);
    let over = |count: u32| put(libc::BPF_JMP | libc::BPF_JA, count);
    let from =
        |k: u32, over: u8| SockFilter::new((libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, over, 0, k);
    let (short, long) = (ProcessSlot::NONE, ProcessSlot::FIRST_LONG);
    let offset = (long.first_qpn() >> long.bits_below()) - u32::from(long.get());
    vec![
        load_word(QPN_WORD_AT),
        compute(libc::BPF_AND, MOST_QPN),
        equal(1, 1),
        over(8),
        load_half(ATTRIBUTE_AT),
        equal(REQ.into(), 13),
        equal(SIDR_REQ.into(), 12),
        equal(SIDR_REP.into(), 2),
        load_word(REMOTE_ID_AT),
        over(1),
        load_word(REQUEST_ID_AT),
        compute(libc::BPF_RSH, 8),
        // As in `ProcessSlot::of`.
        from(long.first_qpn(), 2),
        compute(libc::BPF_RSH, short.bits_below()),
        put(libc::BPF_RET | libc::BPF_A, 0),
        compute(libc::BPF_RSH, long.bits_below()),
        compute(libc::BPF_SUB, offset),
        // For a number without a socket, the kernel would choose a socket by hash.
        from(sockets, 1),
        put(libc::BPF_RET | libc::BPF_A, 0),
        put(libc::BPF_RET | libc::BPF_K, 0),
    ]
}

/// Offset of the BTH word (IBTA 9.2) whose lower three bytes are the destination QPN.
const QPN_WORD_AT: usize = 4;
const MOST_QPN: u32 = 0x00ff_ffff;
/// BTH and DETH have 12 and 8 bytes; the attribute ID is at byte 16 of a MAD (IBTA 13.4.2).
const ATTRIBUTE_AT: usize = MAD_AT + 16;
/// The first two fields of the messages follow the 24 bytes of the MAD header (IBTA 12.6 and 12.11).
const REQUEST_ID_AT: usize = MAD_AT + 24;
const REMOTE_ID_AT: usize = MAD_AT + 28;
/// Offset of the service ID in REQ and SIDR_REQ.
const SERVICE_ID_AT: usize = MAD_AT + 32;
const MAD_AT: usize = 12 + 8;
/// Attribute IDs of connection management messages (IBTA 16.7.1).
const REQ: u16 = 0x10;
const SIDR_REQ: u16 = 0x17;
const SIDR_REP: u16 = 0x18;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, ids: [u32; 2]) -> Vec<u8> {
        let mut bytes = vec![0; 280];
        bytes[7] = 1;
        bytes[36..38].copy_from_slice(&kind.to_be_bytes());
        bytes[44..48].copy_from_slice(&ids[0].to_be_bytes());
        bytes[48..52].copy_from_slice(&ids[1].to_be_bytes());
        bytes[52..60].copy_from_slice(&0x0106_1234_u64.to_be_bytes());
        bytes
    }

    /// `device/tests/group/main.rs` compares with the kernel.
    #[test]
    fn the_slot_is_in_the_queue_pair_number_or_in_the_id_of_the_connection() {
        let of = |qpn: u32| slot_of(&[&[4, 0, 0xff, 0xff][..], &qpn.to_be_bytes(), &[0; 8]].concat()).get();
        assert_eq!([0x05_0001, 0x3f_ffff, 0x00_0002, 0x40_0000, 0xff_ffff].map(of), [5, 63, 0, 64, 831]);
        // Congestion bits precede the number.
        assert_eq!(of(0xc005_0001), 5);
        let ids = [3 << 24 | 9, 7 << 24 | 9];
        let by_kind = |kind| slot_of(&message(kind, ids)).get();
        assert_eq!([REQ, SIDR_REQ, SIDR_REP, 0x13, 0x14, 0x15].map(by_kind), [0, 0, 3, 7, 7, 7]);
        assert_eq!(slot_of(&message(0x13, [3 << 24, u32::MAX])), ProcessSlot::MAX);
    }

    #[test]
    fn a_request_names_its_service() {
        assert_eq!(service_asked_for(&message(REQ, [0; 2])), Some(0x0106_1234));
        assert_eq!(service_asked_for(&message(SIDR_REQ, [0; 2])), Some(0x0106_1234));
        assert_eq!(service_asked_for(&message(SIDR_REP, [0; 2])), None);
        let mut other = message(REQ, [0; 2]);
        other[5] = 2;
        assert_eq!(service_asked_for(&other), None);
    }

    #[test]
    fn what_is_cut_short_is_for_slot_0() {
        for kind in [REQ, SIDR_REP, 0x13] {
            let whole = message(kind, [3 << 24, 7 << 24]);
            for len in 0..whole.len() {
                let _ = (slot_of(&whole[..len]), service_asked_for(&whole[..len]));
            }
            assert_eq!((slot_of(&whole[..20]), service_asked_for(&whole[..59])), (ProcessSlot::NONE, None));
        }
    }
}
