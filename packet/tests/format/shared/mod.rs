//! Test vectors, and captures of NICs and kernels.

use std::path::{Path, PathBuf};

use roce_testing::{captures_in, kernel_captures, read_capture_file, skip_unless, vectors};
use serde_json::Value;

/// Returns the folder with captures of third parties. Returns `None`, with a message, if it does not exist.
#[track_caller]
pub(crate) fn captures_of_others() -> Option<PathBuf> {
    let folder = roce_testing::shared("pcaps");
    (!skip_unless(folder.is_some(), "no captures of other people at ../shared/pcaps")).then_some(folder?)
}

/// Returns the captures of the kernel's Soft-RoCE, sorted by name.
pub(crate) fn rxe_captures() -> Vec<PathBuf> {
    captures_in(&kernel_captures(), &["pcap"])
}

pub(crate) fn json(name: &str) -> Value {
    let path = vectors(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number")) as usize
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("hexadecimal") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A little-endian classic pcap file with its link type.
pub(crate) struct Capture {
    pub(crate) link_type: u32,
    pub(crate) packets: Vec<Vec<u8>>,
}

pub(crate) fn read_capture(path: &Path) -> Capture {
    let bytes = read_capture_file(path);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), 0xa1b2_c3d4, "{}: not a little-endian pcap", path.display());
    let mut packets = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let (captured, original) = (word(at + 8), word(at + 12));
        assert_eq!(captured, original, "{}: a packet was cut when it was captured", path.display());
        let end = at + 16 + captured as usize;
        packets.push(bytes[at + 16..end].to_vec());
        at = end;
    }
    Capture { link_type: word(20), packets }
}

pub(crate) const LINK_TYPE_ETHERNET: u32 = 1;
pub(crate) const LINK_TYPE_ERF: u32 = 197;

/// Returns the bytes from LRH to ICRC of an ERF record (a format of Endace capture cards) of type InfiniBand.
pub(crate) fn infiniband_of_erf<'a>(record: &'a [u8], name: &str) -> &'a [u8] {
    const HEADER_LEN: usize = 16;
    const TYPE_INFINIBAND: u8 = 21;
    assert_eq!(record[8] & 0x7f, TYPE_INFINIBAND, "{name}");
    let mut rest = &record[HEADER_LEN..];
    // Bit 7 of the record header and of each extension header means that an extension header of 8 bytes
    // follows.
    let mut more = record[8] & 0x80 != 0;
    while more {
        more = rest[0] & 0x80 != 0;
        rest = &rest[8..];
    }
    // The length in the LRH counts from the LRH to the ICRC, in words of four bytes. The variant CRC follows.
    let words = usize::from(u16::from_be_bytes([rest[4], rest[5]]) & 0x07ff);
    &rest[..words * 4]
}
