//! In-band telemetry: data about their queues that the switches on the path write into a packet.
//!
//! **This is not part of a standard.** RoCE v2 has no field for telemetry, and vendors have their own
//! formats. Both ends must agree on it. A peer without it drops a datagram with this trailer, because the
//! ICRC is not at the end.
//!
//! The trailer follows the ICRC, which does not cover it, so a switch may change the trailer alone. The
//! trailer always has room for five hops, so that a packet has the same length at its sender and at its
//! receiver. An acknowledgement carries the trailer of the packet that it acknowledges, marked as an echo.
//! Switches on the way back add nothing to an echo.
//!
//! ```text
//!   byte 0      bit 7: an echo
//!               bits 0 to 6: number of hops, 0 to 5; 7 if the packet passed more than five switches, of which the first five are here
//!   byte 1      the path: 8 bits that follow from the ports which the packet passed; 0 without a hop
//!   10 bytes    for each hop, in the order of the path, big-endian:
//!     0..2      rate of the port, in units of 100 Mb/s
//!     2..5      time at which the packet began to leave, in ns, modulo 2^24
//!     5..8      bytes that the port had sent before it, in units of 64, modulo 2^24
//!     8..10     bytes that waited in the port behind it, in units of 64, at most 65,535 units
//! ```
//!
//! The bytes of unused hops are zero. The counters of two trailers may be subtracted only if both have the
//! same path: in a network with several paths to a host, consecutive packets may pass different ports. Two
//! paths have the same 8 bits by chance once in 256 cases.
//!
//! No header announces the trailer: the BTH has no length, and the lengths of IP and UDP include the trailer.
//! A receiver with telemetry accepts the last 52 bytes as a trailer if they have the format of one
//! ([`Telemetry::split_off`]) and the ICRC before them is correct. A peer may therefore send packets with and
//! without a trailer. A packet is misinterpreted only if an ICRC is correct by chance.
//!
//! The values are those of HPCC (SIGCOMM 2019, section 3.1; the path corresponds to its 12-bit `pathID`),
//! with other widths: 80 bits per hop instead of 64. A port may thus have any rate up to 6.5 Tb/s, and the
//! counters wrap around after 16 ms and a gigabyte.

use crate::fields::{Field, Header, Show, bytes, mask};

/// The values that one port wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TelemetryHop {
    /// Rate of the port, in units of 100 Mb/s.
    pub rate: u16,
    /// Time in nanoseconds, modulo 2^24.
    pub time: u32,
    /// Bytes sent before the packet, in units of 64, modulo 2^24.
    pub sent: u32,
    /// Bytes queued behind the packet, in units of 64.
    pub queue: u16,
}

const MODULUS: u32 = 1 << 24;
/// Bytes per unit of `sent` and `queue`.
const UNIT: u64 = 64;
/// Bits per second per unit of `rate`.
const RATE_UNIT: u64 = 100_000_000;

impl TelemetryHop {
    const LEN: usize = 10;

    /// Creates a hop from full values. Reduces values that exceed a field as the format requires.
    #[must_use]
    pub fn new(rate_bps: u64, now_ns: u64, sent_bytes: u64, queue_bytes: u64) -> Self {
        let modulo = |value: u64| (value % u64::from(MODULUS)) as u32;
        Self {
            rate: u16::try_from(rate_bps.saturating_add(RATE_UNIT / 2) / RATE_UNIT)
                .unwrap_or(u16::MAX)
                .max(1),
            time: modulo(now_ns),
            sent: modulo(sent_bytes / UNIT),
            queue: u16::try_from(queue_bytes / UNIT).unwrap_or(u16::MAX),
        }
    }

    /// Returns the rate of the port in bits per second.
    #[must_use]
    pub const fn rate_bps(&self) -> u64 {
        self.rate as u64 * RATE_UNIT
    }

    /// Returns the number of queued bytes.
    #[must_use]
    pub const fn queue_bytes(&self) -> u64 {
        self.queue as u64 * UNIT
    }

    /// Returns the nanoseconds since `earlier`, which the same port wrote less than 16 ms before.
    #[must_use]
    pub const fn ns_since(&self, earlier: &Self) -> u32 {
        self.time.wrapping_sub(earlier.time) % MODULUS
    }

    /// Returns the number of bytes that the port sent since `earlier`.
    #[must_use]
    pub const fn bytes_since(&self, earlier: &Self) -> u64 {
        (self.sent.wrapping_sub(earlier.sent) % MODULUS) as u64 * UNIT
    }

