//! Two engines in one thread that exchange their datagrams in memory, ICRC included.

use std::time::{Duration, Instant};

use roce_packet::PathMtu;
use roce_sim::direct::Direct;
use roce_sim::pair::{Settings, Side};
use roce_transport::{EngineConfig, QpType, SendOp, SendWr, Wc, WcStatus};
use serde_json::{Value, json};

use super::outcome::Outcome;

/// Number of requests posted before anything is sent.
const BATCH: usize = 64;
/// Bytes of a message.
const SIZE: usize = 64;
/// Offset of the messages in the memory of the other side.
const TARGET: usize = BATCH * SIZE;

/// Measures the rate of WRITEs of 64 bytes, for both ends together. Each batch puts a number into its
/// messages, which is checked at the other side. The last batch is compared byte for byte.
pub(crate) fn writes(count: u64) -> Outcome<Value> {
    let mut direct = Direct::new(&EngineConfig::from_number(11), 2 * TARGET);
    let settings = Settings { mtu: PathMtu::Mtu4096, ..Settings::default() };
    let [qpn, _] = direct.connect(QpType::Rc, &settings);
    let bytes: Vec<u8> = (0..TARGET).map(|at| (at * 31 + at / 253) as u8).collect();
    direct.write(Side::A, 0, &bytes);
    let elements: [_; BATCH] = std::array::from_fn(|slot| [direct.host(Side::A).element(slot * SIZE, SIZE)]);
    let targets: [_; BATCH] = std::array::from_fn(|slot| {
        let host = direct.host(Side::B);
        let remote_addr = host.element(TARGET + slot * SIZE, SIZE).addr;
        SendOp::Write { remote_addr, rkey: host.region.rkey }
    });
    let batches = count.div_ceil(BATCH as u64);
    let mut completions = [Wc::default(); BATCH];
    let begun = Instant::now();
    for number in 0..batches {
        let at = number as usize % BATCH * SIZE;
        direct.write(Side::A, at, &number.to_le_bytes());
        let now = direct.now;
        let engine = &mut direct.host_mut(Side::A).engine;
        for (op, element) in targets.iter().zip(&elements) {
            engine.post_send(now, qpn, &SendWr::new(number, *op, element))?;
        }
        direct.drive();
        let host = direct.host_mut(Side::A);
        let done = host.engine.poll_cq(host.cq, &mut completions)?;
        let is_right = |wc: &Wc| wc.status == WcStatus::Success && wc.wr_id == number;
        if done != BATCH || !completions.iter().all(is_right) {
            return Err(format!("{done} of {BATCH} requests are complete").into());
        }
        if direct.read(Side::B, TARGET + at, 8) != number.to_le_bytes() {
            return Err("a message did not arrive".into());
        }
        // Time advances, so that deadlines are handled as well.
        direct.now = direct.now.plus_nanos(10_000);
        let now = direct.now;
        for side in [Side::A, Side::B] {
            direct.host_mut(side).engine.handle_timeout(now, Duration::ZERO);
        }
    }
    let elapsed = begun.elapsed().as_secs_f64();
    if direct.read(Side::A, 0, TARGET) != direct.read(Side::B, TARGET, TARGET) {
        return Err("the messages arrived damaged".into());
    }
    let counters = direct.host(Side::A).engine.counters();
    if counters.retransmitted_packets + counters.dropped() != 0 {
        return Err("packets were sent again or dropped".into());
    }
    let writes = batches * BATCH as u64;
    Ok(json!({"messages_per_second": writes as f64 / elapsed, "elapsed_seconds": elapsed}))
}
