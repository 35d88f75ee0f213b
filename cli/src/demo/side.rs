//! The resources of one process of the demo: a device, memory, and a queue pair of each transport.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roce_fault::{FaultInjector, FaultPlan};
use roce_packet::{PathMtu, Qpn};
use roce_transport::{Access, QpCapabilities, QpType, RKey, RecvWr, Wc};
use serde::{Deserialize, Serialize};

use roce::observe::explain;
use roce::verbs::{
    AddressHandle, CompletionQueue, ConnectOptions, Context, Endpoint, MemoryRegion, PathOptions,
    ProtectionDomain, QueuePair, QueuePairOptions, WaitError,
};

/// Bytes of memory on each side.
pub(super) const MEMORY: usize = 256 << 10;
/// The offsets of the source and of the target of messages.
pub(super) const SOURCE: usize = 0;
pub(super) const TARGET: usize = 64 << 10;
/// The offset of the results of READs and atomics.
pub(super) const RESULT: usize = 128 << 10;
const QKEY: u32 = 0x1111_1111;

/// A request to the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Open {
        device: String,
        fault: Option<String>,
        seed: Option<u64>,
    },
    Connect(SideInfo),
    /// Write the pattern of this seed to memory.
    Fill {
        offset: usize,
        len: usize,
        seed: u32,
    },
    /// Post a receive for one message.
    Receive {
        transport: Transport,
        len: usize,
    },
    /// Return the result of the receive; check that it contains the pattern of this seed.
    Received {
        transport: Transport,
        len: usize,
        seed: u32,
        timeout_ms: u64,
    },
    /// Check that memory contains the pattern.
    Check {
        offset: usize,
        len: usize,
        seed: u32,
    },
    /// Return the 8 bytes at an offset as a number.
    Word {
        offset: usize,
    },
    SetWord {
        offset: usize,
        value: u64,
    },
    Counters,
    Close,
    Serve {
        device: String,
        address: SocketAddr,
    },
    Quit,
}

/// The answer of the second process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Response {
    Completed,
    Opened(SideInfo),
    Received { arrived: bool, imm: Option<[u8; 4]> },
    Word(u64),
    Counters { retransmitted_packets: u64, timeouts: u64, sequence_naks: u64 },
    Failed(String),
}

/// The transports that the demo uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Transport {
    Rc,
    Uc,
    Ud,
}

/// The parameters that the other side needs to connect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SideInfo {
    endpoints: [Endpoint; 3],
    addr: u64,
    rkey: u32,
}

/// Returns a fault injector with the seed of the demo, or with a random one.
pub(super) fn injector(plan: FaultPlan, seed: Option<u64>) -> FaultInjector {
    FaultInjector::new(plan, seed.unwrap_or_else(|| fastrand::u64(..)))
}

/// Returns the contents of a message: different for every seed, and without two equal lines. The contents are
/// text, which makes the payload easy to recognize in the capture.
pub(super) fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let line =
        |number: usize| format!("roce demo, message {seed:>8}, line {number:>6}, every byte is checked.\n");
    let mut bytes: Vec<u8> = (0..len.div_ceil(64)).flat_map(|number| line(number).into_bytes()).collect();
    bytes.truncate(len);
    bytes
}

pub(super) struct Side {
    pub(super) context: Context,
    pub(super) region: MemoryRegion,
    qps: [QueuePair; 3],
    send_cq: CompletionQueue,
    recv_cqs: [CompletionQueue; 3],
    pub(super) remote: Option<Remote>,
    _pd: ProtectionDomain,
}

/// The other side's memory and UD queue pair.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) addr: u64,
    pub(super) rkey: RKey,
    pub(super) datagram: AddressHandle,
}

impl Side {
    pub(super) fn new(context: Context) -> anyhow::Result<Self> {
        let pd = context.alloc_pd()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let region = pd.allocate(MEMORY, access)?;
        let send_cq = context.create_cq(64, None)?;
        let recv_cqs =
            [context.create_cq(64, None)?, context.create_cq(64, None)?, context.create_cq(64, None)?];
        let make = |qp_type, recv_cq| {
            let options = QueuePairOptions::new(qp_type, &send_cq)
                .recv_cq(recv_cq)
                .capabilities(QpCapabilities { max_inline: 64, ..QpCapabilities::default() });
            pd.create_qp(&options)
        };
        let qps = [
            make(QpType::Rc, &recv_cqs[0])?,
            make(QpType::Uc, &recv_cqs[1])?,
            make(QpType::Ud, &recv_cqs[2])?,
        ];
        Ok(Self { context, region, qps, send_cq, recv_cqs, remote: None, _pd: pd })
    }

