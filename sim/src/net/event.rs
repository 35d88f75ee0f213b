//! Scheduled events of a network.

use super::frame::FrameId;

/// A scheduled event of one host or switch. Ports and hosts are numbered within the part of the network.
///
/// Simultaneous arrivals at a node come before its other events, in the order of
/// [`TieOrder`](super::ties::TieOrder). That order is their rank in the
/// [`EventQueue`](super::queue::EventQueue). The other events come in the order in which their node
/// scheduled them. Therefore the other contents of the queue do not affect a node, and no result depends on
/// the division into parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The last bit of a frame arrives at a port.
    Arrive { port: u32, frame: FrameId },
    /// A host has received a frame.
    Taken { host: u32, frame: FrameId },
    /// The link of a port is free. `next` is the frame that would be sent if nothing changed until then, or
    /// [`FrameId::NONE`]. The handle is only used to prefetch the frame.
    Free { port: u32, next: FrameId },
    /// An engine reaches its next deadline.
    Timer { host: u32 },
    /// A thread of the application of a host makes a step, unless it has been woken earlier.
    Thread { host: u32, thread: u32 },
    /// The computation of a task of a host ends.
    Task { host: u32, task: u32 },
    /// The transfer of a task of a host has left through the scale-up network.
    ScaledUp { host: u32, task: u32 },
    /// The first bit of a transfer arrives through the scale-up network. `task` is its number in the
    /// schedule.
    ScaleUpBegins { host: u32, task: u32 },
    /// The last bit of such a transfer has arrived.
    ScaleUpEnds { host: u32, task: u32 },
    /// A pause may have expired.
    PauseEnds { port: u32, priority: u8 },
    /// A pause that this port requested may need a refresh.
    PauseRefresh { port: u32, priority: u8 },
    /// A pause may have lasted too long.
    Watchdog { port: u32, priority: u8 },
    /// The watchdog enables a queue again.
    Restore { port: u32, priority: u8 },
    /// A frame that is held to be overtaken must leave, because no later frame can overtake it any more.
    Release { port: u32, frame: FrameId },
}

impl Event {
    /// Returns the number of the port or host.
    #[inline]
    pub(super) fn place(self) -> u32 {
        match self {
            Self::Arrive { port: place, .. }
            | Self::Taken { host: place, .. }
            | Self::Free { port: place, .. }
            | Self::Timer { host: place }
            | Self::Thread { host: place, .. }
            | Self::Task { host: place, .. }
            | Self::ScaledUp { host: place, .. }
            | Self::ScaleUpBegins { host: place, .. }
            | Self::ScaleUpEnds { host: place, .. }
            | Self::PauseEnds { port: place, .. }
            | Self::PauseRefresh { port: place, .. }
            | Self::Watchdog { port: place, .. }
            | Self::Restore { port: place, .. }
            | Self::Release { port: place, .. } => place,
        }
    }

    /// Returns the frame, or [`FrameId::NONE`].
    #[inline]
    pub(super) fn frame(self) -> FrameId {
        match self {
            Self::Arrive { frame, .. }
            | Self::Free { next: frame, .. }
            | Self::Taken { frame, .. }
            | Self::Release { frame, .. } => frame,
            _ => FrameId::NONE,
        }
    }
}
