//! The operations that the demo shows, and what became of each.

use anyhow::bail;
use roce_packet::ImmDt;
use roce_transport::{FlushPlacement, Payload, SendFlags, SendOp, SendWr, Sge};
use serde::Serialize;

use super::world::{Order, RESULT, Remote, Report, SOURCE, TARGET, Transport, World};
use crate::terminal::{Paint, Style};
use roce_tools::exchange::Exchange;

/// A message that fits one packet, and one of many packets with an odd length.
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

/// What became of an operation.
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

    /// Unreliable messages may be lost while packets are, and only then.
    pub(super) fn check(&self, faults: bool) -> anyhow::Result<()> {
        if self.verified < self.sent && (self.reliable || !faults) {
            bail!("{}: {} of {} messages never arrived", self.name, self.sent - self.verified, self.sent);
        }
        Ok(())
    }

    pub(super) fn line(&self, style: Style) -> String {
        let lost = self.sent - self.verified;
        let mark =
            if lost == 0 { style.paint(Paint::GREEN, "ok  ") } else { style.paint(Paint::DIM, "lost") };
        let count =
            if self.sent == 1 { String::new() } else { format!("  {} of {}", self.verified, self.sent) };
        let note = if lost > 0 { ", as an unreliable transport may" } else { "" };
        format!("{mark} {:<24} {:>6} bytes{count}{note}", self.name, self.bytes)
    }
}

/// Carries out one operation with the help of the other side and has the result verified.
pub(super) fn run(
    world: &mut World,
    exchange: &mut Exchange,
    operation: &Operation,
    round: u32,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut scene = Scene { world, exchange, operation, seed: round * 1000 + operation.len as u32 + 1 };
    outcome.sent += 1;
    let verified = match operation.kind {
        Kind::Send | Kind::SendImm | Kind::WriteImm => scene.message()?,
        Kind::Write => scene.write()?,
        Kind::Read => scene.read()?,
        Kind::CompareSwap | Kind::FetchAdd => scene.atomic(round)?,
        Kind::AtomicWrite => scene.atomic_write()?,
        Kind::Flush => scene.flush()?,
    };
    outcome.verified += u32::from(verified);
    Ok(())
}

struct Scene<'a> {
    world: &'a mut World,
    exchange: &'a mut Exchange,
    operation: &'a Operation,
    seed: u32,
}

impl Scene<'_> {
    fn order(&mut self, order: &Order) -> anyhow::Result<Report> {
        match self.exchange.swap("a report", order)? {
            Report::Failed(reason) => bail!("the second process: {reason}"),
            report => Ok(report),
        }
    }

    fn remote(&self) -> anyhow::Result<Remote> {
        Ok(*self.world.remote()?)
    }

    /// Posts one request and waits for its completion.
    fn post(&self, op: SendOp, elements: &[Sge]) -> anyhow::Result<()> {
        let destination = match self.operation.transport {
            Transport::Ud => Some(self.remote()?.datagram),
            _ => None,
        };
        let (payload, flags) = (Payload::Elements(elements), SendFlags::SIGNALED);
        let wr = SendWr { wr_id: 1, op, flags, payload, destination };
        self.world.qp(self.operation.transport).post_send(&wr)?;
        self.world.sent().map(|_| ())
    }

    fn source(&self) -> Sge {
        self.world.region.element(SOURCE..SOURCE + self.operation.len)
    }

    /// SEND, and WRITE with immediate data: the other side notices them.
    fn message(&mut self) -> anyhow::Result<bool> {
        let Operation { transport, len, kind, .. } = *self.operation;
        let remote = self.remote()?;
        self.order(&Order::Fill { offset: TARGET, len: len + 64, seed: 0 })?;
        self.order(&Order::Receive { transport, len })?;
        self.world.fill(SOURCE, len, self.seed)?;
        let imm = ImmDt(self.seed.to_be_bytes());
        let op = match kind {
            Kind::SendImm => SendOp::SendWithImm(imm),
            Kind::WriteImm => {
                SendOp::WriteWithImm { remote_addr: remote.addr + TARGET as u64, rkey: remote.rkey, imm }
            }
            _ => SendOp::Send,
        };
        self.post(op, &[self.source()])?;
        // Whatever is on its way on this machine is there within milliseconds.
        let patience_ms = if transport == Transport::Rc { 5_000 } else { 20 };
        let order = Order::Received { transport, len, seed: self.seed, patience_ms };
        let Report::Received { arrived, imm: found } = self.order(&order)? else {
            bail!("no report of the receive")
        };
        if arrived && kind != Kind::Send && found != Some(imm.0) {
            bail!("immediate data {found:02x?} arrived where {:02x?} was sent", imm.0);
        }
        Ok(arrived)
    }

    fn write(&mut self) -> anyhow::Result<bool> {
        let (remote, len, seed) = (self.remote()?, self.operation.len, self.seed);
        self.world.fill(SOURCE, len, seed)?;
        self.post(
            SendOp::Write { remote_addr: remote.addr + TARGET as u64, rkey: remote.rkey },
            &[self.source()],
        )?;
        self.order(&Order::Check { offset: TARGET, len, seed })?;
        Ok(true)
    }

    fn read(&mut self) -> anyhow::Result<bool> {
        let (remote, len, seed) = (self.remote()?, self.operation.len, self.seed);
        self.order(&Order::Fill { offset: SOURCE, len, seed })?;
        let target = self.world.region.element(RESULT..RESULT + len);
        self.post(SendOp::Read { remote_addr: remote.addr + SOURCE as u64, rkey: remote.rkey }, &[target])?;
        self.world.check(RESULT, len, seed)?;
        Ok(true)
    }

    /// The old value comes back, the new one is there.
    fn atomic(&mut self, round: u32) -> anyhow::Result<bool> {
        let remote = self.remote()?;
        let (remote_addr, rkey) = (remote.addr + TARGET as u64, remote.rkey);
        let old = u64::from(round) << 40 | 41;
        self.order(&Order::SetWord { offset: TARGET, value: old })?;
        let (op, new) = if self.operation.kind == Kind::FetchAdd {
            (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, old + 1)
        } else {
            (SendOp::CompareSwap { remote_addr, rkey, compare: old, swap: !old }, !old)
        };
        self.post(op, &[self.world.region.element(RESULT..RESULT + 8)])?;
        let found = self.world.word(RESULT)?;
        if found != old {
            bail!("the atomic brought back {found:#x} where {old:#x} was");
        }
        self.expect_word(new)
    }

    fn atomic_write(&mut self) -> anyhow::Result<bool> {
        let remote = self.remote()?;
        let value = u64::from(self.seed) << 32 | 0x00c0_ffee;
        self.world.set_word(SOURCE, value)?;
        let op = SendOp::AtomicWrite { remote_addr: remote.addr + TARGET as u64, rkey: remote.rkey };
        self.post(op, &[self.source()])?;
        self.expect_word(value)
    }

    fn expect_word(&mut self, expected: u64) -> anyhow::Result<bool> {
        match self.order(&Order::Word { offset: TARGET })? {
            Report::Word(found) if found == expected => Ok(true),
            other => bail!("the other side holds {other:x?} where {expected:#x} should be"),
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
