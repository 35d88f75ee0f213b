//! `roce explain`: explains one packet, byte by byte.

mod text;

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use roce_document::explain::{self, Explanation, Origin};
use roce_document::first_header::FirstHeader;
use roce_packet::ROCE_UDP_PORT;

use super::decode;
use super::decode::walk::Walk;
use super::input::{self, EXAMPLE, bytes};
use super::terminal::Output;
use super::version::PROGRAM;

/// Explain one packet: its bytes, every field with its meaning, and the computation of its ICRC
///
/// HEX is the packet in hexadecimal digits, in any number of arguments. Spaces, line ends, colons and 0x are
/// ignored, and the dumps of tshark -x, tcpdump -xx, xxd and hexdump -C are accepted. `-` reads such text
/// from standard input. FILE NUMBER (or FILE:NUMBER) is a packet of a capture file (pcap or pcapng, also
/// compressed with gzip), with the number that `roce dissect FILE` shows; `- NUMBER` reads the capture from
/// standard input. Without an argument, the command explains an example. It finds RoCE inside tunnels, as
/// `roce dissect` does.
///
/// The exit status is 1 if there is no such packet or HEX cannot be parsed, otherwise 0. Malformed packets
/// are explained, too.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The bytes of the packet, FILE NUMBER, or `-`
    #[arg(value_name = "HEX")]
    packet: Vec<String>,

    /// Header that the packet starts with
    #[arg(long, value_enum, default_value_t = Start::Auto, value_name = "WHERE")]
    from: Start,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// UDP port of RoCE v2
    #[arg(long, value_name = "PORT", default_value_t = ROCE_UDP_PORT)]
    port: u16,
}

/// `--from`: the header that a packet starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Start {
    /// Detect it from the bytes
    Auto,
    /// The Ethernet header
    Eth,
    /// The IPv4 or IPv6 header, or the GRH of RoCE v1
    Ip,
    /// The base transport header
    Bth,
}

impl Start {
    /// Returns the header, or `None` to detect it.
    const fn first_header(self) -> Option<FirstHeader> {
        match self {
            Self::Auto => None,
            Self::Eth => Some(FirstHeader::Eth),
            Self::Ip => Some(FirstHeader::Ip),
            Self::Bth => Some(FirstHeader::Bth),
        }
    }
}

const EXAMPLES: &str = "Examples:
  roce explain
  roce explain trace.pcapng 8
  roce explain trace.pcapng 8 --json
  roce explain --from bth 1140ffff0000000280000001 1f000001 c5d2b8a4
  roce explain - < dump.txt";

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    match input::Input::of(&args.packet)? {
        input::Input::Example => {
            if !args.json {
                writeln!(
                    output,
                    "This is an example, because no packet was given; `roce explain --help` describes the possible inputs.\n\
                     This is the output of: roce explain {EXAMPLE}\n"
                )?;
            }
            digits(args, &bytes::parse(EXAMPLE)?, output)?;
        }
        input::Input::Bytes(bytes) => digits(args, &bytes, output)?,
        input::Input::Captured { file, number } => captured(args, &file, number, output)?,
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Explains a packet that was given as digits.
fn digits(args: &Args, bytes: &[u8], output: &mut Output) -> anyhow::Result<()> {
    let given = args.from.first_header();
    let from = given.unwrap_or_else(|| FirstHeader::guess(bytes));
    let origin = Origin::Digits { from, was_guessed: given.is_none() };
    let walk = from.walk(bytes, args.port);
    print(args, &Explanation { bytes, origin, walk }, output)
}

/// Explains a packet of a capture file.
fn captured(args: &Args, file: &str, number: u64, output: &mut Output) -> anyhow::Result<()> {
    if args.from != Start::Auto {
        bail!(
            "--from applies only to hexadecimal digits; a capture file names the first header of its packets"
        );
    }
    let mut reader = input::open(file.as_ref())?;
    input::with_packet(&mut reader, file, number, |packet| {
        let link_type = packet.link_type;
        let Some(framed) = decode::captured(packet) else {
            bail!("packet {number} of {file}: link type {link_type} is not supported");
        };
        let origin = Origin::Capture { file, number, link_type };
        let walk = Walk::new(framed, args.port);
        print(args, &Explanation { bytes: packet.bytes, origin, walk }, output)
    })
}

fn print(args: &Args, explanation: &Explanation<'_>, output: &mut Output) -> anyhow::Result<()> {
    match args.json {
        true => writeln!(output, "{}", explain::text(explanation, PROGRAM)?)?,
        false => text::print(explanation, output)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
