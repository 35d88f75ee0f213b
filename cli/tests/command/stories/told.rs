//! Reads a ladder as a person does, and reduces it to its story: what happened, in which order.
//!
//! A story is about one PSN, `p`: the first one that the requester sends again. Its lines say what is
//! compared:
//!
//! - which packets of the requester were lost, with their PSN relative to `p`
//! - each NAK with its reason and its PSN, each RNR NAK with its PSN, and each timeout
//! - which packets the requester sends again, in their order, so also the PSN at which it starts again
//! - which responses of a READ were lost, and the opcode of the response with which it goes on
//! - the acknowledgement of the last PSN, with a second one if there is a second one
//!
//! Captures of different sources may differ in the following, so a story does not contain it:
//!
//! - the length of messages, and the number of packets before and behind `p`
//! - packets before `p` that arrive at once, and acknowledgements of less than everything
//! - whether a packet behind `p` leaves before or after a NAK, which is on its way at that time
//! - responses of the first READ that arrive after the second READ request has left
//! - whether the capture contains a lost packet ("WRITE middle 2, lost") or lacks it ("PSN 2 lost")
//! - times, but [`times`] compares them with what the protocol demands

use std::cmp::Ordering;

/// Columns of the labels of the left end, of the arrows and of the labels of the right end.
const LEFT: std::ops::Range<usize> = 18..46;
const ARROW: std::ops::Range<usize> = 47..69;
const RIGHT: std::ops::RangeFrom<usize> = 70..;

/// The shortest time after which a packet is sent again because of a timeout, in microseconds. Code 8, which
/// is the shortest one here, stands for 1,049 µs.
const SHORTEST_TIMEOUT_US: f64 = 1_000.0;

/// A row of a ladder.
#[derive(Debug)]
pub(super) enum Row {
    Packet(Packet),
    Timeout,
}

#[derive(Debug)]
pub(super) struct Packet {
    at_us: f64,
    /// Whether the left end sent it, which is the requester.
    is_request: bool,
    /// The operation without its position in the message.
    name: String,
    /// `first`, `middle` or `last`, or `only`.
    position: String,
    psn: i64,
    is_lost: bool,
    is_again: bool,
    /// The rest of the label: the length of a message, the reason of a NAK.
    more: Vec<String>,
}

/// Returns the rows of the ladder in a text, or why one of them has no place in a story.
pub(super) fn rows(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().skip_while(|line| !line.starts_with(" packet ")).skip(1);
    let lines = lines.take_while(|line| !line.trim().is_empty() && *line != "...");
    lines.filter_map(|line| row(line).map_err(|why| format!("{why}: {line}")).transpose()).collect()
}

/// Returns what a line shows; nothing for the second line of a timeout.
fn row(line: &str) -> Result<Option<Row>, &'static str> {
    let (left, arrow) = (line.get(LEFT).ok_or("it is short")?, line.get(ARROW).ok_or("it is short")?);
    let right = line.get(RIGHT).unwrap_or_default();
    if arrow.starts_with(':') {
        return match arrow.trim_matches([':', ' ']) {
            "timeout" => Ok(Some(Row::Timeout)),
            "" => Ok(None),
            _ => Err("it stands for packets that are not shown"),
        };
    }
    if arrow.contains(". .") {
        return Err("the capture lacks packets");
    }
    let is_request = !left.trim().is_empty();
    let label = if is_request { left } else { right };
    let mut more: Vec<String> = label.trim().split(", ").map(str::to_owned).collect();
    let head = more.remove(0);
    let mut words: Vec<&str> = head.split(' ').collect();
    let mut take = |text: &str| {
        let before = more.len();
        more.retain(|word| word != text);
        more.len() < before
    };
    let (mut is_lost, is_again) = (take("lost"), take("again"));
    // A packet that the capture lacks has no operation: `PSN 2 lost`.
    if words.last() == Some(&"lost") {
        words.pop();
        is_lost = true;
    }
    let psn = words.pop().and_then(|word| word.parse().ok()).ok_or("it has no PSN")?;
    let position = match words.last().copied() {
        Some(last @ ("first" | "middle" | "last")) => last.to_owned(),
        _ => "only".to_owned(),
    };
    if position != "only" {
        words.pop();
    }
    let drawn = (arrow.contains('x'), arrow.contains('='));
    if drawn != (is_lost, is_again) {
        return Err("the arrow and the words differ");
    }
    let at_us = line.get(8..17).and_then(|time| time.trim().parse().ok()).ok_or("it has no time")?;
    let name = words.join(" ");
    Ok(Some(Row::Packet(Packet { at_us, is_request, name, position, psn, is_lost, is_again, more })))
}

