//! Completion channels, waiting, tokio, and the thread that serves peers.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use roce::device::OpenOptions;
use roce::verbs::*;
use roce_fault::FaultInjector;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::common::within;
use crate::world::*;

/// Returns two ends; the receives of the far one complete into a queue with a channel.
fn with_channel(wire: Wire) -> Option<(Side, Side, CompletionChannel)> {
    let (near, far) = wire.open()?;
    let (near, mut far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
    let channel = far.context.create_channel().unwrap();
    far.recv_cq = far.context.create_cq(64, Some(&channel)).unwrap();
    far.qp = far.another_qp(QpType::Rc);
    connect_qps(&near.qp, &far.qp, &ConnectOptions::default());
    Some((near, far, channel))
}

fn readable(channel: &CompletionChannel, patience: Duration) -> bool {
    let timeout = Timespec::try_from(patience).unwrap();
    let mut descriptors = [PollFd::new(channel, PollFlags::IN)];
    poll(&mut descriptors, Some(&timeout)).unwrap() == 1
}

#[test]
fn a_channel_wakes_once_for_each_request() {
    within(60, || {
        for wire in Wire::ALL {
            let Some((near, far, channel)) = with_channel(wire) else { continue };
            (0..8).for_each(|number| far.receive(number, 0, 100));
            let send = |flags| {
                let wr = SendWr::inline(1, SendOp::Send, b"hello").with_flags(flags | SendFlags::SIGNALED);
                near.qp.post_send(&wr).unwrap();
                succeed(&near.send_cq);
            };
            // No notification is requested.
            send(SendFlags::empty());
            assert!(!readable(&channel, Duration::from_millis(5)));
            assert_eq!(channel.try_event(), None);

            far.recv_cq.request_notification(Notify::Next).unwrap();
            send(SendFlags::empty());
            send(SendFlags::empty());
            assert!(readable(&channel, PATIENCE));
            assert_eq!(channel.wait(Some(PATIENCE)).unwrap(), far.recv_cq.id());
            assert_eq!(channel.try_event(), None, "one request, one event");
            assert!(!readable(&channel, Duration::ZERO));
            (0..3).for_each(|number| assert_eq!(succeed(&far.recv_cq).wr_id, number));

            // Notify only of messages that the sender marks as solicited.
            far.recv_cq.request_notification(Notify::Solicited).unwrap();
            send(SendFlags::empty());
            assert!(!readable(&channel, Duration::from_millis(5)));
            send(SendFlags::SOLICITED);
            assert_eq!(channel.wait(Some(PATIENCE)).unwrap(), far.recv_cq.id());
            let nothing = channel.wait(Some(Duration::from_millis(3))).unwrap_err();
            assert!(matches!(nothing, WaitError::TimedOut));
        }
    });
}

#[test]
fn a_thread_that_waits_is_woken_by_what_another_takes_in() {
    within(60, || {
        let (near, far, channel) = with_channel(Wire::UdpV4).unwrap();
        far.receive(1, 0, 100);
        far.recv_cq.request_notification(Notify::Next).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| channel.wait(Some(PATIENCE)).unwrap());
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
                succeed(&near.send_cq);
            });
            // This thread polls all the time.
            while !waiter.is_finished() {
                assert_eq!(far.send_cq.poll(&mut [Wc::default()]).unwrap(), 0);
            }
        });
        succeed(&far.recv_cq);
    });
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn waiting_sleeps() {
    within(60, || {
        for wire in [Wire::UdpV4, Wire::Memory] {
            let (_near, far, channel) = with_channel(wire).unwrap();
            let idle = Duration::from_millis(200);
            let used = |wait: &dyn Fn() -> Result<(), WaitError>| {
                let (before, started) = (thread_time(), Instant::now());
                assert!(matches!(wait(), Err(WaitError::TimedOut)));
                assert!(started.elapsed() >= idle);
                thread_time() - before
            };
            for used in [
                used(&|| far.send_cq.wait(&mut [Wc::default()], Some(idle)).map(drop)),
                used(&|| channel.wait(Some(idle)).map(drop)),
            ] {
                assert!(used < idle / 8, "{wire:?}: {used:?} of processor time in {idle:?}");
            }
        }
    });
}

