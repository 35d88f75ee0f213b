//! The explanation of a queue pair: its state, the failed check, dropped packets, and likely causes.

use std::fmt;
use std::time::Duration;

use roce_packet::Qpn;
use roce_transport::{Cause, Counters, Ends, Instant, QpState, Reason, Rule};

use super::refusals::of_refusal;
use super::{Likely, likely, meaning};
use crate::driver::{Connection, LastPacket, Nic};

/// Maximum number of drop counters and of likely causes in the text.
const MOST_DROPS: usize = 4;
const MOST_LIKELY: usize = 5;
/// Maximum number of packets in the text, and of those that are looked up.
const MOST_PACKETS: usize = 6;
const MOST_LOOKED_UP: usize = 16;

/// The reason why a queue pair failed, or the state of one that has not failed.
///
/// [`Context::why`](crate::verbs::Context::why) and [`QueuePair::why`](crate::verbs::QueuePair::why) return
/// it. Its text has at most 25 lines.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, _far) = ends()?;
/// let explanation = near.qp.why().expect("the queue pair exists");
/// assert!(explanation.reason.is_none());
/// assert!(explanation.to_string().contains("is in RTS and has not failed"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The queue pair.
    pub qpn: Qpn,
    /// The queue pair of the peer, or 0.
    pub peer: Qpn,
    /// The addresses of both ends; `None` for UD and before the connection.
    pub ends: Option<Ends>,
    /// The current state.
    pub state: QpState,
    /// The first failure.
    pub reason: Option<Reason>,
    /// Time from the last packet that only the peer can have sent to the failure. `None` if no such packet
    /// arrived, or if the queue pair has not failed.
    pub silence: Option<Duration>,
    /// Number of incomplete send requests.
    pub incomplete: usize,
    /// The last packets in both directions, the newest last: at most 16 of those before the failure, or
    /// before now. Those of other queue pairs may have replaced them. What a UD queue pair sent is unknown.
    pub packets: Vec<LastPacket>,
    /// Packets that were dropped here, by counter: those of the queue pair, then those of the device that
    /// belong to no queue pair.
    pub drops: Vec<(&'static str, u64)>,
    /// Likely causes, the most likely one first.
    pub likely: Vec<Likely>,
}

/// Drop counters of packets that cannot be assigned to a queue pair.
const OF_DEVICE: [&str; 8] = [
    "rx_icrc_encapsulated",
    "drop_unknown_qpn",
    "drop_short",
    "drop_bad_length",
    "drop_bad_version",
    "drop_unknown_opcode",
    "drop_malformed",
    "drop_no_multicast_member",
];

impl Explanation {
    /// Reads the state of a queue pair. Returns `None` if it does not exist.
    pub(crate) fn of(nic: &Nic, qpn: Qpn) -> Option<Self> {
        let engine = &nic.engine;
        let attributes = engine.query_qp(qpn)?;
        let reason = engine.reason(qpn).copied();
        let silence = reason.and_then(|reason| Some(since(reason.at, reason.heard?)));
        let mut drops = nonzero(&engine.qp_counters(qpn)?, |name| name.starts_with("drop_"));
        for (name, value) in nonzero(engine.counters(), |name| OF_DEVICE.contains(&name)) {
            if !drops.iter().any(|(known, _)| *known == name) {
                drops.push((name, value));
            }
        }
        let (peer, ends) = (attributes.dest_qpn, engine.ends(qpn));
        let connection = Connection { own: qpn, peer, ends };
        let failed = reason.map(|reason| reason.at);
        Some(Self {
            qpn,
            peer,
            ends,
            state: attributes.state,
            reason,
            silence,
            packets: nic.recent.of(&connection, failed, nic.now(), MOST_LOOKED_UP),
            incomplete: engine.queue_depths(qpn).map_or(0, |(sends, _)| sends),
            drops,
            likely: reason.map_or_else(Vec::new, |reason| in_order(&reason)),
        })
    }
}

fn since(at: Instant, heard: Instant) -> Duration {
    Duration::from_nanos(at.as_nanos().saturating_sub(heard.as_nanos()))
}

/// Returns the counters with these names that are not zero.
fn nonzero(counters: &Counters, is_wanted: impl Fn(&str) -> bool) -> Vec<(&'static str, u64)> {
    let mut found = Vec::new();
    counters.visit(&mut |name, value| {
        if value > 0 && is_wanted(name) {
            found.push((name, value));
        }
    });
    found
}

