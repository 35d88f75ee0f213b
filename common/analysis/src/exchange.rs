//! Exchanges of connection management: the messages that set up and end one connection, or one question for
//! the queue pair of a service.

use std::collections::HashMap;
use std::net::IpAddr;

use roce_packet::mad::{CmDrep, CmDreq, CmMessage, CmMra, CmRej, CmRtu, CommId};

use crate::copies::Tap;
use crate::record::{Bits, CmRecord, Place, Record};

/// Messages that belong together.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The host that sent the first request.
    pub active: IpAddr,
    /// The other host.
    pub passive: IpAddr,
    /// ID of the connection at the active host, or of the question.
    pub active_id: CommId,
    /// ID of the connection at the passive host.
    pub passive_id: Option<CommId>,
    /// Transaction of the REQ or SIDR_REQ; `None` if it was not captured.
    pub transaction_id: Option<u64>,
    /// Whether it is a question for a service (SIDR).
    pub is_service: bool,
    /// Indices of the messages.
    pub messages: Vec<usize>,
}

impl Exchange {
    /// Returns the messages of one kind at the tap that has most of them, in order. Other taps show the
    /// messages again.
    #[must_use]
    pub fn all<'a>(&self, cm: &'a [CmRecord], name: &str) -> Vec<&'a CmRecord> {
        let mut by_tap: HashMap<Tap, Vec<&CmRecord>> = HashMap::new();
        for record in self.messages.iter().filter_map(|index| cm.get(*index)) {
            if record.message.name() == name {
                by_tap.entry(tap_of(record)).or_default().push(record);
            }
        }
        let mut taps: Vec<_> = by_tap.into_iter().collect();
        taps.sort_unstable_by_key(|(tap, list)| (std::cmp::Reverse(list.len()), *tap));
        taps.into_iter().next().map(|(_, list)| list).unwrap_or_default()
    }

    /// Returns the first message of one kind.
    #[must_use]
    pub fn first<'a>(&self, cm: &'a [CmRecord], name: &str) -> Option<&'a CmRecord> {
        let mut all = self.messages.iter().filter_map(|index| cm.get(*index));
        all.find(|record| record.message.name() == name)
    }
}

/// Returns where a message was captured.
#[must_use]
pub const fn tap_of(record: &CmRecord) -> Tap {
    Tap { capture: record.place.capture, interface: record.interface }
}

/// Returns the record of a packet, with its index.
pub(crate) fn record_at(records: &[Record], place: Place) -> Option<(usize, &Record)> {
    let at = records.partition_point(|record| record.place < place);
    records.get(at).filter(|record| record.place == place).map(|record| (at, record))
}

type Key = (IpAddr, IpAddr, CommId);

/// Groups the messages of connection management.
#[must_use]
pub fn exchanges(records: &[Record], cm: &[CmRecord]) -> Vec<Exchange> {
    let mut found = Groups::default();
    for (index, record) in cm.iter().enumerate() {
        let is_copy = record_at(records, record.place)
            .is_some_and(|(_, record)| record.bits.contains(Bits::COPY) || !record.is_sound());
        if !is_copy {
            found.add(index, record);
        }
    }
    found.all
}

#[derive(Default)]
struct Groups {
    all: Vec<Exchange>,
    by_active: HashMap<Key, usize>,
    by_passive: HashMap<Key, usize>,
    services: HashMap<Key, usize>,
}

