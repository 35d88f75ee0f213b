//! Two contexts that exchange messages.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roce::device::memory::MemoryDevice;
use roce::verbs::*;

use crate::common::{free_v6_port, own_address, skip_unless};

/// Longer than any test here may take, even on a machine with twenty other processes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of memory on each side.
pub(crate) const MEMORY: usize = 256 << 10;
pub(crate) const QKEY: u32 = 0x1234_5678;

/// The transport between the two contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    UdpV4,
    UdpV6,
    Memory,
}

impl Wire {
    pub(crate) const ALL: [Self; 3] = [Self::UdpV4, Self::UdpV6, Self::Memory];

    /// Returns two contexts. If this machine lacks something, prints the reason and returns `None`.
    pub(crate) fn open(self) -> Option<(Context, Context)> {
        self.open_with(Context::builder(), Context::builder())
    }

    pub(crate) fn open_with(self, near: ContextBuilder, far: ContextBuilder) -> Option<(Context, Context)> {
        match self {
            Self::UdpV4 => {
                let [a, b] = [own_address(), own_address()].map(|address| format!("udp:{address}"));
                Some((near.open(&a).unwrap(), far.open(&b).unwrap()))
            }
            Self::UdpV6 => {
                let (Some(a), Some(b)) = (free_v6_port(), free_v6_port()) else {
                    skip_unless(false, "there is no ::1");
                    return None;
                };
                let spec = |own, peer| format!("udp:[::1],port={own},peer_port={peer}");
                Some((near.open(&spec(a, b)).unwrap(), far.open(&spec(b, a)).unwrap()))
            }
            Self::Memory => {
                let [a, b] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
                let (a, b) = MemoryDevice::pair(a, b).unwrap();
                Some((near.attach(a).unwrap(), far.attach(b).unwrap()))
            }
        }
    }
}

/// One end: a queue pair and its resources.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) region: MemoryRegion,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) qp: QueuePair,
}

pub(crate) const CAPABILITIES: QpCapabilities =
    QpCapabilities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline: 128 };

/// Returns the attributes of a queue pair for the verbs on identifiers. All requests complete, in one queue
/// for sends and receives.
pub(crate) fn raw_init(pd: PdId, cq: &RawCq) -> QpInit {
    QpInit {
        qp_type: QpType::Rc,
        pd,
        send_cq: cq.id(),
        recv_cq: cq.id(),
        srq: None,
        capabilities: CAPABILITIES,
        signal_all: true,
    }
}

impl Side {
    pub(crate) fn new(context: Context, qp_type: QpType) -> Self {
        Self::on(context, 0, qp_type)
    }

    /// Creates a side with the queue pair in this engine.
    pub(crate) fn on(context: Context, engine: usize, qp_type: QpType) -> Self {
        let pd = context.alloc_pd().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let region = pd.allocate(MEMORY, access).unwrap();
        let (send_cq, recv_cq) = [(); 2].map(|()| context.create_cq_on(engine, 256, None).unwrap()).into();
        let options = QueuePairOptions::new(qp_type, &send_cq).recv_cq(&recv_cq).capabilities(CAPABILITIES);
        let qp = pd.create_qp(&options).unwrap();
        Self { context, pd, region, send_cq, recv_cq, qp }
    }

    /// Returns another queue pair with the same completion queues.
    pub(crate) fn another_qp(&self, qp_type: QpType) -> QueuePair {
        let options =
            QueuePairOptions::new(qp_type, &self.send_cq).recv_cq(&self.recv_cq).capabilities(CAPABILITIES);
        self.pd.create_qp(&options).unwrap()
    }

    pub(crate) fn fill(&self, offset: usize, len: usize, seed: u64) {
        self.region.write(offset, &pattern(len, seed)).unwrap();
    }

    #[track_caller]
    pub(crate) fn check(&self, offset: usize, len: usize, seed: u64) {
        let mut found = vec![0; len];
        self.region.read(offset, &mut found).unwrap();
        assert_same(&found, &pattern(len, seed));
    }

