//! The outcome of opening a device: errors, and what is available.

use std::fmt;
use std::io;
use std::net::IpAddr;

use roce_machine::interfaces::LocalAddress;

/// The reason why a device could not be opened, and the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The word before the colon is unknown.
    #[error(
        "device `{spec}`: `{kind}` is not a kind of device; use udp:ADDRESS, for example udp:127.0.0.1 (`roce devices` lists \
         all kinds and addresses)"
    )]
    UnknownKind {
        /// The specification.
        spec: String,
        /// The unknown word.
        kind: String,
    },
    /// The kind exists, but is not part of this build.
    #[error(
        "device `{spec}`: this program was built without `{kind}` devices; build it with the cargo feature `{kind}` of the \
         crate roce (the command: cargo build --release --features {kind})"
    )]
    NotBuilt {
        /// The specification.
        spec: String,
        /// The kind.
        kind: String,
    },
    /// A single memory device would have no peer.
    #[error(
        "device `{spec}`: memory devices exist only as a pair inside one program (roce::device::memory::MemoryDevice::pair); \
         between programs, use udp:127.0.0.1 and udp:127.0.0.2"
    )]
    MemoryIsAPair {
        /// The specification.
        spec: String,
    },
    /// Part of the specification is not valid.
    #[error("device `{spec}`: `{item}`: expected {expected}")]
    BadSpec {
        /// The specification.
        spec: String,
        /// The part.
        item: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// The address is a wildcard.
    #[error(
        "device `{spec}`: {address} stands for every address, but the ICRC covers the source address of each packet; choose \
         one address of this machine: {}",
        Listed(.local)
    )]
    Wildcard {
        /// The specification.
        spec: String,
        /// The address.
        address: IpAddr,
        /// The addresses of this machine.
        local: Vec<LocalAddress>,
    },
    /// The address does not belong to this machine.
    #[error("device `{spec}`: this machine does not have the address {address}; it has {}", Listed(.local))]
    AddressNotLocal {
        /// The specification.
        spec: String,
        /// The address.
        address: IpAddr,
        /// The addresses of this machine.
        local: Vec<LocalAddress>,
    },
    /// Another socket is bound to the port.
    #[error(
        "device `{spec}`: UDP port {port} of {address} is taken by another socket: `ss -lunp 'sport = :{port}'` shows its \
         process, or no process if it belongs to the kernel's Soft-RoCE (then `rdma link` shows it). Close that socket, or use \
         another address (on one machine, any of 127.0.0.1 to 127.255.255.254)"
    )]
    PortInUse {
        /// The specification.
        spec: String,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// Other devices share the address, but this one cannot join them.
    #[error("device `{spec}`: UDP port {port} of {address} belongs to devices that share it, but {problem}")]
    NotShared {
        /// The specification.
        spec: String,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The reason and the next step.
        problem: String,
    },
    /// No interface has this name.
    #[error("device `{spec}`: there is no interface `{interface}`; this machine has {known}")]
    NoInterface {
        /// The specification.
        spec: String,
        /// The name.
        interface: String,
        /// The interfaces that could be used.
        known: String,
    },
    /// The interface, the kernel or another program on the interface does not allow the device.
    #[error("device `{spec}`: {problem}")]
    Unsuitable {
        /// The specification.
        spec: String,
        /// The problem and the next step.
        problem: String,
    },
    /// The user lacks a privilege.
    #[error(
        "device `{spec}`: cannot {step} (this needs {privilege}; `--device udp:ADDRESS` needs no privilege)"
    )]
    Privilege {
        /// The specification.
        spec: String,
        /// The refused step.
        step: &'static str,
        /// The privilege that allows it.
        privilege: &'static str,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
    /// The operating system refused a step.
    #[error("device `{spec}`: cannot {step}")]
    System {
        /// The specification.
        spec: String,
        /// The step that failed.
        step: &'static str,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
}

#[cfg(any(feature = "udp", feature = "tap", feature = "kernel-host"))]
impl OpenError {
    /// Returns a function for `map_err`: the operating system refused `step`.
    pub(crate) fn at(spec: &str, step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { spec: spec.to_owned(), step, error }
    }

    /// Returns a function for `map_err`: the operating system refused `step`, which needs `privilege`.
    #[cfg(any(feature = "tap", feature = "kernel-host"))]
    pub(crate) fn unless_privileged(
        spec: &str,
        step: &'static str,
        privilege: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Self::Privilege { spec: spec.to_owned(), step, privilege, error }
            }
            _ => Self::System { spec: spec.to_owned(), step, error },
        }
    }
}

/// Whether a kind of device can be opened by this user on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Usable on these addresses; the list is empty if addresses do not matter.
    Usable(Vec<LocalAddress>),
    /// Not usable; describes the missing part, as a sentence without a full stop.
    Lacks(String),
}

/// A list of addresses as part of a sentence.
struct Listed<'a>(&'a [LocalAddress]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else { return f.write_str("none that is up") };
        write!(f, "{first}")?;
        others.iter().try_for_each(|other| write!(f, ", {other}"))
    }
}
