//! The choice among several shortest paths for a frame.

use rand_core::Rng as _;
use rand_pcg::Pcg32;

use crate::net::frame::Frame;
use crate::net::port::Port;
use crate::net::route::flow_hash;
use crate::net::settings::Balance;
use crate::net::time::Time;

/// The number of entries of the table of flowlets. Two flows that share an entry count as one flow.
const FLOWLETS: usize = 1 << 12;

/// The state of one switch.
#[derive(Debug)]
pub(super) struct Balancer {
    /// The number of the switch.
    switch: u32,
    /// The path of the last frame that took a path in turn, before the division by the number of paths.
    turn: u32,
    /// The flowlets, empty until the first frame arrives in flowlet mode.
    flowlets: Vec<Flowlet>,
}

/// Consecutive frames of a flow without a long gap.
#[derive(Clone, Copy, Debug, Default)]
struct Flowlet {
    /// The time of the last frame, or `None` before the first one.
    last: Option<Time>,
    port: u32,
}

impl Balancer {
    /// `turn` decides which path the first frame takes if the paths take turns.
    pub(super) const fn new(switch: u32, turn: u32) -> Self {
        Self { switch, turn, flowlets: Vec::new() }
    }

    /// Chooses one of `choices`, which are indices into `ports`, for a frame at the time `now`.
    #[inline]
    pub(super) fn choose(
        &mut self,
        balance: Balance,
        choices: &[u32],
        frame: &Frame,
        ports: &[Port],
        now: Time,
        random: &mut Pcg32,
    ) -> Option<u32> {
        let count = choices.len();
        let choice = match balance {
            _ if count <= 1 => 0,
            Balance::Flow => share_of(self.hash(frame), count as u64) as usize,
            Balance::Weighted => by_rate(self.hash(frame), choices, ports),
            Balance::Spray => {
                self.turn = self.turn.wrapping_add(1);
                self.turn as usize % count
            }
            Balance::Adaptive => self.least_queued(choices, ports),
            Balance::Flowlet { gap } => return Some(self.flowlet(gap, choices, frame, now, random)),
        };
        choices.get(choice).copied()
    }

    /// Returns the choice if it does not depend on the state of the switch, otherwise one of the possible
    /// choices.
    #[inline]
    pub(super) fn guess(&self, balance: Balance, choices: &[u32], frame: &Frame) -> Option<u32> {
        let choice = match balance {
            Balance::Flow if choices.len() > 1 => share_of(self.hash(frame), choices.len() as u64) as usize,
            _ => 0,
        };
        choices.get(choice).copied()
    }

    fn hash(&self, frame: &Frame) -> u32 {
        flow_hash(frame.source, frame.destination, frame.source_port, self.switch)
    }

    /// Returns the port with the fewest queued bytes. Several such ports take turns.
    fn least_queued(&mut self, choices: &[u32], ports: &[Port]) -> usize {
        self.turn = self.turn.wrapping_add(1);
        let count = choices.len();
        let in_turn = (0..count).map(|step| (self.turn as usize + step) % count);
        in_turn.min_by_key(|choice| ports[choices[*choice] as usize].egress.bytes()).unwrap_or(0)
    }

    /// Returns the port of the last frame of the flow. After a gap, or if that port no longer leads to the
    /// host, returns a random port.
    fn flowlet(&mut self, gap: Time, choices: &[u32], frame: &Frame, now: Time, random: &mut Pcg32) -> u32 {
        if self.flowlets.is_empty() {
            self.flowlets = vec![Flowlet::default(); FLOWLETS];
        }
        let entry = self.hash(frame) as usize % FLOWLETS;
        let flowlet = &mut self.flowlets[entry];
        let goes_on = flowlet.last.is_some_and(|last| now.since(last) < gap);
        if !goes_on || !choices.contains(&flowlet.port) {
            flowlet.port = choices[share_of(random.next_u32(), choices.len() as u64) as usize];
        }
        flowlet.last = Some(now);
        flowlet.port
    }
}

/// Maps 32 random bits to a number below `count`.
const fn share_of(bits: u32, count: u64) -> u64 {
    ((bits as u128 * count as u128) >> 32) as u64
}

