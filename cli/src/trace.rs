//! The file of `--trace`: one JSON object per line for each trace event.
//!
//! Engine and simulator report through `tracing`: notifications, cuts and increases of rates,
//! retransmissions, pauses, and dropped packets with their reason. Without a subscriber, each call site costs
//! one comparison. docs/reference/json.md lists the events.

use std::fs::File;
use std::io::{self, LineWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context as _;
use roce_sim::net::{Simulation, TraceEvent, TraceValue, fields_of, record_event};
use serde_json::{Map, Value};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// The file of `--trace`. Clones write to the same file.
#[derive(Clone)]
pub(crate) struct TraceFile(Arc<Mutex<dyn Write + Send>>);

impl TraceFile {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path)
            .with_context(|| format!("cannot create {}; --trace needs a writable path", path.display()))?;
        Ok(Self::new(LineWriter::new(file)))
    }

    fn new(out: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(out)))
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(lines)?;
        out.flush()
    }

    /// Writes events of a simulation, with the virtual time and the node of each.
    pub(crate) fn write_events(
        &self,
        simulation: &Simulation,
        events: Vec<TraceEvent>,
    ) -> anyhow::Result<()> {
        let mut lines = Vec::new();
        for event in events {
            let mut object = object(event.metadata, event.name, event.fields);
            object.insert("time_ns".into(), event.time.as_ns().into());
            object.insert("node".into(), simulation.node_name(event.node).into());
            writeln!(lines, "{}", Value::Object(object))?;
        }
        if lines.is_empty() { Ok(()) } else { self.write(&lines).context("cannot write the file of --trace") }
    }
}

/// The clock of the events that the layer writes by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// Time since this point.
    Since(Instant),
    /// No clock: only a simulated network has a time, and it records its events itself.
    Virtual,
}

/// A `tracing` layer that writes every event of this project as a line of JSON.
pub(crate) struct EventStream {
    file: TraceFile,
    clock: Clock,
}

impl EventStream {
    pub(crate) fn new(file: TraceFile, clock: Clock) -> Self {
        Self { file, clock }
    }
}

impl<S: Subscriber> Layer<S> for EventStream {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.target().starts_with("roce") || record_event(event) {
            return;
        }
        let (name, fields) = fields_of(event);
        let mut object = object(metadata, name, fields);
        if let Clock::Since(origin) = self.clock {
            let time_ns = u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            object.insert("time_ns".into(), time_ns.into());
        }
        // A failed write must not end the traced program.
        let _ = self.file.write(format!("{}\n", Value::Object(object)).as_bytes());
    }
}

/// Returns the object of an event, on a wire or in a simulation.
fn object(
    metadata: &Metadata<'_>,
    name: String,
    fields: Vec<(&'static str, TraceValue)>,
) -> Map<String, Value> {
    let value = |value| match value {
        TraceValue::Unsigned(value) => value.into(),
        TraceValue::Signed(value) => value.into(),
        TraceValue::Float(value) => value.into(),
        TraceValue::Bool(value) => value.into(),
        TraceValue::Text(value) => Value::String(value),
    };
    let mut object: Map<String, Value> =
        fields.into_iter().map(|(name, field)| (name.to_owned(), value(field))).collect();
    object.insert("level".into(), metadata.level().as_str().into());
    object.insert("target".into(), metadata.target().into());
    object.insert("event".into(), name.into());
    object
}

#[cfg(test)]
mod tests {
    use tracing::level_filters::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_become_lines_of_json() {
        let buffer = Buffer::default();
        let layer = EventStream::new(TraceFile::new(buffer.clone()), Clock::Since(Instant::now()));
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(LevelFilter::DEBUG));
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

    /// Checks that events that no host or switch of a simulation reports are written without a time.
    #[test]
    fn an_event_without_a_place_is_written_without_a_time() {
        let buffer = Buffer::default();
        let layer = EventStream::new(TraceFile::new(buffer.clone()), Clock::Virtual);
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(LevelFilter::WARN));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "roce_cli::sim", "a run is missing");
            tracing::info!(target: "roce_cli::sim", "below the level");
        });
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let expected = "{\"event\":\"a run is missing\",\"level\":\"WARN\",\"target\":\"roce_cli::sim\"}\n";
        assert_eq!(text, expected);
    }
}
