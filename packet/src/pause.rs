//! Pause frames: one end of a link stops the other for a time (IEEE 802.3 Annex 31B for all traffic, 802.1Qbb
//! for single priorities).
//!
//! A user-space stack on a host never sends pause frames. Switches, NICs and a simulator do.

use core::fmt;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::ethernet::{EtherType, EthernetHeader, EthernetView, MacAddr};
use crate::fields::Show::{Decimal, Flag, Hex};
use crate::fields::{Field, Header, bytes, mask};

/// The number of priorities of PFC.
pub const PRIORITIES: usize = 8;

/// Longest pause that one frame can request, in quanta.
pub const MAX_QUANTA: u16 = u16::MAX;

/// Returns the duration of `quanta` on a link of `bits_per_second`, in nanoseconds, rounded up. One quantum
/// is the time of 512 bits. On a link with speed 0, a pause never ends: the result is [`u64::MAX`].
#[must_use]
pub const fn pause_duration_ns(quanta: u16, bits_per_second: u64) -> u64 {
    if bits_per_second == 0 {
        return u64::MAX;
    }
    // 65535 * 512 * 10^9 is below 2^55.
    let bit_times_ns = quanta as u64 * 512 * 1_000_000_000;
    bit_times_ns.div_ceil(bits_per_second)
}

/// The data after the Ethernet header in every MAC control frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MacControlView {
    opcode: U16,
}

impl MacControlView {
    /// Returns the opcode: 0x0001 for a pause, 0x0101 for PFC.
    #[must_use]
    pub const fn opcode(&self) -> u16 {
        self.opcode.get()
    }
}

/// The body of an 802.3x pause frame after the opcode.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PauseView {
    quanta: U16,
}

impl PauseView {
    /// Returns the length of the pause in units of 512 bit times; 0 ends the pause.
    #[must_use]
    pub const fn quanta(&self) -> u16 {
        self.quanta.get()
    }
}

/// The body of a PFC frame after the opcode.
///
/// ```text
///  0                 2          4               18
/// +--------+--------+----------+---------------+
/// | 0      | enable | quanta 0 | ... quanta 7  |
/// +--------+--------+----------+---------------+
/// ```
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PfcView {
    reserved: u8,
    enable: u8,
    quanta: [U16; PRIORITIES],
}

impl PfcView {
    /// Returns the upper half of the enable vector; 0 in every frame that follows the standard.
    #[must_use]
    pub const fn reserved(&self) -> u8 {
        self.reserved
    }

    /// Returns one bit per priority, priority 0 in the lowest: whether its quanta are valid.
    #[must_use]
    pub const fn enable(&self) -> u8 {
        self.enable
    }

    /// Returns the pause of every priority in units of 512 bit times, valid or not.
    #[must_use]
    pub const fn quanta(&self) -> [u16; PRIORITIES] {
        let [a, b, c, d, e, f, g, h] = self.quanta;
        [a.get(), b.get(), c.get(), d.get(), e.get(), f.get(), g.get(), h.get()]
    }
}

/// The request of a pause frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PauseRequest {
    /// All traffic must pause for this number of units of 512 bit times; 0 ends the pause.
    All(u16),
    /// Some priorities must pause, each for its own time. Priorities that are `None` are not affected, and 0
    /// ends a pause.
    PerPriority([Option<u16>; PRIORITIES]),
}

/// A complete pause frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PauseFrame {
    /// Port that cannot accept more frames.
    pub source: MacAddr,
    /// The requested pause.
    pub request: PauseRequest,
}

impl PauseFrame {
    /// Length of the frame without frame check sequence, in bytes: the shortest Ethernet frame.
    pub const LEN: usize = 60;

    const OPCODE_PAUSE: u16 = 0x0001;
    const OPCODE_PFC: u16 = 0x0101;

