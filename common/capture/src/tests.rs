use std::error::Error as _;
use std::io::{self, Cursor};
use std::sync::{Arc, Mutex};

use flate2::Compression;
use flate2::write::GzEncoder;
use pcap_file::pcapng::{Block, PcapNgReader};
use proptest::prelude::*;

use super::source::ByteOrder;
use super::*;

/// All properties of a packet, owned.
#[derive(Debug, PartialEq)]
struct Owned {
    time_ns: Option<u64>,
    link_type: u32,
    interface: Option<u32>,
    interface_name: Option<String>,
    direction: Direction,
    comment: Option<String>,
    original_len: u32,
    bytes: Vec<u8>,
}

/// Reads all packets until the end or the first error.
fn read(file: &[u8]) -> (Vec<Owned>, Option<CaptureError>) {
    let mut packets = Vec::new();
    let mut reader = match CaptureReader::new(Cursor::new(file.to_vec()), "test.pcap") {
        Ok(reader) => reader,
        Err(error) => return (packets, Some(error)),
    };
    while let Some(next) = reader.next_packet() {
        match next {
            Ok(packet) => {
                assert_eq!(packet.number, packets.len() as u64 + 1);
                packets.push(Owned {
                    time_ns: packet.time_ns,
                    link_type: packet.link_type.0,
                    interface: packet.interface,
                    interface_name: packet.interface_name.map(str::to_owned),
                    direction: packet.direction,
                    comment: packet.comment.map(str::to_owned),
                    original_len: packet.original_len,
                    bytes: packet.bytes.to_vec(),
                });
            }
            Err(error) => {
                assert!(reader.next_packet().is_none(), "nothing comes after an error");
                return (packets, Some(error));
            }
        }
    }
    assert!(reader.next_packet().is_none());
    (packets, None)
}

fn read_all(file: &[u8]) -> Vec<Owned> {
    let (packets, error) = read(file);
    assert!(error.is_none(), "{}", error.unwrap());
    packets
}

/// Writes numbers in one of the two byte orders.
#[derive(Clone)]
struct Build {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl Build {
    fn new(order: ByteOrder) -> Self {
        Self { order, bytes: Vec::new() }
    }

    fn u16(mut self, value: u16) -> Self {
        self.bytes.extend(match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        });
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend(match self.order {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        });
        self
    }

    fn u64(self, value: u64) -> Self {
        let (high, low) = ((value >> 32) as u32, value as u32);
        match self.order {
            ByteOrder::Big => self.u32(high).u32(low),
            ByteOrder::Little => self.u32(low).u32(high),
        }
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn padded(self, bytes: &[u8]) -> Self {
        let padding = bytes.len().next_multiple_of(4) - bytes.len();
        self.raw(bytes).raw(&[0; 3][..padding])
    }

    fn option(self, code: u16, value: &[u8]) -> Self {
        self.u16(code).u16(value.len() as u16).padded(value)
    }

    fn block(self, block_type: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let body = body(Self::new(self.order)).bytes;
        let total = body.len() as u32 + 12;
        self.u32(block_type).u32(total).raw(&body).u32(total)
    }

    fn section(self) -> Self {
        self.block(0x0a0d_0d0a, |body| body.u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX))
    }

    fn interface(self, link_type: u16, options: impl FnOnce(Self) -> Self) -> Self {
        self.block(1, |body| options(body.u16(link_type).u16(0).u32(0)))
    }

    fn enhanced(self, interface: u32, time: u64, original_len: u32, data: &[u8]) -> Self {
        self.enhanced_with(interface, time, original_len, data, |body| body)
    }

    fn enhanced_with(
        self,
        interface: u32,
        time: u64,
        original_len: u32,
        data: &[u8],
        options: impl FnOnce(Self) -> Self,
    ) -> Self {
        self.block(6, |body| {
            let body = body.u32(interface).u32((time >> 32) as u32).u32(time as u32);
            options(body.u32(data.len() as u32).u32(original_len).padded(data))
        })
    }
}

fn classic(order: ByteOrder, magic: u32, link_type: u32) -> Build {
    Build::new(order).u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65535).u32(link_type)
}

