//! Compares a packet with an expectation.

use roce_packet::{Datagram, NakCode, OpcodeInfo, Psn, Syndrome};

use super::state::{Arrived, Link, Run};
use crate::script::{Expecting, Expression, Wanted};
use crate::wire::{AnswerKind, Slot, short_name, slot};

impl Run<'_> {
    /// Returns the differences between a packet and an expectation; none if it matches.
    pub(super) fn differences(
        &self,
        arrived: &Arrived,
        expecting: &Expecting,
    ) -> Result<Vec<String>, String> {
        let Some(link) = &self.link else { return Ok(vec!["there is no connection".to_owned()]) };
        if let Some(fault) = arrived.fault {
            return Ok(vec![format!("the packet is {fault}")]);
        }
        let wanted = expecting.packet.opcode_for(link.transport);
        let found = arrived.bytes.first().copied().unwrap_or_default();
        let Some(info) = wanted.info().filter(|info| info.opcode.0 == found) else {
            let name = wanted.info().map_or_else(String::new, short_name);
            return Ok(vec![format!(
                "it is not {}",
                if name.is_empty() { wanted.to_string() } else { name }
            )]);
        };
        let datagram = Datagram::parse(&arrived.bytes, &[]).map_err(|error| error.to_string())?;
        let mut wrong = Vec::new();
        if let Some(kind) = expecting.packet.answer
            && let Some(syndrome) = datagram.aeth().map(|aeth| aeth.syndrome)
            && !is_kind(kind, syndrome)
        {
            wrong.push(format!("its syndrome is {:#04x} ({syndrome})", syndrome.to_byte()));
        }
        self.usual(arrived, info, link, expecting, &mut wrong);
        for (slot, wanted) in &expecting.fields {
            let found = self.read(*slot, &arrived.bytes, info).unwrap_or_default();
            let fits = |value: &Expression| {
                let value = self.values.field(slot.name, value, slot.width(), slot.is_circular())?;
                Ok::<u64, String>(value)
            };
            self.compare(slot.name, found, wanted, &fits, &mut wrong)?;
        }
        let len = datagram.payload_len() as u64;
        if let Some(wanted) = &expecting.bytes {
            let fits = |value: &Expression| self.values.limited("bytes", value, u64::MAX);
            self.compare("bytes", len, wanted, &fits, &mut wrong)?;
        }
        if let Some(pieces) = &expecting.payload {
            let wanted = self.values.bytes(pieces)?;
            let (found, _) = datagram.payload();
            if let Some(difference) = difference(found, &wanted) {
                wrong.push(format!("its payload {difference}"));
            }
        }
        if let Some(ecn) = expecting.ecn.filter(|ecn| *ecn != arrived.path.ecn()) {
            wrong.push(format!("its ECN bits are {:?}, not {ecn:?}", arrived.path.ecn()));
        }
        Ok(wrong)
    }

    /// Compares the fields that every packet of the connection has, unless the script names them.
    fn usual(
        &self,
        arrived: &Arrived,
        info: &OpcodeInfo,
        link: &Link,
        expecting: &Expecting,
        wrong: &mut Vec<String>,
    ) {
        let usual = [("qp", u64::from(link.nic.own_qpn.get())), ("pkey", 0xffff), ("reserved7", 0)];
        for (name, wanted) in usual {
            let is_named = expecting.fields.iter().any(|(slot, _)| slot.name == name);
            let Some(slot) = slot(name, info).filter(|_| !is_named) else { continue };
            let found = slot.read(&arrived.bytes, info).unwrap_or_default();
            if found != wanted {
                wrong.push(format!("{name} is {found:#x}, not {wanted:#x}"));
            }
        }
        let (source, destination) = (arrived.path.source, arrived.path.destination);
        if source != link.nic.address || destination != link.nic.own_address {
            wrong.push(format!("it goes from {source} to {destination}"));
        }
    }

    /// Returns the value of a field in the numbers of the script.
    pub(super) fn read(&self, slot: Slot, bytes: &[u8], info: &OpcodeInfo) -> Option<u64> {
        let found = slot.read(bytes, info)?;
        if slot.name != "psn" {
            return Some(found);
        }
        Some(Psn::new(found as u32).sub(self.shift_of(info, false)).get().into())
    }

    fn compare(
        &self,
        name: &str,
        found: u64,
        wanted: &Wanted,
        value: &dyn Fn(&Expression) -> Result<u64, String>,
        wrong: &mut Vec<String>,
    ) -> Result<(), String> {
        let show = |value: u64| if value > 0xffff { format!("{value:#x}") } else { value.to_string() };
        match wanted {
            Wanted::Any => {}
            Wanted::Equal(expression) => {
                let wanted = value(expression)?;
                if found != wanted {
                    wrong.push(format!("{name} is {}, not {}", show(found), show(wanted)));
                }
            }
            Wanted::Unequal(expression) => {
                if found == value(expression)? {
                    wrong.push(format!("{name} is {}", show(found)));
                }
            }
            Wanted::Within(from, to) => {
                let (from, to) = (value(from)?, value(to)?);
                if !(from..to).contains(&found) {
                    wrong.push(format!("{name} is {}, not in {}..{}", show(found), show(from), show(to)));
                }
            }
        }
        Ok(())
    }
}

fn is_kind(kind: AnswerKind, syndrome: Syndrome) -> bool {
    match (kind, syndrome) {
        (AnswerKind::Ack, Syndrome::Ack { .. }) | (AnswerKind::Rnr, Syndrome::RnrNak { .. }) => true,
        (AnswerKind::Nak(wanted), Syndrome::Nak(found)) => {
            wanted.is_none_or(|wanted: NakCode| wanted == found)
        }
        _ => false,
    }
}

/// Describes the first difference between two contents.
pub(super) fn difference(found: &[u8], wanted: &[u8]) -> Option<String> {
    if found.len() != wanted.len() {
        return Some(format!("has {} bytes, not {}", found.len(), wanted.len()));
    }
    let (at, (found, wanted)) =
        found.iter().zip(wanted).enumerate().find(|(_, (found, wanted))| found != wanted)?;
    Some(format!("has {found:#04x} instead of {wanted:#04x} at byte {at}"))
}
