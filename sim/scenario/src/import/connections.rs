//! Connection matrices of htsim (`.cm`): connections that start at a time, or when a trigger fires.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::lines::{Line, lines, number};
use super::target::{Imported, Target};
use crate::Wrong;
use roce_sim::net::{After, FlowSpec, MAX_FLOWS, Task, Time, Transfer};

/// The hosts of a matrix, and when its connections may start.
pub(super) struct Connections<'a> {
    pub(super) hosts: &'a [u32],
    /// The time at which the times of the file begin.
    pub(super) start: Time,
    /// Whether the connections wait for other tables, or other tables wait for them.
    pub(super) waits: bool,
}

/// The largest start of a connection, in picoseconds.
const MOST_START: f64 = 1e18;

#[derive(Debug)]
struct Connection {
    line: usize,
    source: u32,
    destination: u32,
    bytes: u64,
    start: Option<Time>,
    /// The trigger that starts the connection.
    trigger: Option<u32>,
    /// The triggers that its end activates, at the sender and at the receiver.
    activates: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fires {
    /// All connections, after one activation.
    Once,
    /// The next connection, after each activation.
    Each,
    /// All connections, after this number of activations.
    After(usize),
}

#[derive(Debug)]
struct Trigger {
    line: usize,
    fires: Fires,
    /// The connections that activate it, and whether by the end at the receiver.
    activations: Vec<(usize, bool)>,
    /// The connections that it starts.
    targets: Vec<usize>,
}

#[derive(Debug, Default)]
struct Matrix {
    nodes: u32,
    connections: Vec<Connection>,
    triggers: BTreeMap<u32, Trigger>,
    has_priorities: bool,
}

/// Adds the connections of a matrix. Each of them is a flow.
pub(super) fn add(text: &str, what: &Connections<'_>, target: &mut Target<'_>) -> Result<Imported, Wrong> {
    let mut matrix = Matrix::parse(text)?;
    if matrix.nodes as usize > what.hosts.len() {
        return Err(format!(
            "Nodes: the matrix has {} nodes, and there are {} hosts; use a larger topology",
            matrix.nodes,
            what.hosts.len()
        ));
    }
    matrix.resolve()?;
    let mut imported = Imported::default();
    if matrix.has_priorities {
        imported.warnings.push("prio: all connections have the priority of `host.dscp`".to_owned());
    }
    let id = matrix.triggers.iter().find(|(_, trigger)| trigger.has_choice(&matrix)).map(|(id, _)| id);
    if let Some(id) = id {
        imported.warnings.push(format!(
            "trigger {id}: connections of a multishot trigger start in the order of the file, each after the \
             connection that is at its place in the list of those that activate it"
        ));
    }
    if target.flows.len() + matrix.connections.len() > MAX_FLOWS {
        return Err(format!("the sum of all flows exceeds {MAX_FLOWS}"));
    }
    let has_triggers = matrix.connections.iter().any(|connection| connection.trigger.is_some());
    if !has_triggers && !what.waits {
        target.flows.extend(matrix.connections.iter().map(|connection| spec(connection, what)));
        return Ok(imported);
    }
    let mut tasks = Tasks::new(&matrix, what, target);
    tasks.add_all()?;
    if tasks.notices.is_empty() {
        return Ok(Imported { visible: tasks.visible, ..imported });
    }
    imported.warnings.push(format!(
        "trigger: a host cannot see the end of connections between others, so messages of 1 byte tell it; flows for \
         them: {}",
        tasks.notices.len()
    ));
    Ok(Imported { visible: tasks.visible, ..imported })
}

fn spec(connection: &Connection, what: &Connections<'_>) -> FlowSpec {
    FlowSpec {
        source: what.hosts[connection.source as usize],
        destination: what.hosts[connection.destination as usize],
        bytes: connection.bytes,
        start: connection.start.map_or(what.start, |start| what.start + start),
    }
}

impl Matrix {
    fn parse(text: &str) -> Result<Self, Wrong> {
        let mut matrix = Self::default();
        let (mut connections, mut triggers) = (0, 0);
        let most = MAX_FLOWS as u32;
        for mut line in lines(text) {
            let Some(first) = line.word() else { continue };
            match first {
                "Nodes" => matrix.nodes = line.number("Nodes", most)?,
                "Connections" => connections = line.number("Connections", most)?,
                "Triggers" => triggers = line.number("Triggers", most)?,
                "Failures" if line.number("Failures", most)? == 0 => {}
                "Failures" | "failure" => {
                    return Err(line.wrong(
                        "failures of links are not read; write [[failure]] with link = [\"agg0\", \"core0\"], \
                         at = \"0us\" and reroute_after = \"0us\" instead, and set Failures to 0",
                    ));
                }
                "trigger" => matrix.add_trigger(&mut line)?,
                pair if pair.contains("->") => matrix.add_connection(pair, &mut line)?,
                other => {
                    return Err(line.wrong(format!(
                        "\"{other}\" is not one of Nodes, Connections, Triggers, Failures, SOURCE->DESTINATION and \
                         trigger"
                    )));
                }
            }
            line.end()?;
        }
        for (name, said, found) in [
            ("Connections", connections, matrix.connections.len()),
            ("Triggers", triggers, matrix.triggers.len()),
        ] {
            if said as usize != found {
                return Err(format!("the header has {name} {said}, and the file has {found}"));
            }
        }
        Ok(matrix)
    }

