//! Connections over connection management, while others are established.

use std::net::SocketAddr;
use std::time::Instant;

use roce::verbs::Context;
use roce::{Listener, Peer, PeerOptions};
use roce_testing::own_address;
use serde_json::{Value, json};

use super::median::median;
use crate::outcome::Outcome;
use crate::usage::resident_bytes;

/// Connections whose time is measured at least.
const MEASURED: usize = 20;

/// Measures the time of a connection, from its request until both ends can send, with `count` connections.
/// Each end of each connection checks a message.
pub(crate) fn establish(count: usize) -> Outcome<Value> {
    let count = count.max(MEASURED);
    let options = PeerOptions::default().memory(64).message(64).buffers(2).operations(2);
    let listener = options.listen(SocketAddr::new(own_address().into(), 0))?;
    let to = listener.address();
    let near = Context::open(&format!("udp:{}", own_address()))?;
    let memory = resident_bytes()?;
    let server = std::thread::spawn(move || answer(&listener, count).map_err(|error| error.to_string()));
    let options = options.context(&near);
    let (mut kept, mut times) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for number in 0..count as u64 {
        let begun = Instant::now();
        let peer = options.connect(to)?;
        times.push(begun.elapsed().as_secs_f64());
        peer.send(&number.to_le_bytes())?.wait()?;
        if peer.receive().wait()? != (!number).to_le_bytes() {
            return Err(format!("connection {number} carries a wrong answer").into());
        }
        kept.push(peer);
    }
    let far = server.join().map_err(|_| "the server panicked")??;
    let grown = resident_bytes()?.saturating_sub(memory);
    // The measurement does not include the ends of the connections.
    std::mem::forget((kept, far));
    let last = times.len() - (times.len() / 10).max(MEASURED);
    let seconds = median(&mut times[last..]);
    Ok(json!({"x": count, "seconds": seconds, "object_bytes": grown as f64 / (2 * count) as f64}))
}

/// Accepts connections, and answers the message of each.
fn answer(listener: &Listener, count: usize) -> Outcome<Vec<Peer>> {
    let mut kept = Vec::with_capacity(count);
    for number in 0..count as u64 {
        let peer = listener.accept()?;
        if peer.receive().wait()? != number.to_le_bytes() {
            return Err(format!("connection {number} carries a wrong message").into());
        }
        peer.send(&(!number).to_le_bytes())?.wait()?;
        kept.push(peer);
    }
    Ok(kept)
}
