//! A test of the algorithm alone, on two engines and a link in memory: a model for tests of your own
//! algorithm.

#[path = "../src/halve_and_step.rs"]
mod halve_and_step;

use roce_sim::pair::{Action, Pair, Settings, Side};
use roce_transport::congestion::{Congestion, Rate};
use roce_transport::{EngineConfig, QpType, SendOp, SendWr};

/// Sends through a link of 10 Gb/s for 20 ms. The link marks packets that find more than 20 packets in its
/// queue. Returns the time in microseconds and the rate in bits per second, every 50 µs.
fn rates() -> Vec<(u64, f64)> {
    let mut config = EngineConfig::from_number(1);
    config.congestion = Congestion::new(halve_and_step::algorithm());
    config.line_rate = Rate::megabits_per_second(40_000);
    let mut pair = Pair::with_config(config, 1 << 20);
    // A packet of path MTU 1024 takes 885 ns.
    pair.packet_time_ns = 885;
    let mut free_at = 0_u64;
    pair.set_script(move |sent| {
        if sent.from == Side::B {
            return Action::Pass;
        }
        let now = sent.at.as_nanos();
        let waiting = free_at.saturating_sub(now) / 885;
        free_at = free_at.max(now) + 885;
        if waiting > 20 { Action::Mark } else { Action::Pass }
    });
    let (a, _) = pair.connect_with(QpType::Rc, &Settings::default());
    let source = pair.host(Side::A).memory_range(0, 1 << 20);
    let target = pair.host(Side::B).memory_range(0, 1 << 20);
    let op = SendOp::Write { remote_addr: target.addr, rkey: pair.host(Side::B).rkey() };
    for wr_id in 0..30 {
        pair.post_send(Side::A, a, &SendWr::new(wr_id, op, &[source])).expect("the queue has room");
    }
    let begin = pair.now;
    let mut seen = Vec::new();
    for micros in (0..20_000).step_by(50) {
        let now = begin.plus_nanos(micros * 1000);
        pair.drive_until(now);
        let observation = pair.host(Side::A).engine.congestion(now, a).expect("it has an algorithm");
        seen.push((micros, observation.rate));
    }
    seen
}

#[test]
fn the_algorithm_finds_the_rate_of_the_link() {
    let seen = rates();
    assert_eq!(seen[0], (0, 40e9), "it starts at line rate");
    // After 2 ms it oscillates around the 10 Gb/s of the link.
    let later: Vec<f64> = seen.iter().filter(|(micros, _)| *micros > 2_000).map(|(_, rate)| *rate).collect();
    let mean = later.iter().sum::<f64>() / later.len() as f64;
    assert!((6e9..11e9).contains(&mean), "{mean}");
    let (least, most) =
        later.iter().fold((f64::MAX, 0.0_f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    assert!(least > 2e9 && most < 15e9, "{least} to {most}");
    assert!(most > 1.5 * least, "the rate is a sawtooth");
}
