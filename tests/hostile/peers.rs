//! A peer that is a bare UDP socket and sends any datagram that the test wants.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use roce::verbs::*;
use roce_packet::mad::{CmMad, GSI_Q_KEY, IpCm, MAD_LEN, TransportService};
use roce_packet::{
    Aeth, Bth, Cnp, DatagramWriter, Deth, Envelope, Msn, NakCode, Opcode, ROCE_UDP_PORT, Reth, Syndrome,
};
use roce_transport::cm::{CmConfig, CmConnect, CmOffer, ConnectionManager};

use crate::common::own_address;

/// Length of the headers below the BTH, in bytes: IPv4 and UDP.
pub(crate) const HEADERS: usize = 28;

pub(crate) struct BarePeer {
    pub(crate) socket: UdpSocket,
    pub(crate) address: IpAddr,
    server: IpAddr,
}

impl BarePeer {
    /// Opens a socket on a loopback address of its own, towards the device at `server`.
    pub(crate) fn new(server: IpAddr) -> Self {
        let address = IpAddr::V4(own_address());
        let socket = UdpSocket::bind(SocketAddr::new(address, ROCE_UDP_PORT)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Self { socket, address, server }
    }

    pub(crate) fn path(&self) -> Path {
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: self.address,
            destination: self.server,
            source_port: ROCE_UDP_PORT,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }

    fn envelope(&self) -> Envelope {
        Envelope::new(&self.path(), 0)
    }

    /// Sends bytes; a full socket buffer loses the datagram. Returns the length with headers.
    pub(crate) fn send(&self, bytes: &[u8]) -> usize {
        let _ = self.socket.send_to(bytes, SocketAddr::new(self.server, ROCE_UDP_PORT));
        bytes.len() + HEADERS
    }

    /// Returns a packet with these headers and this payload.
    fn packet(&self, bth: &Bth, headers: impl FnOnce(&mut DatagramWriter<'_>), payload: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; 5_000];
        let mut writer = DatagramWriter::new(&mut buffer, bth).unwrap();
        headers(&mut writer);
        writer.payload_slot(payload.len()).unwrap().copy_from_slice(payload);
        let len = writer.finish(&self.envelope()).unwrap();
        buffer.truncate(len);
        buffer
    }

    /// Returns a READ request for `len` bytes.
    pub(crate) fn read_request(&self, to: Qpn, psn: u32, region: &MemoryRegion, len: u32) -> Vec<u8> {
        let reth = Reth { va: region.addr(), rkey: region.rkey().0, dma_len: len };
        let bth = Bth::new(Opcode::RC_RDMA_READ_REQUEST, to, Psn::new(psn));
        self.packet(&bth, |writer| writer.reth(&reth).unwrap(), &[])
    }

    /// Returns a WRITE of one packet.
    pub(crate) fn write(&self, to: Qpn, psn: u32, region: &MemoryRegion, payload: &[u8]) -> Vec<u8> {
        let reth = Reth { va: region.addr(), rkey: region.rkey().0, dma_len: payload.len() as u32 };
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::RC_RDMA_WRITE_ONLY, to, Psn::new(psn)) };
        self.packet(&bth, |writer| writer.reth(&reth).unwrap(), payload)
    }

    /// Returns a SEND of one packet.
    pub(crate) fn message(&self, to: Qpn, psn: u32, payload: &[u8]) -> Vec<u8> {
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::RC_SEND_ONLY, to, Psn::new(psn)) };
        self.packet(&bth, |_| {}, payload)
    }

    /// Returns a NAK for this PSN.
    pub(crate) fn nak(&self, to: Qpn, psn: u32) -> Vec<u8> {
        let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequence), msn: Msn::new(0) };
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, to, Psn::new(psn));
        self.packet(&bth, |writer| writer.aeth(&aeth).unwrap(), &[])
    }

    pub(crate) fn cnp(&self, to: Qpn) -> Vec<u8> {
        let mut bytes = [0; Cnp::LEN];
        Cnp { dest_qp: to, p_key: 0xffff }.emit(&self.envelope(), &mut bytes);
        bytes.to_vec()
    }

    /// Returns a packet with a management datagram for queue pair 1.
    pub(crate) fn management(&self, mad: &[u8; MAD_LEN]) -> Vec<u8> {
        let deth = Deth { q_key: GSI_Q_KEY, source_qp: Qpn::GSI };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::new(0));
        self.packet(&bth, |writer| writer.deth(&deth).unwrap(), mad)
    }

    /// Returns a REQ for a port of the TCP port space, from this queue pair number.
    pub(crate) fn req(&self, port: u16, qpn: u32, timing: CmTiming) -> Box<[u8; MAD_LEN]> {
        let mut manager = ConnectionManager::new(CmConfig::new([qpn as u8; 32], u64::from(qpn)));
        let path = self.path();
        let connect = CmConnect {
            path,
            service_id: ServiceId::of_port(PortSpace::Tcp, port),
            transport: TransportService::Rc,
            offer: CmOffer {
                qpn: Qpn::new(qpn),
                starting_psn: Psn::new(1_000),
                responder_resources: 16,
                initiator_depth: 16,
                rnr_retry_count: 7,
                srq: false,
            },
            path_mtu: PathMtu::Mtu1024,
            flow_label: 0,
            retry_count: 7,
            timing,
            ip_cm: Some(IpCm { source_port: 40_000, source: path.source, destination: path.destination }),
            private_data: &[],
        };
        let now = roce_transport::Instant::ZERO;
        manager.connect(now, &connect).unwrap();
        manager.poll_transmit(now).unwrap().mad
    }

    /// Returns the datagrams that arrive within this time, from BTH to ICRC.
    pub(crate) fn receive_for(&self, time: Duration) -> Vec<Vec<u8>> {
        let (end, mut buffer, mut all) = (Instant::now() + time, vec![0; 1 << 16], Vec::new());
        while Instant::now() < end {
            if let Ok(len) = self.socket.recv(&mut buffer) {
                all.push(buffer[..len].to_vec());
            }
        }
        all
    }
}

/// Returns the destination queue pair of a datagram.
pub(crate) fn dest_qp(datagram: &[u8]) -> u32 {
    u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]])
}

/// Returns the management datagram in a packet of queue pair 1.
pub(crate) fn management_of(datagram: &[u8]) -> CmMad {
    CmMad::parse(&datagram[Bth::LEN + Deth::LEN..datagram.len() - 4]).unwrap()
}
