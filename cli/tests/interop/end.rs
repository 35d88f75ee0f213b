//! An end of a connection, ours or the peer's, with the operations that the cases need. So each case is
//! written once for both directions.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use roce::verbs::*;

use crate::peer::{Addresses, Peer};

/// Bytes of registered memory at each end.
pub(crate) const MEMORY: usize = 4 << 20;
pub(crate) const QKEY: u32 = 0x1234_5678;
/// Length of the area in front of the message in a UD receive, in bytes.
pub(crate) const GRH: usize = 40;

/// The operation of a work request, with its remote part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send,
    SendImm(u32),
    Write,
    WriteImm(u32),
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
    AtomicWrite,
    Flush,
}

/// A send work request: `len` bytes at a local offset, and for RDMA at a remote offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: u64,
    pub(crate) op: Op,
    pub(crate) local: usize,
    pub(crate) len: usize,
    pub(crate) remote: usize,
}

/// A completion in the terms of both ends. `status` uses the numbers of libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    /// Whether this is the completion of a receive, not of a send request.
    pub(crate) received: bool,
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    pub(crate) src_qp: u32,
    pub(crate) grh: bool,
}

/// The memory of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

pub(crate) trait End {
    fn name(&self) -> &'static str;
    fn remote(&self) -> Remote;
    fn qpn(&self) -> u32;
    fn fill(&mut self, offset: usize, len: usize, seed: u64) -> Result<()>;
    /// Compares every byte with the pattern.
    fn check(&mut self, offset: usize, len: usize, seed: u64) -> Result<()>;
    fn word(&mut self, offset: usize) -> Result<u64>;
    fn set_word(&mut self, offset: usize, value: u64) -> Result<()>;
    fn bytes(&mut self, offset: usize, len: usize) -> Result<Vec<u8>>;
    fn receive(&mut self, wr_id: u64, offset: usize, len: usize) -> Result<()>;
    fn post(&mut self, work: &Work) -> Result<()>;
    /// Returns completions until `count` have arrived or the time is over.
    fn completions(&mut self, count: usize, within: Duration) -> Result<Vec<Done>>;

    /// Returns the next completion, which must be a success.
    fn succeed(&mut self, within: Duration) -> Result<Done> {
        let name = self.name();
        let done = self.completions(1, within)?;
        let done = done.first().with_context(|| format!("{name}: no completion in {within:?}"))?;
        ensure!(done.status == 0, "{name}: completion with status {}: {done:?}", done.status);
        Ok(*done)
    }
}

/// Returns the eight bytes of a pattern at offset 8 × `index`: splitmix64, as in `verbs_agent.c`.
fn pattern_word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Returns bytes that depend on the seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|index| pattern_word(seed, index).to_le_bytes());
    words.take(len).collect()
}

/// Our end.
#[derive(Debug)]
pub(crate) struct Ours {
    /// Dropped first, because without its memory it would report a wrong key to the peer.
    pub(crate) qp: QueuePair,
    pub(crate) context: Context,
    pub(crate) region: MemoryRegion,
    pub(crate) cq: CompletionQueue,
    psn: u32,
    peer: Option<Remote>,
    destination: Option<AddressHandle>,
}

impl Ours {
    pub(crate) fn new(context: &Context, qp_type: QpType, access: Access) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let region = pd.allocate(MEMORY, access)?;
        let cq = context.create_cq(1024, None)?;
        let capabilities = QpCapabilities {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        };
        let options = QueuePairOptions::new(qp_type, &cq).capabilities(capabilities);
        let qp = pd.create_qp(&options)?;
        Ok(Self { context: context.clone(), region, cq, qp, psn: 0, peer: None, destination: None })
    }

    fn op(&self, work: &Work) -> Result<SendOp> {
        let peer = self.peer.context("not connected")?;
        let (remote_addr, rkey) = (peer.addr + work.remote as u64, RKey(peer.rkey));
        let imm = |value: u32| ImmDt(value.to_be_bytes());
        Ok(match work.op {
            Op::Send => SendOp::Send,
            Op::SendImm(value) => SendOp::SendWithImm(imm(value)),
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::WriteImm(value) => SendOp::WriteWithImm { remote_addr, rkey, imm: imm(value) },
            Op::Read => SendOp::Read { remote_addr, rkey },
            Op::CompareSwap { compare, swap } => SendOp::CompareSwap { remote_addr, rkey, compare, swap },
            Op::FetchAdd { add } => SendOp::FetchAdd { remote_addr, rkey, add },
            Op::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
            Op::Flush => SendOp::Flush {
                remote_addr,
                rkey,
                length: u32::try_from(work.len)?,
                placement: FlushPlacement::GLOBAL_VISIBILITY,
                whole_region: false,
            },
        })
    }
}