fn record(build: Build, seconds: u32, fraction: u32, original_len: u32, data: &[u8]) -> Build {
    build.u32(seconds).u32(fraction).u32(data.len() as u32).u32(original_len).raw(data)
}

const ORDERS: [ByteOrder; 2] = [ByteOrder::Big, ByteOrder::Little];

#[test]
fn classic_files_of_both_byte_orders_and_resolutions_are_read() {
    for order in ORDERS {
        for (magic, expected) in [(0xa1b2_c3d4, 7_000_000_005_000), (0xa1b2_3c4d, 7_000_000_000_005)] {
            let file = record(classic(order, magic, 1), 7_000, 5, 3, &[1, 2, 3]);
            let file = record(file, 7_001, 0, 100, &[9; 60]).bytes;
            let packets = read_all(&file);
            assert_eq!(packets.len(), 2);
            assert_eq!(packets[0].time_ns, Some(expected));
            assert_eq!(packets[0].bytes, [1, 2, 3]);
            assert_eq!((packets[0].link_type, packets[0].interface), (1, None));
            assert_eq!((packets[1].bytes.len(), packets[1].original_len), (60, 100));
        }
    }
}

#[test]
fn the_length_of_a_check_sequence_is_no_part_of_the_link_type() {
    let file = classic(ByteOrder::Little, 0xa1b2_c3d4, 0x4400_0001);
    assert_eq!(read_all(&record(file, 0, 0, 1, &[0]).bytes)[0].link_type, 1);
}

#[test]
fn snapped_packets_are_flagged() {
    let file = record(classic(ByteOrder::Big, 0xa1b2_c3d4, 1), 0, 0, 100, &[0; 60]).bytes;
    let mut reader = CaptureReader::new(Cursor::new(file), "x").unwrap();
    assert!(reader.next_packet().unwrap().unwrap().is_snapped());
    let file = record(classic(ByteOrder::Big, 0xa1b2_c3d4, 1), 0, 0, 60, &[0; 60]).bytes;
    let mut reader = CaptureReader::new(Cursor::new(file), "x").unwrap();
    assert!(!reader.next_packet().unwrap().unwrap().is_snapped());
}

#[test]
fn pcapng_of_both_byte_orders_is_read_with_names_comments_and_directions() {
    for order in ORDERS {
        let file = Build::new(order)
            .section()
            .interface(1, |body| body.option(2, b"left").option(9, &[9]).u32(0))
            .interface(101, |body| body.option(2, b"right"))
            .enhanced_with(0, 1_700_000_000_000_000_001, 4, &[1, 2, 3, 4], |body| {
                body.option(1, b"first").option(1, b"second").option(2, &[]).u32(0)
            })
            .enhanced_with(1, 2_000_000, 5, &[5], |body| {
                let flags = Build::new(order).u32(2).bytes;
                body.option(2, &flags)
            })
            .bytes;
        let packets = read_all(&file);
        assert_eq!(packets[0].time_ns, Some(1_700_000_000_000_000_001));
        assert_eq!(packets[0].comment.as_deref(), Some("first"));
        assert_eq!(packets[0].direction, Direction::Unknown);
        assert_eq!(packets[0].bytes, [1, 2, 3, 4]);
        // Times are microseconds without the option, and the end mark is optional.
        assert_eq!(packets[1].time_ns, Some(2_000_000_000));
        assert_eq!(packets[1].direction, Direction::Outbound);
        assert_eq!((packets[1].interface, packets[1].link_type), (Some(1), 101));

        assert_eq!(packets[0].interface_name.as_deref(), Some("left"));
        assert_eq!(packets[1].interface_name.as_deref(), Some("right"));
        let reader = CaptureReader::new(Cursor::new(file), "x").unwrap();
        assert_eq!(reader.format(), CaptureFormat::Pcapng);
    }
}

