//! The packets of a capture file that another program still writes.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use roce_capture::CaptureError;
use roce_document::dissect::{Flows, Listed, Row, Shown};
use roce_document::packet::walk;
use roce_packet::ROCE_UDP_PORT;
use serde_json::{Value, json};

use crate::input::follow;

/// Maximum number of packets of one event, the newest ones. A person reads fewer, and the page has all others
/// when it loads the capture again.
const MOST_ROWS: usize = 100;
/// Time between two checks whether somebody watches.
const PAUSE: Duration = Duration::from_millis(100);

/// A capture file that a thread reads while somebody watches.
pub(super) struct Followed {
    name: String,
    recent: Arc<Mutex<Recent>>,
}

/// The packets that the thread has read since the last event.
#[derive(Debug, Default)]
struct Recent {
    rows: VecDeque<Listed>,
    /// Packets and bytes on the wire since the last event.
    new: (u64, u64),
    /// All packets so far.
    packets: u64,
    /// Why the reading ended.
    problem: Option<String>,
}

impl Followed {
    /// Starts the thread. It reads only while `is_watched` returns true.
    pub(super) fn start(path: &Path, is_watched: impl Fn() -> bool + Send + 'static) -> io::Result<Self> {
        let recent = Arc::new(Mutex::new(Recent::default()));
        let (read, path, name) = (Arc::clone(&recent), path.to_owned(), path.display().to_string());
        thread::Builder::new().name("capture".into()).spawn(move || {
            let problem = match follow_packets(&path, &read, &is_watched) {
                Ok(()) => "the capture has ended".to_owned(),
                Err(error) => error.to_string(),
            };
            lock(&read).problem = Some(problem);
        })?;
        Ok(Self { name, recent })
    }

    /// Takes the packets since the last event. `interval_s` is the time since then, in seconds.
    pub(super) fn take(&self, interval_s: Option<f64>) -> Value {
        let mut recent = lock(&self.recent);
        let rows = std::mem::take(&mut recent.rows);
        let (packets, bytes) = std::mem::take(&mut recent.new);
        let rate = |count: u64| interval_s.map(|seconds| count as f64 / seconds);
        json!({
            "file": self.name, "packets": recent.packets, "problem": recent.problem,
            "packets_per_s": rate(packets), "bytes_per_s": rate(bytes),
            "left_out": packets.saturating_sub(rows.len() as u64), "rows": rows,
        })
    }
}

fn lock(recent: &Mutex<Recent>) -> MutexGuard<'_, Recent> {
    // Every change leaves a valid value.
    recent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the packets of a file, for as long as the process runs.
fn follow_packets(
    path: &Path,
    recent: &Mutex<Recent>,
    is_watched: &dyn Fn() -> bool,
) -> Result<(), CaptureError> {
    let mut reader = follow::open_without_signals(path)?;
    let (mut flows, mut first_ns, mut row) = (Flows::default(), None, Row::default());
    loop {
        while !is_watched() {
            thread::sleep(PAUSE);
        }
        let Some(packet) = reader.next_packet().transpose()? else { return Ok(()) };
        let walk = walk(&packet, ROCE_UDP_PORT);
        let first_ns = *first_ns.get_or_insert(packet.time_ns);
        let mark = flows.mark(&packet, &walk);
        row.fill(&Shown { packet: &packet, walk: &walk, first_ns, mark }, false);
        lock(recent).add(Listed::new(packet.number, &walk, &row), packet.original_len);
    }
}

impl Recent {
    fn add(&mut self, packet: Listed, length: u32) {
        self.packets += 1;
        self.new.0 += 1;
        self.new.1 += u64::from(length);
        if self.rows.len() == MOST_ROWS {
            self.rows.pop_front();
        }
        self.rows.push_back(packet);
    }
}
