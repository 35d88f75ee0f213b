//! Trace events of a run: what engines and network report through `tracing`, with the virtual time and the node.
//!
//! The program's subscriber hands every event to [`record_event`]. A thread that runs a simulation, or a part of one, has the journal
//! of that part while it runs, so an event needs no lock and no name of its run. [`Simulation::take_events`](super::Simulation::take_events)
//! puts the events into the order of time and node, which does not depend on the thread that ran them.

use core::fmt::Debug;
use std::cell::RefCell;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

use super::time::Time;

/// A trace event of a run.
#[derive(Clone, Debug)]
pub struct TraceEvent {
    /// When it happened.
    pub time: Time,
    /// Where it happened, for [`Simulation::node_name`](super::Simulation::node_name).
    pub node: u32,
    /// Its level and the module that reported it.
    pub metadata: &'static Metadata<'static>,
    /// What happened.
    pub name: String,
    /// Its fields, in the order in which the event lists them.
    pub fields: Vec<(&'static str, TraceValue)>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceValue {
    /// A number that is not negative.
    Unsigned(u64),
    /// A number.
    Signed(i64),
    /// A number with a fraction.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// A text, or the debug form of something else.
    Text(String),
}

/// The events of a simulation, or of a part of one that a thread runs.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Where the engine that runs now is.
    place: Option<(Time, u32)>,
    events: Vec<TraceEvent>,
}

thread_local! {
    /// The journal of what this thread runs now.
    static CURRENT: RefCell<Option<Journal>> = const { RefCell::new(None) };
}

impl Journal {
    /// Lets this thread record events here until [`leave`].
    pub(super) fn enter(self) {
        CURRENT.with_borrow_mut(|current| *current = Some(self));
    }

    /// Removes the events before a time, in the order of time and node. Events at that time may still come.
    pub(super) fn take_before(&mut self, time: Time) -> Vec<TraceEvent> {
        // The times never go backward.
        let count = self.events.partition_point(|event| event.time < time);
        let later = self.events.split_off(count);
        let mut taken = std::mem::replace(&mut self.events, later);
        // A stable sort: the events of one node keep their order.
        taken.sort_by_key(|event| (event.time, event.node));
        taken
    }
}

/// Ends the recording that [`Journal::enter`] began on this thread, and returns the journal.
pub(super) fn leave() -> Journal {
    let mut journal = CURRENT.with_borrow_mut(Option::take).unwrap_or_default();
    journal.place = None;
    journal
}

/// The events that follow happen at this time, at this node.
pub(super) fn set_place(time: Time, node: u32) {
    CURRENT.with_borrow_mut(|current| {
        if let Some(journal) = current {
            journal.place = Some((time, node));
        }
    });
}

/// Records an event if this thread runs a simulation that keeps events. Returns whether it does: if not, the event is not one
/// of a simulated network.
pub fn record_event(event: &Event<'_>) -> bool {
    CURRENT.with_borrow_mut(|current| {
        let Some(journal) = current else { return false };
        let Some((time, node)) = journal.place else { return false };
        let (name, fields) = fields_of(event);
        journal.events.push(TraceEvent { time, node, metadata: event.metadata(), name, fields });
        true
    })
}

/// The message of an event, and its other fields.
pub fn fields_of(event: &Event<'_>) -> (String, Vec<(&'static str, TraceValue)>) {
    let mut fields = Fields::default();
    event.record(&mut fields);
    (fields.message, fields.others)
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, TraceValue)>,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), TraceValue::Unsigned(value)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), TraceValue::Signed(value)));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.others.push((field.name(), TraceValue::Float(value)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), TraceValue::Bool(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.others.push((field.name(), TraceValue::Text(value.to_owned())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.others.push((field.name(), TraceValue::Text(text)));
        }
    }
}