    fn emit(&self) -> [u8; Self::LEN] {
        let [a, b] = self.rate.to_be_bytes();
        let [_, c, d, e] = self.time.to_be_bytes();
        let [_, f, g, h] = self.sent.to_be_bytes();
        let [i, j] = self.queue.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j]
    }

    fn parse([a, b, c, d, e, f, g, h, i, j]: [u8; Self::LEN]) -> Self {
        Self {
            rate: u16::from_be_bytes([a, b]),
            time: u32::from_be_bytes([0, c, d, e]),
            sent: u32::from_be_bytes([0, f, g, h]),
            queue: u16::from_be_bytes([i, j]),
        }
    }
}

/// The telemetry trailer of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    hops: [TelemetryHop; Self::MOST_HOPS],
    len: u8,
    /// Whether the packet passed more switches than fit.
    is_cut: bool,
    path: u8,
    is_echo: bool,
}

/// The bit of byte 0 that marks an echo.
const ECHO: u8 = 0x80;
/// The number of hops in byte 0 if there were more than five.
const CUT: u8 = 7;

impl Telemetry {
    /// Largest number of hops.
    pub const MOST_HOPS: usize = 5;
    /// Length on the wire, in bytes.
    pub const LEN: usize = 2 + Self::MOST_HOPS * TelemetryHop::LEN;

    /// Returns the hops, in the order of the path.
    #[must_use]
    pub fn hops(&self) -> &[TelemetryHop] {
        self.hops.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns whether the trailer contains every switch on the path.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        !self.is_cut
    }

    /// Returns eight bits that depend on the ports that the packet passed, and on their order.
    #[must_use]
    pub const fn path(&self) -> u8 {
        self.path
    }

    /// Returns the trailer for the acknowledgement of the packet.
    #[must_use]
    pub const fn echo(self) -> Self {
        Self { is_echo: true, ..self }
    }

    /// Adds the hop of a switch port, if there is room. An echo does not change. `port` must be unique in the
    /// network.
    pub fn push(&mut self, hop: TelemetryHop, port: u32) {
        if self.is_echo {
            return;
        }
        // Multiplication by 2^32 over the golden ratio separates neighbouring numbers. The rotation makes the
        // order of ports matter.
        self.path = self.path.rotate_left(3) ^ (port.wrapping_mul(0x9e37_79b1) >> 24) as u8;
        match self.hops.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = hop;
                self.len += 1;
            }
            None => self.is_cut = true,
        }
    }

    /// Returns the bytes of the trailer.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (counts, hops) = bytes.split_at_mut(2);
        let number = if self.is_cut { CUT } else { self.len };
        counts.copy_from_slice(&[if self.is_echo { number | ECHO } else { number }, self.path]);
        for (place, hop) in hops.chunks_exact_mut(TelemetryHop::LEN).zip(self.hops()) {
            place.copy_from_slice(&hop.emit());
        }
        bytes
    }

    /// Parses the bytes of a trailer. Returns `None` if the number of hops is invalid, if there is a path
    /// without a hop, or if a byte of an unused hop is not zero.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [first, path, hops @ ..] = bytes;
        let (len, is_cut) = match first & !ECHO {
            CUT => (Self::MOST_HOPS as u8, true),
            0 if *path != 0 => return None,
            len if usize::from(len) <= Self::MOST_HOPS => (len, false),
            _ => return None,
        };
        let mut telemetry = Self { len, is_cut, path: *path, is_echo: first & ECHO != 0, ..Self::default() };
        let (hops, _) = hops.as_chunks();
        let (hops, unused) = hops.split_at_checked(usize::from(len))?;
        if unused.as_flattened().iter().any(|byte| *byte != 0) {
            return None;
        }
        for (place, hop) in telemetry.hops.iter_mut().zip(hops) {
            *place = TelemetryHop::parse(*hop);
        }
        Some(telemetry)
    }

    /// Removes a possible trailer from the end of a datagram, whose bytes may be in two slices. Returns both
    /// slices without the trailer, and the telemetry. Returns `None` if the last bytes are not a trailer. The
    /// caller must check that the ICRC is correct without them.
    ///
    /// ```
    /// use roce_packet::Telemetry;
    ///
    /// let datagram = [&b"from BTH to ICRC"[..], &Telemetry::default().emit()].concat();
    /// let (rest, _, telemetry) = Telemetry::split_off(&datagram, &[]).unwrap();
    /// assert_eq!((rest, telemetry.hops().len()), (&b"from BTH to ICRC"[..], 0));
    /// assert_eq!(Telemetry::split_off(rest, &[]), None);
    /// ```
    #[must_use]
    pub fn split_off<'a>(head: &'a [u8], tail: &'a [u8]) -> Option<(&'a [u8], &'a [u8], Self)> {
        if let Some((rest, bytes)) = tail.split_last_chunk() {
            return Self::parse(bytes).map(|telemetry| (head, rest, telemetry));
        }
        // The trailer is in the first slice, or divided between the two.
        let in_head = Self::LEN.checked_sub(tail.len())?;
        let (rest, start) = head.split_at_checked(head.len().checked_sub(in_head)?)?;
        let mut bytes = [0; Self::LEN];
        bytes.iter_mut().zip(start.iter().chain(tail)).for_each(|(place, byte)| *place = *byte);
        Self::parse(&bytes).map(|telemetry| (rest, &[][..], telemetry))
    }
}

