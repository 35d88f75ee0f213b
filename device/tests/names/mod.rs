//! The names of the slots of an address.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

/// Binds the names of these slots, as processes that own the slots do.
pub(crate) fn take_names(address: &str, slots: impl Iterator<Item = u16>) -> Vec<OwnedFd> {
    let take = |slot| {
        let name = format!("roce/{address}/{slot}");
        let flags = SocketFlags::CLOEXEC;
        let holder = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&holder, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        listen(&holder, 1).unwrap();
        holder
    };
    slots.map(take).collect()
}
