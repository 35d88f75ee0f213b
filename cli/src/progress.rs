//! Prints a line on standard error at intervals while a measurement runs, so that a log shows that it is
//! alive.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::errors::print_error;
use roce::verbs::Context;

/// The interval between two lines. A shorter measurement prints none.
const INTERVAL: Duration = Duration::from_secs(10);

/// A thread that reports the packets of a device until it is dropped.
pub(super) struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Reports on standard error every ten seconds.
    pub(super) fn of(context: &Context) -> Self {
        Self::every(INTERVAL, context, print_error)
    }

    fn every(interval: Duration, context: &Context, print: impl Fn(&str) + Send + 'static) -> Self {
        let (stop, stopped) = channel();
        let context = context.clone();
        let report = move || {
            let (begun, first) = (Instant::now(), context.counters());
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let now = context.counters();
                let megabytes = |now: u64, first: u64| now.saturating_sub(first) as f64 / 1e6;
                print(&format!(
                    "running for {:.0} s: {:.1} MB sent, {:.1} MB received, {} packets retransmitted",
                    begun.elapsed().as_secs_f64(),
                    megabytes(now.rdma_tx_bytes, first.rdma_tx_bytes),
                    megabytes(now.rdma_rx_bytes, first.rdma_rx_bytes),
                    now.retransmitted_packets - first.retransmitted_packets
                ));
            }
        };
        // Without a thread nothing is reported, and the measurement does not change.
        let thread = std::thread::Builder::new().name("roce-progress".into()).spawn(report).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The result of the thread does not matter.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_long_run_is_reported_and_a_short_one_is_not() {
        let address = roce_testing::own_address();
        let device = roce_device::open(&format!("udp:{address}"), roce_device::OpenOptions::default());
        let context = Context::builder().attach_box(device.unwrap()).unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let print = move |line: &str| sink.lock().unwrap().push(line.to_owned());
        drop(Progress::every(Duration::from_secs(60), &context, print.clone()));
        assert!(lines.lock().unwrap().is_empty());
        let progress = Progress::every(Duration::from_millis(1), &context, print);
        let end = Instant::now() + Duration::from_secs(20);
        while lines.lock().unwrap().len() < 2 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(progress);
        let count = lines.lock().unwrap().len();
        let expected = "running for 0 s: 0.0 MB sent, 0.0 MB received, 0 packets retransmitted";
        assert_eq!(lines.lock().unwrap()[0], expected);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(lines.lock().unwrap().len(), count, "nothing follows its end");
    }
}
