//! Work requests, packets, completions and time.

use std::time::Duration;

use roce_packet::{ImmDt, Qpn};
use roce_transport::{
    Allowed, FlushPlacement, Notify, Payload, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge, TxSlot,
    UdDestination, Wc,
};

use super::model::{Flying, Rig, done};
use super::step::{Action, Step};
use crate::packet::{GROUP, OWN_ADDRESS, deliver, path};

/// Maximum number of packets that one step sends and delivers.
const MOST_PACKETS: usize = 64;

impl Rig {
    pub(super) fn work(&mut self, step: &Step) {
        let (cq, qpn) = (self.cqs.pick(step.cq), self.qps.pick(step.qp));
        match step.action() {
            Action::PostSend => _ = qpn.and_then(|qpn| self.post_send(step, qpn)),
            Action::PostReceive | Action::PostSharedReceive => _ = self.post_receive(step),
            Action::Poll => self.poll(step),
            Action::Notify => {
                let notify = if step.flags & 1 == 0 { Notify::Next } else { Notify::Solicited };
                if let Some(cq) = cq {
                    done(self.engine.request_notification(cq, notify));
                }
            }
            Action::Wait => {
                self.now = match (step.size, self.engine.poll_timeout()) {
                    (0, Some(next)) => self.now.max(next),
                    (nanos, _) => self.now.plus_nanos(u64::from(nanos) << (step.fill & 31)),
                };
                self.engine.handle_timeout(self.now, Duration::ZERO);
            }
            Action::Drive => self.drive(step),
            _ => self.query(step),
        }
    }

    fn elements(&self, step: &Step) -> [Sge; 2] {
        let mut elements = [Sge::default(); 2];
        if let (Some(region), Some(lkey)) = (self.region(step.region), self.lkey(step.region)) {
            let addr = region.attributes.addr.wrapping_add(u64::from(step.number) % 300);
            let length = u32::from(step.size) % 2000;
            let cut = u32::from(step.fill).min(length);
            let second = addr.wrapping_add(cut.into());
            elements = [Sge { addr, length: cut, lkey }, Sge { addr: second, length: length - cut, lkey }];
        }
        elements
    }

    fn post_send(&mut self, step: &Step, qpn: Qpn) -> Option<()> {
        let elements = self.elements(step);
        let inline = [step.fill; 600];
        let id = self.next_id;
        let mut wr = SendWr::new(id, self.operation(step)?, &elements);
        wr.flags = SendFlags::from_bits_truncate(step.flags.into());
        if step.flags & 8 != 0 {
            wr.payload = Payload::Inline(inline.get(..usize::from(step.size) % 600)?);
        }
        if step.flags & 16 != 0 {
            let remote_qpn = if step.flags & 32 != 0 { Qpn::MULTICAST } else { self.qps.pick(step.other)? };
            let to = if step.flags & 32 != 0 { GROUP } else { OWN_ADDRESS };
            let remote_qkey = if step.flags & 64 != 0 { 0x8000_0000 } else { 0x11 };
            wr = wr.to(UdDestination { path: path(OWN_ADDRESS, to), remote_qpn, remote_qkey });
        }
        done(self.engine.post_send(self.now, qpn, &wr))?;
        if let SendOp::BindWindow { new_rkey, .. } = wr.op {
            self.may_be_keyed(new_rkey);
        }
        self.posted.insert(id, (Some(qpn), true));
        self.next_id += 1;
        Some(())
    }

    fn operation(&self, step: &Step) -> Option<SendOp> {
        let region = self.region(step.other)?.attributes;
        let remote_addr = region.addr.wrapping_add(u64::from(step.number) / 2);
        let aligned = remote_addr & !7;
        let mut rkey = region.rkey;
        if step.rights & 1 != 0 {
            rkey = self.window_key(step.window).unwrap_or(rkey);
        }
        let imm = ImmDt([step.fill; 4]);
        let number = u64::from(step.number);
        Some(match step.kind % 13 {
            0 => SendOp::Write { remote_addr, rkey },
            1 => SendOp::Send,
            2 => SendOp::Read { remote_addr, rkey },
            3 => SendOp::WriteWithImm { remote_addr, rkey, imm },
            4 => SendOp::SendWithImm(imm),
            5 => SendOp::SendWithInvalidate(self.window_key(step.window)?),
            6 => SendOp::CompareSwap { remote_addr: aligned, rkey, compare: number, swap: 1 },
            7 => SendOp::FetchAdd { remote_addr: aligned, rkey, add: number },
            8 => SendOp::AtomicWrite { remote_addr: aligned, rkey },
            9 => SendOp::Flush {
                remote_addr,
                rkey,
                length: step.size.into(),
                placement: FlushPlacement::from_bits_truncate(step.fill),
                whole_region: step.fill & 4 != 0,
            },
            10 => {
                let window = self.window_key(step.window)?;
                let new_rkey = RKey(window.0 ^ u32::from(step.fill));
                SendOp::BindWindow { window, new_rkey, binding: self.binding(step)? }
            }
            11 => SendOp::LocalInvalidate { rkey: self.window_key(step.window)? },
            _ => SendOp::CompareSwap { remote_addr: remote_addr | 1, rkey, compare: 0, swap: 0 },
        })
    }