#[test]
fn times_of_every_resolution_and_offset_become_nanoseconds() {
    let table: [(&[u8], u64, u64, u64); 8] = [
        (&[6], 0, 1_000_001, 1_000_001_000),
        (&[3], 0, 5, 5_000_000),
        (&[9], 100, 5, 100_000_000_005),
        (&[12], 0, 5_999, 5),
        (&[0x80 | 10], 0, 1024, 1_000_000_000),
        (&[0x80 | 32], 0, 1 << 31, 500_000_000),
        // Times beyond the range of the number must not cause a panic.
        (&[127], 0, u64::MAX, 0),
        (&[0], 0, u64::MAX, u64::MAX),
    ];
    for (resolution, offset, units, expected) in table {
        let file = Build::new(ByteOrder::Little)
            .section()
            .interface(1, |body| body.option(9, resolution).option(14, &offset.to_le_bytes()).u32(0))
            .enhanced(0, units, 1, &[0])
            .bytes;
        assert_eq!(read_all(&file)[0].time_ns, Some(expected), "{resolution:?} {offset} {units}");
    }
    let file = Build::new(ByteOrder::Little)
        .section()
        .interface(1, |body| body.option(14, &(-5_i64).to_le_bytes()))
        .enhanced(0, 7_000_000, 1, &[0])
        .enhanced(0, 1_000_000, 1, &[0])
        .bytes;
    let times: Vec<_> = read_all(&file).iter().map(|packet| packet.time_ns).collect();
    assert_eq!(times, [Some(2_000_000_000), Some(0)]);
}

#[test]
fn simple_and_old_packets_are_read_and_other_blocks_passed_over() {
    for order in ORDERS {
        let file = Build::new(order)
            .section()
            .block(1, |body| body.u16(1).u16(0).u32(6))
            .block(0x0000_0bad, |body| body.padded(&[0xaa; 100_000]))
            .block(3, |body| body.u32(9).padded(&[1, 2, 3, 4, 5, 6]))
            .block(3, |body| body.u32(2).padded(&[1, 2]))
            .block(2, |body| body.u16(0).u16(7).u32(0).u32(3_000_000).u32(3).u32(4).padded(&[7, 8, 9]))
            .bytes;
        let packets = read_all(&file);
        assert_eq!((packets[0].time_ns, packets[0].original_len), (None, 9));
        assert_eq!(packets[0].bytes, [1, 2, 3, 4, 5, 6]);
        assert_eq!(packets[1].bytes, [1, 2]);
        assert_eq!((packets[2].time_ns, packets[2].original_len), (Some(3_000_000_000), 4));
        assert_eq!(packets[2].bytes, [7, 8, 9]);
    }
}

#[test]
fn a_new_section_may_have_another_byte_order_and_forgets_the_interfaces() {
    let mut file = Build::new(ByteOrder::Little).section().interface(1, |b| b).enhanced(0, 0, 1, &[1]).bytes;
    file.extend(Build::new(ByteOrder::Big).section().interface(101, |b| b).enhanced(0, 0, 1, &[2]).bytes);
    file.extend(Build::new(ByteOrder::Big).section().enhanced(0, 0, 1, &[3]).bytes);
    let (packets, error) = read(&file);
    assert_eq!(packets.iter().map(|packet| packet.link_type).collect::<Vec<_>>(), [1, 101]);
    let error = error.unwrap();
    assert_eq!(error.packet, 3);
    assert!(matches!(error.kind, CaptureErrorKind::UnknownInterface { interface: 0, known: 0 }));
}

#[test]
fn a_file_cut_anywhere_gives_its_whole_packets_then_a_named_error() {
    let classic_file =
        record(record(classic(ByteOrder::Little, 0xa1b2_c3d4, 1), 0, 0, 9, &[1; 9]), 0, 0, 5, &[2; 5]).bytes;
    let pcapng_file = Build::new(ByteOrder::Little)
        .section()
        .interface(1, |body| body)
        .enhanced(0, 0, 9, &[1; 9])
        .enhanced(0, 0, 5, &[2; 5])
        .bytes;
    for (file, ends) in [(classic_file, [24, 49, 70]), (pcapng_file, [48, 92, 132])] {
        assert_eq!(file.len(), ends[2]);
        for cut in 0..file.len() {
            let (packets, error) = read(&file[..cut]);
            let whole = ends[1..].iter().filter(|end| **end <= cut).count();
            assert_eq!(packets.len(), whole, "cut at {cut}");
            // A cut at the end of a block or record is not detectable.
            let clean = ends.contains(&cut) || (ends[0] == 48 && cut == 28);
            assert_eq!(error.is_none(), clean, "cut at {cut}: {error:?}");
            if let Some(error) = error {
                let text = error.to_string();
                assert!(text.starts_with("test.pcap: "), "{text}");
                if cut >= ends[0] {
                    assert_eq!((error.packet, error.offset), (whole as u64 + 1, ends[whole] as u64));
                }
            }
        }
    }
}

