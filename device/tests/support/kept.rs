//! A sink of captures that keeps what it gets.

use std::sync::{Arc, Mutex, MutexGuard};

use roce_capture::Direction;
use roce_device::pcap::FrameSink;

/// The arguments of a sink's calls: time, direction, comment and frame.
pub(crate) type Seen = Vec<(u64, Direction, Option<String>, Vec<u8>)>;

#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Seen>>);

impl Kept {
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap()
    }
}

impl FrameSink for Kept {
    fn frame(&mut self, time_ns: u64, direction: Direction, comment: Option<&str>, frame: &[u8]) {
        self.seen().push((time_ns, direction, comment.map(str::to_owned), frame.to_vec()));
    }
}
