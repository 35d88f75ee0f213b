//! The ping-pong of librdmacm's `rping`, both ends.
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
//! The client repeats this and disconnects at the end. The content of "go ahead" means nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use roce::verbs::{
    Access, CompletionQueue, ConnectRequest, Connection, ConnectionError, ConnectionParameters, Context,
    MemoryRegion, PathMtu, ProtectionDomain, QpAttr, QpCapabilities, QpState, QpType, QueuePair,
    QueuePairOptions, RKey, RecvWr, SendOp, SendWr, VerbsError, WaitError, Wc, WcOpcode, WcStatus,
};

/// The port that rping listens on.
pub const RPING_PORT: u16 = 7174;
/// The most bytes of a ping, its NUL included.
pub const MAX_PING: usize = 64 * 1024 - 1;
/// The fewest: the text with the largest number.
pub const MIN_PING: usize = 27;

/// Address, key and size: 16 bytes in network order.
const MESSAGE: usize = 16;
const SEND_AT: usize = 0;
const RECEIVES_AT: usize = MESSAGE;
const RECEIVES: usize = 2;
const PING_AT: usize = 4096;
const PONG_AT: usize = PING_AT + 64 * 1024;
const REGION: usize = PONG_AT + 64 * 1024;
/// A peer that has connected says something within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a ping-pong ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpingError {
    /// There is no connection.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A verb failed.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A work request failed.
    #[error("a {what} ended with {}, {:?}", .wc.status.name(), .wc.cause)]
    Completion {
        /// What was posted.
        what: &'static str,
        /// How it ended.
        wc: Wc,
    },
    /// The peer ended the connection in the middle of a ping.
    #[error("the peer disconnected in the middle of ping {ping}")]
    Disconnected {
        /// Which ping, from 0.
        ping: u64,
    },
    /// The peer sent what is no message of rping.
    #[error("the peer sent {have} bytes where rping sends {MESSAGE}")]
    Message {
        /// Bytes.
        have: u32,
    },
    /// A ping that is too large for this end.
    #[error("the peer's ping has {have} bytes, {limit} at most are possible")]
    Size {
        /// Bytes.
        have: u32,
        /// [`MAX_PING`].
        limit: usize,
    },
    /// What came back is not what was sent.
    #[error("ping {ping}: byte {at} came back as {found:#04x} instead of {expected:#04x}")]
    Mismatch {
        /// Which ping, from 0.
        ping: u64,
        /// Where.
        at: usize,
        /// What came back.
        found: u8,
        /// What was sent.
        expected: u8,
    },
    /// The peer says nothing.
    #[error("the peer said nothing for {} s", PATIENCE.as_secs())]
    Silence,
}

/// What the client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpingPlan {
    /// How many pings.
    pub count: u64,
    /// Bytes of each, [`MIN_PING`] to [`MAX_PING`].
    pub size: usize,
    /// Compare what comes back with what was sent.
    pub verify: bool,
    /// Path MTU.
    pub path_mtu: PathMtu,
}

/// The parameters that rping connects and accepts with.
fn parameters(path_mtu: PathMtu) -> ConnectionParameters {
    ConnectionParameters::default().responder_resources(1).initiator_depth(1).path_mtu(path_mtu)
}

/// One end.
struct End {
    cq: CompletionQueue,
    qp: QueuePair,
    region: MemoryRegion,
    _pd: ProtectionDomain,
}

/// What a peer said.
enum Heard {
    Message {
        remote_addr: u64,
        rkey: RKey,
        size: u32,
    },
    /// The connection is over.
    End,
}

