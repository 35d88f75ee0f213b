//! The interface of the backends, and what they share.

use std::os::fd::BorrowedFd;

use crate::framed::port::Outgoing;

/// Maximum number of descriptors in a burst.
pub(super) const MAX_BURST: u32 = 256;
/// Length of an Ethernet header, in bytes.
const ETHERNET: usize = 14;

/// Moves chunks between this process and the kernel.
pub(super) trait Backend: Send {
    fn socket(&self) -> BorrowedFd<'_>;

    /// Implements [`FramePort::slot`](crate::framed::port::FramePort::slot).
    fn slot(&mut self) -> Option<&mut [u8]>;

    /// Takes a frame out of the slot; returns whether it was accepted. The slot is free again in any case.
    fn commit(&mut self, frame: &Outgoing) -> bool;

    /// Shows committed frames to the kernel; returns whether all of them are in the ring.
    fn submit(&mut self) -> bool;

    /// Returns the number of descriptors that the kernel has not read from the ring yet.
    fn unread(&mut self) -> u32;

    /// Returns whether the kernel needs a system call to send, and whether it needs one to receive.
    fn needs_wakeup(&self) -> (bool, bool);

    /// Takes back the chunks that the kernel has finished with.
    fn reap(&mut self);

    /// Calls `deliver` for each complete frame that has arrived, with its first bytes, its remaining bytes,
    /// and whether it arrived in several chunks.
    fn receive(&mut self, deliver: impl FnMut(&[u8], &[u8], bool));
}

/// Returns the first bytes of a frame of `count` chunks, and the rest. With more than two chunks, the rest is
/// joined in `scratch`.
pub(super) fn gather<'a>(
    count: usize,
    chunk: impl Fn(usize) -> &'a [u8],
    scratch: &'a mut Vec<u8>,
) -> (&'a [u8], &'a [u8]) {
    let tail = match count {
        1 => &[],
        2 => chunk(1),
        _ => {
            scratch.clear();
            (1..count).for_each(|index| scratch.extend_from_slice(chunk(index)));
            scratch.as_slice()
        }
    };
    (chunk(0), tail)
}

/// Returns whether it is a single frame with a complete header.
pub(super) fn can_be_sent(frame: &Outgoing) -> bool {
    frame.bytes.len() >= ETHERNET && frame.split.is_none()
}
