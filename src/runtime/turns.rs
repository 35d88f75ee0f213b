//! The loop of a waiting thread, for any number of engines. [`wait`](super::wait) describes the policy.

use std::time::{Duration, Instant};

use super::crowding;
use super::wait::WaitFailure;
use crate::driver::wake::{Sleep, Slept};

/// Longest duration of one turn. A caller that blocks signals and the cancellation of the thread during a
/// turn allows them after it.
pub(super) const LONGEST_TURN: Duration = Duration::from_millis(5);

/// The progress of a wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spell {
    has_begun: bool,
    spin_end: Option<Instant>,
}

/// The result of one turn of a wait.
#[derive(Debug)]
pub(super) enum Turn<T> {
    Found(T),
    /// The thread must sleep now.
    Sleep,
    /// The turn lasted [`LONGEST_TURN`].
    Pause,
}

/// The actions of a waiting thread between two attempts.
pub(super) trait Turns {
    /// Marks the thread as waiting until it sleeps; [`plan`](Self::plan) extends this for the sleep.
    fn begin(&mut self);

    /// Marks the thread as no longer waiting.
    fn leave(&mut self);

    /// Returns how long the thread spins before it sleeps.
    fn spin(&self) -> Duration;

    /// Sends the acknowledgements that wait for the next post of the application.
    fn transmit_postponed(&self);

    /// Makes progress once. Returns whether more may be ready at once, and the failure of a device.
    fn progress(&self) -> (bool, Option<WaitFailure>);

    /// Lets threads that wait for a lock take it first.
    fn yield_lock(&self);

    /// Plans a sleep of at most `remaining` until there may be something.
    fn plan(&mut self, remaining: Option<Duration>) -> Sleep<'_>;

    /// Calls `attempt` until it returns a value or it is time to sleep, and makes progress in between.
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
            // Packets left over from the last call are sent at once, even by a thread that does not spin.
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

    /// Records a sleep, and lets the thread spin again if a descriptor became readable.
    fn note_sleep(&self, spell: &mut Spell, slept: Slept) {
        if slept == Slept::Readable {
            spell.spin_end = Instant::now().checked_add(self.spin());
        }
    }

    /// Calls `attempt` until it returns a value, makes progress in between, and sleeps. A signal does not end
    /// the wait.
    fn wait<T, E: From<WaitFailure>>(
        &mut self,
        timeout: Option<Duration>,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let outcome = self.wait_counted(timeout, attempt);
        self.leave();
        outcome
    }

    /// Waits like [`wait`](Self::wait), but the thread still counts as waiting afterwards.
    fn wait_counted<T, E: From<WaitFailure>>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        // A timeout beyond the range of the clock never ends.
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
