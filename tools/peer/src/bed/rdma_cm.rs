//! The handshake of rdma_cm, as the active side: asks a listener of librdmacm or of the kernel for a queue
//! pair, as `rdma_connect` does.
//!
//! The messages are datagrams for queue pair 1. This module writes and reads them, without a device and a
//! clock.

use std::net::SocketAddr;

use roce_packet::mad::{
    CmDrep, CmDreq, CmMad, CmMessage, CmPath, CmRep, CmReq, CmRtu, CmTimeout, CommId, GSI_Q_KEY, IpCm,
    MAD_LEN, PortSpace, ServiceId, TransportService,
};
use roce_packet::{
    Bth, Datagram, DatagramWriter, Deth, Encapsulation, Envelope, Gid, Opcode, Path, Psn, Qpn,
};
use roce_transport::QpType;

use super::ends::{OwnEnd, Parameters};
use crate::run::{Refusal, Settings};

/// The source of a listener that offers memory, in C.
pub const RDMA_CM_TARGET: &str = include_str!("../../agent/rdma_cm_target.c");

/// The beginning of the private data with which a listener offers memory: address (64 bits), key and length
/// (32 bits each) follow in network byte order. `agent/rdma_cm_target.c` does it.
const OFFERS_MEMORY: &[u8; 8] = b"memory 1";
/// Maximum number of bytes of a message with its headers.
const MOST_BYTES: usize = 512;
/// The LID of ports without LIDs.
const PERMISSIVE_LID: u16 = 0xffff;
/// The only partition key.
const P_KEY: u16 = 0xffff;
/// Time within which both sides answer a message: 4.3 s.
const RESPONSE_TIMEOUT: CmTimeout = CmTimeout::new(20);
/// Largest number of times that a listener repeats its answer.
const RETRIES: u8 = 15;
/// The RNR timer of scripts that name none.
const RNR_TIMER: u8 = 12;
/// The UDP source port of the messages.
const SOURCE_PORT: u16 = 0xc001;

/// A connection by rdma_cm.
#[derive(Debug)]
pub(super) struct Connection {
    listener: SocketAddr,
    own: OwnEnd,
    request: CmReq,
    /// The number that the answers to the request repeat.
    transaction: u64,
    /// The listener's ID of the connection, and its queue pair, once it has accepted.
    accepted: Option<(CommId, Qpn)>,
    /// The PSN of the next message.
    psn: Psn,
}

/// The content of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The listener accepts. These are its end and the PSN that the script must begin with.
    Accepted(Parameters, u32),
    /// The listener rejects the connection, for this reason.
    Rejected(String),
    /// The other side has confirmed the end of the connection.
    Ended,
}

impl Connection {
    /// Begins a connection. `id` distinguishes it from earlier ones.
    ///
    /// # Errors
    ///
    /// rdma_cm cannot connect a queue pair as the script wants it.
    pub(super) fn new(
        listener: SocketAddr,
        own: OwnEnd,
        settings: &Settings,
        id: u32,
    ) -> Result<Self, Refusal> {
        if settings.qp_type != QpType::Rc {
            return Err(Refusal::Unable("rdma_cm connects only RC queue pairs here".to_owned()));
        }
        if settings.rnr_timer != RNR_TIMER {
            return Err(Refusal::Unable("rdma_cm cannot choose the RNR timer of this NIC".to_owned()));
        }
        let gids = [own.address, listener.ip()].map(Gid::from_ip);
        let [local_gid, remote_gid] = gids;
        let primary = CmPath {
            local_lid: PERMISSIVE_LID,
            remote_lid: PERMISSIVE_LID,
            local_gid,
            remote_gid,
            traffic_class: 2,
            hop_limit: 64,
            local_ack_timeout: CmTimeout::new(settings.timeout),
            ..CmPath::default()
        };
        let header = IpCm { source_port: SOURCE_PORT, source: own.address, destination: listener.ip() };
        let mut private_data = [0; CmReq::PRIVATE_DATA];
        if let Some(room) = private_data.first_chunk_mut() {
            header.emit(room);
        }
        let request = CmReq {
            local_comm_id: CommId(id),
            vendor_id: 0,
            service_id: ServiceId::of_port(PortSpace::Tcp, listener.port()),
            local_ca_guid: u64::from(id),
            local_q_key: 0,
            local_qpn: own.qpn,
            responder_resources: settings.reads,
            local_eecn: 0,
            initiator_depth: settings.reads,
            remote_eecn: 0,
            remote_cm_response_timeout: RESPONSE_TIMEOUT,
            transport: TransportService::Rc,
            flow_control: false,
            // The PSN that this side expects first, so that the NIC begins as the script says.
            starting_psn: Psn::new(settings.nic_psn),
            local_cm_response_timeout: RESPONSE_TIMEOUT,
            retry_count: settings.retry,
            p_key: P_KEY,
            path_mtu_code: settings.mtu.code(),
            rdc_exists: false,
            rnr_retry_count: settings.rnr_retry,
            max_cm_retries: RETRIES,
            srq: false,
            extended_transport: 0,
            primary,
            alternate: CmPath::default(),
            private_data,
        };
        Ok(Self { listener, own, request, transaction: u64::from(id), accepted: None, psn: Psn::new(0) })
    }

