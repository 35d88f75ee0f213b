//! Decisions of a program instead of those of a switch: ports, queues and marks.

use std::fmt;

use roce_transport::congestion::Custom;

use super::time::Time;

/// What a switch sees of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameView {
    /// Number of the sending host.
    pub source: u32,
    /// Number of the receiving host.
    pub destination: u32,
    /// UDP source port, which hosts derive from the queue pair.
    pub source_port: u16,
    /// Queue of the frame, 0 to 7.
    pub priority: u8,
    /// Bytes on the link, with preamble and gap.
    pub wire_bytes: u32,
    /// Bytes that it adds to a queue: those on the link without preamble and gap.
    pub queue_bytes: u32,
    /// Whether it has payload, which can be trimmed. Acknowledgements and READ requests have none.
    pub has_payload: bool,
    /// Whether a switch removed the payload.
    pub is_trimmed: bool,
}

/// What a switch knows about one of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Number of the port in the network, which never changes.
    pub number: u32,
    /// Rate of the link in bits per second.
    pub rate_bps: u64,
    /// Bytes in all queues of the port.
    pub queued_bytes: u64,
    /// Bytes in the queue of the frame.
    pub own_queue_bytes: u64,
}

/// The decision about a frame that is about to enter a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The frame is queued if the buffer has room, whatever the threshold of trimming. Without room, it is
    /// trimmed or dropped.
    Queue,
    /// Its payload is removed as [`SwitchSettings::trimming`](super::SwitchSettings::trimming) says, and its
    /// headers are queued if the buffer has room. A frame without payload is dropped, and every frame if the
    /// switch does not trim.
    Trim,
    /// The frame is dropped.
    Drop,
}

/// The decisions of one switch. Each returns `None` to leave a decision to the settings of the switch.
///
/// Every switch has its own state, and a decision must depend on nothing else: then the results of a run are
/// the same for any number of threads. Randomness comes from a generator that the rules seed themselves, for
/// example with the number of the switch.
pub trait SwitchRules: fmt::Debug + Send {
    /// Chooses one of several ports for a frame that arrives, as an index into `ports`. All of them are on
    /// shortest paths. An index beyond the end stands for the last port.
    fn choose(&mut self, _now: Time, _frame: &FrameView, _ports: &[PortView]) -> Option<usize> {
        None
    }

    /// Decides whether a frame may enter its queue at the port through which it will leave. `port` is its
    /// state without the frame.
    fn admits(&mut self, _now: Time, _frame: &FrameView, _port: &PortView) -> Option<Admission> {
        None
    }

    /// Decides whether a frame that leaves is marked as having met congestion. `port` is its state without
    /// the frame. Only frames that are ECN-capable can be marked.
    fn marks(&mut self, _now: Time, _frame: &FrameView, _port: &PortView) -> Option<bool> {
        None
    }
}

/// Rules with a name and parameters, made for each switch from its number in the order of the topology.
pub type NamedRules = Custom<u32, Box<dyn SwitchRules>>;
