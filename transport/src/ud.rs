//! Unreliable datagram: one packet per message, to any queue pair (IBTA 9.8.3).

use core::net::IpAddr;

use roce_packet::{
    Datagram, DatagramWriter, Deth, Encapsulation, Gid, Grh, IP_PROTOCOL_UDP, Ipv4Header, Ipv6Header, Path,
    Psn, Transport,
};

use crate::completion::{Wc, WcFlags, WcOpcode, WcStatus};
use crate::counters::count;
use crate::inbound::check_length;
use crate::io::{Identification, Received, TxSlot};
use crate::qp::{Failure, QpCapabilities, QpCore};
use crate::segment::{KnownPath, Sealed, segment, write_headers};
use crate::shared::Shared;
use crate::sq::SendQueue;
use crate::verdict::{DropReason, Verdict};
use crate::wr::SendFlags;

/// Length of the area before the message in each UD receive.
pub const GRH_AREA: usize = 40;

/// A Q_Key with this bit means the sender's own Q_Key (IBTA 10.2.5).
const PRIVILEGED_QKEY: u32 = 0x8000_0000;

/// The requester of UD.
#[derive(Debug)]
pub(crate) struct UdRequester {
    pub(crate) sq: SendQueue,
    psn: Psn,
}

impl UdRequester {
    pub(crate) fn new(capabilities: &QpCapabilities) -> Self {
        Self { sq: SendQueue::with_destinations(capabilities), psn: Psn::new(0) }
    }

    pub(crate) fn start(&mut self, sq_psn: Psn) {
        self.psn = sq_psn;
    }

    pub(crate) fn next_psn(&self) -> Psn {
        self.psn
    }

    pub(crate) fn transmit(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        slot: &mut TxSlot<'_>,
    ) -> Option<Sealed> {
        if !core.attr.state.starts_requests() {
            return None;
        }
        let position = self.sq.head();
        let wqe = *self.sq.get(position)?;
        let to = self.sq.destination(position)?;
        let segment = segment(Transport::Ud, &wqe, 0, core.mtu())?;
        let mut bth = core.bth(shared, segment.opcode, self.psn);
        bth.dest_qp = to.remote_qpn;
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        // UD is not acknowledged. Soft-RoCE sets the bit on the last packet of a message of any transport.
        bth.ack_req = true;
        let mut writer = DatagramWriter::new(slot.buffer, &bth).ok()?;
        let q_key = if to.remote_qkey & PRIVILEGED_QKEY != 0 { core.attr.qkey } else { to.remote_qkey };
        writer.deth(&Deth { q_key, source_qp: core.number }).ok()?;
        write_headers(&mut writer, &wqe, 0, segment.is_end)?;
        let target = writer.payload_slot(wqe.len as usize).ok()?;
        if let Err(error) = self.sq.gather(&shared.keys, core.pd, position, 0, target) {
            let rule = self.sq.denied(&shared.keys, core.pd, position, error);
            self.sq.pop();
            core.fail_send(shared, &wqe, WcStatus::LocalProtectionError, rule);
            core.fail(Failure::SendQueue);
            return None;
        }
        let outgoing = match core.outgoing {
            Some(known) if *known.path() == to.path => known,
            _ => KnownPath::new(to.path),
        };
        let sealed = outgoing.seal(writer, bth.dest_qp, slot.batch)?;
        core.outgoing = Some(outgoing);
        self.psn = self.psn.next();
        self.sq.pop();
        core.complete_send(shared, &wqe);
        Some(sealed)
    }
}

/// The responder of UD. It does not check PSNs and has no state.
#[derive(Debug)]
pub(crate) struct UdResponder;

