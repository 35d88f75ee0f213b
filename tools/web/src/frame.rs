//! One frame: what it says, whether it is right, what a responder answers, and how to change and build it.
//!
//! Frames are hexadecimal digits in and out. `from` is the first header: `auto`, `ethernet`, `ip`, `udp` or
//! `bth`. Functions that return JSON return a whole document. Errors are sentences for the reader of the
//! page.

mod answer;
mod build;
mod capture_file;
mod checks;
mod cover;
mod document;
mod edit;
mod examples;
mod formats;
mod input;
mod repair;

use roce_capture::CapturedPacket;

use input::{Input, hex};

/// Describes a frame: the documents of `roce explain` and `roce dissect`, the bytes that the ICRC covers, the
/// checks, and the answer of a responder.
///
/// # Errors
///
/// Returns an error if the digits or the name of the first header cannot be read.
pub fn frame(digits: &str, from: &str) -> Result<String, String> {
    let input = Input::parse(digits, from)?;
    Ok(document::of_bytes(&input.bytes, input.start, from == "auto", input.walk()))
}

/// Describes a packet of a capture, as [`frame`] does.
#[must_use]
pub fn framed(packet: &CapturedPacket<'_>) -> String {
    document::of_packet(packet)
}

/// Sets the first field with this key, and returns the changed frame. `text` is a decimal number, a number
/// with `0x`, an address, `true` or `false`, or the bytes of the field. With `repair`, lengths, checksums and
/// the ICRC are computed again, except for the field that was set.
///
/// # Errors
///
/// Returns an error if the frame has no such field, or the value does not fit.
pub fn set_field(digits: &str, from: &str, key: &str, text: &str, repair: bool) -> Result<String, String> {
    Ok(hex(&edit::set_field(Input::parse(digits, from)?, key, text, repair)?))
}

/// Inverts one bit and returns the changed frame. Bit 0 is the first one on the wire.
///
/// # Errors
///
/// Returns an error if the frame is shorter.
pub fn set_bit(digits: &str, bit: usize) -> Result<String, String> {
    edit::invert_bit(&mut Input::parse(digits, "ethernet")?.bytes, bit)
}

/// Lists the opcodes: number, name, transport, headers and payload.
#[must_use]
pub fn opcodes() -> String {
    build::opcodes()
}

/// Builds an Ethernet frame with right lengths, checksums and ICRC.
///
/// `description` is a JSON object with the keys `opcode`, `source`, `destination`, `source_port`, `qp`,
/// `psn`, `fields` and `payload`. All but the opcode may be missing. An empty payload means the shortest one
/// that the opcode allows.
///
/// # Errors
///
/// Returns an error that names the key with a wrong value.
pub fn build(description: &str) -> Result<String, String> {
    Ok(hex(&build::build(description)?))
}

/// Writes a frame for another program: `hex` (like xxd), `rust`, `scapy` or `command` (`roce explain`).
///
/// # Errors
///
/// Returns an error if the frame cannot be read or the format does not exist.
pub fn export(digits: &str, from: &str, format: &str) -> Result<String, String> {
    formats::export(&Input::parse(digits, from)?, format)
}

/// Writes a capture file (pcapng) with these frames, which begin with Ethernet or IP.
///
/// # Errors
///
/// Returns an error that names the number of a frame that cannot be read.
pub fn pcap(frames: &[String]) -> Result<Vec<u8>, String> {
    capture_file::pcap(frames)
}

/// Returns example frames with a name and a description each.
#[must_use]
pub fn examples() -> String {
    examples::examples()
}
