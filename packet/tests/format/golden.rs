//! Packets of real NICs and kernels: each one parses, has a correct ICRC, and is written again byte for byte.
//!
//! Captures of third parties may not be distributed. If they are missing, the tests that need them report it
//! and pass; `ROCE_TEST_REQUIRE=all` makes these tests fail instead. Single frames of those captures are in
//! `common/testing/vectors`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use roce_packet::flow::{self, FlowInputs, SourcePortRule};
use roce_packet::outer::{Link, Outer};
use roce_packet::{
    Bth, BthView, Cnp, CnpDeviations, Datagram, DatagramWriter, Encapsulation, Envelope, Frame, FrameHeaders,
    Gid, Grh, MacAddr, NetworkHeader, Opcode, ParseErrorKind, Qpn, ROCE_UDP_PORT, Transport,
};

use crate::shared::{
    LINK_TYPE_ERF, LINK_TYPE_ETHERNET, captures_of_others, hex, infiniband_of_erf, json, number,
    read_capture, rxe_captures,
};

/// Returns whether this is a capture of connection management.
fn is_of_cm(capture: &Path) -> bool {
    capture.file_name().is_some_and(|name| name.to_string_lossy().contains("cm-"))
}

/// Number of packets checked, by kind.
#[derive(Default, Debug, PartialEq, Eq, Clone, Copy)]
struct Tally {
    ipv4: usize,
    ipv6: usize,
    v1: usize,
    not_roce: usize,
}

impl Tally {
    fn roce(&self) -> usize {
        self.ipv4 + self.ipv6 + self.v1
    }

    fn add(&mut self, other: Self) {
        self.ipv4 += other.ipv4;
        self.ipv6 += other.ipv6;
        self.v1 += other.v1;
        self.not_roce += other.not_roce;
    }
}

/// Parses a frame and rebuilds it in every possible way.
#[track_caller]
fn check_frame(bytes: &[u8], name: &str) -> Tally {
    let frame = match Frame::parse(bytes) {
        Ok(frame) => frame,
        Err(error) if error.kind == ParseErrorKind::NotRoce => {
            return Tally { not_roce: 1, ..Tally::default() };
        }
        Err(error) => panic!("{name}: {error}"),
    };
    let datagram = frame.datagram().unwrap_or_else(|error| panic!("{name}: {error}"));
    let envelope = frame.envelope();

    let check = frame.verify_icrc().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(check.is_good(), "{name}: {check:x?}");
    assert_eq!(datagram.icrc(), check.found, "{name}");
    assert_eq!(datagram.compute_icrc(&envelope), check.computed, "{name}");
    assert_eq!(datagram.len(), frame.transport.len(), "{name}");

    let mut out = vec![0xa5; bytes.len() + 7];
    assert_eq!(frame.emit(&mut out), Ok(bytes.len()), "{name}");
    assert_eq!(out[..bytes.len()], *bytes, "{name}: Frame does not re-emit what it parsed");
    assert!(out[bytes.len()..].iter().all(|byte| *byte == 0xa5), "{name}: wrote behind the frame");

    // Reserved bits are written as zero. Only those beside the congestion bits are set in any frame here
    // (Huawei's NIC), and the ICRC does not cover them.
    let mut expected = frame.transport.to_vec();
    expected[4] &= 0xc0;
    let rewritten = rewrite(&datagram, &envelope);
    assert_eq!(rewritten, expected, "{name}: DatagramWriter does not re-emit what was parsed");

    check_split(&datagram, &envelope, frame.transport, name);
    check_headers_from_path(&frame, name);
    match frame.headers.network {
        NetworkHeader::Ipv4 { ip, .. } => {
            let unknown = envelope.with_identification(!ip.identification);
            assert_eq!(datagram.recover_identification(&unknown), Some(ip.identification), "{name}");
            Tally { ipv4: 1, ..Tally::default() }
        }
        NetworkHeader::Ipv6 { .. } => Tally { ipv6: 1, ..Tally::default() },
        NetworkHeader::Grh(_) => Tally { v1: 1, ..Tally::default() },
    }
}

