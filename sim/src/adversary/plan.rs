//! The plan of a run: everything that the seed determines before the first packet.

use roce_packet::{PathMtu, Psn};
use roce_transport::congestion::{Congestion, Paths, Rate};
use roce_transport::{QpType, Recovery, SelectiveRepeat};

use super::work::{Flow, Shape};
use roce_fault::random::SplitMix64;
use roce_fault::{Chance, Delay, DelayTime, FaultPlan, Rates};

/// The goal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The faults stop after a number of packets. From then on, every request must complete within a bound,
    /// or fail because of earlier faults.
    Liveness {
        /// The number of packets in both directions.
        packets: usize,
    },
    /// The faults continue until the end, or until a number of packets was sent. All safety checks must hold.
    Safety {
        /// The number of packets in both directions.
        packets: usize,
    },
}

/// Everything that one seed determines.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The goal of the run.
    pub mode: Mode,
    /// The path MTU of the connected queue pairs.
    pub mtu: PathMtu,
    /// The maximum number of unacknowledged packets of a requester.
    pub window: u32,
    /// The maximum number of packets of one READ request, or 0 for no limit.
    pub max_read_packets: u32,
    /// Rate at which both engines request READ responses.
    pub read_rate: Rate,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Code of the minimum RNR timer.
    pub min_rnr_timer: u8,
    /// The maximum number of outstanding READs and atomics of a requester, and the number of those that a
    /// responder keeps.
    pub rd_atomic: (u8, u8),
    /// The depth of the send queue, which can be much smaller than the number of requests.
    pub max_send_wr: usize,
    /// The number of packets of one queue pair before the next queue pair takes its turn.
    pub quantum: u32,
    /// One-way delay of the link in nanoseconds.
    pub link_delay_ns: u64,
    /// Time between two packets of one direction in nanoseconds.
    pub gap_ns: u64,
    /// The faults of packets from A and from B.
    pub faults: [FaultPlan; 2],
    /// Whether the IPv4 Identification is hidden from receivers.
    pub hidden_identification: bool,
    /// Whether senders fill superpackets.
    pub batches: bool,
    /// The length of the first of two slices in which datagrams arrive, or `None` for one slice.
    pub head_len: Option<usize>,
    /// The interval in nanoseconds at which arrivals are handled, as by a polling driver.
    pub poll_ns: u64,
    /// Whether several arrivals are handled before packets are sent.
    pub bursts: bool,
    /// The loss recovery of both ends. Seeds select go-back-N only; see [`Self::select`].
    pub recovery: Recovery,
    /// The paths of both ends. Seeds select one.
    pub paths: Paths,
    /// The number of trimmed packets per thousand packets with payload. Seeds select 0.
    pub trimmed_per_mille: u16,
    /// The congestion control of both ends. Seeds select none.
    pub congestion: Congestion,
    /// Whether both ends pace READ responses after losses, which is set for odd seeds.
    pub after_loss: bool,
    /// The queue pairs.
    pub pairs: Vec<PairPlan>,
    /// The flows: flow `2 * pair` goes from A to B, and the next flow from B to A.
    pub flows: Vec<Flow>,
}

/// A pair of queue pairs, one at each end.
#[derive(Clone, Copy, Debug)]
pub struct PairPlan {
    /// The transport.
    pub qp_type: QpType,
    /// First PSN of A and of B.
    pub psns: [Psn; 2],
    /// Whether every request is signaled.
    pub signal_all: bool,
}

impl Plan {
    /// Changes the recovery to selective repeat. Results then arrive in any order, so each gets a place
    /// of its own.
    pub fn select(&mut self, recovery: SelectiveRepeat) {
        self.recovery = Recovery::SelectiveRepeat(recovery);
        for flow in &mut self.flows {
            flow.separate_results();
        }
    }

    /// Derives the plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(roce_fault::random::mix(seed));
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
            read_rate: Rate::UNLIMITED,
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
            paths: Paths::one(),
            trimmed_per_mille: 0,
            congestion: Congestion::none(),
            after_loss: seed & 1 == 1,
            pairs,
            flows,
        }
    }

    /// Returns the local ACK timeout in nanoseconds.
    #[must_use]
    pub const fn timeout_ns(&self) -> u64 {
        4096 << self.timeout
    }

    /// Returns whether the plan has no faults.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.trimmed_per_mille == 0 && self.faults.iter().all(FaultPlan::is_empty)
    }
}

impl PairPlan {
    fn new(random: &mut SplitMix64, qp_type: QpType) -> Self {
        let mut psn = || {
            let psn =
                if random.percent(60) { 0x100_0000 - random.range(1, 40) } else { random.below(1 << 24) };
            Psn::new(psn as u32)
        };
        Self { qp_type, psns: [psn(), psn()], signal_all: random.percent(15) }
    }
}

/// Returns the faults of one direction. Delays reach up to twice the timeout, so that answers arrive after
/// the retransmission of their request.
fn fault_plan(random: &mut SplitMix64, timeout: u8) -> FaultPlan {
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
