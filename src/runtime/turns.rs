//! The loop of a thread that waits, whichever engines it makes progress in: see [`wait`](super::wait) for the policy.

use std::time::{Duration, Instant};

use super::crowding;
use super::wait::WaitFailure;
use crate::driver::wake::{Sleep, Slept};

/// The longest time of one turn: a caller that keeps signals and the cancellation of the thread away meanwhile lets them in after it.
pub(super) const LONGEST_TURN: Duration = Duration::from_millis(5);

/// How far a wait is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spell {
    has_begun: bool,
    spin_end: Option<Instant>,
}

/// How one turn of a wait ended.
#[derive(Debug)]
pub(super) enum Turn<T> {
    Found(T),
    /// It is time to sleep.
    Sleep,
    /// The turn took [`LONGEST_TURN`].
    Pause,
}

/// What a waiting thread does between two attempts.
pub(super) trait Turns {
    /// The thread counts as one that waits until it sleeps, and then as long as it planned to.
    fn begin(&mut self);

    /// The thread does not count as one that waits any more.
    fn leave(&mut self);

    /// How long the thread spins before it sleeps.
    fn spin(&self) -> Duration;

    /// Sends the acknowledgements that wait for what the application posts next.
    fn transmit_postponed(&self);

    /// Makes progress once. Returns whether there may be more to do at once, and the failure of a device.
    fn progress(&self) -> (bool, Option<WaitFailure>);

    /// Lets threads that wait for a lock have it first.
    fn yield_lock(&self);

    /// How to sleep until there may be something, for `remaining` at most.
    fn plan(&mut self, remaining: Option<Duration>) -> Sleep<'_>;

    /// Calls `attempt` until it gives something or it is time to sleep, and makes progress in between.
    fn turn<T, E: From<WaitFailure>>(
        &mut self,
        spell: &mut Spell,
        end: Option<Instant>,
        attempt: &mut impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Turn<T>, E> {
        if !spell.has_begun
            && let Some(found) = attempt()?
        {
            self.transmit_postponed();
            return Ok(Turn::Found(found));
        }
        self.begin();
        let started = Instant::now();
        if !std::mem::replace(&mut spell.has_begun, true) {
            spell.spin_end = started.checked_add(self.spin());
        }
        loop {
            let (has_more, failure) = self.progress();
            if let Some(found) = attempt()? {
                return Ok(Turn::Found(found));
            }
            if let Some(failure) = failure {
                return Err(failure.into());
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Err(WaitFailure::TimedOut.into());
            }
            if has_more {
                spell.spin_end = now.checked_add(self.spin());
            }
            // What is left over from the last call is sent at once, also by a thread that does not spin.
            if !has_more && spell.spin_end.is_some_and(|end| now >= end) {
                return Ok(Turn::Sleep);
            }
            if now.saturating_duration_since(started) >= LONGEST_TURN {
                return Ok(Turn::Pause);
            }
            self.yield_lock();
            if !has_more && crowding::looked_in_vain() {
                crowding::share();
            }
            std::hint::spin_loop();
        }
    }

    /// Notes that the thread has slept.
    fn note_sleep(&self, spell: &mut Spell, slept: Slept) {
        if slept == Slept::Readable {
            spell.spin_end = Instant::now().checked_add(self.spin());
        }
    }

    /// Calls `attempt` until it gives something, makes progress in between, and sleeps. A signal does not end the wait.
    fn wait<T, E: From<WaitFailure>>(
        &mut self,
        timeout: Option<Duration>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let outcome = self.wait_counted(timeout, attempt);
        self.leave();
        outcome
    }

    /// [`wait`](Self::wait), after which the thread still counts as one that waits.
    fn wait_counted<T, E: From<WaitFailure>>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        // A time beyond the end of the clock never ends.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut spell = Spell::default();
        loop {
            match self.turn(&mut spell, end, &mut attempt)? {
                Turn::Found(found) => return Ok(found),
                Turn::Pause => {}
                Turn::Sleep => {
                    let remaining = end.map(|end| end.saturating_duration_since(Instant::now()));
                    let slept = self.plan(remaining).sleep().map_err(WaitFailure::Io)?;
                    self.note_sleep(&mut spell, slept);
                }
            }
        }
    }
}
