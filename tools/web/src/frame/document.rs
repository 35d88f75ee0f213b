//! The document of a frame: its headers, the cover of its ICRC, the checks and the answer of a receiver.

use roce_analysis::walk::Walk;
use roce_capture::{CapturedPacket, Direction, LinkType};
use roce_document::dissect::Shown;
use roce_document::explain::{self, Explanation, Origin};
use serde::Serialize;
use serde_json::Value;

use super::answer::{self, Answer};
use super::checks::{self, Check};
use super::cover::Cover;
use super::input::Start;
use crate::program::PROGRAM;

/// The name of a capture whose name the caller does not know.
const UNNAMED: &str = "capture";

#[derive(Serialize)]
struct Document {
    explain: Value,
    dissect: Value,
    covered: Vec<(usize, usize)>,
    masked: Vec<(usize, u8)>,
    checks: Vec<Check>,
    answer: Answer,
}

/// Returns the document of bytes that begin with `start`.
pub(super) fn of_bytes(bytes: &[u8], start: Start, was_guessed: bool, walk: Walk<'_>) -> String {
    let packet = CapturedPacket {
        number: 1,
        time_ns: None,
        link_type: start.link_type().unwrap_or(LinkType::ETHERNET),
        interface: None,
        interface_name: None,
        direction: Direction::Unknown,
        comment: None,
        original_len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        bytes,
    };
    let origin = Origin::Digits { from: start.first_header(), was_guessed };
    let mut document = of_explanation(&Explanation { bytes, origin, walk }, &packet);
    // The command does not know this first header.
    if let (Start::Udp, Ok(Document { explain: Value::Object(explain), .. })) = (start, &mut document) {
        explain.insert("from".to_owned(), Value::from(start.name()));
    }
    text(document)
}

/// Returns the document of a packet of a capture.
pub(super) fn of_packet(packet: &CapturedPacket<'_>) -> String {
    let walk = roce_document::packet::walk(packet, roce_packet::ROCE_UDP_PORT);
    let origin = Origin::Capture { file: UNNAMED, number: packet.number, link_type: packet.link_type };
    text(of_explanation(&Explanation { bytes: packet.bytes, origin, walk }, packet))
}

fn of_explanation(
    explanation: &Explanation<'_>,
    packet: &CapturedPacket<'_>,
) -> serde_json::Result<Document> {
    let walk = &explanation.walk;
    let shown = Shown { packet, walk, first_ns: packet.time_ns, mark: None };
    let Cover { ranges, masked } = Cover::of(explanation);
    Ok(Document {
        explain: serde_json::to_value(explain::Document { explanation, program: PROGRAM })?,
        dissect: serde_json::to_value(shown)?,
        covered: ranges,
        masked,
        checks: checks::of(walk),
        answer: answer::of(walk),
    })
}

/// Returns a document as text. No bytes lead to an error; the page would show it as an object.
fn text(document: serde_json::Result<Document>) -> String {
    let text = document.and_then(|document| serde_json::to_string(&document));
    text.unwrap_or_else(|error| serde_json::json!({ "error": error.to_string() }).to_string())
}
