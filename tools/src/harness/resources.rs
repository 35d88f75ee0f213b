//! The verbs objects of a tool with one queue pair.

use std::ops::Range;
use std::time::Duration;

use roce::verbs::{
    Access, CompletionQueue, Context, MemoryRegion, ProtectionDomain, QpAttr, QpCapabilities, QpState,
    QpType, QueuePair, QueuePairOptions, RecvWr, SendOp, SendWr, VerbsError, WaitError, Wc, WcStatus,
};

/// The completion queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionQueues {
    /// One queue for sends and receives.
    Shared,
    /// One queue for sends and one for receives.
    Separate,
    /// One queue for sends and one for receives, each with a completion channel.
    WithChannels,
}

/// The requirements of a tool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requirements {
    pub(crate) qp_type: QpType,
    pub(crate) capabilities: QpCapabilities,
    pub(crate) completion_queues: CompletionQueues,
    /// Bytes of the memory region.
    pub(crate) memory: usize,
    /// Remote access to the memory region and through the queue pair.
    pub(crate) access: Access,
}

/// A queue pair with its completion queues and a memory region for its messages.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) qp: QueuePair,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    access: Access,
    pd: ProtectionDomain,
}

impl Resources {
    pub(crate) fn new(context: &Context, requirements: &Requirements) -> Result<Self, VerbsError> {
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

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Posts receives `0..count` of `len` bytes each, before the queue pair is connected. The first message
    /// of the peer then finds a receive.
    pub(crate) fn post_receives_early(
        &self,
        start: usize,
        count: usize,
        len: usize,
    ) -> Result<(), VerbsError> {
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

    pub(crate) fn post_receive(&self, wr_id: u64, range: Range<usize>) -> Result<(), VerbsError> {
        self.qp.post_recv(&RecvWr { wr_id, elements: &[self.region.element(range)] })
    }

    /// Posts a signaled request whose bytes are at `range` of the region.
    pub(crate) fn post(&self, wr_id: u64, op: SendOp, range: Range<usize>) -> Result<(), VerbsError> {
        self.qp.post_send(&SendWr::new(wr_id, op, &[self.region.element(range)]))
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        put(&self.region, at, bytes);
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        take(&self.region, at, &mut bytes);
        bytes
    }

    /// Returns the cause of a failed completion. A flush follows from another failure, whose completion may
    /// be in the other queue.
    pub(crate) fn reason(&self, failed: &Wc) -> Wc {
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
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Wc, WaitError> {
        let mut completions = [Wc::default()];
        self.recv_cq.wait(&mut completions, Some(timeout))?;
        Ok(completions[0])
    }
}

/// Writes into a region.
pub(crate) fn put(region: &MemoryRegion, at: usize, bytes: &[u8]) {
    let written = region.write(at, bytes);
    debug_assert!(written.is_ok(), "messages lie inside their regions");
}

/// Reads from a region.
pub(crate) fn take(region: &MemoryRegion, at: usize, out: &mut [u8]) {
    let read = region.read(at, out);
    debug_assert!(read.is_ok(), "messages lie inside their regions");
}
