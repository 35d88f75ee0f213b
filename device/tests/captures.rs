//! Files of captures: their contents, their limits, and a disk without room.

#[path = "support/kept.rs"]
mod kept;
#[path = "support/testing.rs"]
mod testing;

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use kept::Kept;
use roce_capture::{CaptureReader, Direction, PcapWriter};
use roce_device::fault::FaultDevice;
use roce_device::memory::MemoryDevice;
use roce_device::pcap::{CaptureFile, CaptureSpec, PcapDevice};
use roce_fault::{FaultInjector, FaultPlan};
use roce_packet::Frame;
use testing::{counter, datagram, path, receive_all, send, send_batch};

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

#[test]
fn both_ends_are_written_to_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pair.pcapng");
    let (a, b) = MemoryDevice::pair(A, B).unwrap();
    let mut files = CaptureFile::create(&file, &["left", "right"]).unwrap().into_iter();
    let mut wrap =
        |device| PcapDevice::new(Box::new(device), Box::new(files.next().unwrap())).with_epoch(500);
    let (mut a, mut b) = (wrap(a), wrap(b));
    let sent = [datagram(&path(A, B), 1, 100), datagram(&path(A, B), 2, 4096)];
    send(&mut a, &path(A, B), &sent.each_ref().map(Vec::as_slice));
    assert_eq!(receive_all(&mut b).len(), 2);
    assert_eq!(counter(&a, "pcap_sent"), 2);
    assert_eq!(counter(&b, "pcap_received"), 2);
    assert_eq!(counter(&b, "pcap_write_errors"), 0);
    drop((a, b, files));

    let mut reader = CaptureReader::open(&file).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let frame = Frame::parse(packet.bytes).unwrap();
        assert!(frame.verify_icrc().unwrap().is_good(), "{frame:?}");
        assert_eq!(frame.path(), path(A, B));
        assert_eq!(packet.time_ns, Some(500));
        found.push((packet.interface, packet.direction, frame.transport.to_vec()));
    }
    let [first, second] = sent;
    assert_eq!(
        found,
        [
            (Some(0), Direction::Outbound, first.clone()),
            (Some(0), Direction::Outbound, second.clone()),
            (Some(1), Direction::Inbound, first),
            (Some(1), Direction::Inbound, second),
        ]
    );
}

/// A full disk.
struct Full;

impl io::Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_counted_and_nothing_else() {
    let writer = PcapWriter::new(Full, "full", &["left"]).unwrap();
    let file = CaptureFile::of_writer(writer, 1).pop().unwrap();
    let (a, mut b) = MemoryDevice::pair(A, B).unwrap();
    let mut a = PcapDevice::new(Box::new(a), Box::new(file));
    let bytes = datagram(&path(A, B), 1, 4096);
    for _ in 0..100 {
        send(&mut a, &path(A, B), &[&bytes]);
        assert_eq!(receive_all(&mut b).len(), 1);
    }
    assert!(counter(&a, "pcap_write_errors") > 0);
}

#[test]
fn a_capture_text_limits_the_bytes_of_packets_and_their_number() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a,b.pcapng");
    let spec: CaptureSpec = format!("{},snaplen=96,count=2", file.display()).parse().unwrap();
    assert_eq!(spec, CaptureSpec { file: file.clone(), snap_len: Some(96), max_packets: Some(2) });
    let capture = spec.create(&["left"]).unwrap().pop().unwrap();
    let (a, mut b) = MemoryDevice::pair(A, B).unwrap();
    let mut a = PcapDevice::new(Box::new(a), Box::new(capture));
    let bytes = datagram(&path(A, B), 1, 4096);
    for _ in 0..5 {
        send(&mut a, &path(A, B), &[&bytes]);
        assert_eq!(receive_all(&mut b).len(), 1, "what is not recorded is sent");
    }
    assert_eq!((counter(&a, "pcap_sent"), counter(&a, "pcap_skipped")), (2, 3));
    drop(a);
    let mut reader = CaptureReader::open(&file).unwrap();
    for _ in 0..2 {
        let packet = reader.next_packet().unwrap().unwrap();
        assert_eq!((packet.bytes.len(), packet.original_len as usize), (96, 42 + bytes.len()));
    }
    assert!(reader.next_packet().is_none());
}

