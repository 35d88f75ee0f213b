//! The mistakes that are recognized, in words, and what a search found.

use std::fmt;
use std::net::IpAddr;

use roce_packet::outer::Cut;

/// Declares the mistakes: variant, name, explanation and fix.
macro_rules! mistakes {
    ($($variant:ident, $name:literal, $explanation:literal, $fix:literal;)*) => {
        /// A mistake that leads to a wrong ICRC.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Mistake {
            $(#[doc = $explanation] $variant,)*
        }

        impl Mistake {
            /// All mistakes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the mistake with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|mistake| mistake.name() == name)
            }

            /// Returns the short name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns what is wrong, as a sentence.
            #[must_use]
            pub const fn explanation(self) -> &'static str {
                match self { $(Self::$variant => $explanation,)* }
            }

            /// Returns the remedy, as a sentence without a full stop.
            #[must_use]
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$variant => $fix,)* }
            }
        }
    };
}

mistakes! {
    TrafficClassNotMasked, "traffic class not masked",
        "The ICRC covers DSCP and ECN (IPv4 TOS, IPv6 traffic class), which routers change.",
        "set these eight bits to ones before the CRC is computed";
    TtlNotMasked, "TTL not masked",
        "The ICRC covers the IPv4 TTL, which every router decrements.",
        "set the TTL to ones before the CRC is computed";
    HeaderChecksumNotMasked, "IPv4 header checksum not masked",
        "The ICRC covers the IPv4 header checksum, which changes with the TTL.",
        "set both bytes of the checksum to ones before the CRC is computed";
    UdpChecksumNotMasked, "UDP checksum not masked",
        "The ICRC covers the UDP checksum.",
        "set both bytes of the UDP checksum to ones before the CRC is computed";
    FlowLabelNotMasked, "flow label not masked",
        "The ICRC covers the IPv6 flow label, which may change on the path.",
        "set the 20 bits of the flow label to ones before the CRC is computed";
    HopLimitNotMasked, "hop limit not masked",
        "The ICRC covers the hop limit, which every router decrements.",
        "set the hop limit to ones before the CRC is computed";
    CongestionByteNotMasked, "FECN and BECN byte not masked",
        "The ICRC covers the BTH byte after the P_Key (FECN, BECN, reserved), which switches may change.",
        "set the fifth byte of the BTH to ones before the CRC is computed";
    NothingMasked, "no field masked",
        "The ICRC covers all header fields as they are.",
        "set every field that routers change to ones before the CRC is computed";
    MaskedWithZeros, "masked with zeros",
        "The fields that routers change count as zeros, not as ones.",
        "set these fields to ones before the CRC is computed";
    LeadingOnesMissing, "leading ones missing",
        "The eight bytes of ones before the IP header are missing.",
        "begin the CRC with eight 0xff bytes, which represent the local route header";
    LeadingZeros, "leading zeros",
        "The CRC begins with eight bytes of zeros, not of ones.",
        "begin the CRC with eight 0xff bytes";
    InitialZero, "wrong initial value",
        "The register of the CRC starts with zero.",
        "start the CRC with 0xffffffff";
    NotInverted, "not inverted",
        "The CRC is not inverted at its end.",
        "invert all bits of the register at the end (XOR 0xffffffff)";
    ByteOrder, "byte order",
        "The bytes of the ICRC are in reverse order.",
        "write the lowest byte of the CRC first";
    BitOrder, "bit order",
        "The bits of the ICRC are in reverse order.",
        "store the register of the reflected CRC without reversing its bits";
    NotReflected, "not reflected",
        "The CRC takes the highest bit of each byte first.",
        "use the reflected CRC, as the Ethernet FCS does: lowest bit of each byte first";
    Crc32c, "CRC-32C",
        "The polynomial is that of CRC-32C (iSCSI), 0x1edc6f41.",
        "use the polynomial of Ethernet, 0x04c11db7";
    PaddingExcluded, "padding not covered",
        "The CRC ends before the padding.",
        "include the 0 to 3 bytes of padding";
    PaddingZero, "padding covered as zeros",
        "The padding counts as zeros, but the packet has other bytes there.",
        "compute the CRC over the bytes of padding that are sent";
    PadCountNotSet, "PadCnt not set yet",
        "PadCnt in the BTH was zero when the ICRC was computed.",
        "set PadCnt before the ICRC is computed";
    IpLengthWithoutIcrc, "IP length without the ICRC",
        "The IP length (total length, payload length) did not include the four bytes of the ICRC when it was \
         computed.",
        "add 4 to the IP length before the ICRC is computed";
    UdpLengthWithoutIcrc, "UDP length without the ICRC",
        "The UDP length did not include the four bytes of the ICRC when it was computed.",
        "add 4 to the UDP length before the ICRC is computed";
    IpLengthNotSet, "IP length not set yet",
        "The IP length was zero when the ICRC was computed.",
        "set the IP length before the ICRC is computed";
    UdpLengthNotSet, "UDP length not set yet",
        "The UDP length was zero when the ICRC was computed.",
        "set the UDP length before the ICRC is computed";
    IpLengthChanged, "another IP length",
        "The IP length had another value when the ICRC was computed.",
        "set the IP length to its final value before the ICRC is computed";
    UdpLengthChanged, "another UDP length",
        "The UDP length had another value when the ICRC was computed.",
        "set the UDP length to its final value before the ICRC is computed";
    VlanIncluded, "VLAN tag covered",
        "The CRC covers the VLAN tag.",
        "leave out the tag: after the eight bytes of ones, the CRC continues with the IP header or GRH";
    EthernetIncluded, "Ethernet header covered",
        "The CRC covers the Ethernet header.",
        "leave out the Ethernet header: after the eight bytes of ones, the CRC continues with the IP header \
         or GRH";
    EthernetPaddingIncluded, "Ethernet padding covered",
        "The CRC covers the bytes that pad a short Ethernet frame.",
        "end the CRC at the last byte of the RoCE padding, and use the length of the IP header";
    IdentificationZero, "Identification zero when computed",
        "The IPv4 Identification was zero when the ICRC was computed; the kernel or a NIC wrote another value \
         later.",
        "write the final Identification before the ICRC is computed, or keep it zero";
    IdentificationSwapped, "Identification in the wrong byte order",
        "The CRC covers the two bytes of the IPv4 Identification in reverse order.",
        "use network byte order when the ICRC is computed";
    IdentificationChanged, "another Identification",
        "The IPv4 Identification had another value when the ICRC was computed.",
        "write the final Identification before the ICRC is computed, and look for a device that rewrites it";
    FragmentFieldChanged, "another fragment field",
        "The IPv4 flags (DF) or the fragment offset had another value when the ICRC was computed.",
        "set DF before the ICRC is computed, and look for a device that clears or sets it";
    AddressesChanged, "addresses translated",
        "The ICRC was computed for other IP addresses: a device on the path translates them (NAT), or the \
         sender chose the wrong source address.",
        "exempt RoCE from NAT, and compute the ICRC for the addresses that are sent";
    AddressesSwapped, "addresses swapped",
        "The CRC covers the destination address before the source address.",
        "keep the order of the IP header: source, then destination";
    SourcePortChanged, "another UDP source port",
        "The UDP source port had another value when the ICRC was computed.",
        "exempt RoCE from NAT, and compute the ICRC for the source port that is sent";
    DestinationPortChanged, "another UDP destination port",
        "The UDP destination port had another value when the ICRC was computed.",
        "compute the ICRC for the destination port that is sent, usually 4791";
    RoceV1Form, "RoCE v1 form",
        "The ICRC is that of RoCE v1, over a GRH, but the packet is RoCE v2.",
        "compute the CRC over the IP and UDP headers";
    RoceV2Form, "RoCE v2 form",
        "The ICRC is that of RoCE v2, over IP and UDP headers, but the packet is RoCE v1.",
        "compute the CRC over the GRH";
    IpHeaderLeftOut, "IP header not covered",
        "The CRC does not cover the IP header.",
        "begin with eight bytes of ones, then the IP header with masked fields";
    UdpHeaderLeftOut, "UDP header not covered",
        "The CRC does not cover the UDP header.",
        "include the UDP header, with its checksum set to ones";
    BthOnly, "only BTH and payload covered",
        "The CRC covers only the bytes from the BTH on, without the headers before it.",
        "begin with eight bytes of ones, then the IP and UDP headers (or the GRH) with masked fields";
    ZeroIcrcIncluded, "zeroed ICRC covered",
        "The CRC covers the field of the ICRC itself, as zeros.",
        "end the CRC before the field of the ICRC";
    NotComputed, "not computed",
        "The field contains a constant: nobody computed the ICRC.",
        "compute the ICRC in software, or check that the NIC does (capture behind it, not on the sender)";
    PKeyChanged, "another P_Key",
        "The P_Key of the BTH had another value when the ICRC was computed.",
        "compute the ICRC after the last change of the BTH";
    QueuePairChanged, "another destination queue pair",
        "The destination queue pair of the BTH had another value when the ICRC was computed.",
        "compute the ICRC after the last change of the BTH";
    PsnChanged, "another PSN",
        "The PSN of the BTH had another value when the ICRC was computed.",
        "compute the ICRC after the last change of the BTH, also for packets that are sent again";
    BitFlipped, "one bit damaged",
        "One bit changed after the ICRC was computed.",
        "look for damage on the path and in memory: cables, optics, switches (`ethtool -S`), ECC errors";
    ByteDamaged, "one byte damaged",
        "One byte changed after the ICRC was computed.",
        "look for damage on the path and in memory, and for a device that rewrites this byte";
}

