//! An engine with a queue pair for which a packet is made.

use std::error::Error;
use std::sync::Arc;

use roce_packet::mad::GSI_Q_KEY;
use roce_packet::{
    Bth, BthView, Datagram, DatagramWriter, Ecn, Opcode, OpcodeInfo, Operation, Path, PathMtu, PayloadRule,
    Position, Qpn, Reth, Transport,
};
use roce_sim::pair::{Settings, Side, bring_up_attributes};
use roce_transport::congestion::Congestion;
use roce_transport::{
    Access, Allowed, CqId, Engine, EngineConfig, Identification, Instant, LKey, Memory, OutOfBounds, PdId,
    QpInit, QpOptions, QpType, RKey, Received, RecvWr, RegionAttributes, SendFlags, SendOp, SendWr, Sge,
    Transmit, TxSlot, Verdict, Wc, WindowBinding, WindowType,
};

use super::arrival::Arrival;
use super::outcome::{Answer, Outcome};
use super::why::{self, Situation};

/// The queue pair that the responder takes for its peer: requests do not name it.
const PEER: Qpn = Qpn::new(0x00_0100);
/// The seed of the engine, so that the answer to a frame is always equal.
const SEED: u64 = 1;
/// Address and length of the responder's own memory, which its receive uses.
const BUFFER: u64 = 0x10_0000;
const BUFFER_LEN: u32 = 1 << 17;
/// Memory is registered in pages.
const PAGE: u64 = 4096;
/// Largest length of a message, in bytes.
const LONGEST_MESSAGE: u64 = 1 << 31;
/// Number of replies that are shown.
const MOST_REPLIES: usize = 8;
/// Space for a packet: the largest path MTU with all headers.
const PACKET_LEN: usize = 8192;

/// Memory of zeros, which forgets what is written. Its length costs nothing.
#[derive(Debug)]
struct Zeros(usize);

impl Zeros {
    /// Checks an access to a word of 8 bytes.
    fn word(&self, offset: usize) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, 8, self.0)?;
        if offset.is_multiple_of(8) { Ok(()) } else { Err(OutOfBounds) }
    }
}

impl Memory for Zeros {
    fn len(&self) -> usize {
        self.0
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, out.len(), self.0)?;
        out.fill(0);
        Ok(())
    }

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::check(offset, data.len(), self.0)
    }

    fn compare_swap(&self, offset: usize, _compare: u64, _swap: u64) -> Result<u64, OutOfBounds> {
        self.word(offset).map(|()| 0)
    }

    fn fetch_add(&self, offset: usize, _add: u64) -> Result<u64, OutOfBounds> {
        self.word(offset).map(|()| 0)
    }

    fn store(&self, offset: usize, _bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        self.word(offset)
    }
}

/// An engine with a queue pair for which a packet is made.
pub(super) struct Responder {
    engine: Engine,
    now: Instant,
    pd: PdId,
    cq: CqId,
    /// The responder's own memory.
    region: RegionAttributes,
    /// The queue pair; `None` if the packet is for queue pair 0, which does not exist.
    qpn: Option<Qpn>,
    /// Whether the packet is for a number that the queue pair cannot get, so that the packet keeps it.
    keeps_number: bool,
    mtu: PathMtu,
    /// Whether the first packet of the message was handed over before.
    has_begun: bool,
}

