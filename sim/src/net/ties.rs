//! The order of simultaneous events of a node.
//!
//! Frames that arrive at a switch at the same picosecond compete for its buffer and for its egress ports.
//! Equal senders that start together stay synchronous, so an order by port number would prefer the same port
//! in every slot of a run. The order of a tie follows from the seed, the time and the ports only. Therefore
//! it prefers no port, and does not depend on the division into parts.
//!
//! The other events of a node, such as ports that become free, come in the order in which the node scheduled
//! them. That order follows from the order of its arrivals.

use roce_fault::random::mix;

use super::time::Time;

/// The order of frames that arrive at a switch at the same picosecond, and of flows that start at the same
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ties {
    /// A random order, which is another one at each time and follows from the seed.
    #[default]
    Seed,
    /// The order of the ports and flows. Low numbers always come first.
    Port,
}

/// The number of bits of a rank. A network has fewer ports, and a workload fewer flows.
const BITS: u32 = 30;
const MASK: u32 = (1 << BITS) - 1;

/// Bits that make the order of starts, and the first turns of switches, independent of the order of arrivals.
/// No simulated time reaches them.
const STARTS: u64 = 1 << 62;
const TURNS: u64 = 1 << 63;

/// The order of ties in one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct TieOrder {
    /// A number that follows from the seed, or `None` for the order of numbers.
    key: Option<u64>,
}

impl TieOrder {
    pub(super) const fn new(ties: Ties, seed: u64) -> Self {
        let key = match ties {
            // The seeds 1, 2, 3 and so on have keys that differ in half of their bits.
            Ties::Seed => Some(mix(seed.wrapping_add(0x7469_6573_0000_0001))),
            Ties::Port => None,
        };
        Self { key }
    }

    /// Returns the rank of an arrival at a port of the whole network, below 2^30. Different ports have
    /// different ranks.
    #[inline]
    pub(super) const fn of_arrival(self, time: Time, port: u32) -> u32 {
        match self.key {
            Some(key) => permuted(mix(key ^ time.as_ps()), port),
            None => port,
        }
    }

    /// Returns the rank of a flow among those that start at the same time.
    pub(super) const fn of_start(self, time: Time, flow: u32) -> u32 {
        match self.key {
            Some(key) => permuted(mix(key ^ time.as_ps() ^ STARTS), flow),
            None => flow,
        }
    }

    /// Returns the turn at which a switch begins to use its paths in turn.
    pub(super) fn first_turn(self, switch: u32) -> u32 {
        self.key.map_or(0, |key| mix(key ^ TURNS ^ u64::from(switch)) as u32)
    }
}

/// Returns the place of a number in a permutation of all numbers of 30 bits. Each step is reversible, so
/// different numbers have different places.
#[inline]
const fn permuted(key: u64, number: u32) -> u32 {
    let factor = (key >> 32) as u32 | 1;
    let mixed = (number ^ key as u32).wrapping_mul(factor) & MASK;
    (mixed ^ (mixed >> (BITS / 2))).wrapping_mul(0x2c1b_3c6d) & MASK
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A frame of 1,106 bytes at 100 Gb/s.
    const SLOT: u64 = 88_480;

    fn slots(count: u64) -> impl Iterator<Item = Time> {
        (0..count).map(|slot| Time::from_ps(1_000_000 + slot * SLOT))
    }

    #[test]
    fn no_two_ports_have_the_same_rank() {
        let order = TieOrder::new(Ties::Seed, 5);
        for time in slots(3) {
            let ranks: BTreeSet<u32> = (0..100_000).map(|port| order.of_arrival(time, port)).collect();
            assert_eq!(ranks.len(), 100_000);
            assert!(ranks.last().is_some_and(|rank| *rank <= MASK));
        }
    }

    /// Ports of a switch have odd numbers here, like those of a star.
    #[test]
    fn each_port_is_first_and_last_equally_often() {
        let order = TieOrder::new(Ties::Seed, 1);
        let (mut first, mut last) = ([0; 8], [0; 8]);
        for time in slots(8_000) {
            let rank = |port: &usize| order.of_arrival(time, 2 * *port as u32 + 1);
            first[(0..8).min_by_key(rank).unwrap()] += 1;
            last[(0..8).max_by_key(rank).unwrap()] += 1;
        }
        // 1,000 each; the standard deviation is 30.
        assert!(first.iter().chain(&last).all(|count| (850..1_150).contains(count)), "{first:?} {last:?}");
    }

    /// The order of two ports in one slot says nothing about the next slot, nor about another seed.
    #[test]
    fn orders_are_independent() {
        let goes_first = |seed: u64, time, [one, other]: [u32; 2]| {
            let order = TieOrder::new(Ties::Seed, seed);
            order.of_arrival(time, one) < order.of_arrival(time, other)
        };
        for ports in [[0, 1], [1, 3], [4, 6], [0, 1 << 18], [100, 102]] {
            let of_seed = |seed| slots(4_000).map(|time| goes_first(seed, time, ports)).collect::<Vec<_>>();
            let (one, other) = (of_seed(1), of_seed(2));
            let equal_slots = one.windows(2).filter(|pair| pair[0] == pair[1]).count();
            let equal_seeds = one.iter().zip(&other).filter(|(one, other)| one == other).count();
            for count in [one.iter().filter(|first| **first).count(), equal_slots, equal_seeds] {
                // 2,000; the standard deviation is 32.
                assert!((1_840..2_160).contains(&count), "{ports:?}: {count}");
            }
        }
    }

    #[test]
    fn the_order_of_ports_is_that_of_their_numbers() {
        let order = TieOrder::new(Ties::Port, 7);
        assert!(slots(9).all(|time| (0..9).all(|number| order.of_arrival(time, number) == number)));
        assert_eq!((order.of_start(Time::ZERO, 4), order.first_turn(3)), (4, 0));
    }
}
