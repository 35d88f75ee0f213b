//! Ports of the identifiers of this process. Conflicts with other processes show when a listener opens its
//! port.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use roce::verbs::PortSpace;

use crate::answer::Errno;

/// First port of the range for applications that do not specify one.
const FIRST_CHOSEN_PORT: u16 = 0xc000;
/// Maximum number of ports to try for an identifier without a given port.
const MOST_PORTS_TRIED: u32 = 64;

/// Returns an unpredictable number.
pub(super) fn random() -> u32 {
    RandomState::new().hash_one(0_u8) as u32
}

/// Returns a port for an application that did not specify one.
fn chosen_port() -> u16 {
    FIRST_CHOSEN_PORT | random() as u16
}

/// The requested binding of an identifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) port_space: PortSpace,
    /// Address; port 0 selects a free port.
    pub(super) address: SocketAddr,
    /// Whether the address belongs to no device and so represents every address.
    pub(super) is_any: bool,
    /// Whether the binding is limited to its family (`RDMA_OPTION_ID_AFONLY`), which always holds for IPv4.
    pub(super) is_family_only: bool,
    /// Whether `RDMA_OPTION_ID_REUSEADDR` was set before the binding.
    pub(super) is_shared: bool,
}

/// The port of an identifier, until the identifier is destroyed.
pub(super) struct BoundPort {
    binding: Binding,
    /// Whether the port belongs to a listener, which does not share it.
    is_listening: AtomicBool,
}

/// The ports of the existing identifiers.
#[derive(Default)]
pub(super) struct BoundPorts(HashMap<(PortSpace, u16), Vec<Weak<BoundPort>>>);