/// A value behind a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detail {
    /// A field had another value when the ICRC was computed.
    Field {
        /// Name of the field.
        name: &'static str,
        /// The value for which the ICRC is correct.
        computed_with: u32,
        /// The value in the packet.
        in_packet: u32,
    },
    /// Addresses for which the ICRC is correct.
    Addresses {
        /// The source address.
        source: IpAddr,
        /// The destination address.
        destination: IpAddr,
    },
    /// A damaged byte.
    Damage {
        /// Offset from the start of the packet, in bytes.
        offset: usize,
        /// The damaged bits of the byte.
        bits: u8,
        /// The header or field that contains the byte.
        place: &'static str,
    },
    /// The constant in the field of the ICRC, as a number.
    Constant(u32),
}

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { name, computed_with, in_packet } => {
                write!(
                    f,
                    "the {name} was 0x{computed_with:x} ({computed_with}) when the ICRC was computed, "
                )?;
                write!(f, "and is 0x{in_packet:x} ({in_packet}) in the packet")
            }
            Self::Addresses { source, destination } => {
                write!(f, "the ICRC is that of a packet from {source} to {destination}")
            }
            Self::Damage { offset, bits, place } => {
                write!(f, "byte {offset} of the packet ({place}), bits 0x{bits:02x}")
            }
            Self::Constant(value) => write!(f, "the number is 0x{value:08x}"),
        }
    }
}

