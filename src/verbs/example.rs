//! Connected queue pairs for the examples of this documentation.

use roce_transport::QpType;

use super::{
    CompletionQueue, ConnectOptions, Context, ProtectionDomain, QueuePair, QueuePairOptions, VerbsError,
};
use crate::device::memory::MemoryDevice;

/// A context with one object of each kind.
#[derive(Debug)]
pub struct End {
    /// The device is one of a pair in memory.
    pub context: Context,
    /// A protection domain of the context.
    pub pd: ProtectionDomain,
    /// The completion queue of the queue pair.
    pub cq: CompletionQueue,
    /// An RC queue pair.
    pub qp: QueuePair,
}

impl End {
    fn new(device: MemoryDevice) -> Result<Self, VerbsError> {
        let context = Context::builder().attach(device)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
        Ok(Self { context, pd, cq, qp })
    }

    /// Returns this end with another queue pair, which is connected to `peer`.
    ///
    /// # Errors
    ///
    /// Fails if `peer` is not in RESET or INIT.
    pub fn towards(self, peer: &QueuePair) -> Result<Self, VerbsError> {
        let qp = self.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &self.cq))?;
        connect(&qp, peer)?;
        Ok(Self { qp, ..self })
    }
}

/// Returns two ends whose queue pairs are connected.
///
/// # Errors
///
/// Fails if the system refuses a descriptor or a thread.
pub fn ends() -> Result<(End, End), VerbsError> {
    let devices = MemoryDevice::pair([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let (near, far) = devices.map_err(VerbsError::io("cannot create devices in memory"))?;
    let (near, far) = (End::new(near)?, End::new(far)?);
    connect(&near.qp, &far.qp)?;
    Ok((near, far))
}

fn connect(near: &QueuePair, far: &QueuePair) -> Result<(), VerbsError> {
    near.connect(&far.endpoint()?, &ConnectOptions::default())?;
    far.connect(&near.endpoint()?, &ConnectOptions::default())
}
