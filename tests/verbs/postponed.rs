//! Acknowledgements and requests that leave together with the next work request of the application. They wait
//! for a limited time, so each test needs only one success in many attempts. Each test also slows the clock,
//! so that a busy machine does not use up that time.

use std::time::{Duration, Instant};

use roce::device::Clock;
use roce::verbs::*;

use crate::world::*;

/// Number of times that the clock of the contexts is halved: its 20 µs last 20 ms, ten time slices of Linux.
const SLOWER: u32 = 10;

/// Returns two ends in one thread; only the test makes progress.
fn alone(wire: Wire) -> Option<(Side, Side)> {
    let builder = || Context::builder().background(false).clock(Clock::start_slow(SLOWER));
    let (near, far) = wire.open_with(builder(), builder())?;
    Some(connect((near, far), QpType::Rc, &ConnectOptions::default()))
}

/// Has the far end poll a message, so that it owes an acknowledgement. Returns how many packets it had sent
/// before.
fn owe(near: &Side, far: &Side) -> u64 {
    far.receive(1, 0, 64);
    near.post(2, SendOp::Send, &[near.region.element(0..8)]);
    let before = far.counter("rdma_tx_packets");
    let mut done = [Wc::default()];
    let end = Instant::now() + PATIENCE;
    while far.recv_cq.poll(&mut done).unwrap() == 0 {
        assert!(Instant::now() < end, "the message does not come");
    }
    before
}

/// Asserts that one of many attempts succeeds.
#[track_caller]
fn once(mut attempt: impl FnMut() -> bool) {
    assert!((0..200).any(|_| attempt()));
}

fn poll(side: &Side) {
    let _ = side.recv_cq.poll(&mut [Wc::default()]).unwrap();
}

#[test]
fn an_acknowledgement_waits_for_the_answer_and_is_in_its_superpacket() {
    let Some((near, far)) = alone(Wire::UdpV4) else { return };
    let mut answer = 0;
    once(|| {
        answer += 1;
        let messages = far.counter("udp_tx_messages");
        let before = owe(&near, &far);
        let waits = far.counter("rdma_tx_packets") == before;
        near.receive(3, 64, 64);
        far.post(answer, SendOp::Send, &[far.region.element(0..8)]);
        let joined =
            (far.counter("rdma_tx_packets"), far.counter("udp_tx_messages")) == (before + 2, messages + 1);
        while near.recv_cq.poll(&mut [Wc::default()]).unwrap() == 0 {}
        poll(&far);
        waits && joined
    });
}

#[test]
fn an_acknowledgement_leaves_with_the_next_poll_and_the_next_request_for_a_notification() {
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = alone(wire) else { return };
        for polls in [true, false] {
            once(|| {
                let before = owe(&near, &far);
                let waits = far.counter("rdma_tx_packets") == before;
                match polls {
                    true => poll(&far),
                    false => far.recv_cq.request_notification(Notify::Next).unwrap(),
                }
                assert_eq!(far.counter("rdma_tx_packets"), before + 1, "{wire:?}");
                poll(&far);
                waits
            });
        }
    }
}

/// Regression: a queue pair that had received an acknowledgement counted as one that owes some. So it
/// postponed nothing when the message arrived. Once an acknowledgement had arrived alone, the ends of a
/// ping-pong sent two datagrams for each message.
#[test]
fn an_acknowledgement_that_came_alone_is_nothing_to_postpone() {
    let Some((near, far)) = alone(Wire::UdpV4) else { return };
    once(|| {
        owe(&near, &far);
        poll(&far);
        while near.send_cq.poll(&mut [Wc::default()]).unwrap() == 0 {}
        let before = owe(&far, &near);
        let waits = near.counter("rdma_tx_packets") == before;
        poll(&near);
        while far.send_cq.poll(&mut [Wc::default()]).unwrap() == 0 {}
        waits
    });
}

