//! Management datagrams: those of real NICs and kernels are written again byte for byte, and invalid ones are
//! only rejected.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use proptest::prelude::*;
use roce_packet::mad::{
    CmDreq, CmMad, CmMessage, CmMessageKind, CmReq, CmTimeout, CommId, GSI_Q_KEY, IpCm, MAD_LEN, MadHeader,
    PortSpace, RejReason, ServiceId, SidrStatus, TransportService, private_data,
};
use roce_packet::{Datagram, Frame, Grh, Layer, ParseErrorKind, PathMtu, Psn, Qpn, Transport};
use roce_testing::{captures_in, kernel_captures};
use serde_json::Value;

use crate::shared::{
    LINK_TYPE_ERF, LINK_TYPE_ETHERNET, captures_of_others, hex, infiniband_of_erf, json, number,
    read_capture, rxe_captures,
};

/// Parses a datagram whose output must equal its input.
#[track_caller]
fn parse(bytes: &[u8], name: &str) -> CmMad {
    let mad = CmMad::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut out = [0xa5; MAD_LEN];
    mad.emit(&mut out);
    assert_eq!(out[..], *bytes, "{name}: it does not come out as it went in");
    mad
}

/// Returns a number, which may be a hexadecimal text.
#[track_caller]
fn value(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal"),
        None => number(value) as u64,
    }
}

#[test]
fn decoded_messages() {
    let frames = json("icrc.json");
    let document = json("cm_decode.json");
    let decoded = document["frames"].as_array().expect("a list of frames");
    for expected in decoded {
        let name = expected["vector"].as_str().expect("a name");
        let vector = frames["vectors"].as_array().expect("vectors").iter().find(|one| one["name"] == name);
        let vector = vector.unwrap_or_else(|| panic!("{name} is not in icrc.json"));
        let bytes = hex(vector["frame_hex"].as_str().expect("a frame"));
        let frame = Frame::parse(&bytes).unwrap();
        let datagram = frame.datagram().unwrap();
        let deth = datagram.deth().expect("a DETH");
        assert_eq!(u64::from(datagram.bth().dest_qp.get()), value(&expected["dest_qp"]), "{name}");
        assert_eq!(u64::from(deth.q_key), value(&expected["qkey"]), "{name}");
        assert_eq!(deth.q_key, GSI_Q_KEY);
        assert_eq!(deth.source_qp, Qpn::GSI);
        let mad = parse(datagram.payload().0, name);
        check_header(datagram.payload().0, &mad, &expected["mad"]);
        match mad.message {
            CmMessage::Req(req) => check_request(&req, &expected["req"]),
            CmMessage::Rtu(rtu) => {
                assert_eq!(u64::from(rtu.local_comm_id.0), value(&expected["ids"]["local_comm_id"]));
                assert_eq!(u64::from(rtu.remote_comm_id.0), value(&expected["ids"]["remote_comm_id"]));
            }
            CmMessage::Dreq(dreq) => {
                assert_eq!(u64::from(dreq.local_comm_id.0), value(&expected["ids"]["local_comm_id"]));
                assert_eq!(u64::from(dreq.remote_comm_id.0), value(&expected["ids"]["remote_comm_id"]));
                assert_eq!(u64::from(dreq.remote_qpn.get()), value(&expected["ids"]["remote_qpn"]));
            }
            other => panic!("{name}: a {} was not expected", other.name()),
        }
    }
    assert_eq!(decoded.len(), 5);
}

fn check_header(bytes: &[u8], mad: &CmMad, expected: &Value) {
    let (header, _) = MadHeader::parse(bytes).unwrap();
    let found = [
        ("base_version", 1),
        ("mgmt_class", header.class.into()),
        ("class_version", header.class_version.into()),
        ("method", header.method.into()),
        ("status", mad.status.into()),
        ("tid", mad.transaction_id),
        ("attr_id", mad.message.attribute_id().into()),
        ("attr_mod", mad.attribute_modifier.into()),
    ];
    check_fields(&found, expected);
}

