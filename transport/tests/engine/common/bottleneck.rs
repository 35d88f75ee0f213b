//! Two flows from one host to another through one link with a marking queue.

use std::cell::RefCell;
use std::rc::Rc;

use roce_packet::{PathMtu, Qpn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::congestion::Rate;
use roce_transport::{EngineConfig, QpType};

use super::Bench;

/// The time of a packet of path MTU 1024, 1,106 bytes, at 10 Gb/s.
pub const PACKET_NS: u64 = 885;

/// A queue in front of a link of 10 Gb/s. It marks with rising probability between two lengths in packets
/// (RED on the current queue length).
pub struct Bottleneck {
    least: u64,
    most: u64,
    /// The probability at `most`, in 1/65536; beyond `most` every packet is marked.
    highest: u64,
    free_at: u64,
    state: u64,
    marks: u64,
    /// The longest queue in packets.
    longest: u64,
    packets: Vec<(Qpn, u64)>,
}

/// The results of the last part of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The packets of each flow.
    pub packets: [u64; 2],
    /// The packets that the link could have carried.
    pub capacity: u64,
    pub longest: u64,
    pub marks: u64,
    /// The mean round trip of the first flow as its algorithm sees it at the end, in microseconds.
    pub rtt_us: Option<f64>,
}

impl Bottleneck {
    pub fn new(least: u64, most: u64, highest: u64) -> Self {
        let (free_at, state, marks, longest) = (0, 1, 0, 0);
        Self { least, most, highest, free_at, state, marks, longest, packets: Vec::new() }
    }

    fn pass(&mut self, now: u64, flow: Qpn) -> bool {
        let queue = self.free_at.saturating_sub(now) / PACKET_NS;
        self.free_at = self.free_at.max(now) + PACKET_NS;
        self.longest = self.longest.max(queue);
        match self.packets.iter_mut().find(|(known, _)| *known == flow) {
            Some((_, count)) => *count += 1,
            None => self.packets.push((flow, 1)),
        }
        let probability = match queue {
            queue if queue <= self.least => 0,
            queue if queue > self.most => 1 << 16,
            queue => self.highest * (queue - self.least) / (self.most - self.least),
        };
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let marked = self.state >> 48 < probability;
        self.marks += u64::from(marked);
        marked
    }

    /// Runs one flow, then both, then both again while they are measured, for these milliseconds each.
    #[track_caller]
    pub fn run(self, mut config: EngineConfig, millis: [u64; 3]) -> Outcome {
        config.line_rate = Rate::megabits_per_second(10_000);
        let settings = Settings { mtu: PathMtu::Mtu1024, ..Settings::default() };
        let mut bench = Bench::with_config(QpType::Rc, &settings, config);
        bench.record = false;
        bench.packet_time_ns = PACKET_NS;
        let shared = Rc::new(RefCell::new(self));
        let link = shared.clone();
        bench.set_script(move |sent| {
            let is_data = sent.from == Side::A && sent.bytes.len() > 100;
            let marked = is_data && link.borrow_mut().pass(sent.at.as_nanos(), sent.dest_qp);
            if marked { Action::Mark } else { Action::Pass }
        });
        let flows = [(bench.a, bench.b), bench.pair.connect_with(QpType::Rc, &settings)];
        let write = bench.write(0);
        for (flow, millis) in flows.iter().zip(millis) {
            (bench.a, bench.b) = *flow;
            for wr_id in 0..250 {
                bench.post(wr_id, write, 0, 1 << 20);
            }
            let next = bench.now.plus_nanos(millis * 1_000_000);
            bench.drive_until(next);
        }
        shared.borrow_mut().packets.clear();
        shared.borrow_mut().longest = 0;
        let next = bench.now.plus_nanos(millis[2] * 1_000_000);
        assert!(!bench.drive_until(next), "both still have something to send");
        assert_eq!(bench.counter(Side::A, "retransmitted_packets"), 0);
        let seen = bench.host(Side::A).engine.congestion(bench.now, flows[0].0);
        let link = shared.borrow();
        let count =
            |flow: Qpn| link.packets.iter().find(|(known, _)| *known == flow).map_or(0, |found| found.1);
        Outcome {
            packets: flows.map(|(_, b)| count(b)),
            capacity: millis[2] * 1_000_000 / PACKET_NS,
            longest: link.longest,
            marks: link.marks,
            rtt_us: seen.and_then(|seen| seen.rtt).map(|rtt| rtt.as_secs_f64() * 1e6),
        }
    }
}
