//! Processors that run threads in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use super::end::{Counts, End};
use crate::threads::{App, AppThread, BackgroundThread, Sleep, Step, Thread as Program};

/// Time that a thread may keep its processor while others are ready.
const SLICE_NS: u64 = 3_000_000;
/// Cost of the change from one thread to another.
const SWITCH_NS: u64 = 1_500;
/// Maximum number of processors.
const PROCESSORS: usize = 4;
/// Spin time of the contexts.
const SPIN: Duration = Duration::ZERO;

struct Thread {
    end: usize,
    processor: usize,
    is_background: bool,
    program: Box<dyn Program<End>>,
    sleep: Option<Sleep>,
    usage: Usage,
}

/// The cost of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Processor time in nanoseconds.
    pub(super) ran: u64,
    pub(super) wakeups: u64,
}

#[derive(Default)]
struct Processor {
    ready: VecDeque<usize>,
    running: Option<usize>,
    /// End of the current step.
    busy_until: u64,
    slice_end: u64,
    /// Whether a thread has been woken that had less time than the running one.
    preempts: bool,
}

pub(super) struct Machine {
    now: u64,
    ends: [End; 2],
    threads: Vec<Thread>,
    processors: [Processor; PROCESSORS],
}

/// The outcome of a run.
#[derive(Debug)]
pub(super) struct Report {
    /// Simulated time in nanoseconds.
    pub(super) time: u64,
    pub(super) ends: [EndReport; 2],
}

#[derive(Debug, Default)]
pub(super) struct EndReport {
    counts: Counts,
    /// All threads of the application together.
    pub(super) app: Usage,
    pub(super) background: Usage,
}

impl std::ops::Deref for EndReport {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

impl Machine {
    /// Creates two ends with their background threads on these processors.
    pub(super) fn new(processors: [usize; 2]) -> Self {
        let mut machine = Self {
            now: 1_000,
            ends: [End::new(), End::new()],
            threads: Vec::new(),
            processors: Default::default(),
        };
        for (end, processor) in processors.into_iter().enumerate() {
            machine.spawn(end, processor, true, Box::new(BackgroundThread::new(SPIN)));
        }
        machine
    }

    /// Starts a thread of the application.
    pub(super) fn app(&mut self, end: usize, processor: usize, app: impl App<End> + 'static) {
        self.spawn(end, processor, false, Box::new(AppThread::new(app, SPIN)));
    }

    pub(super) fn move_background(&mut self, end: usize, processor: usize) {
        let of_end = |thread: &Thread| thread.is_background && thread.end == end;
        let moved = self.threads.iter().position(of_end).unwrap();
        let old = std::mem::replace(&mut self.threads[moved].processor, processor);
        self.processors[old].ready.retain(|&ready| ready != moved);
        self.processors[processor].ready.push_back(moved);
    }

    fn spawn(&mut self, end: usize, processor: usize, is_background: bool, program: Box<dyn Program<End>>) {
        self.processors[processor].ready.push_back(self.threads.len());
        let usage = Usage::default();
        self.threads.push(Thread { end, processor, is_background, program, sleep: None, usage });
    }

    /// Runs for `time`.
    pub(super) fn run(mut self, time: Duration) -> Report {
        let end = self.now + time.as_nanos() as u64;
        while self.now < end {
            self.wake();
            (0..PROCESSORS).for_each(|processor| self.run_processor(processor));
            let Some(next) = self.next_time() else { break };
            self.now = next.max(self.now);
        }
        self.report(time)
    }

    fn report(self, time: Duration) -> Report {
        let mut ends: [EndReport; 2] = Default::default();
        for (report, end) in ends.iter_mut().zip(&self.ends) {
            report.counts = end.link.counts;
        }
        for thread in &self.threads {
            let report = &mut ends[thread.end];
            let usage = if thread.is_background { &mut report.background } else { &mut report.app };
            usage.ran += thread.usage.ran;
            usage.wakeups += thread.usage.wakeups;
        }
        Report { time: time.as_nanos() as u64, ends }
    }

    /// Makes the threads ready whose sleep has ended.
    fn wake(&mut self) {
        for (number, thread) in self.threads.iter_mut().enumerate() {
            let (Some(sleep), end) = (thread.sleep, &self.ends[thread.end]) else { continue };
            let is_over = sleep.until.as_nanos() <= self.now
                || sleep.device && end.arrival().is_some_and(|time| time <= self.now)
                || sleep.wake && end.is_woken
                || sleep.event && end.link.has_event;
            if is_over {
                thread.sleep = None;
                thread.usage.wakeups += 1;
                let processor = &mut self.processors[thread.processor];
                processor.ready.push_front(number);
                processor.preempts = true;
            }
        }
    }

    fn run_processor(&mut self, number: usize) {
        let processor = &mut self.processors[number];
        if processor.busy_until > self.now {
            return;
        }
        if let Some(running) = processor.running
            && !processor.ready.is_empty()
            && (processor.preempts || self.now >= processor.slice_end)
        {
            processor.running = None;
            processor.ready.push_back(running);
        }
        let Some(running) = processor.running else { return self.switch(number) };
        let thread = &mut self.threads[running];
        let end = &mut self.ends[thread.end];
        end.link.clock = self.now;
        let step = thread.program.step(end);
        // Every step takes some time.
        let busy_until = end.link.clock.max(self.now + 20);
        let sent = std::mem::take(&mut end.link.outbox);
        let peer = 1 - thread.end;
        thread.usage.ran += busy_until - self.now;
        processor.busy_until = busy_until;
        match step {
            Step::Run => {}
            Step::Yield => {
                processor.running = None;
                processor.ready.push_back(running);
            }
            Step::Sleep(sleep) => {
                processor.running = None;
                thread.sleep = Some(sleep);
            }
        }
        sent.into_iter().for_each(|(time, packet)| self.ends[peer].arrives(time, packet));
    }

    /// Changes to the next thread that is ready.
    fn switch(&mut self, number: usize) {
        let processor = &mut self.processors[number];
        let Some(next) = processor.ready.pop_front() else { return };
        (processor.running, processor.preempts) = (Some(next), false);
        processor.slice_end = self.now + SLICE_NS;
        processor.busy_until = self.now + SWITCH_NS;
        self.threads[next].usage.ran += SWITCH_NS;
    }

    /// Returns the time of the next event.
    fn next_time(&self) -> Option<u64> {
        let busy = |processor: &Processor| {
            let has_work = processor.running.is_some() || !processor.ready.is_empty();
            has_work.then_some(processor.busy_until)
        };
        let sleeping = |thread: &Thread| {
            let sleep = thread.sleep?;
            let arrival = self.ends[thread.end].arrival().filter(|_| sleep.device);
            Some(arrival.unwrap_or(u64::MAX).min(sleep.until.as_nanos()))
        };
        self.processors.iter().filter_map(busy).chain(self.threads.iter().filter_map(sleeping)).min()
    }
}
