//! Receive chunks that the kernel does not get while it needs few.
//!
//! The kernel uses chunks in the order in which they are returned. If it had all of them, each frame would
//! lie where none was for the last 16 MiB, outside the second-level cache of either processor. Two processors
//! over a veth pair move 10 % more bytes with 1,024 chunks than with 4,096. A receiver that is descheduled
//! needs the others, so the kernel has four times as many chunks as the longest recent queue.

use super::umem::RX_CHUNKS;

/// Minimum number of chunks in the kernel: twice the default window of a queue pair with path MTU 4096.
const LEAST: u32 = 1024;
/// Ratio of the kernel's chunks to the longest queue.
const MARGIN: u32 = 4;
/// A queue counts until 1 to 2 times this number of chunks have arrived: 25 to 50 ms at 20 Gb/s.
const PERIOD: u32 = 1 << 15;

/// The chunks that are held back, and the state that determines their number.
pub(super) struct Reserve {
    held: Vec<u64>,
    least: u32,
    /// The number of chunks that the kernel should have.
    wanted: u32,
    /// The longest queue in this period and in the previous one.
    longest: [u32; 2],
    /// Number of chunks until the end of the period.
    left: u32,
}

impl Reserve {
    /// Creates a reserve of all chunks; [`Self::lend`] takes out the first ones. With zero copy, none are
    /// held back later, because the driver takes chunks long before it fills them.
    pub(super) fn new(chunks: impl Iterator<Item = u64>, is_zero_copy: bool) -> Self {
        let least = if is_zero_copy { RX_CHUNKS } else { LEAST };
        Self { held: chunks.collect(), least, wanted: RX_CHUNKS, longest: [0; 2], left: PERIOD }
    }

    /// Records that `waiting` chunks, more than none, were waiting.
    pub(super) fn found(&mut self, waiting: u32) {
        self.longest[0] = self.longest[0].max(waiting);
        self.wanted = self.wanted.max(self.needed());
        self.left = self.left.saturating_sub(waiting);
        if self.left == 0 {
            self.longest = [0, self.longest[0]];
            self.wanted = self.needed();
            self.left = PERIOD;
        }
    }

    fn needed(&self) -> u32 {
        let longest = self.longest[0].max(self.longest[1]);
        longest.saturating_mul(MARGIN).clamp(self.least, RX_CHUNKS)
    }

    /// Takes a chunk that the kernel filled and that was read; returns those that the kernel should get.
    pub(super) fn exchange(&mut self, chunk: u64) -> impl Iterator<Item = u64> {
        self.held.push(chunk);
        self.lend()
    }

    /// Takes out the chunks that the kernel should have and does not have.
    pub(super) fn lend(&mut self) -> impl Iterator<Item = u64> {
        let away = self.held.len().saturating_sub((RX_CHUNKS - self.wanted) as usize);
        // The most recently read chunk first, because it is in the cache.
        (0..away).map_while(|_| self.held.pop())
    }

    /// Returns the number of chunks in the kernel.
    #[cfg(test)]
    fn lent(&self) -> u32 {
        RX_CHUNKS - self.held.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(is_zero_copy: bool) -> Reserve {
        let mut reserve = Reserve::new(0..u64::from(RX_CHUNKS), is_zero_copy);
        let _ = reserve.lend().count();
        reserve
    }

    /// Simulates `times` arrivals of `queue` single-chunk frames; the number of a chunk is its address.
    fn arrive(reserve: &mut Reserve, queue: u32, times: u32) {
        for _ in 0..times {
            reserve.found(queue);
            for chunk in 0..queue {
                let _ = reserve.exchange(chunk.into()).count();
            }
        }
    }

    #[test]
    fn the_kernel_has_few_chunks_while_queues_are_short_and_all_after_a_long_one() {
        let mut reserve = opened(false);
        assert_eq!(reserve.lent(), RX_CHUNKS);
        arrive(&mut reserve, 16, PERIOD / 16 - 1);
        assert_eq!(reserve.lent(), RX_CHUNKS, "until a period has shown that few are enough");
        arrive(&mut reserve, 16, RX_CHUNKS / 16);
        assert_eq!(reserve.lent(), LEAST);
        arrive(&mut reserve, 300, 1);
        assert_eq!(reserve.lent(), 1200, "at once");
        arrive(&mut reserve, 400, 3);
        assert_eq!(reserve.lent(), 1600);
        arrive(&mut reserve, 2000, 1);
        assert_eq!(reserve.lent(), RX_CHUNKS);
        arrive(&mut reserve, 1, PERIOD);
        assert_eq!(reserve.lent(), RX_CHUNKS, "for a period at least");
        arrive(&mut reserve, 1, PERIOD);
        assert_eq!(reserve.lent(), LEAST);
    }

    #[test]
    fn no_chunk_is_lost_or_doubled() {
        let mut reserve = Reserve::new(0..u64::from(RX_CHUNKS), false);
        let mut with_kernel: std::collections::VecDeque<u64> = reserve.lend().collect();
        for step in 0..20_000_u32 {
            let queue = if step % 3_001 == 0 { 300 } else { 1 + step % 60 };
            reserve.found(queue);
            for _ in 0..queue.min(with_kernel.len() as u32) {
                let chunk = with_kernel.pop_front().unwrap();
                with_kernel.extend(reserve.exchange(chunk));
            }
            assert_eq!(with_kernel.len() as u32, reserve.lent());
        }
        let mut all: Vec<u64> = with_kernel.into_iter().chain(reserve.held).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..u64::from(RX_CHUNKS)));
    }

    #[test]
    fn a_driver_that_fills_chunks_itself_has_all() {
        let mut reserve = opened(true);
        arrive(&mut reserve, 1, 3 * PERIOD);
        assert_eq!(reserve.lent(), RX_CHUNKS);
    }
}
