//! A sequence ladder as JSON, with the words of `roce ladder`.

use roce_analysis::Analysis;
use roce_analysis::connection::Connection;
use roce_analysis::ladder::{Arrow, Content, Ladder, Marks, Row, ladder};
use roce_analysis::words::thousands;
use serde_json::{Value, json};

/// Returns the ladder of a connection, with at most `most_rows` rows but at least ten, and its picture.
#[must_use]
pub fn ladder_json(analysis: &Analysis, connection: &Connection, most_rows: usize) -> Value {
    to_json(&ladder(analysis, connection, most_rows))
}

/// Returns a ladder as JSON.
pub(crate) fn to_json(ladder: &Ladder) -> Value {
    let rows: Vec<Value> = ladder.rows.iter().map(row).collect();
    json!({ "ends": ladder.ends, "rows": rows, "svg": ladder.to_svg() })
}

fn row(row: &Row) -> Value {
    let us = row.time_ns.map(microseconds);
    match &row.content {
        Content::Packet(arrow) => packet(us, arrow),
        Content::Missing { from, first, is_lost, .. } => json!({
            "kind": "packet",
            "us": us,
            "number": null,
            "from": from,
            "label": row.content.words(),
            "psn": first,
            "again": false,
            "lost": if *is_lost { "before" } else { "not captured" },
            "nak": false,
            "ce": false,
            "icrc_bad": false,
        }),
        Content::Timeout { end, waited_ns, .. } => json!({
            "kind": "timeout",
            "us": us,
            "text": row.content.words(),
            "waited_us": microseconds(*waited_ns),
            "side": end,
        }),
        Content::Folded(folded) => json!({
            "kind": "fold",
            "us": us,
            "count": folded.packets.iter().sum::<u64>(),
            "text": row.content.words(),
        }),
    }
}

fn packet(us: Option<f64>, arrow: &Arrow) -> Value {
    let marks = arrow.marks;
    json!({
        "kind": "packet",
        "us": us,
        "number": arrow.place.number,
        "from": arrow.from,
        "label": label(arrow),
        "psn": arrow.psn,
        "again": marks.contains(Marks::RESENT),
        "lost": marks.contains(Marks::LOST).then_some("lost"),
        "nak": marks.intersects(Marks::NAK | Marks::RNR | Marks::REFUSED),
        "ce": marks.contains(Marks::CE),
        "icrc_bad": marks.contains(Marks::BROKEN),
    })
}

/// Returns the label of a packet, with its length and with the marks that have no field of their own.
fn label(arrow: &Arrow) -> String {
    let bytes = arrow.bytes.map(|bytes| format!("{} B", thousands(bytes)));
    let twice = arrow.marks.contains(Marks::DOUBLED).then(|| "twice".to_owned());
    let late = arrow.marks.contains(Marks::LATE).then(|| "late".to_owned());
    let more = [bytes, twice, late].into_iter().flatten();
    more.fold(arrow.label.clone(), |label, more| format!("{label}, {more}"))
}

fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}
