//! Costs of an idle process, and resources that remain after a context is dropped. This test is alone in its
//! process, because it measures the whole process.

use roce_testing as common;

use std::time::{Duration, Instant};

use common::{own_address, within};
use roce::verbs::{Context, Notify, Wc};
use rustix::time::{ClockId, clock_gettime};

const IDLE: Duration = Duration::from_millis(500);

fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processor time of all threads while `nothing` runs, which takes [`IDLE`].
fn used(nothing: impl FnOnce()) -> Duration {
    let (before, started) = (process_time(), Instant::now());
    nothing();
    assert!(started.elapsed() >= IDLE);
    process_time() - before
}

/// Returns the number of threads of this process that make progress for contexts.
fn background_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may end during the iteration.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "roce-progress").count()
}

/// Waits until a count has fallen or risen as expected, which may take a moment.
fn until(what: &str, count: impl Fn() -> usize, is_expected: impl Fn(usize) -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !is_expected(count()) {
        assert!(Instant::now() < end, "{} {what}", count());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until this number of background threads exists, because a joined thread is still listed for a
/// moment.
fn until_background_threads_are(expected: usize) {
    until(&format!("background threads instead of {expected}"), background_threads, |count| {
        count == expected
    });
}

#[test]
fn waiting_costs_little_and_a_context_leaves_nothing_behind() {
    within(60, || {
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        let spec = format!("udp:{}", own_address());
        let mut least = [Duration::MAX; 3];
        for _ in 0..3 {
            let context = Context::open(&spec).unwrap();
            let channel = context.create_channel().unwrap();
            let cq = context.create_cq(8, Some(&channel)).unwrap();
            cq.request_notification(Notify::Next).unwrap();
            let used = [
                used(|| std::thread::sleep(IDLE)),
                used(|| drop(cq.wait(&mut [Wc::default()], Some(IDLE)))),
                used(|| drop(channel.wait(Some(IDLE)))),
            ];
            println!("sleeping elsewhere, waiting for a completion, for a channel: {used:?}");
            until_background_threads_are(1);
            // Other load of the machine only increases the time.
            least = std::array::from_fn(|index| least[index].min(used[index]));
        }
        assert!(least.iter().all(|used| *used < IDLE / 20), "{least:?} of processor time in {IDLE:?}");
        until_background_threads_are(0);
        // The test harness opens and closes files on another thread. Three leaked contexts would have more
        // descriptors.
        until(&format!("descriptors instead of {before}"), descriptors, |count| count <= before);
    });
}
