//! Sampling of rates and queues.

use roce_transport::congestion::Observation;

use super::Simulation;
use crate::net::flow::{Flow, FlowState};
use crate::net::frame::DATAGRAM_OVERHEAD;
use crate::net::results::{PausePoint, QueuePoint, RatePoint, Total};
use crate::net::time::Time;
use crate::net::waits::{SwitchWaits, WaitChange};
use crate::net::world::World;

impl Simulation {
    pub(super) fn sample(&mut self) {
        let now = self.now;
        let interval = now.since(self.samples.last);
        self.samples.last = now;
        self.gather_waits();
        self.sample_rates(now, interval);
        if now >= self.settings.measure.warm_up {
            self.sample_queues(now);
        }
    }

    /// Merges the waits of all switches since the last call, ordered by time and switch.
    pub(super) fn gather_waits(&mut self) {
        let mut changes: Vec<(u32, WaitChange)> = Vec::new();
        for part in &mut self.parts {
            let World { waits, ports, .. } = &mut part.world;
            for mut change in waits.iter_mut().flat_map(SwitchWaits::take_log) {
                let [ingress, egress] =
                    [change.wait.ingress, change.wait.egress].map(|port| &ports[port as usize]);
                (change.wait.ingress, change.wait.egress) = (ingress.number, egress.number);
                changes.push((egress.node, change));
            }
        }
        // The sort is stable, so the changes of one switch keep their order.
        changes.sort_by_key(|(switch, change)| (change.time, *switch));
        let changes: Vec<WaitChange> = changes.into_iter().map(|(_, change)| change).collect();
        self.waits.apply(&changes);
    }

    /// Returns the pause steps ordered by time and port, and the number of steps left out.
    pub(super) fn take_pauses(&mut self) -> (Vec<PausePoint>, u64) {
        let mut left_out: u64 = self.parts.iter().map(|part| part.world.pauses_left_out).sum();
        let mut pauses: Vec<PausePoint> =
            self.parts.iter_mut().flat_map(|part| part.world.pauses.drain(..)).collect();
        pauses.sort_by_key(|point| (point.time, point.port));
        let most = self.settings.measure.most_points;
        left_out += pauses.len().saturating_sub(most) as u64;
        pauses.truncate(most);
        (pauses, left_out)
    }

    /// Returns the running flows, ordered by the time of their first post and then by number.
    fn running(&mut self) -> Vec<u32> {
        let mut begun: Vec<u32> = self.parts.iter_mut().flat_map(|part| part.begun.drain(..)).collect();
        begun.sort_by_cached_key(|number| (self.flow(*number).map(|flow| flow.spec.start), *number));
        let mut running = std::mem::take(&mut self.samples.running);
        running.append(&mut begun);
        running.retain(|number| self.flow(*number).is_some_and(|flow| flow.state == FlowState::Running));
        running
    }

    /// Returns the payload bytes that all flows have sent, without retransmissions, and the total size of all
    /// flows. Failed flows count as sent.
    #[must_use]
    pub fn sent_bytes(&self) -> (u64, u64) {
        let flows = self.parts.iter().flat_map(|part| &part.flows);
        let (mut sent, mut all) = (0_u64, 0_u64);
        for flow in flows {
            let own = match flow.state {
                FlowState::Waiting => 0,
                FlowState::Running => self.sent_by(flow).unwrap_or(flow.sampled).min(flow.spec.bytes),
                FlowState::Complete | FlowState::Failed(_) | FlowState::Refused(_) => flow.spec.bytes,
            };
            (sent, all) = (sent.saturating_add(own), all.saturating_add(flow.spec.bytes));
        }
        (sent, all)
    }

    /// Returns the payload bytes that a running flow has sent, without retransmissions.
    fn sent_by(&self, flow: &Flow) -> Option<u64> {
        let source = self.hosts[flow.spec.source as usize];
        let engine = &self.parts[source.part as usize].hosts[source.index as usize].nic.engine;
        let counters = engine.qp_counters(flow.source_qpn)?;
        // The sender sends no acknowledgements, so all its packets are data.
        let new = counters.rdma_tx_packets - counters.retransmitted_packets;
        let overhead = new * u64::from(DATAGRAM_OVERHEAD);
        Some((counters.rdma_tx_bytes - counters.retransmitted_bytes).saturating_sub(overhead))
    }

    fn sample_rates(&mut self, now: Time, interval: Time) {
        let running = self.running();
        let most = self.settings.measure.most_points;
        let mut total = Total::new(std::mem::take(&mut self.samples.ended_bytes));
        for number in &running {
            let place = self.flows[*number as usize];
            let flow = &self.parts[place.part as usize].flows[place.index as usize];
            let Some(bytes) = self.sent_by(flow) else { continue };
            let sent = bytes.saturating_sub(flow.sampled);
            let (qpn, source) = (flow.source_qpn, self.hosts[flow.spec.source as usize]);
            let engine = &self.parts[source.part as usize].hosts[source.index as usize].nic.engine;
            let unlimited = Observation { rate: f64::INFINITY, ..Observation::default() };
            let is_kept = self.samples.rates.len() < most;
            let seen = if is_kept { engine.congestion(now.to_instant(), qpn) } else { None };
            self.parts[place.part as usize].flows[place.index as usize].sampled = bytes;
            total.add(sent);
            if !is_kept {
                self.samples.left_out += 1;
                continue;
            }
            let seen = seen.unwrap_or(unlimited);
            self.samples.rates.push(RatePoint {
                time: now,
                flow: *number,
                goodput_bps: sent as f64 * 8.0 / interval.as_secs_f64(),
                rate_bps: seen.rate,
                target_bps: seen.target_rate,
                alpha: seen.alpha,
            });
        }
        self.samples.running = running;
        if self.samples.totals.len() < most {
            self.samples.totals.push(total.point(now, interval));
        } else {
            self.samples.left_out += 1;
        }
    }

    fn sample_queues(&mut self, now: Time) {
        let most = self.settings.measure.most_points;
        for (number, place) in (0..).zip(&self.ports) {
            let port = &self.parts[place.part as usize].world.ports[place.index as usize];
            let bytes = port.egress.bytes();
            if bytes == 0 {
                continue;
            }
            self.samples.of_ports[number as usize].record(bytes);
            if self.samples.queues.len() >= most {
                self.samples.left_out += 1;
                continue;
            }
            let paused = port.paused_until(now).iter().fold(Time::ZERO, |sum, span| sum + *span);
            let marked = port.stats.marked;
            self.samples.queues.push(QueuePoint { time: now, port: number, bytes, marked, paused });
        }
    }
}