/// Rebuilds the datagram from the typed headers and the payload.
fn rewrite(datagram: &Datagram<'_>, envelope: &Envelope) -> Vec<u8> {
    let mut out = vec![0xa5; datagram.len()];
    let mut writer = DatagramWriter::new(&mut out, datagram.bth()).unwrap();
    macro_rules! copy {
        ($($header:ident)*) => {
            $(if let Some(header) = datagram.$header() { writer.$header(&header).unwrap(); })*
        };
    }
    copy!(rdeth deth xrceth feth reth atomic_eth aeth atomic_ack_eth imm_dt ieth);
    let (head, tail) = datagram.payload();
    assert_eq!(tail, [0u8; 0]);
    writer.payload_slot(head.len()).unwrap().copy_from_slice(head);
    let len = writer.finish(envelope).unwrap();
    assert_eq!(len, out.len());
    out
}

/// Checks the datagram in two slices, as a device passes on a frame that it had to divide.
fn check_split(datagram: &Datagram<'_>, envelope: &Envelope, transport: &[u8], name: &str) {
    let headers_len = datagram.info().header_len;
    let ends = [headers_len, transport.len() - 5, transport.len() - 2, transport.len()];
    for end in ends.into_iter().filter(|end| *end >= headers_len) {
        let (head, tail) = transport.split_at(end);
        let split =
            Datagram::parse(head, tail).unwrap_or_else(|error| panic!("{name}: split at {end}: {error}"));
        assert_eq!(split.icrc(), datagram.icrc(), "{name}: split at {end}");
        assert_eq!(split.compute_icrc(envelope), datagram.icrc(), "{name}: split at {end}");
        let (first, second) = split.payload();
        assert_eq!([first, second].concat(), datagram.payload().0, "{name}: split at {end}");
    }
}

/// Checks that the headers of the library for this datagram equal those of the frame.
fn check_headers_from_path(frame: &Frame<'_>, name: &str) {
    let headers = &frame.headers;
    let envelope = frame.envelope();
    let mut rebuilt = FrameHeaders::new(
        &frame.path(),
        envelope.identification,
        headers.destination,
        headers.source,
        frame.transport.len(),
    )
    .unwrap_or_else(|error| panic!("{name}: {error}"));
    // The library sends no UDP checksum; other senders may.
    if let (NetworkHeader::Ipv4 { udp, .. } | NetworkHeader::Ipv6 { udp, .. }, Some(found)) =
        (&mut rebuilt.network, headers.network.udp())
    {
        udp.checksum = found.checksum;
    }
    assert_eq!(rebuilt, *headers, "{name}");
    assert_eq!(rebuilt.envelope(), envelope, "{name}");
}

fn check_capture(path: &Path) -> Tally {
    let (capture, name) = (read_capture(path), path.display());
    assert_eq!(capture.link_type, LINK_TYPE_ETHERNET, "{name}");
    let mut tally = Tally::default();
    for (index, packet) in capture.packets.iter().enumerate() {
        tally.add(check_frame(packet, &format!("{name} packet {}", index + 1)));
    }
    println!(
        "{name}: {} packets checked ({} IPv4, {} IPv6, {} RoCE v1), {} others",
        tally.roce(),
        tally.ipv4,
        tally.ipv6,
        tally.v1,
        tally.not_roce
    );
    tally
}

#[test]
fn vectors_of_known_icrc() {
    let document = json("icrc.json");
    let vectors = document["vectors"].as_array().expect("a list of vectors");
    let mut tally = Tally::default();
    let mut with_reserved_bits = Vec::new();
    for vector in vectors {
        let name = vector["name"].as_str().expect("a name");
        let bytes = hex(vector["frame_hex"].as_str().expect("the frame"));
        tally.add(check_frame(&bytes, name));

        let frame = Frame::parse(&bytes).unwrap();
        let bth = *frame.datagram().unwrap().bth();
        let (view, _) = BthView::from_prefix(frame.transport).unwrap();
        if view.reserved6() != 0 {
            with_reserved_bits.push(name);
        }
        let icrc = hex(vector["icrc_wire_hex"].as_str().expect("the ICRC"));
        assert_eq!(frame.verify_icrc().unwrap().computed.to_le_bytes(), *icrc, "{name}");
        assert_eq!(frame.headers.len_bytes(), number(&vector["bth_offset"]), "{name}");
        assert_eq!(frame.headers.network_offset(), number(&vector["l3_offset"]), "{name}");
        assert_eq!(frame.headers.udp_offset(), vector["udp_offset"].as_u64().map(|n| n as usize), "{name}");
        assert_eq!(frame.headers.vlan.is_some(), vector["vlan"].as_bool().unwrap(), "{name}");
        assert_eq!(format!("0x{:02x}", bth.opcode.0), vector["bth_opcode"].as_str().unwrap(), "{name}");
        assert_eq!(usize::from(bth.pad_count), number(&vector["pad_count"]), "{name}");
        let (is_v1, encapsulation) = (vector["encapsulation"] == "rocev1", frame.path().encapsulation);
        assert_eq!(encapsulation == Encapsulation::RoceV1, is_v1, "{name}");
    }
    println!("icrc.json: {} frames checked", tally.roce());
    assert_eq!(tally, Tally { ipv4: 29, ipv6: 3, v1: 2, not_roce: 0 });
    println!("reserved bits beside FECN and BECN are set in {with_reserved_bits:?}");
    assert!(with_reserved_bits.iter().all(|name| name.starts_with("huawei-")), "{with_reserved_bits:?}");
}