#[test]
fn a_process_that_does_nothing_is_read_and_written() {
    within(60, || {
        for wire in Wire::ALL {
            // A context without a background thread answers only when it is called.
            let (on, off) = (Context::builder(), Context::builder().background(false));
            let Some(contexts) = wire.open_with(on, off) else { continue };
            let (near, far) = connect(contexts, QpType::Rc, &ConnectOptions::default());
            near.fill(0, 5000, 1);
            near.post(1, far.write_op(0), &[near.region.element(0..5000)]);
            let mut done = [Wc::default()];
            let waited = near.send_cq.wait(&mut done, Some(Duration::from_millis(20)));
            assert!(matches!(waited, Err(WaitError::TimedOut)));
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| succeed(&near.send_cq));
                while !waiter.is_finished() {
                    far.context.progress();
                    std::thread::yield_now();
                }
            });
            far.check(0, 5000, 1);

            // With a background thread no call is needed; the far side has threads of its own.
            let Some((near, far)) = connected(wire, QpType::Rc, &ConnectOptions::default()) else { continue };
            near.fill(0, 5000, 2);
            near.carry_out(1, far.write_op(0), &[near.region.element(0..5000)]);
            near.carry_out(2, far.read_op(0), &[near.region.element(9000..14_000)]);
            near.check(9000, 5000, 2);
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn tokio_tasks_wait_for_completions() {
    within(60, || {
        for wire in Wire::ALL {
            let Some((near, far, _channel)) = with_channel(wire) else { continue };
            runtime().block_on(async {
                let queue = AsyncCompletionQueue::new(far.recv_cq.clone());
                assert_eq!(queue.get_ref().id(), far.recv_cq.id());
                let mut done = [Wc::default(); 4];
                let nothing = tokio::time::timeout(Duration::from_millis(10), queue.wait(&mut done)).await;
                assert!(nothing.is_err());
                for number in 0..50 {
                    far.receive(number, 0, 100);
                    near.qp.post_send(&SendWr::inline(1, SendOp::Send, &[number as u8; 9])).unwrap();
                    let count = tokio::time::timeout(PATIENCE, queue.wait(&mut done)).await.unwrap().unwrap();
                    assert_eq!((count, done[0].wr_id, done[0].byte_len), (1, number, 9));
                    succeed(&near.send_cq);
                }
            });
        }
    });
}

/// The local ACK timeout is more than two hours, so only early retransmission can be in time.
#[test]
fn a_lost_packet_is_sent_again_early_while_the_application_sleeps() {
    within(60, || {
        let options = OpenOptions {
            // Drops the first packet of each PSN.
            transmit_faults: Some(FaultInjector::new("rule:pass=1,action=drop".parse().unwrap(), 1)),
            ..OpenOptions::default()
        };
        let near = Context::builder().options(options);
        let (near, far) = Wire::UdpV4.open_with(near, Context::builder()).unwrap();
        let (mut near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let channel = near.context.create_channel().unwrap();
        near.send_cq = near.context.create_cq(64, Some(&channel)).unwrap();
        near.qp = near.another_qp(QpType::Rc);
        connect_qps(&near.qp, &far.qp, &ConnectOptions::default().timeout(31));
        runtime().block_on(async {
            let queue = AsyncCompletionQueue::new(near.send_cq.clone());
            for round in 0..10 {
                // Long enough for the background thread to go to sleep.
                tokio::time::sleep(Duration::from_millis(2)).await;
                near.post(round, far.write_op(0), &[near.region.element(0..8)]);
                let mut done = [Wc::default()];
                tokio::time::timeout(PATIENCE, queue.wait(&mut done)).await.unwrap().unwrap();
                assert_eq!((done[0].wr_id, done[0].status), (round, WcStatus::Success));
            }
        });
        assert!(near.context.counters().roce_adp_retrans >= 10);
        assert_eq!(near.context.counters().local_ack_timeout_err, 0);
    });
}

#[test]
fn the_descriptor_of_a_channel_is_one_for_select_and_friends() {
    within(60, || {
        let (near, far, channel) = with_channel(Wire::UdpV4).unwrap();
        far.receive(1, 0, 100);
        far.recv_cq.request_notification(Notify::Next).unwrap();
        // No thread polls; the background thread makes the descriptor readable.
        near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
        let copy = channel.as_fd().try_clone_to_owned().unwrap();
        let timeout = Timespec::try_from(PATIENCE).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&copy, PollFlags::IN)], Some(&timeout)).unwrap(), 1);
        assert_eq!(channel.try_event(), Some(far.recv_cq.id()));
    });
}
