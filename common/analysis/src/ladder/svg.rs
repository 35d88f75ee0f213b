//! A ladder as SVG, with colors for light and dark pages.

use std::fmt::Write as _;

use super::fold::Folded;
use super::marks::Marks;
use super::rows::{Arrow, Content, Ladder, Row};
use super::text::{microseconds, missing, packets, waited, words};

const WIDTH: u32 = 900;
/// Positions of the columns: end of the packet number, end of the time, both ends of the arrows.
const NUMBER: u32 = 56;
const TIME: u32 = 136;
const LEFT: u32 = 368;
const RIGHT: u32 = 640;
/// Height of the headings.
const HEADINGS: u32 = 62;
/// Distance between two packets, and height of a row that stands for a time.
const ROW: u32 = 20;
const PAUSE: u32 = 34;
/// Half of the distance between two lines of text in one row.
const HALF_LINE: u32 = 8;
/// Difference in height between the two ends of an arrow.
const SLOPE: u32 = 10;

/// The colors are those of a light page, and of a dark one. Styles of a page that contains the picture do not
/// reach its classes, and the other way round.
const STYLE: &str = "<style>\
.ladder{font:13px Helvetica,Arial,sans-serif;--page:#fff;--ink:#222;--faint:#6b6b6b;--rail:#a8a8a8;\
--bad:#c62828;--again:#1565c0;--good:#2e7d32;--note:#b25a00}\
@media(prefers-color-scheme:dark){.ladder{--page:#16181c;--ink:#e4e4e4;--faint:#9a9a9a;--rail:#666;\
--bad:#ff7b72;--again:#79b8ff;--good:#7ee787;--note:#ffb454}}\
.ladder rect{fill:var(--page)}.ladder text{fill:var(--ink)}.ladder path{stroke:var(--ink);fill:none;stroke-width:1.4}\
.ladder text.faint{fill:var(--faint)}.ladder text.end{font-weight:bold}\
.ladder path.rail{stroke:var(--rail);stroke-width:2}.ladder path.wait{stroke:var(--rail);stroke-width:2;stroke-dasharray:2 5}\
.ladder text.bad{fill:var(--bad)}.ladder path.bad{stroke:var(--bad)}\
.ladder text.again{fill:var(--again)}.ladder path.again{stroke:var(--again);stroke-dasharray:7 4}\
.ladder text.good{fill:var(--good)}.ladder path.good{stroke:var(--good)}\
.ladder text.note{fill:var(--note)}.ladder path.note{stroke:var(--note)}\
.ladder path.head{stroke-dasharray:none}\
</style>";

impl Ladder {
    /// Returns the ladder as an SVG document, which may also stand inside HTML. It has no scripts and refers
    /// to no other files.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let height = HEADINGS + self.rows.iter().map(Row::height).sum::<u32>() + 12;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"ladder\" viewBox=\"0 0 {WIDTH} {height}\" \
             width=\"{WIDTH}\" height=\"{height}\">\n{STYLE}\n<rect width=\"{WIDTH}\" height=\"{height}\"/>\n"
        );
        // Writing to a string cannot fail.
        let _ = self.write_headings(&mut svg);
        let mut y = HEADINGS;
        for row in &self.rows {
            let _ = row.write_svg(&mut svg, y);
            y += row.height();
        }
        let _ = rails(&mut svg, "rail", y, y + 8);
        svg + "</svg>\n"
    }

    fn write_headings(&self, svg: &mut String) -> std::fmt::Result {
        let [left, right] = &self.ends;
        text(svg, NUMBER, 42, "end", "faint", "packet")?;
        text(svg, TIME, 42, "end", "faint", "\u{b5}s")?;
        for (x, anchor, name) in [(LEFT + 20, "end", left), (RIGHT - 20, "start", right)] {
            let (address, queue_pair) = name.split_once(' ').unwrap_or((name, ""));
            text(svg, x, 18, anchor, "end", address)?;
            text(svg, x, 36, anchor, "faint", queue_pair)?;
        }
        rails(svg, "rail", HEADINGS - 16, HEADINGS)
    }
}

impl Row {
    const fn height(&self) -> u32 {
        match self.content {
            Content::Packet(_) | Content::Missing { .. } => ROW,
            Content::Timeout { .. } | Content::Folded(_) => PAUSE,
        }
    }

