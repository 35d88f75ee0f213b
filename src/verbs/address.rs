//! Address handles.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use roce_packet::Qpn;
use roce_transport::UdDestination;

use super::{Context, VerbsError};
use crate::driver::{PathOptions, PortHolder};

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
    fn new(context: &Context, holder: PortHolder, destination: UdDestination) -> Self {
        Self(Arc::new(AddressInner { context: context.clone(), holder, destination }))
    }

    /// Returns the destination for work requests. [`SendWr::to`](super::SendWr::to) also accepts
    /// `&AddressHandle`.
    #[must_use]
    pub fn destination(&self) -> UdDestination {
        self.0.destination
    }
}

impl Context {
    /// Creates a destination of UD sends: an `ibv_ah` and the two numbers of the work request. The handle
    /// holds a source port of the device until it is dropped.
    ///
    /// ```
    /// # use roce::verbs::{example::ends, *};
    /// # let (near, _far) = ends()?;
    /// let (pd, cq) = (near.context.alloc_pd()?, near.context.create_cq(16, None)?);
    /// let qp = pd.create_qp(&QueuePairOptions::new(QpType::Ud, &cq))?;
    /// qp.activate_datagram(0x1234)?;
    /// // To a multicast group, which this queue pair receives as well.
    /// let group = "239.1.2.3".parse()?;
    /// qp.attach_multicast(group)?;
    /// let to = near.context.create_address_handle(group, Qpn::MULTICAST, 0x1234, &PathOptions::default())?;
    /// qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello").to(&to))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the device has no address of that family.
    pub fn create_address_handle(
        &self,
        destination: IpAddr,
        remote_qpn: Qpn,
        remote_qkey: u32,
        options: &PathOptions,
    ) -> Result<AddressHandle, VerbsError> {
        let (holder, path) = {
            let nic = &mut self.runtime().lock().nic;
            let holder = nic.next_address_handle();
            let path = nic.path_to(destination, holder, (remote_qpn, remote_qpn), options);
            (holder, path.map_err(VerbsError::io("cannot create an address handle"))?)
        };
        Ok(AddressHandle::new(self, holder, UdDestination { path, remote_qpn, remote_qkey }))
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
