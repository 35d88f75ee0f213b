//! The estimate of the memory of a run beside what runs take.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use roce_sim::scenario::Scenario;

/// Counts the bytes that this thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

fn hold(more: usize, less: usize) {
    let held = HELD.get() + more as i64 - less as i64;
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: every call goes to the system allocator as it came; the counters are plain cells of this thread that need no destructor and
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hold(layout.size(), 0);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(0, layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        hold(new_size, layout.size());
        // SAFETY: the caller keeps the contract of `realloc`, and `pointer` came from `System`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The estimate, and the most bytes that the run takes beside the scenario.
fn measure(text: &str) -> (u64, u64, u64) {
    let scenario = Scenario::parse(text, &|name| Err(format!("{name} is not here"))).unwrap();
    let estimate = scenario.memory();
    let before = HELD.get();
    MOST.set(before);
    let mut simulation = scenario.simulation().unwrap();
    simulation.run_to_end();
    let results = simulation.results();
    assert_eq!(results.incomplete(), 0);
    (estimate.least(), (MOST.get() - before) as u64, estimate.most())
}

const STAR: &str = "name = \"n\"\n[topology]\nkind = \"star\"\n";

/// A run never takes more than full windows, queues and series would, and it takes what it needs in any case. Where that is most of
/// it, the two are near each other: otherwise a run would be begun that does not fit.
#[test]
fn the_estimate_is_near_what_runs_take() {
    let hosts = |k: u32| {
        format!(
            "name = \"n\"\n[topology]\nkind = \"fat-tree\"\nk = {k}\n[[flows]]\nkind = \"permutation\"\nbytes = \"1KB\"\n"
        )
    };
    let all_to_all = |hosts: u32, bytes: &str, rest: &str| {
        format!("{STAR}hosts = {hosts}\n{rest}\n[[flows]]\nkind = \"all-to-all\"\nbytes = \"{bytes}\"\n")
    };
    let collective = |algorithm: &str| {
        format!(
            "{STAR}hosts = 48\n[[collective]]\nkind = \"all-reduce\"\nalgorithm = \"{algorithm}\"\nbytes = \"96KB\"\n"
        )
    };
    let selective =
        "[host]\nrecovery = \"selective-repeat:cap=1024\"\n[switch]\npfc = []\nbuffer = \"100KB\"";
    let poisson = format!(
        "{STAR}hosts = 16\n[[flows]]\nkind = \"poisson\"\nload = 0.5\nduration = \"2ms\"\nsizes = \"hadoop\"\n"
    );
    let real = format!(
        "payload = \"real\"\n{STAR}hosts = 9\n[[flows]]\nkind = \"incast\"\ndegree = 8\nto = \"h8\"\nbytes = \"2MB\"\n"
    );
    let mut wrong = Vec::new();
    for (name, text, is_certain) in [
        ("128 hosts", hosts(8), true),
        ("1,024 hosts", hosts(16), true),
        ("all to all", all_to_all(96, "1KB", ""), true),
        ("all to all, deep", all_to_all(96, "1KB", "[host]\ndepth = 64"), true),
        ("all to all, selective repeat", all_to_all(64, "20KB", selective), true),
        ("ring", collective("ring"), true),
        ("direct", collective("direct"), true),
        ("poisson", poisson, false),
        ("real payload", real, false),
    ] {
        let (least, taken, most) = measure(&text);
        println!("{name}: {least} bytes at least, {taken} taken, {most} at most");
        let is_near = !is_certain || taken <= 2 * least;
        if least > taken + taken / 5 || taken > most + most / 5 || !is_near {
            wrong.push(format!("{name}: {least} at least, {taken} taken, {most} at most"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Regression: room for 1,024 packets was reserved at both ends of each flow, 4 GB for these 240 flows.
#[test]
fn selective_repeat_takes_memory_for_early_packets_only() {
    let text = format!(
        "{STAR}hosts = 16\nrate = \"400Gbps\"\n[host]\npath_mtu = 4096\nrecovery = \"selective-repeat:cap=1024\"\n\
         [[flows]]\nkind = \"all-to-all\"\nbytes = \"20KB\"\n"
    );
    let (_, taken, _) = measure(&text);
    assert!(taken < 10_000_000, "{taken}");
}
