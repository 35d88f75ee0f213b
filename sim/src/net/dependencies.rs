//! The tasks of one host during a run: which of them wait, which are computing or sending, and which have
//! ended.
//!
//! An [`Agenda`] is a state machine without time and network. The input consists of the host's observations:
//! the end of a computation, acknowledged bytes, the arrival of a transfer. The output consists of the tasks
//! that can begin and the bytes that can be posted. An agenda does not access other hosts.
//!
//! A flow can also consist of messages that a program adds during the run. They have no task: the output is
//! [`News`].

use std::collections::VecDeque;

use super::time::Time;
use super::workload::{After, FlowSpec, Schedule, TaskId, Transfer};

/// The task of a part without a task: a message that a program added.
const NO_TASK: u32 = u32::MAX;

/// The tasks of one host.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    tasks: Vec<Local>,
    /// The tasks that wait for the end of each task, in one range for each task.
    dependents: Vec<u32>,
    /// Flows that begin here and have transfers, sorted by number.
    outgoing: Vec<Outgoing>,
    /// Flows that end here and have transfers whose arrival a local task waits for, sorted by number.
    incoming: Vec<Incoming>,
    /// Transfers through the scale-up network that end here, sorted by number.
    scaled_up: Vec<ScaledUp>,
    /// Tasks that can begin.
    ready: VecDeque<u32>,
    /// Tasks without a flow that have not ended, and transfers of the scale-up network that have not arrived.
    computations_left: usize,
    /// What this host has noticed about messages, oldest first.
    news: Vec<News>,
}

/// An observation of a host about a message that a program added. Messages of a flow are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The sender has the acknowledgement of the last byte.
    Acknowledged { flow: u32, message: u32 },
    /// The receiver has the last byte.
    Arrived { flow: u32, message: u32 },
}

/// A task, whose number at this host is its index in [`Agenda::tasks`].
#[derive(Clone, Copy, Debug)]
struct Local {
    number: TaskId,
    earliest: Time,
    compute: Time,
    transfer: Option<Transfer>,
    /// The number of dependencies that are still open.
    waits: u32,
    /// The range of [`Agenda::dependents`] that waits for the end of this task.
    dependents: (u32, u32),
    ended: Option<Time>,
}

/// A flow that begins here.
#[derive(Debug)]
struct Outgoing {
    flow: u32,
    parts: Vec<Part>,
    /// The number of completely posted parts, and of acknowledged parts.
    posted: usize,
    acknowledged: usize,
}

/// A transfer or a message as a part of its flow.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The task, or [`NO_TASK`].
    task: u32,
    /// The number of bytes of the flow up to the end of this part.
    end: u64,
    is_open: bool,
    /// Whether the other end must observe the arrival.
    signals: bool,
}

/// A flow that ends here.
#[derive(Debug)]
struct Incoming {
    flow: u32,
    /// Pairs of a part of the flow and a task that waits for its arrival, sorted.
    waiting: Vec<(u32, u32)>,
    /// Whether the flow consists of messages, whose arrivals are news.
    has_messages: bool,
}

/// A transfer through the scale-up network that ends here.
#[derive(Debug)]
struct ScaledUp {
    task: TaskId,
    bytes: u64,
    /// The tasks that wait for its arrival.
    waiting: Vec<u32>,
}

/// A task that can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    /// The number of the task at this host.
    pub(super) task: u32,
    pub(super) earliest: Time,
    pub(super) compute: Time,
}

/// The bytes of a flow that can be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// The number of remaining bytes of this transfer.
    pub(super) left: u64,
    /// The number of the transfer, if the other end must observe its last byte.
    pub(super) signal: Option<u32>,
}

