//! The acknowledge header: acknowledgements, refusals and flow control (IBTA 9.3.5, 9.7.5).

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError};
use crate::fields::Show::{Decimal, Flag, Hex};
use crate::fields::{Field, Header, bytes, mask};
use crate::number::Msn;
use crate::view::view;

/// The acknowledge extended transport header as laid out in a packet.
///
/// ```text
///  0          1     4
/// +----------+-----+
/// | syndrome | MSN |
/// +----------+-----+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AethView {
    syndrome: u8,
    msn: [u8; 3],
}

view! {
    AethView(self) of Aeth in Layer::Aeth;

    /// Returns the syndrome byte, whatever it is.
    syndrome -> u8 = self.syndrome;

    /// Returns the number of messages that the responder has completed.
    msn -> Msn = Msn::from_be_bytes(self.msn);
}

/// The acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// Acknowledgement or refusal, with the reason.
    pub syndrome: Syndrome,
    /// Number of request messages that the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Parses the header. Returns it and the remaining bytes. Accepts every syndrome.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (view, rest) = AethView::from_prefix(bytes)?;
        Ok((Self { syndrome: Syndrome::from_byte(view.syndrome()), msn: view.msn() }, rest))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out =
            zerocopy::transmute!(AethView { syndrome: self.syndrome.to_byte(), msn: self.msn.to_be_bytes() });
    }
}

/// The first byte of the acknowledge header: the kind of acknowledgement.
///
/// Bits 7 to 5 select the variant. Bits 4 to 0 are its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// 000: acknowledged.
    Ack {
        /// Credit code, 0 to 31; see [`Syndrome::credits`]. Only the low five bits are written.
        credit_code: u8,
    },
    /// 001: the receiver was not ready; send again after the given time.
    RnrNak {
        /// Shortest time to wait.
        timer: RnrTimer,
    },
    /// 011: refused.
    Nak(NakCode),
    /// 010 and 1xx: reserved. Contains the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// An acknowledgement without flow control, the form that responders should send.
    pub const ACK_UNLIMITED: Self = Self::Ack { credit_code: 0x1f };

    /// Reads the byte.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 5 {
            0b000 => Self::Ack { credit_code: byte },
            0b001 => Self::RnrNak { timer: RnrTimer(byte & 0x1f) },
            0b011 => Self::Nak(NakCode::from_code(byte & 0x1f)),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the byte.
    #[inline]
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credit_code } => credit_code & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer.0,
            Self::Nak(code) => 0x60 | code.code(),
            Self::Reserved(byte) => byte,
        }
    }

    /// Returns the number of further messages that a responder with this credit code accepts, or `None` for
    /// no limit. Uses only the low five bits of `credit_code`.
    ///
    /// Intact hardware sometimes advertises 0, so a requester must not stop a queue pair because of it.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "the code is compared with the length of the table")]
    pub const fn credits(credit_code: u8) -> Option<u32> {
        let index = (credit_code & 0x1f) as usize;
        if index < CREDITS.len() { Some(CREDITS[index]) } else { None }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ack { credit_code } => match Self::credits(credit_code) {
                Some(1) => f.write_str("ACK 1 credit"),
                Some(credits) => write!(f, "ACK {credits} credits"),
                None => f.write_str("ACK"),
            },
            Self::RnrNak { timer } => write!(f, "RNR NAK wait {timer}"),
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "reserved syndrome 0x{byte:02x}"),
        }
    }
}

/// The time in an RNR NAK, as a five-bit code (IBTA 9.7.5.2.8).
///
/// The codes are not in the order of the times: code 0 is the longest time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// Returns the timer with this code, 0 to 31.
    #[inline]
    #[must_use]
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// Returns the code, 0 to 31.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the shortest time to wait before the request is sent again, 10 us to 655.36 ms.
    #[must_use]
    #[allow(clippy::indexing_slicing, reason = "the mask keeps the index below 32")]
    pub const fn delay_ns(self) -> u64 {
        RNR_TENS_OF_MICROSECONDS[(self.0 & 0x1f) as usize] as u64 * 10_000
    }
}

