//! What makes progress for the handles of one open device.

pub(crate) mod background;
