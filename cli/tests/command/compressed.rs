//! Capture files that were compressed with gzip, through every command that reads captures.

use std::io::Write;
use std::path::Path;

use crate::common::frames::{frame, write_capture};
use crate::common::run;
use flate2::Compression;
use flate2::write::GzEncoder;
use roce_packet::{Opcode, Psn};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn gzip(contents: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap()
}

/// Writes ten packets, and returns the names of the plain and of the compressed file.
fn files(folder: &Path) -> [String; 2] {
    let frames: Vec<_> =
        (0..10).map(|psn| frame(Opcode::RC_SEND_ONLY, Psn::new(psn), &[psn as u8; 40])).collect();
    let (plain, compressed) = (folder.join("x.pcap"), folder.join("x.pcap.gz"));
    write_capture(&plain, &frames);
    std::fs::write(&compressed, gzip(&std::fs::read(&plain).unwrap())).unwrap();
    [plain, compressed].map(|path| text(&path).to_owned())
}

#[test]
fn compressed_captures_are_dissected_explained_and_injected() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, compressed] = files(folder.path());
    for options in [&[][..], &["--json"], &["--tree"]] {
        let [from_plain, from_compressed] =
            [&plain, &compressed].map(|file| run(&[&["dissect", file][..], options].concat()));
        assert!(from_compressed.success, "{from_compressed:?}");
        assert_eq!(from_compressed.stdout, from_plain.stdout);
        assert!(from_compressed.stderr.contains("ICRC: 10 good, 0 bad"), "{from_compressed:?}");
    }
    let explained = run(&["explain", &format!("{compressed}:8")]);
    assert!(explained.success && explained.stdout.contains("Packet 8 of"), "{explained:?}");
    let [from_plain, from_compressed] =
        [&plain, &compressed].map(|file| run(&["inject", file, "--dry-run", "--device", "udp:127.0.0.1"]));
    assert!(from_compressed.success, "{from_compressed:?}");
    assert_eq!(from_compressed.stdout, from_plain.stdout);
}

#[test]
fn a_cut_compressed_capture_shows_its_packets_and_then_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let [_, compressed] = files(folder.path());
    let whole = std::fs::read(&compressed).unwrap();
    // Without checksum and length, every packet is there.
    std::fs::write(&compressed, &whole[..whole.len() - 8]).unwrap();
    let finished = run(&["dissect", &compressed]);
    assert_eq!((finished.code, finished.stdout.lines().count()), (Some(1), 11), "{finished:?}");
    assert!(finished.stderr.contains("x.pcap.gz: packet 11 at byte"), "{finished:?}");
    assert!(finished.stderr.contains("the gzip file ends before the end of its data"), "{finished:?}");
    // Other programs are named for other formats.
    std::fs::write(&compressed, [0x28, 0xb5, 0x2f, 0xfd, 0]).unwrap();
    let finished = run(&["dissect", &compressed]);
    assert!(finished.stderr.contains("unzstd < FILE"), "{finished:?}");
}
