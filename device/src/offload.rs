//! The offloads that a frame still needs: the header between this process and a packet socket or a TAP.

#![cfg_attr(not(feature = "whole"), allow(dead_code, unreachable_pub, reason = "`whole` publishes it"))]

use crate::framed::port::Split;

/// The offloads that a frame still needs: `struct virtio_net_hdr` (Virtio 1.2 section 5.1.6), native-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload(pub [u8; Self::LEN]);

/// The error for frames that were joined by a protocol other than UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownKind;

impl Offload {
    /// Length in bytes.
    pub const LEN: usize = 10;
    /// The header of a complete frame.
    pub const NONE: Self = Self([0; Self::LEN]);

    /// The checksum field holds the sum of the pseudo header only.
    const NEEDS_CHECKSUM: u8 = 1;
    /// One frame.
    const SINGLE: u8 = 0;
    /// Several segments of TCP.
    #[cfg(feature = "raw")]
    const SPLIT_TCP_V4: u8 = 1;
    #[cfg(feature = "raw")]
    const SPLIT_TCP_V6: u8 = 4;
    /// Several UDP datagrams. Supported since Linux 6.2.
    const SPLIT_UDP: u8 = 5;
    /// A bit that is added to the kind.
    const SPLIT_ECN: u8 = 0x80;
    /// Offset of the checksum in a UDP header.
    pub(crate) const UDP_CHECKSUM: u16 = 6;

    /// Returns the header of a frame to send.
    pub(crate) fn of(split: Option<&Split>) -> Self {
        let Some(split) = split else { return Self::NONE };
        let mut header = [0; Self::LEN];
        header[..2].copy_from_slice(&[Self::NEEDS_CHECKSUM, Self::SPLIT_UDP]);
        let words = [split.headers_len, split.segment_len, split.udp_offset, Self::UDP_CHECKSUM];
        for (place, word) in header[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        Self(header)
    }

    /// Returns the bytes of UDP payload in each joined frame except the last; `None` for a single frame.
    pub(crate) const fn segment_len(&self) -> Result<Option<u16>, UnknownKind> {
        match (self.0[1] & !Self::SPLIT_ECN, u16::from_ne_bytes([self.0[4], self.0[5]])) {
            (Self::SINGLE, _) => Ok(None),
            (Self::SPLIT_UDP, len @ 1..) => Ok(Some(len)),
            _ => Err(UnknownKind),
        }
    }

    /// Returns the bytes of TCP or UDP payload in each joined packet except the last; `None` for other kinds.
    #[cfg(feature = "raw")]
    pub(crate) fn joined_len(&self) -> Option<usize> {
        let len = u16::from_ne_bytes([self.0[4], self.0[5]]);
        let is_known =
            matches!(self.0[1] & !Self::SPLIT_ECN, Self::SPLIT_TCP_V4 | Self::SPLIT_TCP_V6 | Self::SPLIT_UDP);
        (is_known && len > 0).then_some(usize::from(len))
    }

    /// Returns whether the frame was joined from several packets.
    pub const fn is_joined(&self) -> bool {
        self.0[1] & !Self::SPLIT_ECN != Self::SINGLE
    }

    /// Returns whether the checksum field holds only the sum of the pseudo header.
    pub const fn needs_checksum(&self) -> bool {
        self.0[0] & Self::NEEDS_CHECKSUM != 0
    }

    /// Returns where the checksum begins, and the offset of its field behind that.
    pub(crate) const fn checksum_place(&self) -> (u16, u16) {
        let [_, _, _, _, _, _, c0, c1, o0, o1] = self.0;
        (u16::from_ne_bytes([c0, c1]), u16::from_ne_bytes([o0, o1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_not_split_has_an_empty_header() {
        assert_eq!(Offload::of(None), Offload([0; Offload::LEN]));
        assert_eq!(Offload::NONE.segment_len(), Ok(None));
    }

    #[test]
    fn what_is_sent_split_is_received_split() {
        let split = Split { segment_len: 1042, udp_offset: 34, headers_len: 42, is_ipv4: true };
        let offload = Offload::of(Some(&split));
        assert_eq!(offload.segment_len(), Ok(Some(1042)));
        let mut other = offload;
        other.0[1] = 4;
        assert_eq!(other.segment_len(), Err(UnknownKind), "TCP was not asked for");
        other.0[1] = Offload::SPLIT_UDP;
        other.0[4..6].copy_from_slice(&[0, 0]);
        assert_eq!(other.segment_len(), Err(UnknownKind), "segments of no length");
    }
}
