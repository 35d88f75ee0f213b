//! `roce dissect`: prints the packets of a capture file as lines, trees or JSON.

mod filter;
mod flows;
mod json;
mod line;
mod shown;
mod summary;
mod tree;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use roce::observe::with_causes;
use roce_packet::ROCE_UDP_PORT;

use super::decode::walk::{Framed, Walk};
use super::errors::print_error;
use super::input;
use super::terminal::Output;
use filter::Filter;
use flows::Flows;
use line::Table;
use roce_capture::CaptureError;
use shown::Shown;
use summary::Summary;

/// List, filter and decode the packets of a capture file
///
/// Reads pcap and pcapng files, also compressed with gzip, with Ethernet, raw IP or
/// Linux cooked packets, and finds RoCE v1 and v2, also behind VLAN tags, MPLS
/// labels, IP options and extension headers, and in GRE, ERSPAN, VXLAN, Geneve and
/// IP-in-IP. It shows the innermost packet, names the tunnels in the last column,
/// and checks the ICRC of every packet. The first line contains the names of the
/// columns and begins with `#`; one line for each packet follows:
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

    #[command(flatten)]
    filter: Filter,

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
  roce dissect trace.pcap --json | jq 'select(.\"roce.icrc\" == \"bad\")'
  sudo tcpdump -i eth0 -U -w - | roce dissect -";

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let is_stdin = args.file.as_os_str() == "-";
    let mut reader = match input::open(&args.file) {
        Ok(reader) => reader,
        Err(error) => return Ok(failed(&error)),
    };
    let mut summary = Summary::default();
    let mut flows = Flows::default();
    let mut printer = Printer::new(args, is_stdin);
    let mut first_ns = None;
    let mut result = Ok(());
    let mut is_whole = false;
    while args.limit.is_none_or(|limit| summary.printed < limit) {
        let packet = match reader.next_packet() {
            Some(Ok(packet)) => packet,
            Some(Err(error)) => {
                result = Err(error);
                break;
            }
            None => {
                is_whole = true;
                break;
            }
        };
        let framed = Framed::captured(&packet);
        let walk = match framed {
            Some(framed) => Walk::new(framed, args.port),
            None => Walk::unread_link(packet.link_type),
        };
        let first_ns = *first_ns.get_or_insert(packet.time_ns);
        let mark = flows.mark(&packet, &walk);
        summary.count(&packet, &walk, mark);
        if args.filter.matches(&walk) {
            summary.printed += 1;
            let shown = Shown { packet: &packet, walk: &walk, first_ns, mark };
            printer.print(&shown, output)?;
            if is_stdin {
                output.flush()?;
            }
        }
    }
    printer.finish(output)?;
    output.flush()?;
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

/// The three output formats.
enum Printer {
    Lines(Table),
    Tree,
    Json,
}

impl Printer {
    fn new(args: &Args, is_stdin: bool) -> Self {
        match (args.tree, args.json) {
            (true, _) => Self::Tree,
            (_, true) => Self::Json,
            _ => Self::Lines(Table::new(is_stdin)),
        }
    }

    fn print(&mut self, shown: &Shown<'_>, output: &mut Output) -> io::Result<()> {
        match self {
            Self::Lines(table) => table.print(shown, output),
            Self::Tree => tree::print(shown, output),
            Self::Json => json::print(shown, output),
        }
    }

    fn finish(&mut self, output: &mut Output) -> io::Result<()> {
        match self {
            Self::Lines(table) => table.finish(output),
            Self::Tree | Self::Json => Ok(()),
        }
    }
}

fn failed(error: &CaptureError) -> ExitCode {
    print_error(&with_causes(error).to_string());
    ExitCode::FAILURE
}
