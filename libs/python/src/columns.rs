//! The columns of a table of packets.

use std::borrow::Cow;
use std::net::IpAddr;

use pyo3::PyResult;
use roce_analysis::walk::{Icrc, Packet, Part, Protocol, Walk};
use roce_capture::CapturedPacket;
use roce_packet::fields;
use roce_packet::{
    AethView, AtomicAckEthView, AtomicEthView, BthView, DethView, FethView, IethView, ImmDtView, MacAddr,
    NetworkView, ParseError, RethView, XrcethView,
};

use crate::cells::{Answer, Nanoseconds, OpcodeName, Rows, rows};
use crate::table::Table;

rows! {
    /// The values of one packet. Values that a packet does not have are missing.
    struct Row {
        /// Number of the packet in the file, from 1.
        number: u64,
        time: Nanoseconds,
        /// Bytes on the wire.
        length: u32,
        captured_length: u32,
        interface: u32,
        protocol: Cow<'static, str>,
        source_mac: MacAddr,
        destination_mac: MacAddr,
        vlan: u16,
        priority: u8,
        source: IpAddr,
        destination: IpAddr,
        dscp: u8,
        ecn: u8,
        hop_limit: u8,
        identification: u16,
        source_port: u16,
        destination_port: u16,
        opcode: u8,
        operation: OpcodeName,
        solicited: bool,
        mig_req: bool,
        pad_count: u8,
        p_key: u16,
        fecn: bool,
        becn: bool,
        dest_qp: u32,
        ack_req: bool,
        psn: u32,
        /// First byte of the AETH.
        syndrome: u8,
        /// Meaning of the syndrome.
        answer: Answer,
        msn: u32,
        va: u64,
        r_key: u32,
        dma_length: u32,
        swap_or_add: u64,
        compare: u64,
        /// Value before an atomic operation.
        original: u64,
        immediate: u32,
        invalidated_r_key: u32,
        q_key: u32,
        source_qp: u32,
        xrc_srq: u32,
        flush_selectivity: u8,
        /// Message of connection management.
        cm: Cow<'static, str>,
        payload_length: u32,
        /// The ICRC as a number of four bytes in the order of the wire.
        icrc: u32,
        icrc_computed: u32,
        /// Missing if the ICRC was not checked.
        icrc_ok: bool,
        error: String,
    }
}

/// The columns of the packets so far.
pub(crate) struct Columns(Rows<Row>);

impl Columns {
    pub(crate) fn new() -> Self {
        Self(Rows::new())
    }

    /// Returns the table.
    pub(crate) fn finish(self) -> PyResult<Table> {
        self.0.finish()
    }

    /// Adds a row. A packet whose link type cannot be decoded has no `walk`.
    pub(crate) fn push(&mut self, packet: &CapturedPacket<'_>, walk: Option<&Walk<'_>>) {
        let mut row = Row {
            number: Some(packet.number),
            time: packet.time_ns.map(Nanoseconds),
            length: Some(packet.original_len),
            captured_length: u32::try_from(packet.bytes.len()).ok(),
            interface: packet.interface,
            ..Row::default()
        };
        if let Some(walk) = walk {
            row.fill(walk);
        }
        self.0.push(row);
    }
}

impl Row {
    fn fill(&mut self, walk: &Walk<'_>) {
        self.protocol = Some(match &walk.protocol {
            Protocol::Roce(_) => walk.roce_name().into(),
            Protocol::Pause => "pause".into(),
            Protocol::Other(name, _) => Cow::Owned(name.clone()),
        });
        let is_other = matches!(walk.protocol, Protocol::Other(..));
        self.error = walk.error.filter(|_| !is_other).map(|error: ParseError| error.to_string());
        self.fill_outer(walk);
        let Some(packet) = walk.packet() else { return };
        self.fill_transport(packet);
        for part in walk.parts.iter().filter(|part| !part.is_outer) {
            // A header whose end is missing has no values.
            _ = self.fill_part(part, walk.part_bytes(part));
        }
        self.cm = walk.cm.map(|header| header.name.trim_start_matches("CM ").into());
    }

