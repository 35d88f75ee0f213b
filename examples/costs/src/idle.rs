//! The costs of queue pairs without traffic.

use std::time::{Duration, Instant};

use roce::verbs::{Notify, QpCapabilities, RecvWr, SendOp, SendWr, Wc};
use serde_json::{Value, json};

use super::outcome::Outcome;
use super::pair::{Side, check, connect};
use super::usage::{processor_time, resident_bytes};

/// Measures a poll of an empty completion queue. Its device is a UDP socket, and one queue pair is connected.
pub(crate) fn polls(count: u64) -> Outcome<Value> {
    let (near, far) = (Side::new()?, Side::new()?);
    let [qp, _far_qp] = connect(&near, &far, QpCapabilities::default())?;
    check(&near, &far, &qp, 1)?;
    let mut done = [Wc::default(); 16];
    let begun = Instant::now();
    for _ in 0..count {
        if near.cq.poll(&mut done)? != 0 {
            return Err("there was a completion".into());
        }
    }
    let elapsed = begun.elapsed().as_secs_f64();
    check(&near, &far, &qp, 2)?;
    Ok(json!({"poll_seconds": elapsed / count as f64, "elapsed_seconds": elapsed}))
}

/// Measures the memory growth of the process for `pairs` pairs of connected RC queue pairs. Both ends belong
/// to the process. The other numbers are the send requests and receives of one element of each queue pair.
pub(crate) fn memory(pairs: usize, [max_send_wr, max_recv_wr]: [usize; 2]) -> Outcome<Value> {
    let (near, far) = (Side::new()?, Side::new()?);
    let capabilities =
        QpCapabilities { max_send_wr, max_recv_wr, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let mut kept = Vec::with_capacity(pairs + 1);
    // The first pair also creates objects that the others share.
    kept.push(connect(&near, &far, capabilities)?);
    check(&near, &far, &kept[0][0], 0)?;
    let before = resident_bytes()?;
    for _ in 0..pairs {
        kept.push(connect(&near, &far, capabilities)?);
    }
    let grown = resident_bytes()?.saturating_sub(before);
    for index in (1..=pairs).step_by(pairs.div_ceil(10).max(1)) {
        check(&near, &far, &kept[index][0], index as u64)?;
    }
    let queue_pairs = 2 * pairs;
    Ok(json!({"bytes_per_queue_pair": grown as f64 / queue_pairs as f64, "queue_pairs": queue_pairs}))
}

/// Measures the share of a processor, in `seconds`, of a connection whose ends both sleep until an event.
pub(crate) fn waiting(seconds: u64) -> Outcome<Value> {
    let (near, far) = (Side::new()?, Side::new()?);
    let [near_qp, far_qp] = connect(&near, &far, QpCapabilities::default())?;
    check(&near, &far, &near_qp, 1)?;
    for (side, qp) in [(&near, &near_qp), (&far, &far_qp)] {
        qp.post_recv(&RecvWr { wr_id: 2, elements: &[side.region.element(64..128)] })?;
        side.cq.request_notification(Notify::Next)?;
    }
    let span = Duration::from_secs(seconds);
    std::thread::scope(|scope| -> Outcome<Value> {
        let waits = [&near, &far].map(|side| {
            scope.spawn(|| {
                side.channel.wait(Some(span + Duration::from_secs(10))).map_err(|error| error.to_string())
            })
        });
        // The spinning before a sleep has ended by then.
        std::thread::sleep(Duration::from_millis(100));
        let (before, begun) = (processor_time(), Instant::now());
        std::thread::sleep(span);
        let (took, elapsed) = (processor_time() - before, begun.elapsed());
        if waits.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            return Err("something happened to an idle connection".into());
        }
        // Both threads wake up, so both were connected and waiting.
        near_qp.post_send(&SendWr::inline(3, SendOp::Send, b"wake up"))?;
        far_qp.post_send(&SendWr::inline(3, SendOp::Send, b"wake up"))?;
        for wait in waits {
            wait.join().map_err(|_| "a thread that waits panicked")??;
        }
        let share = took.as_secs_f64() / elapsed.as_secs_f64();
        Ok(json!({"processor_share": share, "elapsed_seconds": elapsed.as_secs_f64()}))
    })
}
