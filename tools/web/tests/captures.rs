//! Captures as the page shows them.

mod support;

use std::path::Path;

use proptest::prelude::*;
use roce_capture::CaptureReader;
use roce_document::dissect::{Flows, Shown, text};
use roce_document::packet::walk;
use roce_testing::{all_captures, read_capture_file};
use roce_web::capture::Capture;
use serde_json::Value;

use support::{PAYLOAD, frame, packets, pcap};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn open(file: &Path) -> Capture {
    let name = file.display().to_string();
    Capture::open(&name, &std::fs::read(file).unwrap()).unwrap()
}

/// Returns the total and the rows of a filter.
#[track_caller]
fn rows(capture: &mut Capture, filter: &str, from: usize, count: usize) -> (usize, Vec<Value>) {
    let mut found = json(&capture.rows(filter, from, count).unwrap());
    let Value::Array(rows) = found["rows"].take() else { panic!("no rows: {found}") };
    (found["total"].as_u64().unwrap() as usize, rows)
}

/// Returns the objects of the packets as `roce dissect --json` makes them.
fn dissected(file: &Path) -> Vec<Value> {
    let mut reader = CaptureReader::open(file).unwrap();
    let (mut flows, mut first, mut found) = (Flows::default(), None, Vec::new());
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let walk = walk(&packet, 4791);
        let first_ns = *first.get_or_insert(packet.time_ns);
        let mark = flows.mark(&packet, &walk);
        found.push(json(&text(&Shown { packet: &packet, walk: &walk, first_ns, mark }).unwrap()));
    }
    found
}

/// Maximum number of packets of a file whose documents are compared.
const MOST_DOCUMENTS: usize = 30;

#[test]
fn the_packets_of_every_capture_are_those_of_the_command() {
    for file in all_captures() {
        let mut capture = open(&file);
        let expected = dissected(&file);
        let (total, rows) = rows(&mut capture, "", 0, usize::MAX);
        assert_eq!((total, rows.len()), (expected.len(), expected.len()), "{}", file.display());
        for (number, (expected, row)) in (1..).zip(expected.iter().zip(&rows)) {
            let at = format!("{}: packet {number}", file.display());
            // The document of a packet takes milliseconds.
            if number % total.div_ceil(MOST_DOCUMENTS) == 0 {
                let shown = json(&capture.packet(number).unwrap());
                assert_eq!(shown["dissect"], *expected, "{at}");
            }
            assert_eq!(row["number"], expected["frame.number"], "{at}");
            assert_eq!(row["qp"], expected["infiniband.bth.destqp"], "{at}");
            assert_eq!(row["psn"], expected["infiniband.bth.psn"], "{at}");
            assert_eq!(row["bytes"], expected["roce.payload_len"], "{at}");
            let mark = expected["roce.mark"].as_str().unwrap_or("-");
            assert_eq!(row["mark"], mark, "{at}");
            let icrc = expected["roce.icrc"].as_str().filter(|state| *state != "unchecked").unwrap_or("-");
            assert_eq!(row["icrc"], icrc, "{at}");
            if let Some(opcode) = expected["roce.opcode"].as_str() {
                assert_eq!(row["opcode"], opcode, "{at}");
            }
        }
        assert!(capture.packet(0).unwrap_err().starts_with("there is no packet 0"));
        assert!(capture.packet(expected.len() + 1).is_err());
    }
}

