//! Two devices of one process, UDP on loopback, with queue pairs between them.

use std::net::Ipv4Addr;
use std::time::Duration;

use roce::verbs::{
    Access, CompletionChannel, CompletionQueue, ConnectOptions, Context, MemoryRegion, ProtectionDomain,
    QpCapabilities, QpType, QueuePair, QueuePairOptions, SendOp, SendWr, Wc,
};
use roce_testing::own_address;

use super::outcome::Outcome;

/// One end of a connection.
pub(crate) struct Side {
    pub(crate) cq: CompletionQueue,
    pub(crate) channel: CompletionChannel,
    pub(crate) region: MemoryRegion,
    pd: ProtectionDomain,
}

impl Side {
    pub(crate) fn new() -> Outcome<Self> {
        Self::on(own_address())
    }

    /// Opens a device on this address, which other processes may use too.
    pub(crate) fn on(address: Ipv4Addr) -> Outcome<Self> {
        let context = Context::open(&format!("udp:{address}"))?;
        let (pd, channel) = (context.alloc_pd()?, context.create_channel()?);
        let cq = context.create_cq(64, Some(&channel))?;
        let region = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self { cq, channel, region, pd })
    }

    pub(crate) fn queue_pair(&self, capabilities: QpCapabilities) -> Outcome<QueuePair> {
        Ok(self.pd.create_qp(&QueuePairOptions::new(QpType::Rc, &self.cq).capabilities(capabilities))?)
    }
}

/// Creates two connected queue pairs.
pub(crate) fn connect(near: &Side, far: &Side, capabilities: QpCapabilities) -> Outcome<[QueuePair; 2]> {
    let pair = [near.queue_pair(capabilities)?, far.queue_pair(capabilities)?];
    pair[0].connect(&pair[1].endpoint()?, &ConnectOptions::default())?;
    pair[1].connect(&pair[0].endpoint()?, &ConnectOptions::default())?;
    Ok(pair)
}

/// Checks a connection: writes eight bytes to the far side's memory and reads them there.
pub(crate) fn check(near: &Side, far: &Side, qp: &QueuePair, value: u64) -> Outcome<()> {
    near.region.write(0, &value.to_le_bytes())?;
    let op = SendOp::Write { remote_addr: far.region.addr(), rkey: far.region.rkey() };
    qp.post_send(&SendWr::new(value, op, &[near.region.element(0..8)]))?;
    let mut done = [Wc::default()];
    near.cq.wait(&mut done, Some(Duration::from_secs(10)))?;
    done[0].result()?;
    let mut found = [0; 8];
    far.region.read(0, &mut found)?;
    if done[0].wr_id != value || found != value.to_le_bytes() {
        return Err("the message did not arrive".into());
    }
    Ok(())
}