/// The certainty of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// One of a few thousand fixed computations gives exactly the ICRC in the packet. A random value agrees
    /// with one of them less than once in a million packets.
    Definite,
    /// The search tried this number of values. A random ICRC agrees with one of them by accident with a
    /// chance of this number in 2^32. Several packets with the same mistake confirm it.
    Probable {
        /// The number of values.
        tried: u32,
    },
}

/// Mistakes that together lead to the ICRC in a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The mistakes, at least one.
    pub mistakes: Vec<Mistake>,
    /// A value behind the first of them.
    pub detail: Option<Detail>,
    /// The certainty.
    pub certainty: Certainty,
}

impl Finding {
    /// Returns the names of the mistakes.
    #[must_use]
    pub fn name(&self) -> String {
        names(&self.mistakes)
    }

    /// Returns whether the finding is definite.
    #[must_use]
    pub fn is_definite(&self) -> bool {
        self.certainty == Certainty::Definite
    }

    /// Returns the explanations of the mistakes with the value, as sentences.
    #[must_use]
    pub fn explanation(&self) -> String {
        let mut text = String::new();
        if let Certainty::Probable { tried } = self.certainty {
            let packets = (1_u64 << 32) / u64::from(tried.max(1));
            text = format!("Probably, as 1 of {packets} random values agrees by accident: ");
        }
        text += &self.mistakes.iter().map(|mistake| mistake.explanation()).collect::<Vec<_>>().join(" ");
        if let Some(detail) = self.detail {
            text += &format!(" In numbers: {detail}.");
        }
        text
    }

