//! Process slots: the part of a number that identifies a process of an address.

use core::fmt;

/// A process among those that share an address. Queue pair numbers and communication IDs begin with the slot.
///
/// Slots 1 to 63 take the upper 8 of the 24 bits of a queue pair number and leave 16 random bits. Slots 64 to
/// 831, for addresses with many processes, take the upper 10 bits and leave 14 random bits.
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
    /// The slot of a process that does not share its address.
    pub const NONE: Self = Self(0);
    /// The largest slot.
    pub const MAX: Self = Self(831);
    /// The first slot that takes 10 bits.
    pub const FIRST_LONG: Self = Self(64);

    /// Returns the slot with this number, or `None` above 831.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// Returns the number of the slot.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the slot that a queue pair number begins with.
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

    /// Returns the slot that a communication ID begins with, if the process that drew the ID has a slot. The
    /// upper 24 bits of such an ID are structured like a queue pair number.
    #[inline]
    #[must_use]
    pub const fn of_id(id: u32) -> Self {
        Self::of(id >> 8)
    }

    /// Returns the number of bits below the slot in a queue pair number.
    #[must_use]
    pub const fn bits_below(self) -> u32 {
        if self.0 < Self::FIRST_LONG.0 { SHORT_BELOW } else { LONG_BELOW }
    }

    /// Returns the smallest queue pair number that begins with this slot.
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

/// Bits below a slot of 8 bits (`SHORT_BELOW`) and of 10 bits (`LONG_BELOW`).
const SHORT_BELOW: u32 = 16;
const LONG_BELOW: u32 = 14;
/// The 10-bit prefix 256 stands for slot 64: it is the first whose upper 8 bits are not a short slot.
const LONG_OFFSET: u32 =
    ((ProcessSlot::FIRST_LONG.0 as u32) << (SHORT_BELOW - LONG_BELOW)) - ProcessSlot::FIRST_LONG.0 as u32;

#[cfg(test)]
mod tests {
    use super::*;

    /// The ranges of the slots are contiguous and cover all numbers.
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
