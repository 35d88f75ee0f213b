//! What does it cost to keep a received datagram for a while: a `Vec`, a reused buffer, or the crate `bytes`?
//!
//! A device lends a received datagram as a slice. Faults, delays and the bridge keep up to some thousand of
//! them; here 64 at a time, and 1 in 100 twice. The last group marks each packet on its way out, as a
//! congested queue does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

/// Datagrams that are held at one time.
const HELD: usize = 64;
/// Datagrams in one measurement.
const PACKETS: usize = 1_000;
/// An acknowledgement, and a full packet at path MTU 1024 and 4096.
const LENGTHS: [usize; 3] = [62, 1_082, 4_154];

/// Keeps each packet in a queue until `HELD` later ones have come, and lets `leave` have it.
fn hold<T>(lent: &[u8], keep: impl Fn(&[u8]) -> T, copy: impl Fn(&T) -> T, mut leave: impl FnMut(T)) {
    let mut queue = VecDeque::with_capacity(HELD + 2);
    for number in 0..PACKETS {
        let kept = keep(black_box(lent));
        if number % 100 == 0 {
            queue.push_back(copy(&kept));
        }
        queue.push_back(kept);
        while queue.len() > HELD {
            queue.pop_front().into_iter().for_each(&mut leave);
        }
    }
    queue.into_iter().for_each(leave);
}

fn kept(criterion: &mut Criterion) {
    for len in LENGTHS {
        let lent = vec![7_u8; len];
        let mut group = criterion.benchmark_group(format!("hold/{len}"));
        group.throughput(Throughput::Elements(PACKETS as u64));
        group.bench_function("Vec", |bencher| {
            bencher.iter(|| hold(&lent, <[u8]>::to_vec, Clone::clone, |packet| drop(black_box(packet))));
        });
        group.bench_function("Bytes", |bencher| {
            let keep = Bytes::copy_from_slice;
            bencher.iter(|| hold(&lent, keep, Clone::clone, |packet| drop(black_box(packet))));
        });
        group.bench_function("reused buffers", |bencher| {
            let spare = || RefCell::new((0..HELD + 2).map(|_| vec![0; len]).collect());
            let run = |spare: RefCell<Vec<Vec<u8>>>| {
                let keep = |bytes: &[u8]| {
                    let mut room = spare.borrow_mut().pop().unwrap_or_default();
                    room.clear();
                    room.extend_from_slice(bytes);
                    room
                };
                hold(&lent, keep, |packet| keep(packet), |packet| spare.borrow_mut().push(black_box(packet)));
            };
            bencher.iter_batched(spare, run, BatchSize::LargeInput);
        });
        group.finish();
    }
}

/// A mark belongs to one of two copies, so shared bytes have to be copied before they are changed.
fn marked(criterion: &mut Criterion) {
    for len in LENGTHS {
        let lent = vec![7_u8; len];
        let mut group = criterion.benchmark_group(format!("hold and mark/{len}"));
        group.throughput(Throughput::Elements(PACKETS as u64));
        group.bench_function("Vec", |bencher| {
            bencher.iter(|| {
                hold(&lent, <[u8]>::to_vec, Clone::clone, |mut packet| {
                    packet[15] |= 3;
                    drop(black_box(packet));
                });
            });
        });
        group.bench_function("Bytes", |bencher| {
            bencher.iter(|| {
                hold(&lent, Bytes::copy_from_slice, Clone::clone, |packet| {
                    let mut packet = BytesMut::from(packet);
                    packet[15] |= 3;
                    drop(black_box(packet));
                });
            });
        });
        group.finish();
    }
}

criterion_group!(benches, kept, marked);
criterion_main!(benches);
