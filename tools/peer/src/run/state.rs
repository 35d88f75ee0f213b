//! The state of a run, and the calls that change it.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use roce_packet::{Direction, Encapsulation, Opcode, OpcodeInfo, Path, Psn, Qpn, Transport};
use roce_transport::Instant;

use super::nic::{Answer, Completion, Connected, Refusal, Request};
use super::report::{Failure, Outcome, Record, Report};
use super::values::Values;
use crate::script::{Action, Script};
use crate::wire::{Fault, describe, fault_of, slot};

/// Maximum number of steps, each round of a loop counted, so that every script ends.
const MOST_STEPS: usize = 1_000_000;
/// Maximum number of packets that a report contains.
const MOST_RECORDS: usize = 100_000;

/// A packet that the script sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The addresses.
    pub path: Path,
    /// The queue pair of the NIC.
    pub dest_qp: Qpn,
    /// The bytes from BTH to ICRC.
    pub bytes: Vec<u8>,
}

/// What the caller of [`Run::poll`] does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this packet.
    Send(Packet),
    /// Pass this request to the NIC under test, and its answer to [`Run::answer`].
    Ask(Request),
    /// Wait for a packet or an event of the NIC, but not beyond this time.
    Wait(Instant),
    /// The script has ended.
    Finished,
}

/// The progress of the present step.
#[derive(Debug)]
pub(super) enum Phase {
    /// The step has not begun, or begins again after an event.
    Fresh,
    /// The NIC has a request.
    Asked,
    /// The NIC has answered.
    Answered(Answer),
    /// Nothing happens before an event.
    Waiting,
}

/// A loop that is being repeated.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) begin: usize,
    pub(super) round: u64,
    pub(super) rounds: u64,
}

/// The connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) transport: Transport,
    pub(super) nic: Connected,
    /// The difference between PSNs of the NIC's requests on the wire and in the script.
    pub(super) shift: u32,
    /// The difference between PSNs of the script's requests on the wire and in the script.
    pub(super) own_shift: u32,
}

/// A packet that no step has taken yet.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) at: Instant,
    /// A time at which it had not arrived yet, or that of its arrival.
    pub(super) since: Instant,
    pub(super) path: Path,
    pub(super) bytes: Vec<u8>,
    pub(super) text: String,
    pub(super) fault: Option<Fault>,
}

/// The reason why a script stops early.
#[derive(Debug)]
pub(super) enum Stop {
    /// The NIC does something else.
    Failed { expected: String, found: String },
    /// The script cannot run here.
    Inapplicable(String),
    /// A step cannot be carried out.
    Broken(String),
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Broken(what)
    }
}

/// The result of a part of a step.
#[derive(Debug)]
pub(super) enum Step {
    /// The step ended at this time.
    Done(Instant),
    /// The step took a packet, which arrived at the first time, and after the second one.
    Arrived(Instant, Instant),
    /// The run goes on with another statement.
    Jump(usize),
    /// The NIC gets a request.
    Ask(Request),
    /// The step waits.
    Wait(Instant),
}

/// A script that is being run.
#[derive(Debug)]
pub struct Run<'s> {
    pub(super) script: &'s Script,
    pub(super) next: usize,
    pub(super) loops: Vec<Loop>,
    pub(super) values: Values,
    pub(super) rule: String,
    pub(super) link: Option<Link>,
    pub(super) arrived: VecDeque<Arrived>,
    records: Vec<Record>,
    began: Option<Instant>,
    /// The time at which the previous step ended.
    pub(super) mark: Instant,
    /// The earliest time at which the previous step may have ended: a packet arrives before it is seen.
    pub(super) earliest_mark: Instant,
    /// The time of the last packet, sent or received.
    pub(super) last_packet: Instant,
    pub(super) phase: Phase,
    pub(super) to_send: Option<Packet>,
    /// The counters at the last statement about each.
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<&'static str>,
    /// Time that the network may add to each answer.
    pub(super) slack_ns: u64,
    steps: usize,
    /// Checks that the NIC does not offer.
    unchecked: usize,
    outcome: Option<Outcome>,
}

