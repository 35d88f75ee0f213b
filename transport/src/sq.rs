//! The send queue: a ring of work queue elements, which grows with the number of requests in it.

use alloc::boxed::Box;
use alloc::vec;

use roce_packet::Psn;

use crate::completion::WcOpcode;
use crate::ids::PdId;
use crate::memory::{Access, KeyError, KeyTable};
use crate::qp::QpCapabilities;
use crate::reason::{LocalDenial, Rule};
use crate::wr::{MAX_MESSAGE, Payload, PostError, SendFlags, SendOp, SendWr, Sge, UdDestination};

/// The progress of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The request is posted and has no PSN yet.
    Posted,
    /// The request has PSNs, and its packets may have been sent.
    Started,
    /// The request is finished, and only waits for earlier requests to complete.
    Done,
}

/// Length of a ring after the first request.
pub(crate) const FIRST_SLOTS: usize = 4;

/// One send work request in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    /// Bytes of the message.
    pub(crate) len: u32,
    pub(crate) progress: Progress,
    /// PSN of the first packet, and number of PSNs of the message. Valid once the request is started.
    pub(crate) first_psn: Psn,
    pub(crate) psns: u32,
    /// READ only: the last PSN requested so far.
    pub(crate) requested_to: Psn,
    /// XRC only: the shared receive queue of the peer.
    pub(crate) remote_srqn: u32,
    elements: u8,
    inline: Option<u16>,
}

impl Wqe {
    const EMPTY: Self = Self {
        wr_id: 0,
        op: SendOp::Send,
        flags: SendFlags::empty(),
        len: 0,
        progress: Progress::Posted,
        first_psn: Psn::new(0),
        psns: 0,
        requested_to: Psn::new(0),
        remote_srqn: 0,
        elements: 0,
        inline: None,
    };

    pub(crate) fn last_psn(&self) -> Psn {
        self.first_psn.add(self.psns.saturating_sub(1))
    }

    /// Tells whether the message begins behind `psn`. Both `psn` and the end of the message are at `una`, the
    /// oldest unanswered packet, or behind it; the message may begin almost half of all PSNs before it.
    pub(crate) fn is_behind(&self, psn: Psn, una: Psn) -> bool {
        !self.first_psn.before(una) && una.distance_to(psn) < una.distance_to(self.first_psn)
    }

    /// Tells whether `psn` belongs to the message.
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        self.progress == Progress::Started && self.first_psn.distance_to(psn) < self.psns
    }

    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        match self.op {
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::SendWithInvalidate(_) => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Flush { .. } => WcOpcode::Flush,
            SendOp::BindWindow { .. } => WcOpcode::BindWindow,
            SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        }
    }
}

/// The send queue. Positions are counted from the first request ever posted and never wrap. Its memory grows
/// with the number of requests that are queued at once, because few queues are ever full.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// The ring. Its length is zero or a power of two, so that the slot of a position is found without a
    /// division.
    wqes: Box<[Wqe]>,
    /// Maximum number of requests in the queue.
    depth: usize,
    elements: Box<[Sge]>,
    inline: Box<[u8]>,
    /// Destination of each request. Empty except for UD.
    destinations: Box<[Option<UdDestination>]>,
    has_destinations: bool,
    max_elements: usize,
    max_inline: usize,
    /// Position of the oldest incomplete request, and one past the newest one: `head` never passes `tail`.
    head: u64,
    tail: u64,
}

impl SendQueue {
    pub(crate) fn new(capabilities: &QpCapabilities) -> Self {
        Self {
            wqes: Box::default(),
            depth: capabilities.max_send_wr,
            elements: Box::default(),
            inline: Box::default(),
            destinations: Box::default(),
            has_destinations: false,
            max_elements: capabilities.max_send_sge,
            max_inline: capabilities.max_inline,
            head: 0,
            tail: 0,
        }
    }

    /// Creates a queue with a destination for each request.
    pub(crate) fn with_destinations(capabilities: &QpCapabilities) -> Self {
        Self { has_destinations: true, ..Self::new(capabilities) }
    }