macro_rules! fields_of_hop {
    ($number:literal at $start:literal) => {
        [
            Field::new(
                concat!("hop ", $number, " rate"),
                concat!("roce.telemetry.hop", $number, ".rate"),
                bytes($start, 2),
                Show::Decimal,
            )
            .means("Rate of the port, in units of 100 Mb/s."),
            Field::new(
                concat!("hop ", $number, " time"),
                concat!("roce.telemetry.hop", $number, ".time"),
                bytes($start + 2, 3),
                Show::Decimal,
            )
            .means("Time at which the packet began to leave, in nanoseconds modulo 2^24."),
            Field::new(
                concat!("hop ", $number, " sent"),
                concat!("roce.telemetry.hop", $number, ".sent"),
                bytes($start + 5, 3),
                Show::Decimal,
            )
            .means("Bytes that the port had sent before, in units of 64, modulo 2^24."),
            Field::new(
                concat!("hop ", $number, " queue"),
                concat!("roce.telemetry.hop", $number, ".queue"),
                bytes($start + 8, 2),
                Show::Decimal,
            )
            .means("Bytes that waited behind the packet, in units of 64, at most 65,535 units."),
        ]
    };
}

const COUNTS: [Field; 3] = [
    Field::new("echo", "roce.telemetry.echo", mask(0, ECHO), Show::Flag)
        .means("Whether an acknowledgement returns it."),
    Field::new("hops", "roce.telemetry.hops", mask(0, !ECHO), Show::Decimal)
        .means("Number of hops that follow, 0 to 5; 7: five follow, and the packet passed more switches."),
    Field::new("path", "roce.telemetry.path", bytes(1, 1), Show::Hex).means(
        "Bits that follow from the ports which the packet passed: packets with equal bits had the same way.",
    ),
];
const HOP1: [Field; 4] = fields_of_hop!(1 at 2);
const HOP2: [Field; 4] = fields_of_hop!(2 at 12);
const HOP3: [Field; 4] = fields_of_hop!(3 at 22);
const HOP4: [Field; 4] = fields_of_hop!(4 at 32);
const HOP5: [Field; 4] = fields_of_hop!(5 at 42);

/// The trailer of in-band telemetry.
pub static TELEMETRY: Header = Header {
    name: "Telemetry",
    title: "in-band telemetry",
    purpose: "Brings the queues of the switches on the way to a congestion control, which keeps them short.",
    rule: "roce only, no standard",
    fields: &joined(),
};

