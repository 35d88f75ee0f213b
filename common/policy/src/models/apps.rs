//! The applications of the models.

use std::time::Duration;

use super::end::{Completions, End};
use crate::threads::{Action, App};

/// Posts messages, one by one.
fn post(end: &mut End, messages: u64) -> Action {
    end.post(messages);
    Action::Done
}

/// Polls for a message, and answers it.
pub(super) struct PingPong {
    has_turn: bool,
}

impl PingPong {
    pub(super) fn first() -> Self {
        Self { has_turn: true }
    }

    pub(super) fn second() -> Self {
        Self { has_turn: false }
    }
}

impl App<End> for PingPong {
    fn next(&mut self, end: &mut End, found: Completions) -> Action {
        if std::mem::take(&mut self.has_turn) || found.receives > 0 { post(end, 1) } else { Action::Poll }
    }
}

/// Keeps a number of messages outstanding.
pub(super) struct Stream {
    depth: u64,
    is_polled: bool,
}

impl Stream {
    pub(super) fn of(depth: u64) -> Self {
        Self { depth, is_polled: true }
    }
}

impl App<End> for Stream {
    fn next(&mut self, end: &mut End, _: Completions) -> Action {
        let outstanding = end.link.outstanding;
        let has_room = outstanding < self.depth;
        if std::mem::replace(&mut self.is_polled, false) && has_room {
            return post(end, self.depth - outstanding);
        }
        self.is_polled = true;
        Action::Poll
    }
}

/// Polls for messages.
pub(super) struct Receive;

impl App<End> for Receive {
    fn next(&mut self, _: &mut End, _: Completions) -> Action {
        Action::Poll
    }
}

/// Sends a message, polls for its completion, and sleeps.
pub(super) struct SendEach {
    pause: Duration,
    has_slept: bool,
}

impl SendEach {
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, has_slept: true }
    }
}

impl App<End> for SendEach {
    fn next(&mut self, end: &mut End, found: Completions) -> Action {
        if std::mem::take(&mut self.has_slept) {
            return post(end, 1);
        }
        if found.sends > 0 {
            self.has_slept = true;
            return Action::SleepFor(self.pause);
        }
        Action::Poll
    }
}

/// Polls for a message, and computes for a time.
pub(super) struct Compute(pub(super) Duration);

impl App<End> for Compute {
    fn next(&mut self, _: &mut End, found: Completions) -> Action {
        if found.receives > 0 { Action::Compute(self.0) } else { Action::Poll }
    }
}

/// Polls another queue.
pub(super) struct PollOther;

impl App<End> for PollOther {
    fn next(&mut self, _: &mut End, _: Completions) -> Action {
        Action::PollOther
    }
}

/// Does nothing.
pub(super) struct Idle;

impl App<End> for Idle {
    fn next(&mut self, _: &mut End, _: Completions) -> Action {
        Action::End
    }
}
