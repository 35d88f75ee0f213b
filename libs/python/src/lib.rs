//! The extension module `roce._roce` of the Python package `roce`.
//!
//! The package in `libs/python/python/roce` is what programs import. This module gives it the tables of all
//! headers, decoded packets, ICRCs and Arrow tables. Errors become `ValueError` or `OSError`.
#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod algorithm;
mod bridge;
mod capture;
mod cells;
mod columns;
mod errors;
mod layers;
mod peers;
mod sim;
mod table;

/// Parts of the package `roce` that are written in Rust.
#[pyo3::pymodule]
mod _roce {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::bridge::Bridge;
    #[pymodule_export]
    use crate::capture::read_capture;
    #[pymodule_export]
    use crate::layers::{
        Decoded, Field, Header, decode, headers, icrc, ipv4_checksum, link_of, opcodes, packets,
    };
    #[pymodule_export]
    use crate::peers::{Device, Listener, Operation, Peer, RemoteMemory, connect_pair};
    #[pymodule_export]
    use crate::sim::{Simulated, scenario_text, scenarios, simulate};
    #[pymodule_export]
    use crate::table::Table;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
