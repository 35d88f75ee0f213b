//! The other end of `ucmatose`: several simultaneous connections that exchange messages.
//!
//! ```text
//!   client                                server
//!   connects all                     ──▶  accepts all
//!                                    ◀──  SENDs of all connections, so many on each
//!   has them all, SENDs its replies  ──▶
//!                                    ◀──  has them all, disconnects
//!   answers
//! ```
//!
//! ucmatose receives into the same buffer that it sends from. So its first messages are all the same, and its
//! replies are copies of the last message that it received.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use roce::verbs::*;

use super::{await_listener, check, in_guest};
use crate::case::Family;
use crate::common::Running;
use crate::end::pattern;
use crate::setting::Setting;

pub(crate) const PORT: u16 = 7471;
const SECONDS: u64 = 120;
const PATIENCE: Duration = Duration::from_secs(60);

/// The parameters of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) connections: usize,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Plan {
    pub(crate) fn options(self) -> String {
        let Self { connections, messages, bytes } = self;
        format!("-c {connections} -C {messages} -S {bytes} -p {PORT}")
    }
}

/// One of our connections.
struct Node {
    index: usize,
    qp: QueuePair,
    cq: CompletionQueue,
    region: MemoryRegion,
    plan: Plan,
}

impl Node {
    /// Creates a queue pair with all its receives.
    fn new(context: &Context, plan: Plan, index: usize) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(2 * plan.messages + 1, None)?;
        let room = (2 * plan.messages * plan.bytes).max(1);
        let region = pd.allocate(room, Access::LOCAL_WRITE)?;
        let wanted = plan.messages.max(1);
        let capabilities =
            QpCapabilities { max_send_wr: wanted, max_recv_wr: wanted, ..QpCapabilities::default() };
        let options = QueuePairOptions::new(QpType::Rc, &cq).capabilities(capabilities);
        let node = Self { index, qp: pd.create_qp(&options)?, cq, region, plan };
        node.qp.modify(&QpAttr {
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpAttr::to_state(QpState::Init)
        })?;
        for message in 0..plan.messages {
            let element = node.region.element(node.place(message));
            node.qp.post_recv(&RecvWr { wr_id: message as u64, elements: &[element] })?;
        }
        Ok(node)
    }

    /// Returns the place of a received message; places for sending follow these.
    fn place(&self, message: usize) -> std::ops::Range<usize> {
        message * self.plan.bytes..(message + 1) * self.plan.bytes
    }

    fn content(&self, message: usize) -> Vec<u8> {
        pattern(self.plan.bytes, (self.index * 1000 + message) as u64)
    }

    fn send_all(&self) -> Result<()> {
        for message in 0..self.plan.messages {
            let place = self.place(self.plan.messages + message);
            self.region.write(place.start, &self.content(message))?;
            let elements = [self.region.element(place)];
            self.qp.post_send(&SendWr::new(message as u64, SendOp::Send, &elements))?;
        }
        Ok(())
    }

    /// Waits for this number of receives and sends. The receives must arrive in order and complete.
    fn complete(&self, receives: usize, sends: usize) -> Result<()> {
        let (mut received, mut sent) = (0, 0);
        let mut done = [Wc::default()];
        while received < receives || sent < sends {
            let waited = self.cq.wait(&mut done, Some(PATIENCE));
            waited.with_context(|| format!("connection {}: {received} received", self.index))?;
            let wc = done[0];
            ensure!(wc.status == WcStatus::Success, "connection {}: {wc:?}", self.index);
            if wc.opcode == WcOpcode::Recv {
                ensure!(wc.wr_id == received as u64, "receive {} before {received}", wc.wr_id);
                ensure!(wc.byte_len as usize == self.plan.bytes, "{} bytes came", wc.byte_len);
                received += 1;
            } else {
                ensure!(wc.wr_id == sent as u64, "SEND {} before {sent}", wc.wr_id);
                sent += 1;
            }
        }
        Ok(())
    }

    fn received(&self, message: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.plan.bytes];
        self.region.read(self.place(message).start, &mut bytes)?;
        Ok(bytes)
    }

    /// Checks that all messages are equal to this one.
    fn all_are(&self, expected: &[u8]) -> Result<()> {
        for message in 0..self.plan.messages {
            let found = self.received(message)?;
            ensure!(found == expected, "message {message} of connection {} is wrong", self.index);
        }
        Ok(())
    }
}

