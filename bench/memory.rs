//! Compares copies into registered memory: of this library, and of the application without and with
//! `IBV_ACCESS_ON_DEMAND`. WRITEs of unmodified programs use the second kind. Its difference from the first
//! is the cost of the guard against faults; its difference from the third is the cost of a check of the
//! pages.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce::verbs::{ForeignMemory, Memory, OnDemandMemory, SharedMemory};

const LENGTHS: [usize; 4] = [8, 64, 1024, 4096];

fn copies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy into memory");
    let buffer = Box::leak(vec![0_u8; 8192].into_boxed_slice());
    let (start, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the buffer is never freed, and only these two objects use it.
    let (foreign, on_demand) =
        unsafe { (ForeignMemory::new(start, len, true).unwrap(), OnDemandMemory::new(start, len).unwrap()) };
    let shared = SharedMemory::new(len);
    let memories: [(&str, &dyn Memory); 3] =
        [("own", &shared), ("application", &foreign), ("on demand", &on_demand)];
    for length in LENGTHS {
        let data = vec![7; length];
        group.throughput(Throughput::Bytes(length as u64));
        for (name, memory) in memories {
            group.bench_with_input(BenchmarkId::new(name, length), &data, |bencher, data| {
                bencher.iter(|| black_box(memory).write(black_box(64), black_box(data)).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, copies);
criterion_main!(benches);