    pub(super) fn info(&self) -> anyhow::Result<SideInfo> {
        let [rc, uc, ud] = &self.qps;
        let endpoints = [rc.endpoint()?, uc.endpoint()?, ud.endpoint()?];
        Ok(SideInfo { endpoints, addr: self.region.addr(), rkey: self.region.rkey().0 })
    }

    pub(super) fn connect(&self, other: &SideInfo) -> anyhow::Result<()> {
        let options = ConnectOptions::default().path_mtu(PathMtu::Mtu1024);
        let [rc, uc, ud] = &self.qps;
        rc.connect(&other.endpoints[0], &options)?;
        uc.connect(&other.endpoints[1], &options)?;
        Ok(ud.activate_datagram(QKEY)?)
    }

    pub(super) fn set_remote(&mut self, other: &SideInfo) -> anyhow::Result<()> {
        let datagram = other.endpoints[2];
        let datagram = self.context.create_address_handle(
            datagram.address,
            Qpn::new(datagram.qpn),
            QKEY,
            &PathOptions::default(),
        )?;
        self.remote = Some(Remote { addr: other.addr, rkey: RKey(other.rkey), datagram });
        Ok(())
    }

    pub(super) fn remote(&self) -> anyhow::Result<&Remote> {
        self.remote.as_ref().context("the parameters of the other side are not known yet")
    }

    pub(super) fn qp(&self, transport: Transport) -> &QueuePair {
        &self.qps[transport as usize]
    }

    pub(super) fn fill(&self, offset: usize, len: usize, seed: u32) -> anyhow::Result<()> {
        self.region.write(offset, &pattern(len, seed)).context("cannot write memory")
    }

    /// Checks that memory contains the pattern of this seed.
    pub(super) fn check(&self, offset: usize, len: usize, seed: u32) -> anyhow::Result<()> {
        let mut found = vec![0; len];
        self.region.read(offset, &mut found).context("cannot read memory")?;
        match pattern(len, seed).iter().zip(&found).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => bail!("wrong content: byte {at} of {len} differs"),
        }
    }

    pub(super) fn word(&self, offset: usize) -> anyhow::Result<u64> {
        let mut bytes = [0; 8];
        self.region.read(offset, &mut bytes).context("cannot read memory")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    pub(super) fn set_word(&self, offset: usize, value: u64) -> anyhow::Result<()> {
        self.region.write(offset, &value.to_ne_bytes()).context("cannot write memory")
    }

    /// Posts a receive for one message, with 40 more bytes for the GRH on UD.
    pub(super) fn receive(&self, transport: Transport, len: usize) -> anyhow::Result<()> {
        let len = if transport == Transport::Ud { len + roce_transport::GRH_AREA } else { len };
        let element = self.region.element(TARGET..TARGET + len);
        Ok(self.qp(transport).post_recv(&RecvWr { wr_id: 1, elements: &[element] })?)
    }

    /// Waits for the completion of the next send. Returns an error unless it succeeded.
    pub(super) fn sent(&self) -> anyhow::Result<Wc> {
        self.wait(&self.send_cq, Duration::from_secs(20))?.context(
            "the request did not complete within 20 s; check whether the machine is overloaded, or try another --seed",
        )
    }

    /// Waits for the completion of a receive. Returns `None` after the timeout.
    pub(super) fn received(&self, transport: Transport, timeout: Duration) -> anyhow::Result<Option<Wc>> {
        self.wait(&self.recv_cqs[transport as usize], timeout)
    }

    fn wait(&self, cq: &CompletionQueue, timeout: Duration) -> anyhow::Result<Option<Wc>> {
        let mut completions = [Wc::default()];
        match cq.wait(&mut completions, Some(timeout)) {
            Ok(_) => {}
            Err(WaitError::TimedOut) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let [wc] = completions;
        match self.context.result(&wc) {
            Ok(wc) => Ok(Some(wc)),
            Err(error) => bail!(explain(&error)),
        }
    }
}