    pub(super) const fn request(&self) -> CmMessage {
        CmMessage::Req(self.request)
    }

    /// Returns the path of the messages.
    pub(super) const fn path(&self) -> Path {
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: self.own.address,
            destination: self.listener.ip(),
            source_port: SOURCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }

    /// Returns the request to end the connection, if it exists.
    pub(super) fn end(&self) -> Option<CmMessage> {
        let (remote_comm_id, remote_qpn) = self.accepted?;
        let local_comm_id = self.request.local_comm_id;
        let private_data = [0; CmDreq::PRIVATE_DATA];
        Some(CmMessage::Dreq(CmDreq { local_comm_id, remote_comm_id, remote_qpn, private_data }))
    }

    /// Returns the bytes of a message from BTH to ICRC.
    pub(super) fn datagram(&mut self, message: CmMessage, path: &Path) -> Option<Vec<u8>> {
        let mut mad = [0; MAD_LEN];
        CmMad::new(self.transaction, message).emit(&mut mad);
        let mut bytes = vec![0; MOST_BYTES];
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, self.psn);
        self.psn = self.psn.add(1);
        let mut writer = DatagramWriter::new(&mut bytes, &bth).ok()?;
        writer.deth(&Deth { q_key: GSI_Q_KEY, source_qp: Qpn::GSI }).ok()?;
        writer.payload_slot(MAD_LEN).ok()?.copy_from_slice(&mad);
        let len = writer.finish(&Envelope::new(path, 0)).ok()?;
        bytes.truncate(len);
        Some(bytes)
    }

    /// Takes a packet for queue pair 1 of this side. Returns the answer to send, and what the packet says.
    pub(super) fn handle(&mut self, bytes: &[u8]) -> (Option<CmMessage>, Option<Outcome>) {
        let datagram = Datagram::parse(bytes, &[]).ok();
        let mad = datagram.and_then(|datagram| CmMad::parse(datagram.payload().0).ok());
        let own_id = self.request.local_comm_id;
        match mad.map(|mad| (mad.message, mad.transaction_id)) {
            Some((CmMessage::Rep(rep), _)) if rep.remote_comm_id == own_id => self.accept(&rep),
            Some((CmMessage::Rej(rej), _)) if rej.remote_comm_id == own_id && self.accepted.is_none() => {
                let why = format!("it rejects the connection, reason {}", rej.reason);
                (None, Some(Outcome::Rejected(why)))
            }
            Some((CmMessage::Dreq(dreq), transaction)) if dreq.remote_comm_id == own_id => {
                self.accepted = None;
                self.transaction = transaction;
                let drep = CmDrep {
                    local_comm_id: own_id,
                    remote_comm_id: dreq.local_comm_id,
                    private_data: [0; CmDrep::PRIVATE_DATA],
                };
                (Some(CmMessage::Drep(drep)), None)
            }
            Some((CmMessage::Drep(drep), _)) if drep.remote_comm_id == own_id => {
                self.accepted = None;
                (None, Some(Outcome::Ended))
            }
            _ => (None, None),
        }
    }

    fn accept(&mut self, rep: &CmRep) -> (Option<CmMessage>, Option<Outcome>) {
        let rtu = CmMessage::Rtu(CmRtu {
            local_comm_id: self.request.local_comm_id,
            remote_comm_id: rep.local_comm_id,
            private_data: [0; CmRtu::PRIVATE_DATA],
        });
        if self.accepted.replace((rep.local_comm_id, rep.local_qpn)).is_some() {
            // The listener repeats its answer because the RTU was lost.
            return (Some(rtu), None);
        }
        let parameters = Parameters {
            address: self.listener.ip(),
            qpn: rep.local_qpn,
            psn: Some(self.request.starting_psn.get()),
            memory: offered_memory(&rep.private_data),
        };
        (Some(rtu), Some(Outcome::Accepted(parameters, rep.starting_psn.get())))
    }
}

/// Returns the memory that private data offers: address, key and length.
fn offered_memory(data: &[u8]) -> Option<(u64, u32, usize)> {
    let rest = data.strip_prefix(OFFERS_MEMORY)?;
    let (va, rest) = rest.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let (len, _) = rest.split_first_chunk()?;
    let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
    Some((u64::from_be_bytes(*va), u32::from_be_bytes(*rkey), len))
}

#[cfg(test)]
mod tests {
    use roce_packet::PathMtu;
    use roce_packet::mad::{CmRej, RejReason};
    use roce_transport::{Access, QpState};

