//! The columns of the line of a packet.

/// Number of the packet in the file.
pub const NUMBER: usize = 0;
/// Seconds since the first packet.
pub const TIME: usize = 1;
/// Address of the sender.
pub const SOURCE: usize = 2;
/// Address of the receiver.
pub const DESTINATION: usize = 3;
/// Name of the opcode, or of another protocol.
pub const OPCODE: usize = 4;
/// Destination queue pair.
pub const QP: usize = 5;
/// Packet sequence number.
pub const PSN: usize = 6;
/// Bytes of payload, without padding.
pub const LENGTH: usize = 7;
/// Solicited event, MigReq and acknowledge request.
pub const FLAGS: usize = 8;
/// Result of the ICRC check.
pub const ICRC: usize = 9;
/// Conclusion from the PSN.
pub const MARK: usize = 10;
/// Differentiated services codepoint.
pub const DSCP: usize = 11;
/// ECN codepoint.
pub const ECN: usize = 12;
/// UDP source port.
pub const PORT: usize = 13;
/// Bytes on the wire.
pub const WIRE: usize = 14;
/// The capturing interface.
pub const INTERFACE: usize = 15;
/// Number of columns.
pub const COLUMNS: usize = 16;

/// The contents of the columns of one packet.
pub type Cells = [String; COLUMNS];
