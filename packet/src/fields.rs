//! The fields of every header as data, for tools that display packets: name, position, format and meaning of
//! each.
//!
//! The table of a header is in the same file as its view and its parser, and a test compares the three. The
//! tables describe broken packets as well as legal ones; parsers such as [`Bth::parse`](crate::Bth::parse)
//! check them.
//!
//! ```
//! use roce_packet::fields::{BTH, Value};
//!
//! let header = [0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0x5e, 0xed];
//! let psn = BTH.fields.iter().find(|field| field.name == "PSN").ok_or("not in the table")?;
//! assert_eq!(psn.byte_range(), 9..12);
//! assert_eq!(psn.value(&header), Some(Value::Number(0x5eed)));
//! # Ok::<(), &str>(())
//! ```

pub(crate) use crate::field::{bits, bytes, mask};

pub use crate::aeth::AETH;
pub use crate::atomic::{ATOMIC_ACK_ETH, ATOMIC_ETH};
pub use crate::bth::BTH;
pub use crate::cnp::CNP;
pub use crate::datagram::{PADDING, PAYLOAD};
pub use crate::deth::{DETH, RDETH, XRCETH};
pub use crate::ethernet::{ETHERNET, ETHERNET_TRAILER, VLAN};
pub use crate::extended::EXTENDED;
pub use crate::field::{Condition, Field, Header, Note, Show, Value};
pub use crate::flush::FETH;
pub use crate::grh::GRH;
pub use crate::icrc::ICRC;
pub use crate::immediate::{IETH, IMMDT};
pub use crate::ipv4::{IPV4, IPV4_OPTIONS};
pub use crate::ipv6::IPV6;
pub use crate::lrh::{LRH, VCRC};
pub use crate::mad::tables::{
    APR, DREP, DREQ, IP_CM, LAP, MAD, MAD_DATA, MRA, REJ, REP, REQ, RTU, SIDR_REP, SIDR_REQ, cm_message,
};
pub use crate::outer::tables::{
    AUTHENTICATION, CONTROL_WORD, DESTINATION_OPTIONS, ERF, ERF_EXTENSIONS, ERSPAN_II, ERSPAN_III, FRAGMENT,
    GENEVE, GRE, GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE, HOP_BY_HOP, MPLS, ROUTING, SERVICE_VLAN, VXLAN,
    VXLAN_GPE,
};
pub use crate::pause::{PAUSE, PFC};
pub use crate::reth::RETH;
pub use crate::telemetry::TELEMETRY;
pub use crate::udp::UDP;
