//! How much one call sends.

/// What is left of what one call may send. When it is spent, the caller gives up the lock of the context, and the next call goes
/// on with the queue pair whose turn it is: a READ of 256 MiB would otherwise hold the context for 130 ms.
///
/// It is as much as the `udp` device gives to the kernel in one system call (16 superpackets of 64 KiB), so that bulk transfers
/// leave in batches of full size, and about as much as one burst brings in.
#[derive(Debug)]
pub(crate) struct Budget {
    packets: usize,
    bytes: usize,
}

impl Budget {
    const PACKETS: usize = 1024;
    const BYTES: usize = 1 << 20;

    #[inline]
    pub(super) fn spend(&mut self, bytes: usize) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes == 0
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self { packets: Self::PACKETS, bytes: Self::BYTES }
    }
}
