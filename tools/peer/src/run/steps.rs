//! The steps: what each statement does.

use roce_packet::{Opcode, Psn, Qpn, Transport};
use roce_transport::{Instant, QpType};

use super::matching::difference;
use super::nic::{Answer, MemoryArea, Operation, Request, Settings, WorkRequest};
use super::state::{Link, Loop, Packet, Phase, Run, Step, Stop};
use crate::script::{
    Action, Area, Completing, Connect, Expecting, Expression, Piece, Posting, Sending, Statement, Verb,
};
use crate::wire::{Damage, Draft, IcrcDamage, assemble, slots_of};

/// Maximum number of bytes of a memory.
const MOST_MEMORY: u64 = 1 << 24;
/// Maximum number of rounds of a loop.
const MOST_ROUNDS: u64 = 1 << 20;
/// Time limit of an expectation without `within`.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Time that a NIC behind a network gets to handle a packet before a check.
const SETTLE_NS: u64 = 20_000_000;
/// Longest time for which silence of a NIC behind a network is watched.
const MOST_SILENCE_NS: u64 = 2_000_000_000;
/// The local ACK timeout of the NIC, if the script names none: 67 ms in virtual time, and 1.07 s behind a
/// network, so that a slow exchange causes no retransmission.
const TIMEOUT: u32 = 14;
const TIMEOUT_OF_NETWORKS: u32 = 18;

type Stepped = Result<Step, Stop>;

