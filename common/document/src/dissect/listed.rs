//! A packet in a list of packets.

use roce_analysis::walk::{Icrc, Walk};
use serde::Serialize;

use super::columns::{DESTINATION, FLAGS, MARK, OPCODE, SOURCE};
use super::row::Row;

/// A packet in a list of packets, as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// Number in the file, from 1.
    pub number: u64,
    /// Time since the first packet.
    pub seconds: Option<f64>,
    /// Address of the sender.
    pub source: Option<String>,
    /// Address of the receiver.
    pub destination: Option<String>,
    /// Name of the opcode, or of another protocol.
    pub opcode: String,
    /// Destination queue pair.
    pub qp: Option<u32>,
    /// Packet sequence number.
    pub psn: Option<u32>,
    /// Bytes of payload, without padding.
    pub bytes: Option<usize>,
    /// Solicited event, MigReq and acknowledge request, such as `--A`.
    pub flags: String,
    /// Result of the ICRC check: `ok`, `bad`, or `-` if it cannot be checked.
    pub icrc: &'static str,
    /// Conclusion from the PSN, or `-`.
    pub mark: String,
    /// The extended headers and other remarks.
    pub note: String,
}

impl Listed {
    /// Takes the texts of a row, which was filled with the packet with this number.
    #[must_use]
    pub fn new(number: u64, walk: &Walk<'_>, row: &Row) -> Self {
        let cell = |column: usize| row.cells.get(column).map(String::as_str).unwrap_or_default();
        let present = |column| Some(cell(column)).filter(|text| !text.is_empty());
        let packet = walk.packet();
        Self {
            number,
            seconds: row.time_ns.map(|nanos| nanos as f64 / 1e9),
            source: present(SOURCE).map(str::to_owned),
            destination: present(DESTINATION).map(str::to_owned),
            opcode: cell(OPCODE).to_owned(),
            qp: packet.map(|packet| packet.bth.dest_qp().get()),
            psn: packet.map(|packet| packet.bth.psn().get()),
            bytes: packet.and_then(|packet| packet.payload_len),
            flags: cell(FLAGS).to_owned(),
            icrc: match packet.map(|packet| packet.icrc) {
                Some(icrc) if icrc.is_bad() => "bad",
                Some(Icrc::Checked(..)) => "ok",
                Some(Icrc::Unchecked(_)) | None => "-",
            },
            mark: present(MARK).unwrap_or("-").to_owned(),
            note: row.details.trim_end().replace("  ", "; "),
        }
    }
}
