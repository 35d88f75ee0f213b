//! Completing checksums that the kernel leaves to the other end of a TAP.

use roce_packet::ROCE_UDP_PORT;
use smoltcp::wire::checksum;

use crate::offload::{Offload, UnknownKind};

/// Offset of the destination port in a UDP header.
const UDP_DESTINATION: usize = 2;

/// Reads the offload header of a frame and completes its checksum, except for RoCE. Returns the length of
/// each UDP payload except the last if several were joined.
pub(super) fn receive(offload: Offload, frame: &mut [u8]) -> Result<Option<u16>, UnknownKind> {
    let segment_len = offload.segment_len()?;
    if segment_len.is_none() && offload.needs_checksum() {
        let (start, offset) = offload.checksum_place();
        finish_checksum(frame, start.into(), offset);
    }
    Ok(segment_len)
}

/// Writes the inverted sum from `start` on, which includes that of the pseudo header, at `offset` behind it.
fn finish_checksum(frame: &mut [u8], start: usize, offset: u16) {
    let Some(body) = frame.get_mut(start..) else { return };
    let is_udp = offset == Offload::UDP_CHECKSUM;
    let port = body.get(UDP_DESTINATION..UDP_DESTINATION + 2);
    if is_udp && port == Some(&ROCE_UDP_PORT.to_be_bytes()) {
        // Not checked: RoCE has its own checksum (ICRC), and this one costs a pass over the payload.
        return;
    }
    let sum = match !checksum::data(body) {
        // In UDP, 0 stands for no checksum (RFC 768).
        0 if is_udp => 0xffff,
        sum => sum,
    };
    let place = usize::from(offset);
    if let Some(field) = body.get_mut(place..place + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(start: u16, offset: u16) -> Offload {
        let mut header = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..].copy_from_slice(&offset.to_ne_bytes());
        Offload(header)
    }

    #[test]
    fn checksums_are_finished() {
        // A TCP-like header of 20 bytes behind 4 other bytes, with the pseudo-header sum in its field.
        let pseudo = 0x1234_u16;
        let mut frame = vec![9; 4];
        frame.extend([0; 16]);
        frame.extend(pseudo.to_be_bytes());
        frame.extend([0; 2]);
        frame.extend(b"payload of odd length");
        assert_eq!(receive(header(4, 16), &mut frame), Ok(None));
        // The sum over all bytes and the pseudo header is all ones.
        assert_eq!(checksum::combine(&[pseudo, checksum::data(&frame[4..])]), 0xffff);

        // RoCE frames stay unchanged.
        let mut roce = vec![0x12, 0xb7, 0x12, 0xb7, 0, 12, 0xab, 0xcd, 1, 2, 3, 4];
        let before = roce.clone();
        assert_eq!(receive(header(0, Offload::UDP_CHECKSUM), &mut roce), Ok(None));
        assert_eq!(roce, before);
        roce[3] = 0xb8;
        assert_eq!(receive(header(0, Offload::UDP_CHECKSUM), &mut roce), Ok(None));
        assert_ne!(roce, before);
    }

    #[test]
    fn nonsense_from_outside_the_frame_is_harmless() {
        for (start, offset) in [(0_u16, 0_u16), (0, 3), (3, 0), (4, 0), (65_535, 65_535), (2, 65_535)] {
            assert_eq!(receive(header(start, offset), &mut [1, 2, 3, 4]), Ok(None), "{start} {offset}");
        }
    }
}
