//! IPv4, restricted to the features of RoCE v2: no options, no fragments.

use core::net::Ipv4Addr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::fields::Show::{Decimal, Flag, Hex, Ipv4, Words};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::ip::{DSCP, ECN, TTL, dscp_note, ecn_note, fold, ones_complement_sum};
use crate::udp::protocol_note;
use crate::view::view;

/// The IPv4 header without options, as laid out in a packet.
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

view! {
    Ipv4View(self) of Ipv4Header in Layer::Ipv4;

    /// Returns the IP version; 4 in every valid packet.
    version -> u8 = self.version_and_length >> 4;

    /// Returns the length of the header with its options, in bytes. Values below 20 are invalid.
    header_len -> usize = (self.version_and_length & 0x0f) as usize * 4;

    /// Returns DSCP and ECN: the byte formerly called type of service.
    traffic_class -> u8 = self.traffic_class;

    /// Returns the length of header and payload, in bytes.
    total_length -> u16 = self.total_length.get();

    /// Returns the number that the fragments of one packet share. The ICRC covers it.
    identification -> u16 = self.identification.get();

    /// Returns the flag bit that RFC 791 reserves.
    reserved_flag -> bool = self.flags_and_offset.get() & 0x8000 != 0;

    /// Returns the DF flag.
    dont_fragment -> bool = self.flags_and_offset.get() & 0x4000 != 0;

    /// Returns the MF flag: the packet is a fragment, and not the last one.
    more_fragments -> bool = self.flags_and_offset.get() & 0x2000 != 0;

    /// Returns the offset of this fragment's payload, in bytes.
    fragment_offset -> usize = (self.flags_and_offset.get() & 0x1fff) as usize * 8;

    /// Returns the time to live, in hops.
    ttl -> u8 = self.ttl;

    /// Returns the protocol of the payload; 17 is UDP.
    protocol -> u8 = self.protocol;

    /// Returns the header checksum in the packet.
    checksum -> u16 = self.checksum.get();

    /// Returns the address of the sender.
    source -> Ipv4Addr = Ipv4Addr::from_octets(self.source);

    /// Returns the address of the receiver.
    destination -> Ipv4Addr = Ipv4Addr::from_octets(self.destination);
}

impl Ipv4View {
    /// Returns whether the checksum is correct. `options` are the bytes between these 20 bytes and the
    /// payload.
    #[must_use]
    pub fn checksum_is_valid(&self, options: &[u8]) -> bool {
        fold(ones_complement_sum(ones_complement_sum(0, self.as_bytes()), options)) == 0xffff
    }

    /// Returns the checksum that the header should have, whatever checksum it has.
    #[must_use]
    pub fn computed_checksum(&self, options: &[u8]) -> u16 {
        let without = Self { checksum: U16::ZERO, ..*self };
        !fold(ones_complement_sum(ones_complement_sum(0, without.as_bytes()), options))
    }
}

/// The IPv4 header of a RoCE packet: without options, not a fragment, with a correct checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// DSCP and ECN: the byte formerly called type of service.
    pub traffic_class: u8,
    /// Length of header and payload, in bytes; at least 20.
    pub total_length: u16,
    /// Identification, which the sender of a packet that is never fragmented may choose freely. The ICRC
    /// covers it.
    pub identification: u16,
    /// The DF flag; RoCE senders set it.
    pub dont_fragment: bool,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol of the payload; 17 is UDP.
    pub protocol: u8,
    /// Address of the sender.
    pub source: Ipv4Addr,
    /// Address of the receiver.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 20;

    /// Parses the header. Returns it and the remaining bytes, whose number may differ from the header's
    /// length field. The caller must check whether the packet is complete.
    ///
    /// Returns [`ParseErrorKind::Unsupported`] for a header with options and for a fragment, because RoCE
    /// sends neither.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = Ipv4View::from_prefix(bytes)?;
        Self::check(view)?;
        Ok((Self::of_checked(view), rest))
    }

    /// Checks the fields of a view.
    pub(crate) fn check(view: &Ipv4View) -> Result<(), ParseError> {
        Self::check_lengths(view)?;
        if view.more_fragments() || view.fragment_offset() != 0 {
            return fail(ParseErrorKind::Unsupported, 6, 0, view.flags_and_offset.get().into());
        }
        if view.header_len() > Self::LEN {
            return fail(ParseErrorKind::Unsupported, Self::LEN, Self::LEN, view.header_len());
        }
        Self::check_checksum(view, &[])
    }

    /// Checks version and lengths. Without them, nothing after the header can be found.
    pub(crate) const fn check_lengths(view: &Ipv4View) -> Result<(), ParseError> {
        let (header_len, total_length) = (view.header_len(), view.total_length() as usize);
        if view.version() != 4 {
            return fail(ParseErrorKind::BadVersion, 0, 4, view.version() as usize);
        }
        if header_len < Self::LEN {
            return fail(ParseErrorKind::BadLength, 0, Self::LEN, header_len);
        }
        if total_length < header_len {
            return fail(ParseErrorKind::BadLength, 2, header_len, total_length);
        }
        Ok(())
    }

    /// Checks the checksum of the header and its options.
    pub(crate) fn check_checksum(view: &Ipv4View, options: &[u8]) -> Result<(), ParseError> {
        if view.checksum_is_valid(options) {
            return Ok(());
        }
        let header = Ipv4View { checksum: U16::ZERO, ..*view };
        let computed = !fold(ones_complement_sum(ones_complement_sum(0, header.as_bytes()), options));
        fail(ParseErrorKind::BadChecksum, 10, computed.into(), view.checksum().into())
    }

    /// Returns the header of a view that passed [`Self::check`].
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

    /// Returns the checksum that [`Self::emit`] writes.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        !fold(ones_complement_sum(0, self.view().as_bytes()))
    }

    /// Returns the header with a checksum of 0.
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

