//! A peer disappears during a transfer: every work request completes, with the right status, within the time
//! that ACK timeout and retry count specify.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use roce::verbs::*;

use crate::case::Family;
use crate::end::{Done, End, Link, Op, Ours, Theirs, Work};
use crate::setting::Setting;

const REQUESTS: usize = 64;
/// Large enough to keep the guest busy for a second or two.
const LEN: usize = 512 << 10;
/// Status numbers of libibverbs.
const RETRY_EXCEEDED: u32 = WcStatus::RetryExceededError as u32;
const FLUSHED: u32 = WcStatus::WrFlushError as u32;

/// Returns 4.096 µs × 2^exponent.
fn ack_timeout(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << exponent)
}

/// Posts more requests than the starter can complete at once, and waits for two completions.
fn begin(starter: &mut dyn End) -> Result<()> {
    starter.fill(0, LEN, 5)?;
    for wr_id in 0..REQUESTS as u64 {
        let op = if wr_id % 2 == 0 { Op::Write } else { Op::Read };
        let local = if wr_id % 2 == 0 { 0 } else { 1 << 20 };
        starter.post(&Work { wr_id, op, local, len: LEN, remote: 2 << 20 })?;
    }
    for _ in 0..2 {
        starter.succeed(Duration::from_secs(20))?;
    }
    Ok(())
}

/// Checks the completions after the other end has disappeared: successes, then one request that gave up, and
/// the others flushed.
fn end(starter: &mut dyn End, since: Instant, expected: [Duration; 2]) -> Result<String> {
    let [least, most] = expected;
    let done = starter.completions(REQUESTS - 2, most + Duration::from_secs(20))?;
    let took = since.elapsed();
    ensure!(done.len() == REQUESTS - 2, "{} of {} requests completed", done.len(), REQUESTS - 2);
    let good = done.iter().take_while(|done| done.status == 0).count();
    let ids: Vec<u64> = done.iter().map(|done| done.wr_id).collect();
    ensure!(ids.is_sorted() && ids[0] == 2, "completions out of order: {ids:?}");
    let rest: &[Done] = &done[good..];
    let Some(first) = rest.first() else { bail!("all was done before the peer was gone") };
    ensure!(first.status == RETRY_EXCEEDED, "the first that failed has status {}", first.status);
    ensure!(rest[1..].iter().all(|done| done.status == FLUSHED), "not all others were flushed: {rest:?}");
    ensure!(took >= least, "it took {took:?}, which is less than {least:?}");
    ensure!(took <= most, "it took {took:?}, which is more than {most:?}");
    Ok(format!("{good} completed, 1 failed after {} ms, {} flushed", took.as_millis(), rest.len() - 1))
}

fn ends<'a>(
    setting: &Setting,
    peer: &'a mut crate::peer::Peer,
    context: &Context,
    timeout: u8,
    retries: u8,
) -> Result<(Ours, Theirs<'a>)> {
    let mut ours = Ours::new(context, QpType::Rc, Access::LOCAL_WRITE | Access::REMOTE)?;
    let mut theirs = Theirs::new(peer, "rc", false)?;
    let link = Link { addresses: setting.addresses(Family::V4), mtu: PathMtu::Mtu1024, timeout, retries };
    crate::end::connect(&mut ours, &mut theirs, &link, QpType::Rc)?;
    Ok((ours, theirs))
}

/// Returns the bounds for our requesters, whose local ACK timeout has a minimum on devices.
fn our_bounds(timeout: u8, retries: u8) -> [Duration; 2] {
    bounds(timeout.max(Retransmission::ADAPTIVE.least_timeout), retries)
}

/// Returns bounds for (retries + 1) ACK timeouts; the specification allows each of them to take up to four
/// times as long. The first one began with the last acknowledgement, perhaps before the time measurement.
fn bounds(timeout: u8, retries: u8) -> [Duration; 2] {
    let retries = u32::from(retries);
    [ack_timeout(timeout) * retries, ack_timeout(timeout) * (retries + 1) * 4 + Duration::from_secs(1)]
}

/// Kills the peer's process; its machine still runs and stays silent.
pub(crate) fn process(setting: &Setting) -> Result<String> {
    let (mut peer, _) = setting.connect()?;
    let context = setting.open(Family::V4, 1, None)?;
    let (mut ours, theirs) = ends(setting, &mut peer, &context, 14, 3)?;
    begin(&mut ours)?;
    let since = Instant::now();
    theirs.peer.tell("die")?;
    let text = end(&mut ours, since, our_bounds(14, 3))?;
    context.check_device()?;
    Ok(text)
}

/// Suspends the machine of the peer for longer than the neighbor cache is valid, then resumes it.
pub(crate) fn machine(setting: &Setting) -> Result<String> {
    let file = std::env::var("ROCE_INTEROP_GUEST").context("ROCE_INTEROP_GUEST")?;
    let pid: i32 = std::fs::read_to_string(&file).with_context(|| file.clone())?.trim().parse()?;
    let pid = rustix::process::Pid::from_raw(pid).context("no process")?;
    let (mut peer, _) = setting.connect()?;
    let context = setting.open(Family::V4, 2, None)?;
    let (mut ours, _theirs) = ends(setting, &mut peer, &context, 18, 7)?;
    begin(&mut ours)?;
    let since = Instant::now();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    let outcome = end(&mut ours, since, our_bounds(18, 7));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT)?;
    let text = outcome?;
    context.check_device().context("the device did not survive")?;
    // The same context still works.
    drop(ours);
    let (mut ours, mut theirs) = ends(setting, &mut peer, &context, 17, 7)?;
    ours.fill(0, LEN, 9)?;
    ours.post(&Work { wr_id: 1, op: Op::Write, local: 0, len: LEN, remote: 0 })?;
    ours.succeed(setting.patience()).context("after the machine came back")?;
    theirs.check(0, LEN, 9)?;
    Ok(text)
}

/// Destroys our queue pair; the peer fails after its retries. Its timer is coarse, and its processor is
/// emulated.
pub(crate) fn we(setting: &Setting) -> Result<String> {
    let (mut peer, _) = setting.connect()?;
    let context = setting.open(Family::V4, 3, None)?;
    let (ours, mut theirs) = ends(setting, &mut peer, &context, 14, 3)?;
    begin(&mut theirs)?;
    let since = Instant::now();
    drop(ours);
    let [least, most] = bounds(14, 3);
    end(&mut theirs, since, [least, most + Duration::from_secs(2)])
}
