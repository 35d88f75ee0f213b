//! Writes pcapng files.

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

use super::{
    CaptureError, CaptureErrorKind, CapturedPacket, Direction, LinkType, MAX_INTERFACES, MAX_PACKET,
};

/// Limits of a [`PcapWriter`]. By default, nothing is limited.
///
/// ```
/// use roce_capture::WriterOptions;
///
/// let headers_of_a_million = WriterOptions::new().snap_len(128).max_packets(1_000_000);
/// # assert_ne!(headers_of_a_million, WriterOptions::new());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterOptions {
    snap_len: u32,
    max_packets: Option<u64>,
}

impl WriterOptions {
    /// Creates options without limits.
    #[must_use]
    pub const fn new() -> Self {
        Self { snap_len: 0, max_packets: None }
    }

    /// Limits the bytes kept of each packet, counted from its Ethernet header. As in the file format, 0 keeps
    /// all bytes. The file always contains the length that the packet had on the wire.
    #[must_use]
    pub const fn snap_len(mut self, bytes: u32) -> Self {
        self.snap_len = bytes;
        self
    }

    /// Limits the number of packets written. Later packets are ignored, see [`PcapWriter::is_full`].
    #[must_use]
    pub const fn max_packets(mut self, count: u64) -> Self {
        self.max_packets = Some(count);
        self
    }

    /// Returns the number of bytes kept of a packet of `len` bytes.
    fn kept(self, len: usize) -> usize {
        match usize::try_from(self.snap_len) {
            Ok(snap_len @ 1..) => len.min(snap_len),
            _ => len,
        }
    }
}

/// Writes Ethernet frames to a pcapng file, with times in nanoseconds and named interfaces. Each frame has a
/// direction and an optional comment.
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
    interfaces: u32,
    options: WriterOptions,
    /// Number of packets written.
    packets: u64,
    /// The interfaces of copied packets.
    copied: Vec<Copied>,
    inner: PcapNgWriter<BufWriter<Box<dyn Write + Send>>>,
}

/// An interface of another file, and its number in this one.
struct Copied {
    interface: Option<u32>,
    name: Option<String>,
    link_type: LinkType,
    number: u32,
}

impl Copied {
    fn is_of(&self, packet: &CapturedPacket<'_>) -> bool {
        self.interface == packet.interface
            && self.link_type == packet.link_type
            && self.name.as_deref() == packet.interface_name
    }
}

impl PcapWriter {
    /// Creates a file, or truncates an existing one. Packets refer to their interface by its index in
    /// `interfaces`.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be created or written.
    pub fn create(path: &Path, interfaces: &[&str]) -> Result<Self, CaptureError> {
        Self::create_with(path, interfaces, WriterOptions::new())
    }