#[test]
fn a_capture_text_that_makes_no_sense_is_refused_with_what_would() {
    let parse = |text: &str| text.parse::<CaptureSpec>();
    assert_eq!(parse("a b.pcapng").unwrap(), CaptureSpec::new("a b.pcapng".into()));
    assert_eq!(parse("x=1.pcapng").unwrap().file.to_str(), Some("x=1.pcapng"));
    for (text, part) in [
        ("", "the name of a file"),
        (",count=1", "the name of a file"),
        ("a,snaplen=0", "`snaplen=0`: expected snaplen=BYTES, at least 1"),
        ("a,snaplen=4294967296", "snaplen=BYTES"),
        ("a,count=0", "count=PACKETS, at least 1"),
        ("a,count=-1", "count=PACKETS, at least 1"),
        ("a,snaplem=128", "expected snaplen=BYTES or count=PACKETS"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// Regression: captures lacked outgoing packets that `--fault drop` dropped, and did not mark incoming ones.
#[test]
fn dropped_packets_are_recorded_with_a_comment() {
    let (a, b) = MemoryDevice::pair(A, B).unwrap();
    let (left, right) = (Kept::default(), Kept::default());
    let plan = |text: &str| Some(FaultInjector::new(text.parse::<FaultPlan>().unwrap(), 1));
    let recorded =
        |device: MemoryDevice, kept: &Kept| PcapDevice::new(Box::new(device), Box::new(kept.clone()));
    let (a, b) = (recorded(a, &left), recorded(b, &right));
    let (of_a, of_b) = (a.drop_recorder(), b.drop_recorder());
    let mut a = FaultDevice::new(Box::new(a), plan("rule:psn=2,action=drop"), None).with_drop_recorder(of_a);
    let mut b = FaultDevice::new(Box::new(b), None, plan("rule:psn=3,action=drop")).with_drop_recorder(of_b);
    let path = path(A, B);
    for psn in 1..=4 {
        send(&mut a, &path, &[&datagram(&path, psn, 8)]);
    }
    assert_eq!(receive_all(&mut b).len(), 2);
    let comments = |kept: &Kept| -> Vec<Option<String>> {
        kept.seen().iter().map(|(.., comment, _)| comment.clone()).collect()
    };
    let sent = Some("dropped by --fault before it was sent".to_owned());
    let received = Some("dropped by --fault after it was received".to_owned());
    assert_eq!(comments(&left), [None, sent, None, None]);
    assert_eq!(comments(&right), [None, received, None]);
    for kept in [&left, &right] {
        let is_good = |frame: &[u8]| Frame::parse(frame).unwrap().verify_icrc().unwrap().is_good();
        assert!(kept.seen().iter().all(|(.., frame)| is_good(frame)));
    }
    assert_eq!((counter(&a, "pcap_sent"), counter(&a, "pcap_dropped")), (4, 1));
    assert_eq!((counter(&b, "pcap_received"), counter(&b, "pcap_dropped")), (3, 1));
}

/// Regression: all packets of one call had the same time.
#[test]
fn every_packet_has_a_time_of_its_own() {
    let (a, b) = MemoryDevice::pair(A, B).unwrap();
    let (left, right) = (Kept::default(), Kept::default());
    let mut a = PcapDevice::new(Box::new(a), Box::new(left.clone()));
    let mut b = PcapDevice::new(Box::new(b), Box::new(right.clone()));
    send_batch(&mut a, &path(A, B), 6, 100);
    assert_eq!(receive_all(&mut b).len(), 6);
    for kept in [left, right] {
        let times: Vec<u64> = kept.seen().iter().map(|(time, ..)| *time).collect();
        assert_eq!(times.len(), 6);
        assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
    }
}
