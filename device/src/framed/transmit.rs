//! Sending: headers are placed in front of datagrams where the engine wrote them.

use roce_packet::{
    Encapsulation, EtherType, EthernetHeader, FrameHeaders, IP_PROTOCOL_UDP, MacAddr, Path, VlanHeader,
};
use roce_transport::{Batch, Instant, Transmit, TxSlot};

use super::held::{HeldDatagram, Release};
use super::port::{HEADROOM, LONGEST_SUPERPACKET, MAX_DATAGRAM, Outgoing, Split};
use super::settings::priority_of;
use super::superframe::{Superframe, address_in};
use super::{FramedDevice, HELD_CHECK_NS, MAX_OWN};
use crate::checksum::pseudo_header_sum;
use crate::framed::Resolution;

/// The current treatment of a datagram or superframe on a path.
enum Fate {
    Send(MacAddr),
    Hold,
    Own,
    Unreachable,
}

impl FramedDevice {
    /// Lends room behind the datagrams of the open frame, or at the start of a new frame.
    pub(super) fn lend_slot(&mut self) -> Option<TxSlot<'_>> {
        // If this peer sends pauses, a new pause may have arrived, so a sender must receive regularly.
        let must_look = self.unlooked >= MAX_UNLOOKED && self.pauses.were_seen();
        if self.held.is_full() || self.is_port_full || must_look {
            return None;
        }
        let (start, batch) = match &self.open {
            Some(open) => (open.end, &open.batch),
            None if self.max_segments > 1 => (HEADROOM, &Batch::EMPTY),
            None => (HEADROOM, &Batch::NONE),
        };
        let buffer = self.port.slot()?.get_mut(start..start + MAX_DATAGRAM)?;
        Some(TxSlot { buffer, batch })
    }

    /// Takes the datagram that was written into the slot.
    pub(super) fn take(&mut self, now: Instant, transmit: &Transmit) {
        if transmit.len == 0 || transmit.len > MAX_DATAGRAM {
            self.counters.tx_bad_path += 1;
            return;
        }
        if let Some(open) = &mut self.open {
            if open.batch.accepts(transmit) {
                open.batch.push(transmit);
                open.end += transmit.len;
                open.segments += 1;
                return;
            }
            if !self.move_to_new_frame(now, transmit) {
                return;
            }
        }
        let splits = self.max_segments > 1
            && transmit.path.encapsulation == Encapsulation::RoceV2
            // Not every kernel finds the headers behind a tag.
            && transmit.path.vlan.is_none();
        let batch =
            if splits { Batch::start(transmit, self.max_segments, LONGEST_SUPERPACKET) } else { Batch::NONE };
        let first = Transmit { telemetry: None, ..*transmit };
        self.open = Some(Superframe { first, batch, end: HEADROOM + transmit.len, segments: 1 });
        if !splits {
            self.close(now);
        }
    }

    /// Moves the last datagram, which does not fit the open frame, to the start of a new frame. Returns
    /// whether it is there; otherwise it is held.
    fn move_to_new_frame(&mut self, now: Instant, transmit: &Transmit) -> bool {
        let start = self.open.as_ref().map_or(HEADROOM, |open| open.end);
        let mut scratch = std::mem::take(&mut self.scratch);
        let written = self.port.slot().and_then(|buffer| buffer.get(start..start + transmit.len));
        let Some((moved, written)) = scratch.get_mut(..transmit.len).zip(written) else {
            self.scratch = scratch;
            self.counters.tx_bad_path += 1;
            return false;
        };
        moved.copy_from_slice(written);
        self.close(now);
        let room = self.port.slot().and_then(|buffer| buffer.get_mut(HEADROOM..HEADROOM + transmit.len));
        let has_room = room.is_some();
        match room {
            Some(room) => room.copy_from_slice(moved),
            None => {
                // Later datagrams would have to wait as well, so accept none until the port has room.
                self.held.push(*transmit, moved, false);
                self.counters.tx_held += 1;
                self.check_held_at = Some(now);
                self.is_port_full = true;
            }
        }
        self.scratch = scratch;
        has_room
    }

    /// Writes the headers of the open frame and passes it to the port, or holds its datagrams.
    pub(super) fn close(&mut self, now: Instant) {
        let Some(open) = self.open.take() else { return };
        let path = open.first.path;
        let fate = if self.held.has_path(&path) { Fate::Hold } else { self.fate(now, &path) };
        match fate {
            Fate::Send(destination) => self.send(&open, destination),
            Fate::Unreachable => self.counters.tx_unreachable += u64::from(open.segments),
            Fate::Hold | Fate::Own => self.put_aside(now, &open, matches!(fate, Fate::Own)),
        }
    }

    fn fate(&mut self, now: Instant, path: &Path) -> Fate {
        if self.is_own(path.destination) {
            return Fate::Own;
        }
        if self.pauses.is_paused(now, priority_of(path)) {
            return Fate::Hold;
        }
        if let Some(mac) = address_in(path) {
            return Fate::Send(mac);
        }
        match self.host.resolve(now, path.destination) {
            Resolution::Known(mac) => Fate::Send(mac),
            Resolution::Pending => Fate::Hold,
            Resolution::Failed(_) => Fate::Unreachable,
        }
    }

    fn send(&mut self, open: &Superframe, destination: MacAddr) {
        let source = self.mac;
        let len = open.end - HEADROOM;
        let first = &open.first;
        let headers = FrameHeaders::new(&first.path, first.identification, destination, source, len);
        let (Ok(headers), Some(slot)) = (headers, self.port.slot()) else {
            self.counters.tx_bad_path += u64::from(open.segments);
            return;
        };
        let start = HEADROOM - headers.len_bytes();
        let Ok(_) = headers.emit(&mut slot[start..HEADROOM]) else { return };
        let split = (open.segments > 1).then(|| {
            let udp_offset = headers.udp_offset().unwrap_or(0);
            let Path { source, destination, .. } = first.path;
            // Checksum offload expects this sum in the field.
            let sum = pseudo_header_sum(source, destination, IP_PROTOCOL_UDP, len + 8);
            slot[start + udp_offset + 6..start + udp_offset + 8].copy_from_slice(&sum.to_be_bytes());
            Split {
                segment_len: first.len as u16,
                udp_offset: udp_offset as u16,
                headers_len: headers.len_bytes() as u16,
                is_ipv4: first.path.destination.is_ipv4(),
            }
        });
        self.port.commit(Outgoing { bytes: start..open.end, split });
        self.counters.tx_frames += 1;
        self.counters.tx_datagrams += u64::from(open.segments);
        self.unlooked = self.unlooked.saturating_add(open.segments.into());
        self.counters.tx_bytes += (open.end - start) as u64;
    }

    /// Copies the datagrams of the open frame out of the slot.
    fn put_aside(&mut self, now: Instant, open: &Superframe, is_own: bool) {
        let Some(bytes) = self.port.slot().and_then(|slot| slot.get(HEADROOM..open.end)) else { return };
        let is_paused = self.pauses.is_paused(now, priority_of(&open.first.path));
        for (index, datagram) in (0..).zip(bytes.chunks(open.first.len)) {
            let identification = open.first.identification.wrapping_add(index);
            let transmit = Transmit { len: datagram.len(), identification, ..open.first };
            if is_own {
                if self.own.len() < MAX_OWN {
                    self.own.push_back(HeldDatagram { transmit, bytes: datagram.to_vec(), is_paused });
                    self.counters.tx_own += 1;
                } else {
                    self.counters.tx_unresolved += 1;
                }
                continue;
            }
            let (has_room, dropped) = if is_paused { (true, 0) } else { self.held.make_room(&transmit.path) };
            self.counters.tx_unresolved += dropped as u64 + u64::from(!has_room);
            if has_room {
                self.held.push(transmit, datagram, is_paused);
                self.counters.tx_held += 1;
                self.check_held_at = Some(now.plus_nanos(HELD_CHECK_NS));
            }
        }
    }

    /// Sends datagrams that need not be held any longer. No frame may be open.
    pub(super) fn release_held(&mut self, now: Instant) {
        if self.held.is_empty() {
            self.check_held_at = None;
            return;
        }
        // Pauses of priorities without datagrams would wake the caller forever.
        self.pauses.forget_ended(now);
        let mut held = std::mem::take(&mut self.held);
        self.is_port_full = false;
        held.release(|datagram| self.release(now, datagram));
        self.check_held_at = (!held.is_empty()).then(|| now.plus_nanos(HELD_CHECK_NS));
        self.held = held;
    }

    fn release(&mut self, now: Instant, held: &HeldDatagram) -> Release {
        match self.fate(now, &held.transmit.path) {
            Fate::Hold => return Release::Stays,
            Fate::Unreachable | Fate::Own => self.counters.tx_unreachable += 1,
            Fate::Send(destination) => {
                let end = HEADROOM + held.bytes.len();
                let Some(room) = self.port.slot().and_then(|slot| slot.get_mut(HEADROOM..end)) else {
                    self.is_port_full = true;
                    return Release::Stop;
                };
                room.copy_from_slice(&held.bytes);
                let open = Superframe { first: held.transmit, batch: Batch::NONE, end, segments: 1 };
                self.send(&open, destination);
            }
        }
        Release::Gone
    }

    /// Sends the frames of the host. No frame may be open.
    pub(super) fn send_for_host(&mut self, now: Instant) {
        const TAG: usize = VlanHeader::LEN;
        let tag = self.settings.tag(0);
        while let Some(slot) = self.port.slot() {
            // Leave room for a tag.
            let Some(len) = slot.get_mut(TAG..).and_then(|slot| self.host.poll_transmit(now, slot)) else {
                return;
            };
            let mut bytes = TAG..TAG + len;
            if let Some(tag) = tag
                && len >= EthernetHeader::LEN
            {
                // Move the addresses forward; the EtherType behind them then follows the tag.
                slot.copy_within(TAG..TAG + 12, 0);
                slot[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
                slot[14..16].copy_from_slice(&tag.to_bits().to_be_bytes());
                bytes.start = 0;
            }
            self.port.commit(Outgoing { bytes, split: None });
            self.counters.tx_host_frames += 1;
        }
    }
}

/// Datagrams that leave between two checks for pauses, if the peer sends pauses at all.
const MAX_UNLOOKED: u32 = 64;
