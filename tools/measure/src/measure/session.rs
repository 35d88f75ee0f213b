//! The connection of both measurements: its set-up, its completions and its counters.

use std::time::{Duration, Instant};

use roce_exchange::{CompletionQueues, Exchange, Requirements, Resources, ToolError, source_address};
use roce_packet::PathMtu;
use roce_transport::{Access, Counters, QpType, RKey, Wc, WcStatus};
use serde::{Deserialize, Serialize};

use super::usage::Stopwatch;
use super::{Completion, Plan, Side};
use crate::harness::{CompletionWait, Role, check_completion, spin};
use roce::verbs::{ConnectOptions, Context, Endpoint, PathOptions};

/// Time limit for a completion.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which a side that polls its memory also checks whether the other side has ended.
const WATCH_EVERY: Duration = Duration::from_millis(20);

/// The description that each side sends before the first message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Introduction {
    endpoint: Endpoint,
    addr: u64,
    rkey: u32,
}

/// One side of a measurement.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) plan: Plan,
    pub(super) resources: Resources,
    pub(super) remote_addr: u64,
    pub(super) remote_rkey: RKey,
    pub(super) exchange: &'a mut Exchange,
    /// Receives posted since the start.
    pub(super) receives_posted: u64,
    pub(super) receives_taken: u64,
    context: Context,
}

impl<'a> Session<'a> {
    /// Creates a queue pair and connects it to that of the other side.
    pub(super) fn new(
        context: &Context,
        exchange: &'a mut Exchange,
        plan: Plan,
        gid_index: Option<usize>,
        role: Role,
    ) -> Result<Self, ToolError> {
        let sgid_index = gid_index.or_else(|| context.gid_towards(exchange.peer_address()));
        let address = source_address(context, sgid_index)?;
        let resources = Resources::new(
            context,
            &Requirements {
                qp_type: QpType::Rc,
                capabilities: plan.capabilities(),
                completion_queues: match plan.completion {
                    Completion::Event => CompletionQueues::WithChannels,
                    Completion::Poll | Completion::Memory => CompletionQueues::Separate,
                },
                memory: plan.memory(),
                access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            },
        )?;
        let Resources { qp, region, .. } = &resources;
        let endpoint = Endpoint { address, ..qp.endpoint()? };
        let own = Introduction { endpoint, addr: region.addr(), rkey: region.rkey().0 };
        let other: Introduction = exchange.swap("the other side's queue pair", &own)?;
        if role == Role::Server {
            exchange.peers().check(other.endpoint.address)?;
        }
        check_memory_of_peer(other.addr, plan.memory())?;
        let path_mtu = PathMtu::from_bytes(plan.path_mtu).unwrap_or(PathMtu::Mtu1024);
        let path = PathOptions::default().sgid_index(sgid_index);
        let connect = ConnectOptions::default().path_mtu(path_mtu).path(path).timeout(plan.timeout);
        qp.connect(&other.endpoint, &connect)?;
        let (remote_addr, remote_rkey) = (other.addr, RKey(other.rkey));
        let context = context.clone();
        let (receives_posted, receives_taken) = (0, 0);
        // The set-up is over for both sides. In `roce demo`, the client is the side that was called.
        exchange.limit(None);
        Ok(Self {
            plan,
            resources,
            remote_addr,
            remote_rkey,
            exchange,
            receives_posted,
            receives_taken,
            context,
        })
    }

    /// Starts measuring this side.
    pub(super) fn measure(&self) -> Measurement {
        Measurement { stopwatch: Stopwatch::start(), before: self.counters() }
    }

    pub(super) fn side(&self, measurement: &Measurement) -> Side {
        let cpu = measurement.stopwatch.stop();
        let (before, after) = (&measurement.before, self.counters());
        Side {
            cpu,
            retransmitted_packets: after.retransmitted_packets - before.retransmitted_packets,
            timeouts: after.expired_timers() - before.expired_timers(),
            rnr_naks: after.rnr_nak_retry_err - before.rnr_nak_retry_err,
        }
    }