fn check_request(req: &CmReq, expected: &Value) {
    let path = &req.primary;
    let found = [
        ("local_comm_id", req.local_comm_id.0.into()),
        ("vendor_id", req.vendor_id.into()),
        ("service_id", req.service_id.0),
        ("local_ca_guid", req.local_ca_guid),
        ("local_qkey", req.local_q_key.into()),
        ("local_qpn", req.local_qpn.get().into()),
        ("responder_resources", req.responder_resources.into()),
        ("local_eecn", req.local_eecn.into()),
        ("initiator_depth", req.initiator_depth.into()),
        ("remote_eecn", req.remote_eecn.into()),
        ("remote_cm_response_timeout", req.remote_cm_response_timeout.code().into()),
        ("transport_service_type", req.transport.bits().into()),
        ("end_to_end_flow_control", req.flow_control.into()),
        ("starting_psn", req.starting_psn.get().into()),
        ("local_cm_response_timeout", req.local_cm_response_timeout.code().into()),
        ("retry_count", req.retry_count.into()),
        ("pkey", req.p_key.into()),
        ("path_mtu_code", req.path_mtu_code.into()),
        ("rdc_exists", req.rdc_exists.into()),
        ("rnr_retry_count", req.rnr_retry_count.into()),
        ("max_cm_retries", req.max_cm_retries.into()),
        ("srq", req.srq.into()),
        ("extended_transport_type", req.extended_transport.into()),
        ("primary_local_lid", path.local_lid.into()),
        ("primary_remote_lid", path.remote_lid.into()),
        ("primary_flow_label", path.flow_label.into()),
        ("primary_packet_rate", path.packet_rate.into()),
        ("primary_traffic_class", path.traffic_class.into()),
        ("primary_hop_limit", path.hop_limit.into()),
        ("primary_sl", path.sl.into()),
        ("primary_subnet_local", path.subnet_local.into()),
        ("primary_local_ack_timeout", path.local_ack_timeout.code().into()),
    ];
    check_fields(&found, expected);
    let gid = |name: &str| hex(expected[name].as_str().expect("a GID"));
    assert_eq!(path.local_gid.0[..], gid("primary_local_gid"));
    assert_eq!(path.remote_gid.0[..], gid("primary_remote_gid"));

    let (ip_cm, application) = IpCm::parse(&req.private_data).unwrap();
    let cma = &expected["cma"];
    assert_eq!(u64::from(ip_cm.source_port), value(&cma["src_port"]));
    for (found, name) in [(ip_cm.source, "src_addr"), (ip_cm.destination, "dst_addr")] {
        let IpAddr::V4(found) = found else { panic!("{found} is not an IPv4 address") };
        assert_eq!(found.octets()[..], hex(cma[name].as_str().expect("an address"))[12..]);
    }
    assert_eq!(application.len(), 56);
    let mut again = [0; IpCm::LEN];
    ip_cm.emit(&mut again);
    assert_eq!(again, req.private_data[..IpCm::LEN]);
}

/// Checks fields. The file contains 0 and 1 for `srq` and similar flags.
#[track_caller]
fn check_fields(found: &[(&str, u64)], expected: &Value) {
    for (name, found) in found {
        assert!(!expected[name].is_null(), "{name} is not in the vector");
        assert_eq!(*found, value(&expected[name]), "{name}");
    }
}

/// Returns the captures of kernels, and those of third parties if present.
fn captures() -> Vec<PathBuf> {
    let mut files = rxe_captures();
    if let Some(folder) = captures_of_others() {
        files.extend(captures_in(&folder, &["pcap"]));
    }
    files
}

/// Returns the name of the message in a datagram, if it is one for queue pair 1.
fn message(datagram: &Datagram<'_>, name: &str) -> Option<&'static str> {
    if datagram.bth().dest_qp != Qpn::GSI || datagram.info().transport != Transport::Ud {
        return None;
    }
    let payload = datagram.payload().0;
    match CmMad::parse(payload) {
        // The InfiniBand capture also contains other management classes.
        Err(error) if error.kind == ParseErrorKind::Unsupported && error.offset == 1 => None,
        _ => Some(parse(payload, name).message.name()),
    }
}

/// Every message in every capture is written again byte for byte.
#[test]
fn messages_of_captures() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for file in captures() {
        let capture = read_capture(&file);
        for (index, bytes) in capture.packets.iter().enumerate() {
            let name = format!("{} packet {}", file.display(), index + 1);
            let found = match capture.link_type {
                LINK_TYPE_ETHERNET => {
                    let Ok(frame) = Frame::parse(bytes) else { continue };
                    message(&frame.datagram().unwrap(), &name)
                }
                LINK_TYPE_ERF => {
                    let packet = infiniband_of_erf(bytes, &name);
                    let (lrh, mut rest) = packet.split_first_chunk::<8>().expect("an LRH");
                    if lrh[1] & 0b11 == 0b11 {
                        rest = Grh::parse(rest).unwrap().1;
                    }
                    message(&Datagram::parse(rest, &[]).unwrap(), &name)
                }
                other => panic!("{name}: link type {other}"),
            };
            if let Some(found) = found {
                *seen.entry(found).or_default() += 1;
            }
        }
    }
    println!("messages: {seen:?}");
    for name in ["REQ", "REP", "RTU", "DREQ", "DREP", "REJ"] {
        assert!(seen.get(name).is_some_and(|count| *count > 0), "no {name} in any capture: {seen:?}");
    }
}

