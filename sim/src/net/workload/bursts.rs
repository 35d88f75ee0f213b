//! Incasts: several hosts send to one host at the same time, once or periodically.

use rand_pcg::Pcg32;

use super::{FlowSpec, MAX_FLOWS, WorkloadError, below, check_hosts};
use crate::net::time::Time;
use roce_fault::random::generator;

/// One incast, or several at equal periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incasts<'a> {
    /// The hosts from which the senders are chosen.
    pub hosts: &'a [u32],
    /// The number of senders of one incast.
    pub degree: u32,
    /// The receiver, or `None` for a random host in each incast.
    pub receiver: Option<u32>,
    /// Bytes of each flow.
    pub bytes: u64,
    /// The start of the first incast.
    pub start: Time,
    /// The time between the starts of two consecutive incasts.
    pub period: Time,
    /// The number of incasts.
    pub count: u32,
    /// The seed for random senders in each incast. `None` selects the first hosts of the list other than the
    /// receiver.
    pub shuffle: Option<u64>,
}

/// Returns the flows of incasts in the order of their starts.
///
/// # Errors
///
/// Returns an error if there are too few hosts or too many flows, or if a random receiver has no seed.
pub fn incasts(what: &Incasts<'_>) -> Result<Vec<FlowSpec>, WorkloadError> {
    let degree = what.degree as usize;
    // The receiver is one of the hosts, unless it is given and not in the list.
    let is_inside = what.receiver.is_none_or(|receiver| what.hosts.contains(&receiver));
    let needed = what.degree.saturating_add(u32::from(is_inside));
    check_hosts(what.hosts.len() as u32, needed, &format!("an incast of {degree}"))?;
    if u64::from(what.count) * u64::from(what.degree) > MAX_FLOWS as u64 {
        let (count, degree) = (what.count, what.degree);
        return Err(WorkloadError(format!("{count} incasts of {degree} are more than {MAX_FLOWS} flows")));
    }
    let mut flows = Vec::new();
    let mut order = what.hosts.to_vec();
    for round in 0..what.count {
        let start = what.start + Time::from_ps(what.period.as_ps().saturating_mul(round.into()));
        if let Some(seed) = what.shuffle {
            order.copy_from_slice(what.hosts);
            draw(&mut order, degree + 1, &mut generator(seed, 0x93_0000_0000 + u64::from(round)));
        }
        let random = what.shuffle.and_then(|_| order.first().copied());
        let Some(destination) = what.receiver.or(random) else {
            return Err(WorkloadError("an incast needs a receiver, or a seed for random ones".to_owned()));
        };
        let senders = order.iter().copied().filter(|host| *host != destination).take(degree);
        flows.extend(senders.map(|source| FlowSpec { source, destination, bytes: what.bytes, start }));
    }
    Ok(flows)
}

/// Moves `count` random elements to the front.
fn draw(order: &mut [u32], count: usize, random: &mut Pcg32) {
    for place in 0..count.min(order.len()) {
        let left = (order.len() - place) as u64;
        order.swap(place, place + below(random, left) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [u32; 5] = [3, 4, 7, 8, 9];
    const ONE: Incasts<'_> = Incasts {
        hosts: &HOSTS,
        degree: 3,
        receiver: Some(4),
        bytes: 10,
        start: Time::from_us(1),
        period: Time::from_us(5),
        count: 1,
        shuffle: None,
    };

    #[test]
    fn periods_and_fixed_hosts() {
        let flows = incasts(&Incasts { count: 2, ..ONE }).unwrap();
        let sources: Vec<u32> = flows.iter().map(|flow| flow.source).collect();
        assert_eq!(sources, [3, 7, 8, 3, 7, 8]);
        assert!(flows.iter().all(|flow| flow.destination == 4));
        assert_eq!((flows[2].start, flows[3].start), (Time::from_us(1), Time::from_us(6)));
        let outside = incasts(&Incasts { receiver: Some(0), degree: 5, ..ONE }).unwrap();
        assert_eq!(outside.len(), 5, "the receiver need not be in the list");
    }

    #[test]
    fn random_hosts_differ_and_repeat() {
        let what = Incasts { receiver: None, shuffle: Some(7), count: 50, degree: 4, ..ONE };
        let flows = incasts(&what).unwrap();
        assert_eq!(flows, incasts(&what).unwrap());
        for round in flows.chunks(4) {
            let mut hosts: Vec<u32> = round.iter().map(|flow| flow.source).collect();
            hosts.push(round[0].destination);
            hosts.sort_unstable();
            assert_eq!(hosts, HOSTS, "every host is in an incast of all");
        }
        for host in HOSTS {
            assert!(flows.iter().any(|flow| flow.destination == host), "host {host} is never the receiver");
        }
        let to_one = incasts(&Incasts { shuffle: Some(7), count: 50, degree: 1, ..ONE }).unwrap();
        assert!(to_one.iter().all(|flow| flow.destination == 4 && flow.source != 4));
    }

    #[test]
    fn impossible_incasts() {
        let message = |what: Incasts<'_>| incasts(&what).unwrap_err().to_string();
        assert_eq!(
            message(Incasts { degree: 5, ..ONE }),
            "an incast of 5 needs at least 6 hosts, there are 5"
        );
        assert_eq!(
            message(Incasts { degree: 6, receiver: Some(0), ..ONE }),
            "an incast of 6 needs at least 6 hosts, there are 5"
        );
        assert_eq!(
            message(Incasts { degree: 5, receiver: None, shuffle: Some(1), ..ONE }),
            "an incast of 5 needs at least 6 hosts, there are 5"
        );
        assert!(message(Incasts { count: u32::MAX, ..ONE }).contains("are more than"));
        assert!(message(Incasts { receiver: None, ..ONE }).contains("a seed for random ones"));
    }
}
