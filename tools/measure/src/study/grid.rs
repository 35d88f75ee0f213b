//! The grid of all cells.

use std::collections::BTreeSet;

use roce_transport::MAX_INLINE;
use serde::{Deserialize, Serialize};

use crate::measure::{Completion, Op, Plan, Post, Signal, Tool};

/// The device that connects the two sides of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// `udp` between two loopback addresses, which every user can use.
    UdpLoopback,
    /// `udp` over a virtual cable between two network namespaces.
    Udp,
    /// `raw` over the cable between the two network namespaces.
    Raw,
    /// `xdp` over the cable between the two network namespaces.
    Xdp,
    /// `tap`; each side is on a bridge at one end of another cable.
    Tap,
}

impl Device {
    /// All devices. Those after the first require network namespaces.
    pub const ALL: [Self; 5] = [Self::UdpLoopback, Self::Udp, Self::Raw, Self::Xdp, Self::Tap];

    /// Returns the name in the CSV and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UdpLoopback => "udp-loopback",
            Self::Udp => "udp",
            Self::Raw => "raw",
            Self::Xdp => "xdp",
            Self::Tap => "tap",
        }
    }

    /// Returns whether the sides are connected by a cable between network namespaces.
    #[must_use]
    pub const fn takes_cable(self) -> bool {
        !matches!(self, Self::UdpLoopback)
    }

    /// Returns whether the kernel has the addresses of the device, so that kernel TCP takes the same path.
    #[must_use]
    pub const fn has_tcp(self) -> bool {
        !matches!(self, Self::Tap)
    }
}

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// One message in each direction, in turn; for READ, a whole READ.
    Ping,
    /// Many messages in one direction.
    Blast,
}

impl Test {
    /// Returns the name in the CSV.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Blast => "blast",
        }
    }
}

/// The operation or protocol that carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// SEND.
    Send,
    /// WRITE; with ping, the receiver polls its memory.
    Write,
    /// WRITE with immediate data.
    WriteImm,
    /// READ.
    Read,
    /// Kernel TCP between the same addresses.
    Tcp,
    /// Frames of the device without any protocol, as an upper bound.
    Limit,
}

impl Carrier {
    /// The four operations.
    pub const OPERATIONS: [Self; 4] = [Self::Send, Self::Write, Self::WriteImm, Self::Read];

