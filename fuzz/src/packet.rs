//! Packets that are built from a few numbers, and the checks of every packet that an engine sends.

use std::net::{IpAddr, Ipv4Addr};

use roce_packet::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Datagram, DatagramWriter, Deth, Encapsulation, Envelope, Feth,
    FlushSelectivity, HeaderSet, Ieth, ImmDt, OpcodeInfo, Path, Rdeth, Reth, Syndrome, Xrceth,
};
use roce_transport::{Allowed, Engine, Identification, Instant, Received, Transmit, TxSlot, Verdict};

/// The address of the engine under test.
pub const OWN_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1));
/// The address of its peer.
pub const PEER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2));
/// A multicast group.
pub const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 1, 1));

/// Returns the path from one address to another.
#[must_use]
pub const fn path(source: IpAddr, destination: IpAddr) -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        source_port: 0xc000,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}

/// The content of every extended header. A packet contains the headers of its opcode.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// RDMA header.
    pub reth: Reth,
    /// Atomic header.
    pub atomic: AtomicEth,
    /// Acknowledge header.
    pub aeth: Aeth,
    /// Atomic acknowledge header.
    pub atomic_ack: AtomicAckEth,
    /// Datagram header.
    pub deth: Deth,
    /// Flush header.
    pub feth: Feth,
    /// Immediate data.
    pub imm: ImmDt,
    /// Invalidate header.
    pub ieth: Ieth,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            reth: Reth { va: 0, rkey: 0, dma_len: 0 },
            atomic: AtomicEth { va: 0, rkey: 0, swap_or_add: 0, compare: 0 },
            aeth: Aeth { syndrome: Syndrome::ACK_UNLIMITED, msn: roce_packet::Msn::new(0) },
            atomic_ack: AtomicAckEth { original: 0 },
            deth: Deth { q_key: 0, source_qp: roce_packet::Qpn::new(0) },
            feth: Feth { global_visibility: true, persistence: false, selectivity: FlushSelectivity::Range },
            imm: ImmDt([1, 2, 3, 4]),
            ieth: Ieth { rkey: 0 },
        }
    }
}

/// Writes a datagram with the headers of its opcode and a correct ICRC.
#[must_use]
pub fn build(path: &Path, bth: &Bth, info: &OpcodeInfo, fields: &Fields, payload: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 128 + payload.len()];
    let len = write(&mut buffer, path, bth, info, fields, payload).expect("the buffer has room");
    buffer.truncate(len);
    buffer
}

fn write(
    buffer: &mut [u8],
    path: &Path,
    bth: &Bth,
    info: &OpcodeInfo,
    fields: &Fields,
    payload: &[u8],
) -> Result<usize, roce_packet::BufferTooSmall> {
    let mut writer = DatagramWriter::new(buffer, bth)?;
    for header in info.headers.iter() {
        match header {
            HeaderSet::RDETH => writer.rdeth(&Rdeth { ee_context: 0 })?,
            HeaderSet::DETH => writer.deth(&fields.deth)?,
            HeaderSet::XRCETH => writer.xrceth(&Xrceth { srq: 0 })?,
            HeaderSet::FETH => writer.feth(&fields.feth)?,
            HeaderSet::RETH => writer.reth(&fields.reth)?,
            HeaderSet::ATOMIC_ETH => writer.atomic_eth(&fields.atomic)?,
            HeaderSet::AETH => writer.aeth(&fields.aeth)?,
            HeaderSet::ATOMIC_ACK_ETH => writer.atomic_ack_eth(&fields.atomic_ack)?,
            HeaderSet::IMMDT => writer.imm_dt(&fields.imm)?,
            HeaderSet::IETH => writer.ieth(&fields.ieth)?,
            other => panic!("a header that the fuzz targets do not know: {other:?}"),
        }
    }
    writer.payload_slot(payload.len())?.copy_from_slice(payload);
    writer.finish(&Envelope::new(path, 0))
}

/// Writes a correct ICRC into a changed datagram.
pub fn repair_icrc(path: &Path, bytes: &mut [u8]) {
    if let Some((covered, icrc)) = bytes.split_last_chunk_mut::<4>() {
        *icrc = roce_packet::icrc::compute(&Envelope::new(path, 0), covered, &[]).to_le_bytes();
    }
}

/// Passes a packet to an engine, in two slices if `split` contains a position. Checks from time to time
/// whether the counters add up.
#[track_caller]
pub fn deliver(engine: &mut Engine, now: Instant, path: Path, bytes: &[u8], split: Option<usize>) -> Verdict {
    let (head, tail) = bytes.split_at(split.unwrap_or(bytes.len()).min(bytes.len()));
    let identification = Identification::Known { identification: 0, dont_fragment: true };
    let verdict = engine.handle(now, &Received::in_pieces(path, identification, [head, tail]));
    // Summing up all drops takes longer than handling a packet.
    if engine.counters().rdma_rx_packets.is_multiple_of(16) {
        check_identity(engine);
    }
    verdict
}

/// Checks that every received packet was handled, or dropped for exactly one reason.
#[track_caller]
pub fn check_identity(engine: &Engine) {
    let counters = engine.counters();
    assert_eq!(
        counters.rdma_rx_packets,
        counters.rx_handled + counters.dropped(),
        "received = handled + dropped: {counters:?}"
    );
}

/// More packets than any engine sends here without new input. An engine that sends more never stops.
const ENDLESS: usize = 20_000;

/// Takes every packet out of an engine and passes it to `look`, after checking that it is well-formed and has
/// a correct ICRC.
pub fn collect(engine: &mut Engine, now: Instant, mut look: impl FnMut(&Transmit, &Datagram<'_>)) {
    let mut buffer = [0; 4096 + 256];
    for _ in 0..ENDLESS {
        let mut slot = TxSlot::new(&mut buffer);
        let Some(transmit) = engine.poll_transmit(now, &mut slot, Allowed::All) else { return };
        let bytes = buffer.get(..transmit.len).expect("a packet lies in its slot");
        let datagram = Datagram::parse(bytes, &[]).expect("an engine sends well-formed packets");
        let envelope = Envelope::new(&transmit.path, transmit.identification);
        assert_eq!(datagram.icrc(), datagram.compute_icrc(&envelope), "the ICRC of a sent packet");
        look(&transmit, &datagram);
    }
    panic!("the engine sent {ENDLESS} packets without any input");
}
