//! Requests of 32 bytes with responses of 32 bytes, on several sessions with several outstanding requests
//! each. This is the pattern of small remote procedure calls, over RC queue pairs or over kernel TCP. Neither
//! side sleeps. A side that finds several messages of a session answers all of them in one list, or in one
//! write.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use roce::verbs::{
    Access, CompletionQueue, ConnectOptions, Context, Endpoint, MemoryRegion, Payload, ProtectionDomain,
    QpCapabilities, QpType, QueuePair, QueuePairOptions, RecvWr, SendFlags, SendOp, SendWr, Wc,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::outcome::Outcome;

/// Number of connections or queue pairs.
const SESSIONS: usize = 4;
/// Outstanding requests per session.
const DEPTH: usize = 16;
/// Bytes of a request and of a response.
const SIZE: usize = 32;
const PATIENCE: Duration = Duration::from_secs(20);
/// Completions of one poll: all that can be there. Fewer would split the messages that arrived together, and
/// their answers would leave in more packets.
const POLL: usize = 2 * SESSIONS * DEPTH;
/// Marks the work request identifiers of sends.
const SENT: u64 = 1 << 63;

/// Returns a message: its number, and bytes that depend on the number and on the sender.
fn message(number: u64, is_response: bool) -> [u8; SIZE] {
    let mut bytes = [number as u8 ^ if is_response { 0xff } else { 0 }; SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn expect(found: &[u8], number: u64, is_response: bool) -> Outcome<()> {
    let is_right = found == message(number, is_response);
    if is_right { Ok(()) } else { Err(format!("message {number} is wrong").into()) }
}

/// The operations of both transports: receive on all sessions, and send messages of a session in order.
trait Sessions {
    /// Adds the number of messages received on each session to `next`, after checking their content.
    fn take(&mut self, next: &mut [u64; SESSIONS], is_response: bool) -> Outcome<()>;

    /// Sends the messages `first..end` of a session.
    fn send(&mut self, session: usize, first: u64, end: u64, is_response: bool) -> Outcome<()>;
}

/// Runs the server, which answers `limit` requests of each session.
fn answer(sessions: &mut dyn Sessions, limit: u64) -> Outcome<()> {
    let (mut taken, mut answered) = ([0; SESSIONS], [0; SESSIONS]);
    let mut patience = Patience::new();
    while answered.iter().any(|count| *count < limit) {
        sessions.take(&mut taken, false)?;
        for session in 0..SESSIONS {
            if taken[session] > answered[session] {
                sessions.send(session, answered[session], taken[session], true)?;
                answered[session] = taken[session];
                patience = Patience::new();
            }
        }
        patience.check()?;
    }
    Ok(())
}

/// Runs the client, which sends `limit` requests on each session, [`DEPTH`] at a time. Returns the elapsed
/// time.
fn request(sessions: &mut dyn Sessions, limit: u64) -> Outcome<Duration> {
    let (mut sent, mut taken) = ([0; SESSIONS], [0; SESSIONS]);
    let mut patience = Patience::new();
    let begun = Instant::now();
    while taken.iter().any(|count| *count < limit) {
        for session in 0..SESSIONS {
            let end = limit.min(taken[session] + DEPTH as u64);
            if end > sent[session] {
                sessions.send(session, sent[session], end, false)?;
                sent[session] = end;
                patience = Patience::new();
            }
        }
        sessions.take(&mut taken, true)?;
        patience.check()?;
    }
    Ok(begun.elapsed())
}

/// A timeout that rarely reads the clock.
struct Patience {
    attempts: u32,
    end: Option<Instant>,
}

impl Patience {
    fn new() -> Self {
        Self { attempts: 0, end: None }
    }

    fn check(&mut self) -> Outcome<()> {
        self.attempts = self.attempts.wrapping_add(1);
        if self.attempts.is_multiple_of(1 << 16) {
            let now = Instant::now();
            if now > *self.end.get_or_insert(now + PATIENCE) {
                return Err("nothing came for 20 s".into());
            }
        }
        Ok(())
    }
}

/// The exchange of lines of JSON over TCP before the first message.
struct Exchange(BufReader<TcpStream>);

impl Exchange {
    fn send(&mut self, value: &impl Serialize) -> Outcome<()> {
        Ok(self.0.get_mut().write_all(format!("{}\n", serde_json::to_string(value)?).as_bytes())?)
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        let mut line = String::new();
        self.0.by_ref().take(1 << 16).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Serves one client.
pub(crate) fn serve(kind: &str, address: SocketAddr) -> Outcome<()> {
    let listener = TcpListener::bind(address)?;
    let mut exchange = Exchange(BufReader::new(listener.accept()?.0));
    exchange.0.get_ref().set_read_timeout(Some(PATIENCE))?;
    let limit: u64 = exchange.receive()?;
    match kind {
        "tcp" => {
            let streams = (0..SESSIONS).map(|_| listener.accept().map(|(stream, _)| stream));
            answer(&mut Streams::new(streams.collect::<Result<_, _>>()?)?, limit)?;
        }
        "roce" | "one-port" => {
            let mut pairs = Pairs::new(address.ip(), kind == "one-port")?;
            let theirs: Vec<Endpoint> = exchange.receive()?;
            pairs.connect(&theirs)?;
            exchange.send(&pairs.endpoints()?)?;
            answer(&mut pairs, limit)?;
            // The last responses may need retransmission, so the server waits until the client has them.
            let _: u64 = exchange.receive()?;
        }
        other => return Err(format!("{other} is not roce, one-port or tcp").into()),
    }
    Ok(())
}

/// Sends about `count` requests and returns their rate.
pub(crate) fn call(kind: &str, own: IpAddr, server: SocketAddr, count: u64) -> Outcome<Value> {
    let limit = count.div_ceil(SESSIONS as u64).max(1);
    let mut exchange = Exchange(BufReader::new(TcpStream::connect(server)?));
    exchange.0.get_ref().set_read_timeout(Some(PATIENCE))?;
    exchange.send(&limit)?;
    let elapsed = match kind {
        "tcp" => {
            let streams = (0..SESSIONS).map(|_| TcpStream::connect(server));
            request(&mut Streams::new(streams.collect::<Result<_, _>>()?)?, limit)?
        }
        "roce" | "one-port" => {
            let mut pairs = Pairs::new(own, kind == "one-port")?;
            exchange.send(&pairs.endpoints()?)?;
            let theirs: Vec<Endpoint> = exchange.receive()?;
            pairs.connect(&theirs)?;
            let elapsed = request(&mut pairs, limit)?;
            exchange.send(&limit)?;
            elapsed
        }
        other => return Err(format!("{other} is not roce, one-port or tcp").into()),
    }
    .as_secs_f64();
    let requests = limit * SESSIONS as u64;
    Ok(json!({"requests_per_second": requests as f64 / elapsed, "elapsed_seconds": elapsed}))
}

/// The sessions over kernel TCP.
struct Streams {
    streams: Vec<TcpStream>,
    /// The beginning of a message that has not arrived completely.
    begun: Vec<Vec<u8>>,
}

impl Streams {
    fn new(streams: Vec<TcpStream>) -> Outcome<Self> {
        for stream in &streams {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Self { streams, begun: vec![Vec::new(); SESSIONS] })
    }
}

impl Sessions for Streams {
    fn take(&mut self, next: &mut [u64; SESSIONS], is_response: bool) -> Outcome<()> {
        for ((stream, begun), next) in self.streams.iter_mut().zip(&mut self.begun).zip(next) {
            let mut room = [0; DEPTH * SIZE];
            match stream.read(&mut room) {
                Ok(0) => return Err("the other side closed a connection".into()),
                Ok(count) => begun.extend_from_slice(&room[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
            let whole = begun.len() / SIZE * SIZE;
            for found in begun.drain(..whole).as_slice().chunks_exact(SIZE) {
                expect(found, *next, is_response)?;
                *next += 1;
            }
        }
        Ok(())
    }

    fn send(&mut self, session: usize, first: u64, end: u64, is_response: bool) -> Outcome<()> {
        let mut bytes = [0; DEPTH * SIZE];
        let used = (end - first) as usize * SIZE;
        for (place, number) in bytes.chunks_exact_mut(SIZE).zip(first..end) {
            place.copy_from_slice(&message(number, is_response));
        }
        // At most DEPTH messages are outstanding, which fit into any socket buffer.
        Ok(self.streams[session].write_all(&bytes[..used])?)
    }
}

/// The sessions over RC queue pairs.
struct Pairs {
    qps: Vec<QueuePair>,
    cq: CompletionQueue,
    region: MemoryRegion,
    _pd: ProtectionDomain,
}

impl Pairs {
    /// With `one_port`, the packets of all queue pairs leave from the same UDP port.
    fn new(own: IpAddr, one_port: bool) -> Outcome<Self> {
        let ports = if one_port { ",source_ports=0" } else { "" };
        let context = Context::open(&match own {
            IpAddr::V4(own) => format!("udp:{own}{ports}"),
            IpAddr::V6(own) => format!("udp:[{own}]{ports}"),
        })?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(8 * SESSIONS * DEPTH, None)?;
        let region = pd.allocate(SESSIONS * DEPTH * SIZE, Access::LOCAL_WRITE)?;
        let capabilities =
            QpCapabilities { max_send_wr: 4 * DEPTH, max_recv_wr: DEPTH, ..QpCapabilities::default() };
        let options = QueuePairOptions::new(QpType::Rc, &cq).capabilities(capabilities);
        let qps: Result<_, _> = (0..SESSIONS).map(|_| pd.create_qp(&options)).collect();
        Ok(Self { qps: qps?, cq, region, _pd: pd })
    }

    fn endpoints(&self) -> Outcome<Vec<Endpoint>> {
        self.qps.iter().map(|qp| Ok(qp.endpoint()?)).collect()
    }

    fn connect(&mut self, theirs: &[Endpoint]) -> Outcome<()> {
        if theirs.len() != SESSIONS {
            return Err(format!("{} queue pairs there, {SESSIONS} here", theirs.len()).into());
        }
        for (session, (qp, theirs)) in self.qps.iter().zip(theirs).enumerate() {
            qp.initialize()?;
            for slot in 0..DEPTH as u64 {
                self.receive(session, slot)?;
            }
            qp.connect(theirs, &ConnectOptions::default())?;
        }
        Ok(())
    }

    fn place(session: usize, number: u64) -> usize {
        (session * DEPTH + number as usize % DEPTH) * SIZE
    }

    fn receive(&self, session: usize, number: u64) -> Outcome<()> {
        let place = Self::place(session, number);
        let elements = &[self.region.element(place..place + SIZE)];
        // The session is in the upper half, and the number in the lower half.
        Ok(self.qps[session]
            .post_recv(&RecvWr { wr_id: (session as u64) << 32 | number & 0xffff_ffff, elements })?)
    }
}

impl Sessions for Pairs {
    fn take(&mut self, next: &mut [u64; SESSIONS], is_response: bool) -> Outcome<()> {
        let mut done = [Wc::default(); POLL];
        let count = self.cq.poll(&mut done)?;
        for wc in &done[..count] {
            let wr_id = wc.result()?.wr_id;
            if wr_id & SENT != 0 {
                continue;
            }
            let session = (wr_id >> 32) as usize;
            let next = &mut next[session];
            let mut found = [0; SIZE];
            self.region.read(Self::place(session, *next), &mut found)?;
            if wc.byte_len as usize != SIZE || wr_id & 0xffff_ffff != *next & 0xffff_ffff {
                return Err(
                    format!("{} bytes came as message {wr_id:#x} instead of {next}", wc.byte_len).into()
                );
            }
            expect(&found, *next, is_response)?;
            self.receive(session, *next + DEPTH as u64)?;
            *next += 1;
        }
        Ok(())
    }

    fn send(&mut self, session: usize, first: u64, end: u64, is_response: bool) -> Outcome<()> {
        let mut bytes = [[0; SIZE]; DEPTH];
        for (place, number) in bytes.iter_mut().zip(first..end) {
            *place = message(number, is_response);
        }
        let mut list = [SendWr::new(0, SendOp::Send, &[]); DEPTH];
        for ((wr, bytes), number) in list.iter_mut().zip(&bytes).zip(first..end) {
            // Completions are in order, so one completion releases DEPTH requests.
            let is_signaled = (number + 1).is_multiple_of(DEPTH as u64);
            wr.wr_id = SENT | number;
            wr.flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            wr.payload = Payload::Inline(bytes);
        }
        Ok(self.qps[session].post_send_list(&list[..(end - first) as usize])?)
    }
}
