//! An echo service for the highest rate of small requests, in the style of eRPC: one thread at each end, a
//! few queue pairs, and several requests in flight on each.
//!
//! The rate of small messages depends on what is done once for many of them. This program therefore does
//! everything in batches, and each choice has its reason:
//!
//! | choice | reason |
//! |---|---|
//! | one completion queue for all queue pairs and both directions | one poll finds everything that has happened; several queues cost a poll each, most of them without a completion |
//! | polls of up to [`BATCH`] completions, which is all that can be there | the lock and the check of the device are paid once for all of them, and messages that arrived together are answered together |
//! | [`DEPTH`] requests in flight on each queue pair | one request at a time is limited by the round trip, and lets neither end form batches |
//! | more receives than requests in flight are not needed, because a request is sent only after a response came | the receiver is always ready, so there are no RNR NAKs |
//! | receives are posted again after each poll, all together, and before the answers leave | the next request follows an answer, so its receive is there in time |
//! | messages are inline | the bytes are copied when they are posted, so there is no buffer to manage; memory of a few cache lines is copied faster than it is looked up |
//! | a list of sends for each queue pair | the packets of a list leave in one burst, with one system call |
//! | one of [`DEPTH`] sends is signaled | completions are in order, so one releases the places of all before it; fewer completions leave room for receives in a poll |
//! | each end polls, and no thread sleeps | a message is handled by the thread that receives it. With events, each batch costs a wake-up; use them if requests are rare |
//! | one UDP source port (`source_ports=0`) | the packets of all queue pairs share superpackets and system calls. The price: they take one path through a network that has several, and go to one queue of the NIC |
//! | a device and a thread for each end | an engine has one lock. More threads want more engines ([`ContextBuilder::engines`]) or devices, not more queue pairs |
//!
//! `cargo run --release --example request_rate` prints the rate. Both ends are in one process here; with two
//! processes, exchange the [`Endpoint`]s over TCP.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

