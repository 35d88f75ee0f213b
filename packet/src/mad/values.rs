//! Values that several messages contain: IDs of connections, and times.

use core::fmt;

/// The ID of a connection at one end, 32 bits. Each end has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.0)
    }
}

/// A time as a five-bit code `t`: 4.096 µs × 2^t, from 4 µs to 2.4 hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CmTimeout(u8);

impl CmTimeout {
    /// The longest time, code 31.
    pub const MAX: Self = Self(31);

    /// Returns the time with this code. Uses only the low five bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Returns the code, 0 to 31.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the time in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        4096 << (self.0 & 0x1f)
    }
}

impl fmt::Display for CmTimeout {
    /// Writes the time rounded, with a suitable unit: `4.1 us`, `67.1 ms`, `2.20 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nanos() as f64 {
            ns if ns < 1e6 => write!(f, "{:.1} us", ns / 1e3),
            ns if ns < 1e9 => write!(f, "{:.1} ms", ns / 1e6),
            ns => write!(f, "{:.2} s", ns / 1e9),
        }
    }
}
