//! Links and switches that fail and recover, and the routes of the network in the meantime.
//!
//! While a link is down, frames that its ends send are lost. Frames in flight arrive, and queues drain at the
//! link rate. Switches learn of a failure and of its end after a delay. Until then, they continue to forward
//! to the failed link, or to avoid the recovered link.

use std::sync::Arc;

use super::place::Place;
use super::route::{RouteError, Routes, check_size};
use super::settings::{Failed, Failure, RouteOverride};
use super::time::Time;
use super::topology::{NodeKind, Topology};

/// The maximum number of failures of a scenario.
pub const MAX_FAILURES: usize = 1_000;

/// A change of the network at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A link goes down.
    Down { link: u32 },
    /// A link recovers, unless another failure keeps it down.
    Up { link: u32 },
    /// The switches use these routes from now on.
    Routes { version: u32 },
}

/// All changes ordered by time, and the routes to which they refer. Each part of the network has a copy.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    pub(super) list: Arc<Vec<(Time, Change)>>,
    versions: Arc<Vec<Routes>>,
    current: usize,
}

impl Changes {
    /// Plans the changes of a network.
    pub(super) fn new(
        topology: &Topology,
        overrides: &[RouteOverride],
        failures: &[Failure],
    ) -> Result<Self, RouteError> {
        let (mut list, mut versions) = (Vec::new(), vec![Routes::new(topology, overrides)?]);
        // The state known to the switches: the number of failures of each link.
        let mut known = vec![0_u32; topology.links.len()];
        let mut steps: Vec<(Time, i8, usize)> = Vec::new();
        let failing: Vec<Vec<u32>> =
            failures.iter().map(|failure| links_of(topology, &failure.what)).collect::<Result<_, _>>()?;
        for (number, (failure, links)) in failures.iter().zip(&failing).enumerate() {
            for link in links.iter().copied() {
                list.push((failure.at, Change::Down { link }));
                list.push((failure.until, Change::Up { link }));
            }
            steps.push((failure.at + failure.reroute_after, 1, number));
            steps.push((failure.until + failure.reroute_after, -1, number));
        }
        steps.retain(|(time, ..)| *time != Time::NEVER);
        // Simultaneous failures come before recoveries, so that no count falls below zero.
        steps.sort_by_key(|(time, step, _)| (*time, -step));
        if !steps.is_empty() {
            check_size(topology, steps.len() + 1)?;
        }
        for (time, step, number) in steps {
            for link in &failing[number] {
                let count = &mut known[*link as usize];
                *count = count.saturating_add_signed(step.into());
            }
            let works = |link: u32| known[link as usize] == 0;
            list.push((time, Change::Routes { version: versions.len() as u32 }));
            versions.push(Routes::without(topology, overrides, works)?);
        }
        list.retain(|(time, _)| *time != Time::NEVER);
        list.sort_by_key(|(time, _)| *time);
        Ok(Self { list: Arc::new(list), versions: Arc::new(versions), current: 0 })
    }

    /// Replaces the number of each port in the whole network by its number in its part. Must be called before
    /// the changes are copied.
    pub(super) fn renumber(&mut self, ports: &[Place]) {
        for routes in Arc::get_mut(&mut self.versions).into_iter().flatten() {
            routes.renumber(ports);
        }
    }

    /// Returns the routes that the switches use now.
    #[inline]
    pub(super) fn routes(&self) -> &Routes {
        &self.versions[self.current]
    }

    /// Returns the routes without failures.
    pub(super) fn routes_of_all(&self) -> &Routes {
        &self.versions[0]
    }

    pub(super) fn reroute(&mut self, version: u32) {
        self.current = (version as usize).min(self.versions.len() - 1);
    }
}

/// Checks failures.
///
/// # Errors
///
/// Returns the number of the first impossible failure, and the reason.
pub fn check_failures(topology: &Topology, failures: &[Failure]) -> Result<(), (usize, RouteError)> {
    for (number, failure) in failures.iter().enumerate() {
        let wrong = |reason: &str| (number, RouteError::Failure { reason: reason.to_owned() });
        if number >= MAX_FAILURES {
            return Err(wrong("too many; the maximum is 1000"));
        }
        if failure.until <= failure.at {
            return Err(wrong("until: it must be later than at"));
        }
        links_of(topology, &failure.what).map_err(|error| (number, error))?;
    }
    Ok(())
}

