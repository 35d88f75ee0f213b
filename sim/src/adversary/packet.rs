//! Checks of each packet, and the record of packets.

use roce_packet::{Datagram, Direction, NakCode, Operation, Psn, Qpn, Syndrome};
use roce_transport::QpType;
use roce_transport::congestion::Congestion;

use super::link::Fate;
use super::trace::Pause;
use super::world::{Checked, FlowState, World};
use crate::pair::Side;

/// The number of recorded arrivals, which exceeds a window with retransmissions.
const ARRIVALS: usize = 1_024;

impl FlowState {
    /// Returns whether the receive queue was empty at the last arrival of this request, or later. Paced READ
    /// responses before the request can delay its RNR NAK.
    fn was_refused(&self, psn: Psn) -> bool {
        let arrival = self.arrivals.iter().find(|(arrived, _)| *arrived == psn);
        arrival.zip(self.empty_until).is_some_and(|((_, arrival), until)| *arrival <= until)
    }
}

impl World<'_> {
    fn pair_of(&self, to: Side, qpn: Qpn) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.qpns[to as usize] == qpn)
    }

    /// Checks a packet that `from` puts on the link.
    pub(super) fn observe_sent(&mut self, from: Side, bytes: &[u8], fate: Fate) -> Checked {
        let datagram =
            Datagram::parse(bytes, &[]).map_err(|error| format!("sent a broken packet: {error}"))?;
        let qpn = datagram.bth().dest_qp;
        self.trace.packet(self.now, from, qpn, bytes, fate.name);
        let pair = self.pair_of(from.other(), qpn).ok_or("a packet for nobody")?;
        if let Some(at) = fate.disturbs {
            self.pairs[pair].disturbed.push(at);
            self.pairs[pair].doubled += u32::from(fate.name == "doubled");
        }
        if self.plan.pairs[pair].qp_type != QpType::Rc {
            return Ok(());
        }
        match datagram.info().direction {
            Direction::Request => {
                self.check_pause(2 * pair + from as usize, datagram.bth().psn)?;
                self.check_request(2 * pair + from as usize, &datagram)
            }
            _ => self.check_response(2 * pair + from.other() as usize, &datagram),
        }
    }

    /// Checks the window and the size of READ requests. A READ may take more PSNs than the window has,
    /// and with selective repeat any part of it may be requested again.
    fn check_request(&mut self, flow: usize, datagram: &Datagram<'_>) -> Checked {
        let (psn, window, mtu) = (datagram.bth().psn, self.plan.window, self.plan.mtu.bytes());
        let flow = &mut self.flows[flow];
        let first = flow.unacknowledged;
        let read = datagram.reth().filter(|_| datagram.info().operation == Operation::ReadRequest);
        let is_part = read.is_some() && psn.before(flow.requested);
        if !psn.before(first) && first.distance_to(psn) >= window && !is_part {
            return Err(format!("PSN {psn:?} is outside the window of {window} at {first:?}"));
        }
        let Some(reth) = read else { return Ok(()) };
        let (len, limit) = (reth.dma_len as usize, self.plan.max_read_packets as usize * mtu);
        let end = psn.add((len.div_ceil(mtu) as u32).max(1));
        if flow.requested.before(end) {
            flow.requested = end;
        }
        if limit > 0 && len > limit {
            return Err(format!("a READ of {len} bytes is longer than a piece of {limit}"));
        }
        Ok(())
    }

    /// Checks that a request refused by an RNR NAK is sent again only after the pause, and at most
    /// `rnr_retry` times.
    fn check_pause(&mut self, flow: usize, psn: Psn) -> Checked {
        let (now, limit) = (self.now, u32::from(self.plan.rnr_retry));
        let flow = &mut self.flows[flow];
        if psn.before(flow.unacknowledged) && flow.goes_back.is_none_or(|first| psn.before(first)) {
            flow.goes_back = Some(psn);
        }
        let Some(pause) = &mut flow.pause else { return Ok(()) };
        let Pause { until, count, .. } = *pause;
        // The requester goes back further if an earlier answer is missing.
        pause.is_doubtful |= psn.before(pause.refused);
        // If an answer is missing, the requester may have dropped the NAK and continues with new requests.
        if pause.is_doubtful || psn != pause.refused {
            return Ok(());
        }
        if now < until {
            return Err(format!("PSN {psn:?} is sent in the RNR pause until {until}"));
        }
        if limit < 7 && count > limit {
            return Err(format!("PSN {psn:?} is sent again after {count} RNR NAKs"));
        }
        Ok(())
    }

    /// Checks that no NAK is fatal, because every request is legal, and that an RNR NAK requires an empty
    /// receive queue.
    fn check_response(&mut self, flow: usize, datagram: &Datagram<'_>) -> Checked {
        let flow = &mut self.flows[flow];
        let psn = datagram.bth().psn;
        match datagram.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::Nak(code)) if code != NakCode::PsnSequence => {
                Err(format!("a legal request was refused: {code:?} at {psn:?}"))
            }
            Some(Syndrome::RnrNak { .. })
                if flow.receives_posted > flow.received && !flow.was_refused(psn) =>
            {
                Err(format!("RNR NAK although {} receives are there", flow.receives_posted - flow.received))
            }
            // Selective repeat uses a reserved code as its NAK.
            Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. } | Syndrome::Reserved(_)) => {
                flow.last_nak = Some(psn);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks that a packet ahead of the expected PSN is dropped without an answer only if a NAK named that
    /// PSN.
    pub(super) fn check_silence(&self, to: Side, bytes: &[u8]) -> Checked {
        let Ok(datagram) = Datagram::parse(bytes, &[]) else { return Ok(()) };
        let qpn = datagram.bth().dest_qp;
        let (Some(pair), Some(attr)) = (self.pair_of(to, qpn), self.ends[to as usize].engine.query_qp(qpn))
        else {
            return Ok(());
        };
        let last = self.flows[2 * pair + to.other() as usize].last_nak;
        // In a burst, the NAK may not have left yet. Paced READ responses delay the NAK.
        let paced = self.plan.after_loss || self.plan.congestion != Congestion::none();
        let prompt = !self.plan.bursts && !paced;
        if prompt && last != Some(attr.rq_psn) {
            return Err(format!("{:?} is missing, and the last NAK was for {last:?}", attr.rq_psn));
        }
        Ok(())
    }

    /// Records the contents of an undamaged packet.
    pub(super) fn observe_arrived(&mut self, to: Side, bytes: &[u8]) {
        let Ok(datagram) = Datagram::parse(bytes, &[]) else { return };
        let bth = *datagram.bth();
        let Some(pair) = self.pair_of(to, bth.dest_qp) else { return };
        let now = self.now;
        if datagram.info().direction == Direction::Request {
            let flow = &mut self.flows[2 * pair + to.other() as usize];
            flow.arrivals.truncate(ARRIVALS - 1);
            return flow.arrivals.push_front((bth.psn, now));
        }
        if datagram.info().direction != Direction::Response {
            return;
        }
        let flow = &mut self.flows[2 * pair + to as usize];
        let syndrome = datagram.aeth().map(|aeth| aeth.syndrome);
        let is_rnr = matches!(syndrome, Some(Syndrome::RnrNak { .. }));
        let answered: Psn = match syndrome {
            Some(Syndrome::RnrNak { timer }) => {
                flow.rnr_naks.push(now);
                let before = flow.pause.filter(|pause| pause.refused == bth.psn);
                // Arrivals are handled before timers that expire at the same time.
                let is_waiting = before.is_some_and(|pause| now <= pause.until);
                if !is_waiting && !bth.psn.before(flow.unacknowledged) {
                    flow.pause = Some(Pause {
                        refused: bth.psn,
                        until: now.plus_nanos(timer.delay_ns()),
                        count: before.map_or(0, |pause| pause.count) + 1,
                        // A requester that waits for an earlier response drops the NAK.
                        is_doubtful: flow.goes_back.is_some()
                            || before.is_some_and(|pause| pause.is_doubtful),
                    });
                }
                bth.psn
            }
            Some(Syndrome::Nak(_) | Syndrome::Reserved(_)) => bth.psn,
            _ => bth.psn.next(),
        };
        let is_data =
            matches!(datagram.info().operation, Operation::ReadResponse | Operation::AtomicAcknowledge);
        if let Some(pause) = &mut flow.pause
            && !is_rnr
        {
            pause.count = 0;
            // The RNR NAK may have overtaken this response, and then only showed that the response was
            // missing.
            pause.is_doubtful |= is_data;
        }
        if is_data {
            flow.goes_back = flow.goes_back.filter(|first| !answered.after(*first));
        }
        flow.pause = flow.pause.filter(|pause| is_rnr || !answered.after(pause.refused));
        if answered.after(flow.unacknowledged) {
            flow.unacknowledged = answered;
        }
    }
}
