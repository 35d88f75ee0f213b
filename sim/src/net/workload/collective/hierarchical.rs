//! Collective operations on hosts with a scale-up network: `docs/reference/collectives.md`.
//!
//! The hosts form a matrix: each domain is a row, and the hosts with the same place in their domains are
//! a column. Rows use the scale-up network, and columns the other one. With a network of rails, each
//! column is a rail.

use std::collections::BTreeMap;

use super::algorithms::{Run, share};
use super::{Collective, OperationKind};
use crate::net::time::Time;
use crate::net::workload::{After, MAX_TASKS, TaskId, WorkloadError};

/// The arrivals at each host before a ring, by row and column.
type Arrivals = Vec<Vec<Vec<After>>>;

/// The ranks of an operation by row and column.
struct Matrix(Vec<Vec<usize>>);

impl Matrix {
    fn rows(&self) -> usize {
        self.0.len()
    }

    fn columns(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }
}

impl Run<'_, '_, '_> {
    /// Adds a hierarchical operation in this number of pieces.
    pub(super) fn hierarchical(
        &mut self,
        what: &Collective<'_>,
        kind: OperationKind,
        pieces: u64,
    ) -> Result<(), WorkloadError> {
        let matrix = self.matrix()?;
        if kind == OperationKind::AllToAll {
            return self.relay(what, &matrix);
        }
        if pieces.saturating_mul(self.hosts.len() as u64) > MAX_TASKS as u64 {
            let reason =
                format!("{pieces} pieces at each host are more than {MAX_TASKS} tasks: use longer chunks");
            return Err(WorkloadError(reason));
        }
        let sizes: Vec<u64> = (0..pieces).map(|piece| share(what.bytes, pieces, piece)).collect();
        let mut scattered = Vec::with_capacity(sizes.len());
        for size in &sizes {
            scattered.push(match kind {
                OperationKind::AllGather => vec![vec![Vec::new(); matrix.columns()]; matrix.rows()],
                _ => self.scatter(*size, &matrix)?,
            });
        }
        let passes = if kind == OperationKind::AllReduce { 2 } else { 1 };
        for column in 0..matrix.columns() {
            let ends = self.rings(&sizes, &matrix, column, passes, &scattered)?;
            if kind != OperationKind::ReduceScatter {
                self.spread(&sizes, &matrix, column, &ends)?;
            }
        }
        Ok(())
    }

    /// Returns the ranks by domain and place.
    fn matrix(&self) -> Result<Matrix, WorkloadError> {
        let mut rows: BTreeMap<u32, Vec<(u32, usize)>> = BTreeMap::new();
        for (rank, host) in self.hosts.iter().enumerate() {
            let Some((domain, place)) = self.plan.place(*host) else {
                return Err(WorkloadError("hierarchical needs a scale-up network".to_owned()));
            };
            rows.entry(domain).or_default().push((place, rank));
        }
        rows.values_mut().for_each(|row| row.sort_unstable());
        let places = |row: &[(u32, usize)]| row.iter().map(|(place, _)| *place).collect::<Vec<_>>();
        let mut all = rows.values().map(|row| places(row));
        let first = all.next().unwrap_or_default();
        if all.any(|other| other != first) {
            let reason = "hierarchical needs the same places of each scale-up domain";
            return Err(WorkloadError(reason.to_owned()));
        }
        let ranks = |row: Vec<(u32, usize)>| row.into_iter().map(|(_, rank)| rank).collect();
        Ok(Matrix(rows.into_values().map(ranks).collect()))
    }

    /// Adds the transfers with which the hosts of each row add their parts. Returns the arrivals at each
    /// host.
    fn scatter(&mut self, bytes: u64, matrix: &Matrix) -> Result<Arrivals, WorkloadError> {
        let columns = matrix.columns();
        let mut arrivals = vec![vec![Vec::new(); columns]; matrix.rows()];
        for (row, ranks) in matrix.0.iter().enumerate() {
            for step in 1..columns {
                for (column, rank) in ranks.iter().enumerate() {
                    let to = (column + step) % columns;
                    let size = share(bytes, columns as u64, to as u64);
                    let task = self.send(*rank, ranks[to], size, &[])?;
                    arrivals[row][to].push(After::Arrival(task));
                }
            }
        }
        Ok(arrivals)
    }

    /// Adds a ring in a column for pieces of these sizes. A host sends the first part of a piece when
    /// everything before has arrived there. One pass adds or gathers the parts of the hosts, and two
    /// passes do both. Returns the task of each host that ends when a piece is complete there.
    fn rings(
        &mut self,
        sizes: &[u64],
        matrix: &Matrix,
        column: usize,
        passes: usize,
        before: &[Arrivals],
    ) -> Result<Vec<Vec<TaskId>>, WorkloadError> {
        let rows = matrix.rows();
        let mut starts = Vec::with_capacity(sizes.len());
        for before in before {
            starts.push(self.each(matrix, column, |row| &before[row][column])?);
        }
        let mut arrivals: Vec<Vec<Vec<After>>> = vec![vec![Vec::new(); rows]; sizes.len()];
        for round in 0..passes * (rows - 1) {
            for ((size, starts), arrivals) in sizes.iter().zip(&starts).zip(&mut arrivals) {
                let of_column = share(*size, matrix.columns() as u64, column as u64);
                let mut sent = Vec::with_capacity(rows);
                for (row, start) in starts.iter().enumerate() {
                    let part = (row + 2 * rows - round) % rows;
                    let mut after = vec![After::Done(*start)];
                    after.extend(arrivals[row].last());
                    let (from, to) = (matrix.0[row][column], matrix.0[(row + 1) % rows][column]);
                    sent.push(self.send(from, to, share(of_column, rows as u64, part as u64), &after)?);
                }
                for (row, task) in sent.into_iter().enumerate() {
                    arrivals[(row + 1) % rows].push(After::Arrival(task));
                }
            }
        }
        let pieces = arrivals.iter().zip(starts);
        pieces
            .map(|(arrivals, starts)| {
                let after: Vec<Vec<After>> = arrivals
                    .iter()
                    .zip(starts)
                    .map(|(arrivals, start)| [&arrivals[..], &[After::Done(start)]].concat())
                    .collect();
                self.each(matrix, column, |row| &after[row])
            })
            .collect()
    }

    /// Adds a task of each host of a column that waits for these tasks and for its begin.
    fn each<'t>(
        &mut self,
        matrix: &Matrix,
        column: usize,
        after: impl Fn(usize) -> &'t Vec<After>,
    ) -> Result<Vec<TaskId>, WorkloadError> {
        let ranks = matrix.0.iter().enumerate();
        ranks
            .map(|(row, ranks)| {
                let begin = After::Done(self.begins[ranks[column]]);
                self.plan.compute(
                    self.hosts[ranks[column]],
                    Time::ZERO,
                    &[&after(row)[..], &[begin]].concat(),
                )
            })
            .collect()
    }

    /// Adds the transfers with which the hosts of a column tell their rows what they have.
    fn spread(
        &mut self,
        sizes: &[u64],
        matrix: &Matrix,
        column: usize,
        before: &[Vec<TaskId>],
    ) -> Result<(), WorkloadError> {
        let columns = matrix.columns();
        for (size, before) in sizes.iter().zip(before) {
            let size = share(*size, columns as u64, column as u64);
            for (ranks, before) in matrix.0.iter().zip(before) {
                for step in 1..columns {
                    let to = ranks[(column + step) % columns];
                    self.send(ranks[column], to, size, &[After::Done(*before)])?;
                }
            }
        }
        Ok(())
    }

    /// Adds an all-to-all in which the data for a host goes to the host of its own row in that column
    /// first, and from there, with what the rest of the row sends to the same host, through the column.
    /// For each row of receivers, this begins when the data for it has arrived from the own row.
    fn relay(&mut self, what: &Collective<'_>, matrix: &Matrix) -> Result<(), WorkloadError> {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        for step in (1..=rows).map(|step| step % rows) {
            for row in 0..rows {
                let other = (row + step) % rows;
                let mut arrivals = vec![Vec::new(); columns];
                for turn in 1..columns {
                    for (column, rank) in matrix.0[row].iter().enumerate() {
                        let to = (column + turn) % columns;
                        let bytes = self.exchanged(what, *rank, matrix.0[other][to], false);
                        let task = self.send(*rank, matrix.0[row][to], bytes, &[])?;
                        arrivals[to].push(After::Arrival(task));
                    }
                }
                if step == 0 {
                    continue;
                }
                for (column, after) in arrivals.into_iter().enumerate() {
                    let (from, to) = (matrix.0[row][column], matrix.0[other][column]);
                    let sizes = matrix.0[row].iter().map(|rank| self.exchanged(what, *rank, to, false));
                    let bytes = sizes.fold(0, u64::saturating_add);
                    self.send(from, to, bytes, &after)?;
                }
            }
        }
        Ok(())
    }
}
