//! When a peer counts as lost: any thread that watches the device notices it, and time in which this process
//! did not run does not count.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roce::device::memory::MemoryDevice;
use roce::device::{Device, Instant, Received, Transmit, TxSlot};
use roce::verbs::*;
use rustix::event::{PollFd, PollFlags, poll};

use crate::common::within;
use crate::world::*;

/// The device is checked now and then, or all the time.
#[test]
fn the_loss_of_a_peer_is_noticed_however_the_application_waits() {
    within(60, || {
        // Two timeouts of 17 ms.
        let rules = Retransmission { least_timeout: 12, ..Retransmission::ADAPTIVE };
        let lose = |background: bool, wait: &dyn Fn(&Side, &CompletionChannel)| {
            let [near, far] = [background, true].map(|background| {
                let builder = Context::builder().background(background).retransmission(rules);
                builder.open(&format!("udp:{}", crate::common::own_address())).unwrap()
            });
            let (mut near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
            let channel = near.context.create_channel().unwrap();
            near.send_cq = near.context.create_cq(64, Some(&channel)).unwrap();
            near.qp = near.another_qp(QpType::Rc);
            connect_qps(&near.qp, &far.qp, &ConnectOptions::default().timeout(8).retry_cnt(1));
            let target = far.write_op(0);
            drop(far);
            near.send_cq.request_notification(Notify::Next).unwrap();
            near.post(1, target, &[near.region.element(0..100)]);
            wait(&near, &channel);
            assert_eq!(near.context.counters().local_ack_timeout_err, 1);
        };
        let poll_every = |time: Duration| {
            move |near: &Side, _: &CompletionChannel| {
                let mut done = [Wc::default()];
                until("the peer is lost", || {
                    std::thread::sleep(time);
                    near.send_cq.poll(&mut done).unwrap() > 0
                });
                assert_eq!(done[0].status, WcStatus::RetryExceededError);
            }
        };
        for background in [true, false] {
            lose(background, &poll_every(Duration::ZERO));
            lose(background, &poll_every(Duration::from_millis(3)));
            lose(background, &poll_every(Duration::from_millis(25)));
            lose(background, &|near, _| {
                fail(&near.send_cq, WcStatus::RetryExceededError);
            });
            lose(background, &|near, channel| {
                assert_eq!(channel.wait(Some(PATIENCE)).unwrap(), near.send_cq.id());
            });
        }
        // Only the background thread makes progress.
        lose(true, &|_, channel| {
            let timeout = PATIENCE.try_into().unwrap();
            assert_eq!(poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&timeout)).unwrap(), 1);
        });
    });
}

/// A device that stops its process, as SIGSTOP does. The first check after the stop finds nothing yet.
struct Stopped {
    inner: MemoryDevice,
    /// Delivers nothing while set.
    is_held: Arc<AtomicBool>,
    /// Makes the next check take [`STOP`].
    stop: Arc<AtomicBool>,
    /// Time at which the process runs again.
    resumes: Option<Instant>,
}

const STOP: Duration = Duration::from_millis(2_500);

impl Device for Stopped {
    roce::device::forward_to_inner!();

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        self.inner.slot()
    }

    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.inner.commit(now, transmit);
    }

    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }

    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        if self.stop.swap(false, Ordering::SeqCst) {
            std::thread::sleep(STOP);
            self.resumes = Some(now + STOP);
            return Ok(0);
        }
        if self.resumes.is_some_and(|resumes| now >= resumes) {
            self.resumes = None;
            self.is_held.store(false, Ordering::SeqCst);
            return Ok(0);
        }
        if self.is_held.load(Ordering::SeqCst) { Ok(0) } else { self.inner.receive(now, sink) }
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}

/// Regression: the timeout (1.07 s here, without a retry) expired before the process handled an answer that
/// had arrived in time.
#[test]
fn an_answer_that_came_while_this_process_was_stopped_is_in_time() {
    within(60, || {
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        let (a, b) = MemoryDevice::pair(a, b).unwrap();
        let [is_held, stop] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let device = Stopped { inner: a, is_held: is_held.clone(), stop: stop.clone(), resumes: None };
        let near = Context::builder().attach(device).unwrap();
        let far = Context::builder().background(false).attach(b).unwrap();
        let options = ConnectOptions::default().timeout(18).retry_cnt(0);
        let (near, far) = connect((near, far), QpType::Rc, &options);
        is_held.store(true, Ordering::SeqCst);
        near.post(1, far.write_op(0), &[near.region.element(0..100)]);
        until("the WRITE has arrived", || {
            far.context.progress();
            far.counter("rx_write_requests") == 1
        });
        far.context.progress();
        stop.store(true, Ordering::SeqCst);
        succeed(&near.send_cq);
        assert!(near.counter("timer_pauses") >= 1);
        assert_eq!(near.counter("req_transport_retries_exceeded"), 0);
    });
}