    fn add_connection(&mut self, pair: &str, line: &mut Line<'_>) -> Result<(), Wrong> {
        let last = self
            .nodes
            .checked_sub(1)
            .ok_or_else(|| line.wrong("the number of nodes is unknown; begin the file with Nodes"))?;
        let (source, destination) = pair.split_once("->").unwrap_or_default();
        let node = |word| number(word, last).map_err(|reason| line.wrong(format!("node: {reason}")));
        let mut connection = Connection {
            line: line.number,
            source: node(source)?,
            destination: node(destination)?,
            bytes: 0,
            start: None,
            trigger: None,
            activates: [None; 2],
        };
        while let Some(word) = line.word() {
            match word {
                "id" => _ = id(line, "id")?,
                "start" => connection.start = Some(start(line)?),
                "size" => connection.bytes = line.number("size", u64::MAX)?,
                "trigger" => connection.trigger = Some(id(line, "trigger")?),
                "send_done_trigger" => connection.activates[0] = optional_id(line, "send_done_trigger")?,
                "recv_done_trigger" => connection.activates[1] = optional_id(line, "recv_done_trigger")?,
                "prio" => {
                    line.number("prio", u32::MAX)?;
                    self.has_priorities = true;
                }
                other => {
                    return Err(line.wrong(format!(
                        "{other} is not simulated; a connection has id, start, size, trigger, send_done_trigger, \
                         recv_done_trigger and prio"
                    )));
                }
            }
        }
        let problem = match (&connection.start, connection.trigger) {
            (None, None) => "a connection needs start or trigger",
            (Some(_), Some(_)) => "a connection cannot have both start and trigger",
            _ if connection.source == connection.destination => "a node cannot send to itself",
            _ if connection.bytes == 0 => {
                "a connection without size never ends, which is not simulated; add size BYTES"
            }
            _ => {
                self.connections.push(connection);
                return Ok(());
            }
        };
        Err(line.wrong(problem))
    }

    fn add_trigger(&mut self, line: &mut Line<'_>) -> Result<(), Wrong> {
        let (mut own, mut fires, mut count) = (None, None, None);
        while let Some(word) = line.word() {
            match word {
                "id" => own = Some(id(line, "id")?),
                "count" => count = Some(line.number("count", MAX_FLOWS)?),
                "oneshot" => fires = Some(Fires::Once),
                "multishot" => fires = Some(Fires::Each),
                "barrier" => fires = Some(Fires::After(0)),
                other => {
                    return Err(line.wrong(format!(
                        "\"{other}\" is not one of id, oneshot, multishot, barrier and count"
                    )));
                }
            }
        }
        let (Some(own), Some(fires)) = (own, fires) else {
            return Err(line.wrong("a trigger needs id and one of oneshot, multishot and barrier"));
        };
        let fires = match (fires, count) {
            (Fires::After(_), Some(count)) if count > 0 => Fires::After(count),
            (Fires::After(_), _) => return Err(line.wrong("a barrier needs a count above 0")),
            (other, _) => other,
        };
        let trigger = Trigger { line: line.number, fires, activations: Vec::new(), targets: Vec::new() };
        match self.triggers.insert(own, trigger) {
            None => Ok(()),
            Some(_) => Err(line.wrong(format!("a trigger with id {own} exists above"))),
        }
    }

