use std::net::IpAddr;

use roce_packet::{Msn, Opcode, Qpn, Syndrome};

use super::events::{Event, Step};
use super::fold::{Shown, fold};
use super::*;
use crate::connection::End;
use crate::record::{Extension, Place};
use crate::testing::records::analyzed;
use crate::testing::wire::{Sketch, Wire};
use crate::words::{duration, thousands};

fn texts(names: &[&str], most_rows: usize) -> Vec<String> {
    let analysis = analyzed(names);
    analysis.connections.iter().map(|one| ladder(&analysis, one, most_rows).to_text()).collect()
}

/// Returns the lines of a ladder without numbers, times and headings.
fn arrows(text: &str) -> Vec<String> {
    text.lines().skip(1).map(|line| line.get(18..).unwrap_or_default().trim_start().to_owned()).collect()
}

#[test]
fn a_lost_packet_a_nak_and_the_packets_again() {
    let texts = texts(&["rc-loss.pcapng"], 40);
    let [text] = &texts[..] else { panic!("{texts:?}") };
    let expected = [
        "WRITE first 0, 2,048 B |------------------->|",
        "WRITE middle 1 |------------------->|",
        "PSN 2 lost |---------x          |",
        "WRITE middle 3 |------------------->|",
        "WRITE middle 4 |------------------->|",
        "WRITE middle 5 |------------------->|",
        "WRITE middle 6 |------------------->|",
        "WRITE last 7 |------------------->|",
        "|<-------------------| NAK 2, PSN sequence error",
        "WRITE middle 2, again |===================>|",
        "WRITE middle 3, again |===================>|",
        "WRITE middle 4, again |===================>|",
        "WRITE middle 5, again |===================>|",
        "WRITE middle 6, again |===================>|",
        "WRITE last 7, again |===================>|",
        "|<-------------------| ACK 7",
        "SEND 8, 21 B |------------------->|",
        "|<-------------------| ACK 8",
    ];
    assert_eq!(arrows(text), expected, "{text}");
    assert!(text.starts_with(" packet        us          192.0.2.1 QP 0x4225 "), "{text}");
}

#[test]
fn a_response_that_was_lost_behind_the_tap() {
    let text = &texts(&["rc-read-loss.pcapng"], 40)[0];
    let lines = arrows(text);
    assert_eq!(lines[0], "READ 0, 2,048 B |------------------->|");
    assert_eq!(lines[4], "|          x---------| READ data middle 3, lost");
    assert_eq!(lines[9], "READ 3, 1,280 B, again |===================>|");
    assert_eq!(lines[10], "|<-------------------| READ data first 3");
}

#[test]
fn delays_refusals_marks_and_notifications() {
    let text = &texts(&["rc-rnr.pcapng"], 40)[0];
    assert!(text.contains("|<-------------------| RNR NAK 0, wait 320 us\n"), "{text}");
    assert!(text.contains("SEND 0, 21 B, again |===================>|\n"), "{text}");
    let refused = texts(&["rc-refused.pcapng"], 40);
    assert!(refused[0].contains("| NAK 0, remote access error\n"), "{refused:?}");
    let lines = arrows(&texts(&["cnp.pcapng"], 40)[1]);
    assert_eq!(lines, ["WRITE imm 0, 256 B, CE |--------CE--------->|", "|<-------------------| CNP"]);
}

/// A capture between two kernels, in which a program lost packets on purpose.
#[test]
fn many_losses_fit_the_page() {
    for (file, most) in
        [("rxe/rc-write-lost-requests.pcap.gz", 40), ("rxe/rc-read-lost-responses.pcap.gz", 25)]
    {
        let analysis = analyzed(&[file]);
        let ladder = ladder(&analysis, &analysis.connections[0], most);
        assert!(ladder.rows.len() <= most, "{} rows", ladder.rows.len());
        let text = ladder.to_text();
        let wide = text.lines().find(|line| line.len() > 100);
        assert_eq!(wide, None);
        assert!(text.is_ascii(), "{text}");
        // Every packet is in a row.
        let in_row = |row: &Row| match &row.content {
            Content::Packet(_) => 1,
            Content::Folded(folded) => folded.packets.iter().sum(),
            Content::Missing { .. } | Content::Timeout { .. } => 0,
        };
        assert_eq!(ladder.rows.iter().map(in_row).sum::<u64>(), analysis.counts.roce, "{file}");
        let lost = |row: &Row| match &row.content {
            Content::Packet(arrow) => u64::from(arrow.marks.contains(Marks::LOST)),
            Content::Missing { count, is_lost, .. } => u64::from(*is_lost) * count,
            Content::Folded(folded) => folded.lost,
            Content::Timeout { .. } => 0,
        };
        assert!(ladder.rows.iter().map(lost).sum::<u64>() > 4, "{text}");
    }
}

