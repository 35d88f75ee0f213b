//! Measures the benefit of a second engine in a context: the rate of WRITEs of many queue pairs with one
//! engine and one thread, with two threads on one engine, and with two of each.
//!
//! Both contexts belong to this process, on loopback. Thread `i` is pinned to processor `i` and drives
//! engine `i` at both ends, so a thread and its engines use one core unless they are shared. Each message
//! carries a number, which is checked in the peer's memory when the message completes. At the end, every
//! byte is compared. The upper limit is the rate of two threads with contexts of their own, which share
//! nothing but the kernel.

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use roce::verbs::{
    Access, CompletionQueue, ConnectOptions, Context, MemoryRegion, PathMtu, QpType, QueuePair,
    QueuePairOptions, SendFlags, SendOp, SendWr, Wc,
};
use roce_testing::own_address;
use serde_json::{Value, json};

use super::outcome::Outcome;

const QUEUE_PAIRS: usize = 64;
/// Number of outstanding messages of a queue pair.
const DEPTH: usize = 8;
const WARM_UP: Duration = Duration::from_millis(300);

/// One queue pair and the memory at both ends.
struct Stream {
    qp: QueuePair,
    _peer: QueuePair,
    source: MemoryRegion,
    target: MemoryRegion,
    size: usize,
    posted: u64,
    outstanding: usize,
}

impl Stream {
    fn new(near: &End, far: &End, size: usize) -> Self {
        let [near_pd, far_pd] = [near, far].map(|end| end.context.alloc_pd().expect("a domain"));
        let qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near.cq)).expect("a queue pair");
        let peer = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far.cq)).expect("a queue pair");
        let options = ConnectOptions::default().path_mtu(PathMtu::Mtu4096);
        qp.connect(&peer.endpoint().expect("an address"), &options).expect("to connect");
        peer.connect(&qp.endpoint().expect("an address"), &options).expect("to connect");
        let source = near_pd.allocate(DEPTH * size, Access::LOCAL_WRITE).expect("memory");
        let target =
            far_pd.allocate(DEPTH * size, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
        let content: Vec<u8> = (0..DEPTH * size).map(|at| (at * 31 % 251) as u8).collect();
        source.write(0, &content).expect("inside");
        Self { qp, _peer: peer, source, target, size, posted: 0, outstanding: 0 }
    }

    /// Posts one message per slot, each with a new number.
    fn post(&mut self) {
        let elements: [_; DEPTH] = std::array::from_fn(|place| {
            let at = place * self.size;
            self.posted += 1;
            self.source.write(at, &self.posted.to_be_bytes()).expect("inside");
            [self.source.element(at..at + self.size)]
        });
        let requests: [_; DEPTH] = std::array::from_fn(|place| {
            let remote_addr = self.target.addr() + (place * self.size) as u64;
            let op = SendOp::Write { remote_addr, rkey: self.target.rkey() };
            let is_last = place + 1 == DEPTH;
            let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
            SendWr::new(0, op, &elements[place]).with_flags(flags)
        });
        self.qp.post_send_list(&requests).expect("room");
        self.outstanding = DEPTH;
    }

    /// Checks the messages. The last one has completed, and so have those before it.
    fn complete(&mut self) {
        for place in 0..DEPTH {
            let mut number = [0; 8];
            self.target.read(place * self.size, &mut number).expect("inside");
            let expected = self.posted - (DEPTH - 1 - place) as u64;
            assert_eq!(u64::from_be_bytes(number), expected, "a message is not where it belongs");
        }
        self.outstanding = 0;
    }

    fn verify(&self) {
        assert_eq!(self.outstanding, 0);
        let len = DEPTH * self.size;
        let mut bytes = [vec![0; len], vec![0; len]];
        self.source.read(0, &mut bytes[0]).expect("inside");
        self.target.read(0, &mut bytes[1]).expect("inside");
        assert!(bytes[0] == bytes[1], "the peer's memory differs from what was sent");
    }
}

/// A context and a completion queue in one of its engines.
struct End {
    context: Context,
    cq: CompletionQueue,
}

/// The two ends and the queue pairs that one thread drives.
struct Core {
    near: End,
    far: End,
    streams: Vec<Stream>,
}

impl Core {
    fn new(near: End, far: End, streams: usize, size: usize) -> Self {
        let streams = (0..streams).map(|_| Stream::new(&near, &far, size)).collect();
        Self { near, far, streams }
    }