/// Returns one gzip member with these contents.
fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    io::Write::write_all(&mut encoder, contents).unwrap();
    encoder.finish().unwrap()
}

/// Two packets of 1,000 bytes that cannot be compressed, as a complete file, and the ends of its packets.
fn incompressible() -> (Vec<u8>, [usize; 2]) {
    let mut state = 1_u32;
    let mut noise = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let data: Vec<u8> = (0..1_000).map(&mut noise).collect();
    let file = record(classic(ByteOrder::Little, 0xa1b2_c3d4, 1), 0, 0, 1_000, &data);
    (record(file, 0, 0, 1_000, &data[..999]).bytes, [24 + 16 + 1_000, 24 + 32 + 1_999])
}

#[test]
fn gzip_is_read_in_one_member_and_in_several() {
    let (file, ends) = incompressible();
    let plain = read_all(&file);
    assert_eq!(plain.len(), 2);
    assert_eq!(read_all(&gzip(&file)), plain);
    // Members may end anywhere, also inside a number. One of them may be empty.
    for at in [0, 1, 3, 4, 24, 30, ends[0], file.len() - 1, file.len()] {
        let members = [gzip(&file[..at]), gzip(b""), gzip(&file[at..])].concat();
        assert_eq!(read_all(&members), plain, "{at}");
    }
    let pcapng = Build::new(ByteOrder::Big).section().interface(1, |b| b).enhanced(0, 5, 1, &[9]).bytes;
    assert_eq!(read_all(&gzip(&pcapng)), read_all(&pcapng));
}

#[test]
fn gzip_cut_anywhere_gives_its_whole_packets_then_an_error() {
    let (file, _) = incompressible();
    let compressed = gzip(&file);
    let mut before = 0;
    for cut in 1..compressed.len() {
        let (packets, error) = read(&compressed[..cut]);
        let text = error.unwrap_or_else(|| panic!("cut at {cut}: no error")).to_string();
        let expected = if cut < 4 { "4 bytes needed" } else { "the gzip file ends before the end" };
        assert!(text.contains(expected), "cut at {cut}: {text}");
        assert!(packets.len() >= before, "cut at {cut}: a longer file has fewer packets");
        before = packets.len();
    }
    // The checksum and the length at the end belong to no packet.
    assert_eq!(before, 2);
    assert_eq!(read(&compressed[..compressed.len() - 8]).0.len(), 2);
}

#[test]
fn damaged_gzip_is_an_error_and_never_a_panic() {
    let (file, _) = incompressible();
    let compressed = gzip(&file);
    for at in 0..compressed.len() {
        let mut damaged = compressed.clone();
        damaged[at] ^= 0x10;
        let (packets, error) = read(&damaged);
        assert!(packets.len() <= 2);
        // The time and the operating system in the header do not matter, nor does the padding of the last
        // byte of the data.
        let is_ignored = (4..10).contains(&at) || at == compressed.len() - 9;
        assert!(error.is_some() || is_ignored, "{at}");
    }
}