/// Returns the links that fail.
fn links_of(topology: &Topology, what: &Failed) -> Result<Vec<u32>, RouteError> {
    let wrong = |reason: String| RouteError::Failure { reason };
    let find = |name: &str| {
        topology
            .node_named(name)
            .ok_or_else(|| wrong(format!("there is no host or switch {name}{}", topology.hint(name, None))))
    };
    let links = (0..).zip(&topology.links);
    match what {
        Failed::Links(one, other) => {
            let (one, other) = (find(one)?, find(other)?);
            let ends = [(one, other), (other, one)];
            let found: Vec<u32> = links
                .filter(|(_, link)| ends.contains(&(link.a, link.b)))
                .map(|(number, _)| number)
                .collect();
            if found.is_empty() {
                let name = |node: u32| topology.nodes[node as usize].name.clone();
                return Err(wrong(format!("there is no link between {} and {}", name(one), name(other))));
            }
            Ok(found)
        }
        Failed::Switch(name) => {
            let switch = find(name)?;
            if topology.nodes[switch as usize].kind != NodeKind::Switch {
                return Err(wrong(format!("{name} is not a switch; fail the link of a host instead")));
            }
            Ok(links
                .filter(|(_, link)| [link.a, link.b].contains(&switch))
                .map(|(number, _)| number)
                .collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::topology::LinkSpec;

    fn failure(what: Failed, at: u64, until: Time) -> Failure {
        Failure { what, at: Time::from_us(at), until, reroute_after: Time::from_us(2) }
    }

    fn link(one: &str, other: &str) -> Failed {
        Failed::Links(one.to_owned(), other.to_owned())
    }

    #[test]
    fn routes_follow_failures_after_a_time() {
        let topology = Topology::ring(3, 1, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        let names = |routes: &Routes, at: u32, to: u32| {
            let port = routes.ports(at, to).first().copied();
            port.map(|port| {
                let link = &topology.links[port as usize / 2];
                let other = if port % 2 == 0 { link.b } else { link.a };
                topology.nodes[other as usize].name.clone()
            })
        };
        let failures = [
            failure(link("s1", "s0"), 10, Time::from_us(20)),
            failure(Failed::Switch("s2".to_owned()), 13, Time::NEVER),
        ];
        check_failures(&topology, &failures).unwrap();
        let mut changes = Changes::new(&topology, &[], &failures).unwrap();
        let kinds: Vec<_> = changes
            .list
            .iter()
            .map(|(time, change)| (time.as_ns() / 1_000, matches!(change, Change::Routes { .. })))
            .collect();
        // s2 has two neighbours and a host.
        let expected = [
            (10, false),
            (12, true),
            (13, false),
            (13, false),
            (13, false),
            (15, true),
            (20, false),
            (22, true),
        ];
        assert_eq!(kinds, expected);
        let towards = |changes: &Changes| names(changes.routes(), 0, 1);
        assert_eq!(towards(&changes).as_deref(), Some("s1"));
        changes.reroute(1);
        assert_eq!(towards(&changes).as_deref(), Some("s2"), "the long way");
        changes.reroute(2);
        assert_eq!(towards(&changes), None, "no way is left");
        assert!(changes.routes_of_all().joins(0, 1));
        changes.reroute(3);
        assert_eq!(towards(&changes).as_deref(), Some("s1"));
        assert_eq!(names(changes.routes(), 0, 2), None, "h2 is lost for good");
        changes.reroute(u32::MAX);
        assert_eq!(towards(&changes).as_deref(), Some("s1"));
    }

    #[test]
    fn a_route_of_the_scenario_does_without_a_link_that_is_down() {
        let topology = Topology::ring(3, 1, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        let long = RouteOverride { at: "s0".into(), to: "h1".into(), via: vec!["s2".into(), "s1".into()] };
        let failures = [failure(link("s0", "s2"), 1, Time::NEVER)];
        let mut changes = Changes::new(&topology, &[long], &failures).unwrap();
        assert_eq!(changes.routes().ports(0, 1).len(), 2);
        changes.reroute(1);
        assert_eq!(changes.routes().ports(0, 1).len(), 1);
    }

    #[test]
    fn impossible_failures() {
        let topology = Topology::ring(3, 1, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        let cases = [
            (failure(link("s0", "s9"), 1, Time::NEVER), "there is no host or switch s9"),
            (failure(link("h0", "h1"), 1, Time::NEVER), "there is no link between h0 and h1"),
            (failure(Failed::Switch("h0".into()), 1, Time::NEVER), "h0 is not a switch"),
            (failure(link("h0", "s0"), 1, Time::from_us(1)), "until: it must be later than at"),
        ];
        for (failure, reason) in cases {
            let (number, error) = check_failures(&topology, &[failure]).unwrap_err();
            assert!(number == 0 && error.to_string().contains(reason), "{error}");
        }
        let many = vec![failure(link("h0", "s0"), 1, Time::NEVER); MAX_FAILURES + 1];
        assert_eq!(check_failures(&topology, &many).unwrap_err().0, MAX_FAILURES);
    }
}
