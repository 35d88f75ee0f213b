//! Captures for tests, built packet by packet.
//!
//! The test connection is between queue pair 0x11 of 192.0.2.1 (A) and queue pair 0x22 of 192.0.2.2 (B).
//! [`from_a`] and [`from_b`] describe a packet of it, whose fields a test changes before [`Wire::add`].

use std::net::{IpAddr, Ipv4Addr};

use roce_packet::mad::{
    CmMad, CmMessage, CmPath, CmReq, CmTimeout, CommId, MAD_LEN, ServiceId, TransportService,
};
use roce_packet::outer::Link;
use roce_packet::pause::{PRIORITIES, PauseRequest};
use roce_packet::{
    Aeth, Bth, DatagramWriter, Deth, Encapsulation, FrameHeaders, ImmDt, MacAddr, Msn, NetworkHeader, Opcode,
    Path, PathMtu, PauseFrame, Psn, Qpn, ROCE_UDP_PORT, Reth, Syndrome, VlanTag, icrc,
};

use crate::analysis::{Analysis, Collector};
use crate::record::Packet;
use crate::verdict::{self, Rule, Verdict};

/// Longest frame.
const LONGEST: usize = 9_000;
/// Offset of the IPv4 header, which must have a correct checksum.
const IPV4: usize = 14;
/// Time between two packets, in nanoseconds.
const STEP_NS: u64 = 10_000;

/// A packet that a test describes.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    /// Addresses, ports and traffic class.
    pub(crate) path: Path,
    /// The base transport header.
    pub(crate) bth: Bth,
    // The extended headers.
    pub(crate) reth: Option<Reth>,
    pub(crate) aeth: Option<Aeth>,
    pub(crate) deth: Option<Deth>,
    pub(crate) immediate: Option<[u8; 4]>,
    /// The payload.
    pub(crate) payload: Vec<u8>,
    /// IPv4 Identification; a count of the packets if `None`.
    pub(crate) identification: Option<u16>,
    /// Time since the packet before, in nanoseconds.
    pub(crate) step_ns: u64,
    /// Bytes of the datagram that get another value before the ICRC is computed.
    pub(crate) bytes: Vec<(usize, u8)>,
    /// Whether the last byte of the ICRC is wrong.
    pub(crate) has_wrong_icrc: bool,
    /// Whether DF is clear.
    pub(crate) may_fragment: bool,
    /// Number of bytes in the first fragment, if the packet is fragmented.
    pub(crate) fragment_len: Option<usize>,
    /// Number of captured bytes, if not all.
    pub(crate) snap_len: Option<usize>,
    /// UDP checksum.
    pub(crate) udp_checksum: u16,
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn sketch(source: u8, destination: u8, qpn: u32, opcode: Opcode, psn: u32) -> Sketch {
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(source),
        destination: address(destination),
        source_port: 0xc123,
        traffic_class: 0x02,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    Sketch {
        path,
        bth: Bth::new(opcode, Qpn::new(qpn), Psn::new(psn)),
        reth: None,
        aeth: None,
        deth: None,
        immediate: None,
        payload: Vec::new(),
        identification: None,
        step_ns: STEP_NS,
        bytes: Vec::new(),
        has_wrong_icrc: false,
        may_fragment: false,
        fragment_len: None,
        snap_len: None,
        udp_checksum: 0,
    }
}

/// Describes a packet from A to B.
pub(crate) fn from_a(opcode: Opcode, psn: u32) -> Sketch {
    sketch(1, 2, 0x22, opcode, psn)
}

/// Describes a packet from B to A.
pub(crate) fn from_b(opcode: Opcode, psn: u32) -> Sketch {
    sketch(2, 1, 0x11, opcode, psn)
}

/// Describes an ACK from B to A.
pub(crate) fn ack(psn: u32, msn: u32) -> Sketch {
    from_b(Opcode::RC_ACKNOWLEDGE, psn).aeth(Syndrome::ACK_UNLIMITED, msn)
}

/// Describes a CNP from B to A with the defaults of a ConnectX.
pub(crate) fn cnp() -> Sketch {
    let mut cnp = from_b(Opcode::CNP, 0).payload(16);
    cnp.bth.becn = true;
    cnp.bth.mig_req = false;
    cnp.path.source_port = 0;
    cnp.payload.fill(0);
    cnp.class(48, 2)
}