    /// Parses a frame, starting at its Ethernet header. Padding may be missing, and its content is ignored.
    ///
    /// Returns [`ParseErrorKind::NotRoce`] for a frame of another EtherType, as everywhere in this crate.
    /// Returns [`ParseErrorKind::UnknownOpcode`] for a MAC control frame with another opcode.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let (ethernet, body) = EthernetHeader::parse(bytes)?;
        let offset = EthernetHeader::LEN;
        if ethernet.ether_type != EtherType::MAC_CONTROL {
            return Err(ParseError {
                layer: Layer::Ethernet,
                kind: ParseErrorKind::NotRoce,
                offset: offset - 2,
                need: EtherType::MAC_CONTROL.0.into(),
                have: ethernet.ether_type.0.into(),
            });
        }
        let short = |need: usize| ParseError::truncated(Layer::Pause, offset, need, body.len());
        let (control, rest) =
            MacControlView::ref_from_prefix(body).map_err(|_| short(size_of::<MacControlView>()))?;
        let request = match control.opcode() {
            Self::OPCODE_PAUSE => {
                let need = size_of::<MacControlView>() + size_of::<PauseView>();
                let (view, _) = PauseView::ref_from_prefix(rest).map_err(|_| short(need))?;
                PauseRequest::All(view.quanta())
            }
            Self::OPCODE_PFC => {
                let need = size_of::<MacControlView>() + size_of::<PfcView>();
                let (view, _) = PfcView::ref_from_prefix(rest).map_err(|_| short(need))?;
                let mut quanta = view.quanta().map(Some);
                for (priority, quanta) in quanta.iter_mut().enumerate() {
                    if view.enable() >> priority & 1 == 0 {
                        *quanta = None;
                    }
                }
                PauseRequest::PerPriority(quanta)
            }
            other => {
                return Err(ParseError {
                    layer: Layer::Pause,
                    kind: ParseErrorKind::UnknownOpcode,
                    offset,
                    need: 0,
                    have: other.into(),
                });
            }
        };
        Ok(Self { source: ethernet.source, request })
    }

    /// Writes the frame with its padding. Pause frames have no VLAN tag.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let ethernet = EthernetView::from(&EthernetHeader {
            destination: MacAddr::MAC_CONTROL,
            source: self.source,
            ether_type: EtherType::MAC_CONTROL,
        });
        match self.request {
            PauseRequest::All(quanta) => {
                *out = zerocopy::transmute!(WholePause {
                    ethernet,
                    control: MacControlView { opcode: U16::new(Self::OPCODE_PAUSE) },
                    body: PauseView { quanta: U16::new(quanta) },
                    padding: [0; _],
                });
            }
            PauseRequest::PerPriority(quanta) => {
                let mut enable = 0;
                for (priority, quanta) in quanta.iter().enumerate() {
                    enable |= u8::from(quanta.is_some()) << priority;
                }
                let quanta = quanta.map(|quanta| U16::new(quanta.unwrap_or(0)));
                *out = zerocopy::transmute!(WholePfc {
                    ethernet,
                    control: MacControlView { opcode: U16::new(Self::OPCODE_PFC) },
                    body: PfcView { reserved: 0, enable, quanta },
                    padding: [0; _],
                });
            }
        }
    }
}

/// Memory layout of a pause frame.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct WholePause {
    ethernet: EthernetView,
    control: MacControlView,
    body: PauseView,
    padding: [u8; 42],
}

/// Memory layout of a PFC frame.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct WholePfc {
    ethernet: EthernetView,
    control: MacControlView,
    body: PfcView,
    padding: [u8; 26],
}

/// The fields of a [`MacControlView`] and the [`PauseView`] after it.
pub static PAUSE: Header = Header {
    name: "pause",
    title: "802.3x pause",
    purpose: "Asks the other end of the link to send no frames for a time.",
    rule: "IEEE 802.3 Annex 31B",
    fields: &[
        Field::new("opcode", "macc.opcode", bytes(0, 2), Hex)
            .note(mac_control_note)
            .means("Type of the control frame."),
        Field::new("pause time", "macc.pause_time", bytes(2, 2), Decimal)
            .means("Length of the pause in units of 512 bit times (51.2 ns at 10 Gb/s); 0 ends it."),
    ],
};

/// The fields of a [`MacControlView`] and the [`PfcView`] after it.
pub static PFC: Header = Header {
    name: "PFC",
    title: "priority flow control",
    purpose: "Asks the other end of the link to pause some priorities, so that their frames are not lost.",
    rule: "IEEE 802.1Q clause 36, 802.3 Annex 31D",
    fields: &[
        Field::new("opcode", "macc.opcode", bytes(0, 2), Hex)
            .note(mac_control_note)
            .means("Type of the control frame."),
        Field::reserved("roce.pfc.reserved", bytes(2, 1)),
        enabled("macc.cbfc.enbv.c7", 7),
        enabled("macc.cbfc.enbv.c6", 6),
        enabled("macc.cbfc.enbv.c5", 5),
        enabled("macc.cbfc.enbv.c4", 4),
        enabled("macc.cbfc.enbv.c3", 3),
        enabled("macc.cbfc.enbv.c2", 2),
        enabled("macc.cbfc.enbv.c1", 1),
        enabled("macc.cbfc.enbv.c0", 0),
        time("time 0", "macc.cbfc.pause_time.c0", 0),
        time("time 1", "macc.cbfc.pause_time.c1", 1),
        time("time 2", "macc.cbfc.pause_time.c2", 2),
        time("time 3", "macc.cbfc.pause_time.c3", 3),
        time("time 4", "macc.cbfc.pause_time.c4", 4),
        time("time 5", "macc.cbfc.pause_time.c5", 5),
        time("time 6", "macc.cbfc.pause_time.c6", 6),
        time("time 7", "macc.cbfc.pause_time.c7", 7),
    ],
};

