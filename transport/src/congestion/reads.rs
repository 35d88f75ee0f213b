//! A limit of the responses that an engine requests: receiver-driven congestion control.

use roce_packet::{Aeth, Bth, Path, Psn};

use super::Rate;
use super::control::wire_len;
use super::pacer::MOST_BURST;
use crate::Instant;
use crate::config::EngineConfig;

/// Billionths of a bit in a byte: a rate in bits per second times nanoseconds.
const BYTE: u64 = 8_000_000_000;

/// Spaces the READ requests of all queue pairs, so that their responses take no more than a rate of the link.
///
/// Requests take turns in the order in which their queue pairs became ready, so queue pairs share the rate
/// equally.
#[derive(Debug)]
pub(crate) struct ReadPace {
    rate: Rate,
    preamble: bool,
    /// Billionths of a bit that may be made up for after a pause, because timers are late.
    burst: u64,
    /// The time until which the link is filled by the responses to the requests that have a turn.
    filled: Instant,
    /// The part of a nanosecond by which `filled` is too early, in billionths of a bit at the rate.
    rest: u64,
}

/// The time at which a READ request may leave, and its PSN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTurn {
    pub(crate) at: Instant,
    pub(crate) psn: Psn,
}

/// The response to a READ request: its number of packets, and its payload in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadResponse {
    pub(crate) packets: u32,
    pub(crate) payload: u64,
}

impl ReadPace {
    /// Creates the limit, or returns `None` if the settings do not limit READs.
    pub(crate) fn new(config: &EngineConfig) -> Option<Self> {
        let (rate, preamble) = (config.read_rate, config.pacing.preamble);
        let burst = u64::from(config.pacing.burst.min(MOST_BURST)) * BYTE;
        (!rate.is_unlimited()).then_some(Self { rate, preamble, burst, filled: Instant::ZERO, rest: 0 })
    }

    /// Returns the time at which a request may leave, and reserves the link for its response.
    pub(crate) fn take_turn(&mut self, now: Instant, path: &Path, response: ReadResponse) -> Instant {
        const ICRC: usize = 4;
        /// Any payload that makes the frame longer than the shortest one.
        const SOME: usize = 64;
        let ReadResponse { packets, payload } = response;
        let headers = u64::from(wire_len(path, Bth::LEN + ICRC + SOME, self.preamble)) - SOME as u64;
        // The first and the last packet have an AETH.
        let bytes = payload + u64::from(packets) * headers + u64::from(packets.min(2)) * Aeth::LEN as u64;
        let earliest = now.as_nanos().saturating_sub(self.burst / self.rate.get());
        if self.filled.as_nanos() < earliest {
            (self.filled, self.rest) = (Instant::from_nanos(earliest), 0);
        }
        let turn = self.filled;
        let bits = u128::from(bytes) * u128::from(BYTE) + u128::from(self.rest);
        let rate = u128::from(self.rate.get());
        self.filled = turn.plus_nanos(u64::try_from(bits / rate).unwrap_or(u64::MAX));
        self.rest = (bits % rate) as u64;
        turn
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use roce_packet::Encapsulation;

    use super::*;

    fn pace(rate: Rate, burst: u32) -> ReadPace {
        let mut config = EngineConfig { read_rate: rate, ..EngineConfig::from_number(1) };
        config.pacing.burst = burst;
        ReadPace::new(&config).unwrap()
    }

    fn path() -> Path {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: address,
            destination: address,
            source_port: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            vlan: None,
        }
    }

    #[test]
    fn turns_follow_each_other_at_the_rate() {
        let mut pace = pace(Rate::megabits_per_second(100_000), 0);
        let response = ReadResponse { packets: 8, payload: 8 * 1024 };
        // 8 × (20 preamble and gap + 14 + 20 + 8 + 12 + 1024 + 4 + 4 FCS) + 2 × 4 bytes.
        let bytes = 8 * 1106 + 8;
        let at = |nanos| Instant::from_nanos(nanos);
        for count in 0..1000 {
            let turn = pace.take_turn(at(0), &path(), response);
            assert_eq!(turn.as_nanos(), count * bytes * 8 / 100, "no nanosecond is lost");
        }
        // After a pause, a request leaves at once, and nothing is made up for.
        let late = at(10_000_000);
        let turns = [pace.take_turn(late, &path(), response), pace.take_turn(late, &path(), response)];
        assert_eq!(turns, [late, late.plus_nanos(bytes * 8 / 100)]);
    }

    /// A queue pair has one turn at a time, so a late timer would cost the rate that the next turns have.
    #[test]
    fn late_timers_cost_no_rate_as_long_as_the_burst_covers_them() {
        let rate = Rate::megabits_per_second(10_000);
        let response = ReadResponse { packets: 8, payload: 8 * 1024 };
        let bytes = 8 * 1106 + 8;
        // Returns the bytes of 10 ms, if the timer is 20 us late: 25,000 bytes.
        let requested = |burst| {
            let (mut pace, mut now, mut all) = (pace(rate, burst), Instant::from_nanos(1_000_000_000), 0);
            let end = now.plus_nanos(10_000_000);
            while now < end {
                let turn = pace.take_turn(now, &path(), response);
                if turn > now {
                    now = turn.plus_nanos(20_000);
                }
                all += bytes;
            }
            all
        };
        let ideal = rate.get() / 8 / 100;
        assert!(requested(0) < ideal * 2 / 3, "{} of {ideal}", requested(0));
        assert!(requested(50_000).abs_diff(ideal) < 60_000, "{} of {ideal}", requested(50_000));
    }

    #[test]
    fn the_slowest_rate_and_the_longest_response_do_not_overflow() {
        let mut pace = pace(Rate::bits_per_second(0), u32::MAX);
        let response = ReadResponse { packets: u32::MAX, payload: u64::from(u32::MAX) };
        for now in [Instant::ZERO, Instant::FAR_FUTURE] {
            assert!(pace.take_turn(now, &path(), response) >= now);
        }
    }
}
