//! Tests of the bridge without devices.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use roce_packet::pause::PauseRequest;
use roce_packet::{
    Bth, Ecn, Encapsulation, Envelope, Frame, FrameHeaders, MacAddr, NetworkHeader, Opcode, Path, PauseFrame,
    Psn, Qpn, VlanTag, icrc,
};
use roce_transport::Instant;

use super::*;

mod telemetry;

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn path(is_ipv4: bool) -> Path {
    let address = |last: u8| match is_ipv4 {
        true => IpAddr::from([198, 18, 0, last]),
        false => IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
    };
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: address(1),
        destination: address(2),
        source_port: 0xd000,
        // DSCP 26 (priority 3), ECT(0).
        traffic_class: 26 << 2 | 0b10,
        hop_limit: 64,
        flow_label: 0x12345,
        vlan: None,
    }
}

/// Returns a datagram with a correct ICRC.
fn datagram(path: &Path, identification: u16, qpn: u32, psn: u32, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; Bth::LEN];
    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(qpn), Psn::new(psn));
    bth.emit(bytes.first_chunk_mut().unwrap());
    bytes.extend((0..payload).map(|index| (index as u32 ^ psn) as u8));
    let value = icrc::compute(&Envelope::new(path, identification), &bytes, &[]);
    bytes.extend(value.to_le_bytes());
    bytes
}

fn frame_of(path: &Path, identification: u16, datagram: &[u8]) -> Vec<u8> {
    let [to, from] = [2, 1].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
    let headers = FrameHeaders::new(path, identification, to, from, datagram.len()).unwrap();
    let mut frame = vec![0; headers.len_bytes()];
    headers.emit(&mut frame).unwrap();
    frame.extend_from_slice(datagram);
    frame
}

fn packet(qpn: u32, psn: u32, payload: usize) -> Vec<u8> {
    let path = path(true);
    frame_of(&path, psn as u16, &datagram(&path, psn as u16, qpn, psn, payload))
}

fn bridge(settings: &Settings) -> Bridge {
    Bridge::new(settings, [Port { mac: MAC, bits_per_second: Some(1_000_000_000) }; 2])
}

fn with_faults(plan: &str) -> Settings {
    let mut settings = Settings { seed: 42, ..Settings::default() };
    settings.left.faults = plan.parse().unwrap();
    settings
}

fn with_queue(toml: &str) -> Settings {
    let text = format!("[queue]\nfrom = \"left\"\n{toml}");
    Scenario::parse(&text, &|name| Err(format!("there is no {name}"))).unwrap().settings
}

/// Returns all frames that have left to the right by then.
fn leaving(bridge: &mut Bridge, now: u64) -> Vec<Vec<u8>> {
    let now = Instant::from_nanos(now);
    bridge.handle_timeout(now);
    std::iter::from_fn(|| bridge.poll_transmit(now, Side::Right)).map(|leaving| leaving.bytes).collect()
}

fn give(bridge: &mut Bridge, now: u64, frame: &[u8]) {
    bridge.handle_frame(Instant::from_nanos(now), Side::Left, Offload::NONE, frame);
}

fn psn_of(frame: &[u8]) -> u32 {
    Bth::parse(Frame::parse(frame).unwrap().transport).unwrap().0.psn.get()
}

#[track_caller]
fn ecn_of(frame: &[u8], good: bool) -> Ecn {
    let parsed = Frame::parse(frame).unwrap();
    assert_eq!(parsed.verify_icrc().unwrap().is_good(), good);
    parsed.path().ecn()
}

#[test]
fn by_default_everything_passes_unchanged_and_in_order() {
    let mut bridge = bridge(&Settings::default());
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1]);
    arp.resize(60, 0);
    let mut padded = packet(7, 1, 0);
    padded.extend([0xaa; 5]);
    // A wrong checksum in the IPv4 header makes a RoCE packet malformed, and the bridge still forwards it.
    // Three bytes are too short to be recognized as RoCE.
    let mut broken = packet(7, 1, 0);
    broken[24] ^= 1;
    let frames = [arp, packet(7, 0, 100), padded, broken, vec![1, 2, 3]];
    for frame in &frames {
        give(&mut bridge, 5, frame);
        assert_eq!(leaving(&mut bridge, 5), std::slice::from_ref(frame));
    }
    let counts = bridge.counts(Side::Left);
    assert_eq!((counts.packets, counts.other_frames, counts.malformed), (2, 3, 1));
    assert_eq!(bridge.poll_timeout(Instant::from_nanos(5)), None);
}

