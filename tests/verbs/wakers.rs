//! Wakers and events are delivered after the lock of the context is released. A waker may use the context,
//! and its drop may release the last handle of the context.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::time::Duration;

use roce::device::memory::MemoryDevice;
use roce::device::{Capabilities, Device};
use roce::verbs::*;
use roce_transport::{Instant, Received, Transmit, TxSlot};

use crate::common::{own_address, within};
use crate::world::*;

const PORT: u16 = 7174;

fn poll_once<F: Future>(future: F, waker: &Waker) -> Poll<F::Output> {
    pin!(future).poll(&mut Task::from_waker(waker))
}

/// A waker that uses the context when it is woken and when it is dropped.
struct User {
    context: Context,
    woken: AtomicBool,
}

impl User {
    fn of(context: &Context) -> Arc<Self> {
        Arc::new(Self { context: context.clone(), woken: AtomicBool::new(false) })
    }

    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for User {
    fn wake(self: Arc<Self>) {
        let _ = self.context.counters();
        self.woken.store(true, Ordering::Release);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.context.counters();
    }
}

fn rc_sides() -> (Side, Side) {
    let (near, far) = Wire::UdpV4.open().unwrap();
    (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc))
}

fn ask(near: &Side, peer: IpAddr, port: u16) -> Connection {
    near.context
        .start_connect(SocketAddr::new(peer, port), &near.qp, &ConnectionParameters::default())
        .unwrap()
}

#[test]
fn a_waker_that_uses_the_context_is_woken_by_a_request() {
    within(30, || {
        let (near, far) = rc_sides();
        let listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let user = User::of(&far.context);
        assert!(poll_once(listener.accept_async(), &user.clone().into()).is_pending());
        let _asking = ask(&near, far.context.address().unwrap(), PORT);
        until("the request wakes the task", || user.is_woken());
        assert!(poll_once(listener.accept_async(), &user.into()).is_ready());
    });
}

#[test]
fn a_waker_that_uses_the_context_is_woken_by_a_rejection() {
    within(30, || {
        let (near, far) = rc_sides();
        let _listener = far.context.listen(PortSpace::Tcp, PORT).unwrap();
        let mut asking = ask(&near, far.context.address().unwrap(), PORT + 1);
        let user = User::of(&near.context);
        if poll_once(asking.next_event_async(), &user.clone().into()).is_pending() {
            until("the rejection wakes the task", || user.is_woken());
            assert!(poll_once(asking.next_event_async(), &user.into()).is_ready());
        }
    });
}

#[test]
fn a_waker_that_uses_the_context_is_replaced_and_forgotten() {
    within(30, || {
        let (near, far) = rc_sides();
        let mut asking = ask(&near, far.context.address().unwrap(), PORT);
        let listener = near.context.listen(PortSpace::Tcp, PORT).unwrap();
        for _ in 0..3 {
            // No other handle of the registered waker exists, so the next registration drops it.
            assert!(poll_once(asking.next_event_async(), &User::of(&near.context).into()).is_pending());
            assert!(poll_once(listener.accept_async(), &User::of(&near.context).into()).is_pending());
        }
        drop((asking, listener));
    });
}

#[test]
fn a_waker_that_uses_the_context_is_woken_by_a_completion() {
    within(30, || {
        let (near, far) = rc_pair();
        let queue = AsyncCompletionQueue::new(far.recv_cq.clone());
        let (user, mut done) = (User::of(&far.context), [Wc::default()]);
        far.receive(1, 0, 100);
        {
            let waker = user.clone().into();
            let mut receive = pin!(queue.wait(&mut done));
            assert!(receive.as_mut().poll(&mut Task::from_waker(&waker)).is_pending());
            near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
            until("the completion wakes the task", || user.is_woken());
            assert!(receive.as_mut().poll(&mut Task::from_waker(&waker)).is_ready());
        }
        // A waker is dropped with the task that waited.
        assert!(poll_once(queue.wait(&mut done), &User::of(&far.context).into()).is_pending());
        assert!(poll_once(queue.wait(&mut done), &User::of(&far.context).into()).is_pending());
        assert_eq!(Arc::strong_count(&user), 1, "no waker stays registered");
    });
}

#[test]
fn the_function_that_visits_counters_may_use_the_context() {
    within(30, || {
        let (context, _) = Wire::UdpV4.open().unwrap();
        let mut visited = 0;
        context.visit_counters(&mut |_, _| {
            context.progress();
            visited += 1;
        });
        assert!(visited > 50, "{visited}");
    });
}