impl Agenda {
    /// Distributes the tasks of a checked schedule among this number of hosts.
    pub(super) fn distribute(schedule: &Schedule, flows: &[FlowSpec], hosts: usize) -> Vec<Self> {
        let mut agendas: Vec<Self> = (0..hosts).map(|_| Self::default()).collect();
        // The number of each task at its host, and the number of the part of its flow.
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(schedule.tasks().len());
        let mut parts: Vec<Vec<Part>> = vec![Vec::new(); flows.len()];
        let mut edges: Vec<Vec<(u32, u32)>> = vec![Vec::new(); hosts];
        let mut arrivals: Vec<Vec<(u32, u32, u32)>> = vec![Vec::new(); hosts];
        for (number, task) in (0..).zip(schedule.tasks()) {
            let host = task.host as usize;
            let agenda = &mut agendas[host];
            let local = agenda.tasks.len() as u32;
            let mut part = 0;
            if let Some(Transfer::Flow { flow, bytes }) = task.transfer {
                let parts = &mut parts[flow as usize];
                part = parts.len() as u32;
                let begin = parts.last().map_or(0, |part| part.end);
                parts.push(Part { task: local, end: begin + bytes, is_open: false, signals: false });
            } else {
                agenda.computations_left += 1;
            }
            places.push((local, part));
            let after = schedule.after(number);
            for after in after {
                let (before, part) = places[after.task() as usize];
                match (after, schedule.tasks()[after.task() as usize].transfer) {
                    (After::Arrival(_), Some(Transfer::Flow { flow, .. })) => {
                        parts[flow as usize][part as usize].signals = true;
                        arrivals[host].push((flow, part, local));
                    }
                    (After::Arrival(task), Some(Transfer::ScaleUp { .. })) => {
                        if let Some(scaled_up) = agenda.scaled_up_mut(*task) {
                            scaled_up.waiting.push(local);
                        }
                    }
                    _ => edges[host].push((before, local)),
                }
            }
            agenda.tasks.push(Local {
                number,
                earliest: task.earliest,
                compute: task.compute,
                transfer: task.transfer,
                waits: after.len() as u32,
                dependents: (0, 0),
                ended: None,
            });
            if after.is_empty() {
                agenda.ready.push_back(local);
            }
            if let Some(Transfer::ScaleUp { to, bytes }) = task.transfer {
                agendas[to as usize].computations_left += 1;
                agendas[to as usize].scaled_up.push(ScaledUp { task: number, bytes, waiting: Vec::new() });
            }
        }
        for (flow, parts) in (0..).zip(parts).filter(|(_, parts)| !parts.is_empty()) {
            let source = flows[flow as usize].source as usize;
            agendas[source].outgoing.push(Outgoing { flow, parts, posted: 0, acknowledged: 0 });
        }
        for (agenda, (edges, arrivals)) in agendas.iter_mut().zip(edges.into_iter().zip(arrivals)) {
            agenda.set_dependents(edges);
            agenda.set_arrivals(arrivals);
        }
        agendas
    }

    fn set_dependents(&mut self, mut edges: Vec<(u32, u32)>) {
        edges.sort_unstable();
        for (place, (before, _)) in (0..).zip(&edges) {
            let (begin, end) = &mut self.tasks[*before as usize].dependents;
            if *begin == *end {
                *begin = place;
            }
            *end = place + 1;
        }
        self.dependents = edges.into_iter().map(|(_, task)| task).collect();
    }

    fn set_arrivals(&mut self, mut arrivals: Vec<(u32, u32, u32)>) {
        arrivals.sort_unstable();
        for (flow, part, task) in arrivals {
            match self.incoming.last_mut() {
                Some(incoming) if incoming.flow == flow => incoming.waiting.push((part, task)),
                _ => self.incoming.push(Incoming { flow, waiting: vec![(part, task)], has_messages: false }),
            }
        }
    }

    /// Returns the number of tasks of this host.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns the number of tasks without a flow that have not ended, and of transfers of the scale-up
    /// network that have not arrived.
    pub(super) fn computations_left(&self) -> usize {
        self.computations_left
    }

    /// Returns whether this host must observe arrivals of this flow.
    pub(super) fn watches(&self, flow: u32) -> bool {
        self.incoming.binary_search_by_key(&flow, |incoming| incoming.flow).is_ok()
    }

    /// Returns whether the other end must observe the last byte of a flow that begins here.
    pub(super) fn signals(&self, flow: u32) -> bool {
        self.parts(flow).last().is_some_and(|part| part.signals)
    }

