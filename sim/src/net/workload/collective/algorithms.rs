//! The algorithms of collective operations. `docs/reference/collectives.md` has the closed form of a ring.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Collective, Operation, OperationAlgorithm, OperationKind, Plan};
use crate::net::time::Time;
use crate::net::workload::{After, TaskId, WorkloadError};

impl Plan<'_> {
    /// Adds a collective operation among hosts. The operation begins at each host at the end of the host's
    /// task in `begins`. Returns the task of each host whose end is the end of the operation there.
    ///
    /// # Errors
    ///
    /// Returns an error if the algorithm does not apply, if there are too few hosts or bytes, or if there are
    /// too many tasks.
    pub fn collective(
        &mut self,
        what: &Collective<'_>,
        hosts: &[u32],
        begins: &[TaskId],
    ) -> Result<Vec<TaskId>, WorkloadError> {
        check(what, hosts, begins)?;
        let n = hosts.len();
        let mut run = Run {
            plan: self,
            hosts,
            begins,
            clear_to_send: what.clear_to_send,
            queue_pairs: what.queue_pairs,
            sent: vec![BTreeMap::new(); n],
            arrived: vec![BTreeMap::new(); n],
            to: vec![Vec::new(); n],
            turns: BTreeMap::new(),
        };
        let pieces = |bytes: u64| what.chunk.map_or(1, |chunk| bytes.div_ceil(chunk.max(1)));
        match (what.algorithm, what.kind) {
            (OperationAlgorithm::Ring, OperationKind::Broadcast) => {
                run.chain(what.bytes, pieces(what.bytes))?;
            }
            (OperationAlgorithm::Ring, kind) => {
                let rounds = if kind == OperationKind::AllReduce { 2 * (n - 1) } else { n - 1 };
                run.ring(what.bytes, pieces(share(what.bytes, n as u64, 0)), rounds)?;
            }
            (OperationAlgorithm::Tree, kind) => {
                run.tree(what.bytes, pieces(what.bytes), kind, &[false])?;
            }
            (OperationAlgorithm::DoubleTree, kind) => {
                run.tree(what.bytes, pieces(what.bytes.div_ceil(2)), kind, &[false, true])?;
            }
            (OperationAlgorithm::HalvingDoubling, kind) => run.halving_doubling(what.bytes, kind)?,
            (OperationAlgorithm::Pairwise, kind) => run.pairwise(what, kind)?,
            (OperationAlgorithm::Direct, kind) => run.direct(what, kind)?,
            (OperationAlgorithm::Hierarchical, kind) => {
                let part = share(what.bytes, n as u64, 0);
                run.hierarchical(what, kind, pieces(part))?;
            }
        }
        run.finish()
    }

    /// Adds a collective operation, and returns it with a name and the number of operations before it.
    ///
    /// # Errors
    ///
    /// Returns the error of [`Self::collective`].
    pub fn operation(
        &mut self,
        (name, iteration): (String, u32),
        what: &Collective<'_>,
        hosts: Arc<[u32]>,
        begins: Vec<TaskId>,
    ) -> Result<Operation, WorkloadError> {
        let ends = self.collective(what, &hosts, &begins)?;
        let Collective { kind, algorithm, bytes, .. } = *what;
        Ok(Operation { name, iteration, kind, algorithm: Some(algorithm), bytes, hosts, begins, ends })
    }
}

