//! Any bytes can be shown: no packet ends the process, and every document can be read again.

use proptest::prelude::*;
use roce_capture::{CapturedPacket, Direction, LinkType};
use roce_document::dissect::columns::NUMBER;
use roce_document::dissect::filter::Facts;
use roce_document::dissect::{self, Flows, Row, Shown, Summary};
use roce_document::document::{Build, Program};
use roce_document::explain::{self, Explanation, Origin};
use roce_document::packet::walk;
use roce_testing::encapsulated::{Encapsulated, cut, whole};
use serde_json::Value;

const PROGRAM: Program<'_> =
    Program { version: "1.2.3", build: Build { commit: None, features: &[], target: "none" } };

/// Makes every text and document of a packet, and reads the documents.
fn show(link_type: u32, bytes: &[u8], original_len: u32) {
    let link_type = LinkType(link_type);
    let packet = CapturedPacket {
        number: 7,
        time_ns: Some(3),
        link_type,
        interface: None,
        interface_name: Some("eth0"),
        direction: Direction::Unknown,
        comment: None,
        original_len,
        bytes,
    };
    let walk = walk(&packet, 4791);
    let mark = Flows::default().mark(&packet, &walk);
    let shown = Shown { packet: &packet, walk: &walk, first_ns: Some(5), mark };
    let line: Value = serde_json::from_str(&dissect::text(&shown).unwrap()).unwrap();
    assert_eq!(line["frame.cap_len"], bytes.len());
    let mut row = Row::default();
    row.fill(&shown, true);
    assert_eq!((row.cells[NUMBER].as_str(), row.time_text(9).as_str()), ("7", "-0.000000002"));
    assert_eq!(Facts::of(&shown).transport.is_some(), row.in_columns);
    let mut summary = Summary::new(false);
    summary.count(&packet, &walk, mark);
    assert!(summary.to_string().starts_with("1 packet, 0 printed: "));
    let origin = Origin::Capture { file: "any.pcap", number: 7, link_type };
    let explanation = Explanation { bytes, origin, walk };
    let document: Value = serde_json::from_str(&explain::text(&explanation, PROGRAM).unwrap()).unwrap();
    assert_eq!((&document["length"], &document["version"]), (&bytes.len().into(), &"1.2.3".into()));
}

fn known() -> Vec<Encapsulated> {
    [whole(), cut()].concat()
}

/// Link types of captures, with one that is not known.
const LINK_TYPES: [u32; 9] = [0, 1, 101, 108, 113, 147, 197, 247, 276];

proptest! {
    #[test]
    fn any_bytes(
        link_type in prop::sample::select(&LINK_TYPES[..]),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        more in 0_u32..100,
    ) {
        show(link_type, &bytes, bytes.len() as u32 + more);
        // The length on the wire of a damaged file may be anything.
        show(link_type, &bytes, more);
    }

    #[test]
    fn any_damage_of_a_packet(
        packet in prop::sample::select(known()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = packet.bytes;
        for (index, value) in edits {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        show(packet.link_type, &bytes, packet.wire_len as u32);
    }
}

#[test]
fn every_beginning_of_a_packet() {
    for packet in known() {
        for end in 0..packet.bytes.len() {
            show(packet.link_type, &packet.bytes[..end], packet.wire_len as u32);
            show(packet.link_type, &packet.bytes[..end], end as u32);
        }
    }
}
