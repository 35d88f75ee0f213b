//! `roce dissect`: prints the packets of a capture file as lines, trees or JSON.

mod columns;
mod filter;
mod line;
mod tree;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use roce_capture::{CaptureError, CaptureReader, PcapWriter};
use roce_document::dissect::filter::Facts;
use roce_document::dissect::{self, Flows, Shown, Summary};
use roce_document::packet::walk;
use roce_packet::ROCE_UDP_PORT;
use roce_transport::with_causes;

use super::errors::print_error;
use super::input;
use super::input::follow::{self, Stop};
use super::platform::is_same_file;
use super::terminal::Output;
use columns::Selection;
use filter::Filter;
use line::Table;

/// List, filter and decode the packets of a capture file
///
/// Reads pcap and pcapng files, also compressed with gzip, with Ethernet, raw IP,
/// Linux cooked or native InfiniBand packets or ERF records, and finds RoCE v1 and
/// v2, also behind VLAN tags, MPLS labels, IP options and extension headers, and in
/// GRE, ERSPAN, VXLAN, Geneve and IP-in-IP. It shows the innermost packet, names the
/// tunnels in the last column, and checks the ICRC of every packet. The first line
/// contains the names of the columns and begins with `#`; one line for each packet
/// follows:
///
///   #         number in the file
///   seconds   since the first packet
///   source > destination, opcode
///   QP        destination queue pair
///   PSN
///   bytes     of payload, without padding
///   SMA       flags: S solicited event, M MigReq, A acknowledge request
///   ICRC      `ok`, `BAD` (followed by the ICRC found and the ICRC computed, in
///             wire order), or `-` if it cannot be checked, because the packet was
///             cut by the capture or by a mirror, or is a fragment
///   mark      conclusion from the PSN, see below, or `-`
///   headers   the extended headers, and other remarks
///
/// A mark compares a packet with the earlier packets from the same queue pair to
/// the same queue pair, separately for requests and responses. Acknowledgements, UD
/// packets and packets with a wrong ICRC have no marks.
///
///   gap       packets before it are missing: lost, or not captured
///   late      fills an earlier gap: a retransmission, or other packets overtook it
///   repeat    its PSN was seen before: a retransmission or a copy
///   jump      its PSN is far from all earlier ones: another connection, or many
///             packets missing from the capture
///
/// On a narrow terminal, columns and details that do not fit continue on further
/// lines. A summary is printed to standard error.
///
/// The exit status is 0 if the file was read to its end and contains a RoCE packet
/// or a pause frame, and 1 otherwise. Without RoCE, standard error states the
/// likely reason. Filters, and malformed or cut packets, do not change the status.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct Args {
    /// Capture file; `-` reads standard input, for example from `tcpdump -U -w -`
    file: PathBuf,

    /// Print every field of every header with its bits
    #[arg(long)]
    tree: bool,

    /// Print one JSON object per packet and line
    ///
    /// Fields have the names that tshark uses, such as infiniband.bth.psn and ip.src; names of other fields
    /// begin with "roce.", such as roce.mark. docs/reference/json.md lists them. Numbers are JSON numbers and
    /// flags are booleans; 64-bit numbers are strings of hexadecimal digits because many JSON readers would
    /// round them. In infiniband.invariant.crc and roce.icrc_computed, the first byte on the wire is the most
    /// significant one.
    #[arg(long, conflicts_with = "tree")]
    json: bool,

    /// Print these columns, with commas between their names
    ///
    /// The columns are number, time, source, destination, opcode, qp, psn, bytes, flags, icrc, mark, dscp,
    /// ecn, port (the UDP source port), length (on the wire), interface and, always last, headers. A packet
    /// without a value has `-`.
    #[arg(long, value_name = "NAMES", value_parser = Selection::parse, conflicts_with_all = ["tree", "json"])]
    columns: Option<Selection>,

    #[command(flatten)]
    filter: Filter,

    /// Write the packets to this pcapng file and print none
    ///
    /// Each packet keeps its time, interface, link type, direction and comment. An existing file is
    /// overwritten.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tree", "json", "columns"])]
    write: Option<PathBuf>,

    /// Wait for more packets at the end of the file, which another program still writes
    ///
    /// Ctrl-C ends the command, which then prints the summary.
    #[arg(long)]
    follow: bool,

    /// Stop after printing this many packets
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,

    /// UDP port that RoCE v2 uses in this capture
    #[arg(long, value_name = "PORT", default_value_t = ROCE_UDP_PORT)]
    port: u16,
}

