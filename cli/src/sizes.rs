//! Sizes in bytes as values of options.

use roce_packet::PathMtu;
use roce_transport::units;

/// Parses a number of bytes, such as 64K.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let bytes = units::size(text).map_err(|error| error.to_string())?;
    usize::try_from(bytes).map_err(|_| format!("{text} is too large"))
}

/// Parses a path MTU in bytes.
pub(super) fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().ok();
    bytes.and_then(PathMtu::from_bytes).ok_or_else(|| "write 256, 512, 1024, 2048 or 4096".into())
}