#[test]
fn a_mark_leaves_both_checksums_correct() {
    let mut bridge = bridge(&with_faults("ecn=100%"));
    let mut tagged = path(true);
    tagged.vlan = Some(VlanTag { pcp: 3, dei: false, vid: 100 });
    for path in [path(true), path(false), tagged] {
        let frame = frame_of(&path, 77, &datagram(&path, 77, 9, 5, 64));
        assert_eq!(ecn_of(&frame, true), Ecn::Capable0);
        give(&mut bridge, 0, &frame);
        let [marked] = <[_; 1]>::try_from(leaving(&mut bridge, 0)).unwrap();
        // The parser has checked the IPv4 checksum.
        assert_eq!(ecn_of(&marked, true), Ecn::CongestionExperienced);
        assert_eq!(Frame::parse(&marked).unwrap().path().dscp(), 26);
        let changed = frame.iter().zip(&marked).filter(|(before, after)| before != after).count();
        // The mark, and one or both bytes of the checksum, have changed.
        assert!(if path.source.is_ipv4() { (2..=3).contains(&changed) } else { changed == 1 }, "{changed}");
    }
    assert_eq!(bridge.counts(Side::Left).fault_marked, 3);
}

#[test]
fn damage_makes_the_icrc_wrong_and_nothing_else() {
    let mut bridge = bridge(&with_faults("rule:action=corrupt:200"));
    let path = path(true);
    let mut frame = frame_of(&path, 0, &datagram(&path, 0, 9, 5, 64));
    // The UDP checksum is optional in RoCE. The bridge keeps it correct.
    let sum = |frame: &[u8]| {
        let words = frame[34..]
            .chunks(2)
            .map(|two| u32::from(u16::from_be_bytes([two[0], *two.get(1).unwrap_or(&0)])));
        let pseudo = frame[26..34].chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let total = words.chain(pseudo).sum::<u32>() + 17 + (frame.len() - 34) as u32;
        let folded = (total & 0xffff) + (total >> 16);
        (folded & 0xffff) + (folded >> 16)
    };
    let checksum = !(sum(&frame) as u16);
    frame[40..42].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(sum(&frame), 0xffff);
    give(&mut bridge, 0, &frame);
    let [damaged] = <[_; 1]>::try_from(leaving(&mut bridge, 0)).unwrap();
    assert_eq!(ecn_of(&damaged, false), Ecn::Capable0);
    assert_eq!(sum(&damaged), 0xffff);
    assert_eq!(frame[42 + 25] ^ damaged[42 + 25], 0x80);
}

#[test]
fn joined_packets_are_split_before_rules_apply() {
    for is_ipv4 in [true, false] {
        let path = path(is_ipv4);
        let mut joined = Vec::new();
        for psn in 0..3 {
            joined.extend(datagram(&path, 100 + psn as u16, 9, psn, 64));
        }
        joined.extend(datagram(&path, 103, 9, 3, 10));
        let mut frame = frame_of(&path, 100, &joined);
        let udp = if is_ipv4 { 34 } else { 54 };
        // The sum of the pseudo header with the length of the whole packet, as the kernel leaves it.
        frame[udp + 6..udp + 8].copy_from_slice(&0x1234_u16.to_be_bytes());
        let words = [(udp + 8) as u16, 16 + 64, udp as u16, 6].map(u16::to_ne_bytes);
        let mut offload = [1, 5, 0, 0, 0, 0, 0, 0, 0, 0];
        offload[2..].copy_from_slice(words.as_flattened());
        let mut bridge = bridge(&with_faults("rule:rpsn=1,action=drop"));
        bridge.keep_lost();
        let now = Instant::ZERO;
        bridge.handle_frame(now, Side::Left, Offload(offload), &frame);
        let parts: Vec<_> = std::iter::from_fn(|| bridge.poll_transmit(now, Side::Right)).collect();
        assert_eq!(parts.iter().map(|part| psn_of(&part.bytes)).collect::<Vec<_>>(), [0, 2, 3]);
        for part in &parts {
            assert_eq!(ecn_of(&part.bytes, true), Ecn::Capable0);
            assert!(part.offload.needs_checksum() && !part.offload.is_joined());
            // The joined packet and its part differ only in their length, and so do the sums.
            let sum = u16::from_be_bytes([part.bytes[udp + 6], part.bytes[udp + 7]]);
            let len_of = |frame: &[u8]| (frame.len() - udp) as u16;
            let expected = 0x1234_u32 + 0xffff - u32::from(len_of(&frame)) + u32::from(len_of(&part.bytes));
            assert_eq!(u32::from(sum) % 0xffff, expected % 0xffff);
        }
        let lost = bridge.poll_lost(Side::Left).unwrap();
        let text = lost.touch.unwrap().text(bridge.plan(Side::Left));
        assert_eq!(text.as_deref(), Some("rule 1 (rule:rpsn=1,action=drop): dropped"));
    }
}