const EXAMPLES: &str = "Examples:
  roce dissect trace.pcapng
  roce dissect trace.pcap --qp 0x11 --opcode ACKNOWLEDGE
  roce dissect trace.pcap --psn 16777200..20 --tree
  roce dissect trace.pcap --ecn ce --time 1.5..2 --address 192.0.2.0/24
  roce dissect trace.pcap --mark gap --columns number,time,qp,psn
  roce dissect trace.pcap.gz --icrc bad --write bad.pcapng
  roce dissect growing.pcapng --follow --opcode CNP
  roce dissect trace.pcap --json | jq 'select(.\"roce.icrc\" == \"bad\")'
  sudo tcpdump -i eth0 -U -w - | roce dissect -";

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let (mut reader, stop) = match open(args)? {
        Ok(opened) => opened,
        Err(error) => return Ok(failed(&error)),
    };
    let is_live = stop.is_some() || is_stdin(args);
    let mut summary = Summary::new(args.write.is_some());
    let mut flows = Flows::default();
    let mut printer = match Printer::new(args, is_live) {
        Ok(printer) => printer,
        Err(error) => return Ok(failed(&error)),
    };
    let filters = args.filter.all();
    let mut first_ns = None;
    let mut result = Ok(());
    let mut is_whole = false;
    while args.limit.is_none_or(|limit| summary.printed < limit) {
        let packet = match reader.next_packet() {
            Some(Ok(packet)) => packet,
            // The user ended the reading before the end of a packet that was still being written.
            Some(Err(_)) if stop.as_ref().is_some_and(Stop::is_requested) => {
                is_whole = true;
                break;
            }
            Some(Err(error)) => {
                result = Err(error);
                break;
            }
            None => {
                is_whole = true;
                break;
            }
        };
        let walk = walk(&packet, args.port);
        let first_ns = *first_ns.get_or_insert(packet.time_ns);
        let mark = flows.mark(&packet, &walk);
        summary.count(&packet, &walk, mark);
        let shown = Shown { packet: &packet, walk: &walk, first_ns, mark };
        let facts = (!filters.is_empty()).then(|| Facts::of(&shown));
        if facts.is_none_or(|facts| filters.iter().all(|filter| filter.matches(&facts))) {
            summary.printed += 1;
            printer.print(&shown, output)?;
            if is_live {
                printer.flush(output)?;
            }
        }
    }
    printer.finish(output)?;
    printer.flush(output)?;
    let _ = write!(io::stderr(), "{summary}");
    if let Err(error) = result {
        return Ok(failed(&error));
    }
    if let Some(failure) = summary.failure(is_whole) {
        print_error(&format!("{}: {failure}", args.file.display()));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn is_stdin(args: &Args) -> bool {
    args.file.as_os_str() == "-"
}

/// Opens the capture file, and with --follow also returns what says when to stop.
fn open(args: &Args) -> anyhow::Result<Result<(CaptureReader, Option<Stop>), CaptureError>> {
    if let Some(write) = &args.write
        && is_same_file(&args.file, write)
    {
        bail!("{} is the file that is read; choose another one for --write", write.display());
    }
    if !args.follow {
        return Ok(input::open(&args.file).map(|reader| (reader, None)));
    }
    if is_stdin(args) {
        bail!("--follow needs a file; standard input is read until its writer ends in any case");
    }
    Ok(follow::open(&args.file).map(|(reader, stop)| (reader, Some(stop))))
}

/// The output formats.
enum Printer {
    Lines(Box<Table>),
    Tree,
    Json,
    File(PcapWriter),
}

impl Printer {
    fn new(args: &Args, is_live: bool) -> Result<Self, CaptureError> {
        Ok(match (&args.write, args.tree, args.json) {
            (Some(file), ..) => Self::File(PcapWriter::create(file, &[])?),
            (_, true, _) => Self::Tree,
            (_, _, true) => Self::Json,
            _ => Self::Lines(Box::new(Table::new(args.columns.clone().unwrap_or_default(), is_live))),
        })
    }

    fn print(&mut self, shown: &Shown<'_>, output: &mut Output) -> anyhow::Result<()> {
        match self {
            Self::Lines(table) => table.print(shown, output)?,
            Self::Tree => tree::print(shown, output)?,
            Self::Json => writeln!(output, "{}", dissect::text(shown)?)?,
            Self::File(writer) => writer.copy(shown.packet)?,
        }
        Ok(())
    }

    fn flush(&mut self, output: &mut Output) -> anyhow::Result<()> {
        match self {
            Self::File(writer) => writer.flush()?,
            Self::Lines(_) | Self::Tree | Self::Json => output.flush()?,
        }
        Ok(())
    }

    fn finish(&mut self, output: &mut Output) -> io::Result<()> {
        match self {
            Self::Lines(table) => table.finish(output),
            Self::Tree | Self::Json | Self::File(_) => Ok(()),
        }
    }
}

fn failed(error: &CaptureError) -> ExitCode {
    print_error(&with_causes(error).to_string());
    ExitCode::FAILURE
}
