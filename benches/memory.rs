//! A copy into registered memory: of this library, of the application with and without
//! `IBV_ACCESS_ON_DEMAND`. The second is what WRITEs of unmodified programs use; compared with the first it
//! shows what the guard against faults costs, and compared with the third what a check of the pages would.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce::verbs::{ForeignMemory, Memory, OnDemandMemory, SharedMemory};

const LENGTHS: [usize; 4] = [8, 64, 1024, 4096];

fn copies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy into memory");
    let buffer = Box::leak(vec![0_u8; 8192].into_boxed_slice());
    let (start, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: the buffer is never freed, and used through these two only.
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
