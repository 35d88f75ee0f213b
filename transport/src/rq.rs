//! Receive queues of one queue pair, or shared by several.

use alloc::boxed::Box;
use alloc::vec;

use crate::ids::PdId;
use crate::memory::{Access, KeyError, KeyTable};
use crate::sq::{FIRST_SLOTS, copy_slot, scatter};
use crate::wr::{PostError, RecvWr, Sge};
use crate::xrc::XrcSrq;

/// A receive taken from its queue, ready for a message. Its elements are in a [`Landing`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receive {
    pub(crate) wr_id: u64,
    /// Maximum number of bytes.
    pub(crate) capacity: u64,
}

/// The elements of the one receive that a queue pair has in use.
#[derive(Debug)]
pub(crate) struct Landing {
    elements: Box<[Sge]>,
    len: usize,
}

impl Landing {
    /// Creates space for a receive of up to `max_elements` elements.
    pub(crate) fn new(max_elements: usize) -> Self {
        Self { elements: vec![Sge::default(); max_elements].into_boxed_slice(), len: 0 }
    }

    /// Returns the elements of the receive in use.
    pub(crate) fn elements(&self) -> &[Sge] {
        self.elements.get(..self.len).unwrap_or_default()
    }

    fn set(&mut self, elements: &[Sge]) {
        self.len = elements.len();
        for (own, element) in self.elements.iter_mut().zip(elements) {
            *own = *element;
        }
    }

    /// Copies one or two parts of a message into the buffer, starting at `offset`.
    pub(crate) fn scatter(
        &self,
        keys: &KeyTable,
        pd: PdId,
        offset: u32,
        data: (&[u8], &[u8]),
    ) -> Result<(), KeyError> {
        scatter(keys, pd, self.elements(), offset, data)
    }

    /// Checks the key of each element, so that a message is refused before its first byte is written.
    pub(crate) fn check(&self, keys: &KeyTable, pd: PdId) -> Result<(), KeyError> {
        for element in self.elements().iter().filter(|element| element.length > 0) {
            let range = (element.addr, u64::from(element.length));
            keys.local(element.lkey, pd, range, Access::LOCAL_WRITE)?;
        }
        Ok(())
    }
}

/// A ring of receives. Its memory grows with the number of receives that are queued at once.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    wr_ids: Box<[u64]>,
    lens: Box<[u8]>,
    elements: Box<[Sge]>,
    max_elements: usize,
    /// Maximum number of receives.
    depth: usize,
    head: usize,
    len: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: usize, max_elements: usize) -> Self {
        Self {
            wr_ids: Box::default(),
            lens: Box::default(),
            elements: Box::default(),
            max_elements,
            depth,
            head: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.depth
    }

    pub(crate) fn max_elements(&self) -> usize {
        self.max_elements
    }

    /// Changes the capacity and keeps the receives. Returns `false` if they do not fit.
    pub(crate) fn resize(&mut self, depth: usize) -> bool {
        if depth < self.len {
            return false;
        }
        self.depth = depth;
        if self.wr_ids.len() > depth {
            self.set_slots(depth);
        }
        true
    }

    /// Changes the length of the ring to one that all receives fit into.
    #[cold]
    fn set_slots(&mut self, slots: usize) {
        let new = Self {
            wr_ids: vec![0; slots].into_boxed_slice(),
            lens: vec![0; slots].into_boxed_slice(),
            elements: vec![Sge::default(); slots * self.max_elements].into_boxed_slice(),
            head: 0,
            ..*self
        };
        let old = core::mem::replace(self, new);
        for index in 0..self.len {
            let from = old.slot(index);
            copy_slot(&old.wr_ids, &mut self.wr_ids, 1, from, index);
            copy_slot(&old.lens, &mut self.lens, 1, from, index);
            copy_slot(&old.elements, &mut self.elements, self.max_elements, from, index);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    fn slot(&self, index: usize) -> usize {
        let (at, slots) = (self.head + index, self.wr_ids.len());
        if at >= slots { at - slots } else { at }
    }

    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.len >= self.capacity() {
            return Err(PostError::QueueFull { capacity: self.capacity() });
        }
        if wr.elements.len() > self.max_elements {
            return Err(PostError::TooManyElements { have: wr.elements.len(), limit: self.max_elements });
        }
        if self.len == self.wr_ids.len() {
            self.set_slots((2 * self.len).max(FIRST_SLOTS).min(self.depth));
        }
        let slot = self.slot(self.len);
        let start = slot * self.max_elements;
        if let (Some(id), Some(len), Some(target)) = (
            self.wr_ids.get_mut(slot),
            self.lens.get_mut(slot),
            self.elements.get_mut(start..start + wr.elements.len()),
        ) {
            *id = wr.wr_id;
            *len = u8::try_from(wr.elements.len()).unwrap_or(0);
            target.copy_from_slice(wr.elements);
            self.len += 1;
        }
        Ok(())
    }

    /// Returns the capacity in bytes of the next receive.
    pub(crate) fn next_capacity(&self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let slot = self.slot(0);
        let start = slot * self.max_elements;
        let stored = self.elements.get(start..start + usize::from(*self.lens.get(slot)?))?;
        Some(stored.iter().map(|element| u64::from(element.length)).sum())
    }

    /// Removes the next receive and stores its elements in `landing`.
    pub(crate) fn pop(&mut self, landing: &mut Landing) -> Option<Receive> {
        if self.len == 0 {
            return None;
        }
        let slot = self.slot(0);
        let start = slot * self.max_elements;
        let count = usize::from(*self.lens.get(slot)?);
        let stored = self.elements.get(start..start + count)?;
        landing.set(stored);
        let capacity = stored.iter().map(|element| u64::from(element.length)).sum();
        let wr_id = self.skip()?;
        Some(Receive { wr_id, capacity })
    }

    /// Removes the next receive and returns only its identifier.
    pub(crate) fn skip(&mut self) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let wr_id = *self.wr_ids.get(self.slot(0))?;
        self.head = self.slot(1);
        self.len -= 1;
        Some(wr_id)
    }
}

