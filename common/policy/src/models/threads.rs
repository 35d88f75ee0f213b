//! The threads of a process: those of the application, inside the library, and the background thread. They
//! act on the decisions of the policy as `runtime::poll`, `runtime::wait` and `runtime::background` do.

use std::time::Duration;

use roce_transport::Instant;

use super::apps::{Action, App, Completions};
use super::end::End;
use super::machine::{Program, Sleep, Step};
use crate::{
    Background, BeforeSleep, Crowding, Duty, NextCheck, Recheck, Shift, Spin, Stay, Timing, Waiting, Watcher,
    plan_sleep,
};

const TIMING: Timing = Timing::USUAL;
/// Spin time of the contexts.
const SPIN: Duration = Duration::ZERO;
/// Cost of a poll that does not check the device, with the loop of the application.
const NO_CHECK_NS: u64 = 300;
/// Longest time that a thread is charged for during a yield to nobody.
const YIELD_NS: u64 = 400;
/// A sleep without an end.
const FOREVER: u64 = u64::MAX;

fn end_of(now: Instant, time: Duration) -> u64 {
    (now + time).as_nanos()
}

/// Where a thread of the application is.
enum Place {
    /// In its own code.
    App,
    /// In a poll that stays.
    Staying(Stay),
    /// In a poll that yields the processor, since this time.
    Sharing { began: u64, is_trial: bool },
    /// In a wait for the event.
    Waiting(Wait),
    /// Asleep until the event comes, without the library.
    Asleep,
}

struct Wait {
    waiting: Waiting,
    spin: Spin,
    recheck: Recheck,
    began: Instant,
}

pub(super) struct AppThread {
    app: Box<dyn App>,
    place: Place,
    found: Completions,
    /// Whether a notification was requested since the last poll.
    is_last_check: bool,
    crowding: Crowding,
}

impl AppThread {
    pub(super) fn new(app: Box<dyn App>) -> Self {
        let (place, found, crowding) = (Place::App, Completions::default(), Crowding::NEW);
        Self { app, place, found, is_last_check: false, crowding }
    }

    fn act(&mut self, end: &mut End) -> Step {
        let action = self.app.next(std::mem::take(&mut self.found), end.link.outstanding);
        let now = end.now();
        match action {
            Action::Post(messages) => end.post(messages),
            Action::Poll => return self.poll(end, true),
            Action::PollOther => return self.poll(end, false),
            Action::Compute(time) => end.link.clock += time.as_nanos() as u64,
            Action::Request => {
                end.link.is_armed = true;
                end.rest();
                self.is_last_check = true;
                let wakes = end.watch.stops_polling();
                end.wakes_background(wakes);
            }
            Action::SleepFor(time) => {
                return Step::Sleep(Sleep { until: end_of(now, time), ..Sleep::default() });
            }
            Action::SleepOnEvent => {
                if !std::mem::take(&mut end.link.has_event) {
                    self.place = Place::Asleep;
                    return Step::Sleep(Sleep { until: FOREVER, event: true, ..Sleep::default() });
                }
            }
            Action::Wait => {
                if std::mem::take(&mut end.link.has_event) {
                    end.rest();
                    return Step::Run;
                }
                let (mut waiting, spin) = (Waiting::default(), Spin::default());
                end.watch.waits(now, &mut waiting, TIMING.longest_turn);
                let recheck = Recheck::new(&TIMING);
                self.place = Place::Waiting(Wait { waiting, spin, recheck, began: now });
            }
            Action::End => return Step::Sleep(Sleep { until: FOREVER, ..Sleep::default() }),
        }
        Step::Run
    }

    /// Polls the queue of the connection, or another one, which is always empty.
    fn poll(&mut self, end: &mut End, is_own: bool) -> Step {
        let is_last = std::mem::take(&mut self.is_last_check);
        let is_occupied = is_own && end.has_completions();
        if !is_last {
            let poll = end.watch.polls(end.now());
            end.wakes_background(poll.wakes);
            if !is_occupied && !poll.checks {
                end.link.clock += NO_CHECK_NS;
                return Step::Run;
            }
        }
        let mut found = if is_own { end.take() } else { (0, 0) };
        let has_arrived = end.progress(is_own && !is_last);
        if end.policy.polled(&end.watch, has_arrived) {
            self.crowding.try_soon();
        }
        if is_own {
            let more = end.take();
            found = (found.0 + more.0, found.1 + more.1);
        }
        self.found = Completions { receives: found.0, sends: found.1 };
        let is_empty = found == (0, 0);
        if !is_empty && !is_last && end.link.outstanding == 0 {
            let now = end.now();
            if let Some(stay) = end.policy.lingering.begins(now, 0) {
                self.place = Place::Staying(stay);
                return Step::Run;
            }
        }
        if !has_arrived && !is_last && is_empty { self.share(end) } else { Step::Run }
    }

    fn share(&mut self, end: &mut End) -> Step {
        if !self.crowding.checked() {
            return Step::Run;
        }
        end.watch.yields(end.now());
        let is_trial = self.crowding.begins();
        self.place = Place::Sharing { began: end.link.clock, is_trial };
        end.link.clock += YIELD_NS;
        Step::Yield
    }

