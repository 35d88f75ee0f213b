//! The buffers, and checking their content.

use roce_exchange::content::{Pattern, STAMP, check, stamp};
use roce_exchange::{ToolError, take};
use roce_packet::ImmDt;
use roce_transport::{Payload, RecvWr, SendFlags, SendOp, SendWr, Sge};

use super::Op;
use super::session::Session;

/// Returns the whole content of message `number`, sent from buffer `slot`. Every buffer differs from its
/// neighbours.
pub(super) fn content(slot: u64, number: u64, size: usize) -> Vec<u8> {
    let mut bytes = Pattern::new(31, slot * 7 + 1).bytes(size);
    stamp(&mut bytes, number);
    bytes
}

impl Session<'_> {
    pub(super) fn offset(&self, slot: u64) -> usize {
        slot as usize * self.plan.stride()
    }

    /// Fills `slots` buffers with the content of their first message.
    pub(super) fn fill(&self, slots: u64, size: usize) {
        for slot in 0..slots {
            self.put(slot, &content(slot, slot, size));
        }
    }

    /// Fills a buffer for a side that polls it for the first message.
    pub(super) fn fill_watched(&self, slot: u64, size: usize) {
        self.put(slot, &content_before_first(slot, size));
    }

    /// Zeroes the first `slots` buffers.
    pub(super) fn clear(&self, slots: u64, size: usize) {
        let zeros = vec![0; size];
        for slot in 0..slots {
            self.put(slot, &zeros);
        }
    }

    fn put(&self, slot: u64, bytes: &[u8]) {
        self.resources.put(self.offset(slot), bytes);
    }

    /// Writes the number of a message to the end of the buffer, too. A side that polls its memory waits for
    /// these bytes, because they arrive last.
    pub(super) fn stamp_end(&self, slot: u64, number: u64, size: usize) {
        let (at, len) = end_stamp(size);
        self.resources.put(self.offset(slot) + at, &number.to_le_bytes()[..len]);
    }

    /// Returns whether the number at the end of a buffer is `number`.
    pub(super) fn has_end_stamp(&self, slot: u64, number: u64, size: usize) -> bool {
        let (at, len) = end_stamp(size);
        let mut found = [0; STAMP];
        take(&self.resources.region, self.offset(slot) + at, &mut found[..len]);
        found[..len] == number.to_le_bytes()[..len]
    }

    /// Writes the number of a message into the buffer that it is sent from.
    pub(super) fn stamp(&self, slot: u64, number: u64, size: usize) {
        self.put(slot, &number.to_le_bytes()[..size.min(STAMP)]);
    }

    /// Checks the number in the buffer that a message arrived in.
    pub(super) fn check_stamp(&self, slot: u64, number: u64, size: usize) -> Result<(), ToolError> {
        let (expected, len) = (number.to_le_bytes(), size.min(STAMP));
        let mut found = [0; STAMP];
        take(&self.resources.region, self.offset(slot), &mut found[..len]);
        check(number, size, &found[..len], &expected[..len])
    }

    /// Checks the whole content of a buffer.
    pub(super) fn check_content(&self, slot: u64, expected: &[u8], number: u64) -> Result<(), ToolError> {
        let found = self.resources.bytes(self.offset(slot), expected.len());
        check(number, expected.len(), &found, expected)
    }

    /// Returns a buffer as an element of a work request.
    pub(super) fn element(&self, slot: u64, size: usize) -> Sge {
        let start = self.offset(slot);
        self.resources.region.element(start..start + size)
    }

    /// Returns the address of a buffer on the other side.
    pub(super) fn remote(&self, slot: u64) -> u64 {
        self.remote_addr + self.offset(slot) as u64
    }

    /// Returns the operation of the plan for a buffer on the other side.
    #[inline]
    pub(super) fn operation(&self, slot: u64, number: u64) -> SendOp {
        let (remote_addr, rkey) = (self.remote(slot), self.remote_rkey);
        match self.plan.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::WriteImm => {
                SendOp::WriteWithImm { remote_addr, rkey, imm: ImmDt((number as u32).to_be_bytes()) }
            }
            Op::Read => SendOp::Read { remote_addr, rkey },
        }
    }

    /// Posts the next receive into a whole buffer, or without a buffer for immediate data.
    pub(super) fn post_receive(&mut self, slot: u64) -> Result<(), ToolError> {
        let element = self.element(slot, self.plan.stride());
        let elements: &[Sge] = if self.plan.op == Op::Send { &[element] } else { &[] };
        self.resources.qp.post_recv(&RecvWr { wr_id: self.receives_posted, elements })?;
        self.receives_posted += 1;
        Ok(())
    }
}