    /// Polls memory until an attempt succeeds, as long as the other side is there.
    pub(super) fn spin_on_memory(
        &mut self,
        attempt: &mut dyn FnMut(&Self) -> Result<Option<()>, ToolError>,
    ) -> Result<(), ToolError> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let found = spin(WATCH_EVERY, || {
                // Memory is checked first, because a message that has been written must be answered before
                // more packets are read.
                let found = attempt(self)?;
                if found.is_none() {
                    self.context.progress();
                }
                Ok::<_, ToolError>(found)
            })?;
            if found.is_some() {
                return Ok(());
            }
            self.exchange.watch()?;
        }
        Err(stalled("waiting for a WRITE of the peer"))
    }

    /// Returns the number of packets that have arrived here.
    pub(super) fn packets(&self) -> u64 {
        self.counters().rdma_rx_packets
    }

    /// Returns the counters of the queue pair: other sessions may use the same context.
    fn counters(&self) -> Counters {
        self.resources.qp.counters().unwrap_or_default()
    }

    /// Waits for completions of sends.
    pub(super) fn sends(&mut self, out: &mut [Wc]) -> Result<usize, ToolError> {
        self.completions(true, out)
    }

    /// Waits for completions of receives.
    pub(super) fn receives(&mut self, out: &mut [Wc]) -> Result<usize, ToolError> {
        self.completions(false, out)
    }

    /// Waits for completions as the plan says, as long as the other side is there. Every completion must be
    /// successful.
    fn completions(&mut self, of_sends: bool, out: &mut [Wc]) -> Result<usize, ToolError> {
        let Self { resources, exchange, plan, .. } = self;
        let wait = CompletionWait {
            cq: if of_sends { &resources.send_cq } else { &resources.recv_cq },
            by_event: plan.completion == Completion::Event,
            patience: PATIENCE,
        };
        let Some(count) = wait.run(out, &mut || Ok(exchange.watch()?))? else {
            return Err(stalled(if of_sends {
                "waiting for the peer to acknowledge messages"
            } else {
                "waiting for a message of the peer"
            }));
        };
        if let Some(failed) = out.iter().take(count).find(|wc| wc.status != WcStatus::Success) {
            check_completion(resources.context(), &resources.reason(failed))?;
        }
        Ok(count)
    }
}

/// Returns the error if nothing has arrived for [`PATIENCE`].
pub(super) fn stalled(progress: &str) -> ToolError {
    ToolError::Stalled { progress: progress.into(), patience: PATIENCE, is_reliable: true }
}

/// Checks that the addresses of buffers on the other side, which are sums, do not overflow.
fn check_memory_of_peer(addr: u64, len: usize) -> Result<(), ToolError> {
    if addr.checked_add(len as u64).is_some() {
        return Ok(());
    }
    Err(ToolError::Peer(format!(
        "has its memory at address {addr:#x}, where {len} bytes do not fit; run the same version on both sides"
    )))
}

/// The counters and times at the start of a measurement.
#[derive(Debug)]
pub(super) struct Measurement {
    stopwatch: Stopwatch,
    before: Counters,
}

/// Detects, for a server that only waits, that no packets arrive. The server then need not poll all the time.
#[derive(Debug)]
pub(super) struct Quiet {
    packets: u64,
    since: Instant,
}

impl Quiet {
    pub(super) fn new(session: &Session<'_>) -> Self {
        Self { packets: session.packets(), since: Instant::now() }
    }

    /// Returns the time since the last packet.
    pub(super) fn elapsed(&mut self, session: &Session<'_>) -> Duration {
        let packets = session.packets();
        if packets != self.packets {
            *self = Self { packets, since: Instant::now() };
        }
        self.since.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_peer_that_does_not_fit_into_64_bits_is_refused() {
        assert!(check_memory_of_peer(u64::MAX - 64, 64).is_ok());
        for addr in [u64::MAX, u64::MAX - 63] {
            let error = check_memory_of_peer(addr, 64).unwrap_err().to_string();
            assert!(error.contains("do not fit") && error.contains(&format!("{addr:#x}")), "{error}");
        }
    }
}
