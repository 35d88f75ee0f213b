//! Types for the 24-bit numbers of the protocol.

use core::fmt;

/// Half the number of [`Psn`] values. Of two numbers, the later one is less than half the circle ahead.
const HALF_WINDOW: u32 = 0x0080_0000;

/// A packet sequence number: 24 bits, counted modulo 2^24 (IBTA 9.7.1).
///
/// Sequence numbers are circular and have no smallest one, so this type deliberately does not implement
/// [`Ord`]. Of two different numbers, the later one is less than 2^23 steps ahead; see [`Psn::before`].
///
/// ```
/// use roce_packet::Psn;
///
/// let last = Psn::new(0xff_ffff);
/// assert_eq!(last.next(), Psn::new(0));
/// assert!(last.before(last.next()));
/// assert_eq!(last.distance_to(Psn::new(4)), 5);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The significant bits.
    pub const MASK: u32 = 0x00ff_ffff;

    /// Returns the next number; 0 follows 2^24 - 1.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Returns the number `count` steps later.
    #[inline]
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Returns the number `count` steps earlier.
    #[inline]
    #[must_use]
    pub const fn sub(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// Returns whether this number is earlier than `other`: `other` is less than 2^23 steps ahead. Two
    /// numbers exactly 2^23 apart are each before *and* not after the other. A requester prevents this,
    /// because it keeps fewer than 2^23 packets outstanding.
    #[inline]
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        other.distance_to(self) >= HALF_WINDOW
    }

    /// Returns whether this number is later than `other`, by fewer than 2^23 steps.
    #[inline]
    #[must_use]
    pub const fn after(self, other: Self) -> bool {
        let ahead = other.distance_to(self);
        ahead != 0 && ahead < HALF_WINDOW
    }

    /// Returns the number of steps forward from this number to `later`, 0 to 2^24 - 1.
    #[inline]
    #[must_use]
    pub const fn distance_to(self, later: Self) -> u32 {
        later.0.wrapping_sub(self.0) & Self::MASK
    }
}

/// A message sequence number: the number of request messages that a responder has completed, modulo 2^24
/// (IBTA 9.7.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    /// Returns the next number; 0 follows 2^24 - 1.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// Queue pair 1, the general services interface, which receives connection management.
    pub const GSI: Self = Self(1);

    /// The destination queue pair of multicast datagrams.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
}

/// Defines the common methods of the three 24-bit numbers. `$show` writes the number.
macro_rules! number_of_24_bits {
    ($name:ident, $show:path) => {
        impl $name {
            /// Creates a number from the low 24 bits of `value`. Higher bits are dropped.
            #[inline]
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & Psn::MASK)
            }

            /// Returns the number, 0 to 2^24 - 1.
            #[inline]
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }

            /// Reads the three bytes of a header.
            #[inline]
            #[must_use]
            pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
                Self(from_be_24(bytes))
            }

            /// Returns the three bytes of a header.
            #[inline]
            #[must_use]
            pub const fn to_be_bytes(self) -> [u8; 3] {
                to_be_24(self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $show(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

number_of_24_bits!(Psn, fmt::Display::fmt);
number_of_24_bits!(Msn, fmt::Display::fmt);
number_of_24_bits!(Qpn, hexadecimal);

/// Writes a number as tools for this protocol write queue pair numbers.
fn hexadecimal(number: &u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "0x{number:06x}")
}

pub(crate) const fn from_be_24(bytes: [u8; 3]) -> u32 {
    let [high, middle, low] = bytes;
    u32::from_be_bytes([0, high, middle, low])
}

pub(crate) const fn to_be_24(value: u32) -> [u8; 3] {
    let [_, high, middle, low] = value.to_be_bytes();
    [high, middle, low]
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    fn any_psn() -> impl Strategy<Value = Psn> {
        any::<u32>().prop_map(Psn::new)
    }

    #[test]
    fn higher_bits_are_dropped() {
        assert_eq!(Psn::new(0xff12_3456).get(), 0x12_3456);
        assert_eq!(Msn::new(0xff12_3456).get(), 0x12_3456);
        assert_eq!(Qpn::new(0xff12_3456).get(), 0x12_3456);
    }

    #[test]
    fn they_wrap() {
        let last = Psn::new(Psn::MASK);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), last);
        assert!(last.before(Psn::new(0)) && Psn::new(0).after(last));
        assert_eq!(Msn::new(Psn::MASK).next(), Msn::new(0));
    }

    #[test]
    fn the_window_ends_half_way_round() {
        let (zero, half) = (Psn::new(0), Psn::new(HALF_WINDOW));
        assert!(zero.before(half.sub(1)) && half.sub(1).after(zero));
        // After this point the shorter way is the other one; exactly here, both are before each other.
        assert!(zero.before(half) && half.before(zero));
        assert!(!zero.after(half) && !half.after(zero));
        assert!(half.next().before(zero) && zero.after(half.next()));
    }

    #[test]
    fn they_print() {
        assert_eq!(Psn::new(7).to_string(), "7");
        assert_eq!(Msn::new(7).to_string(), "7");
        assert_eq!(Qpn::GSI.to_string(), "0x000001");
    }

    #[test]
    fn nothing_is_before_or_after_itself() {
        for psn in [Psn::new(0), Psn::new(HALF_WINDOW), Psn::new(Psn::MASK)] {
            assert!(!psn.before(psn) && !psn.after(psn));
            assert_eq!(psn.distance_to(psn), 0);
        }
    }

    proptest! {
        #[test]
        fn one_of_before_after_and_equal_holds(a in any_psn(), b in any_psn()) {
            let count = usize::from(a == b) + usize::from(a.before(b)) + usize::from(a.after(b));
            prop_assert_eq!(count, 1);
        }

        #[test]
        fn before_is_the_opposite_of_after(a in any_psn(), ahead in 1..HALF_WINDOW) {
            let b = a.add(ahead);
            prop_assert!(a.before(b) && b.after(a));
            prop_assert!(!b.before(a) && !a.after(b));
        }

        #[test]
        fn order_is_transitive_within_the_window(
            a in any_psn(),
            first in 1..HALF_WINDOW / 2,
            second in 1..HALF_WINDOW / 2,
        ) {
            let (b, c) = (a.add(first), a.add(first).add(second));
            prop_assert!(a.before(b) && b.before(c) && a.before(c));
        }

        #[test]
        fn order_does_not_depend_on_the_place(a in any_psn(), b in any_psn(), shift: u32) {
            prop_assert_eq!(a.before(b), a.add(shift).before(b.add(shift)));
            prop_assert_eq!(a.after(b), a.add(shift).after(b.add(shift)));
        }

        #[test]
        fn distance_leads_there(a in any_psn(), b in any_psn(), count: u32) {
            prop_assert_eq!(a.add(a.distance_to(b)), b);
            prop_assert_eq!(a.add(count).sub(count), a);
            prop_assert_eq!(a.distance_to(a.add(count)), count & Psn::MASK);
        }

        #[test]
        fn three_bytes_are_enough(value: u32) {
            let (psn, msn, qpn) = (Psn::new(value), Msn::new(value), Qpn::new(value));
            prop_assert_eq!(Psn::from_be_bytes(psn.to_be_bytes()), psn);
            prop_assert_eq!(Msn::from_be_bytes(msn.to_be_bytes()), msn);
            prop_assert_eq!(Qpn::from_be_bytes(qpn.to_be_bytes()), qpn);
            prop_assert_eq!(&psn.to_be_bytes()[..], &psn.get().to_be_bytes()[1..]);
        }
    }
}