impl End for Ours {
    fn name(&self) -> &'static str {
        "we"
    }

    fn remote(&self) -> Remote {
        Remote { addr: self.region.addr(), rkey: self.region.rkey().0 }
    }

    fn qpn(&self) -> u32 {
        self.qp.number().get()
    }

    fn fill(&mut self, offset: usize, len: usize, seed: u64) -> Result<()> {
        Ok(self.region.write(offset, &pattern(len, seed))?)
    }

    fn check(&mut self, offset: usize, len: usize, seed: u64) -> Result<()> {
        let (found, expected) = (self.bytes(offset, len)?, pattern(len, seed));
        if let Some(at) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
            bail!("our byte {at} of {len} is {:#04x} instead of {:#04x}", found[at], expected[at]);
        }
        Ok(())
    }

    fn word(&mut self, offset: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        self.region.read(offset, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn set_word(&mut self, offset: usize, value: u64) -> Result<()> {
        Ok(self.region.write(offset, &value.to_ne_bytes())?)
    }

    fn bytes(&mut self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.region.read(offset, &mut bytes)?;
        Ok(bytes)
    }

    fn receive(&mut self, wr_id: u64, offset: usize, len: usize) -> Result<()> {
        let element = self.region.element(offset..offset + len);
        Ok(self.qp.post_recv(&RecvWr { wr_id, elements: &[element] })?)
    }

    fn post(&mut self, work: &Work) -> Result<()> {
        let element = [self.region.element(work.local..work.local + work.len)];
        let elements: &[Sge] = if work.len == 0 || work.op == Op::Flush { &[] } else { &element };
        let mut wr = SendWr::new(work.wr_id, self.op(work)?, elements);
        wr.destination = self.destination.as_deref().copied();
        Ok(self.qp.post_send(&wr)?)
    }

    fn completions(&mut self, count: usize, within: Duration) -> Result<Vec<Done>> {
        let end = Instant::now() + within;
        let (mut found, mut polled) = (Vec::new(), [Wc::default(); 16]);
        while found.len() < count {
            let left = end.saturating_duration_since(Instant::now());
            let room = polled.len().min(count - found.len());
            match self.cq.wait(&mut polled[..room], Some(left)) {
                Ok(got) => found.extend(polled[..got].iter().map(of_ours)),
                Err(WaitError::TimedOut) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }
}

fn of_ours(wc: &Wc) -> Done {
    Done {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        received: matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm),
        len: wc.byte_len,
        imm: wc.flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be_bytes(wc.imm.0)),
        src_qp: wc.src_qp.get(),
        grh: wc.flags.contains(WcFlags::GRH),
    }
}

/// The peer's end.
#[derive(Debug)]
pub(crate) struct Theirs<'a> {
    pub(crate) peer: &'a mut Peer,
    memory: Remote,
    qpn: u32,
    ours: Option<Remote>,
    /// The words of a send command that name its destination (UD).
    destination: String,
}

impl<'a> Theirs<'a> {
    /// Creates memory, a completion queue and a queue pair on the other side, each with number 0.
    pub(crate) fn new(peer: &'a mut Peer, qp_type: &str, extended: bool) -> Result<Self> {
        peer.ask("destroy all=1")?;
        let answer = peer.ask(&format!("mr id=0 len={MEMORY}"))?;
        let memory = Remote { addr: answer.number("addr")?, rkey: u32::try_from(answer.number("rkey")?)? };
        peer.ask("cq id=0 depth=1024")?;
        let extended = if extended { " extended=1" } else { "" };
        let answer = peer.ask(&format!("qp id=0 type={qp_type} cq=0 sends=128 recvs=128{extended}"))?;
        let qpn = u32::try_from(answer.number("qpn")?)?;
        Ok(Self { peer, memory, qpn, ours: None, destination: String::new() })
    }
}

