//! Schedules: tasks of hosts that wait for each other.
//!
//! A task is a computation, a transfer of some bytes of a flow, or a computation followed by a transfer. It
//! begins when all its dependencies are complete. A dependency must be observable at the task's own host, as
//! for a program there: the end of another task of this host, or the arrival of a transfer at this host.

use super::{FlowSpec, MAX_FLOWS, WorkloadError};
use crate::net::time::Time;
use crate::net::topology::ScaleUp;

/// The number of a task, from 0, in the order in which tasks were added.
pub type TaskId = u32;

/// The largest number of tasks of a schedule.
pub const MAX_TASKS: usize = 1 << 23;

/// A task of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The number of the host.
    pub host: u32,
    /// The earliest begin of the task.
    pub earliest: Time,
    /// The time of computation before the transfer, or 0.
    pub compute: Time,
    /// The transfer after the computation. Without a transfer, the task ends with the computation.
    pub transfer: Option<Transfer>,
}

/// Bytes that a task sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// A part of a flow. The parts of a flow are posted in the order of their tasks.
    Flow {
        /// The number of the flow, which begins at the host of the task.
        flow: u32,
        /// The number of bytes.
        bytes: u64,
    },
    /// A transfer through the [scale-up network](crate::net::ScaleUp). The task ends when the last byte has
    /// left.
    ScaleUp {
        /// The receiver, in the domain of the task's host.
        to: u32,
        /// The number of bytes.
        bytes: u64,
    },
}

impl Transfer {
    /// Returns the number of the flow.
    #[must_use]
    pub const fn flow(self) -> Option<u32> {
        match self {
            Self::Flow { flow, .. } => Some(flow),
            Self::ScaleUp { .. } => None,
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Flow { bytes, .. } | Self::ScaleUp { bytes, .. } => bytes,
        }
    }

    /// Returns the host where it ends, if its flow exists.
    fn destination(self, flows: &[FlowSpec]) -> Option<u32> {
        match self {
            Self::Flow { flow, .. } => flows.get(flow as usize).map(|flow| flow.destination),
            Self::ScaleUp { to, .. } => Some(to),
        }
    }
}

/// A dependency of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The end of a task of the same host: of its computation, or the acknowledgement of its transfer. A
    /// transfer through the scale-up network ends when it has left.
    Done(TaskId),
    /// The arrival of the last byte of the transfer of a task at this host.
    Arrival(TaskId),
}

impl After {
    /// Returns the task.
    #[must_use]
    pub const fn task(self) -> TaskId {
        match self {
            Self::Done(task) | Self::Arrival(task) => task,
        }
    }
}

/// The tasks of all hosts and their dependencies.
///
/// ```
/// use roce_sim::net::{After, FlowSpec, LinkSpec, Schedule, Settings, Simulation, Task, Time, Topology, Transfer};
///
/// // h0 sends to h1, which computes for 5 µs when everything has arrived, and then answers.
/// let flow = |source, destination| FlowSpec { source, destination, bytes: 1_000, start: Time::ZERO };
/// let flows = [flow(0, 1), flow(1, 0)];
/// let task = |host, compute, flow| Task {
///     host,
///     earliest: Time::ZERO,
///     compute,
///     transfer: Some(Transfer::Flow { flow, bytes: 1_000 }),
/// };
/// let mut schedule = Schedule::new();
/// let question = schedule.add(task(0, Time::ZERO, 0), &[])?;
/// schedule.add(task(1, Time::from_us(5), 1), &[After::Arrival(question)])?;
/// let topology = Topology::point_to_point(LinkSpec::DEFAULT);
/// let mut simulation = Simulation::with_schedule(&topology, &flows, &schedule, Settings::default())?;
/// simulation.run_to_end();
/// let results = simulation.results();
/// // The question needs 1 µs and the time of its packet; the answer is sent 5 µs later.
/// assert!(results.flows[1].spec.start > Time::from_us(6) && results.flows[1].spec.start < Time::from_ns(6_200));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    tasks: Vec<Task>,
    after: Vec<After>,
    /// The end of the range of `after` that belongs to each task.
    ends: Vec<u32>,
}

