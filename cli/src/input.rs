//! The packets that arguments select: digits, a capture file or one packet of it, or an example.

pub(super) mod captures;
pub(super) mod follow;

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context as _, bail};
use roce_capture::{CaptureError, CaptureReader, CapturedPacket};
pub(super) use roce_document::bytes;
use roce_machine::text_file;

/// The packet that the arguments select.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// The command has no argument.
    Example,
    Bytes(Vec<u8>),
    /// The packet with this number, from 1; the file `-` is standard input.
    Captured {
        file: String,
        number: u64,
    },
}

impl Input {
    /// Parses the arguments, and reads standard input if they request it.
    pub(super) fn of(arguments: &[String]) -> anyhow::Result<Self> {
        let text = match arguments {
            [] => return Ok(Self::Example),
            [dash] if dash == "-" => {
                let mut text = Vec::new();
                io::stdin()
                    .take(LONGEST_TEXT)
                    .read_to_end(&mut text)
                    .context("cannot read standard input")?;
                String::from_utf8_lossy(&text).into_owned()
            }
            [one] => match place(one)? {
                Some(captured) => return Ok(captured),
                None => one.clone(),
            },
            [file, number] if is_file_and_number(file, number) => {
                let place = format!("{file}:{number}");
                match self::place(&place)? {
                    Some(captured) => return Ok(captured),
                    None => place,
                }
            }
            groups => groups.join(" "),
        };
        match bytes::parse(&text) {
            Ok(bytes) => Ok(Self::Bytes(bytes)),
            Err(error) => match arguments {
                [file] if Path::new(file).is_file() => {
                    bail!("{file} is a file; say which of its packets to explain, such as {file} 1")
                }
                _ => Err(error.into()),
            },
        }
    }
}

/// Returns whether two arguments are FILE NUMBER. Digits in two groups have the same form, so an existing
/// file decides.
fn is_file_and_number(file: &str, number: &str) -> bool {
    !number.is_empty()
        && number.bytes().all(|digit| digit.is_ascii_digit())
        && (Path::new(file).is_file() || (file == "-" && number.len() < 4))
}

/// Parses FILE:NUMBER. Digits with colons have the same form. An existing file decides, or a name that cannot
/// be digits.
fn place(argument: &str) -> anyhow::Result<Option<Input>> {
    let Some((file, number)) = argument.rsplit_once(':') else { return Ok(None) };
    let exists = file == "-" || Path::new(file).is_file();
    if !exists && bytes::parse(argument).is_ok() {
        return Ok(None);
    }
    match number.parse() {
        Ok(0) => bail!("{argument}: the first packet of a file has the number 1"),
        Ok(number) => Ok(Some(Input::Captured { file: file.to_owned(), number })),
        Err(_) if exists => {
            bail!("{argument}: expected the number of a packet behind the colon, such as {file}:1")
        }
        Err(_) => Ok(None),
    }
}

/// Opens a capture file, or standard input. While it waits for the writer of a FIFO, it says so on standard
/// error.
pub(super) fn open(file: &Path) -> Result<CaptureReader, CaptureError> {
    if file.as_os_str() == "-" {
        return CaptureReader::new(io::stdin(), "standard input");
    }
    let name = file.display().to_string();
    let waiting = || eprintln!("roce: waiting for a program that writes to the FIFO {name}");
    match text_file::open_patiently(file, waiting) {
        Ok(opened) => CaptureReader::new(opened, &name),
        // The error of this call names the file and the reason.
        Err(_) => CaptureReader::open(file),
    }
}

/// Reads up to the packet with this number and passes it to `then`.
pub(super) fn with_packet<R>(
    reader: &mut CaptureReader,
    file: &str,
    number: u64,
    then: impl FnOnce(&CapturedPacket<'_>) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let mut have = 0;
    while let Some(packet) = reader.next_packet().transpose()? {
        have = packet.number;
        if have == number {
            return then(&packet);
        }
    }
    let plural = if have == 1 { "" } else { "s" };
    bail!("{file} has {have} packet{plural}, so there is no packet {number}")
}

/// An RDMA WRITE of "hello, world!" from 10.0.0.1 to 10.0.0.2, built with the packet crate.
pub(super) const EXAMPLE: &str = concat!(
    "02000000000202000000000108004502004c000040004011269d0a0000010a000002c16912b7003800000a70ff",
    "ff0000001280005eed00007f00deadb000000012340000000d68656c6c6f2c20776f726c6421000000b74f5e4b",
);

/// Limit of the text in bytes, much larger than the dump of the longest packet.
const LONGEST_TEXT: u64 = 1 << 20;