    /// Returns the remedies of the mistakes, as a sentence without a full stop.
    #[must_use]
    pub fn fix(&self) -> String {
        self.mistakes.iter().map(|mistake| mistake.fix()).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the names of mistakes, joined to a phrase.
pub(super) fn names(mistakes: &[Mistake]) -> String {
    let names: Vec<_> = mistakes.iter().map(|mistake| mistake.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, first)) => format!("{} and {last}", first.join(", ")),
        None => String::new(),
    }
}

/// The result of examining the ICRC of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ICRC is correct.
    Correct,
    /// The ICRC is wrong.
    Wrong(Wrong),
    /// The ICRC cannot be checked.
    Unchecked(Unchecked),
}

/// A wrong ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The ICRC in the packet.
    pub found: u32,
    /// The correct ICRC.
    pub computed: u32,
    /// The explanations, most likely first. Empty if no known mistake leads to `found`.
    pub findings: Vec<Finding>,
}

/// Reason why an ICRC cannot be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unchecked {
    /// The packet is not RoCE, or its headers before the BTH are missing.
    NotRoce,
    /// The end of the packet is missing.
    Cut(Cut),
    /// The headers contradict each other, so the covered bytes are unknown.
    Malformed,
    /// The datagram is shorter than a BTH and an ICRC.
    TooShort,
}

impl Unchecked {
    /// Returns the reason in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotRoce => "not RoCE",
            Self::Cut(cut) => cut.reason(),
            Self::Malformed => "the headers contradict each other",
            Self::TooShort => "too short",
        }
    }
}

/// What the caller knows besides the packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints<'a> {
    /// Pairs of source and destination address for which the ICRC may have been computed, for example those
    /// of the other side of a NAT.
    pub addresses: &'a [(IpAddr, IpAddr)],
}

/// The findings about one packet, collected while computations are tried.
#[derive(Debug)]
pub(super) struct Trials {
    found: u32,
    pub(super) findings: Vec<Finding>,
}

impl Trials {
    pub(super) const fn new(found: u32) -> Self {
        Self { found, findings: Vec::new() }
    }

    /// Records the mistakes if they lead to the ICRC in the packet. A longer list of mistakes with the same
    /// result is no better explanation than a part of it.
    pub(super) fn offer(&mut self, value: u32, mistakes: &[Mistake], detail: Option<Detail>) {
        if value == self.found {
            self.add(mistakes, detail, Certainty::Definite);
        }
    }

    /// Records mistakes that lead to the ICRC in the packet.
    pub(super) fn add(&mut self, mistakes: &[Mistake], detail: Option<Detail>, certainty: Certainty) {
        let is_part = |one: &Finding| one.mistakes.iter().all(|mistake| mistakes.contains(mistake));
        if !self.findings.iter().any(is_part) {
            self.findings.push(Finding { mistakes: mistakes.to_vec(), detail, certainty });
        }
    }
}
