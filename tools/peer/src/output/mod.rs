//! Results as text, as JUnit XML and as a capture.

mod capture;
mod junit;
mod text;

pub use capture::write_capture;
pub use junit::junit;
pub use text::{failure_text, summary};
