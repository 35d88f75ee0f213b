//! Shared receive queues.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use roce::observe::with_causes;
use roce::verbs::*;

use crate::common::{own_address, within};
use crate::world::*;

const TARGET: usize = 64 << 10;

/// Two queue pairs on each side; those of the far one share a receive queue.
struct Shared {
    near: Side,
    far: Side,
    srq: SharedReceiveQueue,
    near_qps: [QueuePair; 2],
    far_qps: [QueuePair; 2],
}

fn shared() -> Shared {
    let (near, far) = rc_pair();
    let srq = far.pd.create_srq(16, 2).unwrap();
    let options = QueuePairOptions::new(QpType::Rc, &far.send_cq).recv_cq(&far.recv_cq).srq(&srq);
    let far_qps = [0, 1].map(|_| far.pd.create_qp(&options).unwrap());
    let near_qps = [0, 1].map(|_| near.another_qp(QpType::Rc));
    for (near, far) in near_qps.iter().zip(&far_qps) {
        connect_qps(near, far, &ConnectOptions::default());
    }
    Shared { near, far, srq, near_qps, far_qps }
}

impl Shared {
    fn receive(&self, wr_id: u64) {
        let at = TARGET + wr_id as usize * 1000;
        let element = self.far.region.element(at..at + 1000);
        self.srq.post_recv(&RecvWr { wr_id, elements: &[element] }).unwrap();
    }

    /// Sends on one of the queue pairs; the receive with ID `wr_id` must receive the message.
    #[track_caller]
    fn send(&self, by: usize, wr_id: u64) {
        self.near.fill(0, 700, wr_id);
        let elements = [self.near.region.element(0..700)];
        self.near_qps[by].post_send(&SendWr::new(wr_id, SendOp::Send, &elements)).unwrap();
        succeed(&self.near.send_cq);
        let wc = succeed(&self.far.recv_cq);
        assert_eq!((wc.wr_id, wc.qpn), (wr_id, self.far_qps[by].number()));
        self.far.check(TARGET + wr_id as usize * 1000, 700, wr_id);
    }
}

fn readable(context: &Context) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let descriptor = context.async_descriptor();
    poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&now)).unwrap() == 1
}

#[test]
fn queue_pairs_take_receives_in_turn_and_the_limit_raises_an_event() {
    within(60, || {
        let shared = shared();
        (0..8).for_each(|number| shared.receive(number));
        shared.srq.arm_limit(4).unwrap();
        let attributes = shared.srq.query().unwrap();
        assert_eq!(attributes.limit, 4);
        // These leave four receives, which is not below the limit.
        [0, 1, 1, 0].into_iter().enumerate().for_each(|(number, by)| shared.send(by, number as u64));
        assert!(!readable(&shared.far.context));
        assert_eq!(shared.far.context.async_event(), None);
        shared.send(1, 4);
        until("the event", || readable(&shared.far.context));
        let event = shared.far.context.async_event();
        assert!(matches!(event, Some(AsyncEvent::SrqLimitReached(_))), "{event:?}");
        assert!(!readable(&shared.far.context));
        // The limit is disarmed now.
        shared.send(0, 5);
        shared.send(0, 6);
        assert_eq!(shared.far.context.async_event(), None);
    });
}

#[test]
fn two_events_wait_until_both_are_fetched() {
    within(60, || {
        let shared = shared();
        let other = shared.far.pd.create_srq(16, 1).unwrap();
        // Both limits exceed the number of posted receives, so the next receive that is used triggers the
        // event.
        (0..2).for_each(|number| shared.receive(number));
        shared.srq.arm_limit(2).unwrap();
        shared.send(0, 0);
        until("the first event", || readable(&shared.far.context));
        let element = shared.far.region.element(0..10);
        (0..2).for_each(|wr_id| other.post_recv(&RecvWr { wr_id, elements: &[element] }).unwrap());
        other.arm_limit(2).unwrap();
        let options = QueuePairOptions::new(QpType::Rc, &shared.far.recv_cq).srq(&other);
        let far_qp = shared.far.pd.create_qp(&options).unwrap();
        let near_qp = shared.near.another_qp(QpType::Rc);
        connect_qps(&near_qp, &far_qp, &ConnectOptions::default());
        near_qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
        succeed(&shared.near.send_cq);
        succeed(&shared.far.recv_cq);

        assert!(matches!(shared.far.context.async_event(), Some(AsyncEvent::SrqLimitReached(_))));
        assert!(readable(&shared.far.context), "the second event still waits");
        assert!(matches!(shared.far.context.async_event(), Some(AsyncEvent::SrqLimitReached(_))));
        assert!(!readable(&shared.far.context));
    });
}

#[test]
fn without_a_receive_the_sender_tries_again_until_there_is_one() {
    within(60, || {
        let shared = shared();
        shared.near.fill(0, 700, 1);
        let elements = [shared.near.region.element(0..700)];
        shared.near_qps[0].post_send(&SendWr::new(1, SendOp::Send, &elements)).unwrap();
        until("an RNR NAK", || shared.near.context.counters().rnr_nak_retry_err > 0);
        assert!(shared.far.context.counters().out_of_buffer > 0);
        shared.receive(0);
        succeed(&shared.near.send_cq);
        succeed(&shared.far.recv_cq);
        shared.far.check(TARGET, 700, 1);
    });
}

#[test]
fn what_a_shared_queue_refuses() {
    within(60, || {
        let text = |error: VerbsError| with_causes(&error).to_string();
        let shared = shared();
        let element = shared.far.region.element(0..10);
        let own = shared.far_qps[0].post_recv(&RecvWr { wr_id: 1, elements: &[element] }).unwrap_err();
        assert!(text(own).contains("post them there"));
        let many = shared.srq.post_recv(&RecvWr { wr_id: 1, elements: &[element; 3] }).unwrap_err();
        assert!(text(many).contains("3 scatter/gather elements"));
        for wr_id in 0..16 {
            shared.srq.post_recv(&RecvWr { wr_id, elements: &[element] }).unwrap();
        }
        let full = shared.srq.post_recv(&RecvWr { wr_id: 1, elements: &[element] }).unwrap_err();
        assert!(text(full).contains("full with 16"));
        let limit = shared.srq.arm_limit(17).unwrap_err();
        assert!(text(limit).contains("17"));

        let other = Context::open(&format!("udp:{}", own_address())).unwrap();
        let other_srq = other.alloc_pd().unwrap().create_srq(4, 1).unwrap();
        let options = QueuePairOptions::new(QpType::Rc, &shared.far.send_cq).srq(&other_srq);
        let error = shared.far.pd.create_qp(&options).unwrap_err();
        assert_eq!(error.to_string(), "the shared receive queue belongs to another context");
    });
}
