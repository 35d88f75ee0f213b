//! Round trips of messages on a reliable connection. Every byte is compared.

use std::time::{Duration, Instant};

use roce_exchange::content::Pattern;
use roce_exchange::{CompletionQueues, Exchange, Requirements, Resources, ToolError};
use roce_packet::PathMtu;
use roce_transport::{Access, QpCapabilities, QpType, SendOp, Wc, WcStatus};

use super::probe::Probe;
use super::wire::{Introduction, TripReport, Trips, not_a_path_mtu};
use roce::observe::explain;
use roce::verbs::{CompletionQueue, ConnectOptions, Endpoint, WaitError};

/// Time limit for one message, including retransmissions.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of retries, at intervals of 537 ms. [`PATIENCE`] exceeds their total time.
const RETRIES: u8 = 7;

/// One side of a connection for round trips.
pub(super) struct RoundTrips {
    resources: Resources,
    trips: Trips,
    path_mtu: PathMtu,
}

/// Returns the content of a message, which depends on its number and its direction.
fn content(message: u32, bytes: usize, is_reply: bool) -> Vec<u8> {
    let mut content = Pattern::new(31, u64::from(message) * 7 + 1).bytes(bytes);
    if is_reply {
        content.iter_mut().for_each(|byte| *byte ^= 0xa5);
    }
    content
}

impl RoundTrips {
    pub(super) fn new(probe: &Probe, trips: Trips) -> Result<Self, ToolError> {
        let path_mtu = PathMtu::from_bytes(trips.path_mtu).ok_or_else(|| not_a_path_mtu(trips.path_mtu))?;
        let resources = Resources::new(
            &probe.context,
            &Requirements {
                qp_type: QpType::Rc,
                capabilities: QpCapabilities {
                    max_send_wr: 16,
                    max_recv_wr: 16,
                    ..QpCapabilities::default()
                },
                completion_queues: CompletionQueues::Separate,
                memory: 2 * trips.bytes,
                access: Access::empty(),
            },
        )?;
        Ok(Self { resources, trips, path_mtu })
    }

    pub(super) fn endpoint(&self, probe: &Probe) -> Result<Endpoint, ToolError> {
        Ok(Endpoint { address: probe.own_address()?, ..self.resources.qp.endpoint()? })
    }

    pub(super) fn connect(&self, probe: &Probe, peer: &Introduction, to: &Endpoint) -> Result<(), ToolError> {
        let options = ConnectOptions::default().path_mtu(self.path_mtu).path(probe.path).retry_cnt(RETRIES);
        self.resources.qp.connect(&Endpoint { address: peer.address, ..*to }, &options)?;
        self.post_receive()
    }

    fn post_receive(&self) -> Result<(), ToolError> {
        Ok(self.resources.post_receive(0, 0..self.trips.bytes)?)
    }

    /// Sends all messages, each when the previous one has returned.
    pub(super) fn send_all(&self, probe: &Probe, exchange: &mut Exchange) -> Result<TripReport, ToolError> {
        self.repeat(probe, exchange, |report, exchange| {
            let start = Instant::now();
            self.send(report.done, false)?;
            if let Err(failure) = self.receive(report.done, true, exchange)? {
                return Ok(Err(failure));
            }
            report.times_ns.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            self.sent()
        })
    }

    /// Returns every message, with other bytes.
    pub(super) fn return_all(&self, probe: &Probe, exchange: &mut Exchange) -> Result<TripReport, ToolError> {
        self.repeat(probe, exchange, |report, exchange| {
            if let Err(failure) = self.receive(report.done, false, exchange)? {
                return Ok(Err(failure));
            }
            self.send(report.done, true)?;
            self.sent()
        })
    }

    fn repeat(
        &self,
        probe: &Probe,
        exchange: &mut Exchange,
        mut once: impl FnMut(&mut TripReport, &mut Exchange) -> Result<Result<(), String>, ToolError>,
    ) -> Result<TripReport, ToolError> {
        let mut report = TripReport::default();
        probe.log.take();
        exchange.barrier()?;
        while report.done < self.trips.count {
            if let Err(failure) = once(&mut report, exchange)? {
                report.failure = Some(failure);
                break;
            }
            report.done += 1;
        }
        report.times_ns.sort_unstable();
        report.longest = probe.log.take().longest;
        report.retransmitted_packets =
            self.resources.qp.counters().map_or(0, |counters| counters.retransmitted_packets);
        Ok(report)
    }

    fn send(&self, message: u32, is_reply: bool) -> Result<(), ToolError> {
        let bytes = self.trips.bytes;
        self.resources.put(bytes, &content(message, bytes, is_reply));
        Ok(self.resources.post(message.into(), SendOp::Send, bytes..2 * bytes)?)
    }

    /// Waits until the peer has acknowledged the last message.
    fn sent(&self) -> Result<Result<(), String>, ToolError> {
        Ok(self.completion(&self.resources.send_cq, "an acknowledgement", None)?.map(|_| ()))
    }

    fn receive(
        &self,
        message: u32,
        is_reply: bool,
        exchange: &mut Exchange,
    ) -> Result<Result<(), String>, ToolError> {
        let wc = match self.completion(&self.resources.recv_cq, "a message", Some(exchange))? {
            Ok(wc) => wc,
            Err(failure) => return Ok(Err(failure)),
        };
        let bytes = self.trips.bytes;
        let arrived = self.resources.bytes(0, bytes);
        if wc.byte_len as usize != bytes || arrived != content(message, bytes, is_reply) {
            return Ok(Err(format!("message {message} of {bytes} bytes arrived with wrong content")));
        }
        self.post_receive()?;
        Ok(Ok(()))
    }

    /// Returns the next completion, or the reason why none arrived. Once the other side has ended, no more
    /// messages arrive.
    fn completion(
        &self,
        cq: &CompletionQueue,
        awaited: &str,
        mut exchange: Option<&mut Exchange>,
    ) -> Result<Result<Wc, String>, ToolError> {
        let end = Instant::now() + PATIENCE;
        let mut done = [Wc::default(); 1];
        let mut has_ended = false;
        loop {
            match cq.wait(&mut done, Some(Duration::from_millis(20))) {
                Ok(_) if done[0].status == WcStatus::Success => return Ok(Ok(done[0])),
                Ok(_) => {
                    let result = self.resources.context().result(&self.resources.reason(&done[0]));
                    return Ok(result.map_err(|error| explain(&error)));
                }
                Err(WaitError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            // This side has polled once more for messages that the other side sent before it ended.
            if has_ended || Instant::now() > end {
                return Ok(Err(format!("{awaited} did not arrive")));
            }
            if let Some(exchange) = &mut exchange {
                has_ended = exchange.has_input()?;
            }
        }
    }
}