/// Without superpackets the answer leaves first, and the acknowledgement when there is nothing else to do.
#[test]
fn an_acknowledgement_that_would_be_a_packet_of_its_own_leaves_after_the_answer() {
    let Some((near, far)) = alone(Wire::Memory) else { return };
    once(|| {
        let before = owe(&near, &far);
        let waits = far.counter("rdma_tx_packets") == before;
        near.receive(3, 64, 64);
        far.post(4, SendOp::Send, &[far.region.element(0..8)]);
        let is_alone = far.counter("rdma_tx_packets") == before + 1;
        poll(&far);
        assert_eq!(far.counter("rdma_tx_packets"), before + 2);
        while near.recv_cq.poll(&mut [Wc::default()]).unwrap() == 0 {}
        poll(&far);
        waits && is_alone
    });
}

/// Otherwise the peer would wait for its completion until this application polls again, perhaps forever.
#[test]
fn the_background_thread_sends_what_an_application_leaves_behind() {
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = connected(wire, QpType::Rc, &ConnectOptions::default()) else { return };
        once(|| {
            owe(&near, &far);
            let begin = Instant::now();
            while near.send_cq.poll(&mut [Wc::default()]).unwrap() == 0 {
                assert!(begin.elapsed() < PATIENCE, "the acknowledgement does not come");
            }
            // The acknowledgement leaves before the timeout of the peer, which would retransmit its message.
            begin.elapsed() < Duration::from_millis(40)
        });
    }
}

/// The next message arrives before the peer needs the acknowledgement, and one acknowledgement covers several
/// messages.
#[test]
fn ends_that_answer_each_other_in_turn_send_few_acknowledgements() {
    const ROUNDS: u64 = 200;
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = alone(wire) else { return };
        let packets = || near.counter("rdma_tx_packets") + far.counter("rdma_tx_packets");
        once(|| {
            let before = packets();
            answer_in_turn(&near, &far, ROUNDS);
            let acknowledgements = packets() - before - 2 * ROUNDS;
            acknowledgements < ROUNDS
        });
    }
}

/// Regression: a completion of an own request was mistaken for the next message of the peer. So each side
/// held back every acknowledgement and sent it separately when its own message had been acknowledged: two
/// datagrams for each message.
#[test]
fn ends_that_wait_for_their_completions_send_one_datagram_for_each_message() {
    const ROUNDS: u64 = 200;
    let Some((mut near, mut far)) = alone(Wire::UdpV4) else { return };
    for side in [&mut near, &mut far] {
        let one_queue = QueuePairOptions::new(QpType::Rc, &side.recv_cq).recv_cq(&side.recv_cq);
        side.qp = side.pd.create_qp(&one_queue.capabilities(CAPABILITIES)).unwrap();
    }
    connect_qps(&near.qp, &far.qp, &ConnectOptions::default());
    let datagrams = || near.counter("udp_tx_messages") + far.counter("udp_tx_messages");
    once(|| {
        let before = datagrams();
        complete_and_answer_in_turn([&near, &far], ROUNDS);
        2 * (datagrams() - before) < 3 * 2 * ROUNDS
    });
}

/// Sends `rounds` messages from each side in turn. A side sends when it has the message of the other side and
/// its own is completed.
fn complete_and_answer_in_turn(sides: [&Side; 2], rounds: u64) {
    const RECEIVE: u64 = 1;
    let mut done = [Wc::default(); 16];
    // Messages that each side has completed and received since its last send. The first side need not wait.
    let (mut completed, mut received) = ([1, 1], [0, 0]);
    let mut poll = |index: usize, completed: &mut [u64; 2], received: &mut [u64; 2]| {
        let count = sides[index].recv_cq.poll(&mut done).unwrap();
        for wc in &done[..count] {
            *if wc.wr_id == RECEIVE { &mut received[index] } else { &mut completed[index] } += 1;
        }
    };
    for message in 0..2 * rounds {
        let [from, to] = if message % 2 == 0 { [0, 1] } else { [1, 0] };
        sides[to].receive(RECEIVE, 0, 64);
        sides[from].post(0, SendOp::Send, &[sides[from].region.element(0..8)]);
        (completed[from], received[from]) = (0, 0);
        let begin = Instant::now();
        while received[to] == 0 || completed[to] == 0 {
            poll(from, &mut completed, &mut received);
            poll(to, &mut completed, &mut received);
            assert!(
                begin.elapsed() < PATIENCE,
                "the message does not come, or the completion of the one before"
            );
        }
    }
    let begin = Instant::now();
    while completed.contains(&0) {
        poll(0, &mut completed, &mut received);
        poll(1, &mut completed, &mut received);
        assert!(begin.elapsed() < PATIENCE, "the last completion does not come");
    }
}

