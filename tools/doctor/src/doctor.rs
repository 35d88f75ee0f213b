//! The device of this side, whose arriving packets are observed.

use std::net::IpAddr;

use super::watch::{Log, Watch};
use roce::verbs::{Context, ContextBuilder, PathOptions};
use roce_device::Device;
use roce_exchange::ToolError;

/// An open device that is observed.
#[derive(Debug)]
pub struct Doctor {
    pub(super) context: Context,
    pub(super) log: Log,
    pub(super) path: PathOptions,
}

impl Doctor {
    /// Takes an open device. `sgid_index` selects a GID of its table.
    ///
    /// # Errors
    ///
    /// The operating system refuses a descriptor or thread.
    pub fn new(
        builder: ContextBuilder,
        device: Box<dyn Device>,
        sgid_index: Option<usize>,
    ) -> Result<Self, ToolError> {
        let (watch, log) = Watch::around(device);
        let context = builder.attach(watch)?;
        Ok(Self { context, log, path: PathOptions::default().sgid_index(sgid_index) })
    }

    /// Returns the context, for instance to listen on its address.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the source address: that of the selected GID, or the first.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.context.gid_address(self.path.sgid_index)
    }
}
