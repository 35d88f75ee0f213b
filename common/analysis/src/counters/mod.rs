//! Counters of NICs: what changed between two files, and what it means.
//!
//! [`Snapshot::parse`] reads the output of `rdma statistic`, `ethtool -S`, `roce stat`, and dumps of files
//! below `/sys/class/infiniband`. [`compare`] returns what changed, also if a counter passed its largest
//! value or began at zero again. Drivers have different names for one [`Event`], which says what is counted,
//! its usual cause and the next step. [`WireCounts::at`] says what a NIC should have counted according to a
//! capture, and [`beside`] compares both.
//!
//! ```
//! use roce_analysis::counters::{Event, Snapshot, compare};
//!
//! # fn main() -> Result<(), roce_analysis::counters::NoCounters> {
//! let before = Snapshot::parse("link mlx5_0/1 out_of_sequence 12 duplicate_request 3")?;
//! let after = Snapshot::parse("link mlx5_0/1 out_of_sequence 40 duplicate_request 3")?;
//! let comparisons = compare(&before, &after);
//! assert_eq!(comparisons[0].growth(Event::OutOfSequence), Some(("out_of_sequence", 28)));
//! # Ok(())
//! # }
//! ```

mod compare;
mod event;
mod json;
mod parse;
mod table;
mod wire;

pub use compare::{Change, Comparison, Outcome, compare};
pub use event::{Event, Kind};
pub use parse::{Group, NoCounters, Snapshot};
pub use table::{Counter, Driver, counters, find};
pub use wire::{Agreement, Beside, WireCounts, beside};
