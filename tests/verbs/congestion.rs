//! Congestion control as an application selects and observes it, with real time and real sockets.

use std::time::{Duration, Instant};

use roce::device::OpenOptions;
use roce::verbs::*;
use roce_fault::FaultInjector;

use crate::world::*;

/// Returns two connected sides; the near one has this congestion control, and faults on the packets that it
/// sends.
fn connected(wire: Wire, congestion: &str, faults: Option<&str>) -> Option<(Side, Side)> {
    let transmit_faults = faults.map(|plan| FaultInjector::new(plan.parse().unwrap(), 1));
    let near = Context::builder()
        .congestion(Congestion::parse(congestion).unwrap())
        .options(OpenOptions { transmit_faults, ..OpenOptions::default() });
    let (near, far) = wire.open_with(near, Context::builder())?;
    Some(connect((near, far), QpType::Rc, &ConnectOptions::default()))
}

#[test]
fn a_fixed_rate_is_kept_in_real_time() {
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = connected(wire, "fixed:400M", None) else { continue };
        let begin = Instant::now();
        const MESSAGES: u64 = 20;
        for wr_id in 0..MESSAGES {
            near.post(wr_id, far.write_op(0), &[near.region.element(0..200_000)]);
            succeed(&near.send_cq);
        }
        // A message has 196 packets, the last one of 320 bytes. The burst is not paced.
        let bytes = MESSAGES * (195 * 1106 + 402) - 16_384;
        let ideal = Duration::from_nanos(bytes * 8 * 1000 / 400);
        assert!(begin.elapsed() >= ideal, "{wire:?}: {:?} instead of {ideal:?}", begin.elapsed());
        let seen = near.qp.congestion().expect("it has an algorithm");
        assert_eq!(seen.rate, 400e6);
        assert!(far.qp.congestion().is_none());
    }
}

/// A rate that was reduced stays reduced for longer than the test takes.
const SLOW: &str = "dcqcn,rpg_min_rate=200,rpg_time_reset=131071,rpg_byte_reset=0";

#[test]
fn marks_on_the_wire_slow_the_sender() {
    for wire in [Wire::UdpV4, Wire::Memory] {
        let Some((near, far)) = connected(wire, SLOW, Some("ecn=100%")) else { continue };
        for wr_id in 0..20 {
            near.post(wr_id, far.write_op(0), &[near.region.element(0..100_000)]);
            succeed(&near.send_cq);
        }
        let (sent, handled) = (far.context.counters().np_cnp_sent, near.context.counters().rp_cnp_handled);
        assert!(handled > 5 && handled <= sent, "{wire:?}: {sent} sent, {handled} handled");
        let seen = near.qp.congestion().expect("it has an algorithm");
        assert!(seen.rate < 100e9 && seen.rate >= 200e6, "{wire:?}: {seen:?}");
        assert!(seen.alpha.is_some_and(|alpha| alpha > 0.0 && alpha <= 1.0));
    }
}

#[test]
fn a_queue_pair_has_a_congestion_control_of_its_own() {
    let Some((near, _far)) = connected(Wire::Memory, "fixed:1G", None) else { return };
    let congestion = Some(Congestion::parse("fixed:2G").unwrap().0);
    let options = QueuePairOptions::new(QpType::Uc, &near.send_cq).congestion(congestion);
    let own = near.pd.create_qp(&options).unwrap();
    assert_eq!(own.congestion().map(|seen| seen.rate), Some(2e9));
    assert_eq!(near.qp.congestion().map(|seen| seen.rate), Some(1e9));
    let datagrams = near.another_qp(QpType::Ud);
    assert!(datagrams.congestion().is_none(), "UD talks to many peers");
}
