//! Errors as exceptions of Python.

use std::error::Error;
use std::io;

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;
use roce::observe::with_causes;

/// Returns a `ValueError` with the text of an error and of its causes. An error of the operating system
/// becomes the subclass of `OSError` for its kind, such as `FileNotFoundError`.
pub(crate) fn exception(error: &(dyn Error + 'static)) -> PyErr {
    let text = with_causes(error).to_string();
    match io_kind(error) {
        Some(kind) => io::Error::new(kind, text).into(),
        None => PyValueError::new_err(text),
    }
}

/// Returns the kind of the error of the operating system that caused an error.
fn io_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}