/// Returns the offset and the length of the second number of a message.
fn end_stamp(size: usize) -> (usize, usize) {
    let len = size.min(STAMP);
    (size - len, len)
}

/// Returns the content of a message with its number at the end, too.
pub(super) fn content_with_end(slot: u64, number: u64, size: usize) -> Vec<u8> {
    let mut bytes = content(slot, number, size);
    stamp(&mut bytes[end_stamp(size).0..], number);
    bytes
}

/// Returns the content of a buffer before its first message. Its last bytes differ from the number of that
/// message.
fn content_before_first(slot: u64, size: usize) -> Vec<u8> {
    content_with_end(slot, u64::MAX, size)
}

/// The bytes of inline messages, one copy for each buffer.
#[derive(Debug)]
pub(super) struct InlineBytes {
    bytes: Vec<u8>,
    size: usize,
}

impl InlineBytes {
    pub(super) fn new(enabled: bool, slots: u64, size: usize) -> Option<Self> {
        enabled.then(|| {
            let bytes = (0..slots).flat_map(|slot| content(slot, slot, size)).collect();
            Self { bytes, size }
        })
    }

    pub(super) fn stamp(&mut self, slot: u64, number: u64) {
        let start = slot as usize * self.size;
        stamp(&mut self.bytes[start..start + self.size], number);
    }

    pub(super) fn stamp_end(&mut self, slot: u64, number: u64) {
        let (start, (at, len)) = (slot as usize * self.size, end_stamp(self.size));
        stamp(&mut self.bytes[start + at..start + at + len], number);
    }

    pub(super) fn payload(&self, slot: u64) -> Payload<'_> {
        let start = slot as usize * self.size;
        Payload::Inline(&self.bytes[start..start + self.size])
    }
}

/// Builds a send work request. The element must live as long as the request.
#[inline]
pub(super) fn send_wr<'a>(wr_id: u64, op: SendOp, payload: Payload<'a>, signaled: bool) -> SendWr<'a> {
    let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    SendWr { wr_id, op, flags, payload, destination: None, remote_srqn: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes for all buffers would take 2^84 bytes.
    #[test]
    fn inline_bytes_are_built_only_for_inline_messages() {
        assert!(InlineBytes::new(false, u64::MAX, 1 << 20).is_none());
        let mut inline = InlineBytes::new(true, 2, 16).unwrap();
        inline.stamp(1, 7);
        let Payload::Inline(bytes) = inline.payload(1) else { panic!("inline") };
        assert_eq!(bytes, content(1, 7, 16));
    }

    /// In a message of 9 bytes, the pattern continues the number at the start so that the last byte is 0.
    #[test]
    fn what_is_in_memory_before_the_first_message_is_not_taken_for_it() {
        let looks_like_first = |bytes: &[u8]| bytes[end_stamp(bytes.len()).0..].iter().all(|byte| *byte == 0);
        assert!(looks_like_first(&content(1, 1, 9)));
        for size in 1..64 {
            assert!(looks_like_first(&content_with_end(0, 0, size)));
            for slot in 0..2 {
                assert!(
                    !looks_like_first(&content_before_first(slot, size)),
                    "slot {slot} with {size} bytes"
                );
            }
        }
    }
}
