//! The verbs objects of a tool with one queue pair.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use roce::verbs::{
    Access, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QpAttr, QpCapabilities, QpState,
    QpType, QueuePair, QueuePairOptions, RecvWr, SendOp, SendWr, VerbsError, WaitError, Wc, WcStatus,
};

use crate::tool_error::ToolError;

/// Bytes of the global route header in front of messages that a UD queue pair receives.
pub const GRH: usize = 40;

/// The completion queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionQueues {
    /// One queue for sends and receives.
    Shared,
    /// One queue for sends and one for receives.
    Separate,
    /// One queue for sends and one for receives, each with a completion channel.
    WithChannels,
}

/// The requirements of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    /// The transport of the queue pair.
    pub qp_type: QpType,
    /// The sizes of its queues.
    pub capabilities: QpCapabilities,
    /// Its completion queues.
    pub completion_queues: CompletionQueues,
    /// Bytes of the memory region.
    pub memory: usize,
    /// Remote access to the memory region and through the queue pair.
    pub access: Access,
}

/// A queue pair with its completion queues and a memory region for its messages.
#[derive(Debug)]
pub struct Resources {
    /// The queue pair.
    pub qp: QueuePair,
    /// The completion queue of sends.
    pub send_cq: CompletionQueue,
    /// The completion queue of receives.
    pub recv_cq: CompletionQueue,
    /// The memory of the messages.
    pub region: MemoryRegion,
    access: Access,
    pd: ProtectionDomain,
}

impl Resources {
    /// Creates the objects. The queue pair is not connected.
    ///
    /// # Errors
    ///
    /// The context cannot create an object, for example because of a limit.
    pub fn new(context: &Context, requirements: &Requirements) -> Result<Self, VerbsError> {
        let Requirements { qp_type, capabilities, completion_queues, memory, access } = *requirements;
        let pd = context.alloc_pd()?;
        let create_cq = |depth: usize| {
            let with_channel = completion_queues == CompletionQueues::WithChannels;
            let channel = if with_channel { Some(context.create_channel()?) } else { None };
            context.create_cq(depth, channel.as_ref())
        };
        let (sends, receives) = (capabilities.max_send_wr, capabilities.max_recv_wr);
        let (send_cq, recv_cq) = if completion_queues == CompletionQueues::Shared {
            let cq = create_cq(sends + receives)?;
            (cq.clone(), cq)
        } else {
            (create_cq(sends)?, create_cq(receives)?)
        };
        let region = pd.allocate(memory, Access::LOCAL_WRITE | access)?;
        let options = QueuePairOptions::new(qp_type, &send_cq).recv_cq(&recv_cq).capabilities(capabilities);
        let qp = pd.create_qp(&options)?;
        Ok(Self { qp, send_cq, recv_cq, region, access, pd })
    }

    /// Returns the context of the objects.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Posts receives `0..count` of `len` bytes each, before the queue pair is connected. The first message
    /// of the peer then finds a receive.
    ///
    /// # Errors
    ///
    /// The queue pair has left its first state, or the receives do not fit into its queue or region.
    pub fn post_receives_early(&self, start: usize, count: usize, len: usize) -> Result<(), VerbsError> {
        self.qp.modify(&QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(self.access),
            ..QpAttr::to_state(QpState::Init)
        })?;
        (0..count).try_for_each(|slot| {
            let at = start + slot * len;
            self.post_receive(slot as u64, at..at + len)
        })
    }

    /// Posts a receive for `range` of the region.
    ///
    /// # Errors
    ///
    /// The receive queue is full.
    pub fn post_receive(&self, wr_id: u64, range: Range<usize>) -> Result<(), VerbsError> {
        self.qp.post_recv(&RecvWr { wr_id, elements: &[self.region.element(range)] })
    }

    /// Posts a signaled request whose bytes are at `range` of the region.
    ///
    /// # Errors
    ///
    /// The send queue is full, or the queue pair cannot send.
    pub fn post(&self, wr_id: u64, op: SendOp, range: Range<usize>) -> Result<(), VerbsError> {
        self.qp.post_send(&SendWr::new(wr_id, op, &[self.region.element(range)]))
    }

    /// Writes bytes into the region.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        put(&self.region, at, bytes);
    }

    /// Returns `len` bytes of the region.
    #[must_use]
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        take(&self.region, at, &mut bytes);
        bytes
    }

    /// Returns the cause of a failed completion. A flush follows from another failure, whose completion may
    /// be in the other queue.
    #[must_use]
    pub fn reason(&self, failed: &Wc) -> Wc {
        if failed.status != WcStatus::WrFlushError {
            return *failed;
        }
        let mut others = [Wc::default(); 64];
        for cq in [&self.send_cq, &self.recv_cq] {
            while let Ok(count @ 1..) = cq.poll(&mut others) {
                let is_reason = |wc: &&Wc| !matches!(wc.status, WcStatus::Success | WcStatus::WrFlushError);
                if let Some(reason) = others.iter().take(count).find(is_reason) {
                    return *reason;
                }
            }
        }
        *failed
    }

    /// Waits for one completion of either kind, with shared completion queues.
    ///
    /// # Errors
    ///
    /// No completion arrived in time, or the device failed.
    pub fn wait(&self, timeout: Duration) -> Result<Wc, WaitError> {
        let mut completions = [Wc::default()];
        self.recv_cq.wait(&mut completions, Some(timeout))?;
        Ok(completions[0])
    }
}

/// Returns the address of the selected GID, or of the first GID.
///
/// # Errors
///
/// The device has no GID with this index.
pub fn source_address(context: &Context, gid_index: Option<usize>) -> Result<IpAddr, ToolError> {
    context.gid_address(gid_index).ok_or_else(|| {
        let index = gid_index.unwrap_or(0);
        ToolError::Plan(format!("the device has no GID {index}; `roce devices -v` lists GIDs"))
    })
}

/// Writes into a region.
pub fn put(region: &MemoryRegion, at: usize, bytes: &[u8]) {
    let written = region.write(at, bytes);
    debug_assert!(written.is_ok(), "messages lie inside their regions");
}

/// Reads from a region.
pub fn take(region: &MemoryRegion, at: usize, out: &mut [u8]) {
    let read = region.read(at, out);
    debug_assert!(read.is_ok(), "messages lie inside their regions");
}
