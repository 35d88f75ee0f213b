//! `roce ladder`: draws the packets of a connection as a sequence ladder.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use roce_analysis::Collector;
use roce_analysis::connection::name;
use roce_analysis::ladder::ladder;
use roce_packet::ROCE_UDP_PORT;

use super::errors::print_error;
use super::input::captures;
use super::terminal::{Output, Paint};

/// Draw the packets of a connection as a sequence ladder
///
/// Each row is a packet: its number in the file, the microseconds since the first
/// packet of the connection, and an arrow between both ends. PSNs count from the
/// first request of each end. The ladder also shows what the packets tell only
/// together:
///
///   --->    a packet               ===>    a packet that was sent again
///   ---x    a packet that was lost: a NAK, a timeout, a second file or the comment
///           on a packet that --fault dropped shows it
///   PSN 2 lost            it was lost before it came to the place of the capture
///   PSN 2 not captured    the other end has it, so only the file lacks it
///   CE      the packet has an ECN mark
///   timeout               the requester waited, and then sent again: how long
///                         after the last copy of the packet or a later answer,
///                         and how long after the first copy
///   ... 1,998 packets ... packets without anything to see
///
/// With several files, each is what one place has seen. Both places together show
/// where a packet was lost.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Capture files, pcap or pcapng; `-` reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Number of the connection in the output of `roce analyze`; without it, all are drawn
    #[arg(long, value_name = "N")]
    connection: Option<usize>,

    /// Maximum number of rows of a ladder, at least 10
    #[arg(long, value_name = "ROWS", default_value_t = 60)]
    rows: usize,

    /// Write the ladder of one connection to this file as a picture instead: of --connection, or of the first
    /// one
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// UDP port that RoCE v2 uses in this capture
    #[arg(long, value_name = "PORT", default_value_t = ROCE_UDP_PORT)]
    port: u16,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    let captures = captures::read(&args.files, Collector::new(args.port), false)?;
    if let Some(reason) = captures.why_empty() {
        print_error(&reason);
        return Ok(ExitCode::FAILURE);
    }
    let connections = captures.connections(args.connection)?;
    let Some((first, connection)) = connections.first().copied() else {
        let files = captures.files.join(", ");
        print_error(&format!("{files}: no connection; `roce dissect FILE` lists the packets"));
        return Ok(ExitCode::FAILURE);
    };
    if let Some(file) = &args.svg {
        let svg = ladder(&captures.analysis, connection, args.rows).to_svg();
        fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(output, "connection {first}: {}", file.display())?;
    } else {
        for (number, connection) in &connections {
            let [one, other] = connection.ends.map(name);
            let title = format!("Connection {number}: {one} and {other}");
            writeln!(output, "{}", output.style.paint(Paint::BOLD, title))?;
            writeln!(output, "{}", ladder(&captures.analysis, connection, args.rows).to_text())?;
        }
    }
    Ok(if captures.is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