impl Sketch {
    /// Sets a payload of `len` bytes.
    pub(crate) fn payload(mut self, len: usize) -> Self {
        self.payload = vec![0x5a; len];
        self
    }

    /// Adds a RETH with a length.
    pub(crate) fn reth(mut self, dma_len: u32) -> Self {
        self.reth = Some(Reth { va: 0x1000, rkey: 0x77, dma_len });
        self
    }

    /// Adds an AETH.
    pub(crate) fn aeth(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.aeth = Some(Aeth { syndrome, msn: Msn::new(msn) });
        self
    }

    /// Sets DSCP and ECN.
    pub(crate) fn class(mut self, dscp: u8, ecn: u8) -> Self {
        self.path.traffic_class = dscp << 2 | ecn;
        self
    }

    /// Adds a VLAN tag with a priority.
    pub(crate) fn pcp(mut self, pcp: u8) -> Self {
        self.path.vlan = Some(VlanTag { pcp, dei: false, vid: 100 });
        self
    }

    /// Sets the UDP source port.
    pub(crate) fn port(mut self, port: u16) -> Self {
        self.path.source_port = port;
        self
    }

    /// Lets the packet belong to a connection between two other queue pairs of the two hosts.
    pub(crate) fn for_qpn(mut self, qpn: u32) -> Self {
        self.bth.dest_qp = Qpn::new(qpn);
        self
    }

    /// Makes the ICRC wrong.
    pub(crate) fn wrong_icrc(mut self) -> Self {
        self.has_wrong_icrc = true;
        self
    }

    /// Sets a byte of the datagram; the ICRC is correct for it.
    pub(crate) fn byte(mut self, offset: usize, value: u8) -> Self {
        self.bytes.push((offset, value));
        self
    }

    /// Sets the time since the packet before, in microseconds.
    pub(crate) fn after_us(mut self, microseconds: u64) -> Self {
        self.step_ns = microseconds * 1_000;
        self
    }

    fn write(&self, buffer: &mut [u8]) -> usize {
        let mut writer = DatagramWriter::new(buffer, &self.bth).unwrap();
        if let Some(deth) = &self.deth {
            writer.deth(deth).unwrap();
        }
        if let Some(reth) = &self.reth {
            writer.reth(reth).unwrap();
        }
        if let Some(aeth) = &self.aeth {
            writer.aeth(aeth).unwrap();
        }
        if let Some(data) = self.immediate {
            writer.imm_dt(&ImmDt(data)).unwrap();
        }
        writer.payload_slot(self.payload.len()).unwrap().copy_from_slice(&self.payload);
        writer.finish_unsealed().unwrap()
    }

    fn frame(&self, count: u64) -> Vec<u8> {
        let mut datagram = vec![0; LONGEST];
        let len = self.write(&mut datagram);
        datagram.truncate(len);
        for &(offset, value) in &self.bytes {
            datagram[offset] = value;
        }
        let identification = self.identification.unwrap_or(count as u16);
        let (to, from) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([2, 0, 0, 0, 0, 1]));
        let mut headers = FrameHeaders::new(&self.path, identification, to, from, len).unwrap();
        match &mut headers.network {
            NetworkHeader::Ipv4 { ip, udp } => {
                ip.dont_fragment = !self.may_fragment;
                udp.checksum = self.udp_checksum;
            }
            NetworkHeader::Ipv6 { udp, .. } => udp.checksum = self.udp_checksum,
            NetworkHeader::Grh(_) => {}
        }
        let covered = len - icrc::LEN;
        let sum = icrc::compute(&headers.envelope(), &datagram[..covered], &[]);
        datagram[covered..].copy_from_slice(&sum.to_le_bytes());
        if self.has_wrong_icrc {
            datagram[len - 1] ^= 0x40;
        }
        let mut frame = vec![0; headers.len_bytes()];
        headers.emit(&mut frame).unwrap();
        frame.extend(datagram);
        if let Some(fragment) = self.fragment_len {
            make_fragment(&mut frame, fragment);
        }
        frame
    }
}

