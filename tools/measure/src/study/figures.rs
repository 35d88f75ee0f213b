//! The figures, named after those of the paper.

use std::collections::{BTreeMap, BTreeSet};

use super::grid::{Carrier, Cell, DEFAULT_BUFFERS, Device, Test};
use super::measured::Measured;
use super::store::Outcome;
use roce_plot::{Axes, Axis, Chart, Line};

/// A chart with its name and caption.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name of the file without its extension.
    pub name: String,
    /// The device of the figure; `None` compares devices.
    pub device: Option<Device>,
    /// The caption.
    pub caption: String,
    /// The chart.
    pub chart: Chart,
}

impl Figure {
    /// Returns the chart with its caption.
    #[must_use]
    pub fn plot(&self) -> roce_plot::Figure {
        roce_plot::Figure { caption: self.caption.clone(), ..self.chart.clone().into() }
    }
}

const BY_SIZE: Axes = Axes { x: Axis::Bytes, y: Axis::Linear };
const BY_SIZE_LOG: Axes = Axes { x: Axis::Bytes, y: Axis::Log };
const BY_COUNT: Axes = Axes { x: Axis::Powers, y: Axis::Linear };
const SIZE: &str = "bytes of a message (K = 1024)";
const MICROSECONDS: &str = "median one-way time, µs";
const GIGABITS: &str = "payload, Gb/s";
const MESSAGES: &str = "messages, millions per second";
const CPU: &str = "% of one processor, both sides";
/// The upper limit of small messages in the paper.
const SMALL: usize = 1 << 10;

type Value = fn(&Measured) -> Option<f64>;

/// The rows of a device, and the settings of a family of cells.
struct Rows<'a> {
    rows: &'a BTreeMap<Cell, Outcome>,
    device: Device,
}

/// Returns all figures: those of each device, and those that compare devices. The figures of the first device
/// have plain names; the others add the name of their device.
#[must_use]
pub fn figures(rows: &BTreeMap<Cell, Outcome>) -> Vec<Figure> {
    let devices: BTreeSet<Device> = rows.keys().map(|cell| cell.device).collect();
    let mut all = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let rows = Rows { rows, device: *device };
        let first = all.len();
        all.extend(rows.latencies());
        all.extend(rows.throughputs());
        all.extend(rows.of_buffers());
        all.extend(rows.of_posting());
        all.extend(rows.of_workers());
        if index > 0 {
            all[first..]
                .iter_mut()
                .for_each(|figure| figure.name = format!("{}-{}", figure.name, device.name()));
        }
    }
    if let Some(device) = devices.first() {
        all.extend(Rows { rows, device: *device }.of_devices());
    }
    for figure in &mut all {
        figure.chart.lines.retain(|line| !line.points.is_empty());
    }
    // A figure needs more than the limit. For another device, which may have been measured in part, it needs
    // two lines.
    let first = devices.first().copied();
    all.retain(|figure| {
        let lines = figure.chart.lines.iter().filter(|line| !line.name.starts_with("limit")).count();
        lines > usize::from(figure.device.is_some() && figure.device != first)
    });
    all
}

fn title_of(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Send => "SEND",
        Carrier::Write => "WRITE",
        Carrier::WriteImm => "WRITE with imm.",
        Carrier::Read => "READ",
        Carrier::Tcp => "TCP",
        Carrier::Limit => "limit",
    }
}

fn median(measured: &Measured) -> Option<f64> {
    // A READ is timed as a whole, several times in a row.
    measured.median().or(Some(measured.one_way_us))
}

fn millions(measured: &Measured) -> Option<f64> {
    Some(measured.messages_per_s / 1e6)
}