    fn stay(&mut self, stay: Stay, end: &mut End) -> Step {
        let poll = end.watch.polls(end.now());
        end.wakes_background(poll.wakes);
        let has_arrived = end.progress(false);
        let now = end.now();
        match end.policy.lingering.checked(stay, now, 0, has_arrived) {
            NextCheck::Now => return Step::Run,
            NextCheck::AfterYield => return Step::Yield,
            NextCheck::Never => {}
            NextCheck::ByBackground => {
                let wakes = end.watch.stops_polling();
                end.wakes_background(wakes);
            }
        }
        self.place = Place::App;
        Step::Run
    }

    fn returns(&mut self, began: u64, is_trial: bool, end: &mut End) {
        let (before, after) = (Instant::from_nanos(began), end.now());
        if is_trial {
            // The time includes the switch to and from another thread, if there was one.
            self.crowding.note_trial(before, after, Duration::from_nanos(YIELD_NS + 1_500));
        } else {
            self.crowding.note_yield(before, after);
        }
        end.watch.returns(Instant::from_nanos(began), end.now());
    }

    fn wait(&mut self, end: &mut End) -> Step {
        let has_more = end.progress(false);
        let Place::Waiting(wait) = &mut self.place else { return Step::Run };
        if std::mem::take(&mut end.link.has_event) {
            let wakes = end.watch.leaves(&mut wait.waiting);
            end.wakes_background(wakes);
            self.place = Place::App;
            return Step::Run;
        }
        let now = end.now();
        if !wait.spin.checked(now, has_more, SPIN) {
            if now.since(wait.began) >= TIMING.longest_turn {
                wait.began = now;
                end.watch.waits(now, &mut wait.waiting, TIMING.longest_turn);
            }
            return Step::Run;
        }
        let before = BeforeSleep {
            is_polled: end.watch.watcher(now, || false) == Watcher::Poller,
            has_device: true,
            has_event: true,
            polls: 0,
            deadline: end.deadline().map(|deadline| deadline.since(now)),
            remaining: None,
        };
        let sleep = plan_sleep(before, &mut wait.recheck, &TIMING);
        end.watch.waits(now, &mut wait.waiting, sleep.time);
        Step::Sleep(Sleep { until: end_of(now, sleep.time), device: sleep.watches, event: true, wake: false })
    }
}

impl Program for AppThread {
    fn step(&mut self, end: &mut End) -> Step {
        match self.place {
            Place::App => self.act(end),
            Place::Staying(stay) => self.stay(stay, end),
            Place::Sharing { began, is_trial } => {
                self.returns(began, is_trial, end);
                self.place = Place::App;
                Step::Run
            }
            Place::Waiting(_) => self.wait(end),
            Place::Asleep => {
                end.link.has_event = false;
                self.place = Place::App;
                Step::Run
            }
        }
    }
}

/// Where the background thread is.
#[derive(Clone, Copy, Default)]
enum Doing {
    #[default]
    Deciding,
    BackingOff,
    Relying,
    Watching,
    Serving(Spin),
}

#[derive(Default)]
pub(super) struct BackgroundThread {
    shift: Shift,
    doing: Doing,
}

impl BackgroundThread {
    fn decide(&mut self, end: &End) -> Step {
        let now = end.now();
        let before =
            |longest: Duration| end.deadline().map_or(longest, |deadline| deadline.since(now).min(longest));
        let (doing, time, device) = match self.shift.next(&end.watch, now, || false) {
            Duty::BackOff(time) => (Doing::BackingOff, time, false),
            Duty::Rely(time) => (Doing::Relying, before(time), false),
            Duty::Serve => {
                end.watch.set_background(Background::Watching);
                (Doing::Watching, before(TIMING.longest_sleep), true)
            }
        };
        self.doing = doing;
        Step::Sleep(Sleep { until: end_of(now, time), device, wake: true, event: false })
    }
}

impl Program for BackgroundThread {
    fn step(&mut self, end: &mut End) -> Step {
        match self.doing {
            Doing::Deciding => return self.decide(end),
            Doing::Serving(mut spin) => {
                let now = end.now();
                if end.watch.watcher(now, || false) != Watcher::Background {
                    self.doing = Doing::Deciding;
                    return Step::Run;
                }
                let has_more = end.progress(false);
                let is_over = spin.checked(end.now(), has_more, SPIN);
                self.doing = if is_over { Doing::Deciding } else { Doing::Serving(spin) };
                return Step::Run;
            }
            Doing::BackingOff => self.doing = Doing::Deciding,
            Doing::Relying => {
                if end.deadline().is_some_and(|deadline| deadline <= end.now()) {
                    end.progress(false);
                }
                self.doing = Doing::Deciding;
            }
            Doing::Watching => self.doing = Doing::Serving(Spin::default()),
        }
        end.is_woken = false;
        end.watch.set_background(Background::Awake);
        Step::Run
    }
}
