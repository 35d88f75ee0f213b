//! Lesson 10: pause frames, headroom, victims and deadlocks.

use roce_packet::pause::{MAX_QUANTA, pause_duration_ns};
use roce_sim::net::{DropReason, FlowState, Results};

use super::scene::simulate;
use super::{AnswerKey, Expected, Outcome};

/// The rate of the link of task 1.
const RATE: u64 = 100_000_000_000;
/// The scenarios of tasks 2 to 4.
const HEADROOM: &str = include_str!("../../../../docs/lessons/scenarios/headroom.toml");
const VICTIM: &str = include_str!("../../../../docs/lessons/scenarios/victim.toml");
const DEADLOCK: &str = include_str!("../../../../docs/lessons/scenarios/deadlock.toml");
/// The choices of task 2.
const HEADROOMS: [(&str, &str); 4] =
    [("10 KB", "10KB"), ("30 KB", "30KB"), ("60 KB", "60KB"), ("200 KB", "200KB")];
/// The host of the victim of task 3.
const VICTIM_HOST: &str = "h3";

/// Judges an answer to a task of the lesson.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => Some(duration()),
        2 => headroom(),
        3 => pausing_port(),
        4 => deadlock(),
        _ => None,
    };
    Some(key?.judge(answer))
}

/// The duration of the longest pause.
fn duration() -> AnswerKey {
    let microseconds = |rate| pause_duration_ns(MAX_QUANTA, rate) as f64 / 1e3;
    let right = microseconds(RATE);
    let shows = format!(
        "{MAX_QUANTA} quanta of 512 bit times are {} bits.\n\
         A link of 100 Gb/s sends them in {right:.2} us.",
        u64::from(MAX_QUANTA) * 512,
    );
    let near = |value: f64| Expected::Near(value, value / 200.0);
    AnswerKey::new(near(right), shows)
        .hint(
            near(microseconds(RATE / 10)),
            "This is the duration at 10 Gb/s. A quantum is a number of bits, so its time depends on the \
             rate.",
        )
        .hint(near(right * 8.0), "A quantum is the time of 512 bits, not of 512 bytes.")
        .hint(
            near(f64::from(MAX_QUANTA) / 1e3),
            "A quantum is not a nanosecond. It is the time that the link needs for 512 bits.",
        )
        .hint(near(right / 512.0), "This is the time of as many bits. Each quantum has 512 bits.")
        .otherwise("Multiply the quanta by 512 bits, and divide by the rate.")
}

/// The smallest headroom with which no frame is dropped.
fn headroom() -> Option<AnswerKey> {
    let mut right = None;
    let mut others = Vec::new();
    let mut shows = "The simulator ran the scenario with each headroom:\n".to_owned();
    for (text, value) in HEADROOMS {
        let dropped = simulate(HEADROOM, &[("switch.headroom", value)])?.dropped(DropReason::Headroom);
        shows.push_str(&format!("{text}: {dropped} frames dropped\n"));
        if dropped == 0 && right.is_none() {
            right = Some(text);
        } else {
            others.push((text, dropped));
        }
    }
    let key = AnswerKey::new(Expected::text(right?), shows);
    let hint = |key: AnswerKey, (text, dropped): (&str, u64)| {
        let hint = match dropped {
            0 => {
                "No frame is dropped with this headroom, but a smaller one is enough. Headroom that is never \
                  used is missing for everything else in the buffer."
                    .to_owned()
            }
            _ => format!(
                "With this headroom the switch drops {dropped} frames. After the switch has decided to \
                 pause, the pause frame travels to the sender, and what is already on the link still \
                 arrives: twice the delay counts."
            ),
        };
        key.hint(Expected::text(text), hint)
    };
    Some(others.into_iter().fold(key, hint))
}

/// Returns the number of pauses that a port of the scenario of task 3 requested.
fn pauses(results: &Results, from: &str, to: &str) -> u64 {
    results.port(from, to).map_or(0, |port| port.stats.pauses_sent)
}