fn check(what: &Collective<'_>, hosts: &[u32], begins: &[TaskId]) -> Result<(), WorkloadError> {
    let wrong = |reason: String| Err(WorkloadError(reason));
    let (n, kind, algorithm) = (hosts.len(), what.kind, what.algorithm);
    let mut sorted = hosts.to_vec();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return wrong(format!("host {} is in the list twice", twice[0]));
    }
    if n < 2 || begins.len() != n {
        return wrong(format!("{} needs at least 2 hosts, not {n}", kind.name()));
    }
    if !algorithm.applies_to(kind) {
        return wrong(format!("{} has no algorithm {}", kind.name(), algorithm.name()));
    }
    if algorithm == OperationAlgorithm::HalvingDoubling && !n.is_power_of_two() {
        return wrong(format!("halving-doubling needs a power of two of hosts, not {n}"));
    }
    if what.bytes < n as u64 {
        return wrong(format!("{} bytes are less than one for each of the {n} hosts", what.bytes));
    }
    if what.chunk.is_some() && !algorithm.has_chunks(kind) {
        let reason = "has no chunks; ring, tree, double-tree and hierarchical have, except for all-to-all";
        return wrong(format!("{} {reason}", algorithm.name()));
    }
    if what.chunk == Some(0) {
        return wrong("a chunk has at least 1 byte".to_owned());
    }
    if what.clear_to_send == Some(0) || what.queue_pairs == 0 {
        return wrong("clear_to_send and queue_pairs are at least 1".to_owned());
    }
    match what.shares {
        None if what.combines => wrong("combines needs shares".to_owned()),
        Some(_) if kind != OperationKind::AllToAll => wrong(format!("{} cannot be uneven", kind.name())),
        Some(shares) if shares.len() != n => {
            wrong(format!("expected one share for each of the {n} hosts, found {}", shares.len()))
        }
        _ => Ok(()),
    }
}

/// Returns the size of part `number` if `bytes` are divided into `parts` parts. Sizes differ by at most one
/// byte and are at least one byte, because a transfer cannot be empty.
pub(super) fn share(bytes: u64, parts: u64, number: u64) -> u64 {
    (bytes / parts + u64::from(number < bytes % parts)).max(1)
}

/// An operation that is being added. Hosts are identified by rank, which is their index in the list.
pub(super) struct Run<'p, 'a, 'h> {
    pub(super) plan: &'p mut Plan<'a>,
    pub(super) hosts: &'h [u32],
    pub(super) begins: &'h [TaskId],
    clear_to_send: Option<u32>,
    queue_pairs: u32,
    /// The last transfer of each rank to, and from, each other rank, by queue pair. A queue pair completes
    /// and delivers in order, so the last transfer represents the previous ones.
    sent: Vec<BTreeMap<(usize, u32), TaskId>>,
    arrived: Vec<BTreeMap<(usize, u32), TaskId>>,
    /// All transfers to each rank, if they are cleared.
    to: Vec<Vec<TaskId>>,
    /// Number of transfers from one rank to another, if they take turns.
    turns: BTreeMap<(usize, usize), u32>,
}

