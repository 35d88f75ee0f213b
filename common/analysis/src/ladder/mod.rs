//! A sequence ladder: the packets of a connection in their order, as arrows between both ends.
//!
//! [`ladder`] adds what the packets do not show by themselves: which of them were lost or sent again, and
//! where the requester waited. Runs of packets without any of this become one row, so that twenty packets and
//! two million fit a page. [`Ladder::to_text`] and [`Ladder::to_svg`] draw it.

mod events;
mod fold;
mod label;
mod marks;
mod rows;
mod svg;
mod text;

use crate::analysis::Analysis;
use crate::connection::{Connection, name};

pub use fold::Folded;
pub use marks::Marks;
pub use rows::{Arrow, Content, Ladder, Point, Row};

/// Builds the ladder of a connection, as the tap near end 0 shows it. It has at most `most_rows` rows, but at
/// least ten.
#[must_use]
pub fn ladder(analysis: &Analysis, connection: &Connection, most_rows: usize) -> Ladder {
    let events = events::events(analysis, connection);
    let first_ns = events.first().map_or(0, |event| event.time_ns);
    let has_times = analysis.counts.without_time == 0;
    let shown = fold::fold(events, most_rows.max(10));
    let mut psns = label::Psns::new(analysis, connection);
    let rows = shown.into_iter().filter_map(|shown| {
        let (time_ns, content) = match shown {
            fold::Shown::Event(event) => {
                (event.time_ns, label::content(analysis, connection, &event, &mut psns)?)
            }
            fold::Shown::Folded(folded) => (folded.from_ns, Content::Folded(folded)),
        };
        let since_first = time_ns.saturating_sub(first_ns);
        Some(Row { time_ns: has_times.then_some(since_first), content })
    });
    Ladder { ends: connection.ends.map(name), rows: rows.collect() }
}

/// Returns every packet of a connection except CNPs, as the tap near end 0 shows them, and those that were
/// lost in front of it.
#[must_use]
pub fn points(analysis: &Analysis, connection: &Connection) -> Vec<Point> {
    let mut psns = label::Psns::new(analysis, connection);
    let events = events::events(analysis, connection);
    events.iter().flat_map(|event| label::points(analysis, connection, event, &mut psns)).collect()
}

#[cfg(test)]
mod tests;
