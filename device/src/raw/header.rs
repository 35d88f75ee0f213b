//! What stands in front of a frame between this process and a packet socket (`struct virtio_net_hdr`): how the
//! kernel is to split it, or how several were joined.

use crate::framed::port::Split;

/// Bytes of the header.
pub(super) const LEN: usize = 10;

/// Whether the checksum is still to be computed.
const NEEDS_CHECKSUM: u8 = 1;
/// Not several frames.
const SINGLE: u8 = 0;
/// Several UDP datagrams. Kernels from 6.2 on know it.
const SPLIT_UDP: u8 = 5;
/// Where in a UDP header the checksum stands.
const CHECKSUM_OFFSET: u16 = 6;

/// The header of a frame that is sent.
pub(super) fn emit(split: Option<&Split>, out: &mut [u8; LEN]) {
    *out = [0; LEN];
    let Some(split) = split else { return };
    out[0] = NEEDS_CHECKSUM;
    out[1] = SPLIT_UDP;
    let words = [split.headers_len, split.segment_len, split.udp_offset, CHECKSUM_OFFSET];
    for (place, word) in out[2..].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
}

/// How many bytes of UDP payload each of the joined frames had, if it was several.
pub(super) const fn parse(header: &[u8; LEN]) -> Result<Option<u16>, UnknownKind> {
    match header[1] {
        SINGLE => Ok(None),
        SPLIT_UDP => Ok(Some(u16::from_ne_bytes([header[4], header[5]]))),
        _ => Err(UnknownKind),
    }
}

/// Frames were joined in a way that has nothing to do with datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownKind;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_says_what_is_received() {
        let mut bytes = [0xff; LEN];
        emit(None, &mut bytes);
        assert_eq!((bytes, parse(&bytes)), ([0; LEN], Ok(None)));
        let split = Split { segment_len: 4136, udp_offset: 34, headers_len: 42, is_ipv4: true };
        emit(Some(&split), &mut bytes);
        assert_eq!(parse(&bytes), Ok(Some(4136)));
        bytes[1] = 1;
        assert_eq!(parse(&bytes), Err(UnknownKind));
    }
}
