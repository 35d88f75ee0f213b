//! The wire format of RoCE v1 and v2: headers, opcodes, the invariant CRC and flow hashes.
//!
//! This crate converts bytes to typed values and back. It has no connection state, performs no input or
//! output, does not allocate memory and requires no operating system.
//!
//! Every header has two types. A *view*, such as [`BthView`], is the bytes with a name for every bit. It
//! checks nothing, so logs can show broken packets. A plain struct, such as [`Bth`], contains only legal
//! values: `parse` creates it from bytes and returns the remaining bytes, and `emit` writes it to an array of
//! exactly its size. Reserved bits are written as zero and accepted with any value.
//!
//! Bytes from a wire never cause a panic: all slicing uses checked calls, which the lints of this crate
//! enforce.
//!
//! An example parses a congestion notification that a NIC sent:
//!
//! ```
//! use hex_literal::hex;
//! use roce_packet::{Frame, Opcode, Qpn};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bytes = hex!(
//!     "e41d2dab2bc27cfe90643b320800"
//!     "45c2003c718c4000401191610a0011010a001201"
//!     "000012b700280000"
//!     "8100ffff4000011800000000"
//!     "00000000000000000000000000000000"
//!     "82fd002a"
//! );
//! let frame = Frame::parse(&bytes)?;
//! let datagram = frame.datagram()?;
//! assert_eq!(datagram.bth().opcode, Opcode::CNP);
//! assert_eq!(datagram.bth().dest_qp, Qpn::new(0x118));
//! assert_eq!(frame.path().dscp(), 48);
//! assert!(frame.verify_icrc()?.is_good());
//! # Ok(())
//! # }
//! ```
//!
//! The `std` feature, off by default, makes the ICRC of large packets several times faster. With it, the CRC
//! detects the instructions of the CPU at run time. The feature does not change the API.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

#[cfg(test)]
extern crate std;

mod aeth;
mod atomic;
mod bth;
mod cnp;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod datagram;
mod deth;
mod envelope;
mod error;
mod ethernet;
mod extended;
mod field;
pub mod fields;
pub mod flow;
mod flush;
pub mod foreign;
mod frame;
mod gid;
mod grh;
pub mod icrc;
mod immediate;
mod ip;
mod ipv4;
mod ipv6;
mod lrh;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod mad;
mod mtu;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod number;
mod opcode;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod outer;
mod path;
pub mod pause;
mod reth;
mod telemetry;
mod udp;
mod view;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod writer;

pub use aeth::{Aeth, AethView, NakCode, RnrTimer, Syndrome};
pub use atomic::{AtomicAckEth, AtomicAckEthView, AtomicEth, AtomicEthView};
pub use bth::{Bth, BthView};
pub use cnp::{Cnp, CnpDeviations, DEFAULT_CNP_DSCP, DEFAULT_CNP_PCP};
pub use datagram::Datagram;
pub use deth::{Deth, DethView, Rdeth, RdethView, Xrceth, XrcethView};
pub use envelope::Envelope;
pub use error::{BufferTooSmall, Layer, ParseError, ParseErrorKind};
pub use ethernet::{
    EtherType, EthernetHeader, EthernetView, InvalidMacAddr, MIN_FRAME_LEN, MacAddr, PREAMBLE_AND_GAP_LEN,
    VlanHeader, VlanTag, VlanView, wire_len,
};
pub use flow::SourcePortRule;
pub use flush::{Feth, FethView, FlushSelectivity};
pub use frame::{
    Dissection, Frame, FrameHeaders, FrameHeadersError, IcrcCheck, NetworkHeader, NetworkView, SplitFrame,
};
pub use gid::Gid;
pub use grh::{Grh, GrhView};
pub use immediate::{Ieth, IethView, ImmDt, ImmDtView};
pub use ipv4::{Ipv4Header, Ipv4View};
pub use ipv6::{Ipv6Header, Ipv6View};
pub use lrh::{Lrh, LrhView};
pub use mtu::PathMtu;
pub use number::{Msn, Psn, Qpn};
pub use opcode::{Direction, HeaderSet, Opcode, OpcodeInfo, Operation, PayloadRule, Position, Transport};
pub use path::{Ecn, Encapsulation, Path, ROCE_UDP_PORT};
pub use pause::PauseFrame;
pub use reth::{Reth, RethView};
pub use telemetry::{Telemetry, TelemetryHop};
pub use udp::{IP_PROTOCOL_UDP, UdpHeader, UdpView, ip_protocol_name};
pub use writer::DatagramWriter;