/// The starting PSN in a REQ is the first one that its sender expects, and so is that in a REP. The first
/// data of each side has the PSN that the other side requested.
#[test]
fn the_starting_psn_is_asked_of_the_other_side() {
    let capture = read_capture(&kernel_captures().join("cm-rping.pcap"));
    let (mut asked, mut first) = (BTreeMap::new(), BTreeMap::new());
    for bytes in &capture.packets {
        let Ok(frame) = Frame::parse(bytes) else { continue };
        let (Ok(datagram), path) = (frame.datagram(), frame.path()) else { continue };
        if datagram.bth().dest_qp == Qpn::GSI {
            match CmMad::parse(datagram.payload().0).map(|mad| mad.message) {
                Ok(CmMessage::Req(req)) => asked.insert(path.source, req.starting_psn),
                Ok(CmMessage::Rep(rep)) => asked.insert(path.source, rep.starting_psn),
                _ => None,
            };
        } else if datagram.info().direction == roce_packet::Direction::Request {
            first.entry(path.destination).or_insert(datagram.bth().psn);
        }
    }
    assert_eq!(asked.len(), 2);
    assert_eq!(asked, first);
}

fn dreq() -> [u8; MAD_LEN] {
    let message = CmMessage::Dreq(CmDreq {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        remote_qpn: Qpn::new(3),
        private_data: private_data(b"bye"),
    });
    let mut bytes = [0; MAD_LEN];
    CmMad::new(7, message).emit(&mut bytes);
    bytes
}

#[test]
fn refusals_name_layer_and_place() {
    let with = |at: usize, byte: u8| {
        let mut bytes = dreq();
        bytes[at] = byte;
        CmMad::parse(&bytes).expect_err("a broken datagram").to_string()
    };
    assert_eq!(with(0, 2), "MAD at byte 0: wrong version, 1 expected, 2 found");
    assert_eq!(with(1, 3), "MAD at byte 1: not supported 0x3");
    assert_eq!(with(2, 1), "MAD at byte 2: wrong version, 2 expected, 1 found");
    assert_eq!(with(3, 1), "MAD at byte 3: not supported 0x1");
    assert_eq!(with(17, 0x19), "MAD at byte 16: not supported 0x19");
    let short = CmMad::parse(&dreq()[..MAD_LEN - 1]).expect_err("too short");
    assert_eq!(short.to_string(), "CM message at byte 24: too short, 232 bytes needed, 231 found");
    let long = [&dreq()[..], &[0]].concat();
    let long = CmMad::parse(&long).expect_err("too long");
    assert_eq!(long.to_string(), "MAD at byte 256: too long, 256 bytes allowed, 257 found");
    assert_eq!(CmMad::parse(&[]).expect_err("nothing").layer, Layer::Mad);

    let mut header = [0; IpCm::LEN];
    header[0] = 1;
    let error = IpCm::parse(&header).expect_err("another version");
    assert_eq!(error.to_string(), "IP CM header at byte 0: wrong version, 0 expected, 1 found");
    header = [0; IpCm::LEN];
    header[1] = 0x50;
    let error = IpCm::parse(&header).expect_err("another IP");
    assert_eq!(error.to_string(), "IP CM header at byte 1: reserved value 0x5");
}

#[test]
fn reasons_have_names() {
    assert_eq!(RejReason::ALL.len(), 34);
    assert!(RejReason::ALL.is_sorted_by_key(|reason| reason.0));
    for number in 0..=40 {
        let named = (1..=33).contains(&number) || number == 35;
        assert_eq!(RejReason(number).name().is_some(), named, "{number}");
    }
    assert_eq!(RejReason(8).to_string(), "8 (invalid service ID: no listener)");
    assert_eq!(RejReason(34).to_string(), "34 (reserved)");
    for status in 0..=6 {
        assert_eq!(SidrStatus(status).name().is_some(), status <= 5, "{status}");
    }
}

