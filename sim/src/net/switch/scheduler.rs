//! Which queue of a port sends next: pause frames, then strict priorities from the highest down, then weighted ones
//! in turn (deficit round robin, Shreedhar and Varghese 1995).

use super::super::frame::Frames;
use super::super::port::{CONTROL, Port};
use super::super::settings::{Class, PRIORITIES};

/// Bytes that a weight of one adds in a round: no frame is longer than a few rounds.
const QUANTUM: u32 = 512;

/// The queue that sends next, if one may.
#[inline]
pub(super) fn next(port: &mut Port, frames: &Frames, classes: &[Class; PRIORITIES]) -> Option<usize> {
    let sendable = port.sendable();
    if sendable == 0 {
        return None;
    }
    if sendable >> CONTROL & 1 == 1 {
        return Some(CONTROL);
    }
    let mut rest = sendable;
    while rest != 0 {
        let queue = (15 - rest.leading_zeros()) as usize;
        if classes[queue] == Class::Strict {
            return Some(queue);
        }
        rest &= !(1 << queue);
    }
    weighted(port, frames, classes, sendable)
}

/// Only weighted queues are left in `sendable`.
fn weighted(port: &mut Port, frames: &Frames, classes: &[Class; PRIORITIES], sendable: u16) -> Option<usize> {
    for queue in 0..PRIORITIES {
        // A queue that ran empty starts anew.
        if port.waiting >> queue & 1 == 0 {
            port.turns.deficit[queue] = 0;
        }
    }
    // Every round adds at least one quantum to each, so the longest frame needs few.
    for _ in 0..PRIORITIES * 64 {
        let queue = usize::from(port.turns.next);
        let front = port.queues[queue].front().filter(|_| sendable >> queue & 1 == 1);
        if let (Some(front), Class::Weighted(weight)) = (front, classes[queue]) {
            if !port.turns.granted {
                port.turns.granted = true;
                port.turns.deficit[queue] += weight.max(1).saturating_mul(QUANTUM);
            }
            let len = frames.get(front).buffered_len() as u32;
            if port.turns.deficit[queue] >= len {
                port.turns.deficit[queue] -= len;
                return Some(queue);
            }
        }
        port.turns.next = (port.turns.next + 1) % PRIORITIES as u8;
        port.turns.granted = false;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::frame::{Frame, Frames, host_address};
    use crate::net::port::Owner;
    use crate::net::topology::LinkSpec;

    fn fill(port: &mut Port, frames: &mut Frames, queue: usize, count: usize, len: usize) {
        let mut path = Frame::pause(0, 0).path();
        path.destination = host_address(0);
        for _ in 0..count {
            let id = frames.insert(Frame::datagram(&path, len).unwrap());
            port.enqueue(frames, queue, id);
        }
    }

    fn drain(port: &mut Port, frames: &Frames, classes: &[Class; PRIORITIES], most: usize) -> Vec<usize> {
        let mut order = Vec::new();
        while order.len() < most
            && let Some(queue) = next(port, frames, classes)
        {
            port.dequeue(frames, queue);
            order.push(queue);
        }
        order
    }

    #[test]
    fn strict_from_the_highest_down_and_pause_frames_first() {
        let (mut frames, classes) = (Frames::new(64), [Class::Strict; PRIORITIES]);
        let mut port = Port::new(Owner::Switch(0), 0, LinkSpec::DEFAULT, None);
        for queue in [0, 3, 6, CONTROL, 3] {
            fill(&mut port, &mut frames, queue, 1, 100);
        }
        assert_eq!(drain(&mut port, &frames, &classes, 9), [CONTROL, 6, 3, 3, 0]);
        fill(&mut port, &mut frames, 3, 1, 100);
        fill(&mut port, &mut frames, CONTROL, 1, 100);
        port.pause.mask = 0xff;
        assert_eq!(drain(&mut port, &frames, &classes, 9), [CONTROL], "pause frames are never paused");
    }

    #[test]
    fn weights_share_bytes_and_not_frames() {
        let mut classes = [Class::Strict; PRIORITIES];
        (classes[1], classes[2]) = (Class::Weighted(3), Class::Weighted(1));
        let mut frames = Frames::new(64);
        let mut port = Port::new(Owner::Switch(0), 0, LinkSpec::DEFAULT, None);
        fill(&mut port, &mut frames, 1, 4_000, 1_040);
        fill(&mut port, &mut frames, 2, 4_000, 4_112);
        let order = drain(&mut port, &frames, &classes, 1_300);
        let small = order.iter().filter(|queue| **queue == 1).count() as f64 * 1_086.0;
        let large = order.iter().filter(|queue| **queue == 2).count() as f64 * 4_158.0;
        assert!((small / large - 3.0).abs() < 0.1, "{}", small / large);
    }
}
