//! Findings about changes of DSCP and ECN.

use super::directions::{Both, Direction};
use crate::finding::{Finding, Step};

impl Direction<'_> {
    /// Returns the number of packets whose sent and received traffic classes satisfy `is_it`.
    fn count(&self, is_it: impl Fn(u8, u8) -> bool) -> u32 {
        let them = self.seen.classes.iter().filter(|(sent, seen, _)| is_it(*sent, *seen));
        them.map(|(_, _, count)| count).sum()
    }
}

/// Returns sent and received values that differ after `look`, with their direction and their number.
fn changes(both: &Both, look: impl Fn(u8) -> u8) -> Vec<(String, u8, u8, u32)> {
    let mut found = Vec::new();
    for direction in both.directions() {
        for (sent, seen, count) in &direction.seen.classes {
            let (sent, seen) = (look(*sent), look(*seen));
            if sent != seen {
                found.push((direction.name(), sent, seen, *count));
            }
        }
    }
    found.sort();
    found.dedup_by(|next, first| {
        let is_same = (&next.0, next.1, next.2) == (&first.0, first.1, first.2);
        if is_same {
            first.3 += next.3;
        }
        is_same
    });
    found
}

/// Returns the finding whether the DSCP is kept.
pub(crate) fn dscp(both: &Both) -> Finding {
    let changed = changes(both, |class| class >> 2);
    if changed.is_empty() {
        return Finding::ok(Step::Dscp, "0, 26, 46 and 48 are kept in both directions");
    }
    let text: Vec<String> = changed
        .iter()
        .map(|(direction, sent, seen, _)| format!("{sent} becomes {seen} {direction}"))
        .collect();
    Finding::problem(
        Step::Dscp,
        text.join(", "),
        "a device on the path rewrites the DSCP, which moves RoCE into another queue without PFC and ECN: \
         make the ports on the path trust DSCP (on hosts `mlnx_qos -i IFNAME --trust dscp`, on switches `qos \
         trust dscp` or similar), and remove rules that set it (`iptables -t mangle -S`, `nft list ruleset`)",
    )
}

/// Returns the finding whether the ECN field is kept. Marks that a switch may set are not changes, but an
/// idle network sets none.
pub(crate) fn ecn(both: &Both) -> Finding {
    let changed = changes(both, |class| class & 3);
    let (marked, rewritten): (Vec<_>, Vec<_>) =
        changed.into_iter().partition(|(_, sent, seen, _)| matches!(sent, 1 | 2) && *seen == 3);
    if let Some(finding) = marks_everything(both).or_else(|| rewrites(&rewritten)) {
        return finding;
    }
    if marked.is_empty() {
        return Finding::ok(
            Step::Ecn,
            "every code point is kept in both directions, and no packet is marked",
        );
    }
    let mut is_much = false;
    let mut text = Vec::new();
    for direction in both.directions() {
        let capable =
            |sent: u8, seen: Option<u8>| matches!(sent & 3, 1 | 2) && seen.is_none_or(|seen| seen & 3 == 3);
        let (marks, all) = (
            direction.count(|sent, seen| capable(sent, Some(seen))),
            direction.count(|sent, _| capable(sent, None)),
        );
        if marks > 0 {
            is_much |= 2 * marks >= all;
            text.push(format!("{marks} of {all} packets were marked CE {}", direction.name()));
        }
    }
    let text = text.join(", ");
    if is_much {
        return Finding::problem(
            Step::Ecn,
            text,
            "the link is busy, or the marking threshold (Kmin) of a queue is far too low: raise Kmin at the \
             switch ports on the path (to about 100 KB at 25 Gb/s), or repeat when the link is idle",
        );
    }
    Finding::ok(Step::Ecn, text).with_hint("the path is busy now; repeat when it is idle")
}

/// Returns a problem if a direction turns every packet into CE, even packets that are not ECN capable.
fn marks_everything(both: &Both) -> Option<Finding> {
    let directions = both.directions();
    let found = directions.iter().find(|direction| {
        let incapable = direction.count(|sent, seen| sent & 3 == 0 && seen & 3 == 3);
        incapable > 0 && direction.count(|_, seen| seen & 3 != 3) == 0
    })?;
    let all = found.count(|_, _| true);
    Some(Finding::problem(
        Step::Ecn,
        format!(
            "every packet becomes CE {}, even packets that are not ECN capable ({all} of {all})",
            found.name()
        ),
        "switches mark only packets that are ECN capable: remove the rule that sets these bits on a router \
         or host on the path (`iptables -t mangle -S` for TOS or DSCP, `nft list ruleset`, `tc filter`)",
    ))
}

/// Returns a problem if code points changed in other ways than by a mark.
fn rewrites(rewritten: &[(String, u8, u8, u32)]) -> Option<Finding> {
    let clears = rewritten.iter().any(|(_, _, seen, _)| *seen == 0);
    let text: Vec<String> = rewritten
        .iter()
        .map(|(direction, sent, seen, _)| format!("{} becomes {} {direction}", name(*sent), name(*seen)))
        .collect();
    let remedy = if clears {
        "without these bits, no congestion is reported and DCQCN does not work: find and correct the router, \
         tunnel or rule that clears them (`iptables -t mangle -S`; tunnels must copy ECN, RFC 6040; old \
         routers clear the whole byte)"
    } else {
        "find and correct the router or rule that rewrites these bits (`iptables -t mangle -S`): a device on \
         the path may only change ECT to CE"
    };
    (!text.is_empty()).then(|| Finding::problem(Step::Ecn, text.join(", "), remedy))
}

fn name(bits: u8) -> &'static str {
    ["not-ECT", "ECT(1)", "ECT(0)", "CE"].get(usize::from(bits & 3)).copied().unwrap_or_default()
}