    /// Connects triggers with connections.
    fn resolve(&mut self) -> Result<(), Wrong> {
        for (number, connection) in self.connections.iter().enumerate() {
            let missing = |id| format!("line {}: there is no trigger with id {id}", connection.line);
            if let Some(id) = connection.trigger {
                self.triggers.get_mut(&id).ok_or_else(|| missing(id))?.targets.push(number);
            }
            for (id, is_at_receiver) in connection.activates.into_iter().zip([false, true]) {
                if let Some(id) = id {
                    let trigger = self.triggers.get_mut(&id).ok_or_else(|| missing(id))?;
                    trigger.activations.push((number, is_at_receiver));
                }
            }
        }
        for (id, trigger) in &self.triggers {
            trigger.check().map_err(|reason| format!("line {}: trigger {id}: {reason}", trigger.line))?;
        }
        Ok(())
    }
}

fn start(line: &mut Line<'_>) -> Result<Time, Wrong> {
    let word = line.word().unwrap_or_default();
    let time = word.parse::<f64>().ok().filter(|time| (0.0..=MOST_START).contains(time));
    let time = time.ok_or_else(|| {
        line.wrong(format!("start: \"{word}\" is not a time in picoseconds from 0 to 1e18"))
    })?;
    Ok(Time::from_ps(time.round() as u64))
}

fn optional_id(line: &mut Line<'_>, what: &str) -> Result<Option<u32>, Wrong> {
    Ok(Some(line.number(what, u32::MAX)?).filter(|id| *id > 0))
}

fn id(line: &mut Line<'_>, what: &str) -> Result<u32, Wrong> {
    optional_id(line, what)?.ok_or_else(|| line.wrong(format!("{what}: 0 is not allowed")))
}

impl Trigger {
    fn check(&self) -> Result<(), Wrong> {
        let (have, targets) = (self.activations.len(), self.targets.len());
        let need = match self.fires {
            Fires::Once => 1,
            Fires::After(count) => count,
            Fires::Each if have < targets => {
                return Err(format!(
                    "activations in the file: {have}; connections that wait for them: {targets}"
                ));
            }
            Fires::Each => have,
        };
        if targets == 0 || have == need {
            return Ok(());
        }
        Err(format!("activations in the file: {have}; needed: {need}"))
    }

    /// Returns whether several connections could activate a multishot trigger first.
    fn has_choice(&self, matrix: &Matrix) -> bool {
        let own = |number: usize| matrix.connections[number].trigger.map(|id| &matrix.triggers[&id]);
        let is_first = |number: usize| own(number).is_none_or(|trigger| trigger.line != self.line);
        let first = self.activations.iter().filter(|(number, _)| is_first(*number));
        self.fires == Fires::Each && !self.targets.is_empty() && first.count() > 1
    }
}

/// Something that happened: the hosts that see it, the first of which tells others.
#[derive(Clone, Copy, Debug)]
struct Event([(u32, After); 2]);

/// The number of an event: twice the number of a connection, plus 1 at its receiver, or more for triggers.
type EventId = usize;

/// A connection, or a trigger that starts all of its connections, and what follows it.
#[derive(Clone, Debug, Default)]
struct Step {
    /// The event that starts a connection.
    cause: Option<EventId>,
    /// The number of steps before it that are not added yet.
    open: usize,
    next: Vec<usize>,
}

/// The tasks of connections, each added after those that start it. Steps are numbered: connections first,
/// then triggers.
struct Tasks<'m, 't, 'a> {
    matrix: &'m Matrix,
    what: &'m Connections<'m>,
    target: &'t mut Target<'a>,
    steps: Vec<Step>,
    /// The triggers by the numbers of their steps, beginning with that after the last connection.
    triggers: Vec<&'m Trigger>,
    events: HashMap<EventId, Event>,
    /// The flow of the notices from one host to another.
    notices: HashMap<(u32, u32), u32>,
    /// The notice of an event at a host.
    told: HashMap<(EventId, u32), After>,
    visible: BTreeMap<u32, Vec<After>>,
}

impl<'m, 't, 'a> Tasks<'m, 't, 'a> {
    fn new(matrix: &'m Matrix, what: &'m Connections<'m>, target: &'t mut Target<'a>) -> Self {
        let count = matrix.connections.len();
        let triggers: Vec<&Trigger> = matrix.triggers.values().collect();
        let mut steps = vec![Step::default(); count + triggers.len()];
        let mut follow = |before: usize, step: usize, cause: EventId| {
            steps[before].next.push(step);
            steps[step].open += 1;
            steps[step].cause = Some(cause);
        };
        for (own, trigger) in (count..).zip(&triggers) {
            if trigger.fires == Fires::Each {
                for (target, (before, end)) in trigger.targets.iter().zip(&trigger.activations) {
                    follow(*before, *target, 2 * before + usize::from(*end));
                }
                continue;
            }
            for (before, _) in &trigger.activations {
                follow(*before, own, own);
            }
            for target in &trigger.targets {
                follow(own, *target, count + own);
            }
        }
        Self {
            matrix,
            what,
            target,
            steps,
            triggers,
            events: HashMap::new(),
            notices: HashMap::new(),
            told: HashMap::new(),
            visible: BTreeMap::new(),
        }
    }

