//! What parts of a network send to each other, between two windows.

use super::Simulation;

impl Simulation {
    /// Moves frames, and transfers of the scale-up network, to the parts of their destinations.
    pub(super) fn exchange(&mut self) {
        self.exchange_scale_up();
        let mut frames = 0;
        for from in 0..self.parts.len() {
            for to in 0..self.parts.len() {
                // The slot is not empty if the window that takes its frames has not begun.
                if self.parts[to].incoming[from].is_empty() {
                    let mails = std::mem::take(&mut self.parts[from].world.outgoing[to]);
                    // Reuse the allocation of the emptied list.
                    let room = std::mem::replace(&mut self.parts[to].incoming[from], mails);
                    self.parts[from].world.outgoing[to] = room;
                }
                frames += self.parts[to].incoming[from].len() + self.parts[from].world.outgoing[to].len();
            }
            frames += self.parts[from].world.frames.live();
        }
        self.most_frames = self.most_frames.max(frames);
    }

    fn exchange_scale_up(&mut self) {
        for from in 0..self.parts.len() {
            for sent in std::mem::take(&mut self.parts[from].world.scale_up.sent) {
                let part = &mut self.parts[sent.to.part as usize];
                part.next = part.next.min(sent.arrival);
                part.world.take_scale_up(sent);
            }
        }
    }
}