    /// Doubles the ring.
    #[cold]
    fn grow(&mut self) {
        let slots = (2 * self.wqes.len()).max(FIRST_SLOTS).min(self.depth.next_power_of_two());
        let new = Self {
            wqes: vec![Wqe::EMPTY; slots].into_boxed_slice(),
            elements: vec![Sge::default(); slots * self.max_elements].into_boxed_slice(),
            inline: vec![0; slots * self.max_inline].into_boxed_slice(),
            destinations: vec![None; if self.has_destinations { slots } else { 0 }].into_boxed_slice(),
            ..*self
        };
        let old = core::mem::replace(self, new);
        for position in old.head..old.tail {
            let (from, to) = (old.slot(position), self.slot(position));
            copy_slot(&old.wqes, &mut self.wqes, 1, from, to);
            copy_slot(&old.elements, &mut self.elements, self.max_elements, from, to);
            copy_slot(&old.inline, &mut self.inline, self.max_inline, from, to);
            copy_slot(&old.destinations, &mut self.destinations, 1, from, to);
        }
    }

    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the destination of the request at `position`.
    pub(crate) fn destination(&self, position: u64) -> Option<UdDestination> {
        *self.destinations.get(self.slot(position))?
    }

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.tail - self.head).unwrap_or(usize::MAX)
    }

    #[inline]
    fn slot(&self, position: u64) -> usize {
        position as usize & self.wqes.len().wrapping_sub(1)
    }

    #[inline]
    pub(crate) fn get(&self, position: u64) -> Option<&Wqe> {
        if position < self.head || position >= self.tail {
            return None;
        }
        self.wqes.get(self.slot(position))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, position: u64) -> Option<&mut Wqe> {
        if position < self.head || position >= self.tail {
            return None;
        }
        let slot = self.slot(position);
        self.wqes.get_mut(slot)
    }

    /// Removes and returns the oldest request.
    pub(crate) fn pop(&mut self) -> Option<Wqe> {
        let wqe = *self.get(self.head)?;
        self.head += 1;
        Some(wqe)
    }

    /// Drops the oldest request.
    #[inline]
    pub(crate) fn skip(&mut self) {
        if self.head < self.tail {
            self.head += 1;
        }
    }

    /// Tells whether all started requests have completed.
    pub(crate) fn is_drained(&self) -> bool {
        self.get(self.head).is_none_or(|wqe| wqe.progress == Progress::Posted)
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Makes all checks of a request that do not depend on later changes, and queues the request.
    pub(crate) fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.len() >= self.depth {
            return Err(PostError::QueueFull { capacity: self.depth });
        }
        let len = self.check_payload(wr)?;
        if self.len() == self.wqes.len() {
            self.grow();
        }
        let slot = self.slot(self.tail);
        let (elements, inline) = self.store_payload(slot, &wr.payload);
        if let Some(destination) = self.destinations.get_mut(slot) {
            *destination = wr.destination;
        }
        if let Some(wqe) = self.wqes.get_mut(slot) {
            let SendWr { wr_id, op, flags, remote_srqn, .. } = *wr;
            *wqe = Wqe { wr_id, op, flags, len, remote_srqn, elements, inline, ..Wqe::EMPTY };
            self.tail += 1;
        }
        Ok(())
    }

    fn check_payload(&self, wr: &SendWr<'_>) -> Result<u32, PostError> {
        // The length that the operation requires, and whether the payload receives its result.
        let (required, returns_data) = match wr.op {
            SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteWithImm { .. } => (None, false),
            SendOp::Read { .. } => (None, true),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => (Some(8), true),
            SendOp::AtomicWrite { .. } => (Some(8), false),
            SendOp::Flush { .. } | SendOp::BindWindow { .. } | SendOp::LocalInvalidate { .. } => {
                (Some(0), false)
            }
        };
        let (max_elements, max_inline) = (self.max_elements, self.max_inline);
        match &wr.payload {
            Payload::Elements(elements) if elements.len() > max_elements => {
                return Err(PostError::TooManyElements { have: elements.len(), limit: max_elements });
            }
            Payload::Inline(_) if returns_data => return Err(PostError::CannotBeInline),
            Payload::Inline(bytes) if bytes.len() > max_inline => {
                return Err(PostError::InlineTooLong { have: bytes.len(), limit: max_inline });
            }
            Payload::Elements(_) | Payload::Inline(_) => {}
        }
        let len = wr.payload.len();
        match required {
            Some(need) if len != need => Err(PostError::WrongLength { need, have: len }),
            _ if len > u64::from(MAX_MESSAGE) => {
                Err(PostError::MessageTooLong { have: len, limit: u64::from(MAX_MESSAGE) })
            }
            _ => Ok(u32::try_from(len).unwrap_or(MAX_MESSAGE)),
        }
    }

    fn store_payload(&mut self, slot: usize, payload: &Payload<'_>) -> (u8, Option<u16>) {
        match payload {
            Payload::Elements(elements) => {
                let start = slot * self.max_elements;
                if let Some(target) = self.elements.get_mut(start..start + elements.len()) {
                    target.copy_from_slice(elements);
                }
                // At most MAX_SGE, because QpCapabilities was checked.
                (u8::try_from(elements.len()).unwrap_or(0), None)
            }
            Payload::Inline(bytes) => {
                let start = slot * self.max_inline;
                if let Some(target) = self.inline.get_mut(start..start + bytes.len()) {
                    target.copy_from_slice(bytes);
                }
                (0, u16::try_from(bytes.len()).ok())
            }
        }
    }

    /// Returns the local elements of the request at `position`.
    fn elements_of(&self, position: u64) -> &[Sge] {
        let Some(wqe) = self.get(position) else { return &[] };
        let start = self.slot(position) * self.max_elements;
        self.elements.get(start..start + usize::from(wqe.elements)).unwrap_or(&[])
    }

    /// Copies `out.len()` bytes of the message at `position`, starting at byte `offset`.
    pub(crate) fn gather(
        &self,
        keys: &KeyTable,
        pd: PdId,
        position: u64,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), KeyError> {
        if let Some(len) = self.get(position).and_then(|wqe| wqe.inline) {
            let start = self.slot(position) * self.max_inline;
            let message = self.inline.get(start..start + usize::from(len)).ok_or(KeyError::OutOfRange)?;
            let from = offset as usize;
            let piece = message.get(from..from + out.len()).ok_or(KeyError::OutOfRange)?;
            out.copy_from_slice(piece);
            return Ok(());
        }
        gather(keys, pd, self.elements_of(position), offset, out)
    }

    /// Returns the rule for a local key of the request at `position` that does not allow access. Only a READ
    /// and an atomic write to local memory.
    #[cold]
    pub(crate) fn denied(&self, keys: &KeyTable, pd: PdId, position: u64, error: KeyError) -> Rule {
        let writes = self.get(position).is_some_and(|wqe| match wqe.op {
            SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => true,
            SendOp::Send
            | SendOp::SendWithImm(_)
            | SendOp::SendWithInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteWithImm { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
            | SendOp::BindWindow { .. }
            | SendOp::LocalInvalidate { .. } => false,
        });
        let need = if writes { Access::LOCAL_WRITE } else { Access::empty() };
        Rule::LocalKey(LocalDenial::find(error, keys, pd, self.elements_of(position), need))
    }

    /// Copies a READ or atomic result into the local elements of the request at `position`.
    pub(crate) fn scatter(
        &self,
        keys: &KeyTable,
        pd: PdId,
        position: u64,
        offset: u32,
        data: (&[u8], &[u8]),
    ) -> Result<(), KeyError> {
        scatter(keys, pd, self.elements_of(position), offset, data)
    }
}

