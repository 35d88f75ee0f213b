//! The stream of trace events: the engine's decisions, one JSON object per line.
//!
//! The engine reports through `tracing`: state changes, rejections, retransmission rounds, dropped packets with
//! their reason. Without a subscriber, each of these call sites costs one comparison.

use std::fmt::Debug;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// A `tracing` layer that writes every event of this project as a line of JSON.
///
/// Each object has `time_ns` (since the layer was created), `level`, `target` (the module), `event` (what
/// happened) and the fields of the event, for example `qpn` and `psn`.
#[derive(Debug)]
pub(crate) struct EventStream<W> {
    out: Mutex<W>,
    origin: Instant,
    max_level: Level,
}

impl<W: Write> EventStream<W> {
    /// Writes events up to the level `max_level` to `out`.
    pub(crate) fn new(out: W, max_level: Level) -> Self {
        Self { out: Mutex::new(out), origin: Instant::now(), max_level }
    }
}

impl<S: Subscriber, W: Write + 'static> Layer<S> for EventStream<W> {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > self.max_level || !metadata.target().starts_with("roce") {
            return;
        }
        let mut object = Map::new();
        let time_ns = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        object.insert("time_ns".into(), time_ns.into());
        object.insert("level".into(), metadata.level().as_str().into());
        object.insert("target".into(), metadata.target().into());
        event.record(&mut Fields(&mut object));
        if let Some(message) = object.remove("message") {
            object.insert("event".into(), message);
        }
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed write must not end the traced program.
        let _ = writeln!(out, "{}", Value::Object(object));
    }
}

struct Fields<'a>(&'a mut Map<String, Value>);

impl Visit for Fields<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_become_lines_of_json() {
        let buffer = Buffer::default();
        let layer = EventStream::new(buffer.clone(), Level::DEBUG);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!(target: "roce_transport::rc", qpn = 17_u32, reason = ?"gap", "go back");
            tracing::trace!(target: "roce_transport::rc", "below the level");
            tracing::debug!(target: "elsewhere", "another library");
        });
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!(lines[0]["event"], "go back");
        assert_eq!(lines[0]["qpn"], 17);
        assert_eq!(lines[0]["reason"], "\"gap\"");
        assert_eq!(lines[0]["level"], "DEBUG");
    }
}