#[test]
fn service_ids_of_ports() {
    // Values from a ConnectX and from kernel RXE.
    assert_eq!(ServiceId::of_port(PortSpace::Tcp, 27411), ServiceId(0x0106_6b13));
    assert_eq!(ServiceId::of_port(PortSpace::Tcp, 7174), ServiceId(0x0106_1c06));
    for space in PortSpace::ALL {
        assert_eq!(PortSpace::from_number(space.number()), Some(space));
        assert_eq!(ServiceId::of_port(space, 9).port(), Some((space, 9)));
    }
    assert_eq!(ServiceId(0x1_0000_0106_1c06).port(), None);
    assert_eq!(ServiceId(0x0107_1c06).port(), None);
    assert_eq!(ServiceId::of_port(PortSpace::Udp, 1).to_string(), "RDMA_PS_UDP port 1");
    assert_eq!(ServiceId(5).to_string(), "0x0000000000000005");
}

#[test]
fn times_of_codes() {
    assert_eq!(CmTimeout::new(0).nanos(), 4096);
    assert_eq!(CmTimeout::new(20).nanos(), 4_294_967_296);
    assert_eq!(CmTimeout::MAX.nanos(), 4096 << 31);
    assert_eq!(CmTimeout::new(0x3f), CmTimeout::MAX);
}

#[test]
fn bits_of_small_enumerations() {
    for bits in 0..4 {
        assert_eq!(TransportService::from_bits(bits | 0xfc).bits(), bits);
        assert_eq!(CmMessageKind::from_bits(bits | 0xfc).bits(), bits);
    }
}

#[test]
fn ip_cm_of_both_families() {
    let ports = |source: &str, destination: &str| IpCm {
        source_port: 0x1234,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    let mut bytes = [0; IpCm::LEN];
    for header in [ports("198.18.0.1", "198.18.0.2"), ports("2001:db8::1", "2001:db8::2")] {
        header.emit(&mut bytes);
        assert_eq!(IpCm::parse(&bytes), Ok((header, &[][..])));
    }
    // A mixed pair has no form of its own.
    ports("198.18.0.1", "2001:db8::2").emit(&mut bytes);
    let (header, _) = IpCm::parse(&bytes).unwrap();
    assert_eq!(header.source, IpAddr::V6(Ipv4Addr::new(198, 18, 0, 1).to_ipv6_mapped()));
}

#[test]
fn values_that_a_request_can_hold() {
    let mut bytes = dreq();
    bytes[17] = 0x10;
    bytes[24..].fill(0xff);
    let CmMessage::Req(req) = CmMad::parse(&bytes).unwrap().message else { panic!("not a REQ") };
    assert_eq!((req.path_mtu_code, req.path_mtu()), (15, None));
    assert_eq!(CmReq { path_mtu_code: 3, ..req }.path_mtu(), Some(PathMtu::Mtu1024));
    assert_eq!(
        (req.retry_count, req.rnr_retry_count, req.max_cm_retries, req.extended_transport),
        (7, 7, 15, 7)
    );
    assert_eq!((req.starting_psn, req.local_qpn), (Psn::new(Psn::MASK), Qpn::MULTICAST));
    assert_eq!((req.primary.flow_label, req.primary.packet_rate, req.primary.sl), (0xf_ffff, 0x3f, 15));
    assert!(req.flow_control && req.srq && req.rdc_exists && req.alternate.subnet_local);
}

proptest! {
    /// A parsed message is written in a form that parses equally, for any values of the reserved bits.
    #[test]
    fn every_message_reads_as_it_was_written(
        attribute in 0x10_u8..=0x18,
        content in prop::collection::vec(any::<u8>(), MAD_LEN - MadHeader::LEN),
        transaction: u64,
        modifier: u32,
    ) {
        let mut bytes = dreq();
        bytes[8..16].copy_from_slice(&transaction.to_be_bytes());
        bytes[17] = attribute;
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        bytes[24..].copy_from_slice(&content);
        let mad = CmMad::parse(&bytes).unwrap();
        let mut once = [0; MAD_LEN];
        mad.emit(&mut once);
        prop_assert_eq!(CmMad::parse(&once), Ok(mad));
        // Only reserved bits may differ, and all of them are zero now.
        for (before, after) in bytes.iter().zip(&once) {
            prop_assert_eq!(before & after, *after);
        }
    }

    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = CmMad::parse(&bytes);
        let _ = IpCm::parse(&bytes);
    }
}