fn packets(rows: &[Row]) -> impl Iterator<Item = &Packet> {
    rows.iter().filter_map(|row| match row {
        Row::Packet(packet) => Some(packet),
        Row::Timeout => None,
    })
}

/// Returns the operations of the requests.
pub(super) fn operations(rows: &[Row]) -> Vec<&str> {
    let requests = packets(rows).filter(|packet| packet.is_request && packet.name != "PSN");
    let mut names: Vec<&str> = requests.map(|packet| packet.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the story of a ladder.
pub(super) fn story(rows: &[Row]) -> Vec<String> {
    let again = packets(rows).find(|packet| packet.is_request && packet.is_again);
    let Some(p) = again.map(|packet| packet.psn) else { return Vec::new() };
    let end = packets(rows).map(|packet| packet.psn).max().unwrap_or(p);
    let mut story: Vec<String> = Vec::new();
    // Whether the READ was sent again, and the response that it asks for has not come.
    let mut waits = false;
    for row in rows {
        let line = match row {
            Row::Timeout => Some("timeout".to_owned()),
            Row::Packet(packet) if packet.is_request => {
                waits |= packet.is_again && packet.name == "READ";
                request(packet, p)
            }
            Row::Packet(packet) => answer(packet, [p, end], &mut waits),
        };
        let is_said = |line: &String| {
            let is_run = line.starts_with("requests") || line.starts_with("responses");
            is_run && story.last() == Some(line) || line == BEHIND && story.contains(line)
        };
        story.extend(line.filter(|line| !is_said(line)));
    }
    story
}

/// The line for packets behind `p` that arrive at once, and may leave before or after a NAK.
const BEHIND: &str = "requests behind p";

fn request(packet: &Packet, p: i64) -> Option<String> {
    let place = place(packet.psn, p);
    if packet.name == "READ" {
        return Some(if packet.is_again { format!("READ again from {place}") } else { "READ".to_owned() });
    }
    let what = if packet.psn == p { "request" } else { "requests" };
    let lost = if packet.is_lost { " lost" } else { "" };
    let again = if packet.is_again { " again" } else { "" };
    let is_told = packet.psn >= p || packet.is_lost || packet.is_again;
    is_told.then(|| format!("{what} {place}{lost}{again}"))
}

fn answer(packet: &Packet, [p, end]: [i64; 2], waits: &mut bool) -> Option<String> {
    let place = place(packet.psn, p);
    let lost = if packet.is_lost { " lost" } else { "" };
    match packet.name.as_str() {
        "READ data" | "PSN" => match packet.psn.cmp(&p) {
            Ordering::Less if !packet.is_lost && !*waits => None,
            Ordering::Equal if packet.is_lost => Some("response p lost".to_owned()),
            Ordering::Equal => {
                *waits = false;
                Some(format!("response p, {}", packet.position))
            }
            Ordering::Greater if *waits => None,
            _ => Some(format!("responses {place}{lost}")),
        },
        "ACK" => (packet.psn >= end).then(|| format!("ACK of all{lost}")),
        "RNR NAK" => Some(format!("RNR NAK {place}{lost}")),
        name => Some(format!("{name} {place}, {}{lost}", packet.more.join(", "))),
    }
}

fn place(psn: i64, p: i64) -> &'static str {
    match psn.cmp(&p) {
        Ordering::Less => "before p",
        Ordering::Equal => "p",
        Ordering::Greater => "behind p",
    }
}

/// Checks that the requester waits as long as an RNR NAK demands, and for longer than an answer takes before
/// a timeout. Returns what is wrong.
pub(super) fn times(rows: &[Row]) -> Result<(), String> {
    for (index, row) in rows.iter().enumerate() {
        let (before, after) = rows.split_at(index);
        let again = packets(after).find(|packet| packet.is_request && packet.is_again);
        match row {
            Row::Timeout => {
                let again = again.ok_or("nothing follows the timeout")?;
                let is_copy = |packet: &&Packet| packet.is_request && packet.psn == again.psn;
                let copy = packets(before).filter(is_copy).last().ok_or("no copy before the timeout")?;
                let waited = again.at_us - copy.at_us;
                if waited < SHORTEST_TIMEOUT_US {
                    return Err(format!("a timeout of {waited} us"));
                }
            }
            Row::Packet(nak) if nak.name == "RNR NAK" => {
                let again = again.ok_or("nothing follows the RNR NAK")?;
                let (waited, least) = (again.at_us - nak.at_us, microseconds(&nak.more[0]));
                // The ladder rounds both times down to 0.1 µs.
                if waited < least - 0.1 {
                    return Err(format!("{waited} us instead of {least} us"));
                }
            }
            Row::Packet(_) => {}
        }
    }
    Ok(())
}

/// Returns the time in the label of an RNR NAK, such as `wait 1.28 ms`.
fn microseconds(text: &str) -> f64 {
    let time = text.strip_prefix("wait ").and_then(|time| time.split_once(' '));
    let (number, unit) = time.unwrap_or_else(|| panic!("{text:?} is not a time"));
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1_000.0,
        _ => panic!("{text:?} has another unit"),
    };
    number.parse::<f64>().expect("a number") * factor
}

