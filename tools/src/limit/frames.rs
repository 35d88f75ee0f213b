//! The frames: WRITEs that belong to no queue pair.

use roce_packet::{Bth, Envelope, Opcode, Path, Psn, Qpn, Reth, icrc};

/// BTH and RETH in front of the payload.
pub(super) const HEADERS: usize = Bth::LEN + Reth::LEN;
/// Headers and ICRC.
pub(super) const OVERHEAD: usize = HEADERS + icrc::LEN;
/// The least payload: the number and what the frame is for.
pub(super) const MIN_PAYLOAD: usize = 16;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Counted by the receiver.
    Data,
    /// The number is how many frames have arrived, or were seen to be lost.
    Credit,
    /// Comes back as [`Pong`](Self::Pong).
    Ping,
    Pong,
}

impl Purpose {
    const ALL: [Self; 4] = [Self::Data, Self::Credit, Self::Ping, Self::Pong];
}

/// A frame with a right ICRC, but for the number that is put in later.
pub(super) fn template(path: &Path, purpose: Purpose, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; HEADERS];
    if let Some((bth, rest)) = bytes.split_first_chunk_mut() {
        // Nobody has queue pair 0xfffffe, so that a RoCE host that is not meant drops it.
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

/// Puts the number into a frame.
pub(super) fn set_number(bytes: &mut [u8], number: u64) {
    bytes[HEADERS..HEADERS + 8].copy_from_slice(&number.to_le_bytes());
}

/// What a received frame is for, and its number. `None` for whatever else arrives.
pub(super) fn read(head: &[u8]) -> Option<(Purpose, u64)> {
    let (number, rest) = head.get(HEADERS..)?.split_first_chunk()?;
    let purpose = u64::from_le_bytes(*rest.first_chunk()?);
    let purpose = Purpose::ALL.into_iter().find(|known| *known as u64 == purpose)?;
    Some((purpose, u64::from_le_bytes(*number)))
}