const fn joined() -> [Field; 23] {
    let [a, b, c] = COUNTS;
    let [d, e, f, g] = HOP1;
    let [h, i, j, k] = HOP2;
    let [l, m, n, o] = HOP3;
    let [p, q, r, s] = HOP4;
    let [t, u, v, w] = HOP5;
    [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways() {
        let mut telemetry = Telemetry::default();
        for hop in 0..7 {
            assert_eq!(Telemetry::parse(&telemetry.emit()), Some(telemetry));
            assert_eq!(telemetry.is_complete(), hop <= 5);
            let stamp = TelemetryHop::new(25_000_000_000 * (hop + 1), 77 * hop, 1_000_000 * hop, 640 * hop);
            telemetry.push(stamp, hop as u32);
        }
        assert_eq!(telemetry.hops().len(), 5);
        assert_eq!(
            (telemetry.hops()[2].rate_bps(), telemetry.hops()[2].queue_bytes()),
            (75_000_000_000, 1_280)
        );
        let bytes = telemetry.emit();
        assert_eq!((bytes.len(), &bytes[..4]), (52, &[7, telemetry.path(), 0, 250][..]));
    }

    #[test]
    fn switches_add_nothing_to_an_echo() {
        let mut there = Telemetry::default();
        there.push(TelemetryHop::new(25_000_000_000, 1, 2, 3), 7);
        let mut back = there.echo();
        back.push(TelemetryHop::new(100_000_000_000, 4, 5, 6), 8);
        assert_eq!((back.hops(), back.is_complete(), back.path()), (there.hops(), true, there.path()));
        assert_eq!((Telemetry::parse(&back.emit()), back.emit()[0]), (Some(back), 0x81));
    }

    #[test]
    fn wrong_counts_are_refused() {
        let mut bytes = [0; Telemetry::LEN];
        for (number, good) in [(0, true), (1, true), (5, true), (6, false), (7, true)] {
            bytes[0] = number;
            assert_eq!(Telemetry::parse(&bytes).is_some(), good, "{number}");
        }
        (bytes[0], bytes[1]) = (0, 1);
        assert_eq!(Telemetry::parse(&bytes), None, "a path without a hop");
    }

    /// Regression: a trailer did not identify the path of its packet, and counters of different ports were
    /// subtracted.
    #[test]
    fn packets_on_different_ways_have_different_paths() {
        let of = |ports: &[u32]| {
            let mut telemetry = Telemetry::default();
            ports.iter().for_each(|port| telemetry.push(TelemetryHop::new(100_000_000_000, 1, 2, 3), *port));
            telemetry.path()
        };
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
        assert_ne!(of(&[1, 2, 3]), of(&[2, 1, 3]), "the order counts");
        // Each path leads up to one of eight switches, down from it, and to the host.
        let mut paths: std::vec::Vec<u8> =
            (0..8).map(|path| of(&[100 + path, 200 + 16 * path, 999])).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), 8);
    }

    #[test]
    fn unused_room_is_zero() {
        let mut telemetry = Telemetry::default();
        telemetry.push(TelemetryHop::new(1_000_000_000, 5, 64, 128), 3);
        let bytes = telemetry.emit();
        for at in 12..Telemetry::LEN {
            let mut bytes = bytes;
            bytes[at] = 1;
            assert_eq!(Telemetry::parse(&bytes), None, "byte {at}");
        }
    }

    #[test]
    fn a_trailer_may_lie_in_two_slices() {
        let mut telemetry = Telemetry::default();
        telemetry.push(TelemetryHop::new(1_000_000_000, 5, 64, 128), 3);
        let whole: std::vec::Vec<u8> = (0..80).chain(telemetry.emit()).collect();
        for at in 0..=whole.len() {
            let (head, tail) = whole.split_at(at);
            let (head, tail, found) = Telemetry::split_off(head, tail).unwrap();
            assert_eq!(([head, tail].concat(), found), (whole[..80].to_vec(), telemetry), "divided at {at}");
        }
        assert_eq!(Telemetry::split_off(&whole[..51], &[]), None);
        assert_eq!(Telemetry::split_off(&[], &[]), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: [u8; Telemetry::LEN], number in 0..8_u8, at in 0..=Telemetry::LEN) {
            for first in [bytes[0], number, ECHO | number] {
                let mut bytes = bytes;
                bytes[0] = first;
                let number = first & !ECHO;
                let unused = 2 + usize::from(number).min(Telemetry::MOST_HOPS) * TelemetryHop::LEN;
                for is_zero in [false, true] {
                    if is_zero {
                        bytes[unused..].fill(0);
                    }
                    // Accepted bytes equal those that would be written again.
                    let parsed = Telemetry::parse(&bytes);
                    proptest::prop_assert!(parsed.is_none_or(|telemetry| telemetry.emit() == bytes));
                    let divided = Telemetry::split_off(&bytes[..at], &bytes[at..]);
                    proptest::prop_assert_eq!(divided.map(|(_, _, telemetry)| telemetry), parsed);
                    let expected = number != 6 && number <= CUT && (number > 0 || bytes[1] == 0);
                    proptest::prop_assert!(!is_zero || parsed.is_some() == expected);
                }
            }
        }
    }

    #[test]
    fn differences_turn_over() {
        let before = TelemetryHop::new(1, (1 << 24) - 10, 64 * ((1 << 24) - 1), u64::MAX);
        let after = TelemetryHop::new(u64::MAX, (1 << 24) + 20, 64 * ((1 << 24) + 2), 0);
        assert_eq!((after.ns_since(&before), after.bytes_since(&before)), (30, 192));
        assert_eq!((before.rate, after.rate, before.queue), (1, u16::MAX, u16::MAX));
    }
}
