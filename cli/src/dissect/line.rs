//! Prints packets as one line each.

use std::fmt::Write as _;
use std::io::{self, Write};

use roce_packet::fields::{Header, Value};
use roce_packet::outer::Cut;
use roce_packet::{Aeth, AtomicEth, Deth, Ecn, Encapsulation, Operation, Reth, Telemetry, TelemetryHop};

use super::columns::{
    COLUMNS, Cells, DESTINATION, DETAILS_TITLE, DSCP, ECN, FLAGS, ICRC, INTERFACE, LENGTH, LIVE_WIDTHS, MARK,
    NUMBER, OPCODE, PORT, PSN, QP, RIGHT_ALIGNED, SOURCE, Selection, TIME, TITLES, WIRE,
};
use super::flows::Mark;
use super::shown::Shown;
use crate::decode::fields;
use crate::decode::walk::{Icrc, Packet, Part, Protocol, Walk};
use crate::terminal::{Output, Paint};
use roce_packet::foreign::Text;

/// A table with columns of automatic width.
///
/// The first lines are buffered to find the widths of the columns. Later lines widen a column if necessary.
pub(super) struct Table {
    waiting: Vec<Row>,
    /// Maximum number of buffered lines.
    look_ahead: usize,
    widths: [usize; COLUMNS],
    fraction_digits: usize,
    selection: Selection,
    /// The row that was printed last, whose memory the next one uses.
    spare: Row,
}

#[derive(Debug, Default)]
struct Row {
    /// Time since the first packet.
    time_ns: Option<i128>,
    cells: Cells,
    details: String,
    paint: Option<Paint>,
    /// Whether the row uses all columns; packets other than RoCE do not.
    in_columns: bool,
}

/// The prefix of a line that continues another one.
const CONTINUED: &str = "  ";

impl Table {
    /// Creates a table with these columns. A live capture does not buffer lines and starts with fixed widths.
    pub(super) fn new(selection: Selection, is_live: bool) -> Self {
        let (look_ahead, widths) = if is_live { (0, LIVE_WIDTHS) } else { (500, [0; COLUMNS]) };
        let (waiting, spare) = (Vec::new(), Row::default());
        Self { waiting, look_ahead, widths, fraction_digits: 0, selection, spare }
    }

    pub(super) fn print(&mut self, shown: &Shown<'_>, output: &mut Output) -> io::Result<()> {
        let mut row = std::mem::take(&mut self.spare);
        row.fill(shown, self.selection.is_chosen);
        if self.fraction_digits != 0 {
            let result = self.line(&mut row, output);
            self.spare = row;
            return result;
        }
        self.waiting.push(row);
        if self.waiting.len() > self.look_ahead { self.finish(output) } else { Ok(()) }
    }

