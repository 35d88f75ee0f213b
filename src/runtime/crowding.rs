//! Yields the processor of polling threads, see [`Crowding`].

use std::cell::Cell;
use std::time::Duration;

use roce_policy::Crowding;
use roce_transport::Instant;
use rustix::time::{ClockId, clock_gettime};

thread_local! {
    static CROWDING: Cell<Crowding> = const { Cell::new(Crowding::NEW) };
}

fn with<T>(work: impl FnOnce(&mut Crowding) -> T) -> T {
    let mut crowding = CROWDING.get();
    let outcome = work(&mut crowding);
    CROWDING.set(crowding);
    outcome
}

/// Counts an empty check of the device, or of memory that a peer will write. Returns whether the caller must
/// call [`yield_processor`], without holding a lock.
#[inline]
pub(super) fn needs_yield() -> bool {
    with(Crowding::checked)
}

/// Counts an empty check of a thread that does not poll for the application, and yields if others need the
/// processor. The caller holds no lock.
#[inline]
pub(super) fn yield_if_needed() {
    if needs_yield() {
        yield_processor();
    }
}

/// Makes the next empty check a trial, unless others kept the processor too long lately.
pub(super) fn try_soon() {
    with(Crowding::try_soon);
}

/// Yields the processor, and makes a trial if one is due.
#[cold]
pub(super) fn yield_processor() {
    let before = now();
    if with(Crowding::begins) {
        let charged = charged();
        std::thread::yield_now();
        let after = now();
        let charged = self::charged().saturating_sub(charged);
        with(|crowding| crowding.note_trial(before, after, charged));
    } else {
        std::thread::yield_now();
        with(|crowding| crowding.note_yield(before, now()));
    }
}

/// Returns the time of the system's monotonic clock.
fn now() -> Instant {
    Instant::ZERO + time_of(ClockId::Monotonic)
}

/// Returns the processor time of this thread.
fn charged() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
