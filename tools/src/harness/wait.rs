//! Waiting for completions.

use std::time::{Duration, Instant};

use roce::verbs::{CompletionQueue, Notify, VerbsError, WaitError};
use roce_transport::Wc;

use super::ToolError;

/// Attempts between two reads of the clock, which would slow the spinning down.
const ATTEMPTS: u32 = 256;
/// How long nothing may happen before a thread that spins sleeps between its attempts: what takes longer is not measured in
/// microseconds.
pub(crate) const SPINNING: Duration = Duration::from_millis(20);
/// How long such a thread sleeps.
pub(crate) const NAP: Duration = Duration::from_micros(500);
/// How often a thread that waits looks for the end of the other side.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// Repeats an attempt until it returns something; sleeps between attempts when nothing has happened for [`SPINNING`].
/// `None`: the time is over.
pub(crate) fn spin<T, E>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let mut started = None;
    loop {
        for _ in 0..ATTEMPTS {
            if let Some(found) = attempt()? {
                return Ok(Some(found));
            }
            std::hint::spin_loop();
        }
        let waited = started.get_or_insert_with(Instant::now).elapsed();
        if waited > patience {
            return Ok(None);
        }
        if waited > SPINNING {
            std::thread::sleep(NAP);
        } else {
            // With fewer processors than spinning processes the other side must get its turn.
            std::thread::yield_now();
        }
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
    /// Waits for completions while `watch` finds the other side alive. Polls at first, and sleeps when nothing comes.
    /// `None`: the time is over.
    pub(crate) fn run(
        &self,
        out: &mut [Wc],
        watch: &mut dyn FnMut() -> Result<(), ToolError>,
    ) -> Result<Option<usize>, ToolError> {
        if !self.by_event
            && let Some(count) = spin(SPINNING.min(self.patience), || poll(self.cq, out))?
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