impl Schedule {
    /// Creates a schedule without tasks.
    #[must_use]
    pub const fn new() -> Self {
        Self { tasks: Vec::new(), after: Vec::new(), ends: Vec::new() }
    }

    /// Adds a task and its dependencies. Tasks can depend only on tasks that were added before.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many tasks or dependencies.
    pub fn add(&mut self, task: Task, after: &[After]) -> Result<TaskId, WorkloadError> {
        let most = 8 * MAX_TASKS;
        if self.tasks.len() >= MAX_TASKS || self.after.len() + after.len() > most {
            let reason = format!("a schedule has at most {MAX_TASKS} tasks and {most} dependencies");
            return Err(WorkloadError(reason));
        }
        self.tasks.push(task);
        self.after.extend_from_slice(after);
        self.ends.push(self.after.len() as u32);
        Ok((self.tasks.len() - 1) as TaskId)
    }

    /// Returns all tasks in the order of their numbers.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Returns the flow of each transfer that has one.
    pub(in crate::net) fn flows(&self) -> impl Iterator<Item = u32> {
        self.tasks.iter().filter_map(|task| task.transfer?.flow())
    }

    /// Returns the number of transfers through the scale-up network.
    pub(in crate::net) fn scale_up_transfers(&self) -> usize {
        let is_scale_up = |task: &&Task| matches!(task.transfer, Some(Transfer::ScaleUp { .. }));
        self.tasks.iter().filter(is_scale_up).count()
    }

    /// Returns the dependencies of a task.
    #[must_use]
    pub fn after(&self, task: TaskId) -> &[After] {
        let task = task as usize;
        let end = |task: usize| self.ends.get(task).map_or(0, |end| *end as usize);
        let begin = task.checked_sub(1).map_or(0, end);
        self.after.get(begin..end(task)).unwrap_or_default()
    }

    /// Checks the tasks against the flows that they send. A flow with a transfer consists of transfers only.
    ///
    /// # Errors
    ///
    /// Returns the first impossible task, or the first flow whose size differs from the sum of its transfers.
    pub fn check(
        &self,
        flows: &[FlowSpec],
        hosts: u32,
        scale_up: Option<ScaleUp>,
    ) -> Result<(), WorkloadError> {
        debug_assert!(flows.len() <= MAX_FLOWS);
        let mut sums = vec![0_u64; flows.len()];
        for (number, task) in (0..).zip(&self.tasks) {
            let wrong = |reason: String| Err(WorkloadError(format!("task {number}: {reason}")));
            let host = task.host;
            if host >= hosts {
                return wrong(format!("there is no host {host}"));
            }
            match task.transfer {
                Some(transfer) if transfer.bytes() == 0 => {
                    return wrong("a transfer has at least 1 byte".to_owned());
                }
                Some(Transfer::Flow { flow: number, bytes }) => {
                    let Some(flow) = flows.get(number as usize) else {
                        return wrong(format!("there is no flow {number}"));
                    };
                    if flow.source != host {
                        return wrong(format!(
                            "flow {number} begins at host {}, so host {host} cannot send it",
                            flow.source
                        ));
                    }
                    let sum = &mut sums[number as usize];
                    *sum = sum.saturating_add(bytes);
                }
                Some(Transfer::ScaleUp { to, .. })
                    if to == host || to >= hosts || !scale_up.is_some_and(|it| it.joins(host, to)) =>
                {
                    return wrong(format!("no scale-up network joins host {host} to host {to}"));
                }
                _ => {}
            }
            for after in self.after(number) {
                self.check_after(number, host, *after, flows).or_else(wrong)?;
            }
        }
        for (number, (flow, sum)) in flows.iter().zip(sums).enumerate() {
            if sum > 0 && sum != flow.bytes {
                let reason = format!("flow {number}: its transfers are {sum} bytes, not {}", flow.bytes);
                return Err(WorkloadError(reason));
            }
        }
        Ok(())
    }

