//! The messages and events of a network of an external scheduler.

/// A send or a receive, by its number in the order of the calls of both kinds, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(u64);

impl Handle {
    pub(super) const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// One side of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The send or the receive.
    pub handle: Handle,
    /// The rank of the sender.
    pub from: u32,
    /// The rank of the receiver.
    pub to: u32,
    /// The tag.
    pub tag: u64,
    /// Bytes of payload. The event of a receive has the bytes of its send.
    pub bytes: u64,
}

/// An event for the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEvent {
    /// A send is complete: the acknowledgement of the last byte has arrived at the sender.
    Sent(Message),
    /// A receive is complete: all bytes of its send have arrived at the receiver.
    Received(Message),
    /// The time of a call of [`Network::schedule`](crate::net::Network::schedule) has come.
    Scheduled {
        /// The token of the call.
        token: u64,
    },
}
