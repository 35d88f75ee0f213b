//! Waiting for completions.

use std::cell::Cell;
use std::time::{Duration, Instant};

use roce::verbs::{CompletionQueue, Notify, VerbsError, WaitError};
use roce_exchange::ToolError;
use roce_transport::Wc;

/// Attempts between two reads of the clock, which would slow the spinning down.
const ATTEMPTS: u32 = 256;
/// How long nothing may happen before a thread that spins sleeps between its attempts: what takes longer is
/// not measured in microseconds.
pub(crate) const SPINNING: Duration = Duration::from_millis(20);
/// How long such a thread sleeps.
pub(crate) const NAP: Duration = Duration::from_micros(500);
/// If `yield_now` takes longer than this, other threads compete for the processor.
const CROWDED: Duration = Duration::from_millis(1);
/// Number of waits after that in which the thread sleeps at once instead of spinning.
const WAITS_ASLEEP: u32 = 64;
/// How often a thread that waits looks for the end of the other side.
const WATCH_EVERY: Duration = Duration::from_millis(20);

thread_local! {
    /// Remaining waits in which this thread sleeps at once.
    static ASLEEP: Cell<u32> = const { Cell::new(0) };
}

/// The outcome of spinning.
enum Spun<T> {
    Found(T),
    /// The time is over.
    Nothing,
    /// Other threads compete for the processor.
    Crowded,
}

/// Repeats an attempt until it returns something, `longest` has passed, or another thread competes for the
/// processor.
fn spin_alone<T, E>(
    longest: Duration,
    attempt: &mut impl FnMut() -> Result<Option<T>, E>,
) -> Result<Spun<T>, E> {
    let started = Instant::now();
    loop {
        for _ in 0..ATTEMPTS {
            if let Some(found) = attempt()? {
                return Ok(Spun::Found(found));
            }
            std::hint::spin_loop();
        }
        let before = Instant::now();
        if before - started > longest {
            return Ok(Spun::Nothing);
        }
        // With fewer processors than spinning processes the other side must get its turn.
        std::thread::yield_now();
        if before.elapsed() > CROWDED {
            return Ok(Spun::Crowded);
        }
    }
}

/// Repeats an attempt until it returns something or `patience` has passed. Sleeps between attempts after
/// [`SPINNING`], or as soon as another thread competes for the processor.
pub(crate) fn spin<T, E>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let started = Instant::now();
    if let Spun::Found(found) = spin_alone(SPINNING.min(patience), &mut attempt)? {
        return Ok(Some(found));
    }
    loop {
        if let Some(found) = attempt()? {
            return Ok(Some(found));
        }
        if started.elapsed() > patience {
            return Ok(None);
        }
        std::thread::sleep(NAP);
    }
}

fn poll(cq: &CompletionQueue, out: &mut [Wc]) -> Result<Option<usize>, VerbsError> {
    Ok(Some(cq.poll(out)?).filter(|count| *count > 0))
}

/// Polls for completions until there are some; sleeps between polls when nothing has come for [`SPINNING`].
pub(crate) fn wait_spinning(
    cq: &CompletionQueue,
    out: &mut [Wc],
    patience: Duration,
) -> Result<usize, WaitError> {
    spin(patience, || poll(cq, out))?.ok_or(WaitError::TimedOut)
}

/// A wait for completions.
pub(crate) struct CompletionWait<'a> {
    pub(crate) cq: &'a CompletionQueue,
    /// By an event; otherwise by polling.
    pub(crate) by_event: bool,
    pub(crate) patience: Duration,
}

impl CompletionWait<'_> {
    /// Polls unless other threads compete for the processor. Beside 16 busy processes on two processors, a
    /// thread that yields runs again after 25 ms; a thread that sleeps in [`CompletionQueue::wait`] is woken
    /// within 3 ms.
    fn poll_for_a_while(&self, out: &mut [Wc]) -> Result<Option<usize>, VerbsError> {
        if let Some(left) = ASLEEP.get().checked_sub(1) {
            ASLEEP.set(left);
            return Ok(None);
        }
        match spin_alone(SPINNING.min(self.patience), &mut || poll(self.cq, out))? {
            Spun::Found(count) => return Ok(Some(count)),
            Spun::Nothing => {}
            Spun::Crowded => ASLEEP.set(WAITS_ASLEEP),
        }
        Ok(None)
    }

    /// Waits for completions while `watch` finds the other side alive. Polls at first, and sleeps when
    /// nothing comes. `None`: the time is over.
    pub(crate) fn run(
        &self,
        out: &mut [Wc],
        watch: &mut dyn FnMut() -> Result<(), ToolError>,
    ) -> Result<Option<usize>, ToolError> {
        if !self.by_event
            && let Some(count) = self.poll_for_a_while(out)?
        {
            return Ok(Some(count));
        }
        let end = Instant::now() + self.patience;
        loop {
            let waited = if self.by_event {
                wait_for_event(self.cq, out, WATCH_EVERY, &mut 0)
            } else {
                self.cq.wait(out, Some(WATCH_EVERY))
            };
            match waited {
                Ok(count) => return Ok(Some(count)),
                Err(WaitError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            watch()?;
            if Instant::now() > end {
                return Ok(None);
            }
        }
    }
}

/// Sleeps until the channel of the queue reports completions, and counts the events that this takes.
pub(crate) fn wait_for_event(
    cq: &CompletionQueue,
    out: &mut [Wc],
    patience: Duration,
    events: &mut u64,
) -> Result<usize, WaitError> {
    let Some(channel) = cq.channel() else { return cq.wait(out, Some(patience)) };
    loop {
        if let Some(count) = poll(cq, out)? {
            return Ok(count);
        }
        cq.request_notification(Notify::Next)?;
        if let Some(count) = poll(cq, out)? {
            return Ok(count);
        }
        channel.wait(Some(patience))?;
        *events += 1;
    }
}
