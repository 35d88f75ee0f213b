//! The server of the page, with a capture and live data.

mod access;
mod live;
mod packets;
mod page;
mod server;

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::broadcast;

use self::access::Token;
use self::live::Sampler;
use self::packets::Followed;
use self::server::Site;
use super::Args;
use crate::platform::Signals;
use crate::terminal::Output;

/// Time between two events of live data, so at most 5 events in a second. Each event reads every process
/// once, as `roce stat` does.
const INTERVAL: Duration = Duration::from_millis(200);
/// Events that wait for a slow browser before it misses some.
const WAITING_EVENTS: usize = 8;
/// Added to the nice value of this process: the observed ones have the processors first.
const NICER: i32 = 10;

pub(in crate::network) fn run(args: &Args, output: &mut Output) -> anyhow::Result<ExitCode> {
    // Before other threads start, so that no signal is lost.
    let signals = Signals::block().context("cannot wait for signals")?;
    let page = page::load(args.page.as_deref())?;
    if let Some(capture) = &args.file {
        check_capture(capture)?;
    }
    let token = Token::random().context("the system has no random bytes for the token of the link")?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).with_context(|| {
        format!("cannot listen on TCP port {} of 127.0.0.1; choose another one with --port", args.port)
    })?;
    let address = listener.local_addr().context("cannot read the address of the page")?;
    // Without this the page works as well.
    let _ = rustix::process::nice(NICER);
    let (events, _) = broadcast::channel(WAITING_EVENTS);
    let followed = args.file.as_deref().filter(|_| args.follow);
    let followed = followed.map(|path| {
        let events = events.clone();
        Followed::start(path, move || events.receiver_count() > 0)
    });
    let followed = followed.transpose().context("cannot start a thread that reads the capture")?;
    let fragment = if args.file.is_some() { "#capture" } else { "" };
    let link = format!("http://{address}/?token={}{fragment}", token.text());
    let site = Site { token, page, capture: args.file.clone(), events: events.clone() };
    let server = thread::Builder::new().name("explore".into()).spawn(move || server::serve(listener, site));
    let server = server.context("cannot start the thread of the server")?;
    writeln!(output, "The page is at this link, which is secret, until Ctrl-C:\n\n  {link}\n")?;
    output.flush()?;
    let mut sampler = Sampler::new(followed);
    while !server.is_finished() {
        if signals.wait(INTERVAL).context("cannot wait for signals")? {
            return Ok(ExitCode::SUCCESS);
        }
        if events.receiver_count() == 0 {
            sampler.forget();
            continue;
        }
        // A browser that has just gone does not end the command.
        let _ = events.send(sampler.event()?.into());
    }
    match server.join() {
        Ok(Err(error)) => Err(error).context("cannot serve the page"),
        Ok(Ok(())) | Err(_) => bail!("the server of the page ended unexpectedly"),
    }
}

/// Checks that a capture can be read, before a browser shows the error.
fn check_capture(capture: &Path) -> anyhow::Result<()> {
    let metadata = std::fs::File::open(capture).and_then(|file| file.metadata());
    let metadata = metadata.with_context(|| format!("cannot read {}", capture.display()))?;
    if !metadata.is_file() {
        bail!("{}: the page needs a file, because a browser may load it several times", capture.display());
    }
    Ok(())
}