impl End {
    fn new(context: &Context) -> Result<Self, RpingError> {
        let pd = context.alloc_pd()?;
        let region = pd.allocate(REGION, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
        let cq = context.create_cq(32, None)?;
        let capabilities =
            QpCapabilities { max_send_wr: 16, max_recv_wr: RECEIVES, ..QpCapabilities::default() };
        let options = QueuePairOptions::new(QpType::Rc, &cq).capabilities(capabilities);
        let qp = pd.create_qp(&options)?;
        // From INIT on receives can be posted, so that the peer's first message finds one.
        qp.modify(&QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE),
            ..QpAttr::to_state(QpState::Init)
        })?;
        let end = Self { cq, qp, region, _pd: pd };
        (0..RECEIVES).try_for_each(|slot| end.post_receive(slot))?;
        Ok(end)
    }

    fn post_receive(&self, slot: usize) -> Result<(), VerbsError> {
        let at = RECEIVES_AT + slot * MESSAGE;
        let element = self.region.element(at..at + MESSAGE);
        self.qp.post_recv(&RecvWr { wr_id: slot as u64, elements: &[element] })
    }

    /// Tells where the peer may read or write.
    fn advertise(&self, at: usize, size: usize) -> Result<(), VerbsError> {
        let mut message = [0; MESSAGE];
        let addr = self.region.addr() + at as u64;
        message[..8].copy_from_slice(&addr.to_be_bytes());
        message[8..12].copy_from_slice(&self.region.rkey().0.to_be_bytes());
        message[12..].copy_from_slice(&(size as u32).to_be_bytes());
        // The region covers all of it.
        let _ = self.region.write(SEND_AT, &message);
        self.post(SendOp::Send, SEND_AT, MESSAGE)
    }

    fn post(&self, op: SendOp, at: usize, len: usize) -> Result<(), VerbsError> {
        let element = self.region.element(at..at + len);
        self.qp.post_send(&SendWr::new(0, op, &[element]))
    }

    /// The next completion; `None` once the connection is over.
    fn completion(&self) -> Result<Option<Wc>, RpingError> {
        let mut done = [Wc::default()];
        match self.cq.wait(&mut done, Some(PATIENCE)) {
            Ok(_) if done[0].status == WcStatus::WrFlushError => Ok(None),
            Ok(_) => Ok(Some(done[0])),
            Err(WaitError::TimedOut) => Err(RpingError::Silence),
            Err(WaitError::Verbs(error)) => Err(error.into()),
            Err(WaitError::Io(error)) => {
                Err(VerbsError::Io { what: "waiting for a completion", error }.into())
            }
            Err(other) => Err(VerbsError::DeviceFailed(other.to_string()).into()),
        }
    }

    /// Waits for the peer's next message. Own SENDs may complete before or after it.
    fn hear(&self) -> Result<Heard, RpingError> {
        loop {
            let Some(wc) = self.completion()? else { return Ok(Heard::End) };
            if wc.status != WcStatus::Success {
                return Err(RpingError::Completion { what: "SEND or receive", wc });
            }
            if wc.opcode != WcOpcode::Recv {
                continue;
            }
            if wc.byte_len as usize != MESSAGE {
                return Err(RpingError::Message { have: wc.byte_len });
            }
            let slot = wc.wr_id as usize;
            let mut message = [0; MESSAGE];
            let _ = self.region.read(RECEIVES_AT + slot * MESSAGE, &mut message);
            self.post_receive(slot)?;
            let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
            let remote_addr = u64::from(word(0)) << 32 | u64::from(word(4));
            return Ok(Heard::Message { remote_addr, rkey: RKey(word(8)), size: word(12) });
        }
    }

    /// Waits for a READ or WRITE of its own.
    fn carry_out(&self, what: &'static str, op: SendOp, len: usize) -> Result<Option<()>, RpingError> {
        let wanted = if matches!(op, SendOp::Read { .. }) { WcOpcode::RdmaRead } else { WcOpcode::RdmaWrite };
        self.post(op, PING_AT, len)?;
        loop {
            let Some(wc) = self.completion()? else { return Ok(None) };
            if wc.status != WcStatus::Success {
                return Err(RpingError::Completion { what, wc });
            }
            if wc.opcode == wanted {
                return Ok(Some(()));
            }
        }
    }
}

/// The bytes of a ping as rping makes them: its number, then letters that begin one further each time, and a NUL.
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

/// Connects to an rping server and plays. `on_ping` sees what came back.
///
/// # Errors
///
/// When there is no connection, a work request fails, or what comes back differs.
pub fn client(
    context: &Context,
    server: IpAddr,
    port: u16,
    plan: &RpingPlan,
    on_ping: &mut dyn FnMut(&[u8]),
) -> Result<(), RpingError> {
    let end = End::new(context)?;
    let mut connection =
        context.start_connect(SocketAddr::new(server, port), &end.qp, &parameters(plan.path_mtu))?;
    connection.established(None)?;
    for ping in 0..plan.count {
        let text = ping_text(ping, plan.size);
        let _ = end.region.write(PING_AT, &text);
        let _ = end.region.write(PONG_AT, &vec![0; plan.size]);
        for at in [PING_AT, PONG_AT] {
            end.advertise(at, plan.size)?;
            if let Heard::End = end.hear()? {
                return Err(RpingError::Disconnected { ping });
            }
        }
        let mut back = vec![0; plan.size];
        let _ = end.region.read(PONG_AT, &mut back);
        if plan.verify
            && let Some(at) = back.iter().zip(&text).position(|(found, expected)| found != expected)
        {
            return Err(RpingError::Mismatch { ping, at, found: back[at], expected: text[at] });
        }
        on_ping(&back);
    }
    connection.disconnect()?;
    // A lost confirmation costs repetitions, not the result.
    let _ = connection.next_event(Some(PATIENCE))?;
    Ok(())
}

/// Accepts a client and plays until it disconnects. Returns how many pings there were. `on_ping` sees each.
///
/// # Errors
///
/// When the client gives up, a work request fails, or a message is not one of rping.
pub fn serve(
    context: &Context,
    request: ConnectRequest,
    on_ping: &mut dyn FnMut(&[u8]),
) -> Result<u64, RpingError> {
    let end = End::new(context)?;
    let mut connection: Connection = request.accept(&end.qp, &parameters(PathMtu::Mtu1024))?;
    connection.established(Some(PATIENCE))?;
    for ping in 0.. {
        let Heard::Message { remote_addr, rkey, size } = end.hear()? else { return Ok(ping) };
        let len = size as usize;
        if len > MAX_PING + 1 {
            return Err(RpingError::Size { have: size, limit: MAX_PING });
        }
        let early = RpingError::Disconnected { ping };
        let Some(()) = end.carry_out("READ", SendOp::Read { remote_addr, rkey }, len)? else {
            return Err(early);
        };
        let mut text = vec![0; len];
        let _ = end.region.read(PING_AT, &mut text);
        on_ping(&text);
        end.advertise(PING_AT, len)?;
        let Heard::Message { remote_addr, rkey, .. } = end.hear()? else { return Err(early) };
        let with_nul = text.iter().position(|byte| *byte == 0).map_or(len, |at| at + 1);
        let Some(()) = end.carry_out("WRITE", SendOp::Write { remote_addr, rkey }, with_nul)? else {
            return Err(early);
        };
        end.advertise(PING_AT, len)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of rping's pings, and that the pattern goes round.
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