/// Copies the `width` items of a slot from one ring to another, if both have them.
pub(crate) fn copy_slot<T: Copy>(old: &[T], new: &mut [T], width: usize, from: usize, to: usize) {
    if let Some(old) = old.get(from * width..(from + 1) * width)
        && let Some(new) = new.get_mut(to * width..(to + 1) * width)
    {
        new.copy_from_slice(old);
    }
}

/// Copies `out.len()` bytes from `offset` on out of `elements`, which together form one message.
fn gather(keys: &KeyTable, pd: PdId, elements: &[Sge], offset: u32, out: &mut [u8]) -> Result<(), KeyError> {
    let mut out = out;
    // Nearly all requests have one element, for which the loop would be most of the work.
    if let [element] = elements {
        let end = u64::from(offset).saturating_add(out.len() as u64);
        let addr = element.addr.checked_add(offset.into()).filter(|_| end <= element.length.into());
        let range = (addr.ok_or(KeyError::OutOfRange)?, out.len() as u64);
        if out.is_empty() {
            return Ok(());
        }
        let (memory, at) = keys.local(element.lkey, pd, range, Access::empty())?;
        return Ok(memory.read(at, out)?);
    }
    for_pieces(elements, offset, out.len(), |addr, len, lkey| {
        let (memory, at) = keys.local(lkey, pd, (addr, len as u64), Access::empty())?;
        let (piece, rest) =
            core::mem::take(&mut out).split_at_mut_checked(len).ok_or(KeyError::OutOfRange)?;
        out = rest;
        Ok(memory.read(at, piece)?)
    })
}

