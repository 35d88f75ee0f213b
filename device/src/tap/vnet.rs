//! The header before each frame that describes offloads (`struct virtio_net_hdr`, Virtio 1.2 section 5.1.6), and
//! the checksums that the kernel leaves to us.

use roce_packet::ROCE_UDP_PORT;
use smoltcp::wire::checksum;

use super::ioctl::VNET_HEADER;
use crate::framed::port::Split;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum of the pseudo header only.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: several UDP datagrams.
const SPLIT_UDP: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`, a bit that comes on top.
const SPLIT_ECN: u8 = 0x80;
/// Where the checksum lies in a UDP header and where the destination port.
const UDP_CHECKSUM: u16 = 6;
const UDP_DESTINATION: usize = 2;

/// The header for a frame that we send. Numbers are in the order of the machine.
pub(super) fn header_for(split: Option<Split>) -> [u8; VNET_HEADER] {
    let mut header = [0; VNET_HEADER];
    if let Some(split) = split {
        header[0] = NEEDS_CHECKSUM;
        header[1] = SPLIT_UDP;
        header[2..4].copy_from_slice(&split.headers_len.to_ne_bytes());
        header[4..6].copy_from_slice(&split.segment_len.to_ne_bytes());
        header[6..8].copy_from_slice(&split.udp_offset.to_ne_bytes());
        header[8..].copy_from_slice(&UDP_CHECKSUM.to_ne_bytes());
    }
    header
}

/// What to do with a frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// One packet.
    One,
    /// Several UDP datagrams, each but the last with so many bytes.
    Several { segment_len: u16 },
    /// An offload that was not switched on.
    Unknown,
}

/// Reads the header of a frame and finishes the checksum of the frame if it is not for RoCE alone.
pub(super) fn receive(header: [u8; VNET_HEADER], frame: &mut [u8]) -> Received {
    let [flags, kind, _, _, s0, s1, c0, c1, o0, o1] = header;
    let segment_len = u16::from_ne_bytes([s0, s1]);
    match kind & !SPLIT_ECN {
        0 => {}
        SPLIT_UDP if segment_len > 0 => return Received::Several { segment_len },
        _ => return Received::Unknown,
    }
    if flags & NEEDS_CHECKSUM != 0 {
        let (start, offset) = (u16::from_ne_bytes([c0, c1]), u16::from_ne_bytes([o0, o1]));
        finish_checksum(frame, start.into(), offset);
    }
    Received::One
}

/// The sum from `start` on, which takes in that of the pseudo header, goes inverted to `offset` behind it.
fn finish_checksum(frame: &mut [u8], start: usize, offset: u16) {
    let Some(body) = frame.get_mut(start..) else { return };
    let is_udp = offset == UDP_CHECKSUM;
    let port = body.get(UDP_DESTINATION..UDP_DESTINATION + 2);
    if is_udp && port == Some(&ROCE_UDP_PORT.to_be_bytes()) {
        // Nobody looks: RoCE has a checksum of its own (ICRC), and this one costs a pass over the payload.
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

    #[test]
    fn a_frame_that_is_not_split_has_an_empty_header() {
        assert_eq!(header_for(None), [0; VNET_HEADER]);
        assert_eq!(receive(header_for(None), &mut [1, 2, 3]), Received::One);
    }

    #[test]
    fn what_is_sent_split_is_received_split() {
        let split = Split { segment_len: 1042, udp_offset: 34, headers_len: 42, is_ipv4: true };
        let header = header_for(Some(split));
        assert_eq!(receive(header, &mut []), Received::Several { segment_len: 1042 });
        let mut other = header;
        other[1] = 4;
        assert_eq!(receive(other, &mut []), Received::Unknown, "TCP was not asked for");
        other[1] = SPLIT_UDP;
        other[4..6].copy_from_slice(&[0, 0]);
        assert_eq!(receive(other, &mut []), Received::Unknown, "segments of no length");
    }

    #[test]
    fn checksums_are_finished() {
        // A TCP-like header of 20 bytes behind 4 others, with the sum of a pseudo header in its field.
        let pseudo = 0x1234_u16;
        let mut frame = vec![9; 4];
        frame.extend([0; 16]);
        frame.extend(pseudo.to_be_bytes());
        frame.extend([0; 2]);
        frame.extend(b"payload of odd length");
        let header = |start: u16, offset: u16| {
            let mut header = [0; VNET_HEADER];
            header[0] = NEEDS_CHECKSUM;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..].copy_from_slice(&offset.to_ne_bytes());
            header
        };
        assert_eq!(receive(header(4, 16), &mut frame), Received::One);
        // The sum over all bytes and the pseudo header is all ones.
        assert_eq!(checksum::combine(&[pseudo, checksum::data(&frame[4..])]), 0xffff);

        // Of RoCE, nothing is touched.
        let mut roce = vec![0x12, 0xb7, 0x12, 0xb7, 0, 12, 0xab, 0xcd, 1, 2, 3, 4];
        let before = roce.clone();
        assert_eq!(receive(header(0, UDP_CHECKSUM), &mut roce), Received::One);
        assert_eq!(roce, before);
        roce[3] = 0xb8;
        receive(header(0, UDP_CHECKSUM), &mut roce);
        assert_ne!(roce, before);
    }

    #[test]
    fn nonsense_from_outside_the_frame_is_harmless() {
        for (start, offset) in [(0_u16, 0_u16), (0, 3), (3, 0), (4, 0), (65_535, 65_535), (2, 65_535)] {
            let mut header = [0; VNET_HEADER];
            header[0] = NEEDS_CHECKSUM;
            header[6..8].copy_from_slice(&start.to_ne_bytes());
            header[8..].copy_from_slice(&offset.to_ne_bytes());
            assert_eq!(receive(header, &mut [1, 2, 3, 4]), Received::One, "{start} {offset}");
        }
    }
}
