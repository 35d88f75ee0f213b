//! The operations of the demo and their results.

use anyhow::bail;
use roce_packet::ImmDt;
use roce_transport::{FlushPlacement, Payload, SendFlags, SendOp, SendWr, Sge};
use serde::Serialize;

use super::side::{RESULT, Remote, Request, Response, SOURCE, Side, TARGET, Transport};
use crate::terminal::{Paint, Style};
use roce_exchange::Exchange;

/// The length of a message in one packet, and the odd length of a message in many packets.
const SHORT: usize = 100;
const LONG: usize = 20_003;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) name: &'static str,
    transport: Transport,
    kind: Kind,
    len: usize,
}

const fn operation(name: &'static str, transport: Transport, kind: Kind, len: usize) -> Operation {
    Operation { name, transport, kind, len }
}

pub(super) const OPERATIONS: &[Operation] = &[
    operation("RC SEND", Transport::Rc, Kind::Send, LONG),
    operation("RC SEND with immediate", Transport::Rc, Kind::SendImm, SHORT),
    operation("RC WRITE", Transport::Rc, Kind::Write, LONG),
    operation("RC WRITE with immediate", Transport::Rc, Kind::WriteImm, LONG),
    operation("RC READ", Transport::Rc, Kind::Read, LONG),
    operation("RC COMPARE SWAP", Transport::Rc, Kind::CompareSwap, 8),
    operation("RC FETCH ADD", Transport::Rc, Kind::FetchAdd, 8),
    operation("RC ATOMIC WRITE", Transport::Rc, Kind::AtomicWrite, 8),
    operation("RC FLUSH", Transport::Rc, Kind::Flush, 0),
    operation("UC SEND", Transport::Uc, Kind::Send, LONG),
    operation("UC WRITE with immediate", Transport::Uc, Kind::WriteImm, LONG),
    operation("UD SEND", Transport::Ud, Kind::Send, 1000),
    operation("UD SEND with immediate", Transport::Ud, Kind::SendImm, SHORT),
];

/// The result of one operation.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    name: &'static str,
    bytes: usize,
    reliable: bool,
    sent: u32,
    verified: u32,
}

impl Outcome {
    pub(super) fn new(operation: &Operation) -> Self {
        let reliable = operation.transport == Transport::Rc;
        Self { name: operation.name, bytes: operation.len, reliable, sent: 0, verified: 0 }
    }

    /// Accepts lost messages only on an unreliable transport with faults.
    pub(super) fn check(&self, faults: bool) -> anyhow::Result<()> {
        if self.verified < self.sent && (self.reliable || !faults) {
            bail!("{}: {} of {} messages did not arrive", self.name, self.sent - self.verified, self.sent);
        }
        Ok(())
    }

    pub(super) fn line(&self, style: Style) -> String {
        let lost = self.sent - self.verified;
        let mark =
            if lost == 0 { style.paint(Paint::GREEN, "ok  ") } else { style.paint(Paint::DIM, "lost") };
        let count =
            if self.sent == 1 { String::new() } else { format!("  {} of {}", self.verified, self.sent) };
        let note = if lost > 0 { " (allowed on an unreliable transport)" } else { "" };
        format!("{mark} {:<24} {:>6} bytes{count}{note}", self.name, self.bytes)
    }
}

/// Runs one operation with the second process and verifies the result.
pub(super) fn run(
    side: &mut Side,
    exchange: &mut Exchange,
    operation: &Operation,
    round: u32,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut execution =
        Execution { side, exchange, operation, seed: round * 1000 + operation.len as u32 + 1 };
    outcome.sent += 1;
    let verified = match operation.kind {
        Kind::Send | Kind::SendImm | Kind::WriteImm => execution.message()?,
        Kind::Write => execution.write()?,
        Kind::Read => execution.read()?,
        Kind::CompareSwap | Kind::FetchAdd => execution.atomic(round)?,
        Kind::AtomicWrite => execution.atomic_write()?,
        Kind::Flush => execution.flush()?,
    };
    outcome.verified += u32::from(verified);
    Ok(())
}

struct Execution<'a> {
    side: &'a mut Side,
    exchange: &'a mut Exchange,
    operation: &'a Operation,
    seed: u32,
}

