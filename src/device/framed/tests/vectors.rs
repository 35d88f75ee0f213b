//! Frames of NICs, of the kernel and of another program, whose ICRC is known: each leaves the device byte for byte
//! as it is, and arrives as what it is.
//!
//! They lie outside the repository, in `../shared/vectors`. Where that is missing the tests here say so and pass.

use roce_packet::{Psn, Qpn, RnrTimer};
use roce_transport::Identification;

use super::*;
use crate::device::testing::skip_unless;
use crate::verbs::{
    Access, ConnectOptions, Context, Endpoint, PathMtu, PathOptions, QpAttr, QpState, QpType,
    QueuePairOptions, RKey, SendOp, SendWr,
};

/// Name and bytes of every frame.
#[track_caller]
fn vectors() -> Option<Vec<(String, Vec<u8>)>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/vectors/icrc.json");
    let text = std::fs::read_to_string(path);
    if skip_unless(text.is_ok(), "no vectors at ../shared/vectors") {
        return None;
    }
    let document: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    let vectors = document["vectors"].as_array().expect("a list of vectors").iter().map(|vector| {
        let hex = vector["frame_hex"].as_str().expect("a frame");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        (vector["name"].as_str().expect("a name").to_owned(), bytes)
    });
    Some(vectors.collect())
}

/// The options `vlan=` and `prio=` that frames with this tag take.
fn settings_of(tag: Option<VlanTag>) -> FrameSettings {
    let mut settings = FrameSettings::default();
    if let Some(tag) = tag {
        for (key, value) in [("vlan", tag.vid.to_string()), ("prio", tag.pcp.to_string())] {
            settings.set(key, &value).unwrap().unwrap();
        }
    }
    settings
}

/// The device that sent a frame, with a neighbour that the frame was for.
fn sender_of(frame: &Frame<'_>, max_segments: u16) -> (FramedDevice, Link) {
    let headers = &frame.headers;
    let path = frame.path();
    // The NIC of RoCE v1 sent through a cable to itself, which a device of ours does without the wire.
    let own = if path.source == path.destination { Vec::new() } else { vec![path.source] };
    let (device, link) = device_of(headers.source, own, max_segments, settings_of(headers.vlan));
    link.lock().unwrap().neighbours.insert(path.destination, Resolution::Known(headers.destination));
    (device, link)
}

/// How many frames of each kind there are, so that none is left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    ipv4: usize,
    ipv6: usize,
    v1: usize,
    tagged: usize,
}

impl Tally {
    const ALL: Self = Self { ipv4: 29, ipv6: 3, v1: 2, tagged: 5 };

    fn count(&mut self, path: &Path) {
        match (path.encapsulation, path.destination) {
            (Encapsulation::RoceV1, _) => self.v1 += 1,
            (Encapsulation::RoceV2, IpAddr::V4(_)) => self.ipv4 += 1,
            (Encapsulation::RoceV2, IpAddr::V6(_)) => self.ipv6 += 1,
        }
        self.tagged += usize::from(path.vlan.is_some());
    }
}

#[test]
fn the_frames_of_others_leave_byte_for_byte() {
    let Some(vectors) = vectors() else { return };
    let (mut tally, mut with_udp_checksum) = (Tally::default(), Vec::new());
    for (name, bytes) in &vectors {
        let known = Frame::parse(bytes).unwrap();
        let identification = known.envelope().identification;
        let mut expected = bytes.clone();
        if let Some(udp) = known.headers.udp_offset()
            && bytes[udp + 6..udp + 8] != [0, 0]
        {
            // RoCE needs no UDP checksum and we send none (A17.9.2); the ICRC does not cover it.
            expected[udp + 6..udp + 8].fill(0);
            with_udp_checksum.push(name.as_str());
        }
        for max_segments in [1, 64] {
            let (mut sender, link) = sender_of(&known, max_segments);
            let mut path = known.path();
            path.vlan = sender.vlan(path.traffic_class);
            // What an engine writes: BTH to padding, and the ICRC for this path and Identification.
            let (body, _) = known.transport.split_last_chunk::<{ icrc::LEN }>().unwrap();
            let value = icrc::compute(&Envelope::new(&path, identification), body, &[]);
            let len = known.transport.len();
            let slot = sender.slot().expect("room");
            slot.buffer[..len].copy_from_slice(&[body, &value.to_le_bytes()].concat());
            sender.commit(Instant::ZERO, &Transmit { path, len, identification });
            sender.flush(Instant::ZERO).unwrap();
            assert_eq!(sent(&link), [&expected[..]], "{name}, {max_segments} segments");
        }
        tally.count(&known.path());
    }
    assert_eq!(tally, Tally::ALL);
    assert_eq!(
        with_udp_checksum,
        ["scapy-ipv4-uc-send-only-pad2-udpcsum", "scapy-ipv6-uc-send-only-pad2"],
        "all others are compared whole"
    );
}

