//! The loop of a thread that waits, whichever engines it makes progress in: see [`wait`](super::wait) for the policy.

use std::io;
use std::time::{Duration, Instant};

use super::WaitFailure;
use super::crowding;
use crate::driver::wake::Slept;

/// What a waiting thread does between two attempts.
pub(super) trait Turns {
    /// Counts the thread as one that waits while it exists.
    type Waiting;

    /// Begins to wait.
    fn begin(&self) -> Self::Waiting;

    /// How long the thread spins before it sleeps.
    fn spin(&self) -> Duration;

    /// Sends the acknowledgements that wait for what the application posts next.
    fn transmit_postponed(&self);

    /// Makes progress once. Returns whether there may be more to do at once, and the failure of a device.
    fn progress(&self) -> (bool, Option<WaitFailure>);

    /// Lets threads that wait for a lock have it first.
    fn yield_lock(&self);

    /// Sleeps until there may be something, for `remaining` at most.
    fn sleep(&mut self, remaining: Option<Duration>) -> io::Result<Slept>;

    /// Calls `attempt` until it gives something, and makes progress in between. A signal ends the wait where it `is_interruptible`.
    fn wait<T, E: From<WaitFailure>>(
        &mut self,
        is_interruptible: bool,
        timeout: Option<Duration>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        if let Some(found) = attempt()? {
            self.transmit_postponed();
            return Ok(found);
        }
        let _waiting = self.begin();
        let started = Instant::now();
        // A time beyond the end of the clock never ends.
        let end = timeout.and_then(|timeout| started.checked_add(timeout));
        let mut spin_end = started.checked_add(self.spin());
        loop {
            let (has_more, failure) = self.progress();
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitFailure::TimedOut.into());
            }
            if has_more {
                spin_end = now.checked_add(self.spin());
            }
            // What is left over from the last call is sent at once, also by a thread that does not spin.
            if has_more || spin_end.is_none_or(|end| now < end) {
                self.yield_lock();
                if !has_more && crowding::looked_in_vain() {
                    crowding::share();
                }
                std::hint::spin_loop();
                continue;
            }
            match self.sleep(end.map(|end| end - now)).map_err(WaitFailure::Io)? {
                Slept::Readable => spin_end = Instant::now().checked_add(self.spin()),
                Slept::Interrupted if is_interruptible => return Err(WaitFailure::Interrupted.into()),
                Slept::Interrupted | Slept::Out => {}
            }
        }
    }
}