    fn add_all(&mut self) -> Result<(), Wrong> {
        let count = self.matrix.connections.len();
        let free = (0..self.steps.len()).filter(|step| self.steps[*step].open == 0);
        let mut ready: VecDeque<usize> = free.collect();
        while let Some(step) = ready.pop_front() {
            if step < count {
                self.add_connection(step)?;
            } else {
                self.fire(step)?;
            }
            for next in std::mem::take(&mut self.steps[step].next) {
                self.steps[next].open -= 1;
                if self.steps[next].open == 0 {
                    ready.push_back(next);
                }
            }
        }
        let mut waiting = self.matrix.connections.iter().zip(&self.steps);
        match waiting.find(|(_, step)| step.open > 0) {
            None => Ok(()),
            Some((connection, _)) => Err(format!(
                "line {}: the connection never starts: it waits for itself through triggers",
                connection.line
            )),
        }
    }

    fn add_connection(&mut self, number: usize) -> Result<(), Wrong> {
        let connection = &self.matrix.connections[number];
        let flow = spec(connection, self.what);
        let after = match self.steps[number].cause {
            Some(event) => vec![self.see(event, flow.source)?],
            None => (self.target.before)(flow.source)?,
        };
        let transfer = Transfer::Flow { flow: self.target.flows.len() as u32, bytes: flow.bytes };
        self.target.flows.push(flow);
        let task = self.task(flow.source, flow.start, Some(transfer), &after)?;
        let (sent, arrived) = ((flow.source, After::Done(task)), (flow.destination, After::Arrival(task)));
        self.events.insert(2 * number, Event([sent, arrived]));
        self.events.insert(2 * number + 1, Event([arrived, sent]));
        for (host, after) in [sent, arrived] {
            self.visible.entry(host).or_default().push(after);
        }
        Ok(())
    }

    /// Adds the event of a trigger that starts all of its connections.
    fn fire(&mut self, step: usize) -> Result<(), Wrong> {
        let count = self.matrix.connections.len();
        let trigger = self.triggers[step - count];
        let activations: Vec<EventId> =
            trigger.activations.iter().map(|(before, end)| 2 * before + usize::from(*end)).collect();
        let event = match (&activations[..], trigger.targets.first()) {
            (_, None) => return Ok(()),
            // Each end starts one connection, without a common event.
            _ if trigger.fires == Fires::Each => return Ok(()),
            ([event], _) => self.events[event],
            (_, Some(first)) => {
                // One host collects all activations.
                let host = spec(&self.matrix.connections[*first], self.what).source;
                let after: Result<Vec<After>, Wrong> =
                    activations.iter().map(|event| self.see(*event, host)).collect();
                let all = After::Done(self.task(host, self.what.start, None, &after?)?);
                Event([(host, all); 2])
            }
        };
        self.events.insert(count + step, event);
        Ok(())
    }

    /// Returns what a host waits for to see an event. If it cannot see the event, another host sends a byte.
    fn see(&mut self, number: EventId, host: u32) -> Result<After, Wrong> {
        let event = self.events[&number];
        if let Some((_, after)) = event.0.iter().find(|(seen, _)| *seen == host) {
            return Ok(*after);
        }
        if let Some(after) = self.told.get(&(number, host)) {
            return Ok(*after);
        }
        let (from, after) = event.0[0];
        let flow = match self.notices.get(&(from, host)) {
            Some(flow) => *flow,
            None => {
                let flow = self.target.flows.len() as u32;
                let start = self.what.start;
                self.target.flows.push(FlowSpec { source: from, destination: host, bytes: 0, start });
                self.notices.insert((from, host), flow);
                flow
            }
        };
        self.target.flows[flow as usize].bytes += 1;
        let notice = self.task(from, self.what.start, Some(Transfer::Flow { flow, bytes: 1 }), &[after])?;
        self.told.insert((number, host), After::Arrival(notice));
        Ok(After::Arrival(notice))
    }

    fn task(
        &mut self,
        host: u32,
        earliest: Time,
        transfer: Option<Transfer>,
        after: &[After],
    ) -> Result<u32, Wrong> {
        let task = Task { host, earliest, compute: Time::ZERO, transfer };
        self.target.schedule.add(task, after).map_err(|error| error.to_string())
    }
}
