//! Writing pcapng.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};

use super::{CaptureError, CaptureErrorKind, Direction, MAX_PACKET};

/// Writes Ethernet frames to a pcapng file: times in nanoseconds, named interfaces, and for each frame a
/// direction and a comment if wanted.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use roce_capture::{Direction, PcapWriter};
///
/// let file = std::env::temp_dir().join(format!("roce-doc-{}.pcapng", std::process::id()));
/// let mut writer = PcapWriter::create(&file, &["left", "right"])?;
/// writer.write(1, 1_700_000_000_000_000_000, Direction::Outbound, Some("the first"), &[0; 60])?;
/// writer.flush()?;
/// # std::fs::remove_file(&file)?;
/// # Ok(())
/// # }
/// ```
pub struct PcapWriter {
    file: String,
    interfaces: usize,
    inner: PcapNgWriter<BufWriter<Box<dyn Write + Send>>>,
}

impl PcapWriter {
    /// Makes a file, or empties the one that is there. Packets name their interface by its place in
    /// `interfaces`.
    ///
    /// # Errors
    ///
    /// The file cannot be made or written.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<Self, CaptureError> {
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => Self::new(file, &name, interfaces),
            Err(error) => Err(CaptureError::of_file(&name, CaptureErrorKind::Create(error))),
        }
    }

    /// Writes to anything, for example a pipe into a running Wireshark. `name` is for error messages.
    ///
    /// # Errors
    ///
    /// Writing failed.
    pub fn new(
        output: impl Write + Send + 'static,
        name: &str,
        interfaces: &[&str],
    ) -> Result<Self, CaptureError> {
        let output: Box<dyn Write + Send> = Box::new(output);
        let application = concat!("roce ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(application))],
            ..SectionHeaderBlock::default()
        };
        let output = BufWriter::with_capacity(1 << 16, output);
        let inner = PcapNgWriter::with_section_header(output, section)
            .map_err(|error| CaptureError::of_file(name, write_error(error)))?;
        let mut writer = Self { file: name.to_owned(), interfaces: interfaces.len(), inner };
        for interface in interfaces {
            writer.block(&Block::InterfaceDescription(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(shortened(interface))),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            }))?;
        }
        Ok(writer)
    }

    /// Appends one frame, from its Ethernet header to the ICRC. It reaches the file at the latest with the
    /// next [`flush`](Self::flush). A comment beyond 65,535 bytes is cut.
    ///
    /// # Errors
    ///
    /// Writing failed, there is no such interface, or the frame is longer than [`MAX_PACKET`].
    pub fn write(
        &mut self,
        interface: u32,
        time_ns: u64,
        direction: Direction,
        comment: Option<&str>,
        frame: &[u8],
    ) -> Result<(), CaptureError> {
        let known = self.interfaces;
        if interface as usize >= known {
            return Err(self.error(CaptureErrorKind::NoSuchInterface { interface, known }));
        }
        let original_len = match u32::try_from(frame.len()) {
            Ok(len) if len <= MAX_PACKET => len,
            len => return Err(self.error(CaptureErrorKind::PacketTooLong(len.unwrap_or(u32::MAX)))),
        };
        let mut options = Vec::new();
        if direction != Direction::Unknown {
            options.push(EnhancedPacketOption::Flags(direction.flags()));
        }
        if let Some(comment) = comment {
            options.push(EnhancedPacketOption::Comment(Cow::Borrowed(shortened(comment))));
        }
        self.block(&Block::EnhancedPacket(EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(time_ns),
            original_len,
            data: Cow::Borrowed(frame),
            options,
        }))
    }

    /// Hands everything written so far to the operating system. Dropping the writer does so too, but
    /// cannot say that it failed.
    ///
    /// # Errors
    ///
    /// Writing failed.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        self.inner.get_mut().flush().map_err(|error| self.error(CaptureErrorKind::Write(error)))
    }

    fn block(&mut self, block: &Block<'_>) -> Result<(), CaptureError> {
        match self.inner.write_block(block) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.error(write_error(error))),
        }
    }

    fn error(&self, kind: CaptureErrorKind) -> CaptureError {
        CaptureError::of_file(&self.file, kind)
    }
}

impl std::fmt::Debug for PcapWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, interfaces, .. } = self;
        f.debug_struct("PcapWriter")
            .field("file", file)
            .field("interfaces", interfaces)
            .finish_non_exhaustive()
    }
}

fn write_error(error: PcapError) -> CaptureErrorKind {
    CaptureErrorKind::Write(match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other),
    })
}

/// As much of a text as the 16-bit length of an option can say; `pcap-file` would write a wrong length.
fn shortened(text: &str) -> &str {
    let end = text.floor_char_boundary(usize::from(u16::MAX));
    text.get(..end).unwrap_or_default()
}

/// The value of `if_tsresol`: units of 10^-9 s.
const NANOSECONDS: u8 = 9;
