//! Address handles.

use std::ops::Deref;
use std::sync::Arc;

use roce_transport::UdDestination;

use super::Context;
use crate::driver::PortHolder;

/// A destination of UD sends, made by [`Context::create_address_handle`]: an `ibv_ah` and the two numbers of
/// the work request. Clones are handles to the same object.
///
/// The handle holds the UDP source port of its path. Dropping the last handle releases the port. A copy of
/// its [`UdDestination`] stays valid, but its datagrams then leave from the main port of the device.
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

    /// Returns the destination for work requests. [`SendWr::to`](super::SendWr::to) also accepts
    /// `&AddressHandle`.
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