/// An application that waits for a WRITE polls its memory and calls for progress in between.
#[test]
fn the_acknowledgement_of_a_write_is_in_the_superpacket_of_the_answer_to_it() {
    let Some((near, far)) = alone(Wire::UdpV4) else { return };
    let mut number = 0_u8;
    once(|| {
        number = number % 100 + 1;
        let (packets, messages) = (far.counter("rdma_tx_packets"), far.counter("udp_tx_messages"));
        write_and_await(&near, &far, number);
        write_and_await(&far, &near, number);
        let joined =
            (far.counter("rdma_tx_packets"), far.counter("udp_tx_messages")) == (packets + 2, messages + 1);
        for side in [&near, &far] {
            while side.send_cq.poll(&mut [Wc::default()]).unwrap() == 0 {
                near.context.progress();
                far.context.progress();
            }
        }
        joined
    });
}

/// Writes a byte into the memory of the other side, which polls the memory for it.
fn write_and_await(from: &Side, to: &Side, number: u8) {
    let (source, target) = (0, 128);
    from.region.write(source, &[number]).unwrap();
    from.post(number.into(), to.write_op(target), &[from.region.element(source..source + 1)]);
    let begin = Instant::now();
    let mut found = [0];
    while found[0] != number {
        to.context.progress();
        to.region.read(target, &mut found).unwrap();
        assert!(begin.elapsed() < PATIENCE, "the WRITE does not come");
    }
}

/// Sends `rounds` messages from each side in turn. At the end every message has its completion.
fn answer_in_turn(near: &Side, far: &Side, rounds: u64) {
    let (mut sent, mut answered) = (0, 0);
    let mut done = [Wc::default(); 16];
    let mut fetch = |answered: &mut usize| {
        *answered += near.send_cq.poll(&mut done).unwrap() + far.send_cq.poll(&mut done).unwrap();
    };
    for round in 0..rounds {
        for (from, to) in [(near, far), (far, near)] {
            to.receive(round, 0, 64);
            let begin = Instant::now();
            // The send queue is small, so sending needs acknowledgements.
            while sent - answered > 12 {
                fetch(&mut answered);
                assert!(begin.elapsed() < PATIENCE, "no acknowledgement comes");
            }
            from.post(round, SendOp::Send, &[from.region.element(0..8)]);
            sent += 1;
            while to.recv_cq.poll(&mut [Wc::default()]).unwrap() == 0 {
                assert!(begin.elapsed() < PATIENCE, "the message does not come");
            }
        }
    }
    let begin = Instant::now();
    while answered < sent {
        fetch(&mut answered);
        assert!(begin.elapsed() < PATIENCE, "completions are missing");
    }
}

/// Posts the messages one by one, each with a receive at the far end, then polls until all have arrived and
/// completed.
fn post_and_poll(near: &Side, far: &Side, messages: usize) {
    post_one_by_one(near, far, messages);
    poll_until_done(near, far, messages);
}

fn poll_until_done(near: &Side, far: &Side, messages: usize) {
    let mut done = [Wc::default(); 16];
    let (mut completed, mut received) = (0, 0);
    let begin = Instant::now();
    while completed < messages || received < messages {
        completed += near.send_cq.poll(&mut done).unwrap();
        received += far.recv_cq.poll(&mut done).unwrap();
        assert!(begin.elapsed() < PATIENCE, "{completed} completed and {received} received of {messages}");
    }
}

fn post_one_by_one(near: &Side, far: &Side, messages: usize) {
    for number in 0..messages as u64 {
        far.receive(number, 0, 64);
        near.post(number, SendOp::Send, &[near.region.element(0..8)]);
    }
}