#[test]
fn other_joined_frames_pass_whole() {
    let mut bridge = bridge(&with_faults("drop=100%"));
    let offload = Offload([1, 1, 54, 0, 200, 5, 34, 0, 16, 0]);
    let mut tcp = packet(9, 0, 3000);
    tcp[23] = 6;
    bridge.handle_frame(Instant::ZERO, Side::Right, offload, &tcp);
    let leaving = bridge.poll_transmit(Instant::ZERO, Side::Left).unwrap();
    assert!(leaving.bytes == tcp && leaving.offload == offload && leaving.touch.is_none());
}

#[test]
fn rules_are_for_one_direction_and_one_pass() {
    let mut bridge = bridge(&with_faults("rule:rqp=2,rpsn=1,pass=1,action=drop"));
    let mut got = Vec::new();
    for (qpn, psn) in [(50, 10), (60, 70), (50, 11), (60, 71), (60, 71), (60, 72)] {
        give(&mut bridge, 0, &packet(qpn, psn, 8));
        got.extend(leaving(&mut bridge, 0).iter().map(|frame| psn_of(frame)));
    }
    assert_eq!(got, [10, 70, 11, 71, 72]);
    let [first, second]: [QueuePairCounts; 2] =
        bridge.queue_pairs(Side::Left).copied().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!((first.relative_qp, first.qpn, first.packets, first.retransmissions), (1, 50, 2, 0));
    assert_eq!((second.relative_qp, second.qpn, second.packets, second.retransmissions), (2, 60, 4, 1));
    // Packets from the other side are not dropped.
    for (qpn, psn) in [(50, 10), (60, 70), (60, 71)] {
        bridge.handle_frame(Instant::ZERO, Side::Right, Offload::NONE, &packet(qpn, psn, 8));
        assert!(bridge.poll_transmit(Instant::ZERO, Side::Left).is_some());
    }
}

#[test]
fn copies_delays_and_overtaking() {
    let plan = "rule:psn=1,action=dup;rule:psn=3,action=delay:10us;rule:psn=5,action=reorder:2";
    let mut bridge = bridge(&with_faults(plan));
    let mut got = Vec::new();
    for psn in 0..8 {
        give(&mut bridge, 1_000 * u64::from(psn), &packet(9, psn, 8));
        got.extend(leaving(&mut bridge, 1_000 * u64::from(psn)).iter().map(|frame| psn_of(frame)));
    }
    assert_eq!(got, [0, 1, 1, 2, 4, 6, 7, 5]);
    assert_eq!(bridge.poll_timeout(Instant::from_nanos(7_000)), Some(Instant::from_nanos(13_000)));
    assert!(leaving(&mut bridge, 12_999).is_empty());
    assert_eq!(psn_of(&leaving(&mut bridge, 13_000)[0]), 3);
}

/// Polls a queue to which 1,000 packets arrive at once.
#[test]
fn a_rate_is_exact_however_rarely_it_is_polled() {
    for step in [1_000, 50_000, 7_000_000] {
        let mut bridge = bridge(&with_queue("rate = \"1Gbps\"\ndelay = \"5us\"\nbytes = \"2MB\""));
        let frame = packet(9, 0, 1024);
        for _ in 0..1000 {
            give(&mut bridge, 0, &frame);
        }
        let wire_ns = (frame.len() as u64 + 24) * 8;
        let (mut now, mut count) = (0, 0);
        while count < 1000 {
            now += step;
            let left = leaving(&mut bridge, now).len() as u64;
            count += left;
            let expected = (now.saturating_sub(5_000) / wire_ns).min(1000);
            assert_eq!(count, expected, "at {now}");
        }
    }
}