impl fmt::Display for RnrTimer {
    /// Writes the time in milliseconds: `655.36 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.delay_ns() / 10_000;
        write!(f, "{}.{:02} ms", hundredths / 100, hundredths % 100)
    }
}

/// Reason for a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// 0: a packet is missing; send again from this one.
    PsnSequence,
    /// 1: the request breaks a rule or is not enabled.
    InvalidRequest,
    /// 2: the memory key does not allow the access, because of its rights or bounds.
    RemoteAccess,
    /// 3: the responder failed.
    RemoteOperational,
    /// 4: invalid reliable datagram request.
    InvalidRdRequest,
    /// 5 to 31: reserved. Only the low five bits are written.
    Reserved(u8),
}

impl NakCode {
    /// Reads the low five bits.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            reserved => Self::Reserved(reserved),
        }
    }

    /// Returns the code, 0 to 31.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & 0x1f,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
            Self::Reserved(code) => return write!(f, "reserved code {code}"),
        })
    }
}

/// Credits by code. The code after the last one means no limit.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// RNR timers by code, in units of 10 us.
const RNR_TENS_OF_MICROSECONDS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The fields of an [`AethView`].
pub static AETH: Header = Header {
    name: "AETH",
    title: "acknowledge header",
    purpose: "Says whether a request succeeded, and how many messages the responder has completed.",
    rule: "IBTA 9.3.5, 9.7.5",
    fields: &[
        Field::new("Syndrome", "infiniband.aeth.syndrome", bytes(0, 1), Hex)
            .note(|value, out| write!(out, "{}", Syndrome::from_byte(value as u8)))
            .means("Acknowledged, refused, or not ready; the next four fields are its parts."),
        Field::new("reserved", "infiniband.aeth.syndrome.reserved", mask(0, 0x80), Flag)
            .means("Sent as zero."),
        Field::new("kind", "infiniband.aeth.syndrome.opcode", mask(0, 0x60), Decimal)
            .means("0 acknowledged, 1 receiver not ready, 3 refused; 2 is reserved."),
        Field::new("credits", "infiniband.aeth.syndrome.credit_count", mask(0, 0x1f), Decimal)
            .when(|aeth| kind(aeth) == 0)
            .note(credits_note)
            .means("Code of the number of messages that the responder can accept; 31 is no limit."),
        Field::new("timer", "infiniband.aeth.syndrome.timer", mask(0, 0x1f), Decimal)
            .when(|aeth| kind(aeth) == 1)
            .note(|code, out| write!(out, "{}", RnrTimer(code as u8)))
            .means("Code of the shortest time to wait before trying again, 0.01 to 655.36 ms."),
        Field::new("NAK code", "infiniband.aeth.syndrome.error_code", mask(0, 0x1f), Decimal)
            .when(|aeth| kind(aeth) == 3)
            .note(|code, out| write!(out, "{}", NakCode::from_code(code as u8)))
            .means("Why the request was refused."),
        Field::new("value", "infiniband.aeth.syndrome.reserved_value", mask(0, 0x1f), Decimal)
            .when(|aeth| kind(aeth) == 2)
            .means("Has no meaning while the kind is reserved."),
        Field::new("MSN", "infiniband.aeth.msn", bytes(1, 3), Decimal)
            .means("Number of request messages that the responder has completed, 24 bits; it wraps around."),
    ],
};

/// Returns the two bits that select the meaning of the five bits below. Wireshark shows the highest bit
/// separately.
const fn kind(aeth: &[u8]) -> u8 {
    match aeth {
        [syndrome, ..] => *syndrome >> 5 & 0b11,
        [] => 0,
    }
}

fn credits_note(code: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    match Syndrome::credits(code as u8) {
        Some(credits) => write!(out, "{credits} messages"),
        None => out.write_str("no limit"),
    }
}
