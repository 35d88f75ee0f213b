//! The sources of frames.

use std::io;
use std::path::Path;

use anyhow::{Context as _, bail};
use roce_capture::CapturedPacket;
use roce_document::first_header::framed;
use roce_packet::{EthernetHeader, MacAddr};

use crate::decode;
use crate::decode::walk::Framed;
use crate::input::{self, Input};

/// The frames to send, once or several times.
#[derive(Debug)]
pub(super) enum Source {
    /// One frame, given as digits.
    Bytes(Vec<u8>),
    /// A capture file, or one packet of it. `-` is standard input.
    Capture { file: String, only: Option<u64> },
}

/// A function that takes frames, and returns whether it takes more.
type Sink<'s> = dyn FnMut(&Original<'_>) -> anyhow::Result<bool> + 's;

/// An unchanged frame of the source.
#[derive(Debug)]
pub(super) struct Original<'a> {
    framed: Framed<'a>,
    pub(super) time_ns: Option<u64>,
    /// Whether the end is missing in the capture.
    pub(super) is_cut: bool,
}

impl Source {
    /// Parses the arguments.
    pub(super) fn of(arguments: &[String]) -> anyhow::Result<Self> {
        if let [file] = arguments
            && (file == "-" || Path::new(file).is_file())
        {
            return Ok(Self::Capture { file: file.clone(), only: None });
        }
        let input = Input::of(arguments).with_context(|| match arguments {
            [one] if one.contains(['/', '.']) => {
                format!("{one}: this is neither an existing file nor a frame in hexadecimal digits")
            }
            _ => "cannot read the frame".to_owned(),
        })?;
        match input {
            Input::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            Input::Captured { file, number } => Ok(Self::Capture { file, only: Some(number) }),
            Input::Example => {
                bail!("nothing to send; give a capture file, FILE:NUMBER, or the bytes of a frame")
            }
        }
    }

    /// Returns whether the frames come from standard input, which can be read only once.
    pub(super) fn is_stdin(&self) -> bool {
        matches!(self, Self::Capture { file, .. } if file == "-")
    }

    /// Passes each frame to `sink` in order, until `sink` returns `false`.
    pub(super) fn read(&self, sink: &mut Sink<'_>) -> anyhow::Result<()> {
        let (file, only) = match self {
            Self::Bytes(bytes) => {
                let Some(framed) = framed(bytes) else {
                    bail!("the bytes begin with a BTH; give a frame with its Ethernet or IP header");
                };
                sink(&Original { framed, time_ns: None, is_cut: false })?;
                return Ok(());
            }
            Self::Capture { file, only } => (file, *only),
        };
        let mut reader = input::open(file.as_ref())?;
        if let Some(number) = only {
            return input::with_packet(&mut reader, file, number, |packet| {
                hand_over(packet, file, sink).map(|_| ())
            });
        }
        while let Some(packet) = reader.next_packet().transpose()? {
            if !hand_over(&packet, file, sink)? {
                break;
            }
        }
        Ok(())
    }
}

/// Passes a packet to `sink`. Returns whether to continue.
fn hand_over(packet: &CapturedPacket<'_>, file: &str, sink: &mut Sink<'_>) -> anyhow::Result<bool> {
    let Some(framed) = decode::captured(packet) else {
        bail!("packet {} of {file}: link type {} is not supported", packet.number, packet.link_type);
    };
    if framed.is_never_ethernet() {
        bail!("packet {} of {file} has no Ethernet or IP header, so it cannot be sent", packet.number);
    }
    sink(&Original { framed, time_ns: packet.time_ns, is_cut: packet.is_snapped() })
}

impl Original<'_> {
    /// Returns the number of bytes of the packet.
    pub(super) const fn len(&self) -> usize {
        self.framed.len()
    }

    /// Writes the frame to a buffer in which it can be changed. A packet without an Ethernet header gets one.
    pub(super) fn to_frame(&self, frame: &mut Vec<u8>, macs: Macs) -> anyhow::Result<()> {
        self.framed.to_frame(frame);
        if self.framed.has_ethernet() {
            return Ok(());
        }
        let Macs { source, destination, needed } = macs;
        match (destination, source) {
            (Some(destination), Some(source)) => {
                if let Some(header) = frame.get_mut(..EthernetHeader::LEN) {
                    header[..6].copy_from_slice(&destination.0);
                    header[6..12].copy_from_slice(&source.0);
                }
            }
            _ if !needed => {}
            _ => bail!(
                "the packets have no Ethernet header; give the addresses of one with --destination-mac and --source-mac"
            ),
        }
        Ok(())
    }
}

/// The Ethernet addresses of packets without an Ethernet header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Macs {
    pub(super) source: Option<MacAddr>,
    pub(super) destination: Option<MacAddr>,
    /// Whether the device sends Ethernet headers.
    pub(super) needed: bool,
}

/// Refuses several rounds of a capture from standard input, which can be read only once.
pub(super) fn check_rounds(source: &Source, rounds: u64) -> io::Result<()> {
    if source.is_stdin() && rounds > 1 {
        let text = "standard input can be read only once; write the capture to a file, or omit --count";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}