fn event(marks: Marks) -> Event {
    Event { time_ns: 7, from: 0, step: Step::Packet(0), marks }
}

fn folded(shown: &[Shown]) -> Vec<u64> {
    let count = |shown: &Shown| match shown {
        Shown::Event(_) => 0,
        Shown::Folded(folded) => folded.packets.iter().sum(),
    };
    shown.iter().map(count).collect()
}

#[test]
fn twenty_packets_are_shown_and_two_thousand_are_folded() {
    let plain = |count: usize| vec![event(Marks::empty()); count];
    assert_eq!(fold(plain(20), 20).len(), 20);
    assert_eq!(folded(&fold(plain(2_000), 20)), [0, 0, 0, 1_994, 0, 0, 0]);
    // A loss in the middle has its neighbours.
    let mut events = plain(2_000);
    events[1_000] = event(Marks::LOST);
    assert_eq!(folded(&fold(events, 20)), [0, 0, 0, 996, 0, 0, 0, 995, 0, 0, 0]);
    // Of a run of packets that were sent again, the first and the last are shown.
    let mut events = plain(2_000);
    events[500..900].fill(event(Marks::RESENT));
    let shown = fold(events, 20);
    assert_eq!(folded(&shown), [0, 0, 0, 497, 0, 398, 0, 1_097, 0, 0, 0]);
    let Shown::Folded(run) = &shown[5] else { panic!("{shown:?}") };
    assert_eq!((run.resent, run.lost, run.remarks()), (398, 0, "398 again".to_owned()));
    // More than fits: the first rows, one row for the others, and the end.
    let alternate = |index: usize| event(if index.is_multiple_of(2) { Marks::LOST } else { Marks::NAK });
    let shown = fold((0..2_000).map(alternate).collect(), 20);
    assert_eq!(shown.len(), 20);
    assert_eq!(folded(&shown)[16], 1_981);
}

