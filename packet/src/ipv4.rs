//! IPv4, as far as RoCE v2 uses it: no options, no fragments.

use core::net::Ipv4Addr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};

/// The IPv4 header without options, as it lies in a packet.
///
/// ```text
///  0       1       2               4               6
/// +---+---+-------+---------------+---------------+-----------------+
/// | 4 |IHL| ToS   | total length  | identification|0|D|M| offset    |
/// +---+---+-------+---------------+---------------+-----------------+
/// | TTL   | proto | checksum      | source        | destination     |
/// +-------+-------+---------------+---------------+-----------------+
///  8       9       10              12              16               20
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4View {
    version_and_length: u8,
    traffic_class: u8,
    total_length: U16,
    identification: U16,
    flags_and_offset: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

const _: () = assert!(size_of::<Ipv4View>() == Ipv4Header::LEN);

impl Ipv4View {
    /// The view of the first [`Ipv4Header::LEN`] bytes, and what is left: options, if there are any, first.
    pub fn from_prefix(bytes: &[u8]) -> Result<(&Self, &[u8]), ParseError> {
        Self::ref_from_prefix(bytes)
            .map_err(|_| ParseError::truncated(Layer::Ipv4, 0, Ipv4Header::LEN, bytes.len()))
    }

    /// IP version; 4 in every packet that is what it says.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version_and_length >> 4
    }

    /// Length of the header with its options, in bytes. Less than 20 is nonsense.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        (self.version_and_length & 0x0f) as usize * 4
    }

    /// DSCP and ECN: the byte once called type of service.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        self.traffic_class
    }

    /// Length of header and payload, in bytes.
    #[must_use]
    pub const fn total_length(&self) -> u16 {
        self.total_length.get()
    }

    /// The number that the fragments of one packet share; the ICRC covers it.
    #[must_use]
    pub const fn identification(&self) -> u16 {
        self.identification.get()
    }

    /// The flag bit that RFC 791 reserves.
    #[must_use]
    pub const fn reserved_flag(&self) -> bool {
        self.flags_and_offset.get() & 0x8000 != 0
    }

    /// The DF flag.
    #[must_use]
    pub const fn dont_fragment(&self) -> bool {
        self.flags_and_offset.get() & 0x4000 != 0
    }

    /// The MF flag: this is a fragment and not the last one.
    #[must_use]
    pub const fn more_fragments(&self) -> bool {
        self.flags_and_offset.get() & 0x2000 != 0
    }

    /// Where this fragment's payload belongs, in bytes.
    #[must_use]
    pub const fn fragment_offset(&self) -> usize {
        (self.flags_and_offset.get() & 0x1fff) as usize * 8
    }

    /// Time to live, in hops.
    #[must_use]
    pub const fn ttl(&self) -> u8 {
        self.ttl
    }

    /// What the packet carries; 17 is UDP.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The header checksum as found.
    #[must_use]
    pub const fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Who sent the packet.
    #[must_use]
    pub const fn source(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.source;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Whom it is for.
    #[must_use]
    pub const fn destination(&self) -> Ipv4Addr {
        let [a, b, c, d] = self.destination;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Whether the checksum fits the header. `options` is what lies between these 20 bytes and the payload.
    #[must_use]
    pub fn checksum_is_valid(&self, options: &[u8]) -> bool {
        fold(ones_complement_sum(ones_complement_sum(0, self.as_bytes()), options)) == 0xffff
    }
}

/// An IPv4 header of a RoCE packet: no options, not a fragment, checksum right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// DSCP and ECN: the byte once called type of service.
    pub traffic_class: u8,
    /// Length of header and payload, in bytes; at least 20.
    pub total_length: u16,
    /// Free choice of the sender for a packet that is never fragmented; the ICRC covers it.
    pub identification: u16,
    /// The DF flag; RoCE senders set it.
    pub dont_fragment: bool,
    /// Time to live, in hops.
    pub ttl: u8,
    /// What the packet carries; 17 is UDP.
    pub protocol: u8,
    /// Who sent the packet.
    pub source: Ipv4Addr,
    /// Whom it is for.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// Reads the header and returns what follows it, which may be more or less than the header's length
    /// field promises: the caller knows whether it holds a whole packet.
    ///
    /// A header with options and a fragment are [`ParseErrorKind::Unsupported`]: RoCE never sends either.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = Ipv4View::from_prefix(bytes)?;
        Self::check(view)?;
        Ok((Self::of_checked(view), rest))
    }

    /// Judges the fields of a view.
    pub(crate) fn check(view: &Ipv4View) -> Result<(), ParseError> {
        let fail =
            |kind, offset, need, have| Err(ParseError { layer: Layer::Ipv4, kind, offset, need, have });
        let total_length = usize::from(view.total_length());
        if view.version() != 4 {
            return fail(ParseErrorKind::BadVersion, 0, 4, view.version().into());
        }
        if view.header_len() < Self::LEN {
            return fail(ParseErrorKind::BadLength, 0, Self::LEN, view.header_len());
        }
        if total_length < view.header_len() {
            return fail(ParseErrorKind::BadLength, 2, view.header_len(), total_length);
        }
        if view.more_fragments() || view.fragment_offset() != 0 {
            return fail(ParseErrorKind::Unsupported, 6, 0, view.flags_and_offset.get().into());
        }
        if view.header_len() > Self::LEN {
            return fail(ParseErrorKind::Unsupported, Self::LEN, Self::LEN, view.header_len());
        }
        if !view.checksum_is_valid(&[]) {
            let computed = Self::of_checked(view).checksum();
            return fail(ParseErrorKind::BadChecksum, 10, computed.into(), view.checksum().into());
        }
        Ok(())
    }

    /// The header of a view that [`Self::check`] passed.
    pub(crate) const fn of_checked(view: &Ipv4View) -> Self {
        Self {
            traffic_class: view.traffic_class(),
            total_length: view.total_length(),
            identification: view.identification(),
            dont_fragment: view.dont_fragment(),
            ttl: view.ttl(),
            protocol: view.protocol(),
            source: view.source(),
            destination: view.destination(),
        }
    }

    /// Writes the header with its checksum.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let mut view = self.view();
        view.checksum = U16::new(!fold(ones_complement_sum(0, view.as_bytes())));
        *out = zerocopy::transmute!(view);
    }

    /// The checksum that [`Self::emit`] writes.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        !fold(ones_complement_sum(0, self.view().as_bytes()))
    }

    /// The header with a checksum of 0.
    fn view(&self) -> Ipv4View {
        Ipv4View {
            version_and_length: 0x45,
            traffic_class: self.traffic_class,
            total_length: U16::new(self.total_length),
            identification: U16::new(self.identification),
            flags_and_offset: U16::new(if self.dont_fragment { 0x4000 } else { 0 }),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: U16::ZERO,
            source: self.source.octets(),
            destination: self.destination.octets(),
        }
    }
}

/// Adds `bytes` to a sum of 16-bit words (RFC 1071); a last odd byte counts as the upper half of a word.
///
/// The sum of the longest packet, 32 Ki words, leaves the upper bit of the accumulator free.
pub(crate) fn ones_complement_sum(sum: u32, bytes: &[u8]) -> u32 {
    let (words, odd) = bytes.as_chunks::<2>();
    let sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u16::from_be_bytes(*word).into()));
    odd.iter().fold(sum, |sum, byte| sum.wrapping_add(u32::from(*byte) << 8))
}

/// Folds the carries of a sum back into 16 bits.
pub(crate) const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}
