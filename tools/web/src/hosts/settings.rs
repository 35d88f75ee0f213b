//! The settings of two hosts, checked before anything is made from them.

use std::fmt::Display;
use std::ops::RangeInclusive;

use roce_packet::PathMtu;
use roce_sim::pair;
use roce_transport::{EngineConfig, MAX_RD_ATOMIC, Pacing, Recovery, with_causes};
use serde::Deserialize;

/// Longest time on the link, in microseconds.
const MOST_LINK_US: f64 = 1e6;

/// The settings as JSON gives them.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Given {
    /// Seed of queue pair numbers and keys.
    seed: u64,
    /// Path MTU in bytes.
    mtu: usize,
    /// Local ACK timeout: 4.096 µs × 2^timeout. 0 means never.
    timeout: u64,
    retry_cnt: u64,
    /// Retries after RNR NAKs. 7 means forever.
    rnr_retry: u64,
    /// Code of the time that RNR NAKs ask for.
    min_rnr_timer: u64,
    max_rd_atomic: u64,
    /// Time from a departure to the arrival, in microseconds.
    link_us: f64,
    /// Time in microseconds that a packet occupies the link.
    packet_us: f64,
    /// `go-back-n` or `selective-repeat`, as `roce` reads it.
    loss_recovery: String,
    /// Whether the keys of both hosts allow WRITEs.
    write_key_ok: bool,
}

impl Default for Given {
    fn default() -> Self {
        Self {
            seed: 1,
            mtu: 1024,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 4,
            link_us: 5.0,
            packet_us: 0.5,
            loss_recovery: "go-back-n".to_owned(),
            write_key_ok: true,
        }
    }
}

/// Checked settings.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) engine: EngineConfig,
    pub(super) pair: pair::Settings,
    pub(super) link_ns: u64,
    pub(super) packet_ns: u64,
    pub(super) write_key_ok: bool,
}

impl Settings {
    /// Reads settings as JSON. Those that are missing have their defaults.
    pub(super) fn read(json: &str) -> Result<Self, String> {
        let given: Given =
            serde_json::from_str(json).map_err(|error| format!("the settings are not valid: {error}"))?;
        let mtu = PathMtu::from_bytes(given.mtu)
            .ok_or_else(|| format!("mtu is {}; use 256, 512, 1024, 2048 or 4096 bytes", given.mtu))?;
        let recovery: Recovery = given
            .loss_recovery
            .parse()
            .map_err(|error| format!("loss_recovery is not valid: {}", with_causes(&error)))?;
        let mut engine = EngineConfig::from_number(given.seed);
        engine.recovery = recovery;
        // Packets that leave slowly after a loss would hide the times of the protocol.
        engine.pacing = Pacing { after_loss: false, ..engine.pacing };
        let pair = pair::Settings {
            mtu,
            // Labels count from the first request, so PSNs have the same numbers everywhere.
            psns: [0, 0],
            timeout: inside("timeout", given.timeout, 0..=31)?,
            retry_cnt: inside("retry_cnt", given.retry_cnt, 0..=7)?,
            rnr_retry: inside("rnr_retry", given.rnr_retry, 0..=7)?,
            min_rnr_timer: inside("min_rnr_timer", given.min_rnr_timer, 0..=31)?,
            rd_atomic: inside("max_rd_atomic", given.max_rd_atomic, 0..=MAX_RD_ATOMIC)?,
            ..pair::Settings::default()
        };
        Ok(Self {
            engine,
            pair,
            link_ns: nanoseconds("link_us", given.link_us)?,
            packet_ns: nanoseconds("packet_us", given.packet_us)?,
            write_key_ok: given.write_key_ok,
        })
    }
}

fn inside(name: &str, value: u64, range: RangeInclusive<u8>) -> Result<u8, String> {
    let small = u8::try_from(value).ok().filter(|value| range.contains(value));
    small.ok_or_else(|| outside(name, value, range.start(), range.end()))
}

fn nanoseconds(name: &str, us: f64) -> Result<u64, String> {
    if (0.0..=MOST_LINK_US).contains(&us) {
        return Ok((us * 1e3).round() as u64);
    }
    Err(outside(name, us, &0, &MOST_LINK_US))
}

fn outside(name: &str, value: impl Display, least: &dyn Display, most: &dyn Display) -> String {
    format!("{name} is {value}; use {least} to {most}")
}
