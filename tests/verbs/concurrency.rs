//! Tests with several threads, and with peers that write while another thread reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use roce::verbs::*;

use crate::common::within;
use crate::world::*;

#[test]
fn threads_with_a_queue_pair_each_share_a_context() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 60;
    const LEN: usize = 9001;
    within(100, || {
        for wire in [Wire::UdpV4, Wire::Memory] {
            let (near, far) = wire.open().unwrap();
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (near, far) = (near.clone(), far.clone());
                    scope.spawn(move || {
                        // Each thread has its own domain, memory and queues.
                        let (near, far) = connect((near, far), QpType::Rc, &ConnectOptions::default());
                        for round in 0..ROUNDS {
                            let seed = (thread * ROUNDS + round) as u64;
                            near.fill(0, LEN, seed);
                            far.receive(seed, 20_000, LEN);
                            let elements = [near.region.element(0..LEN)];
                            near.post(1, SendOp::Send, &elements);
                            near.post(2, far.write_op(40_000), &elements);
                            near.post(3, far.read_op(40_000), &[near.region.element(60_000..60_000 + LEN)]);
                            assert_eq!(succeed(&far.recv_cq).wr_id, seed);
                            far.check(20_000, LEN, seed);
                            for wr_id in 1..=3 {
                                assert_eq!(succeed(&near.send_cq).wr_id, wr_id);
                            }
                            far.check(40_000, LEN, seed);
                            near.check(60_000, LEN, seed);
                        }
                    });
                }
            });
        }
    });
}

#[test]
fn threads_share_queues() {
    const THREADS: usize = 4;
    const EACH: usize = 50;
    within(60, || {
        let (near, far) = rc_pair();
        let qps: Vec<(QueuePair, QueuePair)> = (0..THREADS)
            .map(|_| {
                let qps = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
                connect_qps(&qps.0, &qps.1, &ConnectOptions::default());
                qps
            })
            .collect();
        std::thread::scope(|scope| {
            for (thread, (qp, _)) in qps.iter().enumerate() {
                let (near, far) = (&near, &far);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let at = (thread * EACH + number) * 1000;
                        near.fill(at, 1000, at as u64);
                        let elements = [near.region.element(at..at + 1000)];
                        qp.post_send(&SendWr::new(at as u64, far.write_op(at), &elements)).unwrap();
                    }
                });
            }
            // Two more threads poll the one completion queue.
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let cq = near.send_cq.clone();
                    scope.spawn(move || {
                        (0..THREADS * EACH / 2).map(|_| succeed(&cq).wr_id as usize).collect::<Vec<_>>()
                    })
                })
                .collect();
            let mut seen: Vec<usize> = takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..THREADS * EACH).map(|number| number * 1000).collect::<Vec<_>>());
        });
        for at in (0..THREADS * EACH).map(|number| number * 1000) {
            far.check(at, 1000, at as u64);
        }
    });
}

#[test]
fn whoever_reads_while_a_peer_writes_sees_old_or_new_words() {
    const LEN: usize = 16 << 10;
    within(60, || {
        let (near, far) = rc_pair();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            let reader = scope.spawn(|| {
                let (mut reads, mut mixed) = (0_u32, 0_u32);
                let mut bytes = vec![0; LEN];
                while !stop.load(Ordering::Relaxed) {
                    far.region.read(0, &mut bytes).unwrap();
                    let (words, _) = bytes.as_chunks::<8>();
                    for word in words {
                        assert!(word.iter().all(|byte| *byte == word[0]), "a torn word: {word:02x?}");
                    }
                    mixed += u32::from(words.iter().any(|word| word != &words[0]));
                    // A single word is never torn.
                    let mut word = [0; 8];
                    far.region.read(LEN / 2, &mut word).unwrap();
                    assert!(word.iter().all(|byte| *byte == word[0]), "a torn word: {word:02x?}");
                    reads += 1;
                }
                (reads, mixed)
            });
            for round in 0..400_u64 {
                near.region.write(0, &[round as u8; LEN]).unwrap();
                near.carry_out(round, far.write_op(0), &[near.region.element(0..LEN)]);
                // Everything is visible to a thread that has seen the completion.
                let mut bytes = vec![0; LEN];
                far.region.read(0, &mut bytes).unwrap();
                assert_same(&bytes, &[round as u8; LEN]);
            }
            stop.store(true, Ordering::Relaxed);
            let (reads, mixed) = reader.join().unwrap();
            println!("{reads} reads, {mixed} of them saw old and new bytes");
            assert!(reads > 0);
        });
    });
}

#[test]
fn objects_come_and_go_beside_running_traffic() {
    within(100, || {
        let (near, far) = rc_pair();
        let stop = AtomicBool::new(false);
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // Regression: a failure left the other thread running, so that the test hung.
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let round = rounds.load(Ordering::Relaxed);
                    near.fill(0, 5000, round);
                    near.carry_out(round, far.write_op(0), &[near.region.element(0..5000)]);
                    far.check(0, 5000, round);
                    rounds.store(round + 1, Ordering::Relaxed);
                }
            });
            for round in 0..30_u64 {
                let (a, b) = (near.context.clone(), far.context.clone());
                // A lost peer is given up soon. A peer that still exists may be slow on a busy machine.
                let options = match round % 4 {
                    3 => ConnectOptions::default(),
                    _ => ConnectOptions::default().timeout(8).retry_cnt(1),
                };
                let (a, b) = connect((a, b), QpType::Rc, &options);
                for number in 0..20 {
                    a.post(number, b.write_op(0), &[a.region.element(0..60_000)]);
                }
                // All objects of one side are dropped during the transfer, in different orders.
                match round % 4 {
                    0 => drop((a, b)),
                    1 => drop((b, a)),
                    2 => {
                        let Side { qp, region, send_cq, .. } = a;
                        drop((region, qp, b, send_cq));
                    }
                    _ => {
                        // The memory is dropped during the requests.
                        let Side { qp, region, send_cq, .. } = b;
                        drop(region);
                        let wc = loop {
                            let wc = completion(&a.send_cq);
                            if wc.status != WcStatus::Success || wc.wr_id == 19 {
                                break wc;
                            }
                        };
                        assert!(
                            matches!(wc.status, WcStatus::RemoteAccessError | WcStatus::Success),
                            "{wc:?}"
                        );
                        drop((qp, send_cq));
                    }
                }
            }
            let before = rounds.load(Ordering::Relaxed);
            until("the traffic goes on", || rounds.load(Ordering::Relaxed) > before + 1);
        });
    });
}
