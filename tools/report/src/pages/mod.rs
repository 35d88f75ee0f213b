//! The files of a report: tables, plots and pages.

mod charts;
pub(crate) mod files;
mod means;
pub(crate) mod run;
pub(crate) mod sweep;