    fn check_after(&self, number: TaskId, host: u32, after: After, flows: &[FlowSpec]) -> Result<(), String> {
        let before = after.task();
        let Some(task) = self.tasks.get(before as usize).filter(|_| before < number) else {
            return Err(format!("it waits for task {before}, which is not before it"));
        };
        let destination = task.transfer.and_then(|transfer| transfer.destination(flows));
        match (after, destination) {
            (After::Done(_), _) if task.host == host => Ok(()),
            (After::Done(_), _) => Err(format!(
                "host {host} cannot see the end of task {before}, because host {} runs it; a task waits for tasks of its own \
                 host and for arrivals there",
                task.host
            )),
            (After::Arrival(_), Some(destination)) if destination == host => Ok(()),
            (After::Arrival(_), Some(destination)) => Err(format!(
                "host {host} cannot see the arrival of task {before}, because it ends at host {destination}; a task waits for \
                 tasks of its own host and for arrivals there"
            )),
            (After::Arrival(_), None) => {
                Err(format!("it waits for the arrival of task {before}, which sends nothing"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: u32, destination: u32) -> FlowSpec {
        FlowSpec { source, destination, bytes: 10, start: Time::ZERO }
    }

    fn sends(host: u32, flow: u32, bytes: u64) -> Task {
        let transfer = Some(Transfer::Flow { flow, bytes });
        Task { host, earliest: Time::ZERO, compute: Time::ZERO, transfer }
    }

    #[test]
    fn each_task_has_what_it_waits_for() {
        let mut schedule = Schedule::new();
        let a = schedule.add(sends(0, 0, 4), &[]).unwrap();
        let b = schedule.add(sends(0, 0, 6), &[After::Done(a)]).unwrap();
        let c = schedule.add(sends(1, 1, 10), &[After::Arrival(a), After::Arrival(b)]).unwrap();
        assert_eq!(schedule.after(a), []);
        assert_eq!(schedule.after(b), [After::Done(a)]);
        assert_eq!(schedule.after(c), [After::Arrival(a), After::Arrival(b)]);
        assert_eq!(schedule.after(99), []);
        schedule.check(&[flow(0, 1), flow(1, 2)], 3, None).unwrap();
    }

    #[test]
    fn what_a_host_cannot_see_is_refused() {
        let flows = [flow(0, 1), flow(1, 2), flow(2, 0)];
        let message = |first: Task, second: Task, after: After| {
            let mut schedule = Schedule::new();
            schedule.add(first, &[]).unwrap();
            schedule.add(second, &[after]).unwrap();
            schedule.check(&flows, 3, None).unwrap_err().to_string()
        };
        let seen = "a task waits for tasks of its own host and for arrivals there";
        assert_eq!(
            message(sends(0, 0, 10), sends(1, 1, 10), After::Done(0)),
            format!("task 1: host 1 cannot see the end of task 0, because host 0 runs it; {seen}")
        );
        assert_eq!(
            message(sends(0, 0, 10), sends(2, 2, 10), After::Arrival(0)),
            format!("task 1: host 2 cannot see the arrival of task 0, because it ends at host 1; {seen}")
        );
        let computes = Task { transfer: None, ..sends(1, 0, 0) };
        assert_eq!(
            message(computes, sends(1, 1, 10), After::Arrival(0)),
            "task 1: it waits for the arrival of task 0, which sends nothing"
        );
        assert_eq!(
            message(sends(0, 0, 10), sends(1, 1, 10), After::Arrival(1)),
            "task 1: it waits for task 1, which is not before it"
        );
        let wrong = |task: Task| {
            let mut schedule = Schedule::new();
            schedule.add(task, &[]).unwrap();
            schedule.check(&flows, 3, None).unwrap_err().to_string()
        };
        assert_eq!(wrong(sends(3, 0, 10)), "task 0: there is no host 3");
        assert_eq!(wrong(sends(0, 3, 10)), "task 0: there is no flow 3");
        assert_eq!(wrong(sends(1, 0, 10)), "task 0: flow 0 begins at host 0, so host 1 cannot send it");
        assert_eq!(wrong(sends(0, 0, 0)), "task 0: a transfer has at least 1 byte");
        assert_eq!(wrong(sends(0, 0, 9)), "flow 0: its transfers are 9 bytes, not 10");
    }
}
