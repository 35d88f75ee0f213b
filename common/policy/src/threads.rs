//! The threads of a process in virtual time: those of an application while they use the library, and the
//! background thread. They act on the decisions of the policy as the runtime of `roce` does with real
//! threads.
//!
//! A thread advances in steps. Its caller decides when each step happens, so it decides how long actions
//! take, when a thread gets a processor, and how long it takes to wake one.

use std::time::Duration;

use roce_transport::Instant;

use crate::{
    Background, BeforeSleep, Crowding, Duty, NextCheck, Policy, Recheck, Shift, Spin, Stay, Waiting, Watch,
    Watcher, plan_sleep,
};

/// Longest time that a thread is charged for during a yield to nobody.
const YIELD: Duration = Duration::from_nanos(400);
/// Longest time that a thread is charged for during a trial, which includes the switch to and from another
/// thread.
const TRIAL: Duration = Duration::from_nanos(1_900);

/// A process with one engine, as its threads see it.
pub trait Process {
    /// The completions that a poll returns.
    type Found: Completions;

    /// Returns the time of the current step. It includes the time of the actions so far, if the process adds
    /// that time at once.
    fn now(&self) -> Instant;

    /// Adds a time to the current step in which the thread keeps its processor.
    fn pass(&mut self, time: Duration);

    /// Adds the time of a poll that does not check the device. Such polls do nothing for `quiet`, unless
    /// another thread receives a completion.
    fn pass_unchecked_poll(&mut self, quiet: Duration);

    /// Returns the threads that watch the device.
    fn watch(&self) -> &Watch;

    /// Returns the threads that watch the device, and the part of the policy that the lock of the engine
    /// protects.
    fn policy(&mut self) -> (&Watch, &mut Policy);

    /// Wakes the background thread.
    fn wake_background(&mut self);

    /// Records that the background thread runs, so that a past call of
    /// [`wake_background`](Self::wake_background) does not end its next sleep.
    fn clear_wake(&mut self);

    /// Makes progress for a thread that checks `check` next. Returns whether more may be ready at once.
    fn progress(&mut self, check: Check) -> bool;

    /// Sends postponed packets, because the application does not post or poll now.
    fn rest(&mut self);

    /// Returns the time at which progress must be made even if nothing arrives.
    fn deadline(&self) -> Option<Instant>;

    /// Returns the number of one-sided requests that peers have sent.
    fn one_sided_requests(&self) -> u64;

    /// Returns whether the queue of the application has completions.
    fn is_occupied(&self) -> bool;

    /// Takes the completions of that queue and adds them to `found`.
    fn take(&mut self, found: &mut Self::Found);

    /// Returns whether the queue pair of the last completion has no outstanding request.
    fn is_done(&self) -> bool;

    /// Requests a notification about the next completion.
    fn request_event(&mut self);

    /// Takes the event of the requested notification, if it has come.
    fn take_event(&mut self) -> bool;
}

/// Completions that a poll found; by default none.
pub trait Completions: Default {
    /// Returns whether there are no completions.
    fn is_empty(&self) -> bool;
}

/// The number of completions.
impl Completions for usize {
    fn is_empty(&self) -> bool {
        *self == 0
    }
}

/// The place that a thread checks after it has made progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The completion queue of the application, and memory that peers may have written.
    Queue,
    /// Only memory that peers may have written.
    Memory,
    /// Nothing: the thread is the background thread, waits for an event, or is about to sleep.
    Nothing,
}

/// The next action of an application.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// The application has done something itself.
    Done,
    /// Polls the completion queue.
    Poll,
    /// Polls another queue of the same engine, which stays empty.
    PollOther,
    /// Computes for a time.
    Compute(Duration),
    /// Requests a notification.
    Request,
    /// Waits for the event in the library.
    Wait,
    /// Sleeps on the descriptor of the event, as `epoll_wait` does.
    SleepOnEvent,
    /// Sleeps for a time.
    SleepFor(Duration),
    /// Does nothing more.
    End,
}

/// The code of an application.
pub trait App<P: Process> {
    /// Returns the next action. `found` are the completions of the last poll.
    fn next(&mut self, process: &mut P, found: P::Found) -> Action;
}

