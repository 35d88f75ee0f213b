//! Address handles.

use std::ops::Deref;
use std::sync::Arc;

use roce_transport::UdDestination;

use super::Context;
use crate::driver::PortHolder;

/// The destination of UD sends, made by [`Context::create_address_handle`]: `ibv_create_ah` and the two numbers of the work
/// request. Clones are handles to the same.
///
/// It holds the UDP source port of its path. Dropping the last handle gives the port back; a copy of the [`UdDestination`] in it
/// stays valid, and datagrams leave from the main port of the device then.
#[derive(Clone, Debug)]
pub struct AddressHandle(Arc<AddressInner>);

#[derive(Debug)]
struct AddressInner {
    context: Context,
    holder: PortHolder,
    destination: UdDestination,
}

impl Drop for AddressInner {
    fn drop(&mut self) {
        self.context.runtime().lock().nic.release_source_ports(self.holder);
    }
}

impl AddressHandle {
    pub(super) fn new(context: &Context, holder: PortHolder, destination: UdDestination) -> Self {
        Self(Arc::new(AddressInner { context: context.clone(), holder, destination }))
    }

    /// What work requests take: [`SendWr::to`](super::SendWr::to) takes a reference to the handle as well.
    #[must_use]
    pub fn destination(&self) -> UdDestination {
        self.0.destination
    }
}

impl Deref for AddressHandle {
    type Target = UdDestination;

    fn deref(&self) -> &UdDestination {
        &self.0.destination
    }
}

impl From<&AddressHandle> for UdDestination {
    fn from(handle: &AddressHandle) -> Self {
        handle.destination()
    }
}
