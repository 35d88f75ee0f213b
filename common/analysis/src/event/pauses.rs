//! The pauses that ports ask for.

use std::collections::BTreeMap;

use roce_packet::MacAddr;
use roce_packet::pause::{PauseRequest, pause_duration_ns};

use crate::analysis::Analysis;
use crate::copies::Tap;
use crate::record::Place;

/// Longest time between two pause frames of one pause, in nanoseconds. The longest pause of one frame is
/// 33 ms at 1 Gbit/s.
const PAUSE_NS: u64 = 33_000_000;
/// Rate of the slowest link with pauses, in bits per second.
const SLOWEST: u64 = 1_000_000_000;

/// A pause of one priority: frames of a port that follow each other, until the port ends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause {
    /// Where it was captured.
    pub(super) tap: Tap,
    /// The port that asks for it.
    pub(super) source: MacAddr,
    /// The priority; `None` for all traffic.
    pub(super) priority: Option<usize>,
    /// The first frame and the last one that asks for it.
    pub(super) places: [Place; 2],
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// The time at which it ends on the slowest link, unless the port ended it before.
    pub(super) until_ns: u64,
    pub(super) frames: u64,
}

/// Returns the pauses in the order of their first frames.
pub(super) fn pauses(analysis: &Analysis) -> Vec<Pause> {
    let rate = analysis.line_rate.unwrap_or(SLOWEST);
    let mut open: BTreeMap<(Tap, [u8; 6], Option<usize>), Pause> = BTreeMap::new();
    let mut over = Vec::new();
    for record in &analysis.pauses {
        let tap = Tap { capture: record.place.capture, interface: record.interface };
        let now = record.time_ns;
        let asked: Vec<(Option<usize>, u16)> = match record.request {
            PauseRequest::All(quanta) => vec![(None, quanta)],
            PauseRequest::PerPriority(all) => {
                let all = all.iter().enumerate();
                all.filter_map(|(priority, quanta)| Some((Some(priority), (*quanta)?))).collect()
            }
        };
        for (priority, quanta) in asked {
            let key = (tap, record.source.0, priority);
            let ends = |pause: &Pause| quanta == 0 || now.saturating_sub(pause.last_ns) > PAUSE_NS;
            if open.get(&key).is_some_and(ends)
                && let Some(mut pause) = open.remove(&key)
            {
                pause.until_ns = pause.until_ns.min(now);
                over.push(pause);
            }
            if quanta == 0 {
                continue;
            }
            let pause = open.entry(key).or_insert(Pause {
                tap,
                source: record.source,
                priority,
                places: [record.place; 2],
                first_ns: now,
                last_ns: now,
                until_ns: now,
                frames: 0,
            });
            (pause.last_ns, pause.places[1]) = (now, record.place);
            pause.until_ns = now.saturating_add(pause_duration_ns(quanta, rate));
            pause.frames += 1;
        }
    }
    over.extend(open.into_values());
    over.sort_by_key(|pause| (pause.places[0], pause.priority));
    over
}