    /// Adds the innermost headers in front of the BTH.
    fn fill_outer(&mut self, walk: &Walk<'_>) {
        let outer = &walk.outer;
        self.source_mac = outer.ethernet.map(|ethernet| ethernet.source());
        self.destination_mac = outer.ethernet.map(|ethernet| ethernet.destination());
        self.vlan = outer.vlan.map(|tag| tag.vid);
        self.priority = outer.vlan.map(|tag| tag.pcp);
        let addresses = outer.addresses();
        self.source = addresses.map(|(source, _)| source);
        self.destination = addresses.map(|(_, destination)| destination);
        let traffic_class = outer.traffic_class();
        self.dscp = traffic_class.map(|class| class >> 2);
        self.ecn = traffic_class.map(|class| class & 0b11);
        match outer.network {
            Some(NetworkView::Ipv4(ip)) => {
                self.hop_limit = Some(ip.ttl());
                self.identification = Some(ip.identification());
            }
            Some(NetworkView::Ipv6(ip)) => self.hop_limit = Some(ip.hop_limit()),
            Some(NetworkView::Grh(grh)) => self.hop_limit = Some(grh.hop_limit()),
            None => {}
        }
        self.source_port = outer.udp.map(|udp| udp.source_port());
        self.destination_port = outer.udp.map(|udp| udp.destination_port());
    }

    fn fill_transport(&mut self, packet: &Packet<'_>) {
        let bth: &BthView = packet.bth;
        self.opcode = Some(bth.opcode().0);
        self.operation = packet.info.map(|info| OpcodeName(info.opcode.0));
        self.solicited = Some(bth.solicited());
        self.mig_req = Some(bth.mig_req());
        self.pad_count = Some(bth.pad_count());
        self.p_key = Some(bth.p_key());
        self.fecn = Some(bth.fecn());
        self.becn = Some(bth.becn());
        self.dest_qp = Some(bth.dest_qp().get());
        self.ack_req = Some(bth.ack_req());
        self.psn = Some(bth.psn().get());
        self.payload_length = packet.payload_len.and_then(|len| u32::try_from(len).ok());
        if let Icrc::Checked(check, _) = packet.icrc {
            self.icrc = Some(check.found.swap_bytes());
            self.icrc_computed = Some(check.computed.swap_bytes());
            self.icrc_ok = Some(check.is_good());
        }
    }

    /// Adds an extended header.
    fn fill_part(&mut self, part: &Part, bytes: &[u8]) -> Result<(), ParseError> {
        let is = |header| std::ptr::eq(part.header, header);
        if is(&fields::AETH) {
            let (aeth, _) = AethView::from_prefix(bytes)?;
            self.syndrome = Some(aeth.syndrome());
            self.answer = Some(Answer(aeth.syndrome()));
            self.msn = Some(aeth.msn().get());
        } else if is(&fields::RETH) {
            let (reth, _) = RethView::from_prefix(bytes)?;
            self.va = Some(reth.va());
            self.r_key = Some(reth.rkey());
            self.dma_length = Some(reth.dma_len());
        } else if is(&fields::ATOMIC_ETH) {
            let (atomic, _) = AtomicEthView::from_prefix(bytes)?;
            self.va = Some(atomic.va());
            self.r_key = Some(atomic.rkey());
            self.swap_or_add = Some(atomic.swap_or_add());
            self.compare = Some(atomic.compare());
        } else if is(&fields::ATOMIC_ACK_ETH) {
            self.original = Some(AtomicAckEthView::from_prefix(bytes)?.0.original());
        } else if is(&fields::IMMDT) {
            self.immediate = Some(u32::from_be_bytes(ImmDtView::from_prefix(bytes)?.0.data()));
        } else if is(&fields::IETH) {
            self.invalidated_r_key = Some(IethView::from_prefix(bytes)?.0.rkey());
        } else if is(&fields::DETH) {
            let (deth, _) = DethView::from_prefix(bytes)?;
            self.q_key = Some(deth.q_key());
            self.source_qp = Some(deth.source_qp().get());
        } else if is(&fields::XRCETH) {
            self.xrc_srq = Some(XrcethView::from_prefix(bytes)?.0.srq());
        } else if is(&fields::FETH) {
            self.flush_selectivity = Some(FethView::from_prefix(bytes)?.0.selectivity());
        }
        Ok(())
    }
}
