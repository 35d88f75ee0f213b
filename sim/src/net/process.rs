//! The process of a host whose application uses the library: its threads, and the queue in which packets wait
//! for them.
//!
//! The threads and their decisions are those of the library (`roce_policy`). Each thread has a processor of
//! its own. A step of a thread happens at the end of the poll that it contains, so a packet waits until the
//! first poll that begins after its arrival has ended.

use std::collections::VecDeque;
use std::time::Duration;

use roce_fault::random::{SplitMix64, mix};
use roce_packet::Qpn;
use roce_policy::threads::{
    Action, App, AppThread, BackgroundThread, Check, EventDriven, Process as Library, Sleep, Step, Thread,
};
use roce_policy::{Budget, Found, Leave, Policy, Port, Timing, Watch, leave, progress};
use roce_transport::{Allowed, CqId, Instant, Occupancy, Pending, Wc};

use super::application::Application;
use super::event::Event;
use super::frame::FrameId;
use super::histogram::Histogram;
use super::nic::Nic;
use super::port::DropReason;
use super::results::HostResult;
use super::settings::HostSettings;
use super::time::Time;
use super::world::World;

/// The threads, by their number in events.
const APP: usize = 0;
const BACKGROUND: usize = 1;
/// The maximum number of packets that one check of the device receives.
const BURST: usize = 64;
/// The time of a poll that does not check the device: docs/results/performance.md has 26 and 42 ns.
const UNCHECKED_POLL: Duration = Duration::from_nanos(40);
/// The shortest step of a thread.
const LEAST_STEP: Time = Time::from_ns(20);
/// The time until the next try after the send queue was full, as in the library.
const FULL_RETRY: Duration = Duration::from_micros(20);
/// The time for which threads spin unless the application says otherwise: the default of the library.
const SPIN: Time = Time::from_us(50);

pub(super) struct Process {
    app: AppThread<Program, usize>,
    background: BackgroundThread,
    turns: [Turn; 2],
    watch: Watch,
    policy: Policy,
    state: State,
}

/// The next step of a thread.
struct Turn {
    /// The time of the next step, or [`Time::NEVER`].
    at: Time,
    /// The sleep of the thread, if it sleeps.
    sleep: Option<Sleep>,
    /// The time from which it has slept.
    asleep_from: Time,
}

/// The part of the process that its threads share.
struct State {
    application: Application,
    cq: CqId,
    occupancy: Occupancy,
    /// The times of a poll and of a wake-up.
    poll: Time,
    wake_up: Time,
    /// The capacity of each queue in bytes.
    socket_buffer: u64,
    /// Packets that no thread has received, with the time of their arrival.
    inbox: VecDeque<(Time, FrameId)>,
    inbox_bytes: u64,
    /// Whether the last call spent its budget, and whether it filled the send queue.
    has_more: bool,
    is_full: bool,
    /// Whether a notification is requested, and whether its event has come.
    is_armed: bool,
    has_event: bool,
    /// Whether the background thread is woken.
    is_woken: bool,
    /// The requests that the application has posted since the policy was last told, and their bytes.
    posted: (usize, u64),
    /// What the thread of the current step checks next.
    check: Check,
    /// The time of the current step so far.
    passed: Time,
    /// Completions of the last poll, and the queue pair of the last one.
    found: Vec<Wc>,
    last: Option<Qpn>,
    polls: u64,
    wake_ups: u64,
    waits: Histogram,
}

/// The code of the application.
enum Program {
    Polling,
    Events(EventDriven),
    Computing { time: Duration, has_polled: bool },
}

impl<P: Library<Found = usize>> App<P> for Program {
    fn next(&mut self, process: &mut P, found: usize) -> Action {
        match self {
            Self::Polling => Action::Poll,
            Self::Events(app) => app.next(process, found),
            Self::Computing { time, has_polled } => {
                *has_polled = !*has_polled;
                if *has_polled { Action::Poll } else { Action::Compute(*time) }
            }
        }
    }
}