/// A file of a few megabytes that would be several gigabytes long is read as a stream.
#[test]
fn gzip_of_zeros_without_end_is_skipped_without_memory() {
    /// Repeats one member without end.
    struct Members {
        head: Cursor<Vec<u8>>,
        member: Vec<u8>,
        at: usize,
        left: usize,
    }

    impl Read for Members {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.head.read(out)?;
            if count > 0 {
                return Ok(count);
            }
            if self.at == self.member.len() && self.left > 0 {
                (self.at, self.left) = (0, self.left - 1);
            }
            let count = self.member[self.at..].len().min(out.len());
            out[..count].copy_from_slice(&self.member[self.at..self.at + count]);
            self.at += count;
            Ok(count)
        }
    }

    // A block of almost 4 GiB that the reader skips, of which 64 MiB are present.
    let start = Build::new(ByteOrder::Little).section().u32(99).u32(u32::MAX - 3).bytes;
    let member = gzip(&vec![0; 1 << 20]);
    assert!(member.len() < 1 << 11, "{}", member.len());
    let (head, at) = (Cursor::new(gzip(&start)), member.len());
    let mut reader = CaptureReader::new(Members { head, member, at, left: 64 }, "bomb").unwrap();
    let error = reader.next_packet().unwrap().unwrap_err();
    assert!(matches!(error.kind, CaptureErrorKind::Truncated { have: 0x0400_0000, .. }), "{error}");
}

#[test]
fn broken_files_have_named_errors() {
    let little = |build: fn(Build) -> Build| build(Build::new(ByteOrder::Little)).bytes;
    let table: [(&str, Vec<u8>, &str); 23] = [
        ("empty", vec![], "the file is empty"),
        ("text", b"hello world".to_vec(), "not a pcap or pcapng file (it begins with 68 65 6c 6c)"),
        ("two bytes", vec![0xa1, 0xb2], "4 bytes needed, 2 found"),
        ("start of gzip", vec![0x1f, 0x8b, 8, 0, 0], "the gzip file ends before the end"),
        ("unknown gzip", vec![0x1f, 0x8b, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0], "the gzip data are damaged"),
        ("gzip of nothing", gzip(b""), "the file is empty"),
        ("gzip in gzip", gzip(&gzip(&[0; 60])), "gunzip < FILE"),
        ("zstd", vec![0x28, 0xb5, 0x2f, 0xfd], "unzstd"),
        ("xz", vec![0xfd, b'7', b'z', b'X', b'Z', 0], "unxz"),
        ("patched", vec![0x34, 0xcd, 0xb2, 0xa1], "patched libpcap"),
        ("short header", vec![0xa1, 0xb2, 0xc3, 0xd4, 0, 2], "20 bytes needed, 2 found"),
        ("version", little(|b| b.u32(0xa1b2_c3d4).u16(3).u16(1).raw(&[0; 16])), "version 3.1"),
        (
            "absurd packet",
            little(|b| b.raw(&classic(ByteOrder::Little, 0xa1b2_c3d4, 1).bytes).u64(0).u32(u32::MAX).u32(60)),
            "packet 1 at byte 24: a packet of 4294967295 bytes",
        ),
        ("section magic", little(|b| b.u32(0x0a0d_0d0a).u32(28).u32(7)), "byte-order magic"),
        ("section length", little(|b| b.u32(0x0a0d_0d0a).u32(12).u32(0x1a2b_3c4d).u32(12)), "too short"),
        (
            "section version",
            little(|b| b.u32(0x0a0d_0d0a).u32(28).u32(0x1a2b_3c4d).u16(2).u16(0)),
            "version 2.0",
        ),
        ("block length 0", little(|b| b.section().u32(6).u32(0)), "length of the block is impossible"),
        ("block length 13", little(|b| b.section().u32(6).u32(13)), "length of the block is impossible"),
        ("block length max", little(|b| b.section().u32(6).u32(u32::MAX - 3)), "longer than a packet"),
        (
            "unknown block, max",
            little(|b| b.section().u32(99).u32(u32::MAX - 3)),
            "4294967280 bytes needed, 0 found",
        ),
        ("trailer", little(|b| b.section().u32(99).u32(12).u32(16)), "lengths of the block differ"),
        (
            "data beyond block",
            little(|b| b.section().interface(1, |b| b).block(6, |b| b.u32(0).u64(0).u32(5).u32(5).u32(0))),
            "the packet is longer than the block",
        ),
        (
            "short packet block",
            little(|b| b.section().interface(1, |b| b).block(6, |b| b.u32(0))),
            "too short",
        ),
    ];
    for (name, file, expected) in table {
        let (_, error) = read(&file);
        let text = error.unwrap_or_else(|| panic!("{name}: no error")).to_string();
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[test]
fn a_missing_file_says_so() {
    let error = CaptureReader::open("/nonexistent/trace.pcap".as_ref()).unwrap_err();
    assert_eq!(error.to_string(), "/nonexistent/trace.pcap: cannot be opened");
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::NotFound));
    let error = PcapWriter::create("/nonexistent/trace.pcap".as_ref(), &[]).unwrap_err();
    assert!(error.to_string().contains("choose a directory that exists"), "{error}");
}

