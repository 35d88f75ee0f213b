//! The study of MacArthur and Russell, "A Performance Study to Guide RDMA Programming Decisions" (2012), for the devices
//! of this machine: which of its conclusions hold for a NIC made of software.
//!
//! [`Grid`] says which cells there are. [`Study::run`] measures them, each with a process for each side, by what
//! [`measure`](crate::measure) and [`limit`](crate::limit) offer, and keeps a row for each in a [`Store`], so that a study
//! can be stopped and resumed. [`write_report`] draws the figures and judges the conclusions.

mod conclusions;
mod figures;
mod grid;
mod place;
mod report;
mod run;
pub mod side;
mod store;
mod tcp;

pub use conclusions::{CONCLUSIONS, Conclusion, Judgement, Verdict};
pub use figures::{Figure, figures};
pub use grid::{Carrier, Cell, DEFAULT_BUFFERS, Device, Grid, Test};
pub use place::Places;
pub use report::{disturbed, write_report};
pub use run::{Ended, Progress, Study, Wish};
pub use store::{COLUMNS, Identity, Outcome, Store, StoreError};
