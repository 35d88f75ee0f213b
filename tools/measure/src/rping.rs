//! Client and server of the ping-pong of librdmacm's `rping`.
//!
//! ```text
//!   client                                    server
//!   SEND  address, key, size of the ping  ──▶
//!                                         ◀── READ  the ping
//!                                         ◀── SEND  go ahead
//!   SEND  address, key, size of the pong  ──▶
//!                                         ◀── WRITE the ping, up to its NUL
//!                                         ◀── SEND  go ahead
//! ```
//!
//! The client repeats this and disconnects at the end. The content of "go ahead" has no meaning.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use roce::verbs::{
    Access, CmListener, ConnectRequest, ConnectionError, ConnectionParameters, Context, PathMtu,
    QpCapabilities, QpType, RKey, SendOp, VerbsError, Wc, WcOpcode, WcStatus,
};
use roce_exchange::content::check;
use roce_exchange::{CompletionQueues, Requirements, Resources, ToolError, take};

use crate::harness::{DropWatch, check_completion};

/// The port that rping listens on.
pub const RPING_PORT: u16 = 7174;
/// Maximum number of bytes of a ping, including its NUL.
pub const MAX_PING: usize = 64 * 1024 - 1;
/// Minimum number of bytes of a ping: its text with the largest 32-bit number, and a NUL.
pub const MIN_PING: usize = 23;

/// Bytes of a message: address, key and size in network order.
const MESSAGE: usize = 16;
const SEND_AT: usize = 0;
const RECEIVES_AT: usize = MESSAGE;
const RECEIVES: usize = 2;
const PING_AT: usize = 4096;
const PONG_AT: usize = PING_AT + 64 * 1024;
const REGION: usize = PONG_AT + 64 * 1024;
/// Time limit for each message of a connected peer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The parameters of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpingPlan {
    /// Number of pings.
    pub count: u64,
    /// Bytes of each ping, [`MIN_PING`] to [`MAX_PING`].
    pub size: usize,
    /// Whether to compare the returned bytes with the sent ones.
    pub verify: bool,
    /// Path MTU.
    pub path_mtu: PathMtu,
}

/// Returns the parameters that rping connects and accepts with.
fn parameters(path_mtu: PathMtu) -> ConnectionParameters {
    ConnectionParameters::default().responder_resources(1).initiator_depth(1).path_mtu(path_mtu)
}

/// One end of the connection.
struct End(Resources);

/// A message of the peer: the memory that may be read or written.
struct Advertisement {
    remote_addr: u64,
    rkey: RKey,
    size: u32,
}

impl End {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        let resources = Resources::new(
            context,
            &Requirements {
                qp_type: QpType::Rc,
                capabilities: QpCapabilities {
                    max_send_wr: 16,
                    max_recv_wr: RECEIVES,
                    ..QpCapabilities::default()
                },
                completion_queues: CompletionQueues::Shared,
                memory: REGION,
                access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            },
        )?;
        resources.post_receives_early(RECEIVES_AT, RECEIVES, MESSAGE)?;
        Ok(Self(resources))
    }

    /// Sends the address of the memory that the peer may read or write.
    fn advertise(&self, at: usize, size: usize) -> Result<(), VerbsError> {
        let mut message = [0; MESSAGE];
        let addr = self.0.region.addr() + at as u64;
        message[..8].copy_from_slice(&addr.to_be_bytes());
        message[8..12].copy_from_slice(&self.0.region.rkey().0.to_be_bytes());
        message[12..].copy_from_slice(&(size as u32).to_be_bytes());
        self.0.put(SEND_AT, &message);
        self.0.post(0, SendOp::Send, SEND_AT..SEND_AT + MESSAGE)
    }

    /// Waits for the next completion with `opcode`. Returns `None` if the connection has ended.
    fn completion(&self, opcode: WcOpcode) -> Result<Option<Wc>, ToolError> {
        loop {
            let stalled = || ToolError::Stalled {
                progress: "waiting for the peer".into(),
                patience: PATIENCE,
                is_reliable: true,
            };
            let wc = self.0.wait(PATIENCE).map_err(|error| ToolError::of_wait(error, stalled))?;
            if wc.status == WcStatus::WrFlushError {
                return Ok(None);
            }
            check_completion(self.0.context(), &wc)?;
            // Other requests of this side may complete first.
            if wc.opcode == opcode {
                return Ok(Some(wc));
            }
        }
    }

    /// Waits for the next message of the peer. Returns `None` if the connection has ended.
    fn receive(&self) -> Result<Option<Advertisement>, ToolError> {
        let Some(wc) = self.completion(WcOpcode::Recv)? else { return Ok(None) };
        if wc.byte_len as usize != MESSAGE {
            let have = wc.byte_len;
            return Err(ToolError::Peer(format!("sent {have} bytes instead of the {MESSAGE} of rping")));
        }
        let at = RECEIVES_AT + wc.wr_id as usize * MESSAGE;
        let mut message = [0; MESSAGE];
        take(&self.0.region, at, &mut message);
        self.0.post_receive(wc.wr_id, at..at + MESSAGE)?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
        let remote_addr = u64::from(word(0)) << 32 | u64::from(word(4));
        Ok(Some(Advertisement { remote_addr, rkey: RKey(word(8)), size: word(12) }))
    }

    /// Executes a READ or WRITE of this side. Returns `None` if the connection has ended.
    fn execute(&self, op: SendOp, opcode: WcOpcode, len: usize) -> Result<Option<()>, ToolError> {
        self.0.post(0, op, PING_AT..PING_AT + len)?;
        Ok(self.completion(opcode)?.map(|_| ()))
    }
}

