//! What is scheduled in a network.

use super::frame::FrameId;

/// A scheduled event of one host or switch. Ports and hosts are those of the part of the network.
///
/// Of the events of one time and node, arrivals come first, in the order of the ports of the whole network: that is their rank in
/// the [`EventQueue`](super::queue::EventQueue). The others come in the order in which their node scheduled them. So no node can see what else is in
/// the queue, and no result depends on the parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The last bit of a frame arrives at a port.
    Arrive { port: u32, frame: FrameId },
    /// A host has received a frame.
    Taken { host: u32, frame: FrameId },
    /// The link of a port is free. The frame is the one that would be sent if nothing changed until then, or
    /// [`FrameId::NONE`]; it is only fetched before the event.
    Free { port: u32, next: FrameId },
    /// The next deadline of an engine.
    Timer { host: u32 },
    /// The computation of a task of a host ends.
    Task { host: u32, task: u32 },
    /// A pause may have expired.
    PauseEnds { port: u32, priority: u8 },
    /// A pause that this port requested may need a refresh.
    PauseRefresh { port: u32, priority: u8 },
    /// A pause may have lasted too long.
    Watchdog { port: u32, priority: u8 },
    /// The watchdog enables a queue again.
    Restore { port: u32, priority: u8 },
    /// From this time on, nothing can overtake a frame that waits to be overtaken.
    Release { port: u32, frame: FrameId },
}

impl Event {
    /// The number of the port or host.
    #[inline]
    pub(super) fn place(self) -> u32 {
        match self {
            Self::Arrive { port: place, .. }
            | Self::Taken { host: place, .. }
            | Self::Free { port: place, .. }
            | Self::Timer { host: place }
            | Self::Task { host: place, .. }
            | Self::PauseEnds { port: place, .. }
            | Self::PauseRefresh { port: place, .. }
            | Self::Watchdog { port: place, .. }
            | Self::Restore { port: place, .. }
            | Self::Release { port: place, .. } => place,
        }
    }

    /// The frame, or [`FrameId::NONE`].
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