/// Changing a bit that the ICRC covers changes it. Changing a bit that routers may change does not.
#[test]
fn every_bit_of_the_vectors_is_covered_or_masked() {
    let document = json("icrc.json");
    let (mut covered, mut masked) = (0, 0);
    for vector in document["vectors"].as_array().expect("a list of vectors") {
        let name = vector["name"].as_str().expect("a name");
        let bytes = hex(vector["frame_hex"].as_str().expect("the frame"));
        let headers = Frame::parse(&bytes).unwrap().headers;
        let bth = headers.len_bytes();
        let end = bth + Frame::parse(&bytes).unwrap().transport.len() - 4;
        for bit in bth * 8..end * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            let frame = Frame::parse(&bytes).expect("the outer headers are as before");
            let is_masked = bit / 8 == bth + 4;
            assert_eq!(frame.verify_icrc().unwrap().is_good(), is_masked, "{name} bit {bit}");
            if is_masked { masked += 1 } else { covered += 1 }
        }
        // In the headers below, only the variable fields of `Path` may change, so the test changes only
        // these.
        let mut other = headers;
        match &mut other.network {
            NetworkHeader::Ipv4 { ip, udp } => {
                (ip.traffic_class, ip.ttl, udp.checksum) = (!ip.traffic_class, !ip.ttl, !udp.checksum);
            }
            NetworkHeader::Ipv6 { ip, udp } => {
                (ip.traffic_class, ip.hop_limit) = (!ip.traffic_class, !ip.hop_limit);
                (ip.flow_label, udp.checksum) = (ip.flow_label ^ 0xf_ffff, !udp.checksum);
            }
            NetworkHeader::Grh(grh) => {
                (grh.traffic_class, grh.hop_limit) = (!grh.traffic_class, !grh.hop_limit);
                grh.flow_label ^= 0xf_ffff;
            }
        }
        let mut bytes = bytes.clone();
        other.emit(&mut bytes).unwrap();
        assert!(Frame::parse(&bytes).unwrap().verify_icrc().unwrap().is_good(), "{name}: variable fields");
    }
    println!("icrc.json: {covered} covered bits, {masked} masked ones");
    assert!(covered > 70_000 && masked == 34 * 8, "{covered} {masked}");
}

#[test]
fn captures_of_hardware() {
    let Some(folder) = captures_of_others() else { return };
    assert_eq!(
        check_capture(&folder.join("mlx-cx5-rc-write-read-cas.pcap")),
        Tally { ipv4: 196, ..Tally::default() }
    );
    assert_eq!(
        check_capture(&folder.join("mellanox-hexdump-frames.pcap")),
        Tally { ipv4: 9, v1: 2, ..Tally::default() }
    );
    assert_eq!(
        check_capture(&folder.join("rxe-ipv6-ud-pingpong.pcap")),
        Tally { ipv6: 48, not_roce: 12, ..Tally::default() }
    );
}

#[test]
fn captures_of_kernel_rxe() {
    let captures = rxe_captures();
    let mut tally = Tally::default();
    for capture in &captures {
        tally.add(check_capture(capture));
    }
    println!("rxe: {} files, {tally:?}", captures.len());
    // 1,464 is the number of packets in the first 25 of these captures.
    assert!(captures.len() >= 25, "{} files", captures.len());
    assert!(tally.ipv4 >= 1464, "{tally:?}");
    assert!(tally.ipv6 >= 60, "{tally:?}");
}