    /// Returns the name in the CSV.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Tcp => "tcp",
            Self::Limit => "limit",
        }
    }

    const fn op(self) -> Option<Op> {
        match self {
            Self::Send => Some(Op::Send),
            Self::Write => Some(Op::Write),
            Self::WriteImm => Some(Op::WriteImm),
            Self::Read => Some(Op::Read),
            Self::Tcp | Self::Limit => None,
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// The device.
    pub device: Device,
    /// Latency or throughput.
    pub test: Test,
    /// The operation or protocol that carries the messages.
    pub carrier: Carrier,
    /// Bytes of a message.
    pub size: usize,
    /// Whether messages are posted inline.
    pub inline: bool,
    /// Whether both sides sleep until completion events; otherwise they poll.
    pub events: bool,
    /// Whether work requests are posted in lists; otherwise each is posted alone.
    pub lists: bool,
    /// Whether one of N/2 requests is signaled, where N is the number of buffers; otherwise each is signaled.
    pub periodic: bool,
    /// Outstanding messages per worker.
    pub buffers: usize,
    /// Connections that carry messages at the same time, each with a thread on both sides.
    pub workers: usize,
}

impl Cell {
    /// Returns a measurement with the settings that the others are compared with: no inline, polling, lists,
    /// every request signaled, one worker.
    #[must_use]
    pub fn new(device: Device, test: Test, carrier: Carrier, size: usize) -> Self {
        let buffers = match (test, carrier) {
            (Test::Ping, Carrier::Read | Carrier::Tcp | Carrier::Limit) => 1,
            (Test::Ping, _) => ping_buffers(size),
            (Test::Blast, Carrier::Tcp) => 1,
            (Test::Blast, _) => blast_buffers(size),
        };
        Self {
            device,
            test,
            carrier,
            size,
            inline: false,
            events: false,
            lists: test == Test::Blast && carrier.op().is_some(),
            periodic: false,
            buffers,
            workers: 1,
        }
    }

    /// Returns the name of the cell, which identifies its row of the CSV.
    #[must_use]
    pub fn key(&self) -> String {
        let on = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
        format!(
            "{}/{}/{}/{}/{}/{}/{}/{}/{}/{}",
            self.device.name(),
            self.test.name(),
            self.carrier.name(),
            self.size,
            on(self.inline, "inline", "copy"),
            on(self.events, "event", "poll"),
            on(self.lists, "list", "single"),
            on(self.periodic, "periodic", "full"),
            self.buffers,
            self.workers
        )
    }

    /// Returns the plan for `roce ping` or `roce blast`; `None` for TCP and the limit.
    #[must_use]
    pub fn plan(&self, iterations: u64, path_mtu: usize) -> Option<Plan> {
        let op = self.carrier.op()?;
        // A READ needs no answer. Its latency is measured with one READ after the other.
        let is_ping = self.test == Test::Ping && op != Op::Read;
        let completion = match (is_ping, op, self.events) {
            (_, _, true) => Completion::Event,
            (true, Op::Write, false) => Completion::Memory,
            _ => Completion::Poll,
        };
        Some(Plan {
            tool: if is_ping { Tool::Ping } else { Tool::Blast },
            op,
            sizes: vec![self.size],
            iterations,
            buffers: self.buffers,
            inline: self.inline,
            completion,
            post: if self.lists { Post::List } else { Post::Single },
            signal: if self.periodic { Signal::Periodic } else { Signal::Full },
            path_mtu,
            // 1.07 s, so that a side whose processor is busy for a while does not count as lost.
            timeout: 18,
        })
    }

    /// Returns the bytes that both sides together need for messages.
    #[must_use]
    pub fn memory(&self) -> usize {
        let of_one = match self.plan(1, 1024) {
            Some(plan) => plan.memory(),
            None => self.size,
        };
        of_one.saturating_mul(2 * self.workers)
    }
}

/// Default number of outstanding messages. Messages beyond 4 MiB have fewer.
pub const DEFAULT_BUFFERS: usize = 16;

/// Returns the number of requests between two checks of send completions. It is smaller for large requests,
/// because each has its own memory.
const fn ping_buffers(size: usize) -> usize {
    match size {
        0..=65_536 => 16,
        65_537..=4_194_304 => 4,
        _ => 1,
    }
}

/// Returns the number of outstanding messages of blast, for cells that do not vary the number of buffers.
const fn blast_buffers(size: usize) -> usize {
    match size {
        0..=4_194_304 => DEFAULT_BUFFERS,
        4_194_305..=67_108_864 => 4,
        _ => 2,
    }
}

/// The size of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// Some values of each axis; takes a few minutes.
    Quick,
    /// All values; takes an hour or more.
    Full,
}

/// The values of the axes.
struct Axes {
    latency_sizes: Vec<usize>,
    inline_sizes: Vec<usize>,
    blast_sizes: Vec<usize>,
    buffers: Vec<usize>,
    buffer_sizes: Vec<usize>,
    posting_sizes: Vec<usize>,
    block_sizes: Vec<usize>,
    workers: Vec<usize>,
    /// Operations for axes that do not need all four.
    some: Vec<Carrier>,
    events_everywhere: bool,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Returns the powers of `base` from one number to another.
fn powers(from: usize, base: usize, to: usize) -> Vec<usize> {
    std::iter::successors(Some(from), |size| size.checked_mul(base)).take_while(|size| *size <= to).collect()
}

impl Grid {
    /// Returns the name in the CSV.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }

    /// Returns the approximate time of one measurement of a cell, in seconds. Each cell is measured three
    /// times.
    #[must_use]
    pub const fn seconds(self) -> f64 {
        match self {
            Self::Quick => 0.08,
            Self::Full => 0.3,
        }
    }

    fn axes(self) -> Axes {
        match self {
            Self::Quick => Axes {
                latency_sizes: vec![8, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, MIB],
                inline_sizes: vec![8, 64, 256],
                blast_sizes: vec![8, 64, KIB, 4 * KIB, 64 * KIB, MIB],
                buffers: powers(1, 2, 128),
                buffer_sizes: vec![64, 4 * KIB, 64 * KIB],
                posting_sizes: vec![64, KIB, 4 * KIB, 64 * KIB],
                block_sizes: vec![4 * KIB, 64 * KIB, 256 * KIB],
                workers: vec![1, 4, 16, 48],
                some: vec![Carrier::Send, Carrier::Write],
                events_everywhere: false,
            },
            Self::Full => Axes {
                latency_sizes: powers(1, 2, 256 * MIB),
                inline_sizes: powers(1, 2, MAX_INLINE),
                blast_sizes: powers(1, 4, 256 * MIB),
                buffers: powers(1, 2, 128),
                buffer_sizes: vec![64, 4 * KIB, 64 * KIB, MIB],
                posting_sizes: powers(16, 4, 256 * KIB),
                block_sizes: powers(4 * KIB, 4, 256 * KIB),
                workers: vec![1, 2, 4, 8, 16, 32, 48],
                some: Carrier::OPERATIONS.to_vec(),
                events_everywhere: true,
            },
        }
    }