    /// Returns whether a flow that begins here consists of several transfers.
    pub(super) fn has_parts(&self, flow: u32) -> bool {
        self.parts(flow).len() > 1
    }

    fn parts(&self, flow: u32) -> &[Part] {
        let place = self.outgoing.binary_search_by_key(&flow, |outgoing| outgoing.flow);
        place.ok().and_then(|place| self.outgoing.get(place)).map_or(&[], |outgoing| &outgoing.parts)
    }

    /// Returns the end of each task that has ended, with its number in the schedule.
    pub(super) fn ends(&self) -> impl Iterator<Item = (TaskId, Time)> {
        self.tasks.iter().filter_map(|task| Some((task.number, task.ended?)))
    }

    /// Removes and returns the next task that can begin.
    pub(super) fn next_ready(&mut self) -> Option<Ready> {
        let task = self.ready.pop_front()?;
        let Local { earliest, compute, .. } = self.tasks[task as usize];
        Some(Ready { task, earliest, compute })
    }

    /// Handles the end of a task's computation. Returns its transfer, which can leave now. A task without a
    /// transfer ends here.
    pub(super) fn computed(&mut self, now: Time, task: u32) -> Option<Transfer> {
        let transfer = self.tasks[task as usize].transfer;
        match transfer {
            None => self.left(now, task),
            Some(Transfer::Flow { flow, .. }) => {
                let outgoing = self.outgoing_mut(flow)?;
                let place = outgoing.parts.binary_search_by_key(&task, |part| part.task).ok()?;
                outgoing.parts[place].is_open = true;
            }
            Some(Transfer::ScaleUp { .. }) => {}
        }
        transfer
    }

    /// Ends a task without a flow: its transfer, if it has one, has left.
    pub(super) fn left(&mut self, now: Time, task: u32) {
        self.computations_left -= 1;
        self.end(now, task);
    }

    /// Returns the number of a task of this host in the schedule.
    pub(super) fn number(&self, task: u32) -> TaskId {
        self.tasks[task as usize].number
    }

    /// Returns the bytes of a transfer through the scale-up network that ends here.
    pub(super) fn scaled_up_bytes(&self, task: TaskId) -> u64 {
        let place = self.scaled_up.binary_search_by_key(&task, |scaled_up| scaled_up.task);
        place.ok().and_then(|place| self.scaled_up.get(place)).map_or(0, |scaled_up| scaled_up.bytes)
    }

    /// Handles the arrival of a transfer through the scale-up network.
    pub(super) fn scaled_up(&mut self, task: TaskId) {
        self.computations_left -= 1;
        let waiting = self.scaled_up_mut(task).map(|scaled_up| std::mem::take(&mut scaled_up.waiting));
        waiting.into_iter().flatten().for_each(|task| self.release(task));
    }

    fn scaled_up_mut(&mut self, task: TaskId) -> Option<&mut ScaledUp> {
        let place = self.scaled_up.binary_search_by_key(&task, |scaled_up| scaled_up.task).ok()?;
        self.scaled_up.get_mut(place)
    }

    /// Returns the bytes that can be posted of a flow that begins here, of which `posted` bytes have been
    /// posted.
    pub(super) fn open(&mut self, flow: u32, posted: u64) -> Option<Open> {
        let outgoing = self.outgoing_mut(flow)?;
        while outgoing.parts.get(outgoing.posted).is_some_and(|part| part.end <= posted) {
            outgoing.posted += 1;
        }
        let part = outgoing.parts.get(outgoing.posted).filter(|part| part.is_open)?;
        let signal = part.signals.then_some(outgoing.posted as u32);
        Some(Open { left: part.end - posted, signal })
    }

    /// Handles the acknowledgement of the first `bytes` bytes of a flow that begins here.
    pub(super) fn acknowledged(&mut self, now: Time, flow: u32, bytes: u64) {
        while let Some(outgoing) = self.outgoing_mut(flow)
            && let Some(part) = outgoing.parts.get(outgoing.acknowledged).copied()
            && part.end <= bytes
        {
            let message = outgoing.acknowledged as u32;
            outgoing.acknowledged += 1;
            if part.task == NO_TASK {
                self.news.push(News::Acknowledged { flow, message });
            } else {
                self.end(now, part.task);
            }
        }
    }