impl<'s> Run<'s> {
    /// Begins a script.
    #[must_use]
    pub fn new(script: &'s Script) -> Self {
        Self {
            script,
            next: 0,
            loops: Vec::new(),
            values: Values::default(),
            rule: String::new(),
            link: None,
            arrived: VecDeque::new(),
            records: Vec::new(),
            began: None,
            mark: Instant::ZERO,
            earliest_mark: Instant::ZERO,
            last_packet: Instant::ZERO,
            phase: Phase::Fresh,
            to_send: None,
            counters: BTreeMap::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            slack_ns: 0,
            steps: 0,
            unchecked: 0,
            outcome: None,
        }
    }

    /// Lets every answer take this much longer than the script says, for a NIC behind a network. Then checks
    /// of the NIC also wait until it has handled the last packet, silence is watched for two seconds at most,
    /// and the NIC gets a long local ACK timeout unless the script names one.
    #[must_use]
    pub fn with_slack(mut self, slack_ns: u64) -> Self {
        self.slack_ns = slack_ns;
        self
    }

    /// Returns what the caller does next.
    pub fn poll(&mut self, now: Instant) -> Output {
        if self.began.is_none() {
            self.began = Some(now);
            self.mark = now;
            self.earliest_mark = now;
        }
        loop {
            if let Some(packet) = self.to_send.take() {
                self.record(now, true, &packet.path, 0, &packet.bytes);
                return Output::Send(packet);
            }
            if self.outcome.is_some() {
                return Output::Finished;
            }
            if self.steps > MOST_STEPS {
                self.stop(Stop::Broken(format!("the script has more than {MOST_STEPS} steps")));
                continue;
            }
            match self.step(now) {
                Ok(Step::Done(at)) => self.done(at, self.next.saturating_add(1)),
                Ok(Step::Arrived(at, since)) => {
                    self.done(at, self.next.saturating_add(1));
                    self.earliest_mark = since.min(at);
                }
                Ok(Step::Jump(next)) => self.done(self.mark, next),
                Ok(Step::Ask(request)) => {
                    self.phase = Phase::Asked;
                    return Output::Ask(request);
                }
                Ok(Step::Wait(_)) if self.outcome.is_some() => {}
                Ok(Step::Wait(until)) => return Output::Wait(until),
                Err(stop) => self.stop(stop),
            }
        }
    }

    fn done(&mut self, at: Instant, next: usize) {
        if at != self.mark {
            self.earliest_mark = at;
        }
        self.mark = at;
        self.steps += 1;
        self.next = next;
        self.phase = Phase::Fresh;
    }

    /// Takes the answer of the NIC to a request. If the NIC does not offer a check, the run goes on without
    /// it.
    pub fn answer(&mut self, answer: Result<Answer, Refusal>) {
        match answer {
            Ok(answer) => self.phase = Phase::Answered(answer),
            Err(Refusal::Unable(_)) if self.is_check() => {
                self.unchecked += 1;
                self.done(self.mark, self.next.saturating_add(1));
            }
            Err(Refusal::Unable(what)) => self.stop(Stop::Inapplicable(what)),
            Err(Refusal::Failed(what)) => {
                self.stop(Stop::Broken(format!("the NIC refuses the step: {what}")));
            }
        }
    }

    /// Returns whether the NIC has a request of a statement that only looks at it. A packet that cannot be
    /// sent is not such a request.
    fn is_check(&self) -> bool {
        let action = self.script.statements.get(self.next).map(|statement| &statement.action);
        let is_asked = matches!(self.phase, Phase::Asked);
        is_asked
            && matches!(
                action,
                Some(
                    Action::CheckMemory(..)
                        | Action::CheckState(_)
                        | Action::Counter(..)
                        | Action::NoCompletion
                        | Action::Event(_)
                )
            )
    }

    /// Tells that something happened at the NIC, so that the present step looks again.
    pub fn wake(&mut self) {
        if matches!(self.phase, Phase::Waiting) {
            self.phase = Phase::Fresh;
        }
    }

    /// Takes a packet of the NIC. `identification` is the IPv4 Identification, if the device saw it.
    pub fn receive(&mut self, now: Instant, path: &Path, identification: Option<u16>, bytes: &[u8]) {
        self.receive_since(now, now, path, identification, bytes);
    }

