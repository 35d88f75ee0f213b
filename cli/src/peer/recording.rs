//! `roce peer --from`: a script from a connection of a capture file.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, bail};
use roce_analysis::Collector;
use roce_analysis::connection::{Connection, End};
use roce_packet::{BthView, Direction, Ecn, ROCE_UDP_PORT};
use roce_peer::recorded::{Recorded, script_of};
use roce_transport::Instant;

use crate::decode;
use crate::input::captures;
use crate::terminal::Output;

/// A packet of the connection.
struct Kept {
    time_ns: u64,
    /// The end that sent it.
    end: usize,
    bytes: Vec<u8>,
    is_marked: bool,
    has_wrong_icrc: bool,
    is_request: bool,
}

/// Prints the script that repeats a connection. It plays the end with the address `play`, or the end that
/// sent the first request.
pub(super) fn print(
    file: &Path,
    number: usize,
    play: Option<IpAddr>,
    output: &mut Output,
) -> anyhow::Result<()> {
    if file == Path::new("-") {
        bail!("--from reads its file twice, so it cannot be `-`; write the capture to a file first");
    }
    let captures = captures::read(&[file.to_owned()], Collector::new(ROCE_UDP_PORT), false)?;
    if let Some(reason) = captures.why_empty() {
        bail!(reason);
    }
    let Some((_, connection)) = captures.connections(Some(number))?.first().copied() else {
        bail!("{}: no connection; `roce dissect FILE` lists the packets", file.display());
    };
    let kept = packets_of(file, connection)?;
    let own = match play {
        Some(address) => {
            connection.ends.iter().position(|end| end.address == address).with_context(|| {
                let [one, other] = connection.ends.map(|end| end.address);
                format!("connection {number} has no end {address}; its ends are {one} and {other}")
            })?
        }
        None => kept.iter().find(|packet| packet.is_request).map_or(0, |packet| packet.end),
    };
    let first = kept.first().map_or(0, |packet| packet.time_ns);
    let recorded: Vec<Recorded<'_>> = kept
        .iter()
        .map(|packet| Recorded {
            at: Instant::from_nanos(packet.time_ns.saturating_sub(first)),
            is_sent: packet.end == own,
            bytes: &packet.bytes,
            is_marked: packet.is_marked,
            has_wrong_icrc: packet.has_wrong_icrc,
        })
        .collect();
    let [script, nic] = [own, 1 - own].map(|end| connection.ends.map(|end| end.address)[end]);
    let title = format!(
        "Connection {number} of {}: the script is {script}, the NIC {nic}",
        file.file_name().unwrap_or_default().to_string_lossy()
    );
    let text = script_of(&title, &recorded)
        .with_context(|| format!("{}: connection {number} makes no script", file.display()))?;
    write!(output, "{text}")?;
    output.flush()?;
    Ok(())
}

/// Reads the packets of a connection.
fn packets_of(file: &Path, connection: &Connection) -> anyhow::Result<Vec<Kept>> {
    let mut reader = crate::input::open(file)?;
    let mut kept = Vec::new();
    while let Some(packet) = reader.next_packet() {
        // A damage of the file was reported before.
        let Ok(packet) = packet else { break };
        let Some(framed) = decode::captured(&packet) else { continue };
        let outer = framed.decode(ROCE_UDP_PORT);
        let (Some(transport), Some(addresses)) = (outer.transport, outer.addresses()) else { continue };
        let Ok((bth, _)) = BthView::from_prefix(transport) else { continue };
        let [one, other] = connection.ends;
        let goes =
            |from: End, to: End| (from.address, to.address) == addresses && to.qpn == Some(bth.dest_qp());
        let end = if goes(one, other) {
            0
        } else if goes(other, one) {
            1
        } else {
            continue;
        };
        if outer.cut.is_some() {
            bail!(
                "{}: packet {} is cut; a script needs whole packets, so capture without a limit of bytes",
                file.display(),
                packet.number
            );
        }
        let telemetry_len = outer.check_icrc().map_or(0, |icrc| icrc.telemetry_len);
        let len = outer.transport_len.saturating_sub(telemetry_len);
        kept.push(Kept {
            time_ns: packet.time_ns.unwrap_or(0),
            end,
            bytes: transport.get(..len).unwrap_or(transport).to_vec(),
            is_marked: outer
                .traffic_class()
                .is_some_and(|class| Ecn::from_bits(class) == Ecn::CongestionExperienced),
            has_wrong_icrc: outer.check_icrc().is_some_and(|icrc| !icrc.check.is_good()),
            is_request: bth.opcode().info().is_some_and(|info| info.direction == Direction::Request),
        });
    }
    Ok(kept)
}