impl BoundPorts {
    /// Binds an identifier to a port; port 0 selects a free one.
    ///
    /// # Errors
    ///
    /// Fails like [`conflict`](Self::conflict).
    pub(super) fn bind(&mut self, mut binding: Binding) -> Result<Arc<BoundPort>, Errno> {
        if binding.address.port() != 0 {
            return self.bind_named(binding);
        }
        let mut outcome = Err(Errno(libc::EADDRNOTAVAIL));
        for _ in 0..MOST_PORTS_TRIED {
            binding.address.set_port(chosen_port());
            // A chosen port is never shared.
            outcome = self.bind_named(Binding { is_shared: false, ..binding });
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn bind_named(&mut self, binding: Binding) -> Result<Arc<BoundPort>, Errno> {
        self.conflict(&binding, binding.is_shared, None)?;
        let bound = Arc::new(BoundPort { binding, is_listening: AtomicBool::new(false) });
        let key = (binding.port_space, binding.address.port());
        let known = self.0.entry(key).or_default();
        known.push(Arc::downgrade(&bound));
        Ok(bound)
    }

    /// Turns a bound port into that of a listener, which no longer shares it.
    ///
    /// # Errors
    ///
    /// Fails like [`conflict`](Self::conflict).
    pub(super) fn listen(&mut self, bound: &Arc<BoundPort>) -> Result<(), Errno> {
        if bound.binding.is_shared {
            self.conflict(&bound.binding, false, Some(bound))?;
        }
        bound.is_listening.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Checks for another identifier with this address and port.
    ///
    /// # Errors
    ///
    /// Fails as in the kernel: with `EADDRINUSE` if another identifier has this address, with `EADDRNOTAVAIL`
    /// if one of the two addresses represents every address. Two bindings of different families do not
    /// conflict if both are limited to their family. Two bindings that share their port do not conflict
    /// unless one of them listens.
    fn conflict(
        &mut self,
        wanted: &Binding,
        is_shared: bool,
        own: Option<&Arc<BoundPort>>,
    ) -> Result<(), Errno> {
        let key = (wanted.port_space, wanted.address.port());
        let Some(known) = self.0.get_mut(&key) else { return Ok(()) };
        known.retain(|known| known.strong_count() > 0);
        for known in known.iter().filter_map(Weak::upgrade) {
            if own.is_some_and(|own| Arc::ptr_eq(own, &known)) {
                continue;
            }
            let other = &known.binding;
            let is_sharing = is_shared && other.is_shared && !known.is_listening.load(Ordering::Relaxed);
            let is_other_family = wanted.address.is_ipv4() != other.address.is_ipv4();
            if is_sharing || is_other_family && wanted.is_family_only && other.is_family_only {
                continue;
            }
            if wanted.is_any || other.is_any {
                return Err(Errno(libc::EADDRNOTAVAIL));
            }
            if wanted.address.ip() == other.address.ip() {
                return Err(Errno(libc::EADDRINUSE));
            }
        }
        if known.is_empty() {
            self.0.remove(&key);
        }
        Ok(())
    }
}

impl BoundPort {
    /// Returns the address with the port.
    pub(super) fn address(&self) -> SocketAddr {
        self.binding.address
    }

    /// Returns this binding with port 0, which selects another port.
    pub(super) fn with_chosen_port(&self) -> Binding {
        let mut binding = self.binding;
        binding.address.set_port(0);
        binding
    }

    /// Returns whether a listener with this binding accepts requests for this address of a device.
    pub(super) fn takes(&self, own: std::net::IpAddr) -> bool {
        let binding = &self.binding;
        if binding.is_any {
            !binding.is_family_only || binding.address.is_ipv4() == own.is_ipv4()
        } else {
            binding.address.ip() == own
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(port_space: PortSpace, text: &str, is_shared: bool) -> Binding {
        let address: SocketAddr = text.parse().unwrap();
        let is_any = address.ip().is_unspecified();
        Binding { port_space, address, is_any, is_family_only: address.is_ipv4(), is_shared }
    }

    #[test]
    fn a_port_belongs_to_one_identifier_as_long_as_that_exists() {
        let mut ports = BoundPorts::default();
        let mut bind = |space, text, is_shared| ports.bind(binding(space, text, is_shared));
        let first = bind(PortSpace::Tcp, "198.18.0.1:7174", false).unwrap();
        let refused = |outcome: Result<Arc<BoundPort>, Errno>| outcome.err().unwrap().0;
        assert_eq!(refused(bind(PortSpace::Tcp, "198.18.0.1:7174", true)), libc::EADDRINUSE);
        assert_eq!(refused(bind(PortSpace::Tcp, "0.0.0.0:7174", false)), libc::EADDRNOTAVAIL);
        assert_eq!(refused(bind(PortSpace::Tcp, "[::]:7174", false)), libc::EADDRNOTAVAIL);
        let others = [
            bind(PortSpace::Tcp, "198.18.0.1:7175", true),
            bind(PortSpace::Tcp, "198.18.0.2:7174", false),
            bind(PortSpace::Udp, "198.18.0.1:7174", false),
            bind(PortSpace::Tcp, "[2001:db8::1]:7174", false),
            bind(PortSpace::Tcp, "198.18.0.1:7175", true),
            bind(PortSpace::Tcp, "198.18.0.1:0", false),
        ];
        assert!(others.iter().all(Result::is_ok));
        assert_ne!(others[5].as_ref().unwrap().address().port(), 0);
        drop(first);
        assert!(bind(PortSpace::Tcp, "198.18.0.1:7174", false).is_ok());
    }

    #[test]
    fn the_wildcard_of_one_family_only_leaves_the_other_one() {
        let mut ports = BoundPorts::default();
        let wildcard = Binding { is_family_only: true, ..binding(PortSpace::Tcp, "[::]:7174", false) };
        let both = [ports.bind(wildcard), ports.bind(binding(PortSpace::Tcp, "0.0.0.0:7174", false))];
        let [six, four] = both.map(Result::unwrap);
        let (of_six, of_four) = ("2001:db8::1".parse().unwrap(), "198.18.0.1".parse().unwrap());
        assert!(six.takes(of_six) && !six.takes(of_four));
        assert!(four.takes(of_four) && !four.takes(of_six));
    }

    #[test]
    fn a_listener_does_not_share_its_port() {
        let mut ports = BoundPorts::default();
        let shared = binding(PortSpace::Tcp, "198.18.0.1:7174", true);
        let (first, second) = (ports.bind(shared).unwrap(), ports.bind(shared).unwrap());
        assert_eq!(ports.listen(&first), Err(Errno(libc::EADDRINUSE)));
        drop(second);
        assert_eq!(ports.listen(&first), Ok(()));
        assert_eq!(ports.bind(shared).err(), Some(Errno(libc::EADDRINUSE)));
    }
}
