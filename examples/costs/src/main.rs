//! Measures costs of the library that no device limits: the engine without I/O, an empty poll, the memory of
//! an idle queue pair, the processor time of a waiting connection, several engines in one context, and small
//! requests with responses, compared with kernel TCP. `bench/compare` calls this program. `bench/scale` calls
//! it with `scale`, which measures one point of a curve against the number of objects.
//!
//! `cargo run --profile fast -p costs -- engine`, `poll`, `memory`, `idle` or `engines 2`; each prints one
//! line of JSON. For requests, run `costs serve roce 127.0.0.1 18700` and, together with it, `costs call roce
//! 127.0.0.1 127.0.0.2 18700`. Instead of `roce`, write `one-port` for packets from one UDP port, or `tcp`.

mod engine;
mod engines;
mod idle;
mod outcome;
mod pair;
mod requests;
mod scale;
mod usage;

use std::net::SocketAddr;

use outcome::Outcome;

const USAGE: &str = "costs engine [WRITES] | poll [POLLS] | memory [PAIRS] [SEND_WR RECV_WR] | idle [SECONDS] | \
                     engines 1|2|threads|contexts [SIZE [MILLISECONDS]] | scale NAME N | \
                     serve roce|one-port|tcp ADDRESS PORT | call roce|one-port|tcp ADDRESS SERVER PORT [REQUESTS]";

/// Returns the number at this place of the command line, or `otherwise` if the command line is shorter.
fn number(words: &[String], place: usize, otherwise: u64) -> Outcome<u64> {
    words.get(place).map_or(Ok(otherwise), |word| Ok(word.parse()?))
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match names[..] {
        ["engine", ..] => engine::writes(number(&words, 1, 4_000_000)?)?,
        ["poll", ..] => idle::polls(number(&words, 1, 5_000_000)?)?,
        ["memory", ..] => {
            let sizes = [number(&words, 2, 16)?, number(&words, 3, 16)?];
            idle::memory(number(&words, 1, 10_000)? as usize, sizes.map(|size| size as usize))?
        }
        ["engines", division, ..] => {
            engines::rates(division, number(&words, 2, 4096)?, number(&words, 3, 1_500)?)?
        }
        ["scale", name, argument] => match scale::point(name, argument)? {
            Some(result) => result,
            None => return Ok(()),
        },
        ["idle", ..] => idle::waiting(number(&words, 1, 5)?)?,
        ["serve", kind, address, port] => {
            return requests::serve(kind, SocketAddr::new(address.parse()?, port.parse()?));
        }
        ["call", kind, address, server, port, ..] => {
            let server = SocketAddr::new(server.parse()?, port.parse()?);
            requests::call(kind, address.parse()?, server, number(&words, 5, 500_000)?)?
        }
        _ => return Err(format!("{USAGE}; NAME N is {}", scale::NAMES).into()),
    };
    println!("{result}");
    Ok(())
}