impl UdResponder {
    pub(crate) fn handle_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        received: &Received<'_>,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        let Some(deth) = datagram.deth() else { return Verdict::Dropped(DropReason::Malformed) };
        if deth.q_key != core.attr.qkey {
            return Verdict::Dropped(DropReason::BadQkey);
        }
        if check_length(datagram, core.mtu()).is_err() {
            return Verdict::Dropped(DropReason::BadLength);
        }
        let needed = datagram.payload_len() + GRH_AREA;
        match core.next_receive_capacity(shared) {
            None => {
                count!(shared, core, out_of_buffer);
                return Verdict::Dropped(DropReason::NoReceive);
            }
            // An oversized message is dropped and takes no receive, so the queue pair stays usable.
            Some(capacity) if capacity < needed as u64 => {
                return Verdict::Dropped(DropReason::ReceiveTooSmall);
            }
            Some(_) => {}
        }
        let Some(receive) = core.take_receive(shared) else { return Verdict::Dropped(DropReason::NoReceive) };
        let area = grh_area(&received.path, &received.identification, datagram.len());
        let landing = &core.landing;
        let placed = landing
            .check(&shared.keys, core.receive_pd)
            .and_then(|()| landing.scatter(&shared.keys, core.receive_pd, 0, (&area, &[])))
            .and_then(|()| {
                landing.scatter(&shared.keys, core.receive_pd, GRH_AREA as u32, datagram.payload())
            });
        if let Err(error) = placed {
            let status = WcStatus::LocalProtectionError;
            let rule = core.receive_denied(shared, error);
            core.fail_recv(shared, receive.wr_id, status, rule);
            core.fail(Failure::Reported);
            return Verdict::Handled;
        }
        let mut wc = Wc {
            wr_id: receive.wr_id,
            opcode: WcOpcode::Recv,
            byte_len: u32::try_from(needed).unwrap_or(u32::MAX),
            qpn: core.number,
            src_qp: deth.source_qp,
            flags: WcFlags::GRH,
            service_level: packet_type(&received.path),
            ..Wc::default()
        };
        if let Some(imm) = datagram.imm_dt() {
            wc.imm = imm;
            wc.flags |= WcFlags::WITH_IMM;
        }
        core.complete_recv(shared, wc, datagram.bth().solicited);
        Verdict::Handled
    }
}

/// Returns [`Wc::service_level`] of a datagram. The GRH area cannot show it, because its first bytes have no
/// meaning with IPv4.
const fn packet_type(path: &Path) -> u8 {
    match (path.encapsulation, path.source) {
        (Encapsulation::RoceV1, _) => 0,
        (Encapsulation::RoceV2, IpAddr::V6(_)) => 9,
        (Encapsulation::RoceV2, IpAddr::V4(_)) => 10,
    }
}

/// Returns the 40 bytes before a UD message: the IP header of the packet, right-aligned, as in kernel
/// drivers. If the device did not see the header, it is constructed from the path.
fn grh_area(path: &Path, identification: &Identification, datagram_len: usize) -> [u8; GRH_AREA] {
    let mut area = [0; GRH_AREA];
    match (path.encapsulation, path.source, path.destination) {
        (Encapsulation::RoceV2, IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (identification, dont_fragment) = match *identification {
                Identification::Known { identification, dont_fragment } => (identification, dont_fragment),
                Identification::Unknown { .. } | Identification::Unsealed => (0, true),
            };
            let total_len = u16::try_from(datagram_len + 28).unwrap_or(u16::MAX);
            let header = Ipv4Header {
                traffic_class: path.traffic_class,
                total_length: total_len,
                identification,
                dont_fragment,
                ttl: path.hop_limit,
                protocol: IP_PROTOCOL_UDP,
                source,
                destination,
            };
            if let Some(half) = area.last_chunk_mut::<{ Ipv4Header::LEN }>() {
                header.emit(half);
            }
        }
        (Encapsulation::RoceV2, source, destination) => {
            let header = Ipv6Header {
                traffic_class: path.traffic_class,
                flow_label: path.flow_label,
                payload_length: u16::try_from(datagram_len + 8).unwrap_or(u16::MAX),
                next_header: IP_PROTOCOL_UDP,
                hop_limit: path.hop_limit,
                source: mapped(source),
                destination: mapped(destination),
            };
            header.emit(&mut area);
        }
        (Encapsulation::RoceV1, source, destination) => {
            let header = Grh {
                traffic_class: path.traffic_class,
                flow_label: path.flow_label,
                payload_length: u16::try_from(datagram_len).unwrap_or(u16::MAX),
                hop_limit: path.hop_limit,
                source: Gid::from(source),
                destination: Gid::from(destination),
            };
            header.emit(&mut area);
        }
    }
    area
}

fn mapped(address: IpAddr) -> core::net::Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