/// An application that polls until its queue has been empty for some polls, requests a notification, polls
/// once more, and sleeps.
#[derive(Clone, Copy, Debug)]
pub struct EventDriven {
    sleep: Action,
    patience: u32,
    empty: u32,
    state: EventState,
}

/// The last action of an [`EventDriven`] application.
#[derive(Clone, Copy, Debug)]
enum EventState {
    Wakes,
    Polls,
    ChecksOnceMore,
    Sleeps,
}

impl EventDriven {
    /// Returns an application that waits in the library.
    #[must_use]
    pub const fn waiting_in_the_library() -> Self {
        Self { sleep: Action::Wait, patience: 1, empty: 0, state: EventState::Wakes }
    }

    /// Returns an application that sleeps on the descriptor of the event, after `patience` empty polls.
    #[must_use]
    pub const fn sleeping_by_itself(patience: u32) -> Self {
        Self { sleep: Action::SleepOnEvent, patience, empty: 0, state: EventState::Wakes }
    }
}

impl<P: Process> App<P> for EventDriven {
    fn next(&mut self, _: &mut P, found: P::Found) -> Action {
        match self.state {
            EventState::Wakes => {
                (self.state, self.empty) = (EventState::Polls, 0);
                Action::Poll
            }
            EventState::Polls => {
                self.empty = if found.is_empty() { self.empty + 1 } else { 0 };
                if self.empty < self.patience {
                    return Action::Poll;
                }
                self.state = EventState::ChecksOnceMore;
                Action::Request
            }
            EventState::ChecksOnceMore => {
                self.state = EventState::Sleeps;
                Action::Poll
            }
            EventState::Sleeps => {
                self.state = EventState::Wakes;
                if found.is_empty() { self.sleep } else { Action::Poll }
            }
        }
    }
}

/// The state of a thread after one step.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The thread goes on.
    Run,
    /// The thread lets others run first.
    Yield,
    /// The thread sleeps.
    Sleep(Sleep),
}

/// A sleep until a time, or until the first of these events.
#[derive(Clone, Copy, Debug)]
pub struct Sleep {
    /// The time.
    pub until: Instant,
    /// Whether an arriving packet ends the sleep.
    pub device: bool,
    /// Whether another thread that wakes the background thread ends the sleep.
    pub wake: bool,
    /// Whether the event of a requested notification ends the sleep.
    pub event: bool,
}

impl Sleep {
    /// Returns a sleep that only its time ends.
    const fn until(until: Instant) -> Self {
        Self { until, device: false, wake: false, event: false }
    }
}

/// A thread of a process.
pub trait Thread<P> {
    /// Makes one step.
    fn step(&mut self, process: &mut P) -> Step;
}

/// The place of a thread of the application.
enum Place {
    /// In its own code.
    App,
    /// In a poll that stays.
    Staying(Stay),
    /// In a poll that yields the processor.
    Sharing { began: Instant, is_trial: bool },
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
    /// End of the last sleep, if nothing else ends it.
    until: Option<Instant>,
}

/// A thread of an application `A`, whose polls return `F`.
pub struct AppThread<A, F> {
    app: A,
    /// Time for which a wait spins before it sleeps.
    spin: Duration,
    place: Place,
    found: F,
    /// Whether a notification was requested since the last poll.
    is_last_check: bool,
    crowding: Crowding,
}

impl<A, F: Completions> AppThread<A, F> {
    /// Creates a thread that is in the code of the application. Its waits spin for `spin` before they sleep.
    pub fn new(app: A, spin: Duration) -> Self {
        let (place, found, crowding) = (Place::App, F::default(), Crowding::NEW);
        Self { app, spin, place, found, is_last_check: false, crowding }
    }

    /// Returns whether the last poll found completions that it has not returned yet, because it stays.
    pub const fn is_staying(&self) -> bool {
        matches!(self.place, Place::Staying(_))
    }

