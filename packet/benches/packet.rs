//! Cost of one packet: parsing and writing of each kind, and the ICRC from 64 bytes to 4 KiB.

use std::hint::black_box;
use std::net::IpAddr;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce_packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BufferTooSmall, Datagram, DatagramWriter, Deth, Encapsulation,
    Envelope, Feth, FlushSelectivity, HeaderSet, Ieth, ImmDt, Msn, Opcode, Path, Psn, Qpn, Reth, Syndrome,
    icrc,
};

/// The kinds of packet with different headers after the BTH, each with a payload length.
const KINDS: [(Opcode, usize); 14] = [
    (Opcode::RC_SEND_MIDDLE, 1024),
    (Opcode::RC_SEND_ONLY_WITH_IMM, 64),
    (Opcode::RC_SEND_ONLY_WITH_INVALIDATE, 64),
    (Opcode::RC_RDMA_WRITE_FIRST, 1024),
    (Opcode::RC_RDMA_WRITE_ONLY_WITH_IMM, 61),
    (Opcode::RC_RDMA_READ_REQUEST, 0),
    (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 64),
    (Opcode::RC_ACKNOWLEDGE, 0),
    (Opcode::RC_ATOMIC_ACKNOWLEDGE, 0),
    (Opcode::RC_COMPARE_SWAP, 0),
    (Opcode::RC_FLUSH, 0),
    (Opcode::RC_ATOMIC_WRITE, 8),
    (Opcode::UD_SEND_ONLY, 64),
    (Opcode::CNP, 16),
];

const PAYLOADS: [usize; 6] = [64, 100, 256, 1024, 2048, 4096];

/// Measures parsing a datagram and reading every header of its opcode once.
fn parse(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for (opcode, payload_len) in KINDS {
        let mut buffer = [0; 2048];
        let len = seal(opcode, payload_len, &mut buffer).unwrap();
        let bytes = &buffer[..len];
        group.bench_function(BenchmarkId::from_parameter(opcode), |b| {
            b.iter(|| read(&Datagram::parse(black_box(bytes), &[]).unwrap()));
        });
    }
    group.finish();
}

fn read(datagram: &Datagram<'_>) {
    black_box((datagram.bth().psn, datagram.payload(), datagram.icrc()));
    let headers = datagram.info().headers;
    if headers.contains(HeaderSet::AETH) {
        black_box(datagram.aeth());
    }
    if headers.contains(HeaderSet::RETH) {
        black_box(datagram.reth());
    }
    if headers.contains(HeaderSet::ATOMIC_ETH) {
        black_box(datagram.atomic_eth());
    }
    if headers.contains(HeaderSet::DETH) {
        black_box(datagram.deth());
    }
}

/// Measures writing the headers and an empty payload slot, without the ICRC.
fn emit(c: &mut Criterion) {
    let mut group = c.benchmark_group("emit");
    for (opcode, payload_len) in KINDS {
        let mut buffer = [0; 2048];
        group.bench_function(BenchmarkId::from_parameter(opcode), |b| {
            b.iter(|| write(black_box(opcode), payload_len, &mut buffer).unwrap().len_with_icrc());
        });
    }
    group.finish();
}

/// Measures writing with the ICRC: everything that a NIC does to a packet.
fn emit_sealed(c: &mut Criterion) {
    let mut group = c.benchmark_group("emit and seal");
    for (opcode, payload_len) in KINDS {
        let mut buffer = [0; 2048];
        group.bench_function(BenchmarkId::from_parameter(opcode), |b| {
            b.iter(|| seal(black_box(opcode), payload_len, &mut buffer).unwrap());
        });
    }
    group.finish();
}

