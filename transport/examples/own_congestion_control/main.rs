//! A congestion control algorithm of one's own, complete, and a network to watch it in.
//!
//! ```sh
//! cargo run -p roce-transport --example own_congestion_control > rate.csv
//! ```
//!
//! The algorithm is in `halve_and_step.rs`. `examples/own_algorithm.rs` of the crate `roce` takes the same file into the
//! command, so that scenarios and real packets can have it.

mod halve_and_step;

use roce_sim::pair::{Action, Pair, Settings, Side};
use roce_transport::congestion::{Congestion, Rate};
use roce_transport::{EngineConfig, QpType, SendOp, SendWr};

/// Sends through a link of 10 Gb/s for 20 ms; the link marks what finds more than 20 packets waiting. Returns the time in
/// microseconds and the rate in bits a second, each 50 µs.
pub(crate) fn run() -> Vec<(u64, f64)> {
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
        pair.drive_until(begin.plus_nanos(micros * 1000));
        let now = begin.plus_nanos(micros * 1000);
        let observation = pair.host(Side::A).engine.congestion(now, a).expect("it has an algorithm");
        seen.push((micros, observation.rate));
    }
    seen
}

#[allow(dead_code, reason = "a test takes this file as a module")]
fn main() {
    println!("time_us,rate_bps");
    for (micros, rate) in run() {
        println!("{micros},{rate}");
    }
}