/// The port whose pause frames stop the host of the victim.
fn pausing_port() -> Option<AnswerKey> {
    let with = simulate(VICTIM, &[])?;
    let without = simulate(VICTIM, &[("switch.pfc", "[]")])?;
    let to_victim = format!("->{VICTIM_HOST}");
    let right =
        with.ports.iter().find(|port| port.name.ends_with(&to_victim) && port.stats.pauses_sent > 0)?;
    let slowdown = |results: &Results| results.flows.last().and_then(roce_sim::net::FlowResult::slowdown);
    let shows = format!(
        "The simulator ran the scenario. Pauses that each port requested:\n\
         leaf1->spine0 {}, spine0->leaf0 {}, {} {}.\n\
         The victim took {:.1} times as long as alone, and {:.1} times without PFC.",
        pauses(&with, "leaf1", "spine0"),
        pauses(&with, "spine0", "leaf0"),
        right.name,
        right.stats.pauses_sent,
        slowdown(&with)?,
        slowdown(&without)?,
    );
    let key = AnswerKey::new(Expected::text(right.name.as_str()), shows)
        .hint(
            Expected::text("leaf1->h4"),
            format!(
                "This port is the congested one, but h4 sends almost nothing: the port requested {} pauses. \
                 A switch pauses the ports from which frames arrive.",
                pauses(&with, "leaf1", "h4"),
            ),
        )
        .hint(
            Expected::text("leaf1->spine0"),
            format!(
                "This port requested {} pauses, but they stop spine0. A pause frame never passes a switch.",
                pauses(&with, "leaf1", "spine0"),
            ),
        )
        .hint(
            Expected::text("spine0->leaf0"),
            format!(
                "This port requested {} pauses, which stop leaf0. Which port then pauses the hosts at leaf0?",
                pauses(&with, "spine0", "leaf0"),
            ),
        )
        .otherwise(
            "A pause frame stops the other end of its link. Which link does the host of the victim \
                    have?",
        );
    Some(key)
}

/// A change of the scenario of task 4.
struct Remedy {
    /// The text of the choice.
    text: &'static str,
    sets: &'static [(&'static str, &'static str)],
    hint: &'static str,
}

static REMEDIES: [Remedy; 4] = [
    Remedy {
        text: "a threshold of 300 KB instead of 100 KB",
        sets: &[("switch.threshold", "{ bytes = 300000 }")],
        hint: "A larger threshold only delays the pauses: the buffers fill later, and the cycle is still \
               there.",
    },
    Remedy {
        text: "five times as much time",
        sets: &[("stop", "10ms")],
        hint: "Each port waits for the next one of the cycle, so no time is enough.",
    },
    Remedy {
        text: "DCQCN at all hosts, with marks from 20 KB on",
        sets: &[("host.congestion", "dcqcn:hpcc"), ("switch.marking", "{ step = \"20KB\" }")],
        hint: "DCQCN makes pauses rare, but the first burst comes before the first CNP. One cycle of pauses \
               is enough.",
    },
    Remedy {
        text: "the shortest paths as routes",
        sets: &[("route", "[]")],
        hint: "With these routes no cycle of links is left.",
    },
];

/// Returns the number of complete flows, of all flows, and of deadlocks.
fn outcome(results: &Results) -> (usize, usize, usize) {
    let complete = results.in_state(FlowState::Complete);
    (complete, results.flows.len(), results.deadlocks.len())
}

/// The change that removes the deadlock.
fn deadlock() -> Option<AnswerKey> {
    let mut right = None;
    let mut others = Vec::new();
    let (complete, flows, deadlocks) = outcome(&simulate(DEADLOCK, &[])?);
    let mut shows = format!("Unchanged: {complete} of {flows} flows complete, {deadlocks} deadlock.\n");
    for remedy in &REMEDIES {
        let (complete, flows, deadlocks) = outcome(&simulate(DEADLOCK, remedy.sets)?);
        shows.push_str(&format!(
            "With {}: {complete} of {flows} flows complete, {deadlocks} deadlocks.\n",
            remedy.text
        ));
        if complete == flows {
            right = Some(remedy);
        } else {
            others.push((remedy, complete));
        }
    }
    let key = AnswerKey::new(Expected::text(right?.text), shows);
    let hint = |key: AnswerKey, (remedy, complete): (&Remedy, usize)| {
        let hint = format!("{} In the simulation {complete} flows complete.", remedy.hint);
        key.hint(Expected::text(remedy.text), hint)
    };
    Some(others.into_iter().fold(key, hint))
}