/// Returns the bytes of a ping in the format of rping: its number, then letters that start one letter later
/// each time, and a NUL.
fn ping_text(ping: u64, size: usize) -> Vec<u8> {
    const FIRST: u8 = b'A';
    const LETTERS: u64 = (b'z' - FIRST + 1) as u64;
    let mut text = format!("rdma-ping-{ping}: ").into_bytes();
    let mut letter = FIRST + (ping % LETTERS) as u8;
    while text.len() < size {
        text.push(letter);
        letter = if letter == b'z' { FIRST } else { letter + 1 };
    }
    text.truncate(size.saturating_sub(1));
    text.push(0);
    text
}

fn disconnected(ping: u64) -> ToolError {
    ToolError::Peer(format!("disconnected in the middle of ping {ping}"))
}

/// Connects to an rping server, runs the pings, and calls `on_ping` with each echo.
///
/// # Errors
///
/// The connection or a work request fails, or the returned bytes differ.
pub fn client(
    context: &Context,
    server: IpAddr,
    port: u16,
    plan: &RpingPlan,
    on_ping: &mut dyn FnMut(&[u8]),
) -> Result<(), ToolError> {
    let watch = DropWatch::start(context);
    watch.explain(run_client(context, SocketAddr::new(server, port), plan, on_ping))
}

fn run_client(
    context: &Context,
    server: SocketAddr,
    plan: &RpingPlan,
    on_ping: &mut dyn FnMut(&[u8]),
) -> Result<(), ToolError> {
    let end = End::new(context)?;
    let mut connection = context.start_connect(server, &end.0.qp, &parameters(plan.path_mtu))?;
    connection.established(None)?;
    for ping in 0..plan.count {
        let text = ping_text(ping, plan.size);
        end.0.put(PING_AT, &text);
        end.0.put(PONG_AT, &vec![0; plan.size]);
        for at in [PING_AT, PONG_AT] {
            end.advertise(at, plan.size)?;
            end.receive()?.ok_or_else(|| disconnected(ping))?;
        }
        let echo = end.0.bytes(PONG_AT, plan.size);
        if plan.verify {
            check(ping, plan.size, &echo, &text)?;
        }
        on_ping(&echo);
    }
    connection.disconnect()?;
    // Losing the confirmation causes retransmissions, but does not change the result.
    let _ = connection.next_event(Some(PATIENCE))?;
    Ok(())
}

/// Accepts a client and serves it until it disconnects. Calls `on_ping` with each ping, and returns their
/// number.
///
/// # Errors
///
/// The client gives up, a work request fails, or a message is not one of rping.
pub fn serve(
    context: &Context,
    request: ConnectRequest,
    on_ping: &mut dyn FnMut(&[u8]),
) -> Result<u64, ToolError> {
    serve_one(context, request, &mut |progress| {
        if let Progress::Ping(text) = progress {
            on_ping(&text);
        }
    })
}

/// A report of a server.
#[derive(Debug)]
pub enum ServerEvent {
    /// A ping of a client.
    Ping(Vec<u8>),
    /// A client has left after this number of pings, or failed.
    Ended(Result<u64, ToolError>),
}

/// A report of a thread that serves a client.
enum Progress {
    Established,
    Ping(Vec<u8>),
    Ended(Result<u64, ToolError>),
}

/// Maximum number of clients at once.
const MOST_CLIENTS: usize = 64;
/// Time limit for the confirmation of a request. Its sender may not exist.
const CONFIRMATION: Duration = Duration::from_secs(10);
/// Interval at which reports are delivered.
const DELIVERY: Duration = Duration::from_millis(10);