    /// Creates a file, or truncates an existing one, with limits on the content.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`create`](Self::create).
    pub fn create_with(
        path: &Path,
        interfaces: &[&str],
        options: WriterOptions,
    ) -> Result<Self, CaptureError> {
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => Self::new_with(file, &name, interfaces, options),
            Err(error) => Err(CaptureError::of_file(&name, CaptureErrorKind::Create(error))),
        }
    }

    /// Writes to any destination, for example a pipe into a running Wireshark. Error messages contain `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails.
    pub fn new(
        output: impl Write + Send + 'static,
        name: &str,
        interfaces: &[&str],
    ) -> Result<Self, CaptureError> {
        Self::new_with(output, name, interfaces, WriterOptions::new())
    }

    /// Writes to any destination, with limits on the content.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`new`](Self::new).
    pub fn new_with(
        output: impl Write + Send + 'static,
        name: &str,
        interfaces: &[&str],
        options: WriterOptions,
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
        let file = name.to_owned();
        let mut writer = Self { file, interfaces: 0, options, packets: 0, copied: Vec::new(), inner };
        for interface in interfaces {
            writer.add_interface(interface)?;
        }
        Ok(writer)
    }

    /// Appends an interface to the file and returns its number.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails.
    pub fn add_interface(&mut self, name: &str) -> Result<u32, CaptureError> {
        self.describe(Some(name), DataLink::ETHERNET)
    }

    fn describe(&mut self, name: Option<&str>, linktype: DataLink) -> Result<u32, CaptureError> {
        let name = name.map(|name| InterfaceDescriptionOption::IfName(Cow::Borrowed(shortened(name))));
        let options = name.into_iter().chain([InterfaceDescriptionOption::IfTsResol(NANOSECONDS)]).collect();
        let snaplen = self.options.snap_len;
        self.block(&Block::InterfaceDescription(InterfaceDescriptionBlock { linktype, snaplen, options }))?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Appends one frame, from its Ethernet header to the ICRC. The frame reaches the file with the next
    /// [`flush`](Self::flush) at the latest. A comment longer than 65,535 bytes is truncated. After
    /// [`WriterOptions::max_packets`] frames, nothing is written.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails, the interface does not exist, or the frame is longer than
    /// [`MAX_PACKET`].
    pub fn write(
        &mut self,
        interface: u32,
        time_ns: u64,
        direction: Direction,
        comment: Option<&str>,
        frame: &[u8],
    ) -> Result<(), CaptureError> {
        let known = self.interfaces;
        if interface >= known {
            let known = known as usize;
            return Err(self.error(CaptureErrorKind::NoSuchInterface { interface, known }));
        }
        let original_len = match u32::try_from(frame.len()) {
            Ok(len) if len <= MAX_PACKET => len,
            len => return Err(self.error(CaptureErrorKind::PacketTooLong(len.unwrap_or(u32::MAX)))),
        };
        self.packet(interface, time_ns, direction, comment, (original_len, frame))
    }

    /// Appends a packet of another capture file with its link type, interface, time, direction and comment.
    /// An interface is added with the first packet that has it. A packet without a time gets the time 0,
    /// because every packet that is written here has one.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails, or the packets have more than [`MAX_INTERFACES`] interfaces.
    pub fn copy(&mut self, packet: &CapturedPacket<'_>) -> Result<(), CaptureError> {
        let number = match self.copied.iter().find(|copied| copied.is_of(packet)) {
            Some(copied) => copied.number,
            None if self.copied.len() >= MAX_INTERFACES => {
                return Err(self.error(CaptureErrorKind::TooManyInterfaces));
            }
            None => {
                let CapturedPacket { interface, interface_name, link_type, .. } = *packet;
                let number = self.describe(interface_name, link_type.0.into())?;
                let name = interface_name.map(str::to_owned);
                self.copied.push(Copied { interface, name, link_type, number });
                number
            }
        };
        let time_ns = packet.time_ns.unwrap_or(0);
        self.packet(number, time_ns, packet.direction, packet.comment, (packet.original_len, packet.bytes))
    }

    fn packet(
        &mut self,
        interface: u32,
        time_ns: u64,
        direction: Direction,
        comment: Option<&str>,
        (original_len, frame): (u32, &[u8]),
    ) -> Result<(), CaptureError> {
        if self.is_full() {
            return Ok(());
        }
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
            data: Cow::Borrowed(&frame[..self.options.kept(frame.len())]),
            options,
        }))?;
        self.packets += 1;
        Ok(())
    }

    /// Returns whether [`WriterOptions::max_packets`] packets were written.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.options.max_packets.is_some_and(|most| self.packets >= most)
    }

    /// Passes all buffered data to the operating system. Dropping the writer does so too, but cannot report
    /// an error.
    ///
    /// # Errors
    ///
    /// Returns an error if writing fails.
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
        let Self { file, interfaces, options, .. } = self;
        f.debug_struct("PcapWriter")
            .field("file", file)
            .field("interfaces", interfaces)
            .field("options", options)
            .finish_non_exhaustive()
    }
}

fn write_error(error: PcapError) -> CaptureErrorKind {
    CaptureErrorKind::Write(match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other),
    })
}

/// Truncates a text to the 16-bit length of an option, because `pcap-file` would write a wrong length.
fn shortened(text: &str) -> &str {
    let end = text.floor_char_boundary(usize::from(u16::MAX));
    text.get(..end).unwrap_or_default()
}

/// Value of `if_tsresol`: units of 10^-9 s.
const NANOSECONDS: u8 = 9;