    /// Handles the arrival of a transfer at this host.
    pub(super) fn arrived(&mut self, flow: u32, part: u32) {
        let Ok(place) = self.incoming.binary_search_by_key(&flow, |incoming| incoming.flow) else { return };
        if self.incoming[place].has_messages {
            return self.news.push(News::Arrived { flow, message: part });
        }
        let waiting = &self.incoming[place].waiting;
        let first = waiting.partition_point(|(other, _)| *other < part);
        let last = first + waiting[first..].partition_point(|(other, _)| *other == part);
        for waiter in first..last {
            let (_, task) = self.incoming[place].waiting[waiter];
            self.release(task);
        }
    }

    /// Notes that one dependency of a task is complete.
    fn release(&mut self, task: u32) {
        let waits = &mut self.tasks[task as usize].waits;
        *waits -= 1;
        if *waits == 0 {
            self.ready.push_back(task);
        }
    }

    fn end(&mut self, now: Time, task: u32) {
        let local = &mut self.tasks[task as usize];
        local.ended = Some(now);
        let (begin, end) = local.dependents;
        for place in begin..end {
            self.release(self.dependents[place as usize]);
        }
    }

    /// Adds a flow of messages that begins here. Its number is larger than those of earlier flows.
    pub(super) fn add_outgoing(&mut self, flow: u32) {
        self.outgoing.push(Outgoing { flow, parts: Vec::new(), posted: 0, acknowledged: 0 });
    }

    /// Adds a flow of messages that ends here. Its number is larger than those of earlier flows.
    pub(super) fn add_incoming(&mut self, flow: u32) {
        self.incoming.push(Incoming { flow, waiting: Vec::new(), has_messages: true });
    }

    /// Adds a message at the end of a flow that begins here, and returns its number.
    pub(super) fn add_message(&mut self, flow: u32, bytes: u64) -> Option<u32> {
        let parts = &mut self.outgoing_mut(flow)?.parts;
        let begin = parts.last().map_or(0, |part| part.end);
        parts.push(Part { task: NO_TASK, end: begin + bytes, is_open: true, signals: true });
        Some((parts.len() - 1) as u32)
    }

    /// Moves the news of this host to the end of `news`.
    #[inline]
    pub(super) fn move_news(&mut self, news: &mut Vec<News>) {
        news.append(&mut self.news);
    }

    fn outgoing_mut(&mut self, flow: u32) -> Option<&mut Outgoing> {
        let place = self.outgoing.binary_search_by_key(&flow, |outgoing| outgoing.flow).ok()?;
        self.outgoing.get_mut(place)
    }
}

#[cfg(test)]
mod tests {
    use super::super::workload::{Task, Transfer};
    use super::*;

    fn flow(source: u32, destination: u32, bytes: u64) -> FlowSpec {
        FlowSpec { source, destination, bytes, start: Time::ZERO }
    }

    fn task(host: u32, transfer: Option<(u32, u64)>) -> Task {
        let transfer = transfer.map(|(flow, bytes)| Transfer::Flow { flow, bytes });
        Task { host, earliest: Time::ZERO, compute: Time::ZERO, transfer }
    }

    fn ready(agenda: &mut Agenda) -> Vec<u32> {
        std::iter::from_fn(|| agenda.next_ready()).map(|ready| ready.task).collect()
    }

    /// Host 0 sends two parts to host 1; the second one waits for a computation. Host 1 waits for the first
    /// part, then answers. Host 0 waits for the answer and for its own sends.
    fn exchange() -> Vec<Agenda> {
        let flows = [flow(0, 1, 30), flow(1, 0, 5)];
        let mut schedule = Schedule::new();
        let first = schedule.add(task(0, Some((0, 10))), &[]).unwrap();
        let computation = schedule.add(task(0, None), &[]).unwrap();
        let second = schedule.add(task(0, Some((0, 20))), &[After::Done(computation)]).unwrap();
        let answer = schedule.add(task(1, Some((1, 5))), &[After::Arrival(first)]).unwrap();
        let all = [After::Done(first), After::Done(second), After::Arrival(answer)];
        schedule.add(task(0, None), &all).unwrap();
        schedule.check(&flows, 2, None).unwrap();
        Agenda::distribute(&schedule, &flows, 2)
    }