impl Process {
    /// Creates the process of an application that uses a completion queue.
    pub(super) fn new(
        application: Application,
        (cq, occupancy): (CqId, Occupancy),
        settings: &HostSettings,
    ) -> Self {
        let (program, spin) = match application {
            Application::Immediate | Application::Polling => (Program::Polling, SPIN),
            Application::Events { spin } => (Program::Events(EventDriven::waiting_in_the_library()), spin),
            Application::Computing { time } => {
                (Program::Computing { time: duration(time), has_polled: false }, SPIN)
            }
        };
        let timing = Timing::measured(duration(settings.poll_time));
        let spin = duration(spin);
        let turn = || Turn { at: Time::NEVER, sleep: None, asleep_from: Time::ZERO };
        Self {
            app: AppThread::new(program, spin),
            background: BackgroundThread::new(spin),
            turns: [turn(), turn()],
            watch: Watch::new(&timing),
            policy: Policy::new(&timing),
            state: State {
                application,
                cq,
                occupancy,
                poll: settings.poll_time,
                wake_up: settings.wake_up_time,
                socket_buffer: settings.socket_buffer_bytes,
                inbox: VecDeque::new(),
                inbox_bytes: 0,
                has_more: false,
                is_full: false,
                is_armed: false,
                has_event: false,
                is_woken: false,
                posted: (0, 0),
                check: Check::Nothing,
                passed: Time::ZERO,
                found: Vec::new(),
                last: None,
                polls: 0,
                wake_ups: 0,
                waits: Histogram::default(),
            },
        }
    }

    /// Starts the threads, each at a random time, so that the polls of different hosts do not coincide.
    pub(super) fn start(&mut self, nic: &Nic, world: &mut World) {
        let poll = self.state.poll;
        let period = match self.state.application {
            Application::Computing { time } => time,
            _ => poll,
        };
        let mut random = SplitMix64::new(mix(world.settings.seed) ^ u64::from(nic.number));
        for (thread, period) in [(APP, period), (BACKGROUND, poll)] {
            let offset = Time::from_ps(random.below(period.as_ps() as usize) as u64);
            self.schedule(nic, world, thread, world.now + poll + offset);
        }
    }

    /// Puts an arriving packet into the receive queue, and wakes the thread that watches the device.
    pub(super) fn arrive(&mut self, nic: &Nic, world: &mut World, id: FrameId) {
        let State { inbox, inbox_bytes, socket_buffer, .. } = &mut self.state;
        let len = u64::from(world.frames.get(id).buffered_len());
        if *inbox_bytes + len > *socket_buffer {
            return world.discard(nic.port, id, DropReason::Buffer);
        }
        *inbox_bytes += len;
        inbox.push_back((world.now, id));
        for thread in [APP, BACKGROUND] {
            if self.turns[thread].sleep.is_some_and(|sleep| sleep.device) {
                self.wake(nic, world, thread);
            }
        }
    }

    /// Makes the step of a thread. Returns `false` if the thread has no step now, because it was woken
    /// earlier.
    pub(super) fn step(&mut self, nic: &mut Nic, world: &mut World, thread: u32) -> bool {
        let thread = thread as usize;
        let turn = self.turns.get_mut(thread).filter(|turn| turn.at == world.now);
        let Some(turn) = turn else { return false };
        turn.at = Time::NEVER;
        self.state.wake_ups += u64::from(turn.sleep.take().is_some());
        self.state.passed = Time::ZERO;
        let Self { app, background, watch, policy, state, .. } = self;
        let mut inside = Inside { watch, policy, call: Call { nic, world, state } };
        let step = if thread == APP { app.step(&mut inside) } else { background.step(&mut inside) };
        self.plan(nic, world, thread, step);
        self.wake_threads(nic, world);
        true
    }

    /// Plans the next step of a thread, or its sleep.
    fn plan(&mut self, nic: &Nic, world: &mut World, thread: usize, step: Step) {
        let State { poll, wake_up, passed, .. } = self.state;
        let Step::Sleep(sleep) = step else {
            return self.schedule(nic, world, thread, world.now + passed.max(LEAST_STEP));
        };
        // The last time of a poll is that of the next one, which begins after the sleep.
        let from = world.now + passed.since(poll);
        let until = Time::from_instant(sleep.until);
        if self.state.is_over(&sleep) || until <= world.now {
            return self.schedule(nic, world, thread, from + poll);
        }
        let turn = &mut self.turns[thread];
        (turn.sleep, turn.asleep_from) = (Some(sleep), from);
        if until < Time::NEVER {
            self.schedule(nic, world, thread, until.max(from) + wake_up + poll);
        }
    }

    fn schedule(&mut self, nic: &Nic, world: &mut World, thread: usize, at: Time) {
        let turn = &mut self.turns[thread];
        if at < turn.at {
            turn.at = at;
            world.events.push(at, Event::Thread { host: nic.index, thread: thread as u32 });
        }
    }

    /// Wakes a sleeping thread, unless something wakes it earlier.
    fn wake(&mut self, nic: &Nic, world: &mut World, thread: usize) {
        let State { poll, wake_up, .. } = self.state;
        let at = (world.now + wake_up).max(self.turns[thread].asleep_from) + poll;
        self.schedule(nic, world, thread, at);
    }

