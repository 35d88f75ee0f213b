//! The addresses that a server may send packets to.

use std::net::IpAddr;

use crate::error::ExchangeError;

/// The addresses that a server sends packets to for one client. They are the address that the client calls
/// from, which has answered the TCP handshake, and those that the user of the server allows. Otherwise a
/// client could name another address, and make the server send packets to a host that did not ask for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddresses {
    caller: IpAddr,
    allowed: Allowed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    These(Vec<IpAddr>),
    Any,
}

impl PeerAddresses {
    /// Allows only the address that a client calls from.
    #[must_use]
    pub fn of_caller(caller: IpAddr) -> Self {
        Self { caller: caller.to_canonical(), allowed: Allowed::These(Vec::new()) }
    }

    /// Allows these addresses, too.
    #[must_use]
    pub fn and(mut self, others: &[IpAddr]) -> Self {
        if let Allowed::These(allowed) = &mut self.allowed {
            allowed.extend(others.iter().map(IpAddr::to_canonical));
        }
        self
    }

    /// Allows every address, for a trusted peer such as another process of the same program.
    #[must_use]
    pub fn or_any(mut self) -> Self {
        self.allowed = Allowed::Any;
        self
    }

    /// Checks an address that the client named for its packets. An IPv4-mapped address stands for the IPv4
    /// address.
    ///
    /// # Errors
    ///
    /// The address is neither the client's nor allowed.
    pub fn check(&self, named: IpAddr) -> Result<(), ExchangeError> {
        let named = named.to_canonical();
        let is_allowed = match &self.allowed {
            Allowed::These(allowed) => named == self.caller || allowed.contains(&named),
            Allowed::Any => true,
        };
        if is_allowed { Ok(()) } else { Err(ExchangeError::NotThePeer { named, peer: self.caller }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_the_address_of_the_caller_and_allowed_ones_pass() {
        let peers = PeerAddresses::of_caller(address("::ffff:198.18.0.1")).and(&[address("2001:db8::1")]);
        for named in ["198.18.0.1", "::ffff:198.18.0.1", "2001:db8::1"] {
            assert!(peers.check(address(named)).is_ok(), "{named}");
        }
        for named in [
            "198.18.0.2",
            "::ffff:198.18.0.2",
            "2001:db8::2",
            "::198.18.0.1",
            "0.0.0.0",
            "::",
            "255.255.255.255",
        ] {
            let error = peers.check(address(named)).unwrap_err().to_string();
            let canonical = address(named).to_canonical().to_string();
            assert!(error.contains(&canonical) && error.contains("--allow-peer"), "{error}");
        }
        assert!(peers.or_any().check(address("198.18.0.9")).is_ok());
    }
}
