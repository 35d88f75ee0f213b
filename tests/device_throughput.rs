//! Throughput of a UDP device alone, and whether it allocates memory. To run these measurements:
//!
//! ```text
//! cargo test --profile fast --test device_throughput -- --ignored --nocapture --test-threads=1
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as Clock};

use roce::device::Device;
use roce::device::udp::UdpDevice;
use roce_packet::{Encapsulation, Path, Qpn};
use roce_transport::{Instant, Transmit};

/// Counts allocations of the whole program.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The parameters of a measurement.
#[derive(Clone, Copy)]
struct Run {
    /// Options of both devices, after a comma.
    options: &'static str,
    /// Bytes from BTH to ICRC.
    len: usize,
    /// Datagrams between two flushes.
    burst: usize,
    /// Whether the payload is copied into the slot, as an engine does.
    copy: bool,
    /// Maximum number of datagrams in flight.
    window: u64,
}

#[test]
#[ignore = "a measurement"]
fn one_way() {
    let base = Run { options: "", len: 4144, burst: 15, copy: false, window: 512 };
    for (name, run) in [
        ("4 KiB", base),
        ("4 KiB, copied", Run { copy: true, ..base }),
        ("4 KiB, copied, 60 per flush", Run { copy: true, burst: 60, ..base }),
        ("4 KiB, one at a time", Run { burst: 1, ..base }),
        ("1 KiB", Run { len: 1072, burst: 60, window: 2048, ..base }),
        ("64 B", Run { len: 64, burst: 64, window: 2048, ..base }),
        ("4 KiB, no offload", Run { options: ",gso=off,gro=off", ..base }),
    ] {
        let mut results: Vec<Outcome> = (0..3).map(|_| measure(run)).collect();
        results.sort_by(|a, b| a.gigabits.total_cmp(&b.gigabits));
        let Outcome { gigabits, datagrams_per_second, lost, allocations } = results[1];
        println!(
            "{name:<28} {gigabits:6.1} Gb/s  {:6.2} M datagrams/s  lost {:.3} %  allocations {allocations}",
            datagrams_per_second / 1e6,
            lost * 100.0
        );
        assert_eq!(allocations, 0, "{name}: the steady state allocates");
    }
}

struct Outcome {
    gigabits: f64,
    datagrams_per_second: f64,
    lost: f64,
    allocations: u64,
}

#[track_caller]
fn pair(options: &str) -> (UdpDevice, UdpDevice, Path) {
    let open =
        |address: &str| UdpDevice::open(&format!("udp:{address},port=0{options}").parse().unwrap()).unwrap();
    let (mut a, mut b) = (open("127.0.0.1"), open("127.0.0.2"));
    a.set_peer_port(b.port());
    b.set_peer_port(a.port());
    let path = path(a.addresses()[0], b.addresses()[0], a.port());
    (a, b, path)
}

fn path(source: IpAddr, destination: IpAddr, source_port: u16) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        source_port,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

fn measure(run: Run) -> Outcome {
    let (a, b, path) = pair(run.options);
    let received = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_until(b, &received, &stop));
        let sender = scope.spawn(|| send_until(a, run, path, &received, &stop));
        std::thread::sleep(Duration::from_millis(300));
        let (start, before, allocations) =
            (Clock::now(), received.load(Ordering::Relaxed), ALLOCATIONS.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(1000));
        let count = received.load(Ordering::Relaxed) - before;
        let seconds = start.elapsed().as_secs_f64();
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        receiver.join().unwrap();
        let all = received.load(Ordering::Relaxed);
        let datagrams_per_second = count as f64 / seconds;
        Outcome {
            gigabits: datagrams_per_second * run.len as f64 * 8.0 / 1e9,
            datagrams_per_second,
            lost: (sent - all) as f64 / sent as f64,
            allocations,
        }
    })
}