#[test]
fn the_frames_of_others_arrive_as_what_they_are() {
    let Some(vectors) = vectors() else { return };
    let mut tally = Tally::default();
    for (name, bytes) in &vectors {
        let known = Frame::parse(bytes).unwrap();
        let (path, tag) = (known.path(), known.headers.vlan);
        let receiver = |settings| device_of(known.headers.destination, vec![path.destination], 1, settings);
        // As it was on the wire, and with its tag taken out by the interface.
        let mut forms = vec![(bytes.clone(), None, None)];
        if tag.is_some() {
            forms.push(([&bytes[..12], &bytes[16..]].concat(), None, tag));
        }
        for form in forms {
            let (mut device, link) = receiver(settings_of(tag));
            link.lock().unwrap().arriving.push(form.clone());
            let arrived = receive_all(&mut device);
            assert_eq!(arrived.len(), 1, "{name}");
            assert_eq!(arrived[0].bytes, known.transport, "{name}");
            assert_eq!(arrived[0].path, path, "{name}");
            let identification = match arrived[0].identification {
                Identification::Known { identification, dont_fragment } => {
                    assert!(dont_fragment, "{name}");
                    identification
                }
                _ => 0,
            };
            assert!(is_sealed_for(&arrived[0].path, &arrived[0].bytes, identification), "{name}");
            // Not for a host of another VLAN.
            let other = FrameSettings { vlan: Some(tag.map_or(7, |tag| tag.vid + 1)), priority: None };
            let (mut device, link) = receiver(other);
            link.lock().unwrap().arriving.push(form);
            assert!(receive_all(&mut device).is_empty(), "{name}");
            assert_eq!(counter(&device, "frame_rx_wrong_vlan"), 1, "{name}");
        }
        tally.count(&path);
    }
    assert_eq!(tally, Tally::ALL);
}

/// The NIC's own WRITE over RoCE v1, made by verbs: a GID of that type is all that it takes.
#[test]
fn a_gid_of_roce_v1_makes_the_frame_of_a_nic() {
    const NAME: &str = "mlx-rocev1-rc-write-only-pad3";
    let Some(vectors) = vectors() else { return };
    let (_, bytes) = vectors.iter().find(|(name, _)| name == NAME).expect(NAME);
    let known = Frame::parse(bytes).unwrap();
    // The NIC sent to itself; here the last byte of the destination is another, and with it the ICRC.
    let (source, destination) = (known.path().source, IpAddr::from([15, 0, 0, 3]));
    assert_eq!(source, IpAddr::from([15, 0, 0, 2]));
    let (device, link) = device_of(known.headers.source, vec![source], 1, FrameSettings::default());
    link.lock().unwrap().neighbours.insert(destination, Resolution::Known(known.headers.destination));

    let context = Context::builder().background(false).attach(Box::new(device)).unwrap();
    let gids = context.gid_table();
    let gid = gids.iter().find(|gid| gid.gid_type == Encapsulation::RoceV1 && gid.address() == source);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16, None).unwrap());
    let region = pd.allocate(64, Access::LOCAL_WRITE).unwrap();
    region.write(0, &[0, 0, 0, 0, 1]).unwrap();
    let options = QueuePairOptions::new(QpType::Rc, &cq);

    // One queue pair to have the path made, one to send with the NIC's PSN.
    let peer = Qpn::new(0x10a);
    let first = pd.create_qp(&options).unwrap();
    let path = PathOptions::default().sgid_index(gid.map(|gid| gid.index));
    let remote = Endpoint { address: destination, qpn: peer.get(), psn: 0 };
    first.connect(&remote, &ConnectOptions::default().path(path)).unwrap();
    let path = first.query().unwrap().path;
    let second = pd.create_qp(&options).unwrap();
    let init = QpAttr {
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::empty()),
        ..QpAttr::to_state(QpState::Init)
    };
    let ready_to_receive = QpAttr {
        path,
        path_mtu: Some(PathMtu::Mtu1024),
        dest_qpn: Some(peer),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: RnrTimer::new(12),
        ..QpAttr::to_state(QpState::Rtr)
    };
    let ready_to_send = QpAttr {
        sq_psn: Some(Psn::new(0xa7_88bc)),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::to_state(QpState::Rts)
    };
    for attributes in [init, ready_to_receive, ready_to_send] {
        second.modify(&attributes).unwrap();
    }
    let op = SendOp::Write { remote_addr: 0x55d4_c072_6000, rkey: RKey(0x47b3) };
    second.post_send(&SendWr::new(0, op, &[region.element(0..5)])).unwrap();

    let frames = sent(&link);
    assert_eq!(frames.len(), 1);
    let found = Frame::parse(&frames[0]).unwrap();
    assert!(found.verify_icrc().unwrap().is_good());
    let mut expected = bytes.clone();
    let last_of_dgid = 14 + 39;
    assert_eq!((expected[last_of_dgid], frames[0][last_of_dgid]), (2, 3));
    expected[last_of_dgid] = 3;
    let end = expected.len() - icrc::LEN;
    assert_eq!(frames[0][..end], expected[..end]);
    assert_eq!(frames[0].len(), expected.len());
}
