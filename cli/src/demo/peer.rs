//! The second process of the demo, which executes requests and verifies received data.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use roce_transport::{GRH_AREA, WcFlags};

use super::side::{Request, Response, Side, TARGET, Transport, injector};
use crate::network::device_options::set;
use roce::observe::with_causes;
use roce::verbs::{Context, ContextBuilder};
use roce_device::OpenOptions;
use roce_exchange::Exchange;
use roce_measure::measure::{self, ServerOptions};

/// Serves the first process at `address` until it quits or closes the exchange.
pub(super) fn run(address: SocketAddr) -> anyhow::Result<()> {
    let mut exchange = Exchange::connect(address)?;
    let mut side = None;
    loop {
        let request: Request = exchange.receive("a request")?;
        if let Request::Serve { device, address } = &request {
            serve(&mut exchange, device, *address)?;
            continue;
        }
        let quit = matches!(request, Request::Quit);
        let response =
            handle(&mut side, request).unwrap_or_else(|error| Response::Failed(format!("{error:#}")));
        exchange.send("a response", &response)?;
        if quit {
            return Ok(());
        }
    }
}

/// Serves one measurement over a second connection.
fn serve(exchange: &mut Exchange, device: &str, address: SocketAddr) -> anyhow::Result<()> {
    let opened = Context::open(device);
    let response = match &opened {
        Ok(_) => Response::Completed,
        Err(error) => Response::Failed(with_causes(error).to_string()),
    };
    exchange.send("a response", &response)?;
    let Ok(context) = opened else { return Ok(()) };
    let response = match Exchange::connect(address)
        .map_err(roce_exchange::ToolError::from)
        .and_then(|line| measure::serve(&context, line.allow_any_peer(), &ServerOptions::default()))
    {
        Ok(_) => Response::Completed,
        Err(error) => Response::Failed(with_causes(&error).to_string()),
    };
    drop(context);
    Ok(exchange.send("a response", &response)?)
}

fn handle(slot: &mut Option<Side>, request: Request) -> anyhow::Result<Response> {
    match request {
        Request::Open { device, fault, seed } => return open(slot, &device, fault.as_deref(), seed),
        Request::Close => {
            *slot = None;
            return Ok(Response::Completed);
        }
        Request::Quit => return Ok(Response::Completed),
        _ => {}
    }
    let side = slot.as_mut().context("no device is open")?;
    match request {
        Request::Connect(info) => {
            side.connect(&info)?;
            side.set_remote(&info)?;
        }
        Request::Fill { offset, len, seed } => side.fill(offset, len, seed)?,
        Request::Receive { transport, len } => side.receive(transport, len)?,
        Request::Received { transport, len, seed, timeout_ms } => {
            return received(side, transport, len, seed, Duration::from_millis(timeout_ms));
        }
        Request::Check { offset, len, seed } => side.check(offset, len, seed)?,
        Request::Word { offset } => return Ok(Response::Word(side.word(offset)?)),
        Request::SetWord { offset, value } => side.set_word(offset, value)?,
        Request::Counters => {
            let counters = side.context.counters();
            return Ok(Response::Counters {
                retransmitted_packets: counters.retransmitted_packets,
                timeouts: counters.expired_timers(),
                sequence_naks: counters.packet_seq_err + counters.implied_nak_seq_err,
            });
        }
        Request::Open { .. } | Request::Close | Request::Serve { .. } | Request::Quit => {}
    }
    Ok(Response::Completed)
}

fn open(
    slot: &mut Option<Side>,
    device: &str,
    fault: Option<&str>,
    seed: Option<u64>,
) -> anyhow::Result<Response> {
    let transmit_faults = match fault {
        Some(plan) => Some(injector(plan.parse()?, seed)),
        None => None,
    };
    let options = OpenOptions { transmit_faults, ..OpenOptions::default() };
    let side = Side::new(set(Context::builder(), seed, ContextBuilder::seed).options(options).open(device)?)?;
    let info = side.info()?;
    *slot = Some(side);
    Ok(Response::Opened(info))
}

fn received(
    side: &Side,
    transport: Transport,
    len: usize,
    seed: u32,
    timeout: Duration,
) -> anyhow::Result<Response> {
    let Some(wc) = side.received(transport, timeout)? else {
        return Ok(Response::Received { arrived: false, imm: None });
    };
    let headroom = if transport == Transport::Ud { GRH_AREA } else { 0 };
    if wc.byte_len as usize != len + headroom {
        bail!("received a message of {} bytes, expected {}", wc.byte_len, len + headroom);
    }
    side.check(TARGET + headroom, len, seed)?;
    let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm.0);
    Ok(Response::Received { arrived: true, imm })
}