/// Gives each port a share of the hashes in proportion to the rate of its link. With equal rates, the choice
/// equals that of [`Balance::Flow`].
fn by_rate(hash: u32, choices: &[u32], ports: &[Port]) -> usize {
    let rate = |port: &u32| ports[*port as usize].spec.rate_bps;
    let total = choices.iter().map(rate).fold(0, u64::saturating_add);
    let mut left = share_of(hash, total);
    for (choice, port) in choices.iter().enumerate() {
        match left.checked_sub(rate(port)) {
            Some(rest) => left = rest,
            None => return choice,
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::net::frame::FrameId;
    use crate::net::port::Owner;
    use crate::net::topology::LinkSpec;
    use roce_fault::random::generator;

    fn ports(rates: &[u64]) -> Vec<Port> {
        let spec = |rate_bps| LinkSpec { rate_bps, ..LinkSpec::DEFAULT };
        let port = |rate: &u64| Port::new(0, Owner::Switch(0), 0, spec(*rate), Arc::default(), None);
        rates.iter().map(port).collect()
    }

    fn frame(source_port: u16) -> Frame {
        let mut frame = Frame::pause(0, 0);
        (frame.source, frame.destination, frame.source_port) = (1, 2, source_port);
        frame
    }

    /// Returns the share of 10,000 flows that each port gets.
    fn shares(balance: Balance, ports: &[Port]) -> Vec<f64> {
        let (mut balancer, mut random) = (Balancer::new(3, 0), generator(1, 0));
        let choices: Vec<u32> = (0..ports.len() as u32).collect();
        let mut counts = vec![0.0; ports.len()];
        for number in 0..10_000 {
            let port = balancer.choose(balance, &choices, &frame(number), ports, Time::ZERO, &mut random);
            counts[port.unwrap() as usize] += 1.0 / 10_000.0;
        }
        counts
    }

    #[test]
    fn weights_are_those_of_the_links() {
        let shares_by_rate = shares(Balance::Weighted, &ports(&[100, 400, 300, 200]));
        for (share, expected) in shares_by_rate.iter().zip([0.1, 0.4, 0.3, 0.2]) {
            assert!((share - expected).abs() < 0.02, "{shares_by_rate:?}");
        }
        let equal = ports(&[u64::MAX / 4; 3]);
        assert_eq!(shares(Balance::Weighted, &equal), shares(Balance::Flow, &equal), "as without weights");
        let impossible = ports(&[u64::MAX; 2]);
        assert_eq!(shares(Balance::Weighted, &impossible).len(), 2);
    }

    #[test]
    fn a_flowlet_keeps_its_path_until_there_is_a_gap() {
        let (mut balancer, mut random) = (Balancer::new(0, 0), generator(7, 0));
        let ports = ports(&[1; 8]);
        let choices: Vec<u32> = (0..8).collect();
        let gap = Time::from_us(10);
        let mut now = Time::ZERO;
        let mut at = |wait: Time, choices: &[u32]| {
            now = now + wait;
            let balance = Balance::Flowlet { gap };
            balancer.choose(balance, choices, &frame(5), &ports, now, &mut random).unwrap()
        };
        let first = at(Time::ZERO, &choices);
        for _ in 0..50 {
            assert_eq!(at(Time::from_ns(9_999), &choices), first);
        }
        let after_gaps: Vec<u32> = (0..50).map(|_| at(gap, &choices)).collect();
        assert!((0..8).all(|port| after_gaps.contains(&port)), "{after_gaps:?}");
        let last = at(Time::ZERO, &choices);
        let without: Vec<u32> = choices.iter().copied().filter(|port| *port != last).collect();
        assert_ne!(at(Time::ZERO, &without), last, "a path that is gone is not taken");
    }

    #[test]
    fn the_least_queue_is_taken_and_equal_ones_in_turn() {
        let mut ports = ports(&[1; 3]);
        let (mut balancer, mut random) = (Balancer::new(0, 0), generator(1, 0));
        let mut choose = |ports: &[Port]| {
            balancer.choose(Balance::Adaptive, &[0, 1, 2], &frame(1), ports, Time::ZERO, &mut random).unwrap()
        };
        assert_eq!([(); 4].map(|()| choose(&ports)), [1, 2, 0, 1]);
        ports[1].egress.push(3, 100, FrameId::NONE);
        assert!((0..9).all(|_| choose(&ports) != 1));
        for port in [0, 2, 2] {
            ports[port].egress.push(3, 90, FrameId::NONE);
        }
        ports[0].egress.push(3, 20, FrameId::NONE);
        assert!((0..9).all(|_| choose(&ports) == 1), "100 bytes beside 110 and 180");
    }
}