/// Copies the two parts of `data` consecutively into `elements`, starting at `offset`.
pub(crate) fn scatter(
    keys: &KeyTable,
    pd: PdId,
    elements: &[Sge],
    offset: u32,
    data: (&[u8], &[u8]),
) -> Result<(), KeyError> {
    let mut offset = offset;
    for piece in [data.0, data.1] {
        let mut left = piece;
        for_pieces(elements, offset, piece.len(), |addr, len, lkey| {
            let (memory, at) = keys.local(lkey, pd, (addr, len as u64), Access::LOCAL_WRITE)?;
            let (part, rest) = left.split_at_checked(len).ok_or(KeyError::OutOfRange)?;
            left = rest;
            Ok(memory.write(at, part)?)
        })?;
        offset = offset.saturating_add(u32::try_from(piece.len()).unwrap_or(u32::MAX));
    }
    Ok(())
}

/// Calls `piece` for each range of local memory that contains a part of the `len` bytes of a message from
/// `offset` on. Returns `OutOfRange` if the elements contain fewer bytes.
fn for_pieces(
    elements: &[Sge],
    offset: u32,
    len: usize,
    mut piece: impl FnMut(u64, usize, crate::ids::LKey) -> Result<(), KeyError>,
) -> Result<(), KeyError> {
    let (mut skip, mut left) = (u64::from(offset), len);
    for element in elements {
        if left == 0 {
            break;
        }
        let length = u64::from(element.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        let take = usize::try_from(length - skip).unwrap_or(usize::MAX).min(left);
        let addr = element.addr.checked_add(skip).ok_or(KeyError::OutOfRange)?;
        piece(addr, take, element.lkey)?;
        skip = 0;
        left -= take;
    }
    if left == 0 { Ok(()) } else { Err(KeyError::OutOfRange) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LKey;

    #[test]
    fn requests_stay_in_order_while_their_ring_grows() {
        let capabilities =
            QpCapabilities { max_send_wr: 10, max_send_sge: 2, max_inline: 4, ..QpCapabilities::default() };
        for offset in 0..9 {
            let mut queue = SendQueue::new(&capabilities);
            // Every third request is inline.
            let push = |queue: &mut SendQueue, number: u64| {
                let element = Sge { addr: number, length: 4, lkey: LKey(number as u32) };
                let (elements, bytes) = ([element; 2], (number as u32).to_le_bytes());
                let mut wr = SendWr::new(number, SendOp::Send, &elements);
                if number.is_multiple_of(3) {
                    wr.payload = Payload::Inline(&bytes);
                }
                queue.push(&wr)
            };
            // The oldest request is anywhere in the ring.
            for number in 0..offset {
                push(&mut queue, number).unwrap();
                assert_eq!(queue.pop().unwrap().wr_id, number);
            }
            (0..10).for_each(|number| push(&mut queue, number).unwrap());
            assert_eq!(push(&mut queue, 10), Err(PostError::QueueFull { capacity: 10 }));
            for number in 0..10 {
                let position = queue.head();
                if number % 3 == 0 {
                    let mut found = [0; 4];
                    queue.gather(&KeyTable::new(8, 0), PdId(0), position, 0, &mut found).unwrap();
                    assert_eq!(u64::from(u32::from_le_bytes(found)), number);
                } else {
                    assert_eq!(
                        queue.elements_of(position).iter().map(|sge| sge.addr).sum::<u64>(),
                        2 * number
                    );
                }
                assert_eq!(queue.pop().unwrap().wr_id, number);
            }
            assert!(queue.pop().is_none());
        }
    }
}