#[test]
fn a_queue_drops_marks_and_drains() {
    let settings = with_queue("rate = \"1Gbps\"\nbytes = \"50KB\"\nstep = \"20KB\"");
    let mut bridge = bridge(&settings);
    let frame = packet(9, 0, 1024);
    for _ in 0..60 {
        give(&mut bridge, 0, &frame);
    }
    let counts = bridge.counts(Side::Left);
    // One packet leaves at once.
    let room = 50_000 / frame.len() as u64;
    assert_eq!((counts.queue_dropped, counts.queue_most_bytes), (60 - room - 1, room * frame.len() as u64));
    let left = leaving(&mut bridge, 1_000_000);
    let marked = left.iter().filter(|frame| ecn_of(frame, true) == Ecn::CongestionExperienced).count() as u64;
    // The first packet leaves an empty queue. Of the others, those with more than 20,000 bytes behind them
    // are marked.
    let expected = (0..room).filter(|behind| behind * frame.len() as u64 > 20_000).count() as u64;
    assert_eq!((marked, bridge.counts(Side::Left).queue_marked), (expected, expected));
    assert_eq!(bridge.counts(Side::Left).queue_bytes, 0);
    assert_eq!(bridge.poll_timeout(Instant::from_nanos(1_000_000)), None);
}

#[test]
fn a_sender_is_paused_before_the_queue_is_full_and_resumed() {
    let settings =
        with_queue("rate = \"1Gbps\"\nbytes = \"50KB\"\npfc = [3]\nxoff = \"10KB\"\nxon = \"5KB\"");
    let mut bridge = bridge(&settings);
    for psn in 0..12 {
        give(&mut bridge, 0, &packet(9, psn, 1024));
    }
    let request = |bridge: &mut Bridge, now| {
        let frame = bridge.poll_transmit(Instant::from_nanos(now), Side::Left)?;
        let pause = PauseFrame::parse(&frame.bytes).unwrap();
        assert_eq!(pause.source, MAC);
        let PauseRequest::PerPriority(quanta) = pause.request else { panic!("{pause:?}") };
        assert!(quanta.iter().enumerate().all(|(priority, quanta)| quanta.is_some() == (priority == 3)));
        quanta[3]
    };
    assert_eq!((request(&mut bridge, 0), request(&mut bridge, 0)), (Some(u16::MAX), None));
    // The queue is still full when half of the pause is over, so the pause is refreshed. 65,535 quanta of 512
    // bits at 1 Gb/s are 33 ms.
    bridge.set_full(Side::Right, true);
    assert_eq!(bridge.poll_timeout(Instant::ZERO), Some(Instant::from_nanos(16_776_960)));
    assert_eq!((request(&mut bridge, 16_000_000), request(&mut bridge, 17_000_000)), (None, Some(u16::MAX)));
    bridge.set_full(Side::Right, false);
    assert_eq!(leaving(&mut bridge, 18_000_000).len(), 12);
    assert_eq!((request(&mut bridge, 18_000_000), request(&mut bridge, 18_000_000)), (Some(0), None));
    assert_eq!(bridge.counts(Side::Left).pauses_sent, 3);
}

#[test]
fn a_pause_that_is_received_holds_its_priority_back() {
    let mut bridge = bridge(&with_queue("rate = \"1Gbps\""));
    let mut quanta = [None; 8];
    quanta[3] = Some(1000);
    let mut pause = [0; PauseFrame::LEN];
    PauseFrame { source: MAC, request: PauseRequest::PerPriority(quanta) }.emit(&mut pause);
    bridge.handle_frame(Instant::ZERO, Side::Right, Offload::NONE, &pause);
    // The bridge does not forward the pause frame.
    assert!(bridge.poll_transmit(Instant::ZERO, Side::Left).is_none());
    for psn in 0..3 {
        give(&mut bridge, 10, &packet(9, psn, 1024));
    }
    // 1000 * 512 bits at 1 Gb/s.
    assert_eq!(bridge.poll_timeout(Instant::from_nanos(10)), Some(Instant::from_nanos(512_000)));
    assert!(leaving(&mut bridge, 511_999).is_empty());
    assert!(leaving(&mut bridge, 512_000).is_empty(), "its transmission takes time");
    assert_eq!(leaving(&mut bridge, 600_000).len(), 3);
    assert_eq!(bridge.counts(Side::Left).pauses_received, 1);
}

#[test]
fn what_is_decided_depends_on_seed_and_packet_and_not_on_time() {
    let plan =
        "drop=5%,dup=5%,ecn=10%,corrupt=5%,delay=0us-40us@10%;rule:rqp=1,rpsn=50-60,pass=1,action=drop";
    let decisions = |seed, gap: u64| {
        let settings = Settings { seed, ..with_faults(plan) };
        let mut bridge = bridge(&settings);
        let mut times: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
        for psn in 0..2000 {
            give(&mut bridge, gap * u64::from(psn), &packet(9, psn, 32));
        }
        bridge.handle_timeout(Instant::from_nanos(u64::MAX / 2));
        for frame in leaving(&mut bridge, u64::MAX / 2) {
            // The PSN may be damaged, but the Identification contains a copy.
            let Ok(Frame { headers: FrameHeaders { network: NetworkHeader::Ipv4 { ip, .. }, .. }, .. }) =
                Frame::parse(&frame)
            else {
                panic!("{frame:?}")
            };
            times.entry(ip.identification.into()).or_default().push(frame);
        }
        times
    };
    let first = decisions(1, 100);
    assert!(first.len() < 1950 && first.len() > 1700, "{}", first.len());
    assert!(first == decisions(1, 100) && first == decisions(1, 3_333) && first == decisions(1, 0));
    assert!(first != decisions(2, 100));
}

