//! Ports that identifiers of this process are bound to. Those of other processes show when a listener asks for its port.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use roce::verbs::PortSpace;

use crate::answer::Errno;

/// A port that an application named for an identifier, which has it until it is destroyed.
pub(super) struct BoundPort {
    port_space: PortSpace,
    address: SocketAddr,
    /// `RDMA_OPTION_ID_REUSEADDR` was set before.
    is_shared: bool,
}

/// The ports of the identifiers that exist.
#[derive(Default)]
pub(super) struct BoundPorts(Vec<Weak<BoundPort>>);

impl BoundPorts {
    /// Binds an identifier to a port.
    ///
    /// # Errors
    ///
    /// As the kernel has them: `EADDRINUSE` if another one has this address and port, `EADDRNOTAVAIL` if one of the two addresses
    /// is the wildcard of the same family. Two that both share their port do not disturb each other.
    pub(super) fn bind(
        &mut self,
        port_space: PortSpace,
        address: SocketAddr,
        is_shared: bool,
    ) -> Result<Arc<BoundPort>, Errno> {
        self.0.retain(|known| known.strong_count() > 0);
        for known in self.0.iter().filter_map(Weak::upgrade) {
            let is_apart = known.port_space != port_space
                || known.address.port() != address.port()
                || known.address.is_ipv4() != address.is_ipv4();
            if is_apart || known.is_shared && is_shared {
                continue;
            }
            if known.address.ip().is_unspecified() || address.ip().is_unspecified() {
                return Err(Errno(libc::EADDRNOTAVAIL));
            }
            if known.address.ip() == address.ip() {
                return Err(Errno(libc::EADDRINUSE));
            }
        }
        let bound = Arc::new(BoundPort { port_space, address, is_shared });
        self.0.push(Arc::downgrade(&bound));
        Ok(bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_belongs_to_one_identifier_as_long_as_that_exists() {
        let mut ports = BoundPorts::default();
        let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
        let mut bind = |space, text, is_shared| ports.bind(space, address(text), is_shared);
        let first = bind(PortSpace::Tcp, "198.18.0.1:7174", false).unwrap();
        let refused = |outcome: Result<Arc<BoundPort>, Errno>| outcome.err().unwrap().0;
        assert_eq!(refused(bind(PortSpace::Tcp, "198.18.0.1:7174", true)), libc::EADDRINUSE);
        assert_eq!(refused(bind(PortSpace::Tcp, "0.0.0.0:7174", false)), libc::EADDRNOTAVAIL);
        let others = [
            bind(PortSpace::Tcp, "198.18.0.1:7175", true),
            bind(PortSpace::Tcp, "198.18.0.2:7174", false),
            bind(PortSpace::Udp, "198.18.0.1:7174", false),
            bind(PortSpace::Tcp, "[::]:7174", false),
            bind(PortSpace::Tcp, "198.18.0.1:7175", true),
        ];
        assert!(others.iter().all(Result::is_ok));
        drop(first);
        assert!(bind(PortSpace::Tcp, "198.18.0.1:7174", false).is_ok());
    }
}
