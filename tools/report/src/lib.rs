//! Reports of simulations: the figures of a run, the verdicts about them, and the pages that show them.
//!
//! ```text
//! pages/    files of a run and of a sweep: CSV, plots (SVG), HTML
//!   run, sweep, files             the reports; writing files
//! figures/  what the plots show
//!   kinds                         the figures that have a name
//!   charts, sweeps                the figures of a run, and of several runs
//!   means, names, samples         means over time; words; the points of a run
//! data/     numbers, without files
//!   groups, expectations          runs that differ in their seed; conditions of a scenario
//!   metrics                       the figures of a summary that have a name
//!   completed, summary            a completed run; its summary, which is also its JSON
//!   unfinished, operations, tables, deadlocks, host_waits, expected, text   parts of a summary
//! ```
//!
//! A [`Summary`] has the figures of a run. A [`CompletedRun`] also has the samples of the simulator, and
//! [`write_run`] writes them to a directory. [`write_sweep`] writes the report of several runs, from their
//! summaries and their directories.
//!
//! The crate may use the results and scenarios of `roce-sim`, plots (`roce-plot`), and limits for reading
//! files (`roce-machine`). It runs no simulation and prints nothing.
#![forbid(unsafe_code)]

mod data;
mod figures;
mod pages;

pub use data::completed::CompletedRun;
pub use data::deadlocks::DeadlockSummary;
pub use data::distribution::Distribution;
pub use data::expectations::{UnknownMetric, check_expectations, evaluate_expectations};
pub use data::expected::Expected;
pub use data::groups::{Estimate, Group, groups, sweep_document};
pub use data::host_waits::HostWaits;
pub use data::metrics::{METRICS, Metric, metric_named};
pub use data::operations::OperationSummary;
pub use data::summary::{Extremes, Hashes, OfSizes, QueueBytes, RunIndex, Summary};
pub use data::tables::TableSummary;
pub use data::text::{NOT_MEASURED, assignments};
pub use data::unfinished::{FAILED_FLOWS, FailedFlow, Unfinished};
pub use figures::kinds::{FigureKind, NoFigure};
pub use figures::samples::Series;
pub use figures::sweeps::Points;
pub use pages::files::{WriteError, remove_summary};
pub use pages::run::write_run;
pub use pages::sweep::{points_in, write_sweep};