/// The reduction leaves out what may differ, and nothing else.
#[test]
fn ladders_with_other_events_tell_other_stories() {
    const LADDER: &str = "
 packet        us          192.0.2.1 QP 0x4225                        192.0.2.2 QP 0x9b7
      1       0.0       WRITE first 0, 2,048 B |------------------->|
      -       0.0                   PSN 1 lost |---------x          |
      2       0.0               WRITE middle 2 |------------------->|
      3     144.4                              |<-------------------| NAK 1, PSN sequence error
      4     144.4                 WRITE last 3 |------------------->|
      5     344.4        WRITE middle 1, again |===================>|
      6     344.4        WRITE middle 2, again |===================>|
      7     344.4          WRITE last 3, again |===================>|
      8     535.9                              |<-------------------| ACK 3
";
    let of = |text: &str| story(&rows(text).unwrap());
    let whole = [
        "request p lost",
        "requests behind p",
        "NAK p, PSN sequence error",
        "request p again",
        "requests behind p again",
        "ACK of all",
    ];
    assert_eq!(of(LADDER), whole);
    let without = |parts: &[&str]| -> String {
        LADDER
            .lines()
            .filter(|line| !parts.iter().any(|part| line.contains(part)))
            .fold(String::new(), |text, line| text + line + "\n")
    };
    // Nothing but the number of packets and the place of the NAK differs.
    assert_eq!(of(&without(&["WRITE last 3 |"])), whole);
    let named = LADDER.replace("                  PSN 1 lost |", "        WRITE middle 1, lost |");
    assert_eq!(of(&named), whole);
    for part in ["PSN 1 lost", "NAK 1", "ACK 3", "WRITE middle 1, again"] {
        assert_ne!(of(&without(&[part])), whole, "{part}");
    }
    assert_ne!(of(&without(&["WRITE middle 2, again", "WRITE last 3, again"])), whole);
    assert_ne!(of(&LADDER.replace("NAK 1, PSN sequence error", "NAK 2, PSN sequence error")), whole);
    assert_ne!(of(&LADDER.replace("PSN sequence error", "remote access error")), whole);
    let timeout = "      -     535.9        191 us after packet 7 :      timeout       :\n      8 ";
    assert_ne!(of(&LADDER.replace("      8 ", timeout)), whole);
}