#[cfg(doc)]
use roce::verbs::ContextBuilder;
use roce::verbs::{
    Access, CompletionQueue, ConnectOptions, Context, Endpoint, MemoryRegion, Payload, QpCapabilities,
    QpType, QueuePair, QueuePairOptions, RecvWr, SendFlags, SendOp, SendWr, Wc,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Queue pairs. Several show that one poll serves all; a queue pair more does not raise the rate by itself.
const SESSIONS: usize = 4;
/// Requests in flight on each queue pair.
const DEPTH: usize = 16;
/// Completions of one poll.
const BATCH: usize = 2 * SESSIONS * DEPTH;
/// Bytes of a message.
const SIZE: usize = 32;
/// Marks the identifiers of sends. Those of receives are the number of their buffer.
const SENT: u64 = 1 << 63;

type Message = [u8; SIZE];

/// Returns a request: its session and number, and bytes that depend on both.
fn request(session: usize, number: u64) -> Message {
    let mut message = [number as u8 ^ session as u8 ^ 0x5a; SIZE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message[8..12].copy_from_slice(&(session as u32).to_le_bytes());
    message
}

/// One end of all sessions.
struct End {
    pairs: Vec<QueuePair>,
    cq: CompletionQueue,
    /// The buffers of the receives: [`DEPTH`] for each session.
    buffers: MemoryRegion,
    completions: [Wc; BATCH],
    /// Sends of each session so far.
    sent: [u64; SESSIONS],
}

impl End {
    fn open(device: &str) -> Result<Self> {
        let context = Context::open(device)?;
        let pd = context.alloc_pd()?;
        // Room for all receives and all signaled sends, so that the queue never overflows.
        let cq = context.create_cq(4 * SESSIONS * DEPTH, None)?;
        let buffers = pd.allocate(SESSIONS * DEPTH * SIZE, Access::LOCAL_WRITE)?;
        // A send keeps its place until a later signaled one has completed. Its acknowledgement may come after
        // the response, so the queue has room for several rounds.
        let capabilities = QpCapabilities {
            max_send_wr: 4 * DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: SIZE,
        };
        let options = QueuePairOptions::new(QpType::Rc, &cq).capabilities(capabilities);
        let pairs = (0..SESSIONS).map(|_| pd.create_qp(&options)).collect::<std::result::Result<_, _>>()?;
        Ok(Self { pairs, cq, buffers, completions: [Wc::default(); BATCH], sent: [0; SESSIONS] })
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>> {
        self.pairs.iter().map(|pair| Ok(pair.endpoint()?)).collect()
    }

    /// Connects to the other end. The receives are posted first, so that its first request finds one.
    fn connect(&self, peers: &[Endpoint]) -> Result<()> {
        for (session, (pair, peer)) in self.pairs.iter().zip(peers).enumerate() {
            pair.initialize()?;
            (session * DEPTH..(session + 1) * DEPTH).try_for_each(|buffer| self.post_receive(buffer))?;
            pair.connect(peer, &ConnectOptions::default())?;
        }
        Ok(())
    }

    fn post_receive(&self, buffer: usize) -> Result<()> {
        let elements = &[self.buffers.element(buffer * SIZE..(buffer + 1) * SIZE)];
        Ok(self.pairs[buffer / DEPTH].post_recv(&RecvWr { wr_id: buffer as u64, elements })?)
    }

    /// Polls once. Appends the messages of each session in their order, and posts their receives again.
    fn take(&mut self, arrived: &mut [Vec<Message>; SESSIONS]) -> Result<()> {
        let count = self.cq.poll(&mut self.completions)?;
        for wc in &self.completions[..count] {
            let buffer = wc.result()?.wr_id;
            if buffer & SENT != 0 {
                continue;
            }
            if wc.byte_len as usize != SIZE {
                return Err(format!("a message has {} bytes instead of {SIZE}", wc.byte_len).into());
            }
            let mut message = [0; SIZE];
            self.buffers.read(buffer as usize * SIZE, &mut message)?;
            arrived[buffer as usize / DEPTH].push(message);
        }
        let receives = self.completions[..count].iter().filter(|wc| wc.wr_id & SENT == 0);
        receives.map(|wc| wc.wr_id as usize).try_for_each(|buffer| self.post_receive(buffer))
    }

    /// Sends messages on a session, at most [`DEPTH`], as one list.
    fn send(&mut self, session: usize, messages: &[Message]) -> Result<()> {
        let mut list = [SendWr::new(SENT, SendOp::Send, &[]); DEPTH];
        let Some(list) = list.get_mut(..messages.len()) else {
            return Err("more messages than in flight".into());
        };
        for (wr, message) in list.iter_mut().zip(messages) {
            self.sent[session] += 1;
            let is_signaled = self.sent[session].is_multiple_of(DEPTH as u64);
            wr.flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            wr.payload = Payload::Inline(message);
        }
        Ok(self.pairs[session].post_send_list(list)?)
    }
}

/// Answers `each` requests of each session with the same bytes, unless the other end fails.
fn serve(end: &mut End, each: u64, has_failed: &AtomicBool) -> Result<()> {
    let mut arrived: [Vec<Message>; SESSIONS] = Default::default();
    while end.sent.iter().any(|sent| *sent < each) && !has_failed.load(Ordering::Relaxed) {
        end.take(&mut arrived)?;
        for (session, messages) in arrived.iter_mut().enumerate() {
            if !messages.is_empty() {
                end.send(session, messages)?;
                messages.clear();
            }
        }
    }
    Ok(())
}

/// Sends `each` requests on each session and checks the responses. Returns their number.
fn call(end: &mut End, each: u64, has_failed: &AtomicBool) -> Result<u64> {
    let (mut checked, mut arrived) = ([0; SESSIONS], <[Vec<Message>; SESSIONS]>::default());
    while checked.iter().any(|checked| *checked < each) {
        for (session, checked) in checked.iter().enumerate() {
            let free = (checked + DEPTH as u64).min(each);
            let requests: Vec<Message> =
                (end.sent[session]..free).map(|number| request(session, number)).collect();
            if !requests.is_empty() {
                end.send(session, &requests)?;
            }
        }
        end.take(&mut arrived)?;
        for (session, messages) in arrived.iter_mut().enumerate() {
            for message in messages.drain(..) {
                if message != request(session, checked[session]) {
                    return Err(format!("response {} of session {session} is wrong", checked[session]).into());
                }
                checked[session] += 1;
            }
        }
        if has_failed.load(Ordering::Relaxed) {
            return Err("the server has failed".into());
        }
    }
    Ok(checked.iter().sum())
}

/// Exchanges `each` requests and responses on each session between two devices. Returns the number of checked
/// responses and the seconds that they took.
fn exchange(devices: [&str; 2], each: u64) -> Result<(u64, f64)> {
    let (mut client, mut server) = (End::open(devices[0])?, End::open(devices[1])?);
    server.connect(&client.endpoints()?)?;
    client.connect(&server.endpoints()?)?;
    let has_failed = AtomicBool::new(false);
    let failing = |outcome: &Result<_>| has_failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let served = serve(&mut server, each, &has_failed).map(|()| 0);
            failing(&served);
            served
        });
        let begun = Instant::now();
        let called = call(&mut client, each, &has_failed);
        let elapsed = begun.elapsed().as_secs_f64();
        failing(&called);
        serving.join().map_err(|_| "the server panicked")??;
        Ok((called?, elapsed))
    })
}

fn main() -> Result<()> {
    let (responses, seconds) =
        exchange(["udp:127.0.0.1,source_ports=0", "udp:127.0.0.2,source_ports=0"], 100_000)?;
    println!("{responses} responses are right, {:.0} per second", responses as f64 / seconds);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests are not a multiple of those in flight, so the last sends are not signaled.
    #[test]
    fn every_request_of_the_example_is_answered_with_its_bytes() {
        let devices = [(); 2].map(|()| format!("udp:{},source_ports=0", roce_testing::own_address()));
        let (responses, _) = exchange(devices.each_ref().map(String::as_str), 1_003).unwrap();
        assert_eq!(responses, 4 * 1_003);
    }

    #[test]
    fn requests_differ_between_sessions_and_numbers() {
        let all: std::collections::BTreeSet<Message> =
            (0..SESSIONS).flat_map(|session| (0..300).map(move |number| request(session, number))).collect();
        assert_eq!(all.len(), SESSIONS * 300);
    }
}