    fn act<P: Process<Found = F>>(&mut self, process: &mut P) -> Step
    where
        A: App<P>,
    {
        let found = std::mem::take(&mut self.found);
        let action = self.app.next(process, found);
        let now = process.now();
        match action {
            Action::Done => {}
            Action::Poll => return self.poll(process, true),
            Action::PollOther => return self.poll(process, false),
            Action::Compute(time) => process.pass(time),
            Action::Request => {
                process.request_event();
                process.rest();
                self.is_last_check = true;
                let wakes = process.watch().stops_polling();
                wake_background_if(process, wakes);
            }
            Action::SleepFor(time) => return Step::Sleep(Sleep::until(now + time)),
            Action::SleepOnEvent => {
                if !process.take_event() {
                    self.place = Place::Asleep;
                    return Step::Sleep(Sleep { event: true, ..Sleep::until(Instant::FAR_FUTURE) });
                }
            }
            Action::Wait => {
                if process.take_event() {
                    process.rest();
                    return Step::Run;
                }
                let (mut waiting, spin) = (Waiting::default(), Spin::default());
                let timing = process.watch().timing();
                process.watch().waits(now, &mut waiting, timing.longest_turn);
                let recheck = Recheck::new(timing);
                self.place = Place::Waiting(Wait { waiting, spin, recheck, began: now, until: None });
            }
            Action::End => return Step::Sleep(Sleep::until(Instant::FAR_FUTURE)),
        }
        Step::Run
    }

    /// Polls the queue of the connection, or another one, which is always empty.
    fn poll(&mut self, process: &mut impl Process<Found = F>, is_own: bool) -> Step {
        let is_last = std::mem::take(&mut self.is_last_check);
        if !is_last {
            let now = process.now();
            let poll = process.watch().polls(now);
            wake_background_if(process, poll.wakes);
            let is_occupied = is_own && process.is_occupied();
            if !is_occupied && !poll.checks {
                let quiet = process.watch().until_next_check(now);
                process.pass_unchecked_poll(quiet);
                return Step::Run;
            }
        }
        if is_own {
            process.take(&mut self.found);
        }
        let check = match (is_last, is_own) {
            (true, _) => Check::Nothing,
            (false, true) => Check::Queue,
            (false, false) => Check::Memory,
        };
        let has_arrived = process.progress(check);
        let (watch, policy) = process.policy();
        if policy.polled(watch, has_arrived) {
            self.crowding.try_soon();
        }
        if is_own {
            process.take(&mut self.found);
        }
        if !self.found.is_empty() && !is_last && process.is_done() {
            let (now, requests) = (process.now(), process.one_sided_requests());
            if let Some(stay) = process.policy().1.lingering.begins(now, requests) {
                self.place = Place::Staying(stay);
                return Step::Run;
            }
        }
        if !has_arrived && !is_last && self.found.is_empty() { self.share(process) } else { Step::Run }
    }

    fn share(&mut self, process: &mut impl Process) -> Step {
        if !self.crowding.checked() {
            return Step::Run;
        }
        let began = process.now();
        process.watch().yields(began);
        let is_trial = self.crowding.begins();
        self.place = Place::Sharing { began, is_trial };
        process.pass(YIELD);
        Step::Yield
    }

    fn stay(&mut self, stay: Stay, process: &mut impl Process) -> Step {
        let poll = process.watch().polls(process.now());
        wake_background_if(process, poll.wakes);
        let has_arrived = process.progress(Check::Memory);
        let (now, requests) = (process.now(), process.one_sided_requests());
        match process.policy().1.lingering.checked(stay, now, requests, has_arrived) {
            NextCheck::Now => return Step::Run,
            NextCheck::AfterYield => return Step::Yield,
            NextCheck::Never => {}
            NextCheck::ByBackground => {
                let wakes = process.watch().stops_polling();
                wake_background_if(process, wakes);
            }
        }
        self.place = Place::App;
        Step::Run
    }

    fn return_from_yield(&mut self, began: Instant, is_trial: bool, process: &impl Process) {
        let now = process.now();
        if is_trial {
            self.crowding.note_trial(began, now, TRIAL);
        } else {
            self.crowding.note_yield(began, now);
        }
        process.watch().returns(began, now);
    }