impl Responder {
    /// Creates the engine and the queue pair for a packet.
    pub(super) fn new(arrival: &Arrival) -> Result<Self, Box<dyn Error>> {
        let mut engine = Engine::new(EngineConfig::from_number(SEED));
        let pd = engine.allocate_pd()?;
        let cq = engine.create_cq(16)?;
        let datagram = Datagram::parse(&arrival.bytes, &[]).ok();
        // First, because the keys of others are drawn at random.
        if let Some(datagram) = &datagram {
            register_target(&mut engine, pd, datagram)?;
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let region = engine.register(pd, BUFFER, Arc::new(Zeros(BUFFER_LEN as usize)), access)?;
        let mut responder = Self {
            engine,
            now: Instant::from_nanos(1_000_000),
            pd,
            cq,
            region,
            qpn: None,
            keeps_number: true,
            mtu: path_mtu(datagram.as_ref()),
            has_begun: false,
        };
        let bth = BthView::from_prefix(&arrival.bytes).ok().map(|(bth, _)| *bth);
        let dest_qp = bth.map_or(PEER, |bth| bth.dest_qp());
        if dest_qp == Qpn::new(0) {
            return Ok(responder);
        }
        responder.create(arrival, bth.as_ref(), datagram.as_ref(), dest_qp)?;
        Ok(responder)
    }

    /// Creates the queue pair with a receive, and begins the message that the packet continues.
    fn create(
        &mut self,
        arrival: &Arrival,
        bth: Option<&BthView>,
        datagram: Option<&Datagram<'_>>,
        dest_qp: Qpn,
    ) -> Result<(), Box<dyn Error>> {
        let is_shared_number = dest_qp == Qpn::GSI || dest_qp == Qpn::MULTICAST;
        let opcode = bth.map_or(Opcode::RC_SEND_ONLY, BthView::opcode);
        let qp_type = if is_shared_number { QpType::Ud } else { qp_type(opcode) };
        let continues =
            opcode.info().is_some_and(|info| matches!(info.position, Position::Middle | Position::Last));
        self.has_begun = continues && datagram.is_some() && qp_type != QpType::Ud;
        let psn = bth.map(BthView::psn).unwrap_or_default();
        let expected = if self.has_begun { psn.sub(1) } else { psn };
        let qkey = match datagram.and_then(Datagram::deth) {
            Some(deth) if dest_qp != Qpn::GSI => deth.q_key,
            _ => GSI_Q_KEY,
        };
        let settings = Settings { mtu: self.mtu, psns: [expected.get(), 0], qkey, ..Settings::default() };
        let init = QpInit {
            qp_type,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            capabilities: settings.capabilities,
            signal_all: false,
        };
        let qpn = match dest_qp {
            Qpn::GSI => self.engine.create_gsi_qp(&init)?,
            _ => {
                let congestion = (opcode == Opcode::CNP).then(|| Congestion::parse("dcqcn")).transpose()?;
                let options = QpOptions { congestion: congestion.map(|(it, _)| it), ..QpOptions::default() };
                self.engine.create_qp_with(&init, &options)?
            }
        };
        for (_, attributes) in bring_up_attributes(qp_type, Side::B, arrival.path.reply(), PEER, &settings) {
            self.engine.modify_qp(self.now, qpn, &attributes)?;
        }
        if dest_qp == Qpn::MULTICAST && arrival.path.destination.is_multicast() {
            self.engine.attach_multicast(qpn, arrival.path.destination)?;
        }
        let element = Sge { addr: BUFFER, length: BUFFER_LEN, lkey: self.region.lkey };
        self.engine.post_recv(qpn, &RecvWr { wr_id: 1, elements: &[element] })?;
        self.qpn = Some(qpn);
        self.keeps_number = is_shared_number;
        if let Some(ieth) = datagram.and_then(Datagram::ieth) {
            self.bind_window(qpn, RKey(ieth.rkey))?;
        }
        if let Some(datagram) = datagram.filter(|_| self.has_begun) {
            self.begin(qpn, arrival.path, datagram)?;
        }
        Ok(())
    }

    /// Binds a window under the key that a SEND invalidates.
    fn bind_window(&mut self, qpn: Qpn, window: RKey) -> Result<(), Box<dyn Error>> {
        self.engine.allocate_window_as(window, self.pd, WindowType::Type2)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let binding = WindowBinding { region: self.region.lkey, addr: BUFFER, len: PAGE as usize, access };
        let op = SendOp::BindWindow { window, new_rkey: window, binding };
        let request = SendWr::new(2, op, &[]).with_flags(SendFlags::empty());
        self.engine.post_send(self.now, qpn, &request)?;
        self.transmit();
        Ok(())
    }

    /// Hands over the first packet of the message that a packet continues, with the PSN before that of the
    /// packet.
    fn begin(&mut self, qpn: Qpn, path: Path, datagram: &Datagram<'_>) -> Result<(), Box<dyn Error>> {
        let info = datagram.info();
        let is_write = info.operation == Operation::Write;
        let opcode = if is_write { Opcode::RC_RDMA_WRITE_FIRST } else { Opcode::RC_SEND_FIRST };
        let bth = Bth::new(opcode.with_transport(info.transport), qpn, datagram.bth().psn.sub(1));
        let mut buffer = vec![0; PACKET_LEN];
        let mut writer = DatagramWriter::new(&mut buffer, &bth)?;
        if is_write {
            let rest = datagram.payload_len() + usize::from(info.position == Position::Middle);
            let dma_len = u32::try_from(self.mtu.bytes() + rest)?;
            writer.reth(&Reth { va: BUFFER, rkey: self.region.rkey.0, dma_len })?;
        }
        writer.payload_slot(self.mtu.bytes())?;
        let len = writer.finish_unsealed()?;
        let first = buffer.get(..len).unwrap_or_default();
        let path = path.with_ecn(Ecn::Capable0);
        self.engine.handle(self.now, &Received::whole(path, Identification::Unsealed, first));
        self.transmit();
        Ok(())
    }

    /// Returns the datagrams that the engine sends, each with its path and Identification, and whether there
    /// are more.
    fn transmit(&mut self) -> (Vec<(Transmit, Vec<u8>)>, bool) {
        let mut sent = Vec::new();
        let mut buffer = vec![0; PACKET_LEN];
        while let Some(transmit) =
            self.engine.poll_transmit(self.now, &mut TxSlot::new(&mut buffer), Allowed::All)
        {
            if sent.len() == MOST_REPLIES {
                return (sent, true);
            }
            let bytes = buffer.get(..transmit.len).unwrap_or_default().to_vec();
            sent.push((transmit, bytes));
        }
        (sent, false)
    }

    /// Returns the rate of the queue pair in bits per second, if it has a congestion control.
    fn rate(&self) -> Option<f64> {
        Some(self.engine.congestion(self.now, self.qpn?)?.rate)
    }

    /// Returns the completion of the receive.
    fn completion(&mut self) -> Option<Wc> {
        let mut completions = [Wc::default(); 4];
        let count = self.engine.poll_cq(self.cq, &mut completions).ok()?;
        completions.into_iter().take(count).find(|completion| completion.wr_id == 1)
    }

    /// Hands the packet to the engine and returns the answer.
    pub(super) fn answer(mut self, arrival: &Arrival) -> Answer {
        let bytes = match self.qpn {
            Some(qpn) if !self.keeps_number => arrival.for_queue_pair(qpn),
            _ => arrival.bytes.clone(),
        };
        let rate_before = self.rate();
        let received = Received::whole(arrival.path, arrival.identification, &bytes);
        let verdict = self.engine.handle(self.now, &received);
        let rates = rate_before.zip(self.rate());
        let (sent, has_more) = self.transmit();
        let completion = self.completion();
        let reply = |(transmit, bytes): &(Transmit, Vec<u8>)| {
            arrival.reply(&transmit.path, transmit.identification, bytes)
        };
        let replies: Vec<_> = sent.iter().map(reply).collect();
        let datagram = Datagram::parse(&bytes, &[]).ok();
        let situation = Situation {
            datagram: datagram.as_ref(),
            reason: self.qpn.and_then(|qpn| self.engine.reason(qpn)),
            qp_type: self.qpn.and_then(|qpn| self.engine.qp_type(qpn)),
            completion,
            rates,
            replies: replies.len(),
            has_more,
            has_notification: sent.iter().any(|(_, bytes)| bytes.first() == Some(&Opcode::CNP.0)),
            mtu: self.mtu,
            has_begun: self.has_begun,
            is_unsealed: arrival.identification == Identification::Unsealed,
        };
        let (outcome, counter) = match verdict {
            Verdict::Handled => (Outcome::Handled, None),
            Verdict::Dropped(reason) => (Outcome::Dropped, Some(reason.counter())),
        };
        let (why, rule) = why::of(verdict, &situation);
        Answer { verdict: outcome, counter, why, rule, replies }
    }
}

/// Registers memory under the key and at the address of a request, with all rights.
fn register_target(engine: &mut Engine, pd: PdId, datagram: &Datagram<'_>) -> Result<(), Box<dyn Error>> {
    let target = match (datagram.reth(), datagram.atomic_eth()) {
        (Some(reth), _) => Some((reth.rkey, reth.va, u64::from(reth.dma_len))),
        (None, Some(atomic)) => Some((atomic.rkey, atomic.va, 8)),
        (None, None) => None,
    };
    let Some((rkey, va, len)) = target else { return Ok(()) };
    let start = va & !(PAGE - 1);
    let wanted = (va & (PAGE - 1)) + len.min(LONGEST_MESSAGE);
    // A range that ends behind the last address cannot be registered as a whole.
    let len = wanted.max(PAGE).min((u64::MAX - start).saturating_add(1));
    let memory = Arc::new(Zeros(usize::try_from(len).unwrap_or(usize::MAX)));
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    engine.register_as(LKey(rkey), pd, start, memory, access)?;
    Ok(())
}

/// Returns the type of queue pair that receives an opcode. The upper three bits decide, also for opcodes that
/// are not assigned.
fn qp_type(opcode: Opcode) -> QpType {
    match opcode.info().map(|info: &OpcodeInfo| info.transport) {
        Some(Transport::Uc) => QpType::Uc,
        Some(Transport::Ud) => QpType::Ud,
        Some(_) => QpType::Rc,
        None if opcode == opcode.with_transport(Transport::Uc) => QpType::Uc,
        None if opcode == opcode.with_transport(Transport::Ud) => QpType::Ud,
        None => QpType::Rc,
    }
}

/// Returns the path MTU for which the payload fits, at least 1024 bytes if the payload does not decide it.
fn path_mtu(datagram: Option<&Datagram<'_>>) -> PathMtu {
    let Some(datagram) = datagram else { return PathMtu::Mtu1024 };
    let len = datagram.payload_len();
    if datagram.info().payload == PayloadRule::FullMtu {
        return PathMtu::from_bytes(len).unwrap_or(PathMtu::Mtu1024);
    }
    let fits = |mtu: &PathMtu| *mtu >= PathMtu::Mtu1024 && mtu.bytes() >= len;
    PathMtu::ALL.into_iter().find(fits).unwrap_or(PathMtu::Mtu4096)
}