/// Returns the likely causes of a failure. The causes of a peer that was never heard are in another order
/// than those of a peer that stopped answering. Of a refused request, the violated rule is known.
fn in_order(reason: &Reason) -> Vec<Likely> {
    let mut all = likely(reason.rule.cause()).to_vec();
    if let Some(first) = of_refusal(&reason.rule) {
        all.retain(|other| other.cause != first.cause);
        all.insert(0, first);
    }
    if reason.rule.cause() == Cause::AckTimeout && reason.heard.is_none() && all.len() > 2 {
        all[..3].rotate_left(1);
    }
    all
}

/// Returns whether the failure is that the peer did not do something.
const fn waits_for_peer(rule: &Rule) -> bool {
    matches!(rule, Rule::AckTimeout { .. } | Rule::SequenceRetries { .. } | Rule::RnrRetries { .. })
}

impl Explanation {
    /// Writes the first line: both ends and the failure.
    fn write_first_line(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, peer) = (self.qpn.get(), self.peer.get());
        write!(formatter, "queue pair {own}")?;
        if let Some(Ends { local, remote }) = self.ends {
            write!(formatter, " at {local} towards queue pair {peer} at {remote}")?;
        }
        let state = self.state.name();
        let Some(reason) = &self.reason else {
            return write!(formatter, " is in {state} and has not failed");
        };
        let (cause, rule) = (reason.rule.cause(), reason.rule);
        match reason.request {
            Some((wr_id, status)) => {
                write!(formatter, ": work request {wr_id} ended with {}, {cause:?} ({rule})", status.name())
            }
            None => write!(formatter, " went from {} to {state}: {rule}", reason.from.name()),
        }
    }

    /// Returns the explanation as keys and values for programs. It has as many packets, counters and causes
    /// as the text.
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("qpn", self.qpn.get().to_string())];
        if let Some(Ends { local, remote }) = self.ends {
            facts.push(("address", local.to_string()));
            facts.push(("peer_qpn", self.peer.get().to_string()));
            facts.push(("peer_address", remote.to_string()));
        }
        facts.push(("state", self.state.name().to_owned()));
        facts.push(("incomplete", self.incomplete.to_string()));
        if let Some(Reason { rule, request, .. }) = &self.reason {
            if let Some((wr_id, status)) = request {
                facts.push(("wr_id", wr_id.to_string()));
                facts.push(("status", status.name().to_owned()));
            }
            facts.push(("vendor_err", format!("{:?}", rule.cause())));
            facts.push(("check", rule.to_string()));
        }
        facts.extend(self.silence.map(|silence| ("silence_ns", silence.as_nanos().to_string())));
        let left_out = self.packets.len().saturating_sub(MOST_PACKETS);
        facts.extend(self.packets.iter().skip(left_out).map(|packet| ("packet", packet.to_string())));
        facts.extend(
            self.drops.iter().take(MOST_DROPS).map(|(name, value)| ("drop", format!("{name} {value}"))),
        );
        for Likely { cause, next } in self.likely.iter().take(MOST_LIKELY) {
            facts.push(("cause", (*cause).to_owned()));
            facts.push(("next", self.with_host(next)));
        }
        facts
    }

    /// Replaces the name of the peer in a command.
    fn with_host(&self, next: &str) -> String {
        match self.ends {
            Some(Ends { remote, .. }) => next.replace("HOST", &remote.to_string()),
            None => next.to_owned(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_first_line(formatter)?;
        match (&self.reason, self.silence) {
            (None, _) => write!(formatter, "\n  {} send requests are incomplete", self.incomplete)?,
            (Some(reason), _) if !waits_for_peer(&reason.rule) => {}
            (Some(_), Some(silence)) => {
                write!(formatter, "\n  the last packet of the peer arrived {silence:.3?} before")?;
            }
            (Some(_), None) => write!(formatter, "\n  no packet that proves to be from the peer arrived")?,
        }
        let left_out = self.packets.len().saturating_sub(MOST_PACKETS);
        if !self.packets.is_empty() {
            write!(formatter, "\n  last packets, the newest last:")?;
        }
        for packet in self.packets.iter().skip(left_out) {
            write!(formatter, "\n    {packet}")?;
        }
        for (name, value) in self.drops.iter().take(MOST_DROPS) {
            let what = meaning(name).unwrap_or_default();
            write!(formatter, "\n  dropped here: {value} ({name}: {what})")?;
        }
        if !self.likely.is_empty() {
            write!(formatter, "\nlikely causes, the most likely one first, each with the next step:")?;
        }
        for (number, Likely { cause, next }) in (1..).zip(self.likely.iter().take(MOST_LIKELY)) {
            write!(formatter, "\n  {number}. {cause}\n     {}", self.with_host(next))?;
        }
        Ok(())
    }
}