/// Turns a frame with IPv4 into the first fragment with `len` bytes after the IPv4 header.
fn make_fragment(frame: &mut Vec<u8>, len: usize) {
    let header = 20;
    frame.truncate(IPV4 + header + len);
    frame[IPV4 + 2..IPV4 + 4].copy_from_slice(&((header + len) as u16).to_be_bytes());
    // MF is set, DF is clear.
    frame[IPV4 + 6..IPV4 + 8].copy_from_slice(&0x2000_u16.to_be_bytes());
    frame[IPV4 + 10..IPV4 + 12].fill(0);
    let words = frame[IPV4..IPV4 + header].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    frame[IPV4 + 10..IPV4 + 12].copy_from_slice(&(!folded as u16).to_be_bytes());
}

/// The captured wire.
pub(crate) struct Wire {
    collector: Collector,
    number: u64,
    now_ns: u64,
    interface: u16,
    has_times: bool,
}

impl Wire {
    pub(crate) fn new() -> Self {
        Self {
            collector: Collector::new(ROCE_UDP_PORT),
            number: 0,
            now_ns: 1_000_000,
            interface: 0,
            has_times: true,
        }
    }

    /// Makes the capture one without times.
    pub(crate) fn without_times(mut self) -> Self {
        self.has_times = false;
        self
    }

    /// Sets the rate of the links for the analysis.
    pub(crate) fn line_rate(mut self, bits_per_second: u64) -> Self {
        self.collector = self.collector.with_line_rate(bits_per_second);
        self
    }

    /// Captures a packet.
    pub(crate) fn add(&mut self, sketch: Sketch) -> &mut Self {
        self.now_ns += sketch.step_ns;
        let frame = sketch.frame(self.number + 1);
        let captured = sketch.snap_len.unwrap_or(frame.len()).min(frame.len());
        self.add_bytes(&frame[..captured], frame.len())
    }

    /// Captures packets.
    pub(crate) fn add_all(&mut self, sketches: impl IntoIterator<Item = Sketch>) -> &mut Self {
        for sketch in sketches {
            self.add(sketch);
        }
        self
    }

    /// Captures a packet again at another interface, 5 µs later and with changes.
    pub(crate) fn add_twice(&mut self, sketch: Sketch, change: impl FnOnce(Sketch) -> Sketch) -> &mut Self {
        let sketch = Sketch { identification: Some(self.number as u16 + 1), ..sketch };
        self.add(sketch.clone());
        self.interface = 1;
        let mut again = change(sketch);
        again.step_ns = 5_000;
        self.add(again);
        self.interface = 0;
        self
    }

    /// Captures a pause frame. `port` is the last byte of its sender's address.
    pub(crate) fn pause(&mut self, port: u8, request: PauseRequest, after_us: u64) -> &mut Self {
        self.now_ns += after_us * 1_000;
        let mut frame = [0; PauseFrame::LEN];
        PauseFrame { source: MacAddr([2, 0, 0, 0, 1, port]), request }.emit(&mut frame);
        self.add_bytes(&frame, frame.len())
    }

    /// Captures bytes now.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8], wire_len: usize) -> &mut Self {
        self.number += 1;
        self.collector.add(&Packet {
            capture: 0,
            interface: self.interface,
            number: self.number,
            time_ns: self.has_times.then_some(self.now_ns),
            link: Link::Ethernet,
            wire_len,
            is_dropped: false,
            bytes,
        });
        self
    }

    pub(crate) fn analyze(&self) -> Analysis {
        self.collector.clone().analyze()
    }
}

/// Asks for a pause of one priority.
pub(crate) fn pause_of(priority: usize, quanta: u16) -> PauseRequest {
    let mut all = [None; PRIORITIES];
    all[priority] = Some(quanta);
    PauseRequest::PerPriority(all)
}

