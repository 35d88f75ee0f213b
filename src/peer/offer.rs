//! What the ends tell each other in the private data of connection management.

/// Longest message of the specification in bytes (9.3.3).
pub(super) const MOST_BYTES: usize = roce_transport::MAX_MESSAGE as usize;

use crate::verbs::RemoteMemory;

/// The first bytes, with the version of the format. Other programs send other private data.
const MAGIC: &[u8; 5] = b"roce\x01";
const LEN: usize = MAGIC.len() + RemoteMemory::LEN + 4;

/// The memory and the messages that an end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Has no bytes if the end offers none.
    pub(super) memory: RemoteMemory,
    /// Longest message that the end takes, in bytes.
    pub(super) message: usize,
}

impl Offer {
    pub(super) fn to_bytes(self) -> [u8; LEN] {
        let message = u32::try_from(self.message).unwrap_or(u32::MAX);
        let mut bytes = [0; LEN];
        bytes[..5].copy_from_slice(MAGIC);
        bytes[5..25].copy_from_slice(&self.memory.to_bytes());
        bytes[25..].copy_from_slice(&message.to_be_bytes());
        bytes
    }

    /// Decodes the private data of any program, which may have padding at the end.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let parts = bytes.strip_prefix(MAGIC).and_then(|rest| {
            let (memory, rest) = rest.split_first_chunk()?;
            Some((RemoteMemory::from_bytes(memory), u32::from_be_bytes(*rest.first_chunk()?)))
        });
        match parts {
            Some((memory, message)) => Self { memory, message: (message as usize).min(MOST_BYTES) },
            None => Self { memory: RemoteMemory { addr: 0, len: 0, rkey: 0 }, message: MOST_BYTES },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_survive_padding_and_other_programs_offer_nothing() {
        let memory = RemoteMemory { addr: 0x7000, len: 4096, rkey: 0x1234_5678 };
        let offer = Offer { memory, message: 1024 };
        let mut bytes = offer.to_bytes().to_vec();
        assert_eq!(Offer::from_bytes(&bytes), offer);
        bytes.resize(196, 0);
        assert_eq!(Offer::from_bytes(&bytes), offer);
        for other in [&b""[..], b"hello", b"roce\x02", &bytes[..LEN - 1], &[0; 56]] {
            let offer = Offer::from_bytes(other);
            assert_eq!((offer.memory.len, offer.message), (0, MOST_BYTES), "{other:?}");
        }
    }
}
