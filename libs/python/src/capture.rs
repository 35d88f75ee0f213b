//! Captures as Arrow tables.

use std::path::PathBuf;

use pyo3::prelude::*;
use roce_analysis::walk::{Framed, Walk};
use roce_capture::CaptureReader;

use crate::columns::Columns;
use crate::errors::exception;
use crate::table::Table;

/// Reads a capture file into a table with one row for each packet. `port` is the UDP port of RoCE v2.
#[pyfunction]
pub(crate) fn read_capture(py: Python<'_>, path: PathBuf, port: u16) -> PyResult<Table> {
    // Other threads of Python run meanwhile.
    py.detach(|| {
        let mut reader = CaptureReader::open(&path).map_err(|error| exception(&error))?;
        let mut columns = Columns::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.map_err(|error| exception(&error))?;
            let link = packet.link_type.link();
            let framed = link.map(|link| Framed::new(packet.bytes, link, packet.original_len as usize));
            columns.push(&packet, framed.map(|framed| Walk::new(framed, port)).as_ref());
        }
        columns.finish()
    })
}