impl Run<'_> {
    /// Carries out as much as possible of the present statement.
    pub(super) fn step(&mut self, now: Instant) -> Stepped {
        let script = self.script;
        let Some(statement) = script.statements.get(self.next) else {
            self.finish();
            return Ok(Step::Wait(now));
        };
        match &statement.action {
            Action::Rule(_) | Action::Let(..) | Action::Repeat(..) | Action::End(_) => {
                self.control(statement)
            }
            Action::Send(sending) => self.send(now, sending),
            Action::SendRaw(bytes) => self.send_raw(now, bytes),
            Action::Expect(expecting) => self.expect_packet(now, statement, expecting),
            Action::ExpectNothing(time) => self.expect_nothing(now, statement, time),
            Action::Ignore(count) => self.ignore(now, statement, count),
            Action::IgnoreFor(time) => {
                let until = self.mark.plus_nanos(self.values.time(time)?);
                if now < until {
                    return Ok(Step::Wait(until));
                }
                self.arrived.retain(|arrived| arrived.at > until);
                Ok(Step::Done(now))
            }
            Action::Wait(time) => {
                let until = self.mark.plus_nanos(self.values.time(time)?);
                Ok(if now < until { Step::Wait(until) } else { Step::Done(now) })
            }
            Action::CheckValues(left, is_equal, right) => {
                let (left, right) = (self.values.value(left)?, self.values.value(right)?);
                if (left == right) == *is_equal {
                    return Ok(Step::Done(self.mark));
                }
                Err(failed(statement, format!("the left side is {left}, the right side is {right}")))
            }
            _ => self.with_nic(now, statement),
        }
    }

    fn control(&mut self, statement: &Statement) -> Stepped {
        match &statement.action {
            Action::Rule(rule) => self.rule.clone_from(rule),
            Action::Let(name, value) => self.values.assign(name, value)?,
            Action::Repeat(count, variable, end) => {
                let rounds = self.values.limited("the number of rounds", count, MOST_ROUNDS)?;
                if rounds == 0 {
                    return Ok(Step::Jump(end.saturating_add(1)));
                }
                if let Some(variable) = variable {
                    self.values.set(variable, 0);
                }
                self.loops.push(Loop { begin: self.next, round: 0, rounds });
            }
            Action::End(begin) => return Ok(self.end_of_round(*begin)),
            _ => {}
        }
        Ok(Step::Done(self.mark))
    }

    fn end_of_round(&mut self, begin: usize) -> Step {
        let Some(innermost) = self.loops.last_mut() else { return Step::Done(self.mark) };
        innermost.round += 1;
        if innermost.round >= innermost.rounds {
            self.loops.pop();
            return Step::Done(self.mark);
        }
        let round = innermost.round;
        let begin_statement = self.script.statements.get(innermost.begin);
        if let Some(Statement { action: Action::Repeat(_, Some(variable), _), .. }) = begin_statement {
            self.values.set(variable, round);
        }
        Step::Jump(begin.saturating_add(1))
    }

    fn send(&mut self, now: Instant, sending: &Sending) -> Stepped {
        let link = self.link.ok_or_else(|| "there is no connection".to_owned())?;
        let opcode = sending.packet.opcode_for(link.transport);
        let info =
            opcode.info().ok_or_else(|| format!("opcode {opcode} has no headers on this transport"))?;
        let mut fields = Vec::with_capacity(sending.fields.len());
        for (slot, value) in &sending.fields {
            let mut value = self.values.field(slot.name, value, slot.width(), slot.is_circular())?;
            if slot.name == "psn" {
                value = Psn::new(value as u32).add(self.shift_of(info, true)).get().into();
            }
            fields.push((*slot, value));
        }
        let payload = sending.payload.as_ref().map(|pieces| self.values.bytes(pieces)).transpose()?;
        let mut path = self.path();
        for (name, value) in &sending.path {
            match *name {
                "sport" => path.source_port = self.values.field(name, value, 16, false)? as u16,
                "dscp" => path = path.with_dscp(self.values.field(name, value, 6, false)? as u8),
                _ => path.hop_limit = self.values.field(name, value, 8, false)? as u8,
            }
        }
        path = sending.ecn.map_or(path, |ecn| path.with_ecn(ecn));
        path.source = sending.source.unwrap_or(path.source);
        path.destination = sending.destination.unwrap_or(path.destination);
        let damage = self.damage(sending)?;
        let dest_qp = link.nic.qpn;
        let draft = Draft {
            info,
            answer: sending.packet.answer,
            dest_qp,
            fields: &fields,
            payload: payload.as_deref(),
            damage,
        };
        let bytes = assemble(&draft, &path);
        self.to_send = Some(Packet { path, dest_qp, bytes });
        Ok(Step::Done(now))
    }

    fn damage(&self, sending: &Sending) -> Result<Damage, Stop> {
        let mut damage = Damage::default();
        if sending.has_wrong_icrc {
            damage.icrc = IcrcDamage::Wrong;
        }
        for (name, value) in &sending.damage {
            match *name {
                "icrc" => {
                    damage.icrc = IcrcDamage::Value(self.values.field(name, value, 32, false)? as u32);
                }
                "truncated" => damage.truncated = Some(self.values.limited(name, value, 1 << 16)? as usize),
                "extra" => damage.extra = self.values.limited(name, value, 1 << 12)? as usize,
                _ => damage.flip = Some(self.values.limited(name, value, 1 << 20)? as usize),
            }
        }
        Ok(damage)
    }

    fn send_raw(&mut self, now: Instant, bytes: &[u8]) -> Stepped {
        let path = self.path();
        let mut whole = bytes.to_vec();
        whole.extend(
            roce_packet::icrc::compute(&roce_packet::Envelope::new(&path, 0), bytes, &[]).to_le_bytes(),
        );
        let dest_qp = self.link.map_or(Qpn::new(0), |link| link.nic.qpn);
        self.to_send = Some(Packet { path, dest_qp, bytes: whole });
        Ok(Step::Done(now))
    }

    fn expect_packet(&mut self, now: Instant, statement: &Statement, expecting: &Expecting) -> Stepped {
        let within = self.limit(expecting.within.as_ref())?;
        let Some(arrived) = self.arrived.front() else {
            let until = self.mark.plus_nanos(within);
            if now < until {
                return Ok(Step::Wait(until));
            }
            return Err(failed(statement, format!("nothing arrived within {}", milliseconds(within))));
        };
        let differences = self.differences(arrived, expecting)?;
        if !differences.is_empty() {
            return Err(failed(statement, format!("{}: {}", arrived.text, differences.join(", "))));
        }
        let (at, since, text) = (arrived.at, arrived.since, arrived.text.clone());
        let delay_since = |mark| u64::try_from(at.since(mark).as_nanos()).unwrap_or(u64::MAX);
        let delay = delay_since(self.mark);
        let after = expecting.after.as_ref().map_or(Ok(0), |time| self.values.time(time))?;
        let is_early = delay_since(self.earliest_mark) < after;
        if is_early || delay > within {
            let problem = if is_early { "too early" } else { "too late" };
            return Err(failed(statement, format!("{text} after {}, {problem}", milliseconds(delay))));
        }
        let Some(arrived) = self.arrived.pop_front() else { return Ok(Step::Wait(now)) };
        if let (Some(name), Some(opcode)) = (&expecting.name, arrived.bytes.first())
            && let Some(info) = Opcode(*opcode).info()
        {
            for slot in slots_of(info) {
                let value = self.read(slot, &arrived.bytes, info).unwrap_or_default();
                self.values.set(&format!("{name}.{}", slot.name), value);
            }
            let payload = roce_packet::Datagram::parse(&arrived.bytes, &[])
                .map_or(0, |datagram| datagram.payload_len());
            self.values.set(&format!("{name}.bytes"), payload as u64);
        }
        Ok(Step::Arrived(at.max(self.mark), since))
    }

    fn expect_nothing(&mut self, now: Instant, statement: &Statement, time: &Expression) -> Stepped {
        let most = if self.slack_ns > 0 { MOST_SILENCE_NS } else { u64::MAX };
        let until = self.mark.plus_nanos(self.values.time(time)?.min(most));
        if let Some(arrived) = self.arrived.front().filter(|arrived| arrived.at <= until) {
            let after = u64::try_from(arrived.at.since(self.mark).as_nanos()).unwrap_or(u64::MAX);
            return Err(failed(statement, format!("{} after {}", arrived.text, milliseconds(after))));
        }
        Ok(if now < until { Step::Wait(until) } else { Step::Done(until) })
    }

    fn ignore(&mut self, now: Instant, statement: &Statement, count: &Expression) -> Stepped {
        let count = self.values.limited("the number of packets", count, MOST_ROUNDS)? as usize;
        if self.arrived.len() >= count {
            let last = self.arrived.drain(..count).next_back().map_or(self.mark, |arrived| arrived.at);
            return Ok(Step::Done(last.max(self.mark)));
        }
        let until = self.mark.plus_nanos(PATIENCE_NS);
        if now < until {
            return Ok(Step::Wait(until));
        }
        Err(failed(
            statement,
            format!("only {} packets arrived within {}", self.arrived.len(), milliseconds(PATIENCE_NS)),
        ))
    }

    /// Carries out a statement that needs the NIC: asks, then handles the answer.
    fn with_nic(&mut self, now: Instant, statement: &Statement) -> Stepped {
        if let Action::Completion(completing) = &statement.action {
            return self.completion(now, statement, completing);
        }
        if let Action::Event(event) = &statement.action {
            return self.event(now, statement, event);
        }
        let answer = match std::mem::replace(&mut self.phase, Phase::Fresh) {
            Phase::Answered(answer) => answer,
            Phase::Asked => return Ok(Step::Wait(now)),
            Phase::Fresh | Phase::Waiting => {
                let settled = self.settled(&statement.action);
                if now < settled {
                    return Ok(Step::Wait(settled));
                }
                return Ok(Step::Ask(self.request(&statement.action)?));
            }
        };
        let Some(found) = self.answered(statement, answer)? else { return Ok(Step::Done(now)) };
        // A NIC behind a network may be about to change what the check reads.
        let until = self.mark.plus_nanos(self.slack_ns);
        if now < until {
            self.phase = Phase::Waiting;
            return Ok(Step::Wait(until));
        }
        Err(failed(statement, found))
    }

    /// Returns the time before which a check of the NIC would be too early, or a change that the last packet
    /// must not see: the request to the NIC may overtake packets.
    fn settled(&self, action: &Action) -> Instant {
        let waits = matches!(
            action,
            Action::CheckMemory(..)
                | Action::CheckState(_)
                | Action::Counter(..)
                | Action::NoCompletion
                | Action::Fill(..)
                | Action::Revoke(_)
                | Action::Modify(_)
        );
        let time = if waits { SETTLE_NS.min(self.slack_ns) } else { 0 };
        self.last_packet.plus_nanos(time)
    }

    /// Handles an answer of the NIC. Returns the finding of a check that fails.
    fn answered(&mut self, statement: &Statement, answer: Answer) -> Result<Option<String>, Stop> {
        match (&statement.action, answer) {
            (Action::Connect(connect), Answer::Connected(nic)) => self.connected(connect, nic)?,
            (Action::Memory { name, len, .. }, Answer::Memory { va, rkey }) => {
                let len = self.values.number(len)?;
                self.memory(name, va, rkey, len);
            }
            (Action::Window { name, area, .. }, Answer::Memory { va, rkey }) => {
                let len = self.area(area)?.len;
                self.memory(name, va, rkey, len as i128);
            }
            (Action::CheckMemory(area, pieces), Answer::Bytes(found)) => {
                let wanted = self.contents(pieces, self.area(area)?.len)?;
                return Ok(difference(&found, &wanted).map(|difference| format!("the memory {difference}")));
            }
            (Action::CheckState(wanted), Answer::State(found)) if *wanted != found => {
                return Ok(Some(format!("the queue pair is in {}", found.name())));
            }
            (Action::Counter(name, by), Answer::Count(count)) => {
                let by = self.values.limited("the increase", by, u64::MAX)?;
                let before = self.counters.get(name).copied().unwrap_or(0);
                let grown = count.saturating_sub(before);
                if grown != by {
                    return Ok(Some(format!("{name} grew by {grown}")));
                }
                self.counters.insert(name.clone(), count);
            }
            (Action::NoCompletion, Answer::Completions(found)) => {
                self.completions.extend(found);
                let first = self.completions.front();
                return Ok(first.map(|first| format!("a completion: id={} {}", first.id, first.status)));
            }
            _ => {}
        }
        Ok(None)
    }

    fn memory(&mut self, name: &str, va: u64, rkey: u32, len: i128) {
        self.values.set(&format!("{name}.va"), va);
        self.values.set(&format!("{name}.rkey"), rkey);
        self.values.set(&format!("{name}.len"), len);
    }

    fn connected(&mut self, connect: &Connect, nic: super::nic::Connected) -> Result<(), Stop> {
        let settings = self.settings(connect)?;
        let transport = match connect.qp_type {
            QpType::Uc => Transport::Uc,
            QpType::Ud => Transport::Ud,
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => Transport::Rc,
        };
        let shift = Psn::new(settings.nic_psn).distance_to(Psn::new(nic.nic_psn));
        let own_shift = Psn::new(settings.psn).distance_to(Psn::new(nic.own_psn));
        self.link = Some(Link { transport, nic, shift, own_shift });
        self.values.set("nic.qpn", nic.qpn.get());
        self.values.set("own.qpn", nic.own_qpn.get());
        self.values.set("psn", settings.psn);
        self.values.set("peer_psn", settings.nic_psn);
        self.values.set("mtu", settings.mtu.bytes() as u64);
        self.values.set("qkey", settings.qkey);
        Ok(())
    }

    fn settings(&self, connect: &Connect) -> Result<Settings, Stop> {
        let number = |name: &str, default: u32, width: usize| {
            let given = connect.numbers.iter().rev().find(|(known, _)| *known == name);
            given.map_or(Ok(default), |(_, value)| {
                let is_circular = name.ends_with("psn");
                self.values.field(name, value, width, is_circular).map(|value| value as u32)
            })
        };
        let timeout = if self.slack_ns > 0 { TIMEOUT_OF_NETWORKS } else { TIMEOUT };
        Ok(Settings {
            qp_type: connect.qp_type,
            mtu: connect.mtu,
            psn: number("psn", 100, 24)?,
            nic_psn: number("peer_psn", 500, 24)?,
            rights: connect.rights,
            state: connect.state,
            timeout: number("timeout", timeout, 5)? as u8,
            retry: number("retry", 7, 3)? as u8,
            rnr_retry: number("rnr_retry", 7, 3)? as u8,
            rnr_timer: number("rnr_timer", 12, 5)? as u8,
            reads: number("reads", 16, 8)? as u8,
            qkey: number("qkey", 0x1111_1111, 32)?,
            congestion: connect.congestion.clone(),
        })
    }

    /// Returns the bytes of contents. A single byte without a count fills the whole area.
    fn contents(&self, pieces: &[Piece], len: usize) -> Result<Vec<u8>, Stop> {
        let bytes = self.values.bytes(pieces)?;
        match (pieces, bytes.as_slice()) {
            ([Piece::Repeated(_, None)], [byte]) => Ok(vec![*byte; len]),
            _ => Ok(bytes),
        }
    }

    fn area(&self, area: &Area) -> Result<MemoryArea, Stop> {
        let at = self.values.limited("the first byte", &area.from, MOST_MEMORY)?;
        let to = self.values.limited("the end", &area.to, MOST_MEMORY)?;
        let len = to.checked_sub(at).ok_or_else(|| format!("the range {at}..{to} ends before it begins"))?;
        Ok(MemoryArea { memory: area.memory.clone(), at: at as usize, len: len as usize })
    }

    /// Returns the request of a statement.
    fn request(&self, action: &Action) -> Result<Request, Stop> {
        Ok(match action {
            Action::Connect(connect) => Request::Connect(self.settings(connect)?),
            Action::Memory { name, len, rights, is_foreign } => {
                let len = self.values.limited("the length", len, MOST_MEMORY)? as usize;
                Request::Memory { name: name.clone(), len, rights: *rights, is_foreign: *is_foreign }
            }
            Action::Window { name, area, rights } => {
                Request::Window { name: name.clone(), area: self.area(area)?, rights: *rights }
            }
            Action::Fill(area, pieces) => {
                let area = self.area(area)?;
                let bytes = self.contents(pieces, area.len)?;
                if bytes.len() != area.len {
                    return Err(format!("{} bytes do not fill {}", bytes.len(), area.len).into());
                }
                Request::Write(area, bytes)
            }
            Action::Revoke(name) => Request::Revoke(name.clone()),
            Action::Post(posting) => self.posting(posting)?,
            Action::Modify(state) => Request::Modify(*state),
            Action::CheckMemory(area, _) => Request::Read(self.area(area)?),
            Action::CheckState(_) => Request::State,
            Action::Counter(name, _) => Request::Counter(name.clone()),
            _ => Request::Completions,
        })
    }

    fn posting(&self, posting: &Posting) -> Result<Request, Stop> {
        let find = |name: &str| posting.numbers.iter().rev().find(|(known, _)| *known == name);
        let given = |name: &str, width: usize| {
            find(name).map(|(_, value)| self.values.field(name, value, width, width == 64)).transpose()
        };
        let required = |name: &str, width: usize| {
            given(name, width)?.ok_or_else(|| format!("the request has no {name}; add {name}=VALUE"))
        };
        let id = given("id", 64)?.unwrap_or(0);
        let area = posting.area.as_ref().map(|area| self.area(area)).transpose()?;
        let [imm, invalidate] = ["imm", "invalidate"].map(|name| given(name, 32));
        let (imm, invalidate) = (imm?.map(|value| value as u32), invalidate?.map(|value| value as u32));
        let va = || required("va", 64);
        let rkey = || required("rkey", 32).map(|value| value as u32);
        let operation = match posting.verb {
            Verb::Receive => return Ok(Request::Receive(id, area)),
            Verb::Send => Operation::Send { imm, invalidate },
            Verb::Write => Operation::Write { va: va()?, rkey: rkey()?, imm },
            Verb::Read => Operation::Read { va: va()?, rkey: rkey()? },
            Verb::FetchAdd => Operation::FetchAdd { va: va()?, rkey: rkey()?, add: required("add", 64)? },
            Verb::CompareSwap => Operation::CompareSwap {
                va: va()?,
                rkey: rkey()?,
                compare: required("compare", 64)?,
                swap: required("swap", 64)?,
            },
            Verb::AtomicWrite => Operation::AtomicWrite { va: va()?, rkey: rkey()? },
            Verb::Flush => Operation::Flush { va: va()?, rkey: rkey()?, len: required("len", 32)? as u32 },
            Verb::LocalInvalidate => Operation::LocalInvalidate { rkey: rkey()? },
        };
        let (has_fence, is_solicited) = (posting.has_fence, posting.is_solicited);
        Ok(Request::Post(WorkRequest { id, operation, area, has_fence, is_solicited }))
    }

    fn completion(&mut self, now: Instant, statement: &Statement, completing: &Completing) -> Stepped {
        let within = self.limit(completing.within.as_ref())?;
        let until = self.mark.plus_nanos(within);
        if let Phase::Answered(Answer::Completions(_)) = &self.phase
            && let Phase::Answered(Answer::Completions(found)) =
                std::mem::replace(&mut self.phase, Phase::Waiting)
        {
            self.completions.extend(found);
        }
        let Some(found) = self.completions.pop_front() else {
            return self.look_again(now, until, Request::Completions, || {
                failed(statement, format!("no completion within {}", milliseconds(within)))
            });
        };
        let id = self.values.field("id", &completing.id, 64, true)?;
        let mut wrong = Vec::new();
        if found.id != id {
            wrong.push(format!("id is {}, not {id}", found.id));
        }
        if found.status != completing.status {
            wrong.push(format!("status is {}", found.status));
        }
        for (name, value) in &completing.numbers {
            let wanted = self.values.field(name, value, 32, false)?;
            let value = match *name {
                "bytes" => Some(found.bytes),
                "imm" => found.imm,
                _ => found.invalidated,
            };
            if value.map(u64::from) != Some(wanted) {
                wrong.push(value.map_or(format!("no {name}"), |value| format!("{name} is {value:#x}")));
            }
        }
        if wrong.is_empty() {
            return Ok(Step::Done(now));
        }
        Err(failed(statement, format!("completion id={} {}: {}", found.id, found.status, wrong.join(", "))))
    }

    fn event(&mut self, now: Instant, statement: &Statement, wanted: &'static str) -> Stepped {
        if let Phase::Answered(Answer::Events(_)) = &self.phase
            && let Phase::Answered(Answer::Events(found)) = std::mem::replace(&mut self.phase, Phase::Waiting)
        {
            self.events.extend(found);
        }
        match self.events.pop_front() {
            Some(found) if found == wanted => Ok(Step::Done(now)),
            Some(found) => Err(failed(statement, format!("the event {found}"))),
            None => {
                let until = self.mark.plus_nanos(PATIENCE_NS);
                self.look_again(now, until, Request::Events, || failed(statement, "no event".to_owned()))
            }
        }
    }

    /// Returns the time limit of an expectation.
    fn limit(&self, within: Option<&Expression>) -> Result<u64, Stop> {
        let limit = within.map_or(Ok(PATIENCE_NS), |time| self.values.time(time))?;
        Ok(limit.saturating_add(self.slack_ns))
    }

    /// Asks the NIC once after each event, until the time is over.
    fn look_again(
        &mut self,
        now: Instant,
        until: Instant,
        request: Request,
        late: impl FnOnce() -> Stop,
    ) -> Stepped {
        match self.phase {
            Phase::Fresh => Ok(Step::Ask(request)),
            _ if now < until => {
                self.phase = Phase::Waiting;
                Ok(Step::Wait(until))
            }
            _ => Err(late()),
        }
    }
}

/// Returns the failure of a statement whose text is the expectation.
fn failed(statement: &Statement, found: String) -> Stop {
    let expected = statement.text.strip_prefix("expect ").unwrap_or(&statement.text).to_owned();
    Stop::Failed { expected, found }
}

fn milliseconds(nanos: u64) -> String {
    format!("{}.{:03} ms", nanos / 1_000_000, nanos / 1_000 % 1_000)
}