    /// Posts a receive of `len` bytes at an offset.
    #[track_caller]
    pub(crate) fn receive(&self, wr_id: u64, offset: usize, len: usize) {
        let element = self.region.element(offset..offset + len);
        self.qp.post_recv(&RecvWr { wr_id, elements: &[element] }).unwrap();
    }

    #[track_caller]
    pub(crate) fn post(&self, wr_id: u64, op: SendOp, elements: &[Sge]) {
        self.qp.post_send(&SendWr::new(wr_id, op, elements)).unwrap();
    }

    /// Posts a request and waits for its successful completion.
    #[track_caller]
    pub(crate) fn carry_out(&self, wr_id: u64, op: SendOp, elements: &[Sge]) -> Wc {
        self.post(wr_id, op, elements);
        let wc = succeed(&self.send_cq);
        assert_eq!((wc.wr_id, wc.qpn), (wr_id, self.qp.number()));
        wc
    }

    /// Returns a WRITE to this offset of the memory of `self`.
    pub(crate) fn write_op(&self, offset: usize) -> SendOp {
        SendOp::Write { remote_addr: self.region.addr() + offset as u64, rkey: self.region.rkey() }
    }

    pub(crate) fn read_op(&self, offset: usize) -> SendOp {
        SendOp::Read { remote_addr: self.region.addr() + offset as u64, rkey: self.region.rkey() }
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        counter(&self.context, name)
    }
}

/// Returns a counter of the engine, the driver or the device.
#[track_caller]
pub(crate) fn counter(context: &Context, name: &str) -> u64 {
    let mut found = None;
    context.visit_counters(&mut |known, value| {
        if known == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}

/// Returns two ends with connected queue pairs.
pub(crate) fn connected(wire: Wire, qp_type: QpType, options: &ConnectOptions) -> Option<(Side, Side)> {
    Some(connect(wire.open()?, qp_type, options))
}

pub(crate) fn connect(
    (near, far): (Context, Context),
    qp_type: QpType,
    options: &ConnectOptions,
) -> (Side, Side) {
    let (near, far) = (Side::new(near, qp_type), Side::new(far, qp_type));
    connect_qps(&near.qp, &far.qp, options);
    (near, far)
}

pub(crate) fn connect_qps(near: &QueuePair, far: &QueuePair, options: &ConnectOptions) {
    near.connect(&far.endpoint().unwrap(), options).unwrap();
    far.connect(&near.endpoint().unwrap(), options).unwrap();
}

/// Returns two RC ends over an IPv4 socket with the default options.
pub(crate) fn rc_pair() -> (Side, Side) {
    connected(Wire::UdpV4, QpType::Rc, &ConnectOptions::default()).unwrap()
}

/// Returns the next completion, successful or not.
#[track_caller]
pub(crate) fn completion(cq: &CompletionQueue) -> Wc {
    let mut done = [Wc::default()];
    match cq.wait(&mut done, Some(PATIENCE)) {
        Ok(_) => done[0],
        Err(error) => panic!("no completion: {error:?}"),
    }
}

/// Returns the next completion, which must be a success.
#[track_caller]
pub(crate) fn succeed(cq: &CompletionQueue) -> Wc {
    let wc = completion(cq);
    assert_eq!((wc.status, wc.cause), (WcStatus::Success, Cause::None), "{wc:?}");
    wc
}

/// Returns the next completion, which must have failed with this status.
#[track_caller]
pub(crate) fn fail(cq: &CompletionQueue, status: WcStatus) -> Wc {
    let wc = completion(cq);
    assert_eq!(wc.status, status, "{wc:?}");
    assert_ne!(wc.cause, Cause::None, "{wc:?}");
    wc
}

/// Returns bytes that depend on the seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut generator = fastrand::Rng::with_seed(seed ^ 0x5eed_0000_0000);
    (0..len).map(|_| generator.u8(..)).collect()
}

#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len());
    if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
        panic!("byte {at} of {} is {:#04x} instead of {:#04x}", found.len(), found[at], expected[at]);
    }
}

/// Tells the other threads of a test to end when the test ends, even if it fails. Otherwise a failed test
/// would wait for them.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls a condition until it is true.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
