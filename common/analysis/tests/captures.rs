//! Judges every capture of the repository. A rule that fails must be on the list, with the reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use roce_analysis::verdict::{self, Outcome, Verdict};
use roce_analysis::{Analysis, Collector, Packet};
use roce_capture::{CaptureReader, LinkType};
use roce_packet::ROCE_UDP_PORT;
use roce_packet::outer::Link;
use roce_testing::captures_in;

/// Rules that fail: the file without `.gz`, the key of the rule, and the reason.
const FAILURES: &[(&str, &str, &str)] = &[
    ("cnp.pcapng", "classes", "its packets get a VLAN tag in the middle of the connection"),
    ("rxe/cm-reject-no-listener.pcap", "cm", "nobody listens, so the connection is refused"),
    ("rxe/rc-write-ce-marked.pcap", "cnp", "Soft-RoCE sends no CNPs"),
];

/// Captures of other origins, beside the repository. Not every machine has them.
const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/pcaps");
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pcaps");

/// Returns the capture files of a folder and of its folders.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let mut files = captures_in(folder, &["pcap", "pcapng"]);
    let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    files.extend(entries.filter(|path| path.is_dir()).flat_map(|folder| captures(&folder)));
    files.sort();
    files
}

/// What a capture lacks.
#[derive(Clone, Copy, Debug)]
struct Lacks {
    /// Every packet with this remainder of its number by `divisor` is missing.
    remainder: u64,
    divisor: u64,
    /// Number of packets that are missing at the start.
    start: u64,
    /// Maximum number of bytes of a packet.
    snap_len: usize,
}

const NOTHING: Lacks = Lacks { remainder: 1, divisor: 1, start: 0, snap_len: usize::MAX };

/// Reads and analyses a file without the packets and bytes that it shall lack.
fn analyze(path: &Path, lacks: Lacks) -> Analysis {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut collector = Collector::new(ROCE_UDP_PORT);
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let link = match packet.link_type {
            LinkType::ETHERNET => Link::Ethernet,
            LinkType::RAW_IP | LinkType::IPV4 | LinkType::IPV6 => Link::Ip,
            LinkType::LINUX_SLL => Link::LinuxSll,
            LinkType::LINUX_SLL2 => Link::LinuxSll2,
            // Native InfiniBand, for example.
            _ => continue,
        };
        if packet.number <= lacks.start || packet.number % lacks.divisor == lacks.remainder {
            continue;
        }
        let captured = packet.bytes.len().min(lacks.snap_len);
        collector.add(&Packet {
            capture: 0,
            interface: packet.interface.unwrap_or(0) as u16,
            number: packet.number,
            time_ns: packet.time_ns,
            link,
            wire_len: packet.original_len as usize,
            is_dropped: false,
            bytes: &packet.bytes[..captured],
        });
    }
    collector.analyze()
}

fn verdicts(analysis: &Analysis) -> Vec<Verdict> {
    let mut verdicts = verdict::of_capture(analysis);
    for connection in &analysis.connections {
        verdicts.extend(verdict::of_connection(analysis, connection));
    }
    verdicts
}

/// Judges the captures of a folder. Returns the rules that failed, by file, and the number of passed ones.
fn judge(folder: &Path) -> (BTreeSet<(String, &'static str)>, usize) {
    let (mut failed, mut passed) = (BTreeSet::new(), 0);
    for path in captures(folder) {
        let name = path.strip_prefix(folder).unwrap().to_string_lossy().replace('\\', "/");
        let name = name.trim_end_matches(".gz");
        for verdict in verdicts(&analyze(&path, NOTHING)) {
            println!("{name}: {} {}: {}", verdict.rule.key, verdict.outcome.name(), verdict.summary);
            assert!(!verdict.summary.is_empty() && verdict.packets.len() <= verdict::MOST_PLACES, "{name}");
            match verdict.outcome {
                Outcome::Pass => passed += 1,
                Outcome::Fail => _ = failed.insert((name.to_owned(), verdict.rule.key)),
                Outcome::Unknown => {}
            }
        }
    }
    (failed, passed)
}

/// Returns the failures of the list for files that are in a folder.
fn expected(folder: &Path) -> BTreeSet<(String, &'static str)> {
    let is_there = |name: &str| folder.join(name).exists() || folder.join(format!("{name}.gz")).exists();
    let rows = FAILURES.iter().filter(|(name, ..)| is_there(name));
    rows.map(|(name, key, _)| ((*name).to_owned(), *key)).collect()
}

#[test]
fn captures_of_the_repository_fail_only_for_a_known_reason() {
    let own = Path::new(OWN);
    let (failed, passed) = judge(own);
    assert_eq!(failed, expected(own));
    assert!(passed > 100, "only {passed} verdicts pass");
}

#[test]
fn captures_of_other_origins_fail_only_for_a_known_reason() {
    let shared = Path::new(SHARED);
    if !shared.exists() {
        println!("SKIPPED: {} does not exist", shared.display());
        return;
    }
    assert_eq!(judge(shared).0, expected(shared));
}

/// The rules that are judged on captures with losses.
const RULES_OF_HEADERS: &[&str] = &["icrc", "classes", "pfc", "opcodes", "mtu", "hygiene", "entropy"];

#[test]
fn nobody_is_blamed_for_what_a_capture_lacks() {
    let own = Path::new(OWN);
    let known = expected(own);
    let missing = (2..=7)
        .flat_map(|divisor| (0..divisor).map(move |remainder| Lacks { remainder, divisor, ..NOTHING }));
    let starts = [1, 2, 3, 5, 8, 13, 21].map(|start| Lacks { start, ..NOTHING });
    let cuts = [64, 70, 96, 128].map(|snap_len| Lacks { snap_len, ..NOTHING });
    for lacks in missing.chain(starts).chain(cuts) {
        for path in captures(own) {
            let name = path.strip_prefix(own).unwrap().to_string_lossy().replace('\\', "/");
            for verdict in verdicts(&analyze(&path, lacks)) {
                let is_known = known.contains(&(name.clone(), verdict.rule.key));
                let is_wrong = verdict.outcome == Outcome::Fail && !is_known;
                let is_judged = RULES_OF_HEADERS.contains(&verdict.rule.key);
                assert!(!(is_wrong && is_judged), "{name}, {lacks:?}: {}", verdict.summary);
            }
        }
    }
}