/// Native InfiniBand has a local route header (LRH) instead of Ethernet, and no UDP. Its datagrams equal
/// those of RoCE. With a GRH the ICRC is the same too, which checks the masks of RoCE v1 and IPv6
/// independently. Without a GRH, the ICRC begins with the LRH itself (its virtual lane set to ones), which
/// the test computes independently of the library.
#[test]
fn native_infiniband() {
    let Some(folder) = captures_of_others() else { return };
    let name = "ib-native-erf.pcap";
    let capture = read_capture(&folder.join(name));
    assert_eq!(capture.link_type, LINK_TYPE_ERF);
    let (mut with_grh, mut without) = (0, 0);
    for (index, record) in capture.packets.iter().enumerate() {
        let name = format!("{name} packet {}", index + 1);
        let packet = infiniband_of_erf(record, &name);
        let (lrh, rest) = packet.split_first_chunk::<8>().expect("an LRH");
        let outer = Outer::decode(record, Link::Erf, record.len(), ROCE_UDP_PORT);
        assert!(outer.error.is_none() && outer.is_native_infiniband(), "{name}");
        assert!(outer.check_icrc().is_some_and(|icrc| icrc.check.is_good()), "{name}");
        match lrh[1] & 0b11 {
            0b11 => {
                let (grh, transport) = Grh::parse(rest).unwrap_or_else(|error| panic!("{name}: {error}"));
                let network = NetworkHeader::Grh(grh);
                let (destination, source) = (MacAddr::ZERO, MacAddr::ZERO);
                let headers = FrameHeaders { destination, source, vlan: None, network };
                let mut frame = vec![0; headers.len_bytes()];
                headers.emit(&mut frame).unwrap();
                assert_eq!(frame[14..], rest[..Grh::LEN], "{name}: GRH");
                frame.extend_from_slice(transport);
                assert_eq!(check_frame(&frame, &name), Tally { v1: 1, ..Tally::default() });
                with_grh += 1;
            }
            0b10 => {
                let datagram = Datagram::parse(rest, &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
                let mut masked = [lrh, datagram.covered().0].concat();
                masked[0] |= 0xf0;
                masked[8 + 4] = 0xff;
                assert_eq!(crc32fast::hash(&masked), datagram.icrc(), "{name}");
                without += 1;
            }
            other => panic!("{name}: link next header {other}"),
        }
    }
    println!("{name}: {with_grh} packets with GRH and {without} without checked");
    assert_eq!((with_grh, without), (6, 37));
}

#[test]
fn source_port_vectors() {
    let document = json("udp_sport.json");
    let vectors = document["vectors"].as_array().expect("a list of vectors");
    let mut checked = BTreeMap::new();
    for vector in vectors {
        let formula = vector["formula"].as_str().expect("a formula");
        let mut inputs =
            FlowInputs { local: Qpn::new(0), remote: Qpn::new(0), flow_label: 0, connection: None };
        let (rule, label) = match formula {
            "qpn_pair" => {
                inputs.local = Qpn::new(number(&vector["qpn_a"]) as u32);
                inputs.remote = Qpn::new(number(&vector["qpn_b"]) as u32);
                let label = flow::qp_pair_flow_label(inputs.local, inputs.remote);
                assert_eq!(label, flow::qp_pair_flow_label(inputs.remote, inputs.local), "{vector}");
                (SourcePortRule::QpPair, Some(label))
            }
            "rdma_cm_flow_label" => {
                let source = number(&vector["cm_src_port"]) as u16;
                let destination = number(&vector["cm_dst_port"]) as u16;
                inputs.connection = Some((source, destination));
                (SourcePortRule::RdmaCm, Some(flow::rdma_cm_flow_label(source, destination)))
            }
            "rxe_qpn_hash" => {
                inputs.local = Qpn::new(number(&vector["qpn"]) as u32);
                (SourcePortRule::RxeQpn, None)
            }
            other => panic!("no rule for {other}"),
        };
        assert_eq!(label.map(u64::from), vector["flow_label"].as_u64(), "{vector}");
        let port = number(&vector["udp_sport"]);
        assert_eq!(usize::from(rule.port(&inputs)), port, "{vector}");
        if let Some(label) = label {
            assert_eq!(usize::from(flow::flow_label_to_port(label)), port, "{vector}");
            // As in a NIC, the label is derived at connection time and stored in the address vector.
            inputs.flow_label = label;
            assert_eq!(usize::from(SourcePortRule::FlowLabel.port(&inputs)), port, "{vector}");
        }
        *checked.entry(formula).or_insert(0) += 1;
    }
    println!("udp_sport.json: {checked:?}");
    assert_eq!(checked, BTreeMap::from([("qpn_pair", 5), ("rdma_cm_flow_label", 2), ("rxe_qpn_hash", 3)]));
}

/// Checks the rules with every RC packet of captures with identifiable pairs of QPs: one QP at either end of
/// a pair of addresses. Connections made by rdma_cm are skipped, because their ports have another origin.
#[test]
fn source_ports_on_the_wire() {
    let (mut directions, mut packets) = (0, 0);
    for path in rxe_captures().iter().filter(|path| !is_of_cm(path)) {
        let (capture, name) = (read_capture(path), path.display());
        let mut flows: BTreeMap<(IpAddr, IpAddr), BTreeSet<(Qpn, u16)>> = BTreeMap::new();
        for packet in &capture.packets {
            let Ok(frame) = Frame::parse(packet) else { continue };
            let (path, datagram) = (frame.path(), frame.datagram().expect("checked in another test"));
            let seen = (datagram.bth().dest_qp, path.source_port);
            if datagram.info().transport == Transport::Rc {
                flows.entry((path.source, path.destination)).or_default().insert(seen);
                packets += 1;
            }
        }
        for ((source, destination), seen) in &flows {
            let Some(back) = flows.get(&(*destination, *source)) else { continue };
            let ([(remote, port)], [(local, _)]) =
                (&seen.iter().collect::<Vec<_>>()[..], &back.iter().collect::<Vec<_>>()[..])
            else {
                continue;
            };
            let inputs = FlowInputs { local: *local, remote: *remote, flow_label: 0, connection: None };
            assert_eq!(SourcePortRule::default().port(&inputs), *port, "{name} {source} to {destination}");
            directions += 1;
        }
    }
    println!("{directions} directions with {packets} RC packets follow the rule of the QP pair");
    assert!(directions >= 30, "{directions}");
}

/// QP1 of rxe does not know the label of its peer.
#[test]
fn source_port_of_connection_management_on_the_wire() {
    let mut packets = 0;
    for path in rxe_captures().iter().filter(|path| is_of_cm(path)) {
        for packet in &read_capture(path).packets {
            let Ok(frame) = Frame::parse(packet) else { continue };
            let datagram = frame.datagram().expect("checked in another test");
            if datagram.deth().is_some_and(|deth| deth.source_qp == Qpn::GSI) {
                assert_eq!(frame.path().source_port, flow::rxe_qpn_port(Qpn::GSI), "{}", path.display());
                packets += 1;
            }
        }
    }
    println!("{packets} packets of QP1");
    assert!(packets > 0);
}

/// Link-local addresses of kernels that derive them from the Ethernet address.
#[test]
fn link_local_addresses_on_the_wire() {
    let document = json("icrc.json");
    let vectors = document["vectors"].as_array().expect("a list of vectors");
    let mut seen = 0;
    for vector in vectors.iter().filter(|vector| vector["encapsulation"] == "rocev2-ipv6") {
        let bytes = hex(vector["frame_hex"].as_str().expect("the frame"));
        let frame = Frame::parse(&bytes).unwrap();
        let source = Gid::from_ip(frame.path().source);
        if let Some(mac) = source.link_local_mac() {
            assert_eq!(mac, frame.headers.source);
            assert_eq!(Gid::link_local(mac), source);
            seen += 1;
        }
    }
    println!("{seen} link-local sources made from an Ethernet address");
    assert!(seen > 0);
}

/// The library would send the same bytes as the only CNP of hardware and as its software counterpart.
#[test]
fn congestion_notifications_in_the_vectors() {
    let document = json("icrc.json");
    let mut seen = 0;
    for vector in document["vectors"].as_array().expect("a list of vectors") {
        let bytes = hex(vector["frame_hex"].as_str().expect("the frame"));
        let frame = Frame::parse(&bytes).unwrap();
        let datagram = frame.datagram().unwrap();
        let parsed = Cnp::parse(&datagram);
        if datagram.bth().opcode != Opcode::CNP {
            assert!(parsed.is_err(), "{}", vector["name"]);
            continue;
        }
        assert!(CnpDeviations::of(&datagram).is_empty(), "{}", vector["name"]);
        let mut out = [0; Cnp::LEN];
        parsed.unwrap().emit(&frame.envelope(), &mut out);
        assert_eq!(out, frame.transport, "{}", vector["name"]);
        seen += 1;
    }
    assert_eq!(seen, 2);
    assert_eq!(Cnp::LEN, Bth::LEN + 20);
}
