//! Byte buffers on the stack, because this library must not allocate.

/// Largest length of a path, with its terminating NUL.
pub(crate) const LONGEST: usize = libc::PATH_MAX as usize;

/// A buffer of at most `N` bytes. Excess bytes are dropped.
pub(crate) struct Buffer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Buffer<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Creates a buffer with the decimal digits of a number.
    pub(crate) fn of_number(number: i64) -> Self {
        let mut buffer = Self::new();
        if number < 0 {
            buffer.push(b"-");
        }
        let mut divisor = 1;
        while number.unsigned_abs() / divisor >= 10 {
            divisor *= 10;
        }
        while divisor > 0 {
            buffer.push(&[b'0' + (number.unsigned_abs() / divisor % 10) as u8]);
            divisor /= 10;
        }
        buffer
    }

    pub(crate) fn push(&mut self, more: &[u8]) {
        let len = more.len().min(N - self.len);
        self.bytes[self.len..][..len].copy_from_slice(&more[..len]);
        self.len += len;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