    /// Sends messages for `time`, and returns their number.
    fn drive(&mut self, time: Duration) -> u64 {
        let place_of = |streams: &[Stream], wc: &Wc| {
            streams
                .iter()
                .position(|stream| stream.qp.number() == wc.qpn)
                .expect("a queue pair of this thread")
        };
        let mut done = [Wc::default(); 16];
        let (begin, mut messages) = (Instant::now(), 0);
        self.streams.iter_mut().for_each(Stream::post);
        let mut open = self.streams.len();
        while open > 0 {
            let is_over = begin.elapsed() >= time;
            let count = self.near.cq.poll(&mut done).expect("the device works");
            for wc in &done[..count] {
                wc.result().expect("the peer has the message");
                let place = place_of(&self.streams, wc);
                let stream = &mut self.streams[place];
                stream.complete();
                messages += DEPTH as u64;
                if is_over {
                    open -= 1;
                } else {
                    stream.post();
                }
            }
            assert_eq!(
                self.far.cq.poll(&mut done).expect("the device works"),
                0,
                "WRITEs complete at one end"
            );
        }
        messages
    }
}

/// The division of the work among threads, engines and contexts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Division {
    /// One thread, one engine.
    One,
    /// Two threads that share one engine.
    Threads,
    /// Two threads, two engines of one context.
    Engines,
    /// Two threads with a context each.
    Contexts,
}

impl Division {
    fn processors(self) -> Range<usize> {
        if self == Self::One { 0..1 } else { 0..2 }
    }

    fn cores(self, size: usize) -> Vec<Core> {
        let open = |engines: usize| {
            let spec = format!("udp:{}", own_address());
            Context::builder().engines(engines).open(&spec).expect("an address of our own")
        };
        let end = |context: &Context, engine| {
            let cq = context.create_cq_on(engine, 2 * QUEUE_PAIRS, None).expect("a completion queue");
            End { context: context.clone(), cq }
        };
        match self {
            Self::One => {
                vec![Core::new(end(&open(1), 0), end(&open(1), 0), QUEUE_PAIRS, size)]
            }
            Self::Threads | Self::Engines => {
                let engines = if self == Self::Threads { 1 } else { 2 };
                let (near, far) = (open(engines), open(engines));
                let core = |thread| {
                    let engine = thread % engines;
                    Core::new(end(&near, engine), end(&far, engine), QUEUE_PAIRS / 2, size)
                };
                (0..2).map(core).collect()
            }
            Self::Contexts => {
                (0..2).map(|_| Core::new(end(&open(1), 0), end(&open(1), 0), QUEUE_PAIRS / 2, size)).collect()
            }
        }
    }
}

fn pin(processors: Range<usize>) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    processors.for_each(|processor| set.set(processor));
    rustix::thread::sched_setaffinity(None, &set)
}

/// Measures the messages per second of all threads together.
fn rate(division: Division, size: usize, time: Duration) -> f64 {
    let cores = division.cores(size);
    let start = Barrier::new(cores.len());
    let rates = std::thread::scope(|scope| {
        let threads: Vec<_> = cores
            .into_iter()
            .enumerate()
            .map(|(processor, mut core)| {
                let start = &start;
                scope.spawn(move || {
                    pin(processor..processor + 1).expect("it was possible before");
                    core.drive(WARM_UP);
                    start.wait();
                    let begin = Instant::now();
                    let messages = core.drive(time);
                    let took = begin.elapsed();
                    core.streams.iter().for_each(Stream::verify);
                    // No thread closes its contexts while another one is measured.
                    start.wait();
                    messages as f64 / took.as_secs_f64()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("every message arrives right"))
            .collect::<Vec<_>>()
    });
    rates.into_iter().sum()
}

/// Measures the messages per second with "1" or "2" engines, with 2 "threads" on one engine, or with 2
/// "contexts".
pub(crate) fn rates(division: &str, size: u64, millis: u64) -> Outcome<Value> {
    let way = match division {
        "1" => Division::One,
        "2" => Division::Engines,
        "threads" => Division::Threads,
        "contexts" => Division::Contexts,
        _ => return Err(format!("{division}: write 1, 2, threads or contexts").into()),
    };
    // Needed if the program was started on one processor. The contexts' background threads use these
    // processors too.
    pin(way.processors()).map_err(|error| format!("two engines need two processors: {error}"))?;
    let size = usize::try_from(size).ok().filter(|size| (8..=1 << 20).contains(size));
    let size = size.ok_or("the size of a message is 8 to 1048576 bytes")?;
    let rate = rate(way, size, Duration::from_millis(millis));
    Ok(json!({"messages_per_second": rate, "queue_pairs": QUEUE_PAIRS, "bytes": size}))
}
