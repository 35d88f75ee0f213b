//! Everything on the wire that is not normal, in time order.
//!
//! Each event is derived once: a packet that two taps show is one event, and a return of a requester that a
//! lost packet explains is one return and one loss. What only the capture lacks is
//! [`EventKind::NotCaptured`].

mod answers;
mod connecting;
mod finder;
mod kinds;
mod loss;
mod management;
mod order;
mod packets;
mod pauses;
mod resends;
#[cfg(test)]
mod tests;

use crate::analysis::Analysis;

pub use kinds::{Event, EventKind, Where};

use finder::{Finder, Side};

/// Returns everything that is not normal, in time order.
#[must_use]
pub fn events(analysis: &Analysis) -> Vec<Event> {
    let mut finder = Finder::new(analysis);
    for (number, connection) in analysis.connections.iter().enumerate() {
        for end in 0..2 {
            let Some(side) = Side::new(&finder, number, connection, end) else { continue };
            loss::find(&mut finder, &side);
            resends::find(&mut finder, &side);
            answers::find(&mut finder, &side);
            order::find(&mut finder, &side);
        }
    }
    packets::find(&mut finder);
    connecting::find(&mut finder);
    management::find(&mut finder);
    finder.found.sort_by_key(|(time, _)| *time);
    finder.found.into_iter().map(|(_, event)| event).collect()
}