#[test]
fn the_draw_of_a_mark_belongs_to_the_packet() {
    let marked = |seed| {
        let toml = "rate = \"1Gbps\"\nbytes = \"10MB\"\nkmin = \"0\"\nkmax = \"9MB\"\npmax = 1.0";
        let mut bridge = bridge(&Settings { seed, ..with_queue(toml) });
        for psn in 0..500 {
            give(&mut bridge, 0, &packet(9, psn, 1024));
        }
        let left = leaving(&mut bridge, 1_000_000_000);
        left.iter()
            .filter(|it| ecn_of(it, true) == Ecn::CongestionExperienced)
            .map(|it| psn_of(it))
            .collect::<Vec<_>>()
    };
    let first = marked(1);
    // On average, the queue has a quarter of a megabyte. With a `kmax` of 9 MB, about 14 packets are marked.
    assert!(first.len() > 3 && first.len() < 40, "{}", first.len());
    assert!(first == marked(1) && first != marked(2));
}

#[test]
fn comments_say_why_and_what() {
    let text = |plan: &str| {
        let mut bridge = bridge(&with_faults(plan));
        give(&mut bridge, 0, &packet(9, 5, 8));
        let now = Instant::from_nanos(1_000_000_000);
        bridge.handle_timeout(now);
        let leaving = bridge.poll_transmit(now, Side::Right).unwrap();
        leaving.touch.unwrap().text(bridge.plan(Side::Left))
    };
    assert_eq!(text("none"), None);
    assert_eq!(text("rule:action=deliver"), None);
    assert_eq!(text("ecn=100%").as_deref(), Some("chance: marked CE"));
    assert_eq!(
        text("rule:psn=5,action=corrupt:7").as_deref(),
        Some("rule 1 (rule:psn=5,action=corrupt:7): corrupted (bits 7 from the BTH on)")
    );
    assert_eq!(text("dup=100%,delay=10us").as_deref(), Some("chance: duplicated, delayed by 10000 ns"));
}

/// Regression: rules and the queue did not recognize RoCE in tunnels and behind two tags.
#[test]
fn every_encapsulation_is_recognized_marked_and_damaged() {
    use roce_packet::outer::{Link, Outer};
    use roce_testing::encapsulated::{self, End};

    let ethernet = |case: &encapsulated::Encapsulated| case.link_type == 1;
    for case in encapsulated::whole().into_iter().filter(ethernet) {
        let name = case.name;
        let place = packet::Place::find(&case.bytes).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(place.datagram(&case.bytes), &case.bytes[case.bth..], "{name}");
        // A mark changes neither the ICRC nor the validity of any header.
        let mut marked = case.bytes.clone();
        let class = place.path(&marked).traffic_class;
        place.set_traffic_class(&mut marked, class | 0b11);
        let outer = |bytes: &[u8]| {
            let outer = Outer::decode(bytes, Link::Ethernet, bytes.len(), 4791);
            (outer.error, outer.check_icrc().map(|icrc| icrc.check.is_good()))
        };
        assert_eq!(place.path(&marked).ecn(), Ecn::CongestionExperienced, "{name}");
        assert_eq!(outer(&marked), (None, Some(true)), "{name}");
        assert_eq!(marked.iter().zip(&case.bytes).filter(|(a, b)| a != b).count().min(1), 1, "{name}");
        // Damage invalidates only the ICRC, and does not change the headers.
        let mut damaged = case.bytes.clone();
        place.flip(&mut damaged, Offload::NONE, &roce_fault::BitFlips::one(8 * 20 + 3));
        assert_eq!(outer(&damaged), (None, Some(false)), "{name}");
    }
    for case in encapsulated::cut().into_iter().filter(ethernet) {
        assert!(case.end != End::Here);
        assert!(packet::Place::find(&case.bytes).is_err(), "{}: its end is not there", case.name);
    }
    for (name, frame, _) in encapsulated::foreign() {
        assert_eq!(packet::Place::find(&frame).err(), Some(packet::NoPlace::NotRoce), "{name}");
    }
}