    /// Prints the buffered lines.
    pub(super) fn finish(&mut self, output: &mut Output) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        for (width, title) in self.widths.iter_mut().zip(TITLES) {
            *width = (*width).max(title.len());
        }
        let rows = std::mem::take(&mut self.waiting);
        let exact = rows.iter().any(|row| row.time_ns.is_some_and(|time| time % 1_000 != 0));
        self.fraction_digits = if exact { 9 } else { 6 };
        let any_in_columns = rows.iter().any(|row| row.in_columns);
        for row in &rows {
            if row.in_columns || !any_in_columns {
                for (width, cell) in self.widths.iter_mut().zip(&row.cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        let longest = rows.iter().map(|row| row.time_text(self.fraction_digits).len()).max();
        self.widths[TIME] = self.widths[TIME].max(longest.unwrap_or(0));
        self.title(output)?;
        rows.into_iter().try_for_each(|mut row| self.line(&mut row, output))
    }

    /// Prints the names of the columns, on the same number of lines as the columns of a row.
    fn title(&self, output: &mut Output) -> io::Result<()> {
        let text = self.title_text(output.terminal_width);
        text.lines().try_for_each(|line| writeln!(output, "{}", output.style.paint(Paint::BOLD, line)))
    }

    fn title_text(&self, terminal_width: Option<usize>) -> String {
        let mut titles = TITLES.map(str::to_owned);
        // The line begins with `#`, although numbers are right-aligned.
        titles[NUMBER] = format!("{:<width$}", TITLES[NUMBER], width = self.widths[NUMBER]);
        let mut text = self.columns(&titles, usize::MAX, terminal_width);
        if !text.starts_with('#') {
            text.insert(0, '#');
            // The mark takes the place of a space, so that the titles stay above their columns.
            if let Some(space) = text.find("  ").or_else(|| text.starts_with("# ").then_some(1)) {
                text.remove(space);
            }
        }
        let room = terminal_width.unwrap_or(usize::MAX);
        if self.selection.details && last_line_width(&text) + DETAILS_TITLE.len() > room {
            text.push('\n');
            text.push_str(CONTINUED);
        }
        if self.selection.details {
            text.push_str(DETAILS_TITLE);
        } else {
            text.truncate(text.trim_end().len());
        }
        // Every line of the heading begins like the first.
        text.replace("\n ", "\n#")
    }

    fn line(&mut self, row: &mut Row, output: &mut Output) -> io::Result<()> {
        let time = row.time_text(self.fraction_digits);
        row.cells[TIME].push_str(&time);
        if row.in_columns {
            for (width, cell) in self.widths.iter_mut().zip(&row.cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        // Packets other than RoCE leave the columns after the opcode empty.
        let mut count = if row.in_columns { usize::MAX } else { QP };
        if self.selection.is_chosen {
            count = usize::MAX;
            row.cells.iter_mut().filter(|cell| cell.is_empty()).for_each(|cell| cell.push('-'));
        }
        let mut text = self.columns(&row.cells, count, output.terminal_width);
        if self.selection.details {
            self.add_details(&mut text, &row.details, output.terminal_width);
        }
        let text = text.trim_end();
        match row.paint {
            Some(paint) => writeln!(output, "{}", output.style.paint(paint, text)),
            None => writeln!(output, "{text}"),
        }
    }

    /// Appends the details after the columns, or on separate lines if the terminal is too narrow.
    fn add_details(&self, text: &mut String, details: &str, terminal_width: Option<usize>) {
        let details = details.trim_end();
        let room = match terminal_width {
            Some(room) if last_line_width(text) + details.chars().count() > room => room,
            _ => return text.push_str(details),
        };
        let columns = self.selection.columns.iter().enumerate();
        let before_opcode: usize = columns
            .take_while(|(_, column)| **column != OPCODE)
            .map(|(position, column)| self.widths[*column] + self.selection.separator(position).len())
            .sum();
        // The details begin below the opcode, if that leaves half of the line.
        let indent = if before_opcode <= room / 2 { before_opcode } else { CONTINUED.len() };
        let mut column = room;
        for word in details.split_whitespace() {
            let len = word.chars().count();
            if column + 1 + len > room {
                text.truncate(text.trim_end().len());
                let _ = write!(text, "\n{:indent$}{word}", "");
                column = indent + len;
            } else {
                let _ = write!(text, " {word}");
                column += 1 + len;
            }
        }
    }

    /// Returns the first `count` selected cells in their columns. Columns that do not fit on a line continue
    /// on the next one, at the same position in every row.
    fn columns(&self, cells: &Cells, count: usize, terminal_width: Option<usize>) -> String {
        let room = terminal_width.unwrap_or(usize::MAX);
        let mut text = String::with_capacity(120);
        let mut at = 0;
        for (position, &index) in self.selection.columns.iter().enumerate().take(count) {
            let (cell, width, separator) =
                (&cells[index], self.widths[index], self.selection.separator(position));
            if position > 0 && at + width > room {
                text.truncate(text.trim_end().len());
                text.push('\n');
                text.push_str(CONTINUED);
                at = CONTINUED.len();
            }
            let _ = match RIGHT_ALIGNED[index] {
                true => write!(text, "{cell:>width$}"),
                false => write!(text, "{cell:<width$}"),
            };
            // Without addresses there is no arrow between them.
            text.push_str(if cell.is_empty() && separator == " > " { "   " } else { separator });
            at += width + separator.len();
        }
        text
    }
}

/// Returns the width of the last line of a text.
fn last_line_width(text: &str) -> usize {
    text.rsplit('\n').next().unwrap_or_default().chars().count()
}

impl Row {
    /// Replaces the contents with those of a packet. `all` includes the columns that are not printed by
    /// default.
    fn fill(&mut self, shown: &Shown<'_>, all: bool) {
        let Shown { packet, walk, .. } = *shown;
        self.clear();
        self.set(NUMBER, format_args!("{}", packet.number));
        if let Some((source, destination)) = walk.outer.addresses() {
            self.set(SOURCE, format_args!("{}", source.to_canonical()));
            self.set(DESTINATION, format_args!("{}", destination.to_canonical()));
        } else if let Some(lrh) = walk.outer.lrh {
            self.set(SOURCE, format_args!("LID:{}", lrh.source()));
            self.set(DESTINATION, format_args!("LID:{}", lrh.destination()));
        } else if let Some(ethernet) = walk.outer.ethernet.filter(|_| !walk.bytes.is_empty()) {
            self.set(SOURCE, format_args!("{}", ethernet.source()));
            self.set(DESTINATION, format_args!("{}", ethernet.destination()));
        }
        if all {
            self.further_columns(shown);
        }
        self.time_ns = shown.since_first();
        match &walk.protocol {
            Protocol::Roce(Some(packet)) => self.roce(packet, shown),
            Protocol::Roce(None) if walk.outer.is_native_infiniband() => {
                self.cells[OPCODE].push_str("InfiniBand");
            }
            Protocol::Roce(None) => self.cells[OPCODE].push_str("RoCE"),
            Protocol::Pause => self.pause(walk),
            Protocol::Other(name, detail) => {
                self.cells[OPCODE].push_str(name);
                if !detail.is_empty() {
                    self.detail(format_args!("{detail}"));
                }
                self.paint = Some(Paint::DIM);
            }
        }
        self.carriers(walk);
        if let (Some(error), Protocol::Roce(_) | Protocol::Pause) = (walk.error, &walk.protocol) {
            self.details.insert_str(0, &format!("malformed: {error}  "));
            self.paint = Some(Paint::RED);
        }
        if let Some(comment) = packet.comment {
            let _ = write!(self.details, "# {}", Text::new(comment));
        }
    }

    fn clear(&mut self) {
        self.cells.iter_mut().for_each(String::clear);
        self.details.clear();
        (self.paint, self.in_columns) = (None, false);
    }

    /// Writes the text of a column, which is empty.
    fn set(&mut self, column: usize, text: std::fmt::Arguments<'_>) {
        let _ = self.cells[column].write_fmt(text);
    }

    /// Fills the columns that only `--columns` prints.
    fn further_columns(&mut self, shown: &Shown<'_>) {
        let Shown { packet, walk, .. } = *shown;
        if let Some(class) = walk.outer.traffic_class() {
            self.set(DSCP, format_args!("{}", class >> 2));
            self.cells[ECN].push_str(ecn_name(Ecn::from_bits(class)));
        }
        if let Some(udp) = walk.outer.udp {
            self.set(PORT, format_args!("{}", udp.source_port()));
        }
        self.set(WIRE, format_args!("{}", packet.original_len));
        match (packet.interface_name, packet.interface) {
            (Some(name), _) => self.set(INTERFACE, format_args!("{}", Text::new(name))),
            (None, Some(number)) => self.set(INTERFACE, format_args!("{number}")),
            (None, None) => {}
        }
    }

    fn roce(&mut self, packet: &Packet<'_>, shown: &Shown<'_>) {
        let bth = packet.bth;
        self.in_columns = true;
        match packet.info {
            Some(info) => self.cells[OPCODE].push_str(info.name),
            None => self.set(OPCODE, format_args!("opcode {}", bth.opcode())),
        }
        if packet.info.is_none() && shown.walk.error.is_none() {
            self.detail(format_args!("vendor-specific"));
        }
        self.set(QP, format_args!("0x{:x}", bth.dest_qp().get()));
        self.set(PSN, format_args!("{}", bth.psn().get()));
        if let Some(len) = packet.payload_len {
            self.set(LENGTH, format_args!("{len}"));
        }
        let flags = [(bth.solicited(), 'S'), (bth.mig_req(), 'M'), (bth.ack_req(), 'A')];
        self.cells[FLAGS].extend(flags.map(|(is_set, letter)| if is_set { letter } else { '-' }));
        match packet.icrc {
            Icrc::Checked(check, _) if check.is_good() => self.cells[ICRC].push_str("ok"),
            Icrc::Checked(check, _) => {
                self.cells[ICRC].push_str("BAD");
                let (found, computed) = (check.found.swap_bytes(), check.computed.swap_bytes());
                self.detail(format_args!("ICRC found {found:08x}, computed {computed:08x}"));
                self.paint = Some(Paint::RED);
            }
            Icrc::Unchecked(_) => self.cells[ICRC].push('-'),
        }
        self.cut(shown);
        self.mark(shown.mark);
        self.headers(packet, shown.walk);
        if shown.walk.outer.traffic_class().map(Ecn::from_bits) == Some(Ecn::CongestionExperienced) {
            self.detail(format_args!("CE"));
        }
        if shown.walk.encapsulation() == Some(Encapsulation::RoceV1) {
            self.detail(format_args!("RoCE v1"));
        }
        if shown.walk.outer.is_native_infiniband() {
            self.detail(format_args!("InfiniBand"));
        }
    }

    /// Adds the reason why the end of a packet is missing.
    fn cut(&mut self, shown: &Shown<'_>) {
        let outer = &shown.walk.outer;
        let missing = outer.transport_len - outer.transport.map_or(0, <[u8]>::len);
        match outer.cut {
            Some(Cut::Capture) => self.detail(format_args!("cut to {} bytes", shown.packet.bytes.len())),
            Some(Cut::Mirror) => self.detail(format_args!("cut by a mirror ({missing} bytes missing)")),
            Some(Cut::Fragment) => self.detail(format_args!("first fragment ({missing} bytes missing)")),
            None => {}
        }
    }

    /// Adds the VLANs and the tunnels that carry the packet.
    fn carriers(&mut self, walk: &Walk<'_>) {
        if !walk.parts.iter().any(|part| part.is_outer || is_tag(part)) {
            return;
        }
        let tags = walk.parts.iter().filter(|part| !part.is_outer && is_tag(part));
        let tags: Vec<_> = tags.map(|part| vid(walk, part)).collect();
        if !tags.is_empty() {
            self.detail(format_args!("VLAN {}", tags.join(".")));
        }
        let tunnel = tunnel_text(walk);
        if !tunnel.is_empty() {
            self.detail(format_args!("in {tunnel}"));
        }
    }

    fn mark(&mut self, mark: Option<Mark>) {
        self.cells[MARK].push_str(mark.map_or("-", Mark::name));
        if let Some(mark) = mark {
            self.paint = self.paint.or(Some(Paint::YELLOW));
            if matches!(mark, Mark::Gap { .. } | Mark::Unfinished) {
                self.detail(format_args!("{mark}"));
            }
        }
    }

    /// Adds the details of the extended headers.
    fn headers(&mut self, packet: &Packet<'_>, walk: &Walk<'_>) {
        if let Some(message) = walk.cm {
            self.connection_management(message, walk);
        }
        for part in &walk.parts {
            let bytes = walk.part_bytes(part);
            match part.header.name {
                "AETH" if let Ok((aeth, _)) = Aeth::parse(bytes) => {
                    self.detail(format_args!("{} msn {}", aeth.syndrome, aeth.msn));
                }
                "RETH" if let Ok((reth, _)) = Reth::parse(bytes) => self
                    .detail(format_args!("va 0x{:x} rkey 0x{:x} len {}", reth.va, reth.rkey, reth.dma_len)),
                "AtomicETH" if let Ok((atomic, _)) = AtomicEth::parse(bytes) => self.atomic(&atomic, packet),
                // Queue pair 1 always has the same Q_Key.
                "DETH" if walk.cm.is_some() => {}
                "DETH" if let Ok((deth, _)) = Deth::parse(bytes) => {
                    self.detail(format_args!("from QP 0x{:x} qkey 0x{:x}", deth.source_qp.get(), deth.q_key));
                }
                "AtomicAckETH" => {
                    let original = walk.number("infiniband.atomicacketh.origremdt");
                    self.detail(format_args!("original 0x{:x}", original.unwrap_or_default()));
                }
                "ImmDt" => self.detail(format_args!("imm {}", fields::hex(bytes))),
                "IETH" => self.detail(format_args!("invalidate rkey 0x{}", fields::hex(bytes))),
                "XRCETH" => {
                    let srq = walk.number("roce.xrceth.srq").unwrap_or_default();
                    self.detail(format_args!("SRQ 0x{srq:x}"));
                }
                "Telemetry" if let Some((_, _, telemetry)) = Telemetry::split_off(bytes, &[]) => {
                    let most = telemetry.hops().iter().map(TelemetryHop::queue_bytes).max();
                    self.detail(format_args!("telemetry hops {}", telemetry.hops().len()));
                    if let Some(most) = most {
                        self.detail(format_args!("queue {most}"));
                    }
                }
                _ => {}
            }
        }
    }

    fn atomic(&mut self, atomic: &AtomicEth, packet: &Packet<'_>) {
        let AtomicEth { va, rkey, swap_or_add, compare } = atomic;
        self.detail(format_args!("va 0x{va:x} rkey 0x{rkey:x}"));
        match packet.info.map(|info| info.operation) {
            Some(Operation::FetchAdd) => self.detail(format_args!("add 0x{swap_or_add:x}")),
            _ => self.detail(format_args!("compare 0x{compare:x} swap 0x{swap_or_add:x}")),
        }
    }

    /// Adds the name of a message and the fields that identify its connection.
    fn connection_management(&mut self, message: &'static Header, walk: &Walk<'_>) {
        let mut text = message.name.to_owned();
        let part = walk.parts.iter().find(|part| std::ptr::eq(part.header, message));
        let bytes = part.map(|part| walk.part_bytes(part)).unwrap_or_default();
        for field in message.fields {
            let shown = matches!(
                field.name,
                "local QPN" | "starting PSN" | "service ID" | "reason" | "QPN" | "status"
            );
            if let Some(value @ Value::Number(number)) = field.value(bytes).filter(|_| shown) {
                let _ = match (field.name, fields::note(field, &value)) {
                    ("service ID", None) => write!(text, ", service 0x{number:x}"),
                    ("service ID" | "reason", Some(note)) => write!(text, ", {note}"),
                    ("local QPN" | "QPN", _) => write!(text, ", QP 0x{number:x}"),
                    ("starting PSN", _) => write!(text, ", PSN {number}"),
                    (name, _) => write!(text, ", {name} {number}"),
                };
            }
        }
        self.detail(format_args!("{text}"));
    }

    fn pause(&mut self, walk: &Walk<'_>) {
        let Some(part) = walk.parts.iter().find(|part| matches!(part.header.name, "pause" | "PFC")) else {
            self.cells[OPCODE].push_str("pause");
            return;
        };
        self.cells[OPCODE].push_str(part.header.name);
        if let Some(time) = walk.number("macc.pause_time") {
            self.detail(format_args!("all priorities {}", quanta(time)));
        }
        for priority in 0..8 {
            let enabled = walk.number(&format!("macc.cbfc.enbv.c{priority}"));
            let time = walk.number(&format!("macc.cbfc.pause_time.c{priority}"));
            if let (Some(1), Some(time)) = (enabled, time) {
                self.detail(format_args!("priority {priority} {}", quanta(time)));
            }
        }
    }

    /// Adds text to the details after the columns.
    fn detail(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = write!(self.details, "{text}  ");
    }

    fn time_text(&self, fraction_digits: usize) -> String {
        let Some(time) = self.time_ns else { return "-".to_owned() };
        let sign = if time < 0 { "-" } else { "" };
        let (seconds, fraction) = (time.unsigned_abs() / 1_000_000_000, time.unsigned_abs() % 1_000_000_000);
        match fraction_digits {
            6 => format!("{sign}{seconds}.{:06}", fraction / 1_000),
            _ => format!("{sign}{seconds}.{fraction:09}"),
        }
    }
}

/// Returns the name of a codepoint in a column and in filters.
pub(super) const fn ecn_name(ecn: Ecn) -> &'static str {
    match ecn {
        Ecn::NotCapable => "not-ect",
        Ecn::Capable0 => "ect0",
        Ecn::Capable1 => "ect1",
        Ecn::CongestionExperienced => "ce",
    }
}

fn is_tag(part: &Part) -> bool {
    matches!(part.header.name, "VLAN" | "S-VLAN")
}

/// Returns the VLAN of a tag.
fn vid(walk: &Walk<'_>, part: &Part) -> String {
    field_of(walk, part, "VID").unwrap_or_default()
}

/// Returns the value of the field with this name.
fn field_of(walk: &Walk<'_>, part: &Part, name: &str) -> Option<String> {
    let field = part.header.fields.iter().find(|field| field.name == name)?;
    Some(fields::text(field, &field.value(walk.part_bytes(part))?))
}

/// Returns the tunnels that carry a packet, from the outermost inward: `198.19.0.1 > 198.19.0.2 VXLAN 42`.
fn tunnel_text(walk: &Walk<'_>) -> String {
    let mut words = Vec::new();
    for part in walk.parts.iter().filter(|part| part.is_outer) {
        let field = |name: &str| field_of(walk, part, name).unwrap_or_default();
        match part.header.name {
            "IPv4" | "IPv6" => words.push(format!("{} > {}", field("source"), field("destination"))),
            name @ ("VXLAN" | "VXLAN-GPE" | "Geneve") => words.push(format!("{name} {}", field("VNI"))),
            name @ ("ERSPAN II" | "ERSPAN III") => words.push(format!("{name} session {}", field("session"))),
            "MPLS" => words.push(format!("MPLS {}", field("label"))),
            "GRE" => words.push("GRE".to_owned()),
            "key" => words.push(format!("key {}", field("key"))),
            "AH" => words.push("AH".to_owned()),
            _ if is_tag(part) => words.push(format!("VLAN {}", vid(walk, part))),
            _ => {}
        }
    }
    words.join(" ")
}

fn quanta(time: u64) -> String {
    match time {
        0 => "resume".to_owned(),
        time => format!("pause {time} x 512 bits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(first: [&str; MARK + 1]) -> Cells {
        let mut cells = [const { String::new() }; COLUMNS];
        for (cell, text) in cells.iter_mut().zip(first) {
            text.clone_into(cell);
        }
        cells
    }

    fn table(rows: &[Cells]) -> Table {
        let mut table = Table::new(Selection::default(), false);
        for (index, width) in table.widths.iter_mut().enumerate() {
            let cells = rows.iter().map(|row| row[index].len());
            *width = cells.chain([TITLES[index].len()]).max().unwrap();
        }
        table
    }

    /// Regression: rows were longer than a terminal of 80 columns, and the heading was cut off in the middle
    /// of a word.
    #[test]
    fn rows_and_headings_fit_80_columns() {
        let v4 = cells([
            "1234567",
            "12345.123456789",
            "198.18.100.101",
            "198.18.100.102",
            "RC_RDMA_READ_RESPONSE_MIDDLE",
            "0x123456",
            "16777215",
            "4096",
            "SMA",
            "BAD",
            "repeat",
        ]);
        let mut v6 = v4.clone();
        v6[SOURCE] = "2001:db8:1111:2222:3333:4444:5555:6666".to_owned();
        v6[DESTINATION] = v6[SOURCE].clone();
        for rows in [&[v4.clone()][..], &[v4, v6]] {
            let table = table(rows);
            let title = table.title_text(Some(80));
            for word in TITLES[..=MARK].iter().chain([&DETAILS_TITLE]) {
                assert!(title.split_whitespace().any(|found| found == *word), "{word} is missing: {title}");
            }
            assert!(title.lines().all(|line| line.starts_with('#')), "{title}");
            for row in rows {
                let mut text = table.columns(row, usize::MAX, Some(80));
                let details =
                    "va 0x7f00deadb000 rkey 0x1234 len 4096  in 198.19.0.1 > 198.19.0.2 VXLAN 16777215  CE";
                table.add_details(&mut text, details, Some(80));
                for line in text.lines().chain(title.lines()) {
                    assert!(line.trim_end().chars().count() <= 80, "{line}");
                }
                for cell in row {
                    assert!(text.contains(cell.as_str()), "{cell} is missing: {text}");
                }
                let wide = table.columns(row, usize::MAX, None);
                assert_eq!(wide.lines().count(), 1, "only a terminal breaks lines");
            }
        }
    }
}
