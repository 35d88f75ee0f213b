//! A key-value service in two tasks: requests and answers are SENDs, and the client fetches a value with a READ.

use std::collections::HashMap;

use roce::verbs::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const MESSAGE: usize = 64;
const RECEIVES: usize = 4;

/// A queue pair, where it completes, and the memory for what arrives.
struct End {
    qp: QueuePair,
    cq: AsyncCompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Result<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64, None)?);
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
        let memory = pd.allocate(4096, Access::LOCAL_WRITE)?;
        Ok(Self { qp, cq: AsyncCompletionQueue::new(cq), memory })
    }

    fn receive(&self, slot: u64) -> Result<()> {
        let at = slot as usize * MESSAGE;
        Ok(self.qp.post_recv(&RecvWr { wr_id: slot, elements: &[self.memory.element(at..at + MESSAGE)] })?)
    }

    fn send(&self, message: &[u8]) -> Result<()> {
        Ok(self.qp.post_send(&SendWr::inline(0, SendOp::Send, message).with_flags(SendFlags::empty()))?)
    }

    /// The next message; its receive is posted again.
    async fn message(&self) -> Result<Vec<u8>> {
        let mut done = [Wc::default()];
        self.cq.poll(&mut done).await?;
        let wc = done[0].result()?;
        let mut message = vec![0; wc.byte_len as usize];
        self.memory.read(wc.wr_id as usize * MESSAGE, &mut message)?;
        self.receive(wc.wr_id)?;
        Ok(message)
    }
}

/// Answers `key=value` with nothing and `key` with address, key and length of the value.
async fn serve(context: Context, listener: CmListener) -> Result<()> {
    let (end, pd) = (End::new(&context)?, context.alloc_pd()?);
    let _connection = listener.accept_async().await?.accept(&end.qp, &ConnectionParameters::default())?;
    (0..RECEIVES as u64).try_for_each(|slot| end.receive(slot))?;
    let mut values: HashMap<Vec<u8>, MemoryRegion> = HashMap::new();
    // The client disconnects at the end, which flushes the receives.
    while let Ok(message) = end.message().await {
        let (key, value) = message.split_at(message.iter().position(|byte| *byte == b'=').unwrap_or(message.len()));
        if let [_, value @ ..] = value {
            let region = pd.register(SharedMemory::from_bytes(value).into(), Access::REMOTE_READ)?;
            values.insert(key.to_vec(), region);
        }
        let place = values.get(key).map(|region| (region.addr(), region.rkey().0, region.len() as u32));
        let (addr, rkey, len) = place.unwrap_or_default();
        end.send(&[&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &len.to_be_bytes()].concat())?;
    }
    Ok(())
}