#[test]
fn a_timeout_and_missing_packets_have_rows_of_their_own() {
    let row = |content| Row { time_ns: Some(12_345_678), content };
    let place = |number| Place { capture: 0, number };
    let ends = ["a QP 0x1", "b QP 0x2"].map(str::to_owned);
    let rows = vec![
        row(Content::Timeout { end: 1, waited_ns: 67_108_864, since: Some(place(9)), first: None }),
        row(Content::Timeout {
            end: 0,
            waited_ns: 67_108_864,
            since: Some(place(12_345)),
            first: Some((place(4), 408_000_000)),
        }),
        row(Content::Missing { from: 1, first: 3, count: 4, is_lost: false }),
        row(Content::Missing { from: 0, first: 1, count: 2, is_lost: true }),
        row(Content::Folded(Folded { packets: [1_200, 798], lost: 3, ..Folded::default() })),
    ];
    let ladder = Ladder { ends, rows };
    let rows = [
        ":      timeout       : 67.1 ms after packet 9",
        "67.1 ms after packet 12345 :      timeout       :",
        "408 ms after the first, 4 :                    :",
        "|. . . . . . . . . . | PSN 3 to 6 not captured",
        "PSN 1 to 2 lost |---------x          |",
        ":... 1,998 packets ...: 3 lost",
    ];
    assert_eq!(arrows(&ladder.to_text()), rows);
    let words: Vec<String> = ladder.rows.iter().map(|row| row.content.words()).collect();
    let expected = [
        "timeout: 67.1 ms after packet 9",
        "timeout: 67.1 ms after packet 12345, 408 ms after the first, 4",
        "PSN 3 to 6 not captured",
        "PSN 1 to 2 lost",
        "1,998 packets, 3 lost",
    ];
    assert_eq!(words, expected);
    let svg = ladder.to_svg();
    for text in [
        ">timeout: 67.1 ms after packet 9<",
        ">timeout: 67.1 ms after packet 12345<",
        ">408 ms after the first, 4<",
        ">PSN 1 to 2 lost<",
        ">\u{2026} 1,998 packets \u{2026}<",
        ">12345.6<",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

/// Regression: "timeout after 67.0 ms" did not say that the time counts from the last copy, not from the
/// first.
#[test]
fn a_timeout_names_the_packets_from_which_it_counts() {
    let mut wire = Wire::default();
    for time in [0, 67_000, 201_000] {
        wire.at_us(time, Sketch::send(1, 5));
    }
    let analysis = wire.analyze();
    let text = ladder(&analysis, &analysis.connections[0], 40).to_text();
    let expected = [
        "SEND 0, 1,024 B |------------------->|",
        "67.0 ms after packet 1 :      timeout       :",
        "SEND 0, 1,024 B, again |===================>|",
        "134 ms after packet 2 :      timeout       :",
        "201 ms after the first, 1 :                    :",
        "SEND 0, 1,024 B, again |===================>|",
    ];
    assert_eq!(arrows(&text), expected, "{text}");
}

/// Regression: arrows of packets reached the other end although nothing arrived at the capture of that end,
/// if it had no packet at all, or none of that direction and another clock.
#[test]
fn what_the_capture_of_the_other_end_lacks_does_not_reach_it() {
    let unanswered = |captures: u16| {
        let mut wire = Wire::default();
        for time in [0, 67_000, 201_000] {
            wire.at_us(time, Sketch::send(1, 5));
        }
        wire.of_captures(captures);
        let analysis = wire.analyze();
        let ladder = ladder(&analysis, &analysis.connections[0], 40);
        (arrows(&ladder.to_text()), ladder.to_svg())
    };
    let (alone, _) = unanswered(1);
    assert_eq!(alone[0], "SEND 0, 1,024 B |------------------->|", "nothing is known about the other end");
    let (both, svg) = unanswered(2);
    assert_eq!(both[0], "SEND 0, 1,024 B, lost |---------x          |");
    assert_eq!(both[2], "SEND 0, 1,024 B, lost, again |=========x          |");
    assert_eq!(svg.matches(", lost").count(), 3, "{svg}");
    // Three crosses, and no head of an arrow.
    assert_eq!(svg.matches("stroke-width=\"2\"").count(), 3, "{svg}");
    // The answers are lost, and the clock of the responder is an hour ahead.
    const AHEAD_NS: u64 = 3_600_000_000_000;
    let mut wire = Wire::default();
    for psn in 0..10 {
        let time = 10_000 * u64::from(psn);
        wire.add(0, time, Sketch::send(1, psn));
        wire.add(1, AHEAD_NS + time + 2000, Sketch::send(1, psn));
        wire.add(1, AHEAD_NS + time + 3000, Sketch::ack(2, psn, psn + 1));
    }
    let analysis = wire.analyze();
    let text = ladder(&analysis, &analysis.connections[0], 40).to_text();
    // The capture of the requester ends before the last answer comes.
    assert_eq!(text.matches("|          x---------| ACK").count(), 9, "{text}");
}

/// Regression: an acknowledgement reached the requester in the ladder although the requester timed out.
#[test]
fn an_acknowledgement_that_was_lost_behind_the_tap() {
    let answered_at = |time: u64| {
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 5));
        wire.at_us(time, Sketch::ack(2, 5, 1));
        wire.at_us(67_000, Sketch::send(1, 5));
        wire.at_us(67_100, Sketch::ack(2, 5, 1));
        let analysis = wire.analyze();
        arrows(&ladder(&analysis, &analysis.connections[0], 40).to_text())
    };
    let early = answered_at(100);
    assert_eq!(early[1], "|          x---------| ACK 0, lost", "{early:#?}");
    assert!(early[2].ends_with(":      timeout       :"), "{early:#?}");
    assert_eq!(early[early.len() - 1], "|<-------------------| ACK 0");
    // This one may have come too late.
    let late = answered_at(66_900);
    assert_eq!(late[1], "|<-------------------| ACK 0", "{late:#?}");
}

/// Plays packets between two captures: the time at which each leaves, and whether it arrives, 1 us later.
fn between_two_taps(packets: &[(u64, Sketch, bool)]) -> Vec<String> {
    let mut wire = Wire::default();
    for (time, sketch, arrives) in packets {
        let near = u16::from(sketch.from - 1);
        wire.add(near, *time, *sketch);
        if *arrives {
            wire.add(1 - near, *time + 1_000, *sketch);
        }
    }
    let analysis = wire.analyze();
    arrows(&ladder(&analysis, &analysis.connections[0], 40).to_text())
}

