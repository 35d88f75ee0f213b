//! `roce explain`: explains one packet, byte by byte.

mod bytes;
mod json;
mod text;

use std::io::{self, Read, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use roce_packet::{Opcode, ROCE_UDP_PORT};

use super::dissect::walk::{Framed, Icrc, Part, Walk};
use super::terminal::Output;

/// Explain one packet: its bytes, every field with its meaning, and the computation of its ICRC
///
/// HEX is the packet in hexadecimal digits, in any number of arguments. Spaces, line ends, colons and 0x
/// are ignored, and the dumps of tshark -x, tcpdump -xx, xxd and hexdump -C are accepted. `-` reads from
/// standard input. Without HEX, the command prints an example.
///
/// The exit status is 1 if HEX cannot be parsed, otherwise 0. Malformed packets are explained, too.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The bytes of the packet, or `-`
    hex: Vec<String>,

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
    from: From,
    was_guessed: bool,
    framed: Option<&'a Framed<'a>>,
    walk: Walk<'a>,
}

pub(super) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    if args.hex.is_empty() {
        writeln!(output, "Give the bytes of a packet, for example an RDMA WRITE:\n")?;
        writeln!(output, "  roce explain {EXAMPLE}\n")?;
        writeln!(output, "`roce explain --help` lists the other formats that are accepted.")?;
        output.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = match args.hex.as_slice() {
        [dash] if dash == "-" => {
            let mut text = Vec::new();
            io::stdin().take(LONGEST_INPUT).read_to_end(&mut text).context("cannot read standard input")?;
            String::from_utf8_lossy(&text).into_owned()
        }
        groups => groups.join(" "),
    };
    let bytes = bytes::parse(&text)?;
    let from = if args.from == From::Auto { From::guess(&bytes) } else { args.from };
    let framed = match from {
        From::Auto | From::Eth => Some(Framed::ethernet(&bytes)),
        From::Ip => Some(Framed::ip(&bytes)),
        From::Bth => None,
    };
    let explanation = Explanation {
        bytes: &bytes,
        from,
        was_guessed: args.from == From::Auto,
        framed: framed.as_ref(),
        walk: match &framed {
            Some(framed) => Walk::new(framed, args.port),
            None => Walk::datagram(&bytes),
        },
    };
    match args.json {
        true => json::print(&explanation, output)?,
        false => text::print(&explanation, output)?,
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

impl Explanation<'_> {
    /// Converts an offset in the walk to an offset in the input.
    fn offset(&self, offset: usize) -> usize {
        self.framed.map_or(offset, |framed| framed.shown_offset(offset))
    }

    fn icrc(&self) -> Option<Icrc> {
        self.walk.packet().map(|packet| packet.icrc)
    }

    /// The parts that the ICRC covers, each with its masked bytes; the CRC also covers eight bytes of ones before
    /// them. Empty if the ICRC cannot be computed.
    fn covered(&self) -> Vec<(&Part, Vec<u8>)> {
        let Some(Icrc::Checked(_)) = self.icrc() else { return Vec::new() };
        let is_covered = |part: &&Part| !matches!(part.header.name, "Ethernet" | "VLAN" | "ICRC" | "trailer");
        self.walk
            .parts
            .iter()
            .filter(is_covered)
            .map(|part| {
                let mut bytes = self.walk.part_bytes(part).to_vec();
                part.header.mask_variant_fields(&mut bytes);
                (part, bytes)
            })
            .collect()
    }
}

/// Whether a byte of a part has bits that are masked for the ICRC.
fn is_masked(part: &Part, index: usize) -> bool {
    part.header.fields.iter().any(|field| field.variant && field.byte_range().contains(&index))
}

/// An RDMA WRITE of "hello, world!" from 10.0.0.1 to 10.0.0.2, built with the packet crate.
const EXAMPLE: &str = concat!(
    "02000000000202000000000108004502004c000040004011269d0a0000010a000002c16912b7003800000a70ff",
    "ff0000001280005eed00007f00deadb000000012340000000d68656c6c6f2c20776f726c6421000000b74f5e4b",
);

/// Limit of the input in bytes, much larger than the dump of the longest packet.
const LONGEST_INPUT: u64 = 1 << 20;

#[cfg(test)]
mod tests;
