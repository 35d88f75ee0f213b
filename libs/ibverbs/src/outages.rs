//! The thread that carries out faults at points in time: it announces changes of links, ends devices, and
//! lets queue pairs fail.

use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant as WallTime};

use roce::device::Instant;
use roce::device::fork::StaticMutex;
use roce::verbs::Qpn;
use roce_fault::verbs::{Occurrence, Timed};

use crate::context::{BlockedSignals, Open};
use crate::links::{Change, Failed, Link};
use crate::{failing, faults, port_files};

/// The thread of a process, and the devices that it watches.
struct Watcher {
    process: u32,
    thread: Thread,
    devices: Vec<Weak<Open>>,
}

static WATCHER: StaticMutex<Option<Watcher>> = StaticMutex::new(None);

/// Lets the thread watch a device, if the plan has faults for it. Starts the thread if it is the first one.
pub(crate) fn watch(open: &Arc<Open>) {
    let Some(link) = &open.link else { return };
    let process = std::process::id();
    let mut watcher = WATCHER.lock();
    // The child of a fork does not have the thread.
    if watcher.as_ref().is_none_or(|watcher| watcher.process != process) {
        let Some(thread) = start() else { return };
        *watcher = Some(Watcher { process, thread, devices: Vec::new() });
    }
    if let Some(watcher) = watcher.as_mut() {
        link.set_watcher(watcher.thread.clone());
        watcher.devices.push(Arc::downgrade(open));
        watcher.thread.unpark();
    }
}

fn start() -> Option<Thread> {
    let (timeline, start) = faults::with(|active| (active.faults.plan().timeline(), active.start()))?;
    // The thread must not receive the application's signals.
    let signals = BlockedSignals::new();
    let builder = std::thread::Builder::new().name("roce-faults".to_owned());
    let started = builder.spawn(move || run(start, &timeline));
    drop(signals);
    Some(started.ok()?.thread().clone())
}

/// Returns the devices that are still open.
fn devices() -> Vec<Arc<Open>> {
    let mut watcher = WATCHER.lock();
    let Some(watcher) = watcher.as_mut() else { return Vec::new() };
    watcher.devices.retain(|device| device.strong_count() > 0);
    watcher.devices.iter().filter_map(Weak::upgrade).collect()
}

fn run(start: WallTime, timeline: &[Timed]) {
    let mut rest = timeline.iter().peekable();
    loop {
        let opened = devices();
        let now = Instant::ZERO + start.elapsed();
        while let Some(change) = rest.next_if(|change| change.at <= now) {
            if let Occurrence::QueuePair(index) = change.what {
                fail_queue_pair(&opened, index);
            }
        }
        let ends = opened.iter().filter_map(|open| announce(open, open.link.as_ref()?));
        let next = ends.chain(rest.peek().map(|change| change.at)).min();
        drop(opened);
        match next {
            Some(at) => std::thread::park_timeout((at - (Instant::ZERO + start.elapsed())).max(LEAST_SLEEP)),
            None => std::thread::park(),
        }
    }
}

/// Minimum sleep of the thread.
const LEAST_SLEEP: Duration = Duration::from_micros(100);

/// Announces the changes of a link, and returns when its current flap ends.
fn announce(open: &Open, link: &Link) -> Option<Instant> {
    let (changes, end) = link.changes();
    for change in changes {
        let name = open.device.name();
        let (subject, what) = match change {
            Change::Down => ("port", "down"),
            Change::Up => ("port", "up"),
            Change::Fatal => ("device", "fatal"),
        };
        faults::with(|active| active.log(format_args!("{subject} {name} {what}")));
        if change == Change::Fatal {
            let all: Vec<Qpn> = open.objects().qps.keys().copied().collect();
            all.into_iter().for_each(|qpn| failing::to_error(open, qpn));
        }
        port_files::write(open.device.index(), name, change == Change::Up);
        link.push(change.event());
    }
    end
}

/// Lets the queue pair with this order of creation fail, if it exists.
fn fail_queue_pair(opened: &[Arc<Open>], index: u32) {
    let Some(key) = faults::with(|active| active.faults.key_of(index)).flatten() else {
        faults::with(|active| active.log(format_args!("qp {index} does not exist")));
        return;
    };
    let found = opened.iter().find_map(|open| Some((open, failing::qpn_of(open, key)?)));
    let Some((open, qpn)) = found else { return };
    faults::with(|active| active.log(format_args!("qp {index} error qp={:#x}", qpn.get())));
    failing::to_error(open, qpn);
    if let Some(link) = &open.link {
        link.push(Failed::QueuePair(qpn));
    }
}
