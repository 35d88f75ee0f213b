//! Complete Ethernet frames: the headers outside the datagram, and the datagram inside.
//!
//! [`Frame`] is a frame in which all outer headers are consistent. [`Dissection`] also accepts broken frames:
//! it contains the readable parts and the first error.

use crate::datagram::Datagram;
use crate::envelope::Envelope;
use crate::error::{BufferTooSmall, Layer, ParseError};
use crate::icrc;
use crate::path::{Path, ROCE_UDP_PORT};
use crate::telemetry::Telemetry;

pub use dissect::{Dissection, NetworkView};
pub use headers::{FrameHeaders, FrameHeadersError, NetworkHeader};

mod dissect;
mod headers;

/// A frame with consistent outer headers that announce RoCE.
///
/// The datagram inside is not checked yet: [`Self::datagram`] parses it, and [`Self::verify_icrc`] checks its
/// ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Everything before the BTH.
    pub headers: FrameHeaders,
    /// BTH to ICRC, with the length from the IP header or the GRH.
    pub transport: &'a [u8],
    /// The bytes after the packet, usually the padding of short Ethernet frames.
    pub trailer: &'a [u8],
}

impl<'a> Dissection<'a> {
    /// Returns the frame, if it has no error and its datagram is complete.
    pub fn into_frame(self) -> Result<Frame<'a>, ParseError> {
        let (headers, transport) = self.headers()?;
        if transport.len() < self.transport_len {
            let (offset, need) = (self.transport_offset, self.transport_len);
            return Err(ParseError::truncated(Layer::Payload, offset, need, transport.len()));
        }
        Ok(Frame { headers, transport, trailer: self.trailer })
    }
}

impl<'a> Frame<'a> {
    /// Parses a frame, starting at its Ethernet header.
    ///
    /// Returns [`ParseErrorKind::NotRoce`](crate::ParseErrorKind::NotRoce) for a frame of another protocol.
    /// Every other error means that the frame, as far as it is readable, is a RoCE frame that is broken or
    /// not supported. A frame may have one 802.1Q tag. Frames with more tags are not examined further.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        Self::parse_on_port(bytes, ROCE_UDP_PORT)
    }

    /// Parses a frame as [`Self::parse`] does, with another UDP port for RoCE v2.
    pub fn parse_on_port(bytes: &'a [u8], port: u16) -> Result<Self, ParseError> {
        Dissection::on_port(bytes, port).into_frame()
    }

    /// Parses a frame as [`Self::parse_on_port`] does, but from two slices, as some devices deliver long
    /// frames. The first slice must contain all headers before the BTH. [`Datagram::parse`] also requires the
    /// extended headers in it.
    pub fn parse_split(head: &'a [u8], tail: &'a [u8], port: u16) -> Result<SplitFrame<'a>, ParseError> {
        let frame_len = head.len().saturating_add(tail.len());
        let dissection = Dissection::of_part(head, frame_len, port);
        let (headers, head) = dissection.headers()?;
        let tail_len = dissection.transport_len.saturating_sub(head.len());
        // The dissection has checked that the two slices together contain the length in the headers.
        let tail = tail.get(..tail_len).unwrap_or(tail);
        Ok(SplitFrame { headers, head, tail })
    }

    /// Returns the length of the whole frame, in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> usize {
        self.headers.len_bytes() + self.transport.len() + self.trailer.len()
    }

    /// Returns the path of the datagram.
    #[must_use]
    pub const fn path(&self) -> Path {
        self.headers.path()
    }

    /// Returns the fields of the headers that the ICRC covers.
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        self.headers.envelope()
    }

    /// Parses the datagram in the frame. Offsets in errors count from the start of the frame.
    pub fn datagram(&self) -> Result<Datagram<'a>, ParseError> {
        Datagram::parse(self.transport, &[]).map_err(|error| error.moved_by(self.headers.len_bytes()))
    }

    /// Computes the ICRC and compares it with the one in the frame, for any opcode.
    pub fn verify_icrc(&self) -> Result<IcrcCheck, ParseError> {
        let (covered, found) = self.split_icrc()?;
        let computed = icrc::compute(&self.envelope(), covered, &[]);
        Ok(IcrcCheck { computed, found })
    }

    /// Returns the packet without its trailer of in-band telemetry, and the telemetry. Returns `None` unless
    /// the packet has a trailer and the ICRC before the trailer is correct. See [`Telemetry`].
    #[must_use]
    pub fn split_telemetry(&self) -> Option<(Self, Telemetry)> {
        let (transport, _, telemetry) = Telemetry::split_off(self.transport, &[])?;
        let rest = Self { transport, ..*self };
        rest.verify_icrc().is_ok_and(|check| check.is_good()).then_some((rest, telemetry))
    }

    /// Returns the bytes from BTH to padding, and the ICRC.
    fn split_icrc(&self) -> Result<(&'a [u8], u32), ParseError> {
        let have = self.transport.len();
        match self.transport.split_last_chunk() {
            Some((covered, found)) if have >= BTH_AND_ICRC_LEN => Ok((covered, u32::from_le_bytes(*found))),
            _ => Err(ParseError::truncated(Layer::Bth, self.headers.len_bytes(), BTH_AND_ICRC_LEN, have)),
        }
    }

    /// Writes the frame, trailer included, to the start of `out` and returns its length. The output of a
    /// parsed frame equals its input, except for the reserved bit in the IPv4 flags.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
        let need = self.len_bytes();
        let too_small = BufferTooSmall { need, have: out.len() };
        let out = out.get_mut(..need).ok_or(too_small)?;
        let (headers, rest) = out.split_at_mut_checked(self.headers.len_bytes()).ok_or(too_small)?;
        self.headers.emit(headers)?;
        let (transport, trailer) = rest.split_at_mut_checked(self.transport.len()).ok_or(too_small)?;
        transport.copy_from_slice(self.transport);
        trailer.copy_from_slice(self.trailer);
        Ok(need)
    }
}

/// A frame in two slices, with consistent outer headers that announce RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitFrame<'a> {
    /// Everything before the BTH.
    pub headers: FrameHeaders,
    /// The BTH and the bytes after it in the first slice.
    pub head: &'a [u8],
    /// The remaining bytes up to the ICRC, in the second slice. Empty if the first slice contains them.
    pub tail: &'a [u8],
}

/// The ICRC of a packet: the computed value and the one in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcCheck {
    /// The computed value.
    pub computed: u32,
    /// The value in the packet.
    pub found: u32,
}

impl IcrcCheck {
    /// Returns whether the ICRC is correct.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.computed == self.found
    }
}

/// Length of the shortest datagram, a BTH and an ICRC, in bytes.
const BTH_AND_ICRC_LEN: usize = 16;
