//! Wakers that panic, use the context again, or release the last handle.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context as Task, Wake, Waker};

use roce::verbs::*;

use crate::common::within;
use crate::world::*;

/// A waker that counts its calls and then panics if it is told to.
struct Counting {
    woken: AtomicUsize,
    panics: bool,
    panics_when_dropped: bool,
    stays: AtomicBool,
}

impl Counting {
    fn new(panics: bool, panics_when_dropped: bool) -> Arc<Self> {
        let stays = AtomicBool::new(true);
        Arc::new(Self { woken: AtomicUsize::new(0), panics, panics_when_dropped, stays })
    }
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics, "a waker that panics, on purpose");
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let fails = self.panics_when_dropped && !std::thread::panicking() && !*self.stays.get_mut();
        assert!(!fails, "a waker whose drop panics, on purpose");
    }
}

fn poll_once<F: Future>(future: F, waker: &Waker) -> bool {
    pin!(future).poll(&mut Task::from_waker(waker)).is_ready()
}

/// One waker panics, on the thread that wakes it. The same thread still wakes the next tasks.
#[test]
fn a_waker_that_panics_ends_neither_the_thread_nor_the_other_tasks() {
    within(60, || {
        let (near, far) = rc_pair();
        let queue = AsyncCompletionQueue::new(far.recv_cq.clone());
        for round in 0..3_u64 {
            far.receive(round, 0, 100);
            let (bad, good) = (Counting::new(true, false), Counting::new(false, false));
            let (bad_waker, good_waker) = (bad.clone().into(), good.clone().into());
            let (mut one, mut other) = ([Wc::default()], [Wc::default()]);
            let (mut first, mut second) = (Box::pin(queue.wait(&mut one)), Box::pin(queue.wait(&mut other)));
            assert!(first.as_mut().poll(&mut Task::from_waker(&bad_waker)).is_pending());
            assert!(second.as_mut().poll(&mut Task::from_waker(&good_waker)).is_pending());
            near.qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
            succeed(&near.send_cq);
            until("both are woken", || [&bad, &good].iter().all(|it| it.woken.load(Ordering::SeqCst) > 0));
            drop(first);
            assert!(second.as_mut().poll(&mut Task::from_waker(&good_waker)).is_ready(), "round {round}");
        }
        // The background thread still runs: it answers a READ although no thread calls the context at that
        // end.
        near.carry_out(9, far.read_op(0), &[near.region.element(0..4096)]);
    });
}

#[test]
fn wakers_of_connection_management_that_panic() {
    within(60, || {
        let (near, far) = Wire::UdpV4.open().unwrap();
        let (near, far) = (Side::new(near, QpType::Rc), Side::new(far, QpType::Rc));
        let listener = far.context.listen(PortSpace::Tcp, 7174).unwrap();
        let bad = Counting::new(true, true);
        assert!(!poll_once(listener.accept_async(), &bad.clone().into()));
        let to = (far.context.address().unwrap(), 7174).into();
        let mut active = near.context.start_connect(to, &near.qp, &ConnectionParameters::default()).unwrap();
        until("the request wakes the task", || bad.woken.load(Ordering::SeqCst) > 0);
        // The waker of a task is dropped with its connection, and this drop panics.
        let dropped = Counting::new(false, true);
        dropped.stays.store(false, Ordering::SeqCst);
        assert!(!poll_once(active.next_event_async(), &Waker::from(dropped)));
        let mut passive = listener
            .accept(Some(PATIENCE))
            .unwrap()
            .accept(&far.qp, &ConnectionParameters::default())
            .unwrap();
        passive.established(Some(PATIENCE)).unwrap();
        active.established(Some(PATIENCE)).unwrap();
        near.carry_out(1, far.write_op(0), &[near.region.element(0..100)]);
    });
}
