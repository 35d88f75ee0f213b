//! A limit of the responses that an engine requests: receiver-driven congestion control.

use alloc::boxed::Box;

use roce_packet::{Aeth, Bth, Datagram, Operation, Path, Psn, Qpn};

use super::control::wire_len;
use super::pacer::MOST_BURST;
use super::{EvenPull, Pull, PullPolicy, PullStart, Pulled};
use crate::Instant;
use crate::config::EngineConfig;

/// The turns of the READ requests of all queue pairs.
#[derive(Debug)]
pub(crate) struct ReadPace {
    policy: Box<dyn PullPolicy>,
    preamble: bool,
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
    /// Creates the turns, or returns `None` if the settings do not limit READs.
    pub(crate) fn new(config: &EngineConfig) -> Option<Self> {
        let (rate, preamble) = (config.read_rate, config.pacing.preamble);
        let policy: Box<dyn PullPolicy> = match &config.pulls {
            Some(pulls) => pulls.make(&PullStart { line_rate: config.line_rate }),
            None if rate.is_unlimited() => return None,
            None => Box::new(EvenPull::new(rate, config.pacing.burst.min(MOST_BURST))),
        };
        Some(Self { policy, preamble })
    }

    /// Returns the time at which the request of a queue pair may leave.
    pub(crate) fn take_turn(
        &mut self,
        now: Instant,
        (qpn, path): (Qpn, &Path),
        response: ReadResponse,
        is_urgent: bool,
    ) -> Instant {
        const ICRC: usize = 4;
        /// Any payload that makes the frame longer than the shortest one.
        const SOME: usize = 64;
        let ReadResponse { packets, payload } = response;
        let headers = u64::from(wire_len(path, Bth::LEN + ICRC + SOME, self.preamble)) - SOME as u64;
        // The first and the last packet have an AETH.
        let bytes = payload + u64::from(packets) * headers + u64::from(packets.min(2)) * Aeth::LEN as u64;
        self.policy.turn(now, &Pull { qpn, packets, bytes, is_urgent })
    }

    /// Tells the policy that an answer arrived, if it is a packet of a READ response.
    pub(crate) fn on_response(&mut self, now: Instant, qpn: Qpn, datagram: &Datagram<'_>, marked: bool) {
        if datagram.info().operation == Operation::ReadResponse {
            let payload = datagram.payload_len() as u32;
            self.policy.on_response(now, &Pulled { qpn, payload, marked, trimmed: false });
        }
    }

    /// Tells the policy that a trimmed packet of a READ response arrived.
    pub(crate) fn on_trimmed(&mut self, now: Instant, qpn: Qpn, marked: bool) {
        self.policy.on_response(now, &Pulled { qpn, payload: 0, marked, trimmed: true });
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use roce_packet::Encapsulation;

    use super::super::Rate;
    use super::*;

    fn of(path: &Path) -> (Qpn, &Path) {
        (Qpn::new(7), path)
    }

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
            let turn = pace.take_turn(at(0), of(&path()), response, false);
            assert_eq!(turn.as_nanos(), count * bytes * 8 / 100, "no nanosecond is lost");
        }
        // After a pause, a request leaves at once, and nothing is made up for.
        let late = at(10_000_000);
        let turns = [
            pace.take_turn(late, of(&path()), response, false),
            pace.take_turn(late, of(&path()), response, false),
        ];
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
                let turn = pace.take_turn(now, of(&path()), response, false);
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
            assert!(pace.take_turn(now, of(&path()), response, false) >= now);
        }
    }
}
