//! The sockets of servers, the device that serves a client, and the command that a server prints for the
//! other side.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use roce::verbs::Context;
use roce_exchange::{ClientQueue, Exchange, Listening, own_addresses};

use super::default_device::called_device;
use super::device_options::DeviceArgs;
use super::errors::with_causes;
use super::terminal::Output;

/// Maximum number of addresses that are listed.
const MOST_LISTED: usize = 8;

/// The text that a server prints when it starts.
pub(super) struct Announcement<'a> {
    /// The command for the other side, without the address.
    pub(super) command: String,
    /// Options of the command behind the address, with a leading blank.
    pub(super) options: String,
    /// Another program that may connect, with the word before it.
    pub(super) other_program: Option<&'a str>,
}

impl Announcement<'_> {
    /// Prints where the server waits, and the command for the other side. `address` is that of the device, if
    /// the user chose one.
    pub(super) fn print(
        &self,
        output: &mut Output,
        address: Option<IpAddr>,
        listening: &Listening,
    ) -> std::io::Result<()> {
        let Self { command, options, other_program } = self;
        let port = listening.port();
        let other = other_program.map_or_else(String::new, |program| format!(" for {program}"));
        if let Some(address) = address {
            writeln!(
                output,
                "waiting on {address}, TCP port {port}{other}; on the other side, run: {command} {address}{options}"
            )?;
            return output.flush();
        }
        writeln!(
            output,
            "waiting on TCP port {port} of every address{other}; on the other side, run one of"
        )?;
        let addresses = own_addresses();
        let has_others = addresses.iter().any(|local| !local.is_loopback);
        for local in
            addresses.iter().filter(|local| !(local.is_loopback && local.address.is_ipv6())).take(MOST_LISTED)
        {
            let place = match local.address {
                _ if local.is_loopback && has_others => "on this machine".to_owned(),
                IpAddr::V6(address) if address.is_unicast_link_local() => {
                    writeln!(
                        output,
                        "  {command} {address}%INTERFACE{options}   ({}; INTERFACE is the interface of the other side)",
                        local.interface
                    )?;
                    continue;
                }
                _ => local.interface.clone(),
            };
            writeln!(output, "  {command} {}{options}   ({place})", local.address)?;
        }
        output.flush()
    }
}

/// Formats an option with its value, unless it is the default.
pub(super) fn option<T: PartialEq + std::fmt::Display>(name: &str, value: T, default: T) -> String {
    if value == default { String::new() } else { format!(" {name} {value}") }
}

/// The contexts of a server: one on the device that the user chose, or one on each address that a client
/// calls.
pub(super) enum Contexts<'a> {
    /// The context on the device that the user chose.
    Chosen(Context),
    /// The context on the address that was called last.
    Called { args: &'a DeviceArgs, last: Option<(SocketAddr, Context)> },
}

impl<'a> Contexts<'a> {
    /// Opens the device that the user chose, if any, and listens.
    pub(super) fn listen(args: &'a DeviceArgs, port: u16) -> anyhow::Result<(Self, Listening)> {
        let taken = |address: String| {
            format!(
                "cannot listen on {address} port {port}; if another server uses the port, choose another with --port"
            )
        };
        if args.device.is_none() {
            let listening = Listening::everywhere(port).with_context(|| taken("TCP".to_owned()))?;
            return Ok((Self::Called { args, last: None }, listening));
        }
        let context = args.open(|| Ok(String::new()))?;
        let address = context.address().context("the device has no address")?;
        let listening = Listening::of_device(&context, port).with_context(|| taken(address.to_string()))?;
        Ok((Self::Chosen(context), listening))
    }

    /// Returns the address of the device that the user chose.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Chosen(context) => context.address(),
            Self::Called { .. } => None,
        }
    }

    /// Returns the context for a client that called this address.
    pub(super) fn open(&mut self, called: Option<SocketAddr>) -> anyhow::Result<Context> {
        match self {
            Self::Chosen(context) => Ok(context.clone()),
            Self::Called { args, last } => {
                let same = |known: &SocketAddr| called.is_some_and(|called| known.ip() == called.ip());
                if let Some((_, context)) = last.as_ref().filter(|(known, _)| same(known)) {
                    return Ok(context.clone());
                }
                // The old context may occupy the port that the new one needs.
                *last = None;
                let context = args.open(|| Ok(called_device(called)))?;
                *last = called.map(|called| (called, context.clone()));
                Ok(context)
            }
        }
    }

    /// Drops a context that may not work any more.
    pub(super) fn forget(&mut self) {
        if let Self::Called { last, .. } = self {
            *last = None;
        }
    }
}

/// Returns the next client, and the result of `open` for it. If `open` fails, the client is told why.
pub(super) fn next_client<T>(
    clients: &ClientQueue,
    allowed: &[IpAddr],
    open: impl FnOnce(&Exchange) -> anyhow::Result<T>,
) -> anyhow::Result<(Exchange, anyhow::Result<T>)> {
    let mut exchange = clients.next()?.allow_peers(allowed);
    let opened = open(&exchange);
    if let Err(error) = &opened {
        exchange.fail(&with_causes(error));
    }
    Ok((exchange, opened))
}