    /// Wakes the threads whose sleep another thread has ended.
    fn wake_threads(&mut self, nic: &mut Nic, world: &mut World) {
        let Self { turns, background, state, .. } = self;
        let [app, other] = [APP, BACKGROUND].map(|thread| turns[thread].sleep);
        if let Some(sleep) = other
            && background.meets_deadlines()
        {
            // The library does not count postponed packets here, because they usually leave with a call of
            // the application.
            let deadline = Call { nic: &mut *nic, world: &mut *world, state: &mut *state }.deadline();
            state.is_woken |= deadline.is_some_and(|deadline| deadline < sleep.until);
        }
        if other.is_some_and(|sleep| sleep.wake) && self.state.is_woken {
            self.wake(nic, world, BACKGROUND);
        }
        if app.is_some_and(|sleep| sleep.event) && self.state.has_event {
            self.wake(nic, world, APP);
        }
    }

    /// Counts a request that the application posts.
    pub(super) fn note_post(&mut self, bytes: u64) {
        self.state.posted.0 += 1;
        self.state.posted.1 += bytes;
    }

    /// Sends the requests that the application has posted, or leaves them for later.
    pub(super) fn send_posted(&mut self, nic: &mut Nic, world: &mut World) {
        let (requests, bytes) = std::mem::take(&mut self.state.posted);
        if requests == 0 {
            return;
        }
        let is_asleep = self.turns[APP].sleep.is_some();
        let background = self.turns[BACKGROUND].sleep.map(|sleep| sleep.until);
        let Self { policy, state, .. } = self;
        let now = world.instant();
        let leaves = policy.posted(now, requests, bytes, one_sided_requests(nic), background);
        let mut call = Call { nic, world, state };
        leave(&mut policy.pending, &mut call, now, leaves);
        if is_asleep {
            // Another thread of the application has posted, and waits now.
            let leaves = policy.pending.rests(now);
            leave(&mut policy.pending, &mut call, now, leaves);
        }
        self.wake_threads(nic, world);
    }

    /// Moves the completions of the last poll to `completions`, last one first, once the poll has returned.
    pub(super) fn take_found(&mut self, completions: &mut Vec<Wc>) {
        if !self.app.is_staying() {
            completions.extend(self.state.found.drain(..).rev());
        }
    }

    pub(super) fn result(&self, name: String) -> HostResult {
        let State { application, polls, wake_ups, waits, .. } = &self.state;
        HostResult {
            name,
            application: *application,
            polls: *polls,
            wake_ups: *wake_ups,
            waits: waits.clone(),
        }
    }
}

impl State {
    /// Returns whether the reason for the end of a sleep exists.
    fn is_over(&self, sleep: &Sleep) -> bool {
        sleep.device && !self.inbox.is_empty() || sleep.wake && self.is_woken || sleep.event && self.has_event
    }
}

/// A thread inside the library.
struct Inside<'a> {
    watch: &'a Watch,
    policy: &'a mut Policy,
    call: Call<'a>,
}

impl Library for Inside<'_> {
    type Found = usize;

    fn now(&self) -> Instant {
        self.call.now()
    }

    fn pass(&mut self, time: Duration) {
        let passed = &mut self.call.state.passed;
        *passed = *passed + Time::from_ns(time.as_nanos() as u64);
    }

    fn pass_unchecked_poll(&mut self, quiet: Duration) {
        // An application that does nothing but poll would poll without a check until then.
        let polls_again = self.call.state.application == Application::Polling;
        self.pass(if polls_again { quiet } else { UNCHECKED_POLL });
    }

    fn watch(&self) -> &Watch {
        self.watch
    }

    fn policy(&mut self) -> (&Watch, &mut Policy) {
        (self.watch, &mut *self.policy)
    }

    fn wake_background(&mut self) {
        self.call.state.is_woken = true;
    }

    fn clear_wake(&mut self) {
        self.call.state.is_woken = false;
    }

    fn progress(&mut self, check: Check) -> bool {
        self.call.state.check = check;
        let now = self.now();
        progress(&mut self.policy.pending, &mut self.call, now) > 0 || self.call.state.has_more
    }

    fn rest(&mut self) {
        let now = self.now();
        let leaves: Leave = self.policy.pending.rests(now);
        leave(&mut self.policy.pending, &mut self.call, now, leaves);
    }

    fn deadline(&self) -> Option<Instant> {
        [self.call.deadline(), self.policy.pending.since()].into_iter().flatten().min()
    }

    fn one_sided_requests(&self) -> u64 {
        one_sided_requests(self.call.nic)
    }

    fn is_occupied(&self) -> bool {
        self.call.state.occupancy.is_occupied()
    }

    fn take(&mut self, found: &mut usize) {
        let Call { nic, world, state } = &mut self.call;
        while let Ok(count @ 1..) = nic.engine.poll_cq(state.cq, &mut world.completions[..]) {
            state.found.extend_from_slice(&world.completions[..count]);
            *found += count;
        }
        state.last = state.found.last().map(|wc| wc.qpn).or(state.last);
    }

    fn is_done(&self) -> bool {
        let depths = self.call.state.last.and_then(|qpn| self.call.nic.engine.queue_depths(qpn));
        depths.is_some_and(|(sends, _)| sends == 0)
    }

    fn request_event(&mut self) {
        self.call.state.is_armed = true;
    }

    fn take_event(&mut self) -> bool {
        std::mem::take(&mut self.call.state.has_event)
    }
}

