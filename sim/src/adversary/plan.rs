//! What one run does: everything that follows from the seed before the first packet.

use roce_packet::{PathMtu, Psn};
use roce_transport::congestion::Congestion;
use roce_transport::{QpType, Recovery};

use super::random::Random;
use super::work::{Flow, Shape};
use roce_fault::{Chance, Delay, DelayTime, FaultPlan, Rates};

/// What a run has to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The faults stop after so many packets. From then on everything must complete, or fail for a reason,
    /// within a bound.
    Liveness {
        /// Packets, of both directions together.
        packets: usize,
    },
    /// The faults go on until the end or until so many packets were sent. Nothing wrong may happen.
    Safety {
        /// Packets, of both directions together.
        packets: usize,
    },
}

/// Everything that one seed decides.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What to show.
    pub mode: Mode,
    /// Path MTU of the connected queue pairs.
    pub mtu: PathMtu,
    /// Unacknowledged packets of a requester.
    pub window: u32,
    /// Packets of one READ request, 0 for any number.
    pub max_read_packets: u32,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// RNR delay code.
    pub min_rnr_timer: u8,
    /// READs and atomics that a requester may have outstanding, and those that a responder keeps.
    pub rd_atomic: (u8, u8),
    /// Send queue depth; sometimes much less than there is to do.
    pub max_send_wr: usize,
    /// Packets of one queue pair before the next has its turn.
    pub quantum: u32,
    /// One-way delay of the link, and the time one packet takes on it.
    pub link_delay_ns: u64,
    /// Time between two packets of one direction.
    pub gap_ns: u64,
    /// What happens to what A sends, and to what B sends.
    pub faults: [FaultPlan; 2],
    /// Whether the receivers do not see the IPv4 Identification.
    pub hidden_identification: bool,
    /// Whether senders fill superpackets.
    pub batches: bool,
    /// Datagrams arrive in two slices, the first of this length.
    pub head_len: Option<usize>,
    /// Arrivals are looked at only at multiples of this time, as a driver that polls does.
    pub poll_ns: u64,
    /// Several arrivals are handled before anything is sent.
    pub bursts: bool,
    /// How both ends make up for losses. No seed draws anything but going back.
    pub recovery: Recovery,
    /// Congestion control of both ends. No seed draws any.
    pub congestion: Congestion,
    /// The queue pairs.
    pub pairs: Vec<PairPlan>,
    /// What is to be done: flow `2 * pair` goes from A to B, the next one back.
    pub flows: Vec<Flow>,
}

/// A pair of queue pairs, one at each end.
#[derive(Clone, Copy, Debug)]
pub struct PairPlan {
    /// Transport.
    pub qp_type: QpType,
    /// First PSN of A, and of B.
    pub psns: [Psn; 2],
    /// Every request completes visibly.
    pub signal_all: bool,
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(super::random::mix(seed));
        let random = &mut random;
        let mtu = random.pick(&PathMtu::ALL);
        let timeout = random.range(4, 9) as u8;
        let faults = [fault_plan(random, timeout), fault_plan(random, timeout)];
        let corrupts = faults.iter().any(|plan| plan.rates.corrupt != Chance::NEVER);
        let heavy = faults.iter().any(|plan| plan.rates.drop.parts_per_billion() > 100_000_000);
        let packets = random.pick(&[50, 200, 600, 1500]);
        let kept = random.range(1, 8) as u8;
        let shape = Shape::new(random, mtu, heavy);
        let mut pairs = Vec::new();
        for _ in 0..random.pick(&[1, 1, 2, 3]) {
            pairs.push(PairPlan::new(random, QpType::Rc));
        }
        if random.percent(25) {
            pairs.push(PairPlan::new(random, QpType::Uc));
        }
        if random.percent(20) {
            pairs.push(PairPlan::new(random, QpType::Ud));
        }
        let mut flows = Vec::new();
        for pair in &pairs {
            flows.push(Flow::new(random, &shape, pair.qp_type));
            flows.push(Flow::new(random, &shape, pair.qp_type));
        }
        Self {
            seed,
            mode: if random.percent(70) {
                Mode::Liveness { packets }
            } else {
                Mode::Safety { packets: 2 * packets }
            },
            mtu,
            window: random.pick(&[1, 2, 5, 16, 64, 256]),
            max_read_packets: random.pick(&[0, 0, 1, 3, 16]),
            timeout,
            retry_cnt: random.pick(&[0, 1, 3, 6, 7, 7, 7]),
            rnr_retry: random.pick(&[0, 1, 3, 6, 7, 7, 7]),
            min_rnr_timer: random.range(1, 12) as u8,
            rd_atomic: (random.range(1, usize::from(kept)) as u8, kept),
            max_send_wr: random.pick(&[1, 3, 16, 64]),
            quantum: random.pick(&[1, 4, 32]),
            link_delay_ns: random.pick(&[100, 1_000, 5_000]),
            gap_ns: random.pick(&[0, 10, 100]),
            hidden_identification: !corrupts && random.percent(30),
            batches: random.percent(30),
            head_len: random.percent(25).then(|| random.range(80, 600)),
            // A round trip must stay shorter than the timeout.
            poll_ns: random.pick(&[1, 1, 1_000, (4096 << timeout) / 10]),
            bursts: random.percent(60),
            faults,
            recovery: Recovery::GoBackN,
            congestion: Congestion::none(),
            pairs,
            flows,
        }
    }

    /// The local ACK timeout in nanoseconds.
    #[must_use]
    pub const fn timeout_ns(&self) -> u64 {
        4096 << self.timeout
    }

    /// Whether nothing happens to any packet.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.faults.iter().all(FaultPlan::is_empty)
    }
}

impl PairPlan {
    fn new(random: &mut Random, qp_type: QpType) -> Self {
        let mut psn = || {
            let psn =
                if random.percent(60) { 0x100_0000 - random.range(1, 40) } else { random.below(1 << 24) };
            Psn::new(psn as u32)
        };
        Self { qp_type, psns: [psn(), psn()], signal_all: random.percent(15) }
    }
}

/// What happens in one direction. Delays reach up to twice the timeout, so that answers come after their
/// request was given up and sent again.
fn fault_plan(random: &mut Random, timeout: u8) -> FaultPlan {
    if random.percent(12) {
        return FaultPlan::default();
    }
    let drop = match random.below(10) {
        0 | 1 => 0,
        2..=5 => random.below(30),
        6 | 7 => random.range(30, 150),
        _ => random.range(150, 500),
    };
    let mut often = |share: usize, most: usize| {
        let per_mille = if random.percent(share) { random.range(1, most) } else { 0 };
        chance(per_mille)
    };
    let (duplicate, reorder, corrupt, mark) =
        (often(40, 150), often(40, 150), often(35, 100), often(10, 100));
    let late = often(40, 100);
    let longest = 2 * (4096_u64 << timeout);
    let time = DelayTime { from_ns: 0, to_ns: random.pick(&[5_000, longest / 4, longest]).min(longest) };
    let rates = Rates {
        drop: chance(drop),
        duplicate,
        reorder,
        corrupt,
        mark,
        delay: Delay { time, chance: late },
        behind: random.range(1, 20) as u16,
        ..Rates::default()
    };
    FaultPlan { rates, rules: Vec::new() }
}

fn chance(per_mille: usize) -> Chance {
    Chance::from_parts_per_billion(per_mille as u32 * 1_000_000).unwrap_or(Chance::ALWAYS)
}