/// A receive queue that is shared by several queue pairs.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) pd: PdId,
    pub(crate) queue: ReceiveQueue,
    /// Limit below which the number of receives raises an event; 0 is disarmed.
    pub(crate) limit: usize,
    /// Number of queue pairs of this queue, except XRC targets, which select a queue for each message.
    pub(crate) users: usize,
    /// Attributes for XRC targets.
    pub(crate) xrc: Option<XrcSrq>,
}

impl SharedReceiveQueue {
    /// Takes a receive. The flag tells whether the limit event is due.
    pub(crate) fn take(&mut self, landing: &mut Landing) -> Option<(Receive, bool)> {
        let receive = self.queue.pop(landing)?;
        let below = self.limit > 0 && self.queue.len() < self.limit;
        if below {
            self.limit = 0;
        }
        Some((receive, below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LKey;

    fn element(number: u64) -> Sge {
        Sge { addr: number, length: number as u32, lkey: LKey(number as u32) }
    }

    /// Takes the next receive, and checks that its elements are those of the same number.
    fn take(queue: &mut ReceiveQueue, landing: &mut Landing) -> Option<u64> {
        let receive = queue.pop(landing)?;
        assert_eq!(landing.elements(), [element(receive.wr_id), element(receive.wr_id + 1)]);
        Some(receive.wr_id)
    }

    #[test]
    fn receives_stay_in_order_while_their_ring_grows_and_shrinks() {
        for offset in 0..9 {
            let mut queue = ReceiveQueue::new(10, 2);
            let mut landing = Landing::new(2);
            let push = |queue: &mut ReceiveQueue, number| {
                queue.push(&RecvWr { wr_id: number, elements: &[element(number), element(number + 1)] })
            };
            // The oldest receive is anywhere in the ring.
            for number in 0..offset {
                push(&mut queue, number).unwrap();
                assert_eq!(take(&mut queue, &mut landing), Some(number));
            }
            (0..10).for_each(|number| push(&mut queue, number).unwrap());
            assert_eq!(push(&mut queue, 10), Err(PostError::QueueFull { capacity: 10 }));
            assert_eq!((take(&mut queue, &mut landing), queue.len()), (Some(0), 9));
            assert!(!queue.resize(8) && queue.resize(9) && push(&mut queue, 10).is_err());
            assert!(queue.resize(20));
            (10..21).for_each(|number| push(&mut queue, number).unwrap());
            assert_eq!((queue.capacity(), queue.len()), (20, 20));
            (1..21).for_each(|number| assert_eq!(take(&mut queue, &mut landing), Some(number)));
            assert_eq!(take(&mut queue, &mut landing), None);
        }
    }
}