    fn post_receive(&mut self, step: &Step) -> Option<()> {
        let elements = self.elements(step);
        let wr = RecvWr { wr_id: self.next_id, elements: &elements };
        let qpn = if step.action() == Action::PostSharedReceive {
            done(self.engine.post_srq_recv(self.srqs.pick(step.srq)?, &wr))?;
            None
        } else {
            let qpn = self.qps.pick(step.qp)?;
            done(self.engine.post_recv(qpn, &wr))?;
            Some(qpn)
        };
        self.posted.insert(self.next_id, (qpn, false));
        self.next_id += 1;
        Some(())
    }

    fn poll(&mut self, step: &Step) {
        let Some(cq) = self.cqs.pick(step.cq) else { return };
        let mut some = [Wc::default(); 9];
        let Some(count) = done(self.engine.poll_cq(cq, &mut some[..usize::from(step.size) % 10])) else {
            return;
        };
        for wc in &some[..count] {
            let posted = self.posted.remove(&wc.wr_id);
            let (qpn, sends) = posted.unwrap_or_else(|| panic!("completed twice or never posted: {wc:?}"));
            assert!(qpn.is_none_or(|qpn| qpn == wc.qpn), "completed on another queue pair: {wc:?}");
            let last = self.completed.insert((wc.qpn, sends), wc.wr_id);
            assert!(last.is_none_or(|last| last < wc.wr_id), "{wc:?} completed after {last:?}");
        }
        for _ in 0..step.fill & 15 {
            let _ = self.engine.poll_event();
        }
    }

    /// Sends a limited number of packets, and delivers packets in flight. Each bit of `fill` in turn decides
    /// whether a packet is lost or duplicated.
    fn drive(&mut self, step: &Step) {
        let most = if step.size == 0 { MOST_PACKETS } else { usize::from(step.size) % MOST_PACKETS };
        for index in 0..most {
            if let Some(packet) = self.send(step) {
                self.flying.push_back(packet);
            }
            let Some(packet) = self.take_flying(step) else { return };
            let damaged = step.fill & 1 << (index % 8) != 0;
            match step.flags & 3 {
                1 if damaged => {}
                2 if damaged => {
                    deliver(&mut self.engine, self.now, packet.path, &packet.bytes, None);
                    deliver(&mut self.engine, self.now, packet.path, &packet.bytes, None);
                }
                _ => _ = deliver(&mut self.engine, self.now, packet.path, &packet.bytes, None),
            }
        }
    }

    /// Removes the packet that arrives next: the oldest, or the newest if the flag is set.
    fn take_flying(&mut self, step: &Step) -> Option<Flying> {
        if step.flags & 4 != 0 { self.flying.pop_back() } else { self.flying.pop_front() }
    }

    fn send(&mut self, step: &Step) -> Option<Flying> {
        let mut buffer = [0; 1024];
        // Simulates a device with too little buffer space, which must only delay packets.
        let room = if step.flags & 8 != 0 { usize::from(step.number) % 1024 } else { 1024 };
        let mut slot = TxSlot::new(&mut buffer[..room]);
        let transmit = self.engine.poll_transmit(self.now, &mut slot, Allowed::All)?;
        let bytes = buffer[..transmit.len].to_vec();
        let datagram = roce_packet::Datagram::parse(&bytes, &[]).expect("engines send well-formed packets");
        let envelope = roce_packet::Envelope::new(&transmit.path, transmit.identification);
        assert_eq!(datagram.icrc(), datagram.compute_icrc(&envelope));
        Some(Flying { path: transmit.path, bytes })
    }

    fn query(&self, step: &Step) {
        let engine = &self.engine;
        if let Some(qpn) = self.qps.pick(step.qp) {
            let _ = (engine.query_qp(qpn), engine.qp_type(qpn), engine.queue_depths(qpn));
            let _ = engine.qp_counters(qpn);
        }
        if let Some(srq) = self.srqs.pick(step.srq) {
            let _ = engine.query_srq(srq);
        }
        if let Some(lkey) = self.lkey(step.region) {
            let _ = engine.query_region(lkey).map_err(|error| error.to_string());
        }
        let _ = format!("{engine:?}");
    }
}
