//! An exchange of messages over an rdma_cm connection; each write is one SEND.
//!
//! perftest uses it for its blocks with `-R`. perftest has one posted receive, and posts it again before it
//! answers, so two sides that write in turn never wait for each other.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use roce_exchange::{CompletionQueues, Requirements, Resources, take, until_listening};
use roce_packet::mad::RejReason;

use roce::observe::explain;
use roce::verbs::{
    Access, CmListener, Connection, ConnectionError, ConnectionParameters, Context, QpCapabilities, QpType,
    QueuePair, SendOp, VerbsError, WaitError, Wc, WcOpcode, WcStatus,
};

use super::exchange::Stream;

/// Maximum number of bytes of a message. Every block of perftest is shorter.
pub const LARGEST_MESSAGE: usize = 256;
const RECEIVES: usize = 4;
/// The offset of sent messages, behind the received ones.
const SEND_AT: usize = RECEIVES * LARGEST_MESSAGE;
/// The time limit of a read.
const READ_TIMEOUT: Duration = Duration::from_millis(50);

/// Connects to a port whose listener may start later. Repeats the attempt until `patience` is over, each time
/// with a new queue pair of `prepare`.
///
/// # Errors
///
/// The errors of [`Context::connect`]; or no queue pair can be created.
pub fn connect_when_listening(
    context: &Context,
    server: SocketAddr,
    parameters: &ConnectionParameters,
    patience: Duration,
    prepare: &mut dyn FnMut() -> Result<QueuePair, VerbsError>,
) -> Result<Connection, ConnectionError> {
    let is_refused = |error: &ConnectionError| {
        matches!(error, ConnectionError::Rejected { reason: RejReason::INVALID_SERVICE_ID, .. })
    };
    until_listening(patience, is_refused, || {
        let qp = prepare()?;
        context.connect(server, &qp, parameters)
    })
}

/// One end of a connection that carries messages.
///
/// A read returns [`ErrorKind::WouldBlock`] if nothing arrives for 50 ms, and 0 bytes once the connection has
/// ended.
#[derive(Debug)]
pub struct Messages {
    connection: Connection,
    resources: Resources,
    /// Receives with unread bytes: the slot, the start and the end of these bytes.
    arrived: VecDeque<(usize, usize, usize)>,
    is_closed: bool,
}

fn resources(context: &Context) -> Result<Resources, VerbsError> {
    let resources = Resources::new(
        context,
        &Requirements {
            qp_type: QpType::Rc,
            capabilities: QpCapabilities {
                max_send_wr: 1,
                max_recv_wr: RECEIVES,
                ..QpCapabilities::default()
            },
            completion_queues: CompletionQueues::Shared,
            memory: SEND_AT + LARGEST_MESSAGE,
            access: Access::empty(),
        },
    )?;
    resources.post_receives_early(0, RECEIVES, LARGEST_MESSAGE)?;
    Ok(resources)
}

/// Returns the parameters of connections that carry only SENDs.
fn messages_only(parameters: &ConnectionParameters) -> ConnectionParameters {
    parameters.clone().responder_resources(0).initiator_depth(0).access(Access::empty())
}

impl Messages {
    /// Connects to a server that listens, or begins to listen within `patience`.
    ///
    /// # Errors
    ///
    /// The errors of [`connect_when_listening`].
    pub fn connect(
        context: &Context,
        server: SocketAddr,
        parameters: &ConnectionParameters,
        patience: Duration,
    ) -> Result<Self, ConnectionError> {
        let mut made = None;
        let connection =
            connect_when_listening(context, server, &messages_only(parameters), patience, &mut || {
                Ok(made.insert(resources(context)?).qp.clone())
            })?;
        let resources = made.ok_or(ConnectionError::Disconnected)?;
        Ok(Self { connection, resources, arrived: VecDeque::new(), is_closed: false })
    }

    /// Accepts the next connection of a listener. Also returns the address of the client, which has answered.
    ///
    /// # Errors
    ///
    /// The time is over, the device failed, or the peer has given up.
    pub fn accept(
        context: &Context,
        listener: &CmListener,
        parameters: &ConnectionParameters,
        timeout: Option<Duration>,
    ) -> Result<(Self, SocketAddr), ConnectionError> {
        let request = listener.accept(timeout)?;
        let caller = request.peer();
        let resources = resources(context)?;
        let mut connection = request.accept(&resources.qp, &messages_only(parameters))?;
        connection.established(None)?;
        Ok((Self { connection, resources, arrived: VecDeque::new(), is_closed: false }, caller))
    }

    /// Disconnects. From now on, the other end reads 0 bytes.
    pub fn disconnect(&mut self) {
        // The other side may have disconnected already.
        let _ = self.connection.disconnect();
    }

    /// Handles one completion, if one arrives within `timeout`. Returns it if it belongs to a send.
    fn completion(&mut self, timeout: Duration) -> io::Result<Option<Wc>> {
        let wc = match self.resources.wait(timeout) {
            Ok(wc) => wc,
            Err(WaitError::TimedOut) => return Err(ErrorKind::WouldBlock.into()),
            Err(error) => return Err(io::Error::other(error)),
        };
        if wc.status == WcStatus::WrFlushError {
            self.is_closed = true;
            return Ok(None);
        }
        if let Err(error) = self.resources.context().result(&wc) {
            self.is_closed = true;
            return Err(io::Error::other(explain(&error)));
        }
        if wc.opcode != WcOpcode::Recv {
            return Ok(Some(wc));
        }
        let (slot, len) = (wc.wr_id as usize, wc.byte_len as usize);
        self.arrived.push_back((slot, slot * LARGEST_MESSAGE, slot * LARGEST_MESSAGE + len));
        Ok(None)
    }
}

impl Stream for Messages {
    fn has_input(&mut self) -> io::Result<bool> {
        while self.arrived.is_empty() && !self.is_closed {
            match self.completion(Duration::ZERO) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl Read for Messages {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.arrived.is_empty() && !self.is_closed {
            self.completion(READ_TIMEOUT)?;
        }
        let Some((slot, from, to)) = self.arrived.pop_front() else { return Ok(0) };
        let count = room.len().min(to - from);
        take(&self.resources.region, from, &mut room[..count]);
        if from + count < to {
            self.arrived.push_front((slot, from + count, to));
        } else if !self.is_closed {
            let at = slot * LARGEST_MESSAGE;
            let posted = self.resources.post_receive(slot as u64, at..at + LARGEST_MESSAGE);
            posted.map_err(io::Error::other)?;
        }
        Ok(count)
    }
}

impl Write for Messages {
    /// Returns when the other side has the message, or cannot receive it any more. An answer counts as an
    /// acknowledgement, because the connection may end before a lost acknowledgement is sent again.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..LARGEST_MESSAGE).unwrap_or(bytes);
        self.resources.put(SEND_AT, bytes);
        let posted = self.resources.post(u64::MAX, SendOp::Send, SEND_AT..SEND_AT + bytes.len());
        posted.map_err(io::Error::other)?;
        let before = self.arrived.len();
        loop {
            let completion = self.completion(READ_TIMEOUT);
            if self.is_closed && self.arrived.len() > before {
                return Ok(bytes.len());
            }
            match completion {
                Ok(Some(_)) => return Ok(bytes.len()),
                Ok(None) if self.is_closed => return Err(ErrorKind::BrokenPipe.into()),
                Ok(None) => {}
                // The retry count of the queue pair bounds this loop.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