/// All objects of a task, which only its waker keeps alive.
struct Owner {
    listener: Mutex<Option<CmListener>>,
    _side: Side,
    // The last field, so that it tells the test when the other fields are gone.
    _gone: Sender<()>,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

fn owner(spec: &str) -> (Arc<Owner>, Receiver<()>) {
    let side = Side::new(Context::open(spec).unwrap(), QpType::Rc);
    let listener = side.context.listen(PortSpace::Tcp, PORT).unwrap();
    let (sender, gone) = channel();
    (Arc::new(Owner { listener: Mutex::new(Some(listener)), _side: side, _gone: sender }), gone)
}

#[test]
fn a_waker_that_holds_the_last_handle_goes_with_the_request_that_wakes_it() {
    within(60, || {
        let near = Side::new(Context::open(&format!("udp:{}", own_address())).unwrap(), QpType::Rc);
        let address = own_address();
        let spec = format!("udp:{address}");
        let (owner, gone) = owner(&spec);
        {
            let waker = owner.clone().into();
            let listener = owner.listener.lock().unwrap();
            assert!(poll_once(listener.as_ref().unwrap().accept_async(), &waker).is_pending());
        }
        drop(owner);
        let _asking = ask(&near, address.into(), PORT);
        assert_eq!(gone.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        // The background thread released the last handle, and ends.
        until("the address is free again", || Context::open(&spec).is_ok());
    });
}

/// A device that accepts nothing while its gate is closed.
struct Gated {
    inner: MemoryDevice,
    is_open: Arc<AtomicBool>,
}

impl Device for Gated {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    roce::device::forward_to_inner!();

    fn slot(&mut self) -> Option<TxSlot<'_>> {
        if self.is_open.load(Ordering::Relaxed) { self.inner.slot() } else { None }
    }
    fn commit(&mut self, now: Instant, transmit: &Transmit) {
        self.inner.commit(now, transmit);
    }
    fn flush(&mut self, now: Instant) -> io::Result<()> {
        self.inner.flush(now)
    }
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(&Received<'_>)) -> io::Result<usize> {
        self.inner.receive(now, sink)
    }
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
    }
}

#[test]
fn dropping_a_queue_pair_delivers_the_events_that_it_causes() {
    within(30, || {
        let [a, b] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let (inner, _peer) = MemoryDevice::pair(a, b).unwrap();
        let is_open = Arc::new(AtomicBool::new(false));
        let device = Gated { inner, is_open: is_open.clone() };
        let context = Context::builder().background(false).attach(device).unwrap();
        let (mut side, channel) = (Side::new(context.clone(), QpType::Ud), context.create_channel().unwrap());
        side.send_cq = context.create_cq(8, Some(&channel)).unwrap();
        side.qp = side.another_qp(QpType::Ud);
        side.qp.activate_datagram(QKEY).unwrap();
        let other = side.another_qp(QpType::Ud);
        side.send_cq.request_notification(Notify::Next).unwrap();
        let to = context.create_address_handle(b, Qpn::new(17), QKEY, &PathOptions::default()).unwrap();
        side.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello").to(&to)).unwrap();
        assert_eq!(channel.try_event(), None);
        // Packets that another queue pair could not send leave before this one is destroyed, and complete.
        is_open.store(true, Ordering::Relaxed);
        drop(other);
        assert_eq!(channel.try_event(), Some(side.send_cq.id()));
    });
}

#[test]
fn two_async_queues_on_one_channel_lose_no_wake_up() {
    within(60, || {
        let (near, far) = rc_sides();
        let channel = far.context.create_channel().unwrap();
        let ends: Vec<(QueuePair, QueuePair, CompletionQueue)> = (0..2)
            .map(|_| {
                let cq = far.context.create_cq(64, Some(&channel)).unwrap();
                let near_qp = near.another_qp(QpType::Rc);
                let far_qp = far.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq)).unwrap();
                connect_qps(&near_qp, &far_qp, &ConnectOptions::default());
                let element = far.region.element(0..100);
                far_qp.post_recv(&RecvWr { wr_id: 1, elements: &[element] }).unwrap();
                (near_qp, far_qp, cq)
            })
            .collect();
        let send = |index: usize| {
            ends[index].0.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
            succeed(&near.send_cq);
            // The acknowledgement may arrive before the event.
            std::thread::sleep(Duration::from_millis(50));
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let queues = [0, 1].map(|index: usize| AsyncCompletionQueue::new(ends[index].2.clone()));
            let (mut first_done, mut second_done) = ([Wc::default()], [Wc::default()]);
            let mut first = pin!(queues[0].wait(&mut first_done));
            let mut second = pin!(queues[1].wait(&mut second_done));
            let mut round = 0;
            std::future::poll_fn(|task| {
                round += 1;
                if round == 1 {
                    assert!(
                        first.as_mut().poll(task).is_pending() && second.as_mut().poll(task).is_pending()
                    );
                    send(0);
                    return Poll::Pending;
                }
                // The second queue is polled, then its completion arrives, and only then is the first queue
                // polled.
                assert!(second.as_mut().poll(task).is_pending());
                send(1);
                first.as_mut().poll(task).map(|count| assert_eq!(count.unwrap(), 1))
            })
            .await;
            let count = tokio::time::timeout(PATIENCE, second).await.expect("the wake-up was lost").unwrap();
            assert_eq!(count, 1);
        });
    });
}