/// Serves each client on its own thread, so that a request whose sender never confirms the connection does
/// not block other clients. Without `persistent`, it ends after the first connected client. Calls `on_event`
/// with the actions of each client.
///
/// # Errors
///
/// The device failed; without `persistent`, also the error of the client.
pub fn serve_all(
    context: &Context,
    listener: &CmListener,
    persistent: bool,
    on_event: &mut dyn FnMut(SocketAddr, ServerEvent),
) -> Result<(), ToolError> {
    let (sender, reports) = std::sync::mpsc::sync_channel(MOST_CLIENTS);
    // The flag says whether the client is connected.
    let mut clients: BTreeMap<u64, (SocketAddr, bool)> = BTreeMap::new();
    let mut next = 0;
    loop {
        let is_complete = !persistent && clients.values().any(|(_, is_connected)| *is_connected);
        if is_complete {
            std::thread::sleep(DELIVERY);
        } else {
            match listener.accept(Some(DELIVERY)) {
                // Dropping the request refuses it.
                Ok(request) if clients.len() >= MOST_CLIENTS => drop(request),
                Ok(request) => {
                    next += 1;
                    clients.insert(next, (request.peer(), false));
                    spawn(context.clone(), request, next, sender.clone())?;
                }
                Err(ConnectionError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (client, report) in reports.try_iter() {
            let Some((peer, is_connected)) = clients.get_mut(&client) else { continue };
            let peer = *peer;
            match report {
                Progress::Established => *is_connected = true,
                Progress::Ping(text) => on_event(peer, ServerEvent::Ping(text)),
                Progress::Ended(outcome) => {
                    let decides = *is_connected && !persistent;
                    clients.remove(&client);
                    match outcome {
                        Err(error) if decides => return Err(error),
                        outcome => on_event(peer, ServerEvent::Ended(outcome)),
                    }
                    if decides {
                        return Ok(());
                    }
                }
            }
        }
    }
}

fn spawn(
    context: Context,
    request: ConnectRequest,
    client: u64,
    sender: SyncSender<(u64, Progress)>,
) -> Result<(), ToolError> {
    let thread = std::thread::Builder::new().name("rping client".into());
    let spawned = thread.spawn(move || {
        // A server that has ended receives no reports.
        let mut tell = |progress| drop(sender.send((client, progress)));
        let outcome = serve_one(&context, request, &mut tell);
        tell(Progress::Ended(outcome));
    });
    spawned.map(drop).map_err(|error| ToolError::Io { what: "cannot start a thread for a client", error })
}

/// Accepts a client and serves it until it disconnects; returns the number of pings.
fn serve_one(
    context: &Context,
    request: ConnectRequest,
    tell: &mut dyn FnMut(Progress),
) -> Result<u64, ToolError> {
    let watch = DropWatch::start(context);
    watch.explain(serve_pings(context, request, tell))
}

fn serve_pings(
    context: &Context,
    request: ConnectRequest,
    tell: &mut dyn FnMut(Progress),
) -> Result<u64, ToolError> {
    let end = End::new(context)?;
    let mut connection = request.accept(&end.0.qp, &parameters(PathMtu::Mtu1024))?;
    connection.established(Some(CONFIRMATION))?;
    tell(Progress::Established);
    for ping in 0.. {
        let Some(Advertisement { remote_addr, rkey, size }) = end.receive()? else { return Ok(ping) };
        let early = || disconnected(ping);
        let len = size as usize;
        if len > MAX_PING + 1 {
            return Err(ToolError::Peer(format!(
                "announced a ping of {len} bytes; at most {MAX_PING} are possible"
            )));
        }
        end.execute(SendOp::Read { remote_addr, rkey }, WcOpcode::RdmaRead, len)?.ok_or_else(early)?;
        let text = end.0.bytes(PING_AT, len);
        let with_nul = text.iter().position(|byte| *byte == 0).map_or(len, |at| at + 1);
        tell(Progress::Ping(text));
        end.advertise(PING_AT, len)?;
        let Advertisement { remote_addr, rkey, .. } = end.receive()?.ok_or_else(early)?;
        end.execute(SendOp::Write { remote_addr, rkey }, WcOpcode::RdmaWrite, with_nul)?.ok_or_else(early)?;
        end.advertise(PING_AT, len)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the first bytes of rping's pings, and that the pattern wraps around.
    #[test]
    fn texts_of_pings() {
        assert_eq!(ping_text(0, 64).len(), 64);
        assert!(ping_text(0, 64).starts_with(b"rdma-ping-0: ABCDEFGHIJ"));
        assert!(ping_text(1, 64).starts_with(b"rdma-ping-1: BCDEFGHIJK"));
        assert!(ping_text(58, 64).starts_with(b"rdma-ping-58: ABCDEFGHI"));
        assert!(ping_text(57, 64).starts_with(b"rdma-ping-57: zABCDEFGH"));
        for size in [MIN_PING, 64, MAX_PING] {
            let text = ping_text(u32::MAX.into(), size);
            assert_eq!((text.len(), text.last()), (size, Some(&0)));
            assert_eq!(text.iter().filter(|byte| **byte == 0).count(), 1);
        }
    }
}
