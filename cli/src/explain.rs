//! `roce explain`: explains one packet, byte by byte.

mod bytes;
pub(super) mod input;
mod json;
mod text;

use std::io::Write;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use roce_capture::LinkType;
use roce_packet::outer::IcrcForm;
use roce_packet::{IP_PROTOCOL_UDP, Opcode, ROCE_UDP_PORT};

use super::dissect;
use super::dissect::walk::{Framed, Icrc, Part, Walk};
use super::terminal::Output;

/// Explain one packet: its bytes, every field with its meaning, and the computation of its ICRC
///
/// HEX is the packet in hexadecimal digits, in any number of arguments. Spaces, line ends, colons and 0x are
/// ignored, and the dumps of tshark -x, tcpdump -xx, xxd and hexdump -C are accepted. `-` reads such text
/// from standard input. FILE NUMBER (or FILE:NUMBER) is a packet of a capture file (pcap or pcapng), with the
/// number that `roce dissect FILE` shows; `- NUMBER` reads the capture from standard input. Without an
/// argument, the command explains an example. It finds RoCE inside tunnels, as `roce dissect` does.
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
    #[arg(long, value_enum, default_value_t = From::Auto, value_name = "WHERE")]
    from: From,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// UDP port of RoCE v2
    #[arg(long, value_name = "PORT", default_value_t = ROCE_UDP_PORT)]
    port: u16,
}

const EXAMPLES: &str = "Examples:
  roce explain
  roce explain trace.pcapng 8
  roce explain trace.pcapng 8 --json
  roce explain --from bth 1140ffff0000000280000001 1f000001 c5d2b8a4
  roce explain - < dump.txt";

/// The header that a packet starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// Detect it from the bytes
    Auto,
    /// The Ethernet header
    Eth,
    /// The IPv4 or IPv6 header, or the GRH of RoCE v1
    Ip,
    /// The base transport header
    Bth,
}

impl From {
    const fn noun(self) -> &'static str {
        match self {
            Self::Auto | Self::Eth => "an Ethernet frame",
            Self::Ip => "a packet that starts with its IP header",
            Self::Bth => "a packet that starts with its BTH",
        }
    }

    /// Returns the frame of bytes that begin with this header, or `None` for a datagram.
    fn framed(self, bytes: &[u8]) -> Option<Framed<'_>> {
        match self {
            Self::Auto | Self::Eth => Some(Framed::ethernet(bytes)),
            Self::Ip => Some(Framed::ip(bytes)),
            Self::Bth => None,
        }
    }

    /// Returns the name in JSON.
    const fn name(self) -> &'static str {
        match self {
            Self::Auto | Self::Eth => "eth",
            Self::Ip => "ip",
            Self::Bth => "bth",
        }
    }

    /// Guesses the first header. A length field that matches the number of bytes is the strongest evidence,
    /// followed by a known EtherType.
    fn guess(bytes: &[u8]) -> Self {
        let word = |at: usize| match bytes.get(at..at + 2) {
            Some(&[high, low]) => usize::from(high) << 8 | usize::from(low),
            _ => 0,
        };
        let first = bytes.first().copied().unwrap_or(0);
        let is_ip = match first >> 4 {
            4 => first == 0x45 && word(2) == bytes.len(),
            6 => word(4) + 40 == bytes.len(),
            _ => false,
        };
        if is_ip {
            return Self::Ip;
        }
        if matches!(word(12), 0x0800 | 0x86dd | 0x8915 | 0x8100 | 0x8808 | 0x0806 | 0x88a8 | 0x88cc) {
            return Self::Eth;
        }
        // IPv4 without options, followed by UDP; the length may differ.
        if first == 0x45 && bytes.get(9) == Some(&17) {
            return Self::Ip;
        }
        let is_version_0 = bytes.get(1).is_some_and(|flags| flags & 0x0f == 0);
        let is_whole_words = bytes.len().is_multiple_of(4);
        if Opcode(first).info().is_some() && is_version_0 && is_whole_words { Self::Bth } else { Self::Eth }
    }
}

/// The input of the text and JSON output.
struct Explanation<'a> {
    bytes: &'a [u8],
    origin: Origin<'a>,
    walk: Walk<'a>,
}

/// Returns the frame of bytes whose first header is guessed, or `None` if that is a BTH.
pub(super) fn framed(bytes: &[u8]) -> Option<Framed<'_>> {
    From::guess(bytes).framed(bytes)
}

