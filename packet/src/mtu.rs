//! The five payload sizes of a path MTU.

use core::fmt;

/// Path MTU: the number of payload bytes of a full packet (IBTA 5.2.2 lists the five sizes).
///
/// Headers are not included: a datagram with 1,024 payload bytes fits into a link MTU of 1,500, and one with
/// 4,096 needs about 4,200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1,024 bytes: the largest that fits into an ordinary 1,500-byte link MTU.
    Mtu1024,
    /// 2,048 bytes.
    Mtu2048,
    /// 4,096 bytes.
    Mtu4096,
}

impl PathMtu {
    /// All five sizes in ascending order.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Returns the number of payload bytes of a full packet.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self.code()
    }

    /// Returns the MTU of exactly this number of bytes.
    #[must_use]
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        match bytes {
            256 => Some(Self::Mtu256),
            512 => Some(Self::Mtu512),
            1024 => Some(Self::Mtu1024),
            2048 => Some(Self::Mtu2048),
            4096 => Some(Self::Mtu4096),
            _ => None,
        }
    }

    /// Returns the code in connection management messages and verbs, 1 to 5.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// Returns the MTU with this [`Self::code`].
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Mtu256),
            2 => Some(Self::Mtu512),
            3 => Some(Self::Mtu1024),
            4 => Some(Self::Mtu2048),
            5 => Some(Self::Mtu4096),
            _ => None,
        }
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_codes() {
        for (mtu, bytes, code) in
            PathMtu::ALL.into_iter().zip([256, 512, 1024, 2048, 4096]).zip(1..).map(|((a, b), c)| (a, b, c))
        {
            assert_eq!((mtu.bytes(), mtu.code()), (bytes, code));
            assert_eq!(PathMtu::from_bytes(bytes), Some(mtu));
            assert_eq!(PathMtu::from_code(code), Some(mtu));
        }
        assert_eq!(PathMtu::from_code(0), None);
        assert_eq!(PathMtu::from_code(6), None);
        assert_eq!(PathMtu::from_bytes(1500), None);
        assert!(PathMtu::Mtu256 < PathMtu::Mtu4096);
    }
}
