//! Runs the cells of the matrix one after the other, and checks the counters of both sides after each.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use roce::verbs::{Access, Context, QpType};

use crate::case::{Case, Operation, cases};
use crate::end::{Link, Ours, Theirs, connect};
use crate::peer::{Peer, PeerDevice};
use crate::setting::Setting;
use crate::work::{self, Scene};

/// Runs all cells of the setting. Returns their number and the names of those that failed.
pub(crate) fn run(setting: &Setting) -> Result<(usize, Vec<String>)> {
    let (mut peer, device) = setting.connect()?;
    let mut failed = Vec::new();
    let mut count = 0;
    for (index, case) in cases(setting.scope, setting.is_lossy()).into_iter().enumerate() {
        if !case.to_string().contains(&setting.only) || !supports(&device, &case) {
            continue;
        }
        // A case that is selected by its name runs anyway.
        if let Some(reason) = case.error_of_kernel(setting.is_lossy())
            && !setting.only.starts_with(case.operation.name())
        {
            println!("{case}: LEFT OUT, the kernel cannot: {reason}");
            setting.record_left_out(&case, reason)?;
            continue;
        }
        count += 1;
        let begun = Instant::now();
        let outcome = run_case(setting, &mut peer, &case, index as u64);
        setting.record(&case, &outcome, begun.elapsed())?;
        match outcome {
            Ok(messages) => println!("{case}: {messages} messages, {} ms", begun.elapsed().as_millis()),
            Err(error) => {
                let Setting { kernel, device, loss, .. } = setting;
                println!("{case}: FAILED: {error:#}");
                println!(
                    "  alone: cli/tests/interop/run --kernel {kernel} --device {device} --loss {loss} --case {case}"
                );
                failed.push(case.to_string());
                // The objects that the failed case left on the peer end with its process.
                peer = setting.connect()?.0;
            }
        }
    }
    Ok((count, failed))
}

/// Returns whether the device supports a case: FLUSH and ATOMIC WRITE need newer kernels.
fn supports(device: &PeerDevice, case: &Case) -> bool {
    match case.operation {
        Operation::RcAtomicWrite => device.atomic_write,
        Operation::RcFlush => device.flush,
        _ => true,
    }
}

fn run_case(setting: &Setting, peer: &mut Peer, case: &Case, seed: u64) -> Result<usize> {
    let capture = case.to_string().replace('/', "-");
    let context = setting.open(case.family, seed, Some(&capture))?;
    let before = Seen::now(&context, peer)?;
    let messages = exchange(setting, peer, case, &context)?;
    Seen::compare(setting, &before, &context, peer)?;
    Ok(messages)
}

fn exchange(setting: &Setting, peer: &mut Peer, case: &Case, context: &Context) -> Result<usize> {
    let qp_type = case.operation.qp_type();
    let name = match qp_type {
        QpType::Rc => "rc",
        QpType::Uc => "uc",
        _ => "ud",
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::FLUSH_GLOBAL;
    let mut ours = Ours::new(context, qp_type, access).context("our end")?;
    let mut theirs = Theirs::new(peer, name, case.operation.is_new()).context("their end")?;
    let addresses = setting.addresses(case.family);
    // 0.5 s, because pauses of 0.15 s are common in the guest. With losses, a shorter timeout saves time.
    let timeout = if setting.is_lossy() { 15 } else { 17 };
    let link = Link { addresses, mtu: case.mtu, timeout, retries: 7 };
    connect(&mut ours, &mut theirs, &link, qp_type).context("connecting")?;
    let addresses = Scene::addresses_of(&addresses, case.they_start);
    let (mtu, patience) = (case.mtu.bytes(), setting.patience());
    let mut scene = if case.they_start {
        Scene { starter: &mut theirs, other: &mut ours, mtu, patience, addresses }
    } else {
        Scene { starter: &mut ours, other: &mut theirs, mtu, patience, addresses }
    };
    if setting.is_lossy() && qp_type != QpType::Rc {
        work::run_unreliable(case.operation, &mut scene)
    } else {
        work::run(case.operation, &mut scene)
    }
}

/// Packets that each side has counted.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Packets that we sent, and those of them that the peer received.
    we_sent: u64,
    they_received: u64,
    they_sent: u64,
    we_received: u64,
}

impl Seen {
    fn now(context: &Context, peer: &mut Peer) -> Result<Self> {
        let they_received = peer.counter("rcvd_pkts")?;
        let they_sent = peer.counter("sent_pkts")?;
        let counters = counters(context);
        let of =
            |name: &str| counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        Ok(Self {
            we_sent: of("rdma_tx_packets") - of("fault_tx_dropped"),
            they_received,
            they_sent,
            we_received: of("rdma_rx_packets") + of("fault_rx_dropped"),
        })
    }

    /// Checks that neither side dropped a packet because of its ICRC. Soft-RoCE does not report such drops,
    /// so its count of good packets must grow by the number of packets that we sent.
    fn compare(setting: &Setting, before: &Self, context: &Context, peer: &mut Peer) -> Result<()> {
        let wrong: Vec<_> =
            counters(context).into_iter().filter(|(name, value)| *value > 0 && is_damage(name)).collect();
        ensure!(wrong.is_empty(), "we dropped packets: {wrong:?}");
        // The last acknowledgements may still be in flight.
        let end = Instant::now() + Duration::from_secs(2);
        loop {
            let now = Self::now(context, peer)?;
            let [sent, received] = [now.we_sent - before.we_sent, now.they_received - before.they_received];
            let [theirs, ours] = [now.they_sent - before.they_sent, now.we_received - before.we_received];
            if sent == received && theirs == ours {
                return Ok(());
            }
            if Instant::now() > end {
                let Setting { device, .. } = setting;
                bail!(
                    "we sent {sent} packets and they took in {received}; they sent {theirs} and we took in {ours} \
                     ({device})"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns whether a counter is one of drops that no peer may cause.
fn is_damage(name: &str) -> bool {
    const NAMES: [&str; 9] = [
        "rx_icrc_encapsulated",
        "drop_short",
        "drop_bad_length",
        "drop_bad_version",
        "drop_unknown_opcode",
        "drop_malformed",
        "drop_bad_pkey",
        "drop_bad_address",
        "drop_bad_qkey",
    ];
    NAMES.contains(&name)
}

fn counters(context: &Context) -> Vec<(&'static str, u64)> {
    let mut all = Vec::new();
    context.visit_counters(&mut |name, value| all.push((name, value)));
    all
}
