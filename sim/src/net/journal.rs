//! Trace events of a run: the `tracing` events of engines and network, with virtual time and node.
//!
//! The program's subscriber passes every event to [`record_event`]. While a thread runs a simulation or a
//! part of one, it owns the journal of that part. Events therefore need no lock and no identifier of their
//! run. [`Simulation::take_events`](super::Simulation::take_events) orders the events by time and node, which
//! does not depend on the thread.

use core::fmt::Debug;
use std::cell::RefCell;

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};

use super::time::Time;

/// A trace event of a run.
#[derive(Clone, Debug)]
pub struct TraceEvent {
    /// The time of the event.
    pub time: Time,
    /// The node of the event, for [`Simulation::node_name`](super::Simulation::node_name).
    pub node: u32,
    /// The level and the reporting module.
    pub metadata: &'static Metadata<'static>,
    /// The message of the event.
    pub name: String,
    /// The fields, in the order in which the event lists them.
    pub fields: Vec<(&'static str, TraceValue)>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceValue {
    /// A non-negative integer.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string, or the debug output of another value.
    Text(String),
}

/// The events of a simulation, or of a part that a thread runs.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// The time and node of the running engine.
    place: Option<(Time, u32)>,
    events: Vec<TraceEvent>,
}

thread_local! {
    /// The journal of the part that this thread runs.
    static CURRENT: RefCell<Option<Journal>> = const { RefCell::new(None) };
}

impl Journal {
    /// Makes this thread record events in this journal until [`leave`].
    pub(super) fn enter(self) {
        CURRENT.with_borrow_mut(|current| *current = Some(self));
    }

    /// Removes and returns the events before a time, ordered by time and node. Events at that time can still
    /// occur.
    pub(super) fn take_before(&mut self, time: Time) -> Vec<TraceEvent> {
        // Times never go backward.
        let count = self.events.partition_point(|event| event.time < time);
        let later = self.events.split_off(count);
        let mut taken = std::mem::replace(&mut self.events, later);
        // The sort is stable, so the events of one node keep their order.
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

/// Sets the time and node of the following events.
pub(super) fn set_place(time: Time, node: u32) {
    CURRENT.with_borrow_mut(|current| {
        if let Some(journal) = current {
            journal.place = Some((time, node));
        }
    });
}

/// Records an event if this thread runs a simulation that keeps events, and returns whether it did. Events
/// that are not recorded do not belong to a simulated network.
pub fn record_event(event: &Event<'_>) -> bool {
    CURRENT.with_borrow_mut(|current| {
        let Some(journal) = current else { return false };
        let Some((time, node)) = journal.place else { return false };
        let (name, fields) = fields_of(event);
        journal.events.push(TraceEvent { time, node, metadata: event.metadata(), name, fields });
        true
    })
}

/// Returns the message of an event, and its other fields.
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
