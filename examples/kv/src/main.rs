//! A key-value service in two tasks. Requests and answers are SENDs, and the client fetches a value with a
//! READ.

use std::collections::HashMap;
use std::net::SocketAddr;

use roce::verbs::*;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
const MESSAGE: usize = 64;

/// A queue pair with its protection domain, completion queue and memory.
struct End {
    pd: ProtectionDomain,
    qp: QueuePair,
    cq: AsyncCompletionQueue,
    memory: MemoryRegion,
}

impl End {
    fn new(context: &Context) -> Result<Self> {
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(64, None)?);
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq))?;
        let memory = pd.allocate(4096, Access::LOCAL_WRITE)?;
        Ok(Self { pd, qp, cq: AsyncCompletionQueue::new(cq), memory })
    }

    /// Posts a receive for the answer, and sends a message.
    fn send(&self, message: &[u8]) -> Result<()> {
        self.qp.post_recv(&RecvWr { wr_id: 0, elements: &[self.memory.element(0..MESSAGE)] })?;
        Ok(self.qp.post_send(&SendWr::inline(0, SendOp::Send, message).with_flags(SendFlags::empty()))?)
    }

    /// Returns the bytes of the next completion: a received message, or a value that was read.
    async fn next(&self) -> Result<Vec<u8>> {
        let mut done = [Wc::default()];
        self.cq.wait(&mut done).await?;
        let mut bytes = vec![0; done[0].result()?.byte_len as usize];
        self.memory.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Runs the service: stores `key=value`, and answers every request with the location of the value, or with an
/// empty message.
async fn serve(context: Context, listener: CmListener) -> Result<()> {
    let end = End::new(&context)?;
    let mut values: HashMap<String, MemoryRegion> = HashMap::new();
    let _connection = listener.accept_async().await?.accept(&end.qp, &ConnectionParameters::default())?;
    end.qp.post_recv(&RecvWr { wr_id: 0, elements: &[end.memory.element(0..MESSAGE)] })?;
    // The receive is flushed when the client disconnects.
    while let Ok(request) = end.next().await {
        let request = String::from_utf8(request)?;
        let (key, value) = request.split_once('=').unwrap_or((&request, ""));
        if !value.is_empty() {
            let memory = SharedMemory::from_bytes(value.as_bytes());
            values.insert(key.to_owned(), end.pd.register(memory.into(), Access::REMOTE_READ)?);
        }
        let place = values.get(key).map(|value| value.remote(0..value.len())).transpose()?;
        end.send(&place.map_or_else(Vec::new, |place| place.to_bytes().to_vec()))?;
    }
    Ok(())
}

/// Stores or fetches a value. Returns the value that the service has under the key afterwards.
async fn call(end: &End, request: &str) -> Result<String> {
    end.send(request.as_bytes())?;
    let answer = end.next().await?;
    let Some(bytes) = answer.first_chunk() else { return Ok(String::new()) };
    let place = RemoteMemory::from_bytes(bytes);
    end.qp.post_send(&SendWr::new(0, place.read(), &[end.memory.element(0..place.len as usize)]))?;
    Ok(String::from_utf8(end.next().await?)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let (near, far) = (Context::open("udp:127.0.0.3")?, Context::open("udp:127.0.0.4")?);
    let listener = far.listen(PortSpace::Tcp, 7471)?;
    let client = async {
        let end = End::new(&near)?;
        let peer: SocketAddr = "127.0.0.4:7471".parse()?;
        let _connection = near.connect_async(peer, &end.qp, &ConnectionParameters::default()).await?;
        assert_eq!(call(&end, "planet=mercury").await?, "mercury");
        assert_eq!(call(&end, "star=sirius").await?, "sirius");
        assert_eq!(call(&end, "planet").await?, "mercury");
        assert_eq!(call(&end, "comet").await?, "");
        Ok(())
    };
    let (served, called) = tokio::join!(serve(far.clone(), listener), client);
    served.and(called).inspect(|()| println!("every value is the one that was stored"))
}
