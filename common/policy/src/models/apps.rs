//! The applications of the models.

use std::time::Duration;

/// The completions that the last poll found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completions {
    pub(super) receives: u64,
    pub(super) sends: u64,
}

/// The next action of an application.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Posts this number of messages, one by one.
    Post(u64),
    Poll,
    /// Polls another queue of the same engine, which stays empty.
    PollOther,
    Compute(Duration),
    /// Requests a notification.
    Request,
    /// Waits for the event in the library.
    Wait,
    /// Sleeps on the descriptor of the event, as `epoll_wait` does.
    SleepOnEvent,
    SleepFor(Duration),
    /// Does nothing more.
    End,
}

pub(super) trait App {
    /// Returns the next action. `found` are the completions of the last poll, and `outstanding` the number of
    /// messages that the peer has not acknowledged.
    fn next(&mut self, found: Completions, outstanding: u64) -> Action;
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

impl App for PingPong {
    fn next(&mut self, found: Completions, _: u64) -> Action {
        if std::mem::take(&mut self.has_turn) || found.receives > 0 { Action::Post(1) } else { Action::Poll }
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

impl App for Stream {
    fn next(&mut self, _: Completions, outstanding: u64) -> Action {
        let has_room = outstanding < self.depth;
        if std::mem::replace(&mut self.is_polled, false) && has_room {
            return Action::Post(self.depth - outstanding);
        }
        self.is_polled = true;
        Action::Poll
    }
}

/// Polls for messages.
pub(super) struct Receive;

impl App for Receive {
    fn next(&mut self, _: Completions, _: u64) -> Action {
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

impl App for SendEach {
    fn next(&mut self, found: Completions, _: u64) -> Action {
        if std::mem::take(&mut self.has_slept) {
            return Action::Post(1);
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

impl App for Compute {
    fn next(&mut self, found: Completions, _: u64) -> Action {
        if found.receives > 0 { Action::Compute(self.0) } else { Action::Poll }
    }
}

/// Polls until its queue has been empty for some polls, requests a notification, polls once more, and
/// sleeps.
pub(super) struct EventDriven {
    sleep: Action,
    patience: u32,
    empty: u32,
    state: State,
}

enum State {
    Wakes,
    Polls,
    ChecksOnceMore,
    Sleeps,
}

impl EventDriven {
    pub(super) fn waiting_in_the_library() -> Self {
        Self { sleep: Action::Wait, patience: 1, empty: 0, state: State::Wakes }
    }

    /// `patience` is the number of empty polls before a sleep.
    pub(super) fn sleeping_by_itself(patience: u32) -> Self {
        Self { sleep: Action::SleepOnEvent, patience, empty: 0, state: State::Wakes }
    }
}

impl App for EventDriven {
    fn next(&mut self, found: Completions, _: u64) -> Action {
        let has_found = found.receives + found.sends > 0;
        match self.state {
            State::Wakes => {
                (self.state, self.empty) = (State::Polls, 0);
                Action::Poll
            }
            State::Polls => {
                self.empty = if has_found { 0 } else { self.empty + 1 };
                if self.empty < self.patience {
                    return Action::Poll;
                }
                self.state = State::ChecksOnceMore;
                Action::Request
            }
            State::ChecksOnceMore => {
                self.state = State::Sleeps;
                Action::Poll
            }
            State::Sleeps => {
                self.state = State::Wakes;
                if has_found { Action::Poll } else { self.sleep }
            }
        }
    }
}

/// Polls another queue.
pub(super) struct PollOther;

impl App for PollOther {
    fn next(&mut self, _: Completions, _: u64) -> Action {
        Action::PollOther
    }
}

/// Does nothing.
pub(super) struct Idle;

impl App for Idle {
    fn next(&mut self, _: Completions, _: u64) -> Action {
        Action::End
    }
}
