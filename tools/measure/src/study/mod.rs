//! The study of MacArthur and Russell, "A Performance Study to Guide RDMA Programming Decisions" (2012), for
//! the devices of this machine. It shows which conclusions of the paper hold for a NIC made of software.
//!
//! [`Grid`] contains the cells. [`Study::run`] measures them with [`measure`](crate::measure) and
//! [`limit`](crate::limit), in one process per side. It stores a row for each cell in a [`Store`], so that a
//! study can be stopped and resumed. [`write_report`] draws the figures and judges the conclusions.

mod conclusions;
mod figures;
mod grid;
mod measured;
mod place;
mod report;
mod run;
pub mod side;
mod store;
mod tcp;

pub use conclusions::{CONCLUSIONS, Conclusion, Judgement, Verdict};
pub use figures::{Figure, figures};
pub use grid::{Carrier, Cell, DEFAULT_BUFFERS, Device, Grid, Test};
pub use measured::Measured;
pub use place::Places;
pub use report::{DrawError, disturbed, draw_figure, write_report};
pub use run::{Ended, Progress, Study, Wish};
pub use store::{COLUMNS, Identity, Outcome, Store, StoreError};