    fn write_svg(&self, svg: &mut String, y: u32) -> std::fmt::Result {
        let end = y + self.height();
        let time = self.time_ns.map_or_else(|| "-".to_owned(), microseconds);
        let middle = y + self.height() / 2 + 4;
        match &self.content {
            Content::Packet(arrow) => {
                rails(svg, "rail", y, end)?;
                text(svg, NUMBER, y + 9, "end", "faint", &arrow.place.to_string())?;
                text(svg, TIME, y + 9, "end", "faint", &time)?;
                write_packet(svg, arrow, y)
            }
            Content::Missing { from, first, count, is_lost } => {
                rails(svg, "rail", y, end)?;
                text(svg, TIME, y + 9, "end", "faint", &time)?;
                let class = if *is_lost { "bad" } else { "faint" };
                if *is_lost {
                    line(svg, *from, y, class, true)?;
                }
                label(svg, *from, y, class, &missing(*first, *count, *is_lost))
            }
            Content::Timeout { end: requester, waited_ns, since, first } => {
                rails(svg, "wait", y, end)?;
                let (x, anchor) = beside(*requester);
                let [since, first] =
                    waited(*waited_ns, *since, *first).map(|words| words.replace("us", "\u{b5}s"));
                let half = if first.is_empty() { 0 } else { HALF_LINE };
                text(svg, x, middle - half, anchor, "bad", &format!("timeout: {since}"))?;
                text(svg, x, middle + half, anchor, "bad", &first)
            }
            Content::Folded(folded) => {
                rails(svg, "wait", y, end)?;
                let (x, words) =
                    (u32::midpoint(LEFT, RIGHT), format!("\u{2026} {} \u{2026}", packets(folded)));
                text(svg, x, middle, "middle", "faint", &words)?;
                text(svg, RIGHT + 12, middle, "start", class_of(folded), &folded.remarks())
            }
        }
    }
}

const fn class_of(folded: &Folded) -> &'static str {
    if folded.lost > 0 || folded.timeouts > 0 { "bad" } else { "faint" }
}

fn write_packet(svg: &mut String, arrow: &Arrow, y: u32) -> std::fmt::Result {
    let is_lost = arrow.marks.contains(Marks::LOST);
    let class = class(arrow);
    line(svg, arrow.from, y, class, is_lost)?;
    label(svg, arrow.from, y, class, &words(arrow))
}

fn class(arrow: &Arrow) -> &'static str {
    let bad = Marks::LOST | Marks::NAK | Marks::REFUSED | Marks::RNR | Marks::BROKEN;
    if arrow.marks.intersects(bad) {
        "bad"
    } else if arrow.marks.contains(Marks::RESENT) {
        "again"
    } else if arrow.marks.intersects(Marks::CNP | Marks::CE) {
        "note"
    } else if arrow.is_answer {
        "good"
    } else {
        "plain"
    }
}

/// Returns the position and the anchor of a text beside an end.
const fn beside(end: usize) -> (u32, &'static str) {
    if end == 0 { (LEFT - 12, "end") } else { (RIGHT + 12, "start") }
}

fn label(svg: &mut String, from: usize, y: u32, class: &str, words: &str) -> std::fmt::Result {
    let (x, anchor) = beside(from);
    text(svg, x, y + 9, anchor, class, words)
}

fn text(svg: &mut String, x: u32, y: u32, anchor: &str, class: &str, words: &str) -> std::fmt::Result {
    if words.is_empty() {
        return Ok(());
    }
    writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{words}</text>")
}

fn rails(svg: &mut String, class: &str, from: u32, to: u32) -> std::fmt::Result {
    writeln!(svg, "<path class=\"{class}\" d=\"M{LEFT} {from}V{to}M{RIGHT} {from}V{to}\"/>")
}

/// Draws an arrow; one that is lost ends in the middle with a cross.
fn line(svg: &mut String, from: usize, y: u32, class: &str, is_lost: bool) -> std::fmt::Result {
    let (begin, end, side) = if from == 0 { (LEFT, RIGHT, -1) } else { (RIGHT, LEFT, 1) };
    let y = y + 5;
    if is_lost {
        let (x, bottom) = (u32::midpoint(begin, end), y + SLOPE / 2);
        writeln!(svg, "<path class=\"{class}\" d=\"M{begin} {y}L{x} {bottom}\"/>")?;
        let (left, right, top, low) = (x - 5, x + 5, bottom - 5, bottom + 5);
        return writeln!(
            svg,
            "<path class=\"{class} head\" stroke-width=\"2\" d=\"M{left} {top}L{right} {low}M{right} {top}L{left} {low}\"/>"
        );
    }
    let bottom = y + SLOPE;
    let back = end.saturating_add_signed(8 * side);
    writeln!(svg, "<path class=\"{class}\" d=\"M{begin} {y}L{end} {bottom}\"/>")?;
    writeln!(
        svg,
        "<path class=\"{class} head\" d=\"M{back} {}L{end} {bottom}L{back} {}\"/>",
        bottom - 5,
        bottom + 3
    )
}