#[test]
fn broken_options_do_not_cost_a_packet() {
    let file = Build::new(ByteOrder::Big)
        .section()
        .interface(1, |body| body.u16(9).u16(60_000))
        .enhanced_with(0, 5, 1, &[1], |body| body.option(1, &[0xff, 0xfe]).u16(2).u16(8))
        .enhanced_with(0, 5, 1, &[1], |body| body.u16(1).u16(0xffff).u32(0))
        .bytes;
    let packets = read_all(&file);
    assert_eq!(packets.len(), 2);
    assert!(packets.iter().all(|packet| packet.comment.is_none() && packet.time_ns == Some(5_000)));
}

/// A destination for writes whose content can be examined afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Interface, time, direction, comment and frame.
type Written = (u32, u64, Direction, Option<String>, Vec<u8>);

fn write(packets: &[Written]) -> Vec<u8> {
    let output = Shared::default();
    let mut writer = PcapWriter::new(output.clone(), "out", &["left", "right"]).unwrap();
    for (interface, time_ns, direction, comment, frame) in packets {
        writer.write(*interface, *time_ns, *direction, comment.as_deref(), frame).unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    Arc::into_inner(output.0).unwrap().into_inner().unwrap()
}

#[test]
fn the_writer_refuses_what_it_cannot_write() {
    let mut writer = PcapWriter::new(Shared::default(), "out", &["only"]).unwrap();
    let error = writer.write(1, 0, Direction::Unknown, None, &[0; 60]).unwrap_err();
    assert_eq!(error.to_string(), "out: interface 1 is to be written, but there are 1, counted from 0");
    let long = vec![0; MAX_PACKET as usize + 1];
    let error = writer.write(0, 0, Direction::Unknown, None, &long).unwrap_err();
    assert!(matches!(error.kind, CaptureErrorKind::PacketTooLong(_)));
}

#[test]
fn an_interface_may_follow_packets_of_others() {
    let output = Shared::default();
    let mut writer = PcapWriter::new(output.clone(), "out", &["first"]).unwrap();
    writer.write(0, 1, Direction::Outbound, None, &[1; 60]).unwrap();
    assert_eq!(writer.add_interface("second").unwrap(), 1);
    writer.write(1, 2, Direction::Inbound, None, &[2; 60]).unwrap();
    writer.write(0, 3, Direction::Outbound, None, &[3; 60]).unwrap();
    drop(writer);
    let file = Arc::into_inner(output.0).unwrap().into_inner().unwrap();
    let found = read_all(&file);
    let of: Vec<_> = found.iter().map(|packet| (packet.interface_name.as_deref(), packet.bytes[0])).collect();
    assert_eq!(of, [(Some("first"), 1), (Some("second"), 2), (Some("first"), 3)]);
}

#[test]
fn copied_packets_are_those_of_the_other_file() {
    let pcapng = Build::new(ByteOrder::Big)
        .section()
        .interface(1, |body| body.option(2, b"eth0").option(9, &[6]))
        .interface(197, |body| body)
        .enhanced(1, 7, 90, &[1; 60])
        .enhanced_with(0, 8, 3, &[1, 2, 3], |body| body.option(1, b"a comment").option(2, &[0, 0, 0, 2]))
        .section()
        .interface(247, |body| body.option(2, b"ib0"))
        .enhanced(0, 9, 1, &[4])
        .bytes;
    let classic = record(classic(ByteOrder::Little, 0xa1b2_3c4d, 276), 5, 6, 9, &[1; 9]).bytes;
    for file in [pcapng, classic] {
        let expected = read_all(&file);
        let output = Shared::default();
        let mut writer = PcapWriter::new(output.clone(), "out", &[]).unwrap();
        let mut reader = CaptureReader::new(Cursor::new(file), "in").unwrap();
        while let Some(packet) = reader.next_packet() {
            writer.copy(&packet.unwrap()).unwrap();
        }
        drop(writer);
        let mut found = read_all(&Arc::into_inner(output.0).unwrap().into_inner().unwrap());
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter_mut().zip(&expected) {
            // Interfaces are numbered in the order of their first packets.
            found.interface = expected.interface;
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_long_comment_is_cut_at_a_character() {
    let comment = "é".repeat(40_000);
    let file = write(&[(0, 0, Direction::Unknown, Some(comment), vec![1])]);
    let packets = read_all(&file);
    assert_eq!(packets[0].comment.as_ref().unwrap().len(), 65_534);
    assert_eq!(packets[0].bytes, [1]);
}

#[test]
fn a_comment_says_that_a_packet_was_dropped() {
    for (comment, is_dropped) in [
        (Some("dropped by --fault before it was sent"), true),
        (Some("dropped by --fault after it was received"), true),
        (Some("dropped on the link"), true),
        (Some("delayed on the link by 40.0 us"), false),
        // Other programs count packets that the capture lacks.
        (Some("dropped 5 packets"), false),
        (None, false),
    ] {
        let file = write(&[(0, 0, Direction::Unknown, comment.map(str::to_owned), vec![1])]);
        let mut reader = CaptureReader::new(Cursor::new(file), "x").unwrap();
        assert_eq!(reader.next_packet().unwrap().unwrap().is_dropped(), is_dropped, "{comment:?}");
    }
}

prop_compose! {
    fn any_packet()(
        interface in 0_u32..2,
        time_ns: u64,
        direction in prop::sample::select(vec![Direction::Unknown, Direction::Inbound, Direction::Outbound]),
        comment in prop::option::of(".{0,40}"),
        frame in prop::collection::vec(any::<u8>(), 0..200),
    ) -> Written {
        (interface, time_ns, direction, comment, frame)
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(packets in prop::collection::vec(any_packet(), 0..8)) {
        let file = write(&packets);
        let found = read_all(&file);
        prop_assert_eq!(found.len(), packets.len());
        for (found, (interface, time_ns, direction, comment, frame)) in found.iter().zip(&packets) {
            prop_assert_eq!(found.interface, Some(*interface));
            prop_assert_eq!(found.time_ns, Some(*time_ns));
            prop_assert_eq!(found.direction, *direction);
            prop_assert_eq!(&found.comment, comment);
            prop_assert_eq!(&found.bytes, frame);
            prop_assert_eq!(found.link_type, 1);
        }
        // The reader of `pcap-file`, which wrote the file, agrees.
        let mut theirs = PcapNgReader::new(&file[..]).unwrap();
        let mut count = 0;
        while let Some(block) = theirs.next_block() {
            if let Block::EnhancedPacket(block) = block.unwrap() {
                prop_assert_eq!(&block.data[..], &found[count].bytes[..]);
                prop_assert_eq!(block.timestamp.as_nanos(), u128::from(found[count].time_ns.unwrap()));
                count += 1;
            }
        }
        prop_assert_eq!(count, packets.len());
    }

    #[test]
    fn any_bytes_behind_any_magic_are_read_without_panic(
        magic in prop::sample::select(vec![
            [0xa1, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1], [0x4d, 0x3c, 0xb2, 0xa1],
            [0x0a, 0x0d, 0x0d, 0x0a],
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut file = magic.to_vec();
        file.extend(rest);
        read(&file);
    }

    #[test]
    fn damage_is_never_a_panic(
        packets in prop::collection::vec(any_packet(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut file = write(&packets);
        for (index, value) in damage {
            let index = index.index(file.len());
            file[index] = value;
        }
        read(&file);
    }
}