#[test]
fn every_capture_has_a_summary_ladders_and_charts() {
    let mut ladders = 0;
    for file in all_captures() {
        let capture = open(&file);
        let at = file.display();
        let (summary, analysis) = (json(&capture.summary()), json(&capture.analysis()));
        let expected = dissected(&file);
        let roce = expected.iter().filter(|packet| packet.get("roce.payload_len").is_some()).count();
        assert_eq!(summary["packets"], expected.len(), "{at}");
        assert!(summary["roce"].as_u64().unwrap() as usize >= roce, "{at}");
        let bad = expected.iter().filter(|packet| packet["roce.icrc"] == "bad").count();
        assert_eq!(summary["bad_icrc"], bad, "{at}");
        assert_eq!(summary.get("damage"), None, "{at}");
        let connections = summary["connections"].as_array().unwrap();
        assert_eq!(analysis["schema"], "roce/analyze/1");
        assert_eq!(connections.len(), analysis["connections"].as_array().unwrap().len(), "{at}");
        for (number, (connection, judged)) in
            (1..).zip(connections.iter().zip(analysis["connections"].as_array().unwrap()))
        {
            assert_eq!(connection["a"], judged["ends"][0]["address"], "{at}");
            assert_eq!(connection["b_qp"], judged["ends"][1]["qpn"], "{at}");
            let failed = judged["verdicts"].as_array().unwrap().iter().filter(|one| one["outcome"] == "fail");
            assert_eq!(connection["verdicts"]["fail"], failed.count(), "{at}");
            let ladder = json(&capture.ladder(number, 60).unwrap());
            assert!(ladder["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{at}: {ladder}");
            let series = json(&capture.series(number, 7).unwrap());
            for list in ["t_us", "marks", "cnps", "again"] {
                assert_eq!(series[list].as_array().unwrap().len(), 7, "{at}: {list}");
            }
            ladders += 1;
        }
        let next = connections.len() + 1;
        assert!(capture.ladder(next, 60).unwrap_err().contains("there is no connection"), "{at}");
        assert!(capture.series(0, 7).is_err(), "{at}");
    }
    assert!(ladders > 20, "{ladders} ladders");
}

/// The transport of an opcode is not part of its operation: `ACK` selects `RC_ACKNOWLEDGE`.
fn operation(packet: &Value) -> &str {
    let name = packet["roce.opcode"].as_str().unwrap_or_default();
    name.split_once('_').map_or(name, |(_, operation)| operation)
}

/// Returns whether one of these fields has a value.
fn has(packet: &Value, fields: &[&str], value: impl Into<Value>) -> bool {
    let value = value.into();
    fields.iter().any(|field| packet[field] == value)
}

#[test]
fn filters_select_the_packets_that_have_the_values() {
    const ADDRESSES: [&str; 6] =
        ["ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "infiniband.grh.sgid", "infiniband.grh.dgid"];
    type Condition = fn(&Value) -> bool;
    let conditions: [(&str, Condition); 9] = [
        ("opcode=ACK", |packet| operation(packet).starts_with("ACK")),
        ("mark=gap", |packet| packet["roce.mark"] == "gap"),
        ("mark=none", |packet| {
            packet.get("infiniband.bth.psn").is_some() && packet.get("roce.mark").is_none()
        }),
        ("ecn=ce", |packet| has(packet, &["ip.dsfield.ecn", "ipv6.tclass.ecn"], 3)),
        ("icrc=ok", |packet| packet["roce.icrc"] == "ok"),
        ("psn=100..5000000", |packet| {
            packet["infiniband.bth.psn"].as_u64().is_some_and(|psn| (100..=5_000_000).contains(&psn))
        }),
        ("address=2001:db8::2", |packet| has(packet, &ADDRESSES, "2001:db8::2")),
        ("opcode=ACK psn=0..5000000", |packet| {
            operation(packet).starts_with("ACK")
                && packet["infiniband.bth.psn"].as_u64().unwrap() <= 5_000_000
        }),
        ("qp=1", |packet| has(packet, &["infiniband.bth.destqp", "infiniband.deth.srcqp"], 1)),
    ];
    let mut found = [0; 9];
    for file in all_captures() {
        let mut capture = open(&file);
        let packets = dissected(&file);
        for ((filter, condition), found) in conditions.iter().zip(&mut found) {
            let numbers = |rows: Vec<Value>| -> Vec<u64> {
                rows.iter().map(|row| row["number"].as_u64().unwrap()).collect()
            };
            let expected: Vec<u64> = packets
                .iter()
                .filter(|packet| condition(packet))
                .map(|packet| packet["frame.number"].as_u64().unwrap())
                .collect();
            // Native InfiniBand has its traffic class in the GRH, whose fields have other names.
            if *filter == "ecn=ce"
                && packets.iter().any(|packet| packet.get("infiniband.grh.tclass").is_some())
            {
                continue;
            }
            let (total, selected) = rows(&mut capture, filter, 0, usize::MAX);
            assert_eq!(numbers(selected), expected, "{}: {filter}", file.display());
            assert_eq!(total, expected.len());
            *found += total;
        }
    }
    assert!(found.iter().all(|count| *count > 0), "every filter selects packets: {found:?}");
}

#[test]
fn a_wrong_filter_is_refused_and_the_last_one_stays() {
    let mut capture = open(&all_captures()[0]);
    let (total, _) = rows(&mut capture, "mark=none", 0, 0);
    assert!(capture.rows("mark=lost", 0, 10).unwrap_err().starts_with("mark=lost: expected one of"));
    assert!(capture.rows("connection=1000", 0, 10).unwrap_err().contains("there is no connection 1000"));
    assert_eq!(rows(&mut capture, " mark=none ", 0, 0).0, total);
}

/// One wrong bit in the payload of a packet.
#[test]
fn a_damaged_packet_is_found() {
    let mut frames = [frame(false, 5), frame(true, 5), frame(false, 6)];
    let last = frames[2].len() - 10;
    frames[2][last] ^= 0x04;
    let mut capture = Capture::open("damaged", &pcap(frames.iter().map(Vec::as_slice))).unwrap();
    let (total, found) = rows(&mut capture, "icrc=bad", 0, 10);
    assert_eq!((total, &found[0]["number"], &found[0]["icrc"]), (1, &Value::from(3), &Value::from("bad")));
    assert_eq!(json(&capture.summary())["bad_icrc"], 1);
}

#[test]
fn a_file_that_ends_in_a_packet_counts_up_to_there() {
    let whole = pcap([frame(false, 5), frame(true, 5)].iter().map(Vec::as_slice));
    let capture = Capture::open("cut.pcap", &whole[..whole.len() - 1]).unwrap();
    let summary = json(&capture.summary());
    assert_eq!(summary["packets"], 1);
    assert!(summary["damage"].as_str().unwrap().starts_with("cut.pcap: packet 2 at byte"), "{summary}");
    // Without a whole packet, there is nothing to show.
    assert!(Capture::open("cut.pcap", &whole[..50]).is_err());
    let error = Capture::open("notes.txt", b"hello, world").unwrap_err();
    assert!(error.contains("not a pcap or pcapng file"), "{error}");
}

#[test]
fn a_capture_without_roce_says_why() {
    let mut tcp = frame(false, 1);
    tcp[23] = 6;
    let capture = Capture::open("web.pcap", &pcap([tcp.as_slice()])).unwrap();
    let why = json(&capture.summary())["why_empty"].as_str().unwrap().to_owned();
    assert!(why.starts_with("no packet is RoCE: all are TCP"), "{why}");
    assert_eq!(json(&capture.analysis())["connections"], Value::Array(Vec::new()));
}

/// 50,000 WRITEs and their ACKs, of which one WRITE comes late.
#[test]
fn a_hundred_thousand_packets_are_one_connection() {
    const MESSAGES: u32 = 50_000;
    let late = 40_000;
    let order = (0..MESSAGES).map(|psn| match psn {
        psn if psn == late => late + 1,
        psn if psn == late + 1 => late,
        psn => psn,
    });
    let frames: Vec<Vec<u8>> =
        order.zip(0..).flat_map(|(request, answer)| [frame(false, request), frame(true, answer)]).collect();
    let mut capture = Capture::open("large.pcap", &pcap(frames.iter().map(Vec::as_slice))).unwrap();
    let summary = json(&capture.summary());
    assert_eq!((&summary["packets"], &summary["roce"]), (&100_000.into(), &100_000.into()));
    assert_eq!(summary["connections"].as_array().unwrap().len(), 1, "{summary}");
    assert_eq!(rows(&mut capture, "connection=1", 0, 0).0, 100_000);
    assert_eq!(rows(&mut capture, "opcode=ACK", 0, 0).0, 50_000);
    let (gaps, found) = rows(&mut capture, "mark=gap", 0, 10);
    assert_eq!((gaps, &found[0]["number"]), (1, &Value::from(2 * late + 1)));
    assert_eq!(rows(&mut capture, "mark=late", 0, 0).0, 1);
    let (_, last) = rows(&mut capture, "", 99_990, 100);
    assert_eq!((last.len(), &last[9]["number"], &last[9]["connection"]), (10, &100_000.into(), &1.into()));
    let ladder = json(&capture.ladder(1, 60).unwrap());
    assert!(ladder["rows"].as_array().unwrap().len() <= 60);
    let series = json(&capture.series(1, 100).unwrap());
    let sum = |list: &Value| list.as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).sum::<u64>();
    let bytes = [&series["bytes"][0], &series["bytes"][1]].map(sum);
    assert_eq!(bytes, [u64::from(MESSAGES) * PAYLOAD as u64, 0]);
    assert_eq!(json(&capture.packet(100_000).unwrap())["dissect"]["infiniband.bth.psn"], MESSAGES - 1);
}

/// Asks for everything that a page may show. The answers do not matter, but each must come.
fn look_at_everything(bytes: &[u8]) {
    let Ok(mut capture) = Capture::open("any", bytes) else { return };
    let connections = json(&capture.summary())["connections"].as_array().unwrap().len();
    json(&capture.analysis());
    let (total, _) = rows(&mut capture, "", 0, 100);
    rows(&mut capture, "mark=gap icrc=bad", 0, 100);
    for number in 1..=total.min(20) {
        json(&capture.packet(number).unwrap());
    }
    for number in 1..=connections.min(5) {
        json(&capture.ladder(number, 20).unwrap());
        json(&capture.series(number, 1).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_damage_of_a_capture_can_be_shown(
        file in 0_usize..40,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..30),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = read_capture_file(&all_captures()[file]);
        bytes.truncate(20_000);
        for (index, value) in edits {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        look_at_everything(&bytes);
        look_at_everything(&bytes[..end.index(bytes.len())]);
    }

    #[test]
    fn any_packets_can_be_shown(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6)) {
        look_at_everything(&pcap(frames.iter().map(Vec::as_slice)));
    }
}

/// Each packet of the captures, cut at every byte.
#[test]
fn every_beginning_of_a_packet_can_be_shown() {
    for name in ["rc-operations.pcapng", "ud.pcapng", "roce-v1.pcapng", "pause.pcapng"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pcaps").join(name);
        let packet = packets(&file).remove(0);
        let beginnings: Vec<&[u8]> = (0..=packet.len()).map(|end| &packet[..end]).collect();
        let mut capture = Capture::open(name, &pcap(beginnings.iter().copied())).unwrap();
        assert_eq!(rows(&mut capture, "", 0, usize::MAX).1.len(), packet.len() + 1);
        for number in 1..=packet.len() + 1 {
            json(&capture.packet(number).unwrap());
        }
    }
}
