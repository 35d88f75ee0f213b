//! The second process: does what it is told and checks what arrives.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roce_transport::{GRH_AREA, WcFlags};

use super::world::{Order, Report, TARGET, Transport, World, injector};
use crate::common::set;
use roce::verbs::{Context, ContextBuilder};
use roce_device::OpenOptions;
use roce_tools::exchange::Exchange;
use roce_tools::measure;

/// Serves the first process at `address` until it says that it is done or goes away.
pub(super) fn run(address: SocketAddr) -> anyhow::Result<()> {
    let mut exchange = Exchange::connect(address)?;
    let mut world = None;
    loop {
        let order: Order = exchange.receive("an order")?;
        if let Order::Serve { device, address } = &order {
            serve(&mut exchange, device, *address)?;
            continue;
        }
        let quit = matches!(order, Order::Quit);
        let report = obey(&mut world, order).unwrap_or_else(|error| Report::Failed(format!("{error:#}")));
        exchange.send("a report", &report)?;
        if quit {
            return Ok(());
        }
    }
}

/// Serves one measurement over a second connection.
fn serve(exchange: &mut Exchange, device: &str, address: SocketAddr) -> anyhow::Result<()> {
    let opened = Context::open(device);
    let report = match &opened {
        Ok(_) => Report::Done,
        Err(error) => Report::Failed(error.to_string()),
    };
    exchange.send("a report", &report)?;
    let Ok(context) = opened else { return Ok(()) };
    let report = match Exchange::connect(address)
        .map_err(roce_tools::ToolError::from)
        .and_then(|line| measure::serve(&context, line, None))
    {
        Ok(_) => Report::Done,
        Err(error) => Report::Failed(error.to_string()),
    };
    drop(context);
    Ok(exchange.send("a report", &report)?)
}

fn obey(slot: &mut Option<World>, order: Order) -> anyhow::Result<Report> {
    match order {
        Order::Open { device, fault, seed } => return open(slot, &device, fault.as_deref(), seed),
        Order::Close => {
            *slot = None;
            return Ok(Report::Done);
        }
        Order::Quit => return Ok(Report::Done),
        _ => {}
    }
    let world = slot.as_mut().context("no device is open")?;
    match order {
        Order::Connect(introduction) => {
            world.connect(&introduction)?;
            world.meet(&introduction)?;
        }
        Order::Fill { offset, len, seed } => world.fill(offset, len, seed)?,
        Order::Receive { transport, len } => world.receive(transport, len)?,
        Order::Received { transport, len, seed, patience_ms } => {
            return received(world, transport, len, seed, Duration::from_millis(patience_ms));
        }
        Order::Check { offset, len, seed } => world.check(offset, len, seed)?,
        Order::Word { offset } => return Ok(Report::Word(world.word(offset)?)),
        Order::SetWord { offset, value } => world.set_word(offset, value)?,
        Order::Counters => {
            let counters = world.context.counters();
            return Ok(Report::Counters {
                retransmitted_packets: counters.retransmitted_packets,
                timeouts: counters.local_ack_timeout_err,
                sequence_naks: counters.packet_seq_err + counters.implied_nak_seq_err,
            });
        }
        Order::Open { .. } | Order::Close | Order::Serve { .. } | Order::Quit => {}
    }
    Ok(Report::Done)
}

fn open(
    slot: &mut Option<World>,
    device: &str,
    fault: Option<&str>,
    seed: Option<u64>,
) -> anyhow::Result<Report> {
    let transmit_faults = match fault {
        Some(plan) => Some(injector(plan.parse()?, seed)),
        None => None,
    };
    let options = OpenOptions { transmit_faults, ..OpenOptions::default() };
    let world =
        World::new(set(Context::builder(), seed, ContextBuilder::seed).options(options).open(device)?)?;
    let introduction = world.introduction()?;
    *slot = Some(world);
    Ok(Report::Opened(introduction))
}

fn received(
    world: &World,
    transport: Transport,
    len: usize,
    seed: u32,
    patience: Duration,
) -> anyhow::Result<Report> {
    let Some(wc) = world.received(transport, patience)? else {
        return Ok(Report::Received { arrived: false, imm: None });
    };
    let headroom = if transport == Transport::Ud { GRH_AREA } else { 0 };
    if wc.byte_len as usize != len + headroom {
        bail!("a message of {} bytes arrived where {} were sent", wc.byte_len, len + headroom);
    }
    world.check(TARGET + headroom, len, seed)?;
    let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm.0);
    Ok(Report::Received { arrived: true, imm })
}
