//! Waiting for completions.

use std::time::{Duration, Instant};

use roce::verbs::{CompletionQueue, Notify, VerbsError, WaitError};
use roce_transport::Wc;

/// Attempts between two reads of the clock, which would slow the spinning down.
const ATTEMPTS: u32 = 256;

/// Repeats an attempt without sleeping until it returns something. `None`: the time is over.
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
        if started.get_or_insert_with(Instant::now).elapsed() > patience {
            return Ok(None);
        }
        // With fewer processors than spinning processes the other side must get its turn.
        std::thread::yield_now();
    }
}

fn poll(cq: &CompletionQueue, out: &mut [Wc]) -> Result<Option<usize>, VerbsError> {
    Ok(Some(cq.poll(out)?).filter(|count| *count > 0))
}

/// Polls for completions until there are some.
pub(crate) fn wait_spinning(
    cq: &CompletionQueue,
    out: &mut [Wc],
    patience: Duration,
) -> Result<usize, WaitError> {
    spin(patience, || poll(cq, out))?.ok_or(WaitError::TimedOut)
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