impl Execution<'_> {
    fn request(&mut self, request: &Request) -> anyhow::Result<Response> {
        match self.exchange.swap("a response", request)? {
            Response::Failed(reason) => bail!("the second process: {reason}"),
            response => Ok(response),
        }
    }

    fn remote(&self) -> anyhow::Result<Remote> {
        Ok(self.side.remote()?.clone())
    }

    /// Posts one request and waits for its completion.
    fn post(&self, op: SendOp, elements: &[Sge]) -> anyhow::Result<()> {
        let destination = match self.operation.transport {
            Transport::Ud => Some(self.remote()?.datagram.destination()),
            _ => None,
        };
        let (payload, flags) = (Payload::Elements(elements), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 1, op, flags, payload, destination, remote_srqn: 0 };
        self.side.qp(self.operation.transport).post_send(&wr)?;
        self.side.sent().map(|_| ())
    }

    fn source(&self) -> Sge {
        self.side.region.element(SOURCE..SOURCE + self.operation.len)
    }

    /// Executes SEND or WRITE with immediate data, which complete a receive.
    fn message(&mut self) -> anyhow::Result<bool> {
        let Operation { transport, len, kind, .. } = *self.operation;
        let remote = self.remote()?;
        self.request(&Request::Fill { offset: TARGET, len: len + 64, seed: 0 })?;
        self.request(&Request::Receive { transport, len })?;
        self.side.fill(SOURCE, len, self.seed)?;
        let imm = ImmDt(self.seed.to_be_bytes());
        let op = match kind {
            Kind::SendImm => SendOp::SendWithImm(imm),
            Kind::WriteImm => {
                SendOp::WriteWithImm { remote_addr: remote.addr + TARGET as u64, rkey: remote.rkey, imm }
            }
            _ => SendOp::Send,
        };
        self.post(op, &[self.source()])?;
        // A packet between two processes of one machine arrives within milliseconds.
        let timeout_ms = if transport == Transport::Rc { 5_000 } else { 20 };
        let request = Request::Received { transport, len, seed: self.seed, timeout_ms };
        let Response::Received { arrived, imm: found } = self.request(&request)? else {
            bail!("the second process sent an unexpected response")
        };
        if arrived && kind != Kind::Send && found != Some(imm.0) {
            bail!("received immediate data {found:02x?}, expected {:02x?}", imm.0);
        }
        Ok(arrived)
    }

    fn write(&mut self) -> anyhow::Result<bool> {
        let (remote, len, seed) = (self.remote()?, self.operation.len, self.seed);
        self.side.fill(SOURCE, len, seed)?;
        self.post(
            SendOp::Write { remote_addr: remote.addr + TARGET as u64, rkey: remote.rkey },
            &[self.source()],
        )?;
        self.request(&Request::Check { offset: TARGET, len, seed })?;
        Ok(true)
    }

    fn read(&mut self) -> anyhow::Result<bool> {
        let (remote, len, seed) = (self.remote()?, self.operation.len, self.seed);
        self.request(&Request::Fill { offset: SOURCE, len, seed })?;
        let target = self.side.region.element(RESULT..RESULT + len);
        self.post(SendOp::Read { remote_addr: remote.addr + SOURCE as u64, rkey: remote.rkey }, &[target])?;
        self.side.check(RESULT, len, seed)?;
        Ok(true)
    }

    /// Checks that the old value is returned and the new one is stored.
    fn atomic(&mut self, round: u32) -> anyhow::Result<bool> {
        let remote = self.remote()?;
        let (remote_addr, rkey) = (remote.addr + TARGET as u64, remote.rkey);
        let old = u64::from(round) << 40 | 41;
        self.request(&Request::SetWord { offset: TARGET, value: old })?;
        let (op, new) = if self.operation.kind == Kind::FetchAdd {
            (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, old + 1)
        } else {
            (SendOp::CompareSwap { remote_addr, rkey, compare: old, swap: !old }, !old)
        };
        self.post(op, &[self.side.region.element(RESULT..RESULT + 8)])?;
        let found = self.side.word(RESULT)?;
        if found != old {
            bail!("the atomic operation returned {found:#x}, expected {old:#x}");
        }
        self.expect_word(new)
    }

    fn atomic_write(&mut self) -> anyhow::Result<bool> {
        let remote = self.remote()?;
        let value = u64::from(self.seed) << 32 | 0x00c0_ffee;
        self.side.set_word(SOURCE, value)?;
        let op = SendOp::AtomicWrite { remote_addr: remote.addr + TARGET as u64, rkey: remote.rkey };
        self.post(op, &[self.source()])?;
        self.expect_word(value)
    }

    fn expect_word(&mut self, expected: u64) -> anyhow::Result<bool> {
        match self.request(&Request::Word { offset: TARGET })? {
            Response::Word(found) if found == expected => Ok(true),
            other => bail!("the memory of the second process contains {other:x?}, expected {expected:#x}"),
        }
    }

    fn flush(&mut self) -> anyhow::Result<bool> {
        let remote = self.remote()?;
        let op = SendOp::Flush {
            remote_addr: remote.addr,
            rkey: remote.rkey,
            length: 4096,
            placement: FlushPlacement::GLOBAL_VISIBILITY,
            whole_region: false,
        };
        self.post(op, &[])?;
        Ok(true)
    }
}
