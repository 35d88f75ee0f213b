//! The text of a packet on one line, in columns.

use std::fmt::Write as _;

use roce_analysis::walk::{Icrc, Packet, Part, Protocol, Walk};
use roce_packet::fields::{Header, Value};
use roce_packet::foreign::Text;
use roce_packet::outer::Cut;
use roce_packet::{Aeth, AtomicEth, Deth, Ecn, Encapsulation, Operation, Reth, Telemetry, TelemetryHop};

use super::columns::{
    Cells, DESTINATION, DSCP, ECN, FLAGS, ICRC, INTERFACE, LENGTH, MARK, NUMBER, OPCODE, PORT, PSN, QP,
    SOURCE, WIRE,
};
use super::flows::Mark;
use super::shown::Shown;
use crate::fields;

/// The text of a packet on one line, in columns. A row may be filled again, which uses its memory again.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Time since the first packet, in nanoseconds.
    pub time_ns: Option<i128>,
    /// The contents of the columns; a packet without a value has an empty text. The column of the time is
    /// empty, because its digits depend on the other rows: see [`Row::time_text`].
    pub cells: Cells,
    /// The extended headers and other remarks, with two spaces behind each.
    pub details: String,
    /// How the packet differs from usual ones.
    pub tone: Option<Tone>,
    /// Whether the row uses all columns; packets other than RoCE do not.
    pub in_columns: bool,
}

/// How a packet differs from usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It is not RoCE.
    Foreign,
    /// It has a mark.
    Marked,
    /// It is malformed, or its ICRC is wrong.
    Bad,
}

impl Row {
    /// Replaces the contents with those of a packet. `all` includes the columns that `roce dissect` does not
    /// print by default.
    pub fn fill(&mut self, shown: &Shown<'_>, all: bool) {
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
                self.tone = Some(Tone::Foreign);
            }
        }
        self.carriers(walk);
        if let (Some(error), Protocol::Roce(_) | Protocol::Pause) = (walk.error, &walk.protocol) {
            self.details.insert_str(0, &format!("malformed: {error}  "));
            self.tone = Some(Tone::Bad);
        }
        if let Some(comment) = packet.comment {
            let _ = write!(self.details, "# {}", Text::new(comment));
        }
    }

    fn clear(&mut self) {
        self.cells.iter_mut().for_each(String::clear);
        self.details.clear();
        (self.tone, self.in_columns) = (None, false);
    }

    /// Writes the text of a column, which is empty.
    fn set(&mut self, column: usize, text: std::fmt::Arguments<'_>) {
        if let Some(cell) = self.cells.get_mut(column) {
            let _ = cell.write_fmt(text);
        }
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
                self.tone = Some(Tone::Bad);
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
        let missing = outer.transport_len.saturating_sub(outer.transport.map_or(0, <[u8]>::len));
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
            self.tone = self.tone.or(Some(Tone::Marked));
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

    /// Returns the seconds since the first packet with six or nine digits behind the point, or `-`.
    #[must_use]
    pub fn time_text(&self, fraction_digits: usize) -> String {
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
#[must_use]
pub const fn ecn_name(ecn: Ecn) -> &'static str {
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