    /// Takes a packet of the NIC that arrived after `since`, as [`Self::receive`] does.
    pub fn receive_since(
        &mut self,
        since: Instant,
        now: Instant,
        path: &Path,
        identification: Option<u16>,
        bytes: &[u8],
    ) {
        let text = self.record(now, false, path, identification.unwrap_or(0), bytes);
        let fault = fault_of(bytes, path, identification);
        self.arrived.push_back(Arrived { at: now, since, path: *path, bytes: bytes.to_vec(), text, fault });
        self.wake();
    }

    fn record(
        &mut self,
        at: Instant,
        is_sent: bool,
        path: &Path,
        identification: u16,
        bytes: &[u8],
    ) -> String {
        self.last_packet = at;
        let psn = self.psn_of(bytes, is_sent);
        let text = describe(bytes, psn);
        if self.records.len() < MOST_RECORDS {
            let index = if is_sent { self.next.saturating_sub(1) } else { self.next };
            let place = self.script.statements.get(index).map(|statement| statement.place.clone());
            let (path, bytes, text) = (*path, bytes.to_vec(), text.clone());
            self.records.push(Record { at, is_sent, path, identification, bytes, place, text });
        }
        text
    }

    /// Returns the PSN of a packet in the numbers of the script.
    fn psn_of(&self, bytes: &[u8], is_sent: bool) -> Option<u64> {
        let info = bytes.first().and_then(|opcode| Opcode(*opcode).info())?;
        let wire = slot("psn", info)?.read(bytes, info)? as u32;
        Some(Psn::new(wire).sub(self.shift_of(info, is_sent)).get().into())
    }

    /// Returns the difference between the PSN of a packet on the wire and in the script.
    pub(super) fn shift_of(&self, info: &OpcodeInfo, is_sent: bool) -> u32 {
        let is_of_nic = match info.direction {
            Direction::Request => !is_sent,
            Direction::Response => is_sent,
            Direction::Cnp => return 0,
        };
        self.link.map_or(0, |link| if is_of_nic { link.shift } else { link.own_shift })
    }

    fn stop(&mut self, stop: Stop) {
        let statement = self.script.statements.get(self.next);
        let text = statement.map_or("the end of the script", |statement| &statement.text).to_owned();
        let place = statement.map(|statement| statement.place.clone());
        let rule = self.rule.clone();
        self.outcome = Some(match stop {
            Stop::Failed { expected, found } => {
                Outcome::Failed(Failure { place, text, rule, expected, found })
            }
            Stop::Inapplicable(what) => Outcome::Inapplicable(what),
            Stop::Broken(found) => {
                let expected = "a step that can be carried out".to_owned();
                Outcome::Failed(Failure { place, text, rule, expected, found })
            }
        });
    }

    /// Ends the script after its last statement.
    pub(super) fn finish(&mut self) {
        match self.arrived.front() {
            None => self.outcome = Some(Outcome::Passed),
            Some(arrived) => {
                let found = arrived.text.clone();
                self.stop(Stop::Failed { expected: "no more packets".to_owned(), found });
            }
        }
    }

    /// Ends the run, at any time, and returns its result.
    #[must_use]
    pub fn into_report(mut self, now: Instant) -> Report {
        if self.outcome.is_none() {
            self.stop(Stop::Broken("the run ended early".to_owned()));
        }
        let outcome = self.outcome.unwrap_or(Outcome::Passed);
        let elapsed = now.since(self.began.unwrap_or(now));
        Report {
            script: self.script.name.clone(),
            title: self.script.title.clone(),
            rules: self.script.rules().map(str::to_owned).collect(),
            steps: self.steps,
            unchecked: self.unchecked,
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            records: self.records,
            outcome,
        }
    }

    /// Returns the path of the script's packets.
    pub(super) fn path(&self) -> Path {
        const NONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        let nic = self.link.map(|link| link.nic);
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: nic.map_or(NONE, |nic| nic.own_address),
            destination: nic.map_or(NONE, |nic| nic.address),
            source_port: nic.map_or(0xc000, |nic| nic.source_port),
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        }
    }
}
