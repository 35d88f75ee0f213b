//! The result of a measurement.

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