/// Measures the ICRC of a WRITE by payload length, in one slice and with the payload in a second one.
fn invariant_crc(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for (name, path) in [("v4", path_v4()), ("v6", path_v6())] {
        for payload_len in PAYLOADS {
            let bytes = vec![0x5a; 28 + payload_len];
            group.throughput(Throughput::Bytes(bytes.len() as u64));
            group.bench_function(BenchmarkId::new(name, payload_len), |b| {
                b.iter(|| icrc::compute(&Envelope::new(black_box(&path), 0), black_box(&bytes), &[]));
            });
            let seed = icrc::Seed::new(&Envelope::new(&path, 0));
            group.bench_function(BenchmarkId::new(format!("{name} with a seed"), payload_len), |b| {
                b.iter(|| black_box(&seed).compute(0, black_box(&bytes), &[]));
            });
            let (head, tail) = bytes.split_at(28);
            group.bench_function(BenchmarkId::new(format!("{name} in two slices"), payload_len), |b| {
                b.iter(|| {
                    icrc::compute(&Envelope::new(black_box(&path), 0), black_box(head), black_box(tail))
                });
            });
        }
    }
    group.finish();
}

/// Measures the additional cost if the device cannot see the IP header of a peer that counts its packets.
fn recover(c: &mut Criterion) {
    let mut group = c.benchmark_group("recover identification");
    for payload_len in [0, 1024, 4096] {
        let bytes = vec![0x5a; 28 + payload_len];
        let envelope = Envelope::new(&path_v4(), 0x1234);
        let found = icrc::compute(&envelope, &bytes, &[]);
        let difference = found ^ icrc::compute(&envelope.with_identification(0), &bytes, &[]);
        group.bench_function(BenchmarkId::new("from difference", payload_len), |b| {
            b.iter(|| icrc::identification_from_difference(black_box(difference), bytes.len()).unwrap());
        });
        group.bench_function(BenchmarkId::new("whole", payload_len), |b| {
            b.iter(|| icrc::recover_identification(&envelope, &bytes, &[], black_box(found)).unwrap());
        });
    }
    group.finish();
}

fn seal(opcode: Opcode, payload_len: usize, out: &mut [u8]) -> Result<usize, BufferTooSmall> {
    write(opcode, payload_len, out)?.finish(&Envelope::new(&path_v4(), 0))
}

#[inline(always)]
fn write(opcode: Opcode, payload_len: usize, out: &mut [u8]) -> Result<DatagramWriter<'_>, BufferTooSmall> {
    let mut writer = DatagramWriter::new(out, &Bth::new(opcode, Qpn::new(0x12), Psn::new(0x345678)))?;
    let headers = opcode.info().map_or(HeaderSet::empty(), |info| info.headers);
    if headers.contains(HeaderSet::DETH) {
        writer.deth(&Deth { q_key: 0x1111_1111, source_qp: Qpn::new(0x13) })?;
    }
    if headers.contains(HeaderSet::FETH) {
        let selectivity = FlushSelectivity::Range;
        writer.feth(&Feth { global_visibility: true, persistence: true, selectivity })?;
    }
    if headers.contains(HeaderSet::RETH) {
        writer.reth(&Reth { va: 0x7f00_1234_5678, rkey: 0x4321, dma_len: 4096 })?;
    }
    if headers.contains(HeaderSet::ATOMIC_ETH) {
        writer.atomic_eth(&AtomicEth { va: 0x7f00_1234_5678, rkey: 0x4321, swap_or_add: 1, compare: 0 })?;
    }
    if headers.contains(HeaderSet::AETH) {
        writer.aeth(&Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(9) })?;
    }
    if headers.contains(HeaderSet::ATOMIC_ACK_ETH) {
        writer.atomic_ack_eth(&AtomicAckEth { original: 7 })?;
    }
    if headers.contains(HeaderSet::IMMDT) {
        writer.imm_dt(&ImmDt([1, 2, 3, 4]))?;
    }
    if headers.contains(HeaderSet::IETH) {
        writer.ieth(&Ieth { rkey: 0x4321 })?;
    }
    if payload_len != 0 {
        black_box(writer.payload_slot(payload_len)?);
    }
    Ok(writer)
}

fn path_v4() -> Path {
    path([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
}

fn path_v6() -> Path {
    path([0xfd00, 0, 0, 0, 0, 0, 0, 1].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 2].into())
}

fn path(source: IpAddr, destination: IpAddr) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        source_port: 0xc123,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

criterion_group!(benches, parse, emit, emit_sealed, invariant_crc, recover);
criterion_main!(benches);
