//! Chunks to receive into that the kernel is not given while it needs few.
//!
//! The kernel takes chunks in the order in which they come back. If it had all of them, each frame would lie where none has been for
//! 16 MiB, far outside the second-level cache of either processor. Two processors over a veth pair move a tenth more bytes with
//! 1,024 chunks than with 4,096. A receiver that is kept from its processor needs the others. So the kernel has four times as many as the longest
//! queue that was found lately.

use super::umem::RX_CHUNKS;

/// The fewest chunks that the kernel has: twice what one queue pair may have under way by default, with path MTU 4096.
const LEAST: u32 = 1024;
/// How many times the longest queue the kernel has.
const MARGIN: u32 = 4;
/// A queue counts until so many chunks have arrived after it, and up to as many again: 25 to 50 ms at 20 Gb/s.
const PERIOD: u32 = 1 << 15;

/// The chunks that are held back, and what decides how many these are.
pub(super) struct Reserve {
    held: Vec<u64>,
    least: u32,
    /// How many chunks the kernel is to have.
    wanted: u32,
    /// The longest queue in this period and in the one before.
    longest: [u32; 2],
    /// Chunks that arrive until the period ends.
    left: u32,
}

impl Reserve {
    /// Has all chunks; [`Self::lend`] gives the first to the kernel. Holds none back where a driver puts frames into chunks itself, as it
    /// takes them long before.
    pub(super) fn new(chunks: impl Iterator<Item = u64>, is_zero_copy: bool) -> Self {
        let least = if is_zero_copy { RX_CHUNKS } else { LEAST };
        Self { held: chunks.collect(), least, wanted: RX_CHUNKS, longest: [0; 2], left: PERIOD }
    }

    /// So many chunks were waiting, more than none.
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

    /// Takes a chunk that the kernel filled and that was read. Gives back those that the kernel is to have.
    pub(super) fn exchange(&mut self, chunk: u64) -> impl Iterator<Item = u64> {
        self.held.push(chunk);
        self.lend()
    }

    /// Gives away what the kernel is to have and does not have.
    pub(super) fn lend(&mut self) -> impl Iterator<Item = u64> {
        let away = self.held.len().saturating_sub((RX_CHUNKS - self.wanted) as usize);
        // The one that was read last first: it is in the cache.
        (0..away).map_while(|_| self.held.pop())
    }

    /// How many chunks the kernel has.
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

    /// `queue` frames of a chunk arrive at a time, `times` times. Where each chunk lies is its number.
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