#[test]
fn requests_that_are_posted_one_by_one_leave_together() {
    const MESSAGES: usize = 8;
    let Some((near, far)) = alone(Wire::UdpV4) else { return };
    once(|| {
        let before = near.counter("udp_tx_messages");
        post_and_poll(&near, &far, MESSAGES);
        // One superpacket, and one other datagram.
        near.counter("udp_tx_messages") - before <= 2
    });
}

/// A request of an application that answers each message with one message is sent at once.
#[test]
fn a_request_that_is_alone_leaves_at_once() {
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = alone(wire) else { return };
        for _ in 0..100 {
            let before = near.counter("rdma_tx_packets");
            post_one_by_one(&near, &far, 1);
            assert_eq!(near.counter("rdma_tx_packets"), before + 1);
            poll_until_done(&near, &far, 1);
        }
    }
}

#[test]
fn requests_that_wait_leave_with_a_request_for_a_notification() {
    let Some((near, far)) = alone(Wire::UdpV4) else { return };
    once(|| {
        (0..3).for_each(|_| post_and_poll(&near, &far, 8));
        let before = near.counter("rdma_tx_packets");
        post_one_by_one(&near, &far, 8);
        let waits = near.counter("rdma_tx_packets") < before + 8;
        near.send_cq.request_notification(Notify::Next).unwrap();
        assert_eq!(near.counter("rdma_tx_packets"), before + 8);
        poll_until_done(&near, &far, 8);
        waits
    });
}

/// The application posts and then does something else for a long time.
#[test]
fn the_background_thread_sends_requests_that_an_application_leaves_behind() {
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = connected(wire, QpType::Rc, &ConnectOptions::default()) else { return };
        (0..3).for_each(|_| post_and_poll(&near, &far, 8));
        once(|| {
            post_one_by_one(&near, &far, 8);
            let begin = Instant::now();
            let mut received = 0;
            while received < 8 {
                received += far.recv_cq.poll(&mut [Wc::default(); 8]).unwrap();
                assert!(begin.elapsed() < PATIENCE, "{wire:?}: only {received} came");
            }
            let took = begin.elapsed();
            let mut completed = 0;
            while completed < 8 {
                completed += near.send_cq.poll(&mut [Wc::default(); 8]).unwrap();
            }
            took < Duration::from_millis(10)
        });
    }
}

/// Regression: requests waited for others while the background thread slept, which only an arrival or a known
/// deadline wakes. They left after half a second.
#[test]
fn requests_do_not_wait_while_the_background_thread_sleeps() {
    const ROUNDS: u64 = 12;
    const REQUESTS: usize = 5;
    for wire in [Wire::UdpV4, Wire::Memory] {
        // A new pair each time: a pair whose requests were late stops postponing them.
        let attempt = || {
            let (near, far) = connected(wire, QpType::Rc, &ConnectOptions::default())?;
            let begin = Instant::now();
            for round in 0..ROUNDS {
                for _ in 0..REQUESTS {
                    far.receive(round, 0, 64);
                }
                for _ in 0..REQUESTS {
                    near.post(round, SendOp::Send, &[near.region.element(0..8)]);
                }
                let mut arrived = 0;
                while arrived < REQUESTS {
                    arrived += far.recv_cq.poll(&mut [Wc::default(); REQUESTS]).unwrap();
                    assert!(begin.elapsed() < PATIENCE, "the messages do not come");
                }
                // The application does something else, so the background thread goes to sleep.
                std::thread::sleep(Duration::from_millis(6));
                let _ = near.send_cq.poll(&mut [Wc::default(); REQUESTS]).unwrap();
            }
            Some(begin.elapsed())
        };
        let mut times = Vec::new();
        let is_fast = (0..5).any(|_| {
            times.push(attempt());
            times.last().is_some_and(|time| time.is_none_or(|time| time.as_millis() < 450))
        });
        assert!(is_fast, "{wire:?}: {times:?}");
    }
}
