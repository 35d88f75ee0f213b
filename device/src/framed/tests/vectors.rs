//! Frames of NICs, of the kernel and of another program with known ICRCs: each leaves the device byte for
//! byte unchanged, and is received with the same contents.

use roce_packet::Qpn;
use roce_transport::Identification;

use super::*;

/// Returns name and bytes of every frame.
fn vectors() -> Vec<(String, Vec<u8>)> {
    let text = std::fs::read_to_string(roce_testing::vectors("icrc.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let vectors = document["vectors"].as_array().expect("a list of vectors").iter().map(|vector| {
        let hex = vector["frame_hex"].as_str().expect("a frame");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        let bytes = (0..hex.len()).step_by(2).map(byte).collect();
        (vector["name"].as_str().expect("a name").to_owned(), bytes)
    });
    vectors.collect()
}

/// Returns the options `vlan=` and `prio=` for frames with this tag.
fn settings_of(tag: Option<VlanTag>) -> FrameSettings {
    let mut settings = FrameSettings::default();
    if let Some(tag) = tag {
        for (key, value) in [("vlan", tag.vid.to_string()), ("prio", tag.pcp.to_string())] {
            settings.set(key, &value, "").unwrap();
        }
    }
    settings
}

/// Returns the device that sent a frame, with a neighbour for the frame's destination.
fn sender_of(frame: &Frame<'_>, max_segments: u16) -> (FramedDevice, Link) {
    let headers = &frame.headers;
    let path = frame.path();
    // The RoCE v1 NIC sent to itself through a cable; a framed device delivers this without the wire.
    let own = if path.source == path.destination { Vec::new() } else { vec![path.source] };
    let (device, link) = device_of(headers.source, own, max_segments, settings_of(headers.vlan));
    link.lock().unwrap().neighbours.insert(path.destination, Resolution::Known(headers.destination));
    (device, link)
}

/// The number of frames of each kind, to detect omissions.
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
    let vectors = vectors();
    let (mut tally, mut with_udp_checksum) = (Tally::default(), Vec::new());
    for (name, bytes) in &vectors {
        let known = Frame::parse(bytes).unwrap();
        let identification = known.envelope().identification;
        let mut expected = bytes.clone();
        if let Some(udp) = known.headers.udp_offset()
            && bytes[udp + 6..udp + 8] != [0, 0]
        {
            // RoCE needs no UDP checksum and this device sends none (A17.9.2); the ICRC does not cover it.
            expected[udp + 6..udp + 8].fill(0);
            with_udp_checksum.push(name.as_str());
        }
        for max_segments in [1, 64] {
            let (mut sender, link) = sender_of(&known, max_segments);
            let mut path = known.path();
            path.vlan = sender.vlan(path.traffic_class);
            // Bytes from the engine: BTH to padding, and the ICRC for this path and Identification.
            let (body, _) = known.transport.split_last_chunk::<{ icrc::LEN }>().unwrap();
            let value = icrc::compute(&Envelope::new(&path, identification), body, &[]);
            let len = known.transport.len();
            let slot = sender.slot().expect("room");
            slot.buffer[..len].copy_from_slice(&[body, &value.to_le_bytes()].concat());
            sender.commit(Instant::ZERO, &Transmit::new(path, Qpn::default(), len, identification));
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
    let vectors = vectors();
    let mut tally = Tally::default();
    for (name, bytes) in &vectors {
        let known = Frame::parse(bytes).unwrap();
        let (path, tag) = (known.path(), known.headers.vlan);
        let receiver = |settings| device_of(known.headers.destination, vec![path.destination], 1, settings);
        // As on the wire, and with the tag removed by the interface.
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
            // Rejected by a host of another VLAN.
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