const fn fail(kind: ParseErrorKind, offset: usize, need: usize, have: usize) -> Result<(), ParseError> {
    Err(ParseError { layer: Layer::Ipv4, kind, offset, need, have })
}

/// The fields of an [`Ipv4View`].
pub static IPV4: Header = Header {
    name: "IPv4",
    title: "Internet Protocol version 4",
    purpose: "Carries the packet from host to host; an address is the end of an IPv4-mapped GID.",
    rule: "RFC 791 section 3.1, A17.3",
    fields: &[
        Field::new("version", "ip.version", mask(0, 0xf0), Decimal).means("Version of IP; 4."),
        Field::new("IHL", "ip.hdr_len", mask(0, 0x0f), Words)
            .means("Length of this header in bytes; the wire counts words of 4. RoCE has no options, so 20."),
        Field::new("DSCP", "ip.dsfield.dscp", mask(1, 0xfc), Decimal).variant().note(dscp_note).means(DSCP),
        Field::new("ECN", "ip.dsfield.ecn", mask(1, 0x03), Decimal).variant().note(ecn_note).means(ECN),
        Field::new("total length", "ip.len", bytes(2, 2), Decimal)
            .means("Bytes from this header to the ICRC inclusive, without Ethernet padding."),
        Field::new("identification", "ip.id", bytes(4, 2), Hex)
            .means("Number that the fragments of a packet share; the ICRC covers it."),
        Field::new("reserved", "ip.flags.rb", mask(6, 0x80), Flag).means("Sent as zero."),
        Field::new("DF", "ip.flags.df", mask(6, 0x40), Flag)
            .means("Set if routers must not fragment the packet; RoCE sets it."),
        Field::new("MF", "ip.flags.mf", mask(6, 0x20), Flag)
            .means("Set if more fragments follow; clear in RoCE."),
        Field::new("fragment offset", "ip.frag_offset", bits(6, 3, 13), Decimal)
            .means("Position of a fragment in units of 8 bytes; 0 in RoCE."),
        Field::new("TTL", "ip.ttl", bytes(8, 1), Decimal).variant().means(TTL),
        Field::new("protocol", "ip.proto", bytes(9, 1), Decimal)
            .note(protocol_note)
            .means("Type of the next header."),
        Field::new("header checksum", "ip.checksum", bytes(10, 2), Hex)
            .variant()
            .means("Ones' complement sum of this header; it changes with the TTL."),
        Field::new("source", "ip.src", bytes(12, 4), Ipv4)
            .means("Address of the sender, the last four bytes of its GID."),
        Field::new("destination", "ip.dst", bytes(16, 4), Ipv4)
            .means("Address of the receiver, the last four bytes of its GID."),
    ],
};

/// The options of an IPv4 header.
pub static IPV4_OPTIONS: Header = Header {
    name: "options",
    title: "IPv4 options",
    purpose: "Extends the IPv4 header; RoCE packets have no options.",
    rule: "RFC 791 section 3.1",
    fields: &[],
};
