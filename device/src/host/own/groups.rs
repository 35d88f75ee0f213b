//! Membership of multicast groups: the reports that snooping bridges and multicast routers expect (IGMPv2,
//! RFC 2236, and MLDv2, RFC 3810).

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use roce_packet::MacAddr;
use roce_transport::Instant;

use super::messages::Change;

/// Maximum number of groups of a host.
pub(super) const CAPACITY: usize = 64;
/// A join is reported twice, because a report may get lost (robustness variable minus one, RFC 3810 9.1).
const REPORTS: u8 = 2;
/// Time between the two reports (RFC 3810 9.11).
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Membership {
    group: IpAddr,
    /// Number of joins minus number of leaves.
    joined: usize,
    reports_left: u8,
    change: Change,
    /// When the next report is due.
    due: Option<Instant>,
}

/// The groups of a host.
#[derive(Debug, Default)]
pub(super) struct Groups {
    members: Vec<Membership>,
    left: Vec<IpAddr>,
}

impl Groups {
    /// Joins or leaves a group. The host stays a member until each join has been matched by a leave.
    ///
    /// # Errors
    ///
    /// Fails if the address is not a group, there are too many groups, or the group was not joined.
    pub(super) fn set(&mut self, group: IpAddr, join: bool) -> io::Result<()> {
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if !group.is_multicast() {
            return invalid(format!("{group} is not a multicast group"));
        }
        let known = self.members.iter().position(|member| member.group == group);
        let is_full = self.members.len() >= CAPACITY;
        match (known.and_then(|place| self.members.get_mut(place)), join) {
            (Some(member), true) => member.joined += 1,
            (Some(member), false) if member.joined > 1 => member.joined -= 1,
            (Some(_), false) => {
                self.members.retain(|member| member.group != group);
                self.left.push(group);
            }
            (None, false) => return invalid(format!("{group} has not been joined")),
            (None, true) if is_full => {
                let text = format!("a host is in {CAPACITY} multicast groups at most");
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
            }
            (None, true) => self.members.push(Membership {
                group,
                joined: 1,
                reports_left: REPORTS,
                change: Change::Joined,
                due: Some(Instant::ZERO),
            }),
        }
        Ok(())
    }

    /// Handles a query for the members of `group` (`None`: all groups), which requests reports within
    /// `within`. Each host and group waits for a different part of that time, so that answers are spread.
    pub(super) fn handle_query(
        &mut self,
        now: Instant,
        mac: MacAddr,
        group: Option<IpAddr>,
        is_ipv4: bool,
        within: Duration,
    ) {
        for member in &mut self.members {
            if member.group.is_ipv4() != is_ipv4 || group.is_some_and(|group| group != member.group) {
                continue;
            }
            let due = now + within.mul_f64(share(mac, member.group));
            if member.due.is_none() {
                member.change = Change::Member;
                member.reports_left = 1;
                member.due = Some(due);
            }
        }
    }

    /// Returns the next report to send.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(IpAddr, Change)> {
        if let Some(group) = self.left.pop() {
            return Some((group, Change::Left));
        }
        let is_due = |member: &&mut Membership| member.due.is_some_and(|due| due <= now);
        let member = self.members.iter_mut().find(is_due)?;
        member.reports_left = member.reports_left.saturating_sub(1);
        member.due = (member.reports_left > 0).then(|| now + REPEAT_INTERVAL);
        Some((member.group, member.change))
    }

    /// Returns when [`poll`](Self::poll) has a report.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.left.is_empty() {
            self.members.iter().filter_map(|member| member.due).min()
        } else {
            Some(Instant::ZERO)
        }
    }
}

/// Returns a number from 0 to 1 that differs between hosts and between groups.
fn share(mac: MacAddr, group: IpAddr) -> f64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    add(&mac.0);
    match group {
        IpAddr::V4(group) => add(&group.octets()),
        IpAddr::V6(group) => add(&group.octets()),
    }
    (hash >> 32) as f64 / f64::from(u32::MAX)
}
