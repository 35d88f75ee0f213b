//! Messages there and back on a reliable connection, with every byte compared.

use std::time::{Duration, Instant};

use roce_packet::PathMtu;
use roce_transport::{Access, QpType, RecvWr, SendOp, SendWr, Wc, WcStatus};

use super::DoctorError;
use super::probe::Probe;
use super::wire::{Introduction, TripReport, Trips};
use crate::exchange::Exchange;
use roce::observe::advice;
use roce::verbs::{
    CompletionQueue, ConnectOptions, Endpoint, MemoryRegion, QueuePair, QueuePairOptions, WaitError,
};

/// How long one message may take, retransmissions included.
const PATIENCE: Duration = Duration::from_secs(5);
/// Local ACK timeout: 4.096 µs × 2^15 = 134 ms, and so many retries.
const TIMEOUT: u8 = 15;
const RETRIES: u8 = 7;

/// One end of a connection for round trips.
pub(super) struct Traveller {
    qp: QueuePair,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    region: MemoryRegion,
    trips: Trips,
    path_mtu: PathMtu,
}

/// What a byte of a message is: different for every message, position and direction.
fn pattern(message: u32, index: usize, is_reply: bool) -> u8 {
    (index as u32).wrapping_mul(31).wrapping_add(index as u32 >> 8).wrapping_add(message * 7 + 1) as u8
        ^ if is_reply { 0xa5 } else { 0 }
}

fn content(message: u32, bytes: usize, is_reply: bool) -> Vec<u8> {
    (0..bytes).map(|index| pattern(message, index, is_reply)).collect()
}

impl Traveller {
    pub(super) fn new(probe: &Probe, trips: Trips) -> Result<Self, DoctorError> {
        let path_mtu = PathMtu::from_bytes(trips.path_mtu).ok_or(DoctorError::PathMtu(trips.path_mtu))?;
        let send_cq = probe.context.create_cq(16, None)?;
        let recv_cq = probe.context.create_cq(16, None)?;
        let region = probe.pd.allocate(2 * trips.bytes, Access::LOCAL_WRITE)?;
        let options = QueuePairOptions::new(QpType::Rc, &send_cq).recv_cq(&recv_cq);
        let qp = probe.pd.create_qp(&options)?;
        Ok(Self { qp, send_cq, recv_cq, region, trips, path_mtu })
    }

    pub(super) fn endpoint(&self, probe: &Probe) -> Result<Endpoint, DoctorError> {
        Ok(Endpoint { address: probe.own_address()?, ..self.qp.endpoint()? })
    }

    pub(super) fn connect(
        &self,
        probe: &Probe,
        peer: &Introduction,
        to: &Endpoint,
    ) -> Result<(), DoctorError> {
        let options = ConnectOptions::default()
            .path_mtu(self.path_mtu)
            .path(probe.path)
            .timeout(TIMEOUT)
            .retry_cnt(RETRIES);
        self.qp.connect(&Endpoint { address: peer.address, ..*to }, &options)?;
        self.post_receive()
    }

    fn post_receive(&self) -> Result<(), DoctorError> {
        let element = [self.region.element(0..self.trips.bytes)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: 0, elements: &element })?)
    }

    /// Sends all messages, each when the one before it has come back.
    pub(super) fn there(&self, probe: &Probe, exchange: &mut Exchange) -> Result<TripReport, DoctorError> {
        self.travel(probe, exchange, |report, exchange| {
            let start = Instant::now();
            self.send(report.done, false)?;
            if let Err(failure) = self.receive(report.done, true, exchange)? {
                return Ok(Err(failure));
            }
            report.times_ns.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            self.sent()
        })
    }

    /// Sends every message back, with other bytes.
    pub(super) fn back(&self, probe: &Probe, exchange: &mut Exchange) -> Result<TripReport, DoctorError> {
        self.travel(probe, exchange, |report, exchange| {
            if let Err(failure) = self.receive(report.done, false, exchange)? {
                return Ok(Err(failure));
            }
            self.send(report.done, true)?;
            self.sent()
        })
    }

    fn travel(
        &self,
        probe: &Probe,
        exchange: &mut Exchange,
        mut once: impl FnMut(&mut TripReport, &mut Exchange) -> Result<Result<(), String>, DoctorError>,
    ) -> Result<TripReport, DoctorError> {
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
            self.qp.counters().map_or(0, |counters| counters.retransmitted_packets);
        Ok(report)
    }

    fn send(&self, message: u32, is_reply: bool) -> Result<(), DoctorError> {
        let bytes = self.trips.bytes;
        let written = self.region.write(bytes, &content(message, bytes, is_reply));
        debug_assert!(written.is_ok(), "messages lie inside the region");
        let element = [self.region.element(bytes..2 * bytes)];
        Ok(self.qp.post_send(&SendWr::new(message.into(), SendOp::Send, &element))?)
    }

    /// Waits until the peer has acknowledged what was sent last.
    fn sent(&self) -> Result<Result<(), String>, DoctorError> {
        Ok(self.completion(&self.send_cq, "an acknowledgement", None)?.map(|_| ()))
    }

    fn receive(
        &self,
        message: u32,
        is_reply: bool,
        exchange: &mut Exchange,
    ) -> Result<Result<(), String>, DoctorError> {
        let wc = match self.completion(&self.recv_cq, "a message", Some(exchange))? {
            Ok(wc) => wc,
            Err(failure) => return Ok(Err(failure)),
        };
        let mut arrived = vec![0; self.trips.bytes];
        let is_read = self.region.read(0, &mut arrived).is_ok();
        let is_right = is_read && wc.byte_len as usize == arrived.len();
        if !is_right || arrived != content(message, self.trips.bytes, is_reply) {
            return Ok(Err(format!(
                "message {message} of {} bytes arrived with other content",
                arrived.len()
            )));
        }
        self.post_receive()?;
        Ok(Ok(()))
    }

    /// The next completion, or why there is none. No message comes any more once the other side has ended.
    fn completion(
        &self,
        cq: &CompletionQueue,
        awaited: &str,
        mut exchange: Option<&mut Exchange>,
    ) -> Result<Result<Wc, String>, DoctorError> {
        let end = Instant::now() + PATIENCE;
        let mut done = [Wc::default(); 1];
        let mut has_ended = false;
        loop {
            match cq.wait(&mut done, Some(Duration::from_millis(20))) {
                Ok(_) if done[0].status == WcStatus::Success => return Ok(Ok(done[0])),
                Ok(_) => return Ok(Err(self.reason(&done[0]))),
                Err(WaitError::TimedOut) => {}
                Err(error) => return Err(error.into()),
            }
            // What the other side sent before it ended has been looked for once more.
            if has_ended || Instant::now() > end {
                return Ok(Err(format!("waited in vain for {awaited}")));
            }
            if let Some(exchange) = &mut exchange {
                has_ended = exchange.has_input()?;
            }
        }
    }

    /// Why a work request failed: a flushed one only follows from another.
    fn reason(&self, failed: &Wc) -> String {
        let mut wc = *failed;
        let mut other = [Wc::default(); 1];
        while wc.status == WcStatus::WrFlushError && matches!(self.send_cq.poll(&mut other), Ok(1)) {
            wc = other[0];
        }
        format!("{} ({:?}): {}", wc.status.name(), wc.cause, advice(wc.status, wc.cause))
    }
}
