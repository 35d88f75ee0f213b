//! The tables of the extended headers.

use crate::aeth::AETH;
use crate::atomic::{ATOMIC_ACK_ETH, ATOMIC_ETH};
use crate::deth::{DETH, RDETH, XRCETH};
use crate::field::Header;
use crate::flush::FETH;
use crate::immediate::{IETH, IMMDT};
use crate::opcode::HeaderSet;
use crate::reth::RETH;

/// The extended headers with their flags, in wire order.
pub static EXTENDED: [(HeaderSet, &Header); 10] = [
    (HeaderSet::RDETH, &RDETH),
    (HeaderSet::DETH, &DETH),
    (HeaderSet::XRCETH, &XRCETH),
    (HeaderSet::FETH, &FETH),
    (HeaderSet::RETH, &RETH),
    (HeaderSet::ATOMIC_ETH, &ATOMIC_ETH),
    (HeaderSet::AETH, &AETH),
    (HeaderSet::ATOMIC_ACK_ETH, &ATOMIC_ACK_ETH),
    (HeaderSet::IMMDT, &IMMDT),
    (HeaderSet::IETH, &IETH),
];
