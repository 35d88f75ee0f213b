//! Tests of a device that fails permanently, such as a TAP whose interface is deleted.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use roce::device::memory::MemoryDevice;
use roce::device::{Capabilities, Device};
use roce::verbs::*;
use roce_transport::{Instant, Received, Transmit, TxSlot};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::common::within;
use crate::world::*;

/// The state that a test shares with its device.
struct Cable {
    is_cut: AtomicBool,
    /// Calls that transferred nothing because the cable is cut.
    refused: AtomicUsize,
    /// Becomes readable when the cable is cut and stays readable, as with a deleted interface.
    event: OwnedFd,
}

impl Cable {
    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).unwrap();
    }

    fn check(&self) -> io::Result<()> {
        if !self.is_cut.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(io::Error::new(io::ErrorKind::NotConnected, "the cable was cut"))
    }
}

struct Cuttable {
    inner: MemoryDevice,
    cable: Arc<Cable>,
}

impl Device for Cuttable {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn addresses(&self) -> &[IpAddr] {
        self.inner.addresses()
    }
    fn bind_source_port(&mut self, path: &Path, wanted: u16) -> io::Result<u16> {
        self.inner.bind_source_port(path, wanted)
    }
    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()
    }
    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.inner.commit(now, transmit);
    }
    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.cable.check()?;
        self.inner.flush(now)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        self.cable.check()?;
        self.inner.receive(now, sink)
    }
    /// Returns a deadline in the past once the cable is cut: the device always has work, which never
    /// succeeds.
    fn deadline(&self) -> Option<Instant> {
        self.cable.is_cut.load(Ordering::Relaxed).then_some(Instant::ZERO)
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.cable.event.as_fd())
    }
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}

/// Returns a context on a cable that can be cut, and one of its completion queues, with a channel.
fn open() -> (Context, Arc<Cable>, CompletionChannel, CompletionQueue) {
    let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
    let (inner, _) = MemoryDevice::pair(a, b).unwrap();
    let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let cable = Arc::new(Cable { is_cut: AtomicBool::new(false), refused: AtomicUsize::new(0), event });
    let device = Cuttable { inner, cable: cable.clone() };
    let context = Context::builder().spin(Duration::ZERO).attach(device).unwrap();
    let channel = context.create_channel().unwrap();
    let cq = context.create_cq(16, Some(&channel)).unwrap();
    (context, cable, channel, cq)
}

#[test]
fn who_waits_without_end_is_told() {
    within(60, || {
        let (_context, cable, channel, cq) = open();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| channel.wait(None));
            std::thread::sleep(Duration::from_millis(5));
            cable.cut();
            let error = waiter.join().unwrap().unwrap_err();
            assert!(matches!(error, WaitError::Verbs(VerbsError::DeviceFailed(_))), "{error}");
            assert!(error.to_string().contains("the cable was cut"), "{error}");
        });
        let error = cq.poll(&mut [Wc::default()]).unwrap_err();
        assert!(matches!(error, VerbsError::DeviceFailed(_)), "{error}");
    });
}

#[test]
fn who_sleeps_on_the_descriptor_of_a_channel_is_woken() {
    within(60, || {
        let (_context, cable, channel, _cq) = open();
        let readable = |patience: Duration| {
            let timeout = Timespec::try_from(patience).unwrap();
            poll(&mut [PollFd::new(&channel, PollFlags::IN)], Some(&timeout)).unwrap() == 1
        };
        assert!(!readable(Duration::ZERO));
        cable.cut();
        assert!(readable(PATIENCE));
        assert_eq!(channel.try_event(), None);
        assert!(!readable(Duration::from_millis(5)), "once is enough");
    });
}

#[test]
fn a_device_that_failed_is_left_alone_and_costs_nothing() {
    within(60, || {
        let (context, cable, ..) = open();
        cable.cut();
        let end = Clock::now() + PATIENCE;
        while context.check_device().is_ok() {
            assert!(Clock::now() < end, "nobody notices");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (refused, polls) = (cable.refused.load(Ordering::Relaxed), counter(&context, "idle_polls"));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(cable.refused.load(Ordering::Relaxed), refused);
        // The background thread checks timers twenty times a second.
        let polls = counter(&context, "idle_polls") - polls;
        assert!(polls < 100, "{polls} times");
    });
}

#[test]
fn what_was_posted_runs_out_of_retries() {
    within(60, || {
        let (context, cable, _channel, cq) = open();
        let pd = context.alloc_pd().unwrap();
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
        let remote = Endpoint { address: "192.0.2.2".parse().unwrap(), qpn: 17, psn: 0 };
        let options = ConnectOptions::default().timeout(8).retry_cnt(2);
        qp.connect(&remote, &options).unwrap();
        cable.cut();
        qp.post_send(&SendWr::inline(7, SendOp::Send, b"hello")).unwrap();
        let (mut done, end) = ([Wc::default()], Clock::now() + PATIENCE);
        while cq.poll(&mut done).unwrap_or(0) == 0 {
            assert!(Clock::now() < end, "no completion");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((done[0].wr_id, done[0].status), (7, WcStatus::RetryExceededError));
    });
}