/// Describes a WRITE from A of First, Middle and Last packets with these payloads.
pub(crate) fn write(psn: u32, payloads: &[usize]) -> Vec<Sketch> {
    let last = payloads.len() - 1;
    let total: usize = payloads.iter().sum();
    let packets = (psn..).zip(payloads).enumerate().map(|(index, (psn, len))| {
        let (opcode, is_first) = match index {
            0 => (Opcode::RC_RDMA_WRITE_FIRST, true),
            index if index == last => (Opcode::RC_RDMA_WRITE_LAST, false),
            _ => (Opcode::RC_RDMA_WRITE_MIDDLE, false),
        };
        let packet = from_a(opcode, psn).payload(*len);
        if is_first { packet.reth(total as u32) } else { packet }
    });
    packets.collect()
}

/// Describes a SEND from A in one packet.
pub(crate) fn send(psn: u32, len: usize) -> Sketch {
    from_a(Opcode::RC_SEND_ONLY, psn).payload(len)
}

/// Describes a UD datagram from A to queue pair 0x33 of B.
pub(crate) fn datagram(psn: u32, len: usize) -> Sketch {
    let deth = Deth { q_key: 1, source_qp: Qpn::new(0x11) };
    let sketch = from_a(Opcode::UD_SEND_ONLY, psn).for_qpn(0x33).payload(len);
    Sketch { deth: Some(deth), ..sketch }
}

/// Describes a REQ of connection management from A for its queue pair 0x11.
pub(crate) fn request(path_mtu: PathMtu) -> Sketch {
    let timeout = CmTimeout::new(20);
    let message = CmMessage::Req(CmReq {
        local_comm_id: CommId(1),
        vendor_id: 0,
        service_id: ServiceId(7),
        local_ca_guid: 1,
        local_q_key: 0,
        local_qpn: Qpn::new(0x11),
        responder_resources: 1,
        local_eecn: 0,
        initiator_depth: 1,
        remote_eecn: 0,
        remote_cm_response_timeout: timeout,
        transport: TransportService::Rc,
        flow_control: true,
        starting_psn: Psn::new(0),
        local_cm_response_timeout: timeout,
        retry_count: 7,
        p_key: 0xffff,
        path_mtu_code: path_mtu.code(),
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary: CmPath::default(),
        alternate: CmPath::default(),
        private_data: [0; CmReq::PRIVATE_DATA],
    });
    let mut mad = [0; MAD_LEN];
    CmMad { transaction_id: 1, status: 0, class_specific: 0, attribute_modifier: 0, message }.emit(&mut mad);
    let deth = Deth { q_key: 1, source_qp: Qpn::GSI };
    let sketch = from_a(Opcode::UD_SEND_ONLY, 0).for_qpn(Qpn::GSI.get());
    Sketch { deth: Some(deth), payload: mad.to_vec(), ..sketch }
}

/// Returns the only verdict of a rule about the only connection of a capture.
#[track_caller]
pub(crate) fn judge(wire: &Wire, rule: &Rule) -> Verdict {
    let analysis = wire.analyze();
    let [connection] = &analysis.connections[..] else {
        panic!("{} connections", analysis.connections.len())
    };
    only(verdict::of_connection(&analysis, connection), rule)
}

/// Returns the only verdict of a rule about a capture as a whole.
#[track_caller]
pub(crate) fn judge_capture(wire: &Wire, rule: &Rule) -> Verdict {
    only(verdict::of_capture(&wire.analyze()), rule)
}

#[track_caller]
fn only(mut verdicts: Vec<Verdict>, rule: &Rule) -> Verdict {
    verdicts.retain(|verdict| verdict.rule == rule);
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    verdicts.remove(0)
}

/// Asserts the result of a verdict, a part of its summary, and the packets that it names.
#[track_caller]
pub(crate) fn expect(verdict: &Verdict, outcome: verdict::Outcome, text: &str, packets: &[u64]) {
    let numbers: Vec<u64> = verdict.packets.iter().map(|place| place.number).collect();
    assert_eq!(verdict.outcome, outcome, "{}", verdict.summary);
    assert!(verdict.summary.contains(text), "{}", verdict.summary);
    assert_eq!(numbers, packets, "{}", verdict.summary);
}

/// Returns a figure of a verdict.
#[track_caller]
pub(crate) fn figure(verdict: &Verdict, name: &str) -> f64 {
    let found = verdict.figures.iter().find(|figure| figure.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", verdict.figures)).value
}