    #[test]
    fn parts_are_posted_in_order_and_only_when_open() {
        let [mut agenda, _] = <[Agenda; 2]>::try_from(exchange()).unwrap();
        assert_eq!(ready(&mut agenda), [0, 1]);
        assert_eq!(agenda.open(0, 0), None);
        assert_eq!(agenda.computed(Time::ZERO, 0).and_then(Transfer::flow), Some(0));
        // The peer waits for the first part, so that part is signalled. The peer does not wait for the second
        // part.
        assert_eq!(agenda.open(0, 0), Some(Open { left: 10, signal: Some(0) }));
        assert_eq!(agenda.open(0, 4), Some(Open { left: 6, signal: Some(0) }));
        assert_eq!(agenda.open(0, 10), None, "the second part waits");
        assert_eq!(agenda.computations_left(), 2);
        assert_eq!(agenda.computed(Time::from_us(3), 1), None);
        assert_eq!((agenda.computations_left(), ready(&mut agenda)), (1, vec![2]));
        assert_eq!(agenda.computed(Time::from_us(3), 2).and_then(Transfer::flow), Some(0));
        assert_eq!(agenda.open(0, 10), Some(Open { left: 20, signal: None }));
        assert_eq!(agenda.open(0, 30), None);
        assert_eq!(agenda.open(7, 0), None, "a flow without transfers");
    }

    #[test]
    fn messages_are_parts_that_are_open_and_news_when_they_are_complete() {
        let (mut sender, mut receiver) = (Agenda::default(), Agenda::default());
        sender.add_outgoing(3);
        receiver.add_incoming(3);
        assert_eq!((sender.add_message(3, 10), sender.add_message(3, 5)), (Some(0), Some(1)));
        assert_eq!(sender.add_message(4, 5), None, "there is no such flow");
        assert!(receiver.watches(3));
        assert_eq!(sender.open(3, 4), Some(Open { left: 6, signal: Some(0) }));
        assert_eq!(sender.open(3, 10), Some(Open { left: 5, signal: Some(1) }));
        assert_eq!(sender.open(3, 15), None);
        sender.acknowledged(Time::from_us(1), 3, 9);
        receiver.arrived(3, 0);
        let mut news = Vec::new();
        sender.move_news(&mut news);
        receiver.move_news(&mut news);
        assert_eq!(news, [News::Arrived { flow: 3, message: 0 }]);
        sender.acknowledged(Time::from_us(2), 3, 15);
        sender.move_news(&mut news);
        assert_eq!(news[1..], [0, 1].map(|message| News::Acknowledged { flow: 3, message }));
        assert_eq!(sender.ends().count(), 0);
    }

    #[test]
    fn a_task_begins_when_everything_has_happened() {
        let [mut agenda, mut peer] = <[Agenda; 2]>::try_from(exchange()).unwrap();
        assert!(peer.watches(0) && !peer.watches(1) && agenda.watches(1));
        assert_eq!(ready(&mut peer), [0; 0]);
        peer.arrived(0, 1);
        peer.arrived(5, 0);
        assert_eq!(ready(&mut peer), [0; 0], "nothing waits for the second part");
        peer.arrived(0, 0);
        assert_eq!(ready(&mut peer), [0]);

        ready(&mut agenda);
        agenda.computed(Time::ZERO, 1);
        ready(&mut agenda);
        agenda.arrived(1, 0);
        agenda.acknowledged(Time::from_us(1), 0, 9);
        assert_eq!(agenda.ends().count(), 1);
        agenda.acknowledged(Time::from_us(2), 0, 29);
        assert_eq!(ready(&mut agenda), [0; 0]);
        agenda.acknowledged(Time::from_us(4), 0, 30);
        assert_eq!(ready(&mut agenda), [3]);
        let ends: Vec<_> = agenda.ends().collect();
        assert_eq!(ends, [(0, Time::from_us(2)), (1, Time::ZERO), (2, Time::from_us(4))]);
    }
}