    fn wait(&mut self, process: &mut impl Process) -> Step {
        let Place::Waiting(wait) = &mut self.place else { return Step::Run };
        if wait.until.take().is_some_and(|until| process.now() < until) {
            wait.spin.woken(process.now(), self.spin);
        }
        let has_more = process.progress(Check::Nothing);
        if process.take_event() {
            let wakes = process.watch().leaves(&mut wait.waiting);
            wake_background_if(process, wakes);
            self.place = Place::App;
            return Step::Run;
        }
        let (now, timing) = (process.now(), *process.watch().timing());
        if !wait.spin.checked(now, has_more, self.spin) {
            if now.since(wait.began) >= timing.longest_turn {
                wait.began = now;
                process.watch().waits(now, &mut wait.waiting, timing.longest_turn);
            }
            return Step::Run;
        }
        let before = BeforeSleep {
            is_polled: process.watch().watcher(now, || false) == Watcher::Poller,
            has_device: true,
            has_event: true,
            polls: 0,
            deadline: process.deadline().map(|deadline| deadline.since(now)),
            remaining: None,
        };
        let sleep = plan_sleep(before, &mut wait.recheck, &timing);
        process.watch().waits(now, &mut wait.waiting, sleep.time);
        let until = now + sleep.time;
        wait.until = Some(until);
        Step::Sleep(Sleep { device: sleep.watches, event: true, ..Sleep::until(until) })
    }
}

impl<P: Process<Found = F>, A: App<P>, F: Completions> Thread<P> for AppThread<A, F> {
    fn step(&mut self, process: &mut P) -> Step {
        match self.place {
            Place::App => self.act(process),
            Place::Staying(stay) => self.stay(stay, process),
            Place::Sharing { began, is_trial } => {
                self.return_from_yield(began, is_trial, process);
                self.place = Place::App;
                Step::Run
            }
            Place::Waiting(_) => self.wait(process),
            Place::Asleep => {
                process.take_event();
                self.place = Place::App;
                Step::Run
            }
        }
    }
}

fn wake_background_if(process: &mut impl Process, wakes: bool) {
    if wakes {
        process.wake_background();
    }
}

/// The activity of the background thread.
#[derive(Clone, Copy, Default)]
enum Doing {
    #[default]
    Deciding,
    BackingOff,
    Relying,
    Watching,
    Serving(Spin),
}

/// The background thread of a process.
#[derive(Default)]
pub struct BackgroundThread {
    shift: Shift,
    doing: Doing,
    /// Time for which the thread spins after it has found something.
    spin: Duration,
}

impl BackgroundThread {
    /// Creates a thread that spins for `spin` after it has found something.
    #[must_use]
    pub fn new(spin: Duration) -> Self {
        Self { spin, ..Self::default() }
    }

    /// Returns whether the thread, if it sleeps, must be woken for an earlier deadline.
    #[must_use]
    pub const fn meets_deadlines(&self) -> bool {
        matches!(self.doing, Doing::Relying | Doing::Watching)
    }

    fn decide(&mut self, process: &impl Process) -> Step {
        let now = process.now();
        let before = |longest: Duration| {
            process.deadline().map_or(longest, |deadline| deadline.since(now).min(longest))
        };
        let (doing, time, device) = match self.shift.next(process.watch(), now, || false) {
            Duty::BackOff(time) => (Doing::BackingOff, time, false),
            Duty::Rely(time) => (Doing::Relying, before(time), false),
            Duty::Serve => {
                process.watch().set_background(Background::Watching);
                (Doing::Watching, before(process.watch().timing().longest_sleep), true)
            }
        };
        self.doing = doing;
        Step::Sleep(Sleep { device, wake: true, ..Sleep::until(now + time) })
    }

    fn serve(&mut self, mut spin: Spin, process: &mut impl Process) -> Step {
        if process.watch().watcher(process.now(), || false) != Watcher::Background {
            self.doing = Doing::Deciding;
            return Step::Run;
        }
        let has_more = process.progress(Check::Nothing);
        let is_over = spin.checked(process.now(), has_more, self.spin);
        self.doing = if is_over { Doing::Deciding } else { Doing::Serving(spin) };
        Step::Run
    }
}

impl<P: Process> Thread<P> for BackgroundThread {
    fn step(&mut self, process: &mut P) -> Step {
        match self.doing {
            Doing::Deciding => return self.decide(process),
            Doing::Serving(spin) => return self.serve(spin, process),
            Doing::BackingOff => self.doing = Doing::Deciding,
            Doing::Relying => {
                if process.deadline().is_some_and(|deadline| deadline <= process.now()) {
                    process.progress(Check::Nothing);
                }
                self.doing = Doing::Deciding;
            }
            Doing::Watching => self.doing = Doing::Serving(Spin::default()),
        }
        process.clear_wake();
        process.watch().set_background(Background::Awake);
        Step::Run
    }
}
