//! What captured packets are, as documents in JSON and as lines of text: what the commands `roce dissect`,
//! `roce explain` and `roce analyze` print, and what the page shows.
//!
//! [`dissect`] describes each packet of a capture in one line, [`explain`] every field of one packet, and
//! [`analyze`] the connections of captures with their verdicts. `docs/reference/json.md` lists the fields of
//! the documents.
//!
//! The crate takes packets and returns strings and values that implement [`serde::Serialize`]. It reads no
//! files and writes none, knows neither command line nor terminal, and does not panic, whatever the bytes of
//! a packet.
//!
//! ```
//! use hex_literal::hex;
//! use roce_analysis::walk::Walk;
//! use roce_document::document::{Build, Program};
//! use roce_document::explain::{Explanation, Origin};
//! use roce_document::first_header::FirstHeader;
//!
//! # fn main() -> Result<(), serde_json::Error> {
//! let bytes = hex!("1140ffff 00000002 80000001 1f000001 c5d2b8a4");
//! let origin = Origin::Digits { from: FirstHeader::Bth, was_guessed: false };
//! let explanation = Explanation { bytes: &bytes, origin, walk: Walk::datagram(&bytes) };
//! let program = Program { version: "1.0.0", build: Build { commit: None, features: &[], target: "" } };
//! let text = roce_document::explain::text(&explanation, program)?;
//! assert!(text.contains("\"roce.opcode\": \"RC_ACKNOWLEDGE\""));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod analyze;
pub mod bytes;
pub mod dissect;
pub mod document;
pub mod explain;
pub mod fields;
pub mod first_header;
pub mod packet;
pub mod parts;