/// The origin of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin<'a> {
    /// Hexadecimal digits.
    Digits { from: From, was_guessed: bool },
    /// A capture file, whose link type determines the first header.
    Capture { file: &'a str, number: u64, link_type: LinkType },
}

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
    let from = if args.from == From::Auto { From::guess(bytes) } else { args.from };
    let framed = from.framed(bytes);
    let origin = Origin::Digits { from, was_guessed: args.from == From::Auto };
    let walk = match framed {
        Some(framed) => Walk::new(framed, args.port),
        None => Walk::datagram(bytes),
    };
    print(args, &Explanation { bytes, origin, walk }, output)
}

/// Explains a packet of a capture file.
fn captured(args: &Args, file: &str, number: u64, output: &mut Output) -> anyhow::Result<()> {
    if args.from != From::Auto {
        bail!(
            "--from applies only to hexadecimal digits; a capture file names the first header of its packets"
        );
    }
    let mut reader = dissect::open(file.as_ref())?;
    input::with_packet(&mut reader, file, number, |packet| {
        let link_type = packet.link_type;
        let Some(framed) = Framed::captured(packet) else {
            bail!("packet {number} of {file}: link type {link_type} is not supported");
        };
        let origin = Origin::Capture { file, number, link_type };
        let walk = Walk::new(framed, args.port);
        print(args, &Explanation { bytes: packet.bytes, origin, walk }, output)
    })
}

fn print(args: &Args, explanation: &Explanation<'_>, output: &mut Output) -> anyhow::Result<()> {
    match args.json {
        true => json::print(explanation, output)?,
        false => text::print(explanation, output)?,
    }
    Ok(())
}

impl Explanation<'_> {
    fn icrc(&self) -> Option<Icrc> {
        self.walk.packet().map(|packet| packet.icrc)
    }

    /// Returns the parts that the ICRC covers, each with its masked bytes. The CRC also covers eight bytes of
    /// ones before them. Returns no parts if the ICRC cannot be computed.
    fn covered(&self) -> Vec<(&Part, Vec<u8>)> {
        let Some(Icrc::Checked(_, form)) = self.icrc() else { return Vec::new() };
        let outer = &self.walk.outer;
        let extensions = outer.udp_offset - outer.extensions_len.min(outer.udp_offset)..outer.udp_offset;
        let is_covered = |part: &&Part| {
            let is_extension = form == IcrcForm::Plain && extensions.contains(&part.start);
            !part.is_outer
                && part.start >= outer.network_offset
                && !is_extension
                && !matches!(part.header.name, "ICRC" | "Telemetry" | "trailer")
        };
        let masked = |part| {
            let mut bytes = self.walk.part_bytes(part).to_vec();
            part.header.mask_variant_fields(&mut bytes);
            if form == IcrcForm::Plain && part.start == outer.network_offset {
                leave_out(outer.extensions_len, &mut bytes);
            }
            (part, bytes)
        };
        self.walk.parts.iter().filter(is_covered).map(masked).collect()
    }
}

/// Changes an IP header to that of a packet without these bytes of options and extension headers.
fn leave_out(extensions_len: usize, header: &mut [u8]) {
    let (lengths, next) = match header {
        _ if extensions_len == 0 => return,
        [first, ..] if *first >> 4 == 4 => {
            *first = 0x45;
            (2, 9)
        }
        _ => (4, 6),
    };
    if let Some([high, low]) = header.get_mut(lengths..lengths + 2) {
        let len = u16::from_be_bytes([*high, *low]).saturating_sub(extensions_len as u16);
        [*high, *low] = len.to_be_bytes();
    }
    if let Some(next) = header.get_mut(next) {
        *next = IP_PROTOCOL_UDP;
    }
}

/// Returns whether a byte of a part has bits that are masked for the ICRC.
fn is_masked(part: &Part, index: usize) -> bool {
    part.header.fields.iter().any(|field| field.variant && field.byte_range().contains(&index))
}

/// An RDMA WRITE of "hello, world!" from 10.0.0.1 to 10.0.0.2, built with the packet crate.
const EXAMPLE: &str = concat!(
    "02000000000202000000000108004502004c000040004011269d0a0000010a000002c16912b7003800000a70ff",
    "ff0000001280005eed00007f00deadb000000012340000000d68656c6c6f2c20776f726c6421000000b74f5e4b",
);

#[cfg(test)]
mod tests;