fn await_end(connection: &mut Connection) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match connection.next_event(Some(end.saturating_duration_since(Instant::now())))? {
            ConnectionEvent::Disconnected => return Ok(()),
            ConnectionEvent::Established { .. } => {}
            other => bail!("instead of the end of a connection came {other:?}"),
        }
    }
}

/// Accepts the connections of one ucmatose, exchanges messages and disconnects.
pub(crate) fn serve(context: &Context, listener: &CmListener, plan: Plan) -> Result<()> {
    let mut nodes = Vec::new();
    let parameters = ConnectionParameters::default().access(Access::empty());
    for index in 0..plan.connections {
        let request =
            listener.accept(Some(PATIENCE)).with_context(|| format!("waiting for connection {index}"))?;
        let node = Node::new(context, plan, index)?;
        let connection = request.accept(&node.qp, &parameters)?;
        nodes.push((node, connection));
    }
    for (node, connection) in &mut nodes {
        connection.established(Some(PATIENCE)).with_context(|| format!("connection {}", node.index))?;
    }
    for (node, _) in &nodes {
        node.send_all()?;
    }
    for (node, _) in &nodes {
        node.complete(plan.messages, plan.messages)?;
        if plan.messages > 0 {
            node.all_are(&node.content(plan.messages - 1))?;
        }
    }
    for (_, connection) in &mut nodes {
        connection.disconnect()?;
    }
    nodes.iter_mut().try_for_each(|(_, connection)| await_end(connection))
}

/// Connects to a ucmatose server, replies, and waits for its disconnect.
fn ask(context: &Context, server: IpAddr, plan: Plan) -> Result<()> {
    let mut nodes = Vec::new();
    let parameters = ConnectionParameters::default().access(Access::empty());
    for index in 0..plan.connections {
        let node = Node::new(context, plan, index)?;
        let connection = context.connect((server, PORT).into(), &node.qp, &parameters)?;
        nodes.push((node, connection));
    }
    for (node, _) in &nodes {
        node.complete(plan.messages, 0)?;
        node.all_are(&node.received(0)?)?;
    }
    for (node, _) in &nodes {
        node.send_all()?;
    }
    // The server disconnects when it has all replies, which it has acknowledged before.
    nodes.iter_mut().try_for_each(|(_, connection)| await_end(connection))
}

const PLAN: Plan = Plan { connections: 8, messages: 10, bytes: 3000 };

fn summary(plan: Plan) -> String {
    format!("{} connections with {} messages in each direction", plan.connections, plan.messages)
}

pub(crate) fn as_server(setting: &Setting, family: Family) -> Result<String> {
    let context = setting.open(family, 31, None)?;
    let listener = context.listen(PortSpace::Tcp, PORT)?;
    let line = format!("ucmatose -s {} {}", setting.addresses(family).ours, PLAN.options());
    let client = Running::start(&mut in_guest(setting, SECONDS, &line));
    serve(&context, &listener, PLAN)?;
    check("ucmatose in the guest", &client.finish(SECONDS + 20))?;
    Ok(summary(PLAN))
}

pub(crate) fn as_client(setting: &Setting, family: Family) -> Result<String> {
    let context = setting.open(family, 32, None)?;
    let theirs = setting.addresses(family).theirs;
    let line = format!("ucmatose -b {theirs} {}", PLAN.options());
    let server = Running::start(&mut in_guest(setting, SECONDS, &line));
    await_listener(setting)?;
    ask(&context, theirs, PLAN)?;
    check("ucmatose in the guest", &server.finish(SECONDS + 20))?;
    Ok(summary(PLAN))
}