fn send_until(mut device: UdpDevice, run: Run, path: Path, received: &AtomicU64, stop: &AtomicBool) -> u64 {
    pin(0);
    let payload = vec![0x5a; run.len];
    let mut sent = 0;
    let mut forgiven = 0;
    let mut last_progress = (Clock::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let arrived = received.load(Ordering::Relaxed);
        if (sent - arrived).saturating_sub(forgiven) > run.window {
            // Missing datagrams count as lost after 50 ms without progress, because a receiver that is not
            // running may still get them.
            if last_progress.1 != arrived {
                last_progress = (Clock::now(), arrived);
            } else if last_progress.0.elapsed() > Duration::from_millis(50) {
                forgiven = sent - arrived;
            }
            std::hint::spin_loop();
            continue;
        }
        for _ in 0..run.burst {
            let Some(slot) = device.slot() else { break };
            if run.copy {
                slot.buffer[..run.len].copy_from_slice(&payload);
            }
            let identification = slot.batch.identification(&path, Qpn::default(), run.len);
            device.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), run.len, identification));
            sent += 1;
        }
        device.flush(Instant::ZERO).unwrap();
    }
    // Wait for the last datagrams.
    std::thread::sleep(Duration::from_millis(20));
    sent
}

fn receive_until(mut device: UdpDevice, received: &AtomicU64, stop: &AtomicBool) {
    pin(1);
    let mut idle_since = None;
    loop {
        let mut bytes = 0;
        let count = device.receive(Instant::ZERO, &mut |datagram| bytes += datagram.head().len()).unwrap();
        std::hint::black_box(bytes);
        received.fetch_add(count as u64, Ordering::Relaxed);
        if count == 0 && stop.load(Ordering::Relaxed) {
            let since = *idle_since.get_or_insert_with(Clock::now);
            if since.elapsed() > Duration::from_millis(10) {
                break;
            }
        }
    }
    device.counters(&mut |name, value| {
        if value != 0 && ["udp_rx_overflow", "udp_rx_too_long", "udp_reported_errors"].contains(&name) {
            println!("    {name} {value}");
        }
    });
}

/// Pins each thread to its own core, if there are two.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[test]
#[ignore = "a measurement"]
fn there_and_back() {
    let (mut a, mut b, there) = pair("");
    let back = path(b.addresses()[0], a.addresses()[0], b.port());
    let stop = AtomicBool::new(false);
    let mut times = Vec::with_capacity(100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                let mut count = 0;
                b.receive(Instant::ZERO, &mut |_| count += 1).unwrap();
                for _ in 0..count {
                    send_one(&mut b, back);
                }
            }
        });
        pin(0);
        for _ in 0..times.capacity() {
            let start = Clock::now();
            send_one(&mut a, there);
            while a.receive(Instant::ZERO, &mut |_| {}).unwrap() == 0 {}
            times.push(start.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
    print_times("device", times);
}

/// Measures sending and receiving without anything else, as a baseline.
#[test]
#[ignore = "a measurement"]
fn there_and_back_without_a_device() {
    let open = |address: &str| {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (a, b) = (open("127.0.0.1"), open("127.0.0.2"));
    let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let stop = AtomicBool::new(false);
    let mut times = Vec::with_capacity(100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                if b.recv(&mut [0; 64]).is_ok() {
                    b.send_to(&[1; 64], to_a).unwrap();
                }
            }
        });
        pin(0);
        for _ in 0..times.capacity() {
            let start = Clock::now();
            a.send_to(&[1; 64], to_b).unwrap();
            while a.recv(&mut [0; 64]).is_err() {}
            times.push(start.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
    });
    print_times("plain sockets", times);
}

fn print_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{what}: 64 B there and back p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn send_one(device: &mut UdpDevice, path: Path) {
    let slot = device.slot().unwrap();
    slot.buffer[..64].fill(1);
    device.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), 64, 0));
    device.flush(Instant::ZERO).unwrap();
}