/// Regression: a response that was lost between two captures had two rows, and one of them stood in front of
/// responses that had left before it.
#[test]
fn a_response_that_was_lost_between_two_taps_has_one_row() {
    let response = |opcode: Opcode, psn: u32| {
        let ack = Extension::Aeth(Syndrome::ACK_UNLIMITED, Msn::new(1));
        let is_middle = opcode == Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
        let extension = if is_middle { Extension::None } else { ack };
        Sketch { extension, payload: 256, ..Sketch::new(2, opcode, psn) }
    };
    let first = |psn| response(Opcode::RC_RDMA_READ_RESPONSE_FIRST, psn);
    let middle = |psn| response(Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, psn);
    let last = |psn| response(Opcode::RC_RDMA_READ_RESPONSE_LAST, psn);
    let lines = between_two_taps(&[
        (0, Sketch::read(1, 5, 1_024), true),
        (2_000, first(5), true),
        (2_100, middle(6), false),
        (2_200, middle(7), true),
        (2_300, last(8), true),
        (3_400, Sketch::read(1, 6, 768), true),
        (5_000, first(6), true),
        (5_100, middle(7), true),
        (5_200, last(8), true),
    ]);
    let expected = [
        "READ 0, 1,024 B |------------------->|",
        "|<-------------------| READ data first 0",
        "|          x---------| READ data middle 1, lost",
        "|<-------------------| READ data middle 2",
        "|<-------------------| READ data last 3",
        "READ 1, 768 B, again |===================>|",
        "|<-------------------| READ data first 1",
        "|<-------------------| READ data middle 2",
        "|<-------------------| READ data last 3",
    ];
    assert_eq!(lines, expected);
}

/// Regression: without any packet that came to both captures exactly once, the capture with more packets
/// counted as that of the requester.
#[test]
fn an_acknowledgement_that_was_lost_between_two_taps() {
    let (send, ack) = (Sketch::send(1, 5), Sketch::ack(2, 5, 1));
    let late = 1_048_000;
    let lines = between_two_taps(&[
        (0, send, true),
        (1_500, ack, false),
        (late, send, true),
        (late + 1_500, ack, true),
    ]);
    assert_eq!(lines[1], "|          x---------| ACK 0, lost", "{lines:#?}");
    assert_eq!(lines[lines.len() - 1], "|<-------------------| ACK 0", "{lines:#?}");
}

#[test]
fn a_picture_stands_alone() {
    let analysis = analyzed(&["rc-loss.pcapng"]);
    let svg = ladder(&analysis, &analysis.connections[0], 40).to_svg();
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("prefers-color-scheme:dark"));
    for word in ["<script", "href", "url(", "@import"] {
        assert!(!svg.contains(word), "{word}");
    }
    assert_eq!(svg.matches("class=\"again\" d=").count(), 6, "six packets were sent again");
    assert_eq!(svg.matches(">PSN 2 lost<").count(), 1);
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
}

#[test]
fn points_have_the_psns_of_their_requests() {
    let analysis = analyzed(&["rc-loss.pcapng"]);
    let points = points(&analysis, &analysis.connections[0]);
    let with = |marks: Marks, is_answer| {
        let is_one = |point: &&Point| point.marks == marks && point.is_answer == is_answer;
        points.iter().filter(is_one).map(|point| point.psn).collect::<Vec<_>>()
    };
    assert_eq!(with(Marks::LOST, false), [2]);
    assert_eq!(with(Marks::RESENT, false), [2, 3, 4, 5, 6, 7]);
    assert_eq!(with(Marks::empty(), false), [0, 1, 3, 4, 5, 6, 7, 8]);
    assert_eq!((with(Marks::NAK, true), with(Marks::empty(), true)), (vec![2], vec![7, 8]));
    assert!(points.iter().all(|point| point.requester == 0));
}

#[test]
fn names_and_numbers() {
    let address: IpAddr = "2001:db8::1".parse().unwrap();
    assert_eq!(name(End { address, qpn: Some(Qpn::new(0x12)) }), "2001:db8::1 QP 0x12");
    assert_eq!(name(End { address, qpn: None }), "2001:db8::1");
    let numbers = [0, 999, 1_000, 1_234_567].map(thousands);
    assert_eq!(numbers, ["0", "999", "1,000", "1,234,567"]);
    let durations = [0, 999, 1_000, 12_340, 123_456, 67_108_864, 2_000_000_000].map(duration);
    assert_eq!(durations, ["0 ns", "999 ns", "1.00 us", "12.3 us", "123 us", "67.1 ms", "2.00 s"]);
}