impl Rows<'_> {
    fn figure(&self, name: &str, labels: [&str; 4], axes: Axes, lines: Vec<Line>) -> Figure {
        let [title, x_label, y_label, caption] = labels;
        Figure {
            name: name.to_owned(),
            device: Some(self.device),
            caption: caption.to_owned(),
            chart: Chart {
                title: format!("{title} ({})", self.device.name()),
                x_label: x_label.to_owned(),
                y_label: y_label.to_owned(),
                lines,
                axes,
                ..Chart::default()
            },
        }
    }

    /// Returns a line over sizes. It contains the measured cells that `cell` returns for a size.
    fn by_size(&self, name: &str, value: Value, sizes: (usize, usize), cell: impl Fn(usize) -> Cell) -> Line {
        self.line(
            name,
            value,
            |known| known.size,
            |known| (sizes.0..=sizes.1).contains(&known.size) && cell(known.size) == *known,
        )
    }

    fn line(
        &self,
        name: &str,
        value: Value,
        x: impl Fn(&Cell) -> usize,
        is_wanted: impl Fn(&Cell) -> bool,
    ) -> Line {
        let points = self
            .rows
            .iter()
            .filter(|(cell, _)| is_wanted(cell))
            .filter_map(|(cell, outcome)| Some((x(cell) as f64, value(outcome.as_ref().ok()?)?)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line { name: name.to_owned(), points }
    }

    fn cell(&self, test: Test, carrier: Carrier, size: usize) -> Cell {
        Cell::new(self.device, test, carrier, size)
    }

    /// Returns a horizontal line at the limit with frames of this size, over the given sizes.
    fn limit_line(&self, value: Value, frame: usize, from: usize, to: usize) -> Line {
        let cell = self.cell(Test::Blast, Carrier::Limit, frame);
        let limit = self.rows.get(&cell).and_then(|outcome| value(outcome.as_ref().ok()?));
        let points = limit.map_or_else(Vec::new, |limit| vec![(from as f64, limit), (to as f64, limit)]);
        let frame = if frame < SMALL { format!("{frame} B") } else { format!("{} KiB", frame >> 10) };
        Line { name: format!("limit, {frame} frames"), points }
    }

    /// Returns four lines: inline or not, polling or events.
    fn ways(&self, carrier: Carrier, value: Value, sizes: (usize, usize)) -> Vec<Line> {
        let mut lines = Vec::new();
        for (inline, events) in [(false, false), (true, false), (false, true), (true, true)] {
            let copied = if inline { "inline" } else { "no inline" };
            let waited = if events { "events" } else { "polling" };
            let cell = |size| Cell { inline, events, ..self.cell(Test::Ping, carrier, size) };
            lines.push(self.by_size(&format!("{copied}, {waited}"), value, sizes, cell));
        }
        lines
    }

    /// Returns lines of the four operations and TCP, with the settings of [`Cell::new`].
    fn all_carriers(&self, test: Test, value: Value, sizes: (usize, usize)) -> Vec<Line> {
        let carriers = Carrier::OPERATIONS.into_iter().chain([Carrier::Tcp]);
        let line =
            |carrier| self.by_size(title_of(carrier), value, sizes, |size| self.cell(test, carrier, size));
        carriers.map(line).collect()
    }

    fn latencies(&self) -> Vec<Figure> {
        let (small, large) = ((1, SMALL), (SMALL, usize::MAX));
        let mut all = Vec::new();
        for (name, carrier) in [
            ("latency-small-send-recv", Carrier::Send),
            ("latency-small-write", Carrier::Write),
            ("latency-small-write-imm", Carrier::WriteImm),
        ] {
            let title = format!("Latency of small messages by {}", title_of(carrier));
            let caption = match carrier {
                Carrier::Write => {
                    "Half a round trip, with and without inline; found in memory by the receiver."
                }
                _ => "Half a round trip, with and without inline, by polling and by events.",
            };
            let lines = self.ways(carrier, median, small);
            all.push(self.figure(name, [&title, SIZE, MICROSECONDS, caption], BY_SIZE, lines));
        }
        let mut lines = self.all_carriers(Test::Ping, median, small);
        let limit = self.cell(Test::Ping, Carrier::Limit, 16);
        let limit = self.rows.get(&limit).and_then(|outcome| median(outcome.as_ref().ok()?));
        lines.push(Line {
            name: "limit, one frame".into(),
            points: limit.map_or_else(Vec::new, |limit| vec![(8.0, limit), (SMALL as f64, limit)]),
        });
        let caption = "Polling, no inline. WRITE: found in memory by the receiver. READ: a whole READ, not half a round trip.";
        let labels = ["Latency of small messages", SIZE, MICROSECONDS, caption];
        all.push(self.figure("latency-small-all", labels, BY_SIZE, lines));
        let labels = ["Latency of large messages", SIZE, MICROSECONDS, caption];
        let lines = self.all_carriers(Test::Ping, median, large);
        all.push(self.figure("latency-large-all", labels, BY_SIZE_LOG, lines));
        let lines = vec![
            self.by_size("SEND, polling", Measured::cpu, (1, usize::MAX), |size| {
                self.cell(Test::Ping, Carrier::Send, size)
            }),
            self.by_size("SEND, events", Measured::cpu, (1, usize::MAX), |size| Cell {
                events: true,
                ..self.cell(Test::Ping, Carrier::Send, size)
            }),
            self.by_size("TCP, polling", Measured::cpu, (1, usize::MAX), |size| {
                self.cell(Test::Ping, Carrier::Tcp, size)
            }),
            self.by_size("TCP, sleeping", Measured::cpu, (1, usize::MAX), |size| Cell {
                events: true,
                ..self.cell(Test::Ping, Carrier::Tcp, size)
            }),
        ];
        let caption = "What both sides of ping use together; 200 % are two busy processors.";
        all.push(self.figure("cpu-latency", ["Processor time of ping", SIZE, CPU, caption], BY_SIZE, lines));
        all
    }

    fn throughputs(&self) -> Vec<Figure> {
        let (small, large) = ((1, SMALL), (SMALL, usize::MAX));
        let caption = "16 buffers, polling, lists; TCP in writes of this size, which the kernel gathers.";
        let mut lines = self.all_carriers(Test::Blast, millions, small);
        lines.push(self.limit_line(millions, 64, 8, SMALL));
        let labels = ["Rate of small messages", SIZE, MESSAGES, caption];
        let mut all = vec![self.figure("throughput-small-all", labels, BY_SIZE, lines)];
        let lines = [Carrier::Send, Carrier::Write, Carrier::WriteImm].into_iter().flat_map(|carrier| {
            [false, true].map(|inline| {
                let name = format!("{}{}", title_of(carrier), if inline { ", inline" } else { "" });
                self.by_size(&name, millions, (1, 512), |size| Cell {
                    inline,
                    ..self.cell(Test::Blast, carrier, size)
                })
            })
        });
        let labels = ["Rate of small messages, inline or not", SIZE, MESSAGES, "16 buffers, polling, lists."];
        all.push(self.figure("throughput-small-inline", labels, BY_SIZE, lines.collect()));
        let mut lines = self.all_carriers(Test::Blast, Measured::speed, large);
        let largest =
            lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x).fold(SMALL as f64, f64::max);
        lines.push(self.limit_line(Measured::speed, 4 << 10, SMALL, largest as usize));
        let labels = ["Throughput of large messages", SIZE, GIGABITS, caption];
        all.push(self.figure("throughput-large-all", labels, BY_SIZE, lines));
        for (name, title, label, value) in [
            (
                "throughput-poll-event",
                "Throughput by polling and by events",
                GIGABITS,
                Measured::speed as Value,
            ),
            ("cpu-poll-event", "Processor time of blast", CPU, Measured::cpu as Value),
        ] {
            let lines = [Carrier::Send, Carrier::Write].into_iter().flat_map(|carrier| {
                [false, true].map(|events| {
                    let name =
                        format!("{}, {}", title_of(carrier), if events { "events" } else { "polling" });
                    self.by_size(&name, value, (1, usize::MAX), |size| Cell {
                        events,
                        ..self.cell(Test::Blast, carrier, size)
                    })
                })
            });
            let labels = [title, SIZE, label, "16 buffers, lists, no inline."];
            all.push(self.figure(name, labels, BY_SIZE, lines.collect()));
        }
        all
    }

    /// Returns a line over numbers of buffers.
    fn by_buffers(&self, name: &str, value: Value, like: Cell) -> Line {
        self.line(name, value, |cell| cell.buffers, |cell| Cell { buffers: cell.buffers, ..like } == *cell)
    }

    fn of_buffers(&self) -> Vec<Figure> {
        let mut all = Vec::new();
        let x = "outstanding messages";
        for (name, title, size, label, value) in [
            ("throughput-buffers-small", "Buffers, messages of 64 bytes", 64, MESSAGES, millions as Value),
            (
                "throughput-buffers-medium",
                "Buffers, messages of 4 KiB",
                4 << 10,
                GIGABITS,
                Measured::speed as Value,
            ),
            (
                "throughput-buffers-64k",
                "Buffers, messages of 64 KiB",
                64 << 10,
                GIGABITS,
                Measured::speed as Value,
            ),
            (
                "throughput-buffers-large",
                "Buffers, messages of 1 MiB",
                1 << 20,
                GIGABITS,
                Measured::speed as Value,
            ),
            ("cpu-buffers-large", "Processor time, messages of 1 MiB", 1 << 20, CPU, Measured::cpu as Value),
        ] {
            let mut lines = Vec::new();
            for carrier in Carrier::OPERATIONS {
                for events in [false, true] {
                    let waited = if events { "events" } else { "polling" };
                    let like = Cell { events, ..self.cell(Test::Blast, carrier, size) };
                    let line = self.by_buffers(&format!("{}, {waited}", title_of(carrier)), value, like);
                    // Lines of one or two points are part of other figures.
                    if line.points.len() > 2 {
                        lines.push(line);
                    }
                }
            }
            let labels = [title, x, label, "Lists, no inline, every request signaled."];
            all.push(self.figure(name, labels, BY_COUNT, lines));
        }
        all
    }

    fn of_posting(&self) -> Vec<Figure> {
        let compare = |[plain, changed]: [&str; 2], change: fn(Cell) -> Cell| {
            let mut lines = Vec::new();
            for carrier in [Carrier::Send, Carrier::Write] {
                let plain_cell = |size| self.cell(Test::Blast, carrier, size);
                // The line contains only sizes that have both cells.
                let is_there = |size| self.rows.contains_key(&change(plain_cell(size)));
                let name = format!("{}, {plain}", title_of(carrier));
                let mut line = self.by_size(&name, millions, (1, 4096), plain_cell);
                line.points.retain(|(size, _)| is_there(*size as usize));
                lines.push(line);
                let name = format!("{}, {changed}", title_of(carrier));
                lines.push(self.by_size(&name, millions, (1, 4096), |size| change(plain_cell(size))));
            }
            lines
        };
        let caption = format!("{DEFAULT_BUFFERS} buffers, polling, no inline.");
        let lists = compare(["lists", "single posts"], |cell| Cell { lists: false, ..cell });
        let labels = ["Lists of work requests or single posts", SIZE, MESSAGES, &caption];
        let post = self.figure("throughput-post", labels, BY_SIZE, lists);
        let signals = compare(["every request", "one of 8"], |cell| Cell { periodic: true, ..cell });
        let labels = ["Which requests are signaled", SIZE, MESSAGES, &caption];
        vec![post, self.figure("throughput-signal", labels, BY_SIZE, signals)]
    }

    fn of_workers(&self) -> Vec<Figure> {
        let lines = |value: Value| {
            let mut lines = Vec::new();
            for carrier in [Carrier::Write, Carrier::Tcp] {
                for shift in [12, 14, 16, 18] {
                    let name = format!("{}, {} KiB", title_of(carrier), (1 << shift) >> 10);
                    let like =
                        Cell { buffers: 1, events: true, ..self.cell(Test::Blast, carrier, 1 << shift) };
                    lines.push(self.line(
                        &name,
                        value,
                        |cell| cell.workers,
                        |cell| Cell { workers: cell.workers, ..like } == *cell,
                    ));
                }
            }
            lines
        };
        let caption = "Each worker has a connection, a thread on both sides and one outstanding message; all of them sleep.";
        let x = "workers";
        let labels = ["Throughput by workers and block size", x, GIGABITS, caption];
        let speed = self.figure("throughput-workers", labels, BY_COUNT, lines(Measured::speed));
        let labels = ["Processor time by workers and block size", x, CPU, caption];
        vec![speed, self.figure("cpu-workers", labels, BY_COUNT, lines(Measured::cpu))]
    }

    /// Returns the figures that compare devices.
    fn of_devices(&self) -> Vec<Figure> {
        let lines = |test: Test, carrier: Carrier, value: Value, sizes: (usize, usize)| {
            let line = |device: Device| {
                let rows = Rows { rows: self.rows, device };
                rows.by_size(device.name(), value, sizes, |size| Cell::new(device, test, carrier, size))
            };
            Device::ALL.into_iter().map(line).collect::<Vec<_>>()
        };
        let devices = |name: &str, labels: [&str; 4], axes: Axes, lines: Vec<Line>| {
            let mut figure = self.figure(name, labels, axes, lines);
            labels[0].clone_into(&mut figure.chart.title);
            figure.device = None;
            figure
        };
        let labels =
            ["Latency of SEND on each device", SIZE, MICROSECONDS, "Ping by SEND, polling, no inline."];
        let small = lines(Test::Ping, Carrier::Send, median, (1, 16 << 10));
        let latency = devices("devices-latency", labels, BY_SIZE, small);
        let caption = "Blast by WRITE, 16 buffers, polling.";
        let labels = ["Throughput of WRITE on each device", SIZE, GIGABITS, caption];
        let speed = lines(Test::Blast, Carrier::Write, Measured::speed, (1, usize::MAX));
        vec![latency, devices("devices-throughput", labels, BY_SIZE, speed)]
    }
}
