//! Process slots: which process of an address a number belongs to.

use core::fmt;

/// The place of a process among those that share an address. Queue pair numbers and communication IDs begin with it.
///
/// Slots 1 to 63 take the upper 8 bits of the 24 bits of a queue pair number, so 16 random bits are left. Slots 64 to 831, for
/// addresses with many processes, take the upper 10 bits, and 14 random bits are left.
///
/// ```
/// # use roce_transport::ProcessSlot;
/// assert_eq!(ProcessSlot::of(0x05_1234).get(), 5);
/// assert_eq!(ProcessSlot::of(0x40_1234).get(), 64);
/// assert_eq!(ProcessSlot::of(0xff_ffff), ProcessSlot::MAX);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessSlot(u16);

impl ProcessSlot {
    /// The process has its address for itself.
    pub const NONE: Self = Self(0);
    /// The largest.
    pub const MAX: Self = Self(831);
    /// The first slot that takes 10 bits.
    pub const FIRST_LONG: Self = Self(64);

    /// The slot with this number; `None` above 831.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The slot that a queue pair number begins with.
    #[inline]
    #[must_use]
    pub const fn of(qpn: u32) -> Self {
        let qpn = qpn & 0x00ff_ffff;
        let short = qpn >> SHORT_BELOW;
        Self(if short < Self::FIRST_LONG.0 as u32 {
            short as u16
        } else {
            ((qpn >> LONG_BELOW) - LONG_OFFSET) as u16
        })
    }

    /// The slot that a communication ID begins with, if the process that drew it has one: its upper 24 bits are like a queue pair number.
    #[inline]
    #[must_use]
    pub const fn of_id(id: u32) -> Self {
        Self::of(id >> 8)
    }

    /// Bits of a queue pair number below the slot.
    #[must_use]
    pub const fn bits_below(self) -> u32 {
        if self.0 < Self::FIRST_LONG.0 { SHORT_BELOW } else { LONG_BELOW }
    }

    /// The least number that begins with this slot.
    #[must_use]
    pub const fn first_qpn(self) -> u32 {
        if self.0 < Self::FIRST_LONG.0 {
            (self.0 as u32) << SHORT_BELOW
        } else {
            (self.0 as u32 + LONG_OFFSET) << LONG_BELOW
        }
    }
}

impl fmt::Display for ProcessSlot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Bits below a slot of 8 bits, and below one of 10.
const SHORT_BELOW: u32 = 16;
const LONG_BELOW: u32 = 14;
/// The first number of 10 bits whose upper 8 are no short slot is 256; it stands for slot 64.
const LONG_OFFSET: u32 =
    ((ProcessSlot::FIRST_LONG.0 as u32) << (SHORT_BELOW - LONG_BELOW)) - ProcessSlot::FIRST_LONG.0 as u32;

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges follow each other without a gap, and together they are all numbers.
    #[test]
    fn every_number_has_one_slot() {
        let mut next = 0;
        for number in 0..=831 {
            let slot = ProcessSlot::new(number).unwrap();
            assert_eq!(slot.first_qpn(), next);
            next += 1 << slot.bits_below();
            assert_eq!([slot.first_qpn(), next - 1].map(ProcessSlot::of), [slot; 2]);
            assert_eq!(ProcessSlot::of_id(slot.first_qpn() << 8), slot);
        }
        assert_eq!(next, 1 << 24);
        assert_eq!(ProcessSlot::new(832), None);
    }
}