const fn enabled(key: &'static str, priority: u32) -> Field {
    Field::new("enabled", key, mask(3, 1 << priority), Flag)
        .means("Set if the time of this priority is valid.")
}

const fn time(name: &'static str, key: &'static str, priority: usize) -> Field {
    Field::new(name, key, bytes(4 + 2 * priority, 2), Decimal)
        .means("Length of the pause of this priority in units of 512 bit times; 0 ends it.")
}

fn mac_control_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value as u16 {
        PauseFrame::OPCODE_PAUSE => "pause",
        PauseFrame::OPCODE_PFC => "priority flow control",
        _ => "",
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const SOURCE: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    /// Returns the frame up to its padding.
    fn bytes(opcode: [u8; 2], body: &[u8]) -> Vec<u8> {
        let header = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01, 2, 0, 0, 0, 0, 1, 0x88, 0x08];
        [&header[..], &opcode, body].concat()
    }

    #[track_caller]
    fn assert_both_ways(request: PauseRequest, bytes: &[u8]) {
        let frame = PauseFrame { source: SOURCE, request };
        let mut out = [0xa5; PauseFrame::LEN];
        frame.emit(&mut out);
        assert_eq!(out[..bytes.len()], *bytes);
        assert!(out[bytes.len()..].iter().all(|byte| *byte == 0));
        assert_eq!(PauseFrame::parse(&out), Ok(frame));
        // A frame without padding is valid, but one byte less is not.
        assert_eq!(PauseFrame::parse(bytes), Ok(frame));
        for len in 0..bytes.len() {
            let error = PauseFrame::parse(&bytes[..len]).unwrap_err();
            let layer = if len < 14 { Layer::Ethernet } else { Layer::Pause };
            assert_eq!((error.layer, error.kind), (layer, ParseErrorKind::Truncated), "{len}");
            assert_eq!(error.have, len - error.offset, "{len}");
        }
    }

    #[test]
    fn pause_for_all() {
        assert_both_ways(PauseRequest::All(0xffff), &bytes([0, 1], &[0xff, 0xff]));
        assert_both_ways(PauseRequest::All(0), &bytes([0, 1], &[0, 0]));
    }

    #[test]
    fn pause_per_priority() {
        let mut quanta = [None; PRIORITIES];
        (quanta[3], quanta[6]) = (Some(0x1234), Some(0));
        let mut body = [0; 18];
        body[1] = 1 << 3 | 1 << 6;
        (body[2 + 6], body[2 + 7]) = (0x12, 0x34);
        assert_both_ways(PauseRequest::PerPriority(quanta), &bytes([1, 1], &body));
    }

    /// Quanta of disabled priorities and the reserved half of the vector are ignored.
    #[test]
    fn quanta_not_enabled() {
        let mut body = [0xff; 18];
        body[1] = 0x01;
        let frame = PauseFrame::parse(&bytes([1, 1], &body)).unwrap();
        let mut quanta = [None; PRIORITIES];
        quanta[0] = Some(0xffff);
        assert_eq!(frame.request, PauseRequest::PerPriority(quanta));
    }

    #[test]
    fn other_frames() {
        let error = PauseFrame::parse(&bytes([0, 2], &[0; 44])).unwrap_err();
        assert_eq!((error.kind, error.offset, error.have), (ParseErrorKind::UnknownOpcode, 14, 2));
        let mut arp = bytes([0, 1], &[0; 44]);
        (arp[12], arp[13]) = (0x08, 0x06);
        let error = PauseFrame::parse(&arp).unwrap_err();
        assert_eq!((error.kind, error.offset, error.have), (ParseErrorKind::NotRoce, 12, 0x0806));
    }

    #[test]
    fn quanta_in_time() {
        // 512 bits take 5.12 ns at 100 Gb/s.
        assert_eq!(pause_duration_ns(0, 100_000_000_000), 0);
        assert_eq!(pause_duration_ns(1, 100_000_000_000), 6);
        assert_eq!(pause_duration_ns(100, 100_000_000_000), 512);
        assert_eq!(pause_duration_ns(MAX_QUANTA, 10_000_000_000), 3_355_392);
        assert_eq!(pause_duration_ns(MAX_QUANTA, 1), 65_535 * 512 * 1_000_000_000);
        assert_eq!(pause_duration_ns(1, 0), u64::MAX);
    }
}
