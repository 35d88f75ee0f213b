//! Measures the cost of polling while nothing arrives, and the wake-up time of a thread that has polled,
//! requested a notification and gone to sleep.
//!
//! The device is a UDP socket on loopback, so checking it is a real system call.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use roce::verbs::{
    Access, ConnectOptions, Context, Notify, QpType, QueuePairOptions, RecvWr, SendOp, SendWr, Wc,
};
use roce_testing::own_address;

fn context() -> Context {
    Context::open(&format!("udp:{}", own_address())).expect("a UDP port on an address of our own")
}

/// Polls an empty queue, from one thread and from two with one queue each.
fn empty(criterion: &mut Criterion) {
    let context = context();
    let queues = [(); 2].map(|()| context.create_cq(64, None).expect("a completion queue"));
    let poll = |queue: usize| {
        let mut done = [Wc::default(); 16];
        assert_eq!(queues[queue].poll(&mut done).expect("the device works"), 0);
    };
    let mut group = criterion.benchmark_group("poll of an empty queue");
    group.bench_function("one thread", |bencher| bencher.iter(|| poll(0)));
    group.bench_function("two threads, a queue each", |bencher| {
        bencher.iter_custom(|rounds| {
            let (start, stop) = (Barrier::new(2), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    while !stop.load(Ordering::Relaxed) {
                        poll(1);
                    }
                });
                start.wait();
                let began = Instant::now();
                (0..rounds).for_each(|_| poll(0));
                let took = began.elapsed();
                stop.store(true, Ordering::Relaxed);
                took
            })
        });
    });
}

/// Measures from the post of a SEND to the return of a thread that had polled, requested a notification,
/// polled again and slept.
fn wake(criterion: &mut Criterion) {
    let (near, far) = (context(), context());
    let channel = far.create_channel().expect("a channel");
    let (near_cq, far_cq) = (
        near.create_cq(64, None).expect("a completion queue"),
        far.create_cq(64, Some(&channel)).expect("a completion queue"),
    );
    let (near_pd, far_pd) = (near.alloc_pd().expect("a domain"), far.alloc_pd().expect("a domain"));
    let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq)).expect("a queue pair");
    let far_qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far_cq)).expect("a queue pair");
    near_qp.connect(&far_qp.endpoint().expect("an address"), &ConnectOptions::default()).expect("to connect");
    far_qp.connect(&near_qp.endpoint().expect("an address"), &ConnectOptions::default()).expect("to connect");
    let region = far_pd.allocate(64, Access::LOCAL_WRITE).expect("memory");
    let mut done = [Wc::default()];
    let mut group = criterion.benchmark_group("wake of a thread that sleeps on its channel");
    group.sample_size(20);
    group.bench_function("after poll, ask, poll", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for _ in 0..rounds {
                far_qp.post_recv(&RecvWr { wr_id: 1, elements: &[region.element(0..64)] }).expect("room");
                assert_eq!(far_cq.poll(&mut done).expect("the device works"), 0);
                far_cq.request_notification(Notify::Next).expect("the queue exists");
                assert_eq!(far_cq.poll(&mut done).expect("the device works"), 0);
                let posted = std::thread::scope(|scope| {
                    let sender = scope.spawn(|| {
                        std::thread::sleep(Duration::from_micros(30));
                        let posted = Instant::now();
                        near_qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).expect("room");
                        posted
                    });
                    // Waits on the descriptor like a C program, without the library's own functions for
                    // waiting.
                    let mut ready = [rustix::event::PollFd::new(&channel, rustix::event::PollFlags::IN)];
                    rustix::event::poll(&mut ready, None).expect("to wait");
                    let woken = Instant::now();
                    (woken, sender.join().expect("the sender"))
                });
                took += posted.0 - posted.1;
                assert!(channel.try_event().is_some());
                while far_cq.poll(&mut done).expect("the device works") == 0 {}
                assert_eq!(done[0].byte_len, 5);
                let mut sent = [Wc::default()];
                near_cq.wait(&mut sent, Some(Duration::from_secs(5))).expect("the acknowledgement");
            }
            took
        });
    });
}

criterion_group!(polls, empty, wake);
criterion_main!(polls);
