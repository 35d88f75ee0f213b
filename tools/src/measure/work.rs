//! Buffers, their content, and how it is checked.

use roce_transport::{Payload, RecvWr, SendFlags, SendOp, SendWr, Sge};

use super::session::{PerfError, Session};

/// Bytes at the start of a message that hold its number.
const STAMP: usize = 8;

/// The byte at `index` of whatever is sent from buffer `slot`. Every buffer differs from its neighbours,
/// and no run of 256 bytes repeats where the next one begins.
fn pattern(slot: u64, index: usize) -> u8 {
    (index as u64).wrapping_mul(31).wrapping_add(index as u64 >> 8).wrapping_add(slot * 7 + 1) as u8
}

/// The whole content of message `number` when it is sent from buffer `slot`.
pub(super) fn content(slot: u64, number: u64, size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..size).map(|index| pattern(slot, index)).collect();
    stamp_bytes(&mut bytes, number);
    bytes
}

fn stamp_bytes(bytes: &mut [u8], number: u64) {
    for (byte, stamp) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = stamp;
    }
}

impl Session {
    pub(super) fn offset(&self, slot: u64) -> usize {
        slot as usize * self.plan.stride()
    }

    /// Fills `slots` buffers with what will be sent from them.
    pub(super) fn fill(&self, slots: u64, size: usize) {
        for slot in 0..slots {
            self.put(slot, &content(slot, slot, size));
        }
    }

    /// Zeroes the first `slots` buffers.
    pub(super) fn clear(&self, slots: u64, size: usize) {
        let zeros = vec![0; size];
        for slot in 0..slots {
            self.put(slot, &zeros);
        }
    }

    fn put(&self, slot: u64, bytes: &[u8]) {
        let written = self.region.write(self.offset(slot), bytes);
        debug_assert!(written.is_ok(), "buffers lie inside the region");
    }

    /// Writes the number of a message into the buffer that it is sent from.
    pub(super) fn stamp(&self, slot: u64, number: u64, size: usize) {
        self.put(slot, &number.to_le_bytes()[..size.min(STAMP)]);
    }

    /// Checks the number in the buffer that a message arrived in.
    pub(super) fn check_stamp(&self, slot: u64, number: u64, size: usize) -> Result<(), PerfError> {
        let expected = number.to_le_bytes();
        let mut found = [0; STAMP];
        let len = size.min(STAMP);
        let read = self.region.read(self.offset(slot), &mut found[..len]);
        debug_assert!(read.is_ok(), "buffers lie inside the region");
        compare(number, &expected[..len], &found[..len], size)
    }

    /// Checks the whole content of a buffer.
    pub(super) fn check_content(&self, slot: u64, expected: &[u8], number: u64) -> Result<(), PerfError> {
        let mut found = vec![0; expected.len()];
        let read = self.region.read(self.offset(slot), &mut found);
        debug_assert!(read.is_ok(), "buffers lie inside the region");
        compare(number, expected, &found, expected.len())
    }

    /// A buffer as an element of a work request.
    pub(super) fn element(&self, slot: u64, size: usize) -> Sge {
        let start = self.offset(slot);
        self.region.element(start..start + size)
    }

    /// The address of a buffer on the other side.
    pub(super) fn remote(&self, slot: u64) -> u64 {
        self.remote_addr + self.offset(slot) as u64
    }

    /// Posts a receive into a whole buffer, or without one for immediate data.
    pub(super) fn post_receive(&self, slot: u64, wr_id: u64, with_buffer: bool) -> Result<(), PerfError> {
        let element = self.element(slot, self.plan.stride());
        let elements: &[Sge] = if with_buffer { &[element] } else { &[] };
        Ok(self.qp.post_recv(&RecvWr { wr_id, elements })?)
    }
}

fn compare(message: u64, expected: &[u8], found: &[u8], size: usize) -> Result<(), PerfError> {
    match expected.iter().zip(found).position(|(expected, found)| expected != found) {
        None => Ok(()),
        Some(at) => {
            let (expected, found) = (expected[at], found[at]);
            Err(PerfError::Content { message, size, at, expected, found })
        }
    }
}

/// The bytes of inline messages, one copy for each buffer.
#[derive(Debug)]
pub(super) struct InlineBytes {
    bytes: Vec<u8>,
    size: usize,
}

impl InlineBytes {
    pub(super) fn new(enabled: bool, slots: u64, size: usize) -> Option<Self> {
        let bytes = (0..slots).flat_map(|slot| content(slot, slot, size)).collect();
        enabled.then_some(Self { bytes, size })
    }

    pub(super) fn stamp(&mut self, slot: u64, number: u64) {
        let start = slot as usize * self.size;
        stamp_bytes(&mut self.bytes[start..start + self.size], number);
    }

    pub(super) fn payload(&self, slot: u64) -> Payload<'_> {
        let start = slot as usize * self.size;
        Payload::Inline(&self.bytes[start..start + self.size])
    }
}

/// A send work request; the element must live as long as it.
pub(super) fn send_wr<'a>(wr_id: u64, op: SendOp, payload: Payload<'a>, signaled: bool) -> SendWr<'a> {
    let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    SendWr { wr_id, op, flags, payload, destination: None }
}
