//! The files of a report: tables, plots and pages.

pub(crate) mod files;
pub(crate) mod run;
pub(crate) mod sweep;