    use super::*;

    fn settings() -> Settings {
        Settings {
            qp_type: QpType::Rc,
            mtu: PathMtu::Mtu1024,
            psn: 100,
            nic_psn: 500,
            rights: Access::empty(),
            state: QpState::Rts,
            timeout: 18,
            retry: 7,
            rnr_retry: 7,
            rnr_timer: 12,
            reads: 16,
            qkey: 0,
            congestion: None,
        }
    }

    fn connection() -> Connection {
        let own = OwnEnd { address: [198, 18, 0, 1].into(), qpn: Qpn::new(0xf01) };
        let listener = SocketAddr::from(([198, 18, 0, 2], 7174));
        Connection::new(listener, own, &settings(), 0x1234).unwrap()
    }

    /// Returns a message of the listener.
    fn from_listener(message: CmMessage) -> Vec<u8> {
        let mut other = connection();
        let path = other.path();
        other.datagram(message, &path).unwrap()
    }

    fn rep(private_data: &[u8]) -> CmRep {
        CmRep {
            local_comm_id: CommId(9),
            remote_comm_id: CommId(0x1234),
            local_q_key: 0,
            local_qpn: Qpn::new(0x22),
            vendor_id: 0,
            local_eecn: 0,
            starting_psn: Psn::new(7),
            responder_resources: 16,
            initiator_depth: 16,
            target_ack_delay: CmTimeout::new(0),
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            local_ca_guid: 0,
            private_data: roce_packet::mad::private_data(private_data),
        }
    }

    #[test]
    fn the_request_names_service_addresses_and_the_psn_of_the_nic() {
        let mut connection = connection();
        let (request, path) = (connection.request(), connection.path());
        let bytes = connection.datagram(request, &path).unwrap();
        let datagram = Datagram::parse(&bytes, &[]).unwrap();
        assert_eq!(datagram.icrc(), datagram.compute_icrc(&Envelope::new(&path, 0)));
        let CmMessage::Req(req) = CmMad::parse(datagram.payload().0).unwrap().message else {
            panic!("a REQ")
        };
        assert_eq!(req.service_id.port(), Some((PortSpace::Tcp, 7174)));
        assert_eq!((req.starting_psn, req.local_qpn), (Psn::new(500), Qpn::new(0xf01)));
        let (header, _) = IpCm::parse(&req.private_data).unwrap();
        assert_eq!((header.source, header.destination), ([198, 18, 0, 1].into(), [198, 18, 0, 2].into()));
    }

    #[test]
    fn an_accepted_connection_has_the_end_and_the_memory_of_the_nic() {
        let data =
            [&OFFERS_MEMORY[..], &0x7000_u64.to_be_bytes(), &5_u32.to_be_bytes(), &4096_u32.to_be_bytes()];
        let mut connection = connection();
        let message = from_listener(CmMessage::Rep(rep(&data.concat())));
        let (answer, outcome) = connection.handle(&message);
        assert!(matches!(answer, Some(CmMessage::Rtu(rtu)) if rtu.remote_comm_id == CommId(9)));
        let memory = Some((0x7000, 5, 4096));
        let parameters =
            Parameters { address: [198, 18, 0, 2].into(), qpn: Qpn::new(0x22), psn: Some(500), memory };
        assert_eq!(outcome, Some(Outcome::Accepted(parameters, 7)));
        // Again, because the RTU was lost.
        let (answer, outcome) = connection.handle(&message);
        assert!(matches!((answer, outcome), (Some(CmMessage::Rtu(_)), None)));
        assert!(matches!(connection.end(), Some(CmMessage::Dreq(dreq)) if dreq.remote_qpn == Qpn::new(0x22)));
        let other = CmRep { remote_comm_id: CommId(1), ..rep(&[]) };
        assert_eq!(connection.handle(&from_listener(CmMessage::Rep(other))), (None, None));
    }

    #[test]
    fn a_rejected_connection_says_why_and_private_data_of_others_is_no_memory() {
        let rej = CmRej {
            local_comm_id: CommId(9),
            remote_comm_id: CommId(0x1234),
            rejected: roce_packet::mad::CmMessageKind::Req,
            info_length: 0,
            reason: RejReason::INVALID_SERVICE_ID,
            info: [0; CmRej::INFO],
            private_data: [0; CmRej::PRIVATE_DATA],
        };
        let (answer, outcome) = connection().handle(&from_listener(CmMessage::Rej(rej)));
        assert_eq!(answer, None);
        assert!(matches!(outcome, Some(Outcome::Rejected(why)) if why.contains("no listener")));
        for data in [&b""[..], b"memory 1", b"memory 2aaaaaaaabbbbcccc"] {
            assert_eq!(offered_memory(data), None, "{data:?}");
        }
    }
}