fn one_sided_requests(nic: &Nic) -> u64 {
    let counters = nic.engine.counters();
    counters.rx_write_requests + counters.rx_read_requests + counters.rx_atomic_requests
}

/// The engine and its device, for a thread that has the lock.
struct Call<'a> {
    nic: &'a mut Nic,
    world: &'a mut World,
    state: &'a mut State,
}

impl Call<'_> {
    /// Returns the time at which progress must be made even if nothing arrives, without postponed packets.
    fn deadline(&self) -> Option<Instant> {
        let at_once = self.state.has_more.then_some(Instant::ZERO);
        let retry = self.state.is_full.then(|| self.now() + FULL_RETRY);
        [at_once, self.nic.engine.poll_timeout(), retry].into_iter().flatten().min()
    }

    /// Moves packets to the send queue. Returns whether the queue is full.
    fn hand_over(&mut self, allowed: Allowed, mut sent: impl FnMut(usize) -> bool) -> bool {
        self.nic.hand_over(self.world, allowed, self.state.socket_buffer, &mut sent)
    }
}

impl Port for Call<'_> {
    fn now(&self) -> Instant {
        self.world.instant()
    }

    fn check(&mut self, _: Instant) -> Found {
        let Self { nic, world, state } = self;
        let counts = |nic: &Nic| {
            let counters = nic.engine.counters();
            (counters.rx_write_requests, counters.acks_coalesced)
        };
        let (writes, covered) = counts(nic);
        // The first check of a step ends now; further ones take their time afterwards.
        let begin = (world.now.since(state.poll) + state.passed).min(world.now);
        let mut datagrams = 0;
        while datagrams < BURST
            && let Some((arrival, id)) = state.inbox.pop_front_if(|(arrival, _)| *arrival <= begin)
        {
            datagrams += 1;
            state.inbox_bytes -= u64::from(world.frames.get(id).buffered_len());
            state.waits.record(world.now.since(arrival).as_ns());
            nic.handle(world, id);
        }
        nic.handle_timeout(world);
        state.passed = state.passed + state.poll;
        state.polls += 1;
        let (new_writes, new_covered) = counts(nic);
        Found {
            datagrams,
            completion: state.check == Check::Queue && state.occupancy.is_occupied(),
            write: state.check != Check::Nothing && new_writes != writes,
            covers: new_covered != covered,
        }
    }

    fn owed(&self) -> Pending {
        if self.state.has_more { Pending::More } else { self.nic.engine.pending(Instant::ZERO) }
    }

    fn send(&mut self, now: Instant, budget: &mut Budget) {
        self.state.is_full = !budget.is_spent()
            && self.nic.engine.pending(now) != Pending::Nothing
            && self.hand_over(Allowed::All, |len| {
                budget.spend(len);
                !budget.is_spent()
            });
        self.state.has_more = budget.is_spent() && self.nic.engine.pending(now) != Pending::Nothing;
    }

    fn send_requests(&mut self, _: Instant, even_joined: bool) -> Option<usize> {
        // As a device with superpackets, which joins an acknowledgement to a request.
        if !even_joined {
            return None;
        }
        let (mut budget, mut count) = (Budget::default(), 0);
        self.hand_over(Allowed::Requests, |len| {
            budget.spend(len);
            count += 1;
            !budget.is_spent()
        });
        (!budget.is_spent()).then_some(count)
    }

    fn collect_events(&mut self) {
        while self.nic.engine.poll_event().is_some() {}
        let State { is_armed, has_event, occupancy, .. } = &mut *self.state;
        if *is_armed && occupancy.is_occupied() {
            (*is_armed, *has_event) = (false, true);
        }
    }
}

fn duration(time: Time) -> Duration {
    Duration::from_nanos(time.as_ns())
}