impl Run<'_, '_, '_> {
    pub(super) fn send(
        &mut self,
        from: usize,
        to: usize,
        bytes: u64,
        after: &[After],
    ) -> Result<TaskId, WorkloadError> {
        let queue_pair = self.next_queue_pair(from, to);
        let mut all = Vec::with_capacity(after.len() + 2);
        // Later transfers of a queue pair are posted after its first transfer.
        if !self.sent[from].contains_key(&(to, queue_pair)) {
            all.push(After::Done(self.begins[from]));
        }
        all.extend_from_slice(after);
        if let Some(most) = self.clear_to_send {
            let mut ready = vec![After::Done(self.begins[to])];
            let earlier = self.to[to].len().checked_sub(most as usize);
            ready.extend(earlier.map(|earlier| After::Arrival(self.to[to][earlier])));
            let cleared = self.plan.clear_to_send(self.hosts[to], self.hosts[from], &ready)?;
            all.push(After::Arrival(cleared));
        }
        let task = self.plan.send_on(queue_pair, self.hosts[from], self.hosts[to], bytes, &all)?;
        self.sent[from].insert((to, queue_pair), task);
        self.arrived[to].insert((from, queue_pair), task);
        if self.clear_to_send.is_some() {
            self.to[to].push(task);
        }
        Ok(task)
    }

    /// Returns the queue pair of the next transfer. The scale-up network has none, so each transfer there
    /// counts as one of its own: it waits for no other.
    fn next_queue_pair(&mut self, from: usize, to: usize) -> u32 {
        let is_scale_up = self.plan.scale_up(self.hosts[from], self.hosts[to]).is_some();
        if self.queue_pairs <= 1 && !is_scale_up {
            return 0;
        }
        let turn = self.turns.entry((from, to)).or_default();
        let queue_pair = if is_scale_up { *turn } else { *turn % self.queue_pairs };
        *turn += 1;
        queue_pair
    }

    /// Adds a task of each host that waits for all transfers that it has sent and received so far.
    fn finish(self) -> Result<Vec<TaskId>, WorkloadError> {
        let Self { plan, hosts, begins, sent, arrived, .. } = self;
        let ranks = hosts.iter().zip(begins).zip(sent.iter().zip(&arrived));
        ranks
            .map(|((host, begin), (sent, arrived))| {
                let mut after = vec![After::Done(*begin)];
                after.extend(sent.values().map(|task| After::Done(*task)));
                after.extend(arrived.values().map(|task| After::Arrival(*task)));
                plan.compute(*host, Time::ZERO, &after)
            })
            .collect()
    }

    /// Adds rounds in which each rank sends the part that arrived in the previous round to the next rank.
    fn ring(&mut self, bytes: u64, pieces: u64, rounds: usize) -> Result<(), WorkloadError> {
        let n = self.hosts.len();
        let mut before: Vec<TaskId> = Vec::new();
        for round in 0..rounds {
            let mut tasks = Vec::with_capacity(n * pieces as usize);
            for piece in 0..pieces {
                for rank in 0..n {
                    let part = (rank + rounds * n - round) % n;
                    let size = share(share(bytes, n as u64, part as u64), pieces, piece);
                    let last = (rank + n - 1) % n;
                    let arrival = before.get(piece as usize * n + last).map(|task| After::Arrival(*task));
                    tasks.push(self.send(rank, (rank + 1) % n, size, arrival.as_slice())?);
                }
            }
            before = tasks;
        }
        Ok(())
    }

    /// Adds a chain: the first rank sends to the second one, and each rank forwards each piece.
    fn chain(&mut self, bytes: u64, pieces: u64) -> Result<(), WorkloadError> {
        for piece in 0..pieces {
            let mut before = None;
            for rank in 1..self.hosts.len() {
                let arrival = before.map(After::Arrival);
                before = Some(self.send(rank - 1, rank, share(bytes, pieces, piece), arrival.as_slice())?);
            }
        }
        Ok(())
    }

    /// Adds binary trees with equal parts of the data, piece by piece: up to the root unless it is a
    /// broadcast, then down. In a mirrored tree, the last rank is the root.
    fn tree(
        &mut self,
        bytes: u64,
        pieces: u64,
        kind: OperationKind,
        mirrored: &[bool],
    ) -> Result<(), WorkloadError> {
        let trees = mirrored.len() as u64;
        for piece in 0..pieces {
            for (number, mirrored) in (0..).zip(mirrored) {
                let size = share(share(bytes, trees, number), pieces, piece);
                let gathered = if kind == OperationKind::Broadcast {
                    Vec::new()
                } else {
                    self.reduce_to_root(size, *mirrored)?
                };
                self.broadcast_from_root(size, *mirrored, &gathered)?;
            }
        }
        Ok(())
    }

    /// Returns the rank at a place of a tree in level order: the children of place `p` are `2p + 1` and
    /// `2p + 2`.
    fn rank(&self, place: usize, mirrored: bool) -> usize {
        if mirrored { self.hosts.len() - 1 - place } else { place }
    }

    /// Adds the transfers up to the root, and returns the arrivals there.
    fn reduce_to_root(&mut self, size: u64, mirrored: bool) -> Result<Vec<After>, WorkloadError> {
        let n = self.hosts.len();
        let mut arrivals: Vec<Vec<After>> = vec![Vec::new(); n];
        for place in (1..n).rev() {
            let parent = (place - 1) / 2;
            let after = std::mem::take(&mut arrivals[place]);
            let (from, to) = (self.rank(place, mirrored), self.rank(parent, mirrored));
            let task = self.send(from, to, size, &after)?;
            arrivals[parent].push(After::Arrival(task));
        }
        Ok(arrivals.swap_remove(0))
    }

    fn broadcast_from_root(
        &mut self,
        size: u64,
        mirrored: bool,
        gathered: &[After],
    ) -> Result<(), WorkloadError> {
        let mut arrivals: Vec<Vec<After>> = vec![gathered.to_vec()];
        for place in 1..self.hosts.len() {
            let parent = (place - 1) / 2;
            let after = arrivals[parent].clone();
            let (from, to) = (self.rank(parent, mirrored), self.rank(place, mirrored));
            let task = self.send(from, to, size, &after)?;
            arrivals.push(vec![After::Arrival(task)]);
        }
        Ok(())
    }

    /// Adds exchanges at halved distances with halved parts, and at doubled distances with doubled parts.
    fn halving_doubling(&mut self, bytes: u64, kind: OperationKind) -> Result<(), WorkloadError> {
        let n = self.hosts.len();
        let halving = (0..n.ilog2()).rev().map(|bit| 1 << bit);
        let doubling = (0..n.ilog2()).map(|bit| 1 << bit);
        let distances: Vec<usize> = match kind {
            OperationKind::ReduceScatter => halving.collect(),
            OperationKind::AllGather => doubling.collect(),
            _ => halving.chain(doubling).collect(),
        };
        // A step begins at a rank when the data of all previous steps have arrived there.
        let mut arrivals: Vec<Vec<After>> = vec![Vec::new(); n];
        for distance in distances {
            let size = (u128::from(bytes) * distance as u128 / n as u128).max(1) as u64;
            let mut tasks = Vec::with_capacity(n);
            for (rank, arrivals) in arrivals.iter().enumerate() {
                tasks.push(self.send(rank, rank ^ distance, size, arrivals)?);
            }
            for (rank, arrivals) in arrivals.iter_mut().enumerate() {
                arrivals.push(After::Arrival(tasks[rank ^ distance]));
            }
        }
        Ok(())
    }

    /// Returns the size of the part of a rank.
    fn part(&self, what: &Collective<'_>, rank: usize) -> u64 {
        match what.shares {
            None => share(what.bytes, self.hosts.len() as u64, rank as u64),
            Some(shares) => ((what.bytes as f64 * shares[rank]) as u64).max(1),
        }
    }

    /// Returns the size of a transfer: the part of the sender if parts are gathered or combined,
    /// otherwise that of the receiver.
    pub(super) fn exchanged(&self, what: &Collective<'_>, from: usize, to: usize, gathers: bool) -> u64 {
        self.part(what, if gathers || what.combines { from } else { to })
    }

    /// Adds rounds in which each rank sends to one rank and receives from another.
    fn pairwise(&mut self, what: &Collective<'_>, kind: OperationKind) -> Result<(), WorkloadError> {
        let n = self.hosts.len();
        let passes: &[bool] = match kind {
            OperationKind::AllReduce => &[false, true],
            OperationKind::AllGather => &[true],
            _ => &[false],
        };
        let mut before: Option<(usize, Vec<TaskId>)> = None;
        for gathers in passes {
            for step in 1..n {
                let mut tasks = Vec::with_capacity(n);
                for rank in 0..n {
                    let to = (rank + step) % n;
                    let size = self.exchanged(what, rank, to, *gathers);
                    let mut after = Vec::new();
                    if let Some((last, tasks)) = &before {
                        after.push(After::Done(tasks[rank]));
                        after.push(After::Arrival(tasks[(rank + n - last) % n]));
                    }
                    tasks.push(self.send(rank, to, size, &after)?);
                }
                before = Some((step, tasks));
            }
        }
        Ok(())
    }

    /// Adds all transfers at once. In an all-reduce, the gathering transfers wait for all scattered parts.
    fn direct(&mut self, what: &Collective<'_>, kind: OperationKind) -> Result<(), WorkloadError> {
        let n = self.hosts.len();
        let mut after: Vec<Vec<After>> = vec![Vec::new(); n];
        if kind == OperationKind::AllReduce {
            self.exchange_all(what, false, &after)?;
            for (rank, after) in after.iter_mut().enumerate() {
                let arrivals: Vec<After> = self.arrived[rank].values().copied().map(After::Arrival).collect();
                let all = self.plan.compute(self.hosts[rank], Time::ZERO, &arrivals)?;
                after.push(After::Done(all));
            }
        }
        let gathers = matches!(kind, OperationKind::AllReduce | OperationKind::AllGather);
        self.exchange_all(what, gathers, &after)
    }

    fn exchange_all(
        &mut self,
        what: &Collective<'_>,
        gathers: bool,
        after: &[Vec<After>],
    ) -> Result<(), WorkloadError> {
        let n = self.hosts.len();
        for step in 1..n {
            for (rank, after) in after.iter().enumerate() {
                let to = (rank + step) % n;
                let size = self.exchanged(what, rank, to, gathers);
                self.send(rank, to, size, after)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::net::topology::ScaleUp;
    use crate::net::workload::{FlowSpec, Schedule, check as check_flows};
    use OperationAlgorithm as Algorithm;
    use OperationKind as Kind;

    const ALL: [(Kind, Algorithm); 15] = [
        (Kind::AllReduce, Algorithm::Ring),
        (Kind::AllReduce, Algorithm::Tree),
        (Kind::AllReduce, Algorithm::DoubleTree),
        (Kind::AllReduce, Algorithm::HalvingDoubling),
        (Kind::AllReduce, Algorithm::Pairwise),
        (Kind::AllReduce, Algorithm::Direct),
        (Kind::ReduceScatter, Algorithm::Ring),
        (Kind::ReduceScatter, Algorithm::HalvingDoubling),
        (Kind::ReduceScatter, Algorithm::Pairwise),
        (Kind::AllGather, Algorithm::Ring),
        (Kind::AllGather, Algorithm::HalvingDoubling),
        (Kind::AllGather, Algorithm::Direct),
        (Kind::AllToAll, Algorithm::Pairwise),
        (Kind::Broadcast, Algorithm::Ring),
        (Kind::Broadcast, Algorithm::Tree),
    ];

    fn built(what: &Collective<'_>, hosts: &[u32]) -> Result<(Vec<FlowSpec>, Schedule, Vec<TaskId>), String> {
        let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
        let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO);
        let begins: Vec<TaskId> =
            hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
        let ends = plan.collective(what, hosts, &begins).map_err(|error| error.to_string())?;
        Ok((flows, schedule, ends))
    }

    fn collective(kind: Kind, algorithm: Algorithm, bytes: u64) -> Collective<'static> {
        Collective::of(kind, algorithm, bytes, None)
    }

    /// Returns, for each host, the number of hosts whose data reached it, directly or through others.
    fn sources(schedule: &Schedule, flows: &[FlowSpec], hosts: usize, ends: &[TaskId]) -> Vec<usize> {
        let mut known: Vec<BTreeSet<u32>> = Vec::new();
        for (number, task) in (0..).zip(schedule.tasks()) {
            let mut set = BTreeSet::from([task.host]);
            for after in schedule.after(number) {
                set.extend(known[after.task() as usize].clone());
            }
            known.push(set);
        }
        assert_eq!((ends.len(), flows.is_empty()), (hosts, false));
        ends.iter().map(|end| known[*end as usize].len()).collect()
    }

    /// Every host ends with data of every other host, and every schedule is valid.
    #[test]
    fn the_data_of_all_hosts_reaches_all_hosts() {
        for (kind, algorithm) in ALL {
            for n in [2, 4, 8] {
                let hosts: Vec<u32> = (0..n).map(|rank| (rank * 2 + 1) % 9).collect();
                let what = collective(kind, algorithm, 10_000);
                let (flows, schedule, ends) = built(&what, &hosts).unwrap();
                check_flows(&flows, 9).unwrap();
                schedule.check(&flows, 9, None).unwrap();
                let known = sources(&schedule, &flows, n as usize, &ends);
                let expected = match kind {
                    Kind::Broadcast => 1,
                    _ => n as usize,
                };
                let name = (kind.name(), algorithm.name(), n);
                assert!(known.iter().all(|known| *known >= expected), "{name:?} {known:?}");
                let last = *known.last().unwrap();
                assert!(kind != Kind::Broadcast || last >= 2, "{name:?} {known:?}");
            }
        }
    }

    /// The data of each of 16 hosts in four domains reaches all of them.
    #[test]
    fn hierarchical_data_of_all_hosts_reaches_all_hosts() {
        let (hosts, rate_bps) = (4, 800_000_000_000);
        let scale_up = Some(ScaleUp { hosts, rate_bps, delay: Time::from_us(1) });
        let hosts: Vec<u32> = (0..16).rev().collect();
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather, Kind::AllToAll] {
            let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
            let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO).with_scale_up(scale_up);
            let begins: Vec<TaskId> =
                hosts.iter().map(|host| plan.compute(*host, Time::ZERO, &[]).unwrap()).collect();
            let what = collective(kind, Algorithm::Hierarchical, 10_000);
            let ends = plan.collective(&what, &hosts, &begins).unwrap();
            check_flows(&flows, 16).unwrap();
            schedule.check(&flows, 16, scale_up).unwrap();
            assert_eq!(sources(&schedule, &flows, 16, &ends), [16; 16], "{}", kind.name());
        }
    }

    /// Popular hosts receive much in a dispatch, and send much in a combine.
    #[test]
    fn what_is_dispatched_is_combined_the_other_way_round() {
        let shares = [0.5, 0.25, 0.125, 0.125];
        let scale_up = Some(ScaleUp { hosts: 2, rate_bps: 1, delay: Time::from_us(1) });
        for (algorithm, scale_up) in [(Algorithm::Direct, None), (Algorithm::Hierarchical, scale_up)] {
            let moved = |combines| {
                let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
                let mut plan = Plan::new(&mut flows, &mut schedule, Time::ZERO).with_scale_up(scale_up);
                let begins: Vec<TaskId> =
                    (0..4).map(|host| plan.compute(host, Time::ZERO, &[]).unwrap()).collect();
                let what = collective(Kind::AllToAll, algorithm, 8_000);
                let what = Collective { shares: Some(&shares), combines, ..what };
                plan.collective(&what, &[0, 1, 2, 3], &begins).unwrap();
                let mut pairs: Vec<_> =
                    flows.iter().map(|flow| (flow.source, flow.destination, flow.bytes)).collect();
                pairs.sort_unstable();
                pairs
            };
            let mut back: Vec<_> =
                moved(true).into_iter().map(|(from, to, bytes)| (to, from, bytes)).collect();
            back.sort_unstable();
            if algorithm == Algorithm::Direct {
                assert_eq!(moved(false), back);
                assert_eq!(moved(false)[0], (0, 1, 2_000));
            } else {
                // What two hosts send to the hosts of the other domain, and what they send back.
                assert_eq!(moved(false), [(0, 2, 2_000), (1, 3, 2_000), (2, 0, 8_000), (3, 1, 4_000)]);
                assert_eq!(moved(true), [(0, 2, 6_000), (1, 3, 6_000), (2, 0, 2_000), (3, 1, 2_000)]);
            }
        }
    }

    #[test]
    fn each_algorithm_sends_its_bytes() {
        let sent = |kind, algorithm, n: u32| {
            let hosts: Vec<u32> = (0..n).collect();
            let (flows, ..) = built(&collective(kind, algorithm, 80_000), &hosts).unwrap();
            let by = |host: u32| {
                flows.iter().filter(|flow| flow.source == host).map(|flow| flow.bytes).sum::<u64>()
            };
            (0..n).map(by).collect::<Vec<_>>()
        };
        // Each host must send at least 2 (n - 1) / n of the buffer.
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Pairwise, Algorithm::Direct]
        {
            assert_eq!(sent(Kind::AllReduce, algorithm, 8), [140_000; 8], "{}", algorithm.name());
        }
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Pairwise] {
            assert_eq!(sent(Kind::ReduceScatter, algorithm, 8), [70_000; 8], "{}", algorithm.name());
            assert_eq!(sent(Kind::AllGather, algorithm, 8), [70_000; 8], "{}", algorithm.name());
        }
        assert_eq!(sent(Kind::AllReduce, Algorithm::Tree, 4), [160_000, 160_000, 80_000, 80_000]);
        // The sum over both trees: inner hosts of one tree are leaves of the other.
        assert_eq!(sent(Kind::AllReduce, Algorithm::DoubleTree, 4), [120_000; 4]);
        assert_eq!(sent(Kind::Broadcast, Algorithm::Ring, 4), [80_000, 80_000, 80_000, 0]);
        assert_eq!(sent(Kind::Broadcast, Algorithm::Tree, 4), [160_000, 80_000, 0, 0]);
    }

    #[test]
    fn chunks_and_shares() {
        let hosts: Vec<u32> = (0..4).collect();
        let chunked =
            Collective { chunk: Some(1_000), ..collective(Kind::AllReduce, Algorithm::Ring, 10_000) };
        let (flows, schedule, _) = built(&chunked, &hosts).unwrap();
        assert_eq!(flows.iter().map(|flow| flow.bytes).sum::<u64>(), 60_000);
        // Four tasks each at the begin and at the end, and 6 rounds of 3 pieces of 2,500 bytes.
        assert_eq!(schedule.tasks().len(), 4 + 4 + 4 * 6 * 3);
        let shares = [0.5, 0.25, 0.25, 0.0];
        let uneven =
            Collective { shares: Some(&shares), ..collective(Kind::AllToAll, Algorithm::Direct, 1_000) };
        let (flows, ..) = built(&uneven, &hosts).unwrap();
        let to = |host: u32| flows.iter().find(|flow| flow.destination == host).unwrap().bytes;
        assert_eq!([to(0), to(1), to(2), to(3)], [500, 250, 250, 1]);
    }

    #[test]
    fn what_does_not_apply_is_refused() {
        let message = |what: Collective<'_>, n: u32| built(&what, &(0..n).collect::<Vec<_>>()).unwrap_err();
        let ring = collective(Kind::AllReduce, Algorithm::Ring, 1_000);
        assert_eq!(message(ring, 1), "all-reduce needs at least 2 hosts, not 1");
        assert_eq!(
            message(collective(Kind::AllToAll, Algorithm::Ring, 1_000), 4),
            "all-to-all has no algorithm ring"
        );
        assert_eq!(
            message(collective(Kind::AllReduce, Algorithm::HalvingDoubling, 1_000), 6),
            "halving-doubling needs a power of two of hosts, not 6"
        );
        assert_eq!(
            message(Collective { bytes: 3, ..ring }, 4),
            "3 bytes are less than one for each of the 4 hosts"
        );
        assert_eq!(
            message(Collective { chunk: Some(10), algorithm: Algorithm::Direct, ..ring }, 4),
            "direct has no chunks; ring, tree, double-tree and hierarchical have, except for all-to-all"
        );
        assert_eq!(message(Collective { chunk: Some(0), ..ring }, 4), "a chunk has at least 1 byte");
        assert_eq!(message(Collective { shares: Some(&[1.0; 4]), ..ring }, 4), "all-reduce cannot be uneven");
        assert_eq!(built(&ring, &[1, 2, 1]).unwrap_err(), "host 1 is in the list twice");
    }
}