    /// Returns the cells of a device, each once, in the order of measurement.
    ///
    /// The quick grid has all axes only for loopback. For other devices, it has the cells that compare
    /// devices.
    #[must_use]
    pub fn cells(self, device: Device) -> Vec<Cell> {
        let axes = self.axes();
        let mut cells = Vec::new();
        ceiling(device, &mut cells);
        if self == Self::Quick && device != Device::UdpLoopback {
            compared(device, &mut cells);
        } else {
            latency(device, &axes, &mut cells);
            throughput(device, &axes, &mut cells);
            posting(device, &axes, &mut cells);
            workers(device, &axes, &mut cells);
        }
        let mut seen = BTreeSet::new();
        cells.retain(|cell| (device.has_tcp() || cell.carrier != Carrier::Tcp) && seen.insert(*cell));
        cells
    }
}

impl Grid {
    /// Returns the cells of a device whose key contains `only`, or all cells without it.
    #[must_use]
    pub fn chosen(self, device: Device, only: Option<&str>) -> Vec<Cell> {
        let mut cells = self.cells(device);
        if let Some(only) = only {
            cells.retain(|cell| cell.key().contains(only));
        }
        cells
    }
}

/// Adds the cells of the device without a protocol.
fn ceiling(device: Device, cells: &mut Vec<Cell>) {
    cells.push(Cell::new(device, Test::Ping, Carrier::Limit, 16));
    cells.extend([64, KIB, 4 * KIB].map(|size| Cell::new(device, Test::Blast, Carrier::Limit, size)));
}

/// Adds the cells that compare devices.
fn compared(device: Device, cells: &mut Vec<Cell>) {
    for size in [64, KIB, 64 * KIB, MIB] {
        for carrier in Carrier::OPERATIONS.into_iter().chain([Carrier::Tcp]) {
            cells.push(Cell::new(device, Test::Blast, carrier, size));
        }
    }
    for size in [8, 64, KIB, 16 * KIB] {
        for carrier in Carrier::OPERATIONS.into_iter().chain([Carrier::Tcp]) {
            cells.push(Cell::new(device, Test::Ping, carrier, size));
        }
        cells.push(Cell { events: true, ..Cell::new(device, Test::Ping, Carrier::Send, size) });
    }
}

fn latency(device: Device, axes: &Axes, cells: &mut Vec<Cell>) {
    let with_events = |carrier: Carrier| {
        axes.events_everywhere && carrier != Carrier::Write || matches!(carrier, Carrier::Send | Carrier::Tcp)
    };
    for carrier in Carrier::OPERATIONS.into_iter().chain([Carrier::Tcp]) {
        for &size in &axes.latency_sizes {
            let cell = Cell::new(device, Test::Ping, carrier, size);
            cells.push(cell);
            if with_events(carrier) {
                cells.push(Cell { events: true, ..cell });
            }
        }
    }
    for carrier in [Carrier::Send, Carrier::Write, Carrier::WriteImm] {
        for &size in &axes.inline_sizes {
            let cell = Cell { inline: true, ..Cell::new(device, Test::Ping, carrier, size) };
            cells.push(cell);
            if with_events(carrier) {
                cells.push(Cell { events: true, ..cell });
            }
        }
    }
}

fn throughput(device: Device, axes: &Axes, cells: &mut Vec<Cell>) {
    for carrier in Carrier::OPERATIONS.into_iter().chain([Carrier::Tcp]) {
        for &size in &axes.blast_sizes {
            let cell = Cell::new(device, Test::Blast, carrier, size);
            cells.push(cell);
            if axes.some.contains(&carrier) {
                cells.push(Cell { events: true, ..cell });
            }
        }
    }
    for carrier in [Carrier::Send, Carrier::Write, Carrier::WriteImm] {
        if axes.some.contains(&carrier) {
            let inline =
                |size: &usize| Cell { inline: true, ..Cell::new(device, Test::Blast, carrier, *size) };
            cells.extend(axes.inline_sizes.iter().map(inline));
            // The cells that they are compared with.
            cells.extend(axes.inline_sizes.iter().map(|size| Cell::new(device, Test::Blast, carrier, *size)));
        }
    }
    for &carrier in &axes.some {
        for &size in &axes.buffer_sizes {
            for &buffers in &axes.buffers {
                let cell = Cell { buffers, ..Cell::new(device, Test::Blast, carrier, size) };
                cells.push(cell);
                if axes.events_everywhere {
                    cells.push(Cell { events: true, ..cell });
                }
            }
        }
    }
    // Large messages with few buffers, with polling and with events.
    for buffers in [1, 2, 4] {
        let cell = Cell { buffers, ..Cell::new(device, Test::Blast, Carrier::Send, MIB) };
        cells.extend([cell, Cell { events: true, ..cell }]);
    }
}

/// Adds the cells with lists and signals.
fn posting(device: Device, axes: &Axes, cells: &mut Vec<Cell>) {
    for &carrier in &axes.some {
        for &size in &axes.posting_sizes {
            let cell = Cell::new(device, Test::Blast, carrier, size);
            cells.extend([cell, Cell { lists: false, ..cell }, Cell { periodic: true, ..cell }]);
        }
    }
}

/// Adds the cells that write blocks with several sleeping workers, each with one outstanding block, as in
/// storage benchmarks.
fn workers(device: Device, axes: &Axes, cells: &mut Vec<Cell>) {
    for carrier in [Carrier::Write, Carrier::Tcp] {
        for &size in &axes.block_sizes {
            for &workers in &axes.workers {
                let cell = Cell::new(device, Test::Blast, carrier, size);
                cells.push(Cell { workers, buffers: 1, events: true, ..cell });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_a_key_of_its_own_and_a_plan_that_is_possible() {
        for grid in [Grid::Quick, Grid::Full] {
            let cells: Vec<Cell> = Device::ALL.into_iter().flat_map(|device| grid.cells(device)).collect();
            let keys: BTreeSet<String> = cells.iter().map(Cell::key).collect();
            assert_eq!(keys.len(), cells.len());
            for cell in &cells {
                if let Some(plan) = cell.plan(1000, 4096) {
                    plan.check().unwrap_or_else(|error| panic!("{}: {error}", cell.key()));
                }
            }
        }
        assert_eq!(
            Cell::new(Device::Udp, Test::Ping, Carrier::WriteImm, 64).key(),
            "udp/ping/write-imm/64/copy/poll/single/full/16/1"
        );
    }

    #[test]
    fn the_grids_have_the_axes_of_the_paper() {
        let cells = Grid::Full.cells(Device::Udp);
        let sizes: BTreeSet<usize> = cells.iter().map(|cell| cell.size).collect();
        assert_eq!((sizes.first(), sizes.last()), (Some(&1), Some(&(256 << 20))));
        for carrier in Carrier::OPERATIONS {
            for test in [Test::Ping, Test::Blast] {
                assert!(cells.iter().any(|cell| cell.test == test && cell.carrier == carrier));
            }
        }
        let buffers: BTreeSet<usize> =
            cells.iter().filter(|cell| cell.workers == 1).map(|cell| cell.buffers).collect();
        assert_eq!(buffers.into_iter().collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 128]);
        let blocks: Vec<&Cell> = cells.iter().filter(|cell| cell.workers == 48).collect();
        assert_eq!((blocks.first().unwrap().size, blocks.last().unwrap().size), (4096, 262_144));
        for is in [
            |cell: &Cell| cell.inline,
            |cell: &Cell| cell.events,
            |cell: &Cell| cell.lists,
            |cell: &Cell| cell.periodic,
        ] {
            assert!(cells.iter().any(is) && cells.iter().any(|cell| !is(cell)));
        }
        assert!(Grid::Full.cells(Device::Tap).iter().all(|cell| cell.carrier != Carrier::Tcp));
    }

    #[test]
    fn the_quick_grid_is_bounded() {
        let count: usize = Device::ALL.into_iter().map(|device| Grid::Quick.cells(device).len()).sum();
        assert!((200..450).contains(&count), "{count}");
    }
}
