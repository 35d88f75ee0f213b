//! The frames: WRITEs to a queue pair that does not exist.

use roce_packet::{Bth, Envelope, Opcode, Path, Psn, Qpn, Reth, icrc};

/// BTH and RETH in front of the payload.
pub(super) const HEADERS: usize = Bth::LEN + Reth::LEN;
/// Headers and ICRC.
pub(super) const OVERHEAD: usize = HEADERS + icrc::LEN;
/// The smallest payload: the number and the purpose of the frame.
pub(super) const MIN_PAYLOAD: usize = 16;

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A frame that the receiver counts.
    Data,
    /// A credit. Its number is the number of frames that have arrived or are known to be lost.
    Credit,
    /// A frame that the receiver returns as [`Pong`](Self::Pong).
    Ping,
    Pong,
}

impl Purpose {
    const ALL: [Self; 4] = [Self::Data, Self::Credit, Self::Ping, Self::Pong];
}

/// Builds a frame. Its ICRC is valid until a number is written.
pub(super) fn template(path: &Path, purpose: Purpose, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; HEADERS];
    if let Some((bth, rest)) = bytes.split_first_chunk_mut() {
        // No host uses queue pair 0xfffffe, so any other RoCE host drops the frame.
        Bth::new(Opcode::RC_RDMA_WRITE_ONLY, Qpn::new(0xff_fffe), Psn::new(0)).emit(bth);
        if let Some(reth) = rest.first_chunk_mut() {
            Reth { va: 0, rkey: 0, dma_len: payload as u32 }.emit(reth);
        }
    }
    bytes.extend((0..payload).map(|index| index as u8));
    bytes[HEADERS + 8..HEADERS + 16].copy_from_slice(&(purpose as u64).to_le_bytes());
    let value = icrc::compute(&Envelope::new(path, 0), &bytes, &[]);
    bytes.extend(value.to_le_bytes());
    bytes
}

/// Writes the number into a frame.
pub(super) fn set_number(bytes: &mut [u8], number: u64) {
    bytes[HEADERS..HEADERS + 8].copy_from_slice(&number.to_le_bytes());
}

/// Returns the purpose and the number of a received frame, or `None` for any other frame.
pub(super) fn read(head: &[u8]) -> Option<(Purpose, u64)> {
    let (number, rest) = head.get(HEADERS..)?.split_first_chunk()?;
    let purpose = u64::from_le_bytes(*rest.first_chunk()?);
    let purpose = Purpose::ALL.into_iter().find(|known| *known as u64 == purpose)?;
    Some((purpose, u64::from_le_bytes(*number)))
}