impl End for Theirs<'_> {
    fn name(&self) -> &'static str {
        "they"
    }

    fn remote(&self) -> Remote {
        self.memory
    }

    fn qpn(&self) -> u32 {
        self.qpn
    }

    fn fill(&mut self, offset: usize, len: usize, seed: u64) -> Result<()> {
        self.peer.ask(&format!("fill mr=0 off={offset} len={len} seed={seed}")).map(drop)
    }

    fn check(&mut self, offset: usize, len: usize, seed: u64) -> Result<()> {
        let answer = self.peer.ask(&format!("check mr=0 off={offset} len={len} seed={seed}"))?;
        ensure!(answer.text() == "same", "their bytes (at, found, expected) of {len}: {}", answer.text());
        Ok(())
    }

    fn word(&mut self, offset: usize) -> Result<u64> {
        Ok(self.peer.ask(&format!("word mr=0 off={offset} len=8"))?.text().parse()?)
    }

    fn set_word(&mut self, offset: usize, value: u64) -> Result<()> {
        self.peer.ask(&format!("word mr=0 off={offset} len=8 value={value}")).map(drop)
    }

    fn bytes(&mut self, offset: usize, len: usize) -> Result<Vec<u8>> {
        let answer = self.peer.ask(&format!("hex mr=0 off={offset} len={len}"))?;
        let text = answer.text();
        let byte = |at: usize| Ok(u8::from_str_radix(&text[at..at + 2], 16)?);
        (0..text.len()).step_by(2).map(byte).collect()
    }

    fn receive(&mut self, wr_id: u64, offset: usize, len: usize) -> Result<()> {
        self.peer.ask(&format!("recv qp=0 wr={wr_id} mr=0 off={offset} len={len}")).map(drop)
    }

    fn post(&mut self, work: &Work) -> Result<()> {
        let ours = self.ours.context("not connected")?;
        let operation = match work.op {
            Op::Send => "send".to_owned(),
            Op::SendImm(imm) => format!("send_imm imm={imm}"),
            Op::Write => "write".to_owned(),
            Op::WriteImm(imm) => format!("write_imm imm={imm}"),
            Op::Read => "read".to_owned(),
            Op::CompareSwap { compare, swap } => format!("cas compare={compare} swap={swap}"),
            Op::FetchAdd { add } => format!("fetch_add add={add}"),
            Op::AtomicWrite => "atomic_write".to_owned(),
            Op::Flush => "flush".to_owned(),
        };
        let line = format!(
            "send qp=0 wr={} mr=0 off={} len={} addr={} rkey={}{} op={operation}",
            work.wr_id,
            work.local,
            work.len,
            ours.addr + work.remote as u64,
            ours.rkey,
            self.destination
        );
        self.peer.ask(&line).map(drop)
    }

    fn completions(&mut self, count: usize, within: Duration) -> Result<Vec<Done>> {
        let line = format!("poll cq=0 max={count} count={count} wait_ms={}", within.as_millis());
        self.peer.ask(&line)?.words().map(of_theirs).collect()
    }
}

/// Parses `wr:status:opcode:len:imm:qpn:src_qp:flags`.
pub(crate) fn of_theirs(word: &str) -> Result<Done> {
    let fields: Vec<u64> = word.split(':').map(str::parse).collect::<Result<_, _>>()?;
    let &[wr_id, status, opcode, len, imm, _, src_qp, flags] = fields.as_slice() else {
        bail!("the peer's completion `{word}` has not eight fields");
    };
    let small = |number: u64| u32::try_from(number);
    Ok(Done {
        wr_id,
        status: small(status)?,
        received: opcode & 128 != 0,
        len: small(len)?,
        imm: (flags & 2 != 0).then_some(small(imm)?),
        src_qp: small(src_qp)?,
        grh: flags & 1 != 0,
    })
}

/// The parameters of a connection at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) addresses: Addresses,
    pub(crate) mtu: PathMtu,
    /// Local ACK timeout exponent.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
}

/// Connects the two ends; for UD, makes the queue pairs ready and tells each end the address of the other.
pub(crate) fn connect(ours: &mut Ours, theirs: &mut Theirs<'_>, link: &Link, qp_type: QpType) -> Result<()> {
    let Addresses { ours: our_address, theirs: their_address } = link.addresses;
    let psn = ours.context.random_psn().get();
    ours.psn = ours.qp.endpoint()?.psn;
    ours.peer = Some(theirs.memory);
    theirs.ours = Some(ours.remote());
    let route = format!("local={their_address} remote={our_address}");
    if qp_type == QpType::Ud {
        ours.qp.activate_datagram(QKEY)?;
        theirs.peer.ask(&format!("activate qp=0 psn={psn} qkey={QKEY}"))?;
        theirs.peer.ask(&format!("ah id=0 {route}"))?;
        theirs.destination = format!(" ah=0 dest={} qkey={QKEY}", ours.qpn());
        let options = PathOptions::default();
        let qpn = Qpn::new(theirs.qpn);
        ours.destination = Some(ours.context.create_address_handle(their_address, qpn, QKEY, &options)?);
        return Ok(());
    }
    let remote = Endpoint { address: their_address, qpn: theirs.qpn, psn };
    let options = ConnectOptions::default()
        .path_mtu(link.mtu)
        .timeout(link.timeout)
        .retry_cnt(link.retries)
        .access(Access::REMOTE | Access::FLUSH_GLOBAL);
    ours.qp.connect(&remote, &options)?;
    theirs.peer.ask(&format!(
        "connect qp=0 {route} mtu={} dest={} psn={psn} rq_psn={} timeout={} retry={}",
        link.mtu.bytes(),
        ours.qpn(),
        ours.psn,
        link.timeout,
        link.retries
    ))?;
    Ok(())
}