impl Groups {
    fn add(&mut self, index: usize, record: &CmRecord) {
        let there = |id| (record.source, record.destination, id);
        let back = |id| (record.destination, record.source, id);
        let number = match &*record.message {
            CmMessage::Req(req) => self.begin(record, there(req.local_comm_id), false),
            CmMessage::SidrReq(req) => self.begin(record, there(req.request_id), true),
            CmMessage::SidrRep(rep) => {
                let key = back(rep.request_id);
                match self.services.get(&key).copied() {
                    Some(number) => number,
                    None => self.orphan(key, None, true),
                }
            }
            CmMessage::Rep(rep) => {
                let key = back(rep.remote_comm_id);
                let number = match self.by_active.get(&key).copied() {
                    Some(number) => number,
                    None => self.orphan(key, Some(rep.local_comm_id), false),
                };
                self.by_passive.insert(there(rep.local_comm_id), number);
                if let Some(exchange) = self.all.get_mut(number) {
                    exchange.passive_id = Some(rep.local_comm_id);
                }
                number
            }
            CmMessage::Rtu(CmRtu { local_comm_id: local, remote_comm_id: remote, .. })
            | CmMessage::Rej(CmRej { local_comm_id: local, remote_comm_id: remote, .. })
            | CmMessage::Mra(CmMra { local_comm_id: local, remote_comm_id: remote, .. })
            | CmMessage::Dreq(CmDreq { local_comm_id: local, remote_comm_id: remote, .. })
            | CmMessage::Drep(CmDrep { local_comm_id: local, remote_comm_id: remote, .. }) => {
                match self.find(record, *local, *remote) {
                    Some(number) => number,
                    None => self.orphan(there(*local), Some(*remote), false),
                }
            }
        };
        if let Some(exchange) = self.all.get_mut(number) {
            exchange.messages.push(index);
        }
    }

    /// Returns the exchange of a request: a new one unless the request is a repetition.
    fn begin(&mut self, record: &CmRecord, key: Key, is_service: bool) -> usize {
        let transaction_id = Some(record.transaction_id);
        let is_same = |exchange: &Exchange| {
            (exchange.active, exchange.passive, exchange.active_id) == key
                && exchange.transaction_id == transaction_id
                && exchange.is_service == is_service
        };
        let map = if is_service { &self.services } else { &self.by_active };
        let current = map.get(&key).copied().filter(|at| self.all.get(*at).is_some_and(is_same));
        // A second file begins with the first exchange again.
        let earlier = || map.contains_key(&key).then(|| self.all.iter().position(is_same)).flatten();
        let number = match current.or_else(earlier) {
            Some(number) => number,
            None => {
                let number = self.orphan(key, None, is_service);
                if let Some(exchange) = self.all.get_mut(number) {
                    exchange.transaction_id = transaction_id;
                }
                number
            }
        };
        let map = if is_service { &mut self.services } else { &mut self.by_active };
        map.insert(key, number);
        number
    }

    /// Adds an exchange whose request is not known.
    fn orphan(&mut self, key: Key, passive_id: Option<CommId>, is_service: bool) -> usize {
        let (active, passive, active_id) = key;
        let number = self.all.len();
        self.all.push(Exchange {
            active,
            passive,
            active_id,
            passive_id,
            transaction_id: None,
            is_service,
            messages: Vec::new(),
        });
        if is_service {
            self.services.insert(key, number);
        } else {
            self.by_active.insert(key, number);
            if let Some(id) = passive_id {
                self.by_passive.insert((passive, active, id), number);
            }
        }
        number
    }

    /// Finds the exchange of a message by the IDs of both ends. A rejection may lack the ID of its sender.
    fn find(&self, record: &CmRecord, local: CommId, remote: CommId) -> Option<usize> {
        let (source, destination) = (record.source, record.destination);
        let fits = |number: &usize| {
            let Some(exchange) = self.all.get(*number) else { return false };
            let (own, other) = match exchange.active == source {
                true => (Some(exchange.active_id), exchange.passive_id),
                false => (exchange.passive_id, Some(exchange.active_id)),
            };
            let agree = |known: Option<CommId>, said: CommId| {
                known.is_none_or(|known| known == said) || said == CommId(0)
            };
            agree(own, local) && agree(other, remote)
        };
        let candidates = [
            self.by_active.get(&(source, destination, local)),
            self.by_active.get(&(destination, source, remote)),
            self.by_passive.get(&(source, destination, local)),
            self.by_passive.get(&(destination, source, remote)),
        ];
        candidates.into_iter().flatten().copied().find(fits)
    }
}
