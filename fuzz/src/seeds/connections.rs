//! Scripts of connection management: complete connections and service queries, from either side.

use super::Seeds;
use crate::cm::{ACTIONS, Action, Step};

pub(super) fn add(seeds: &mut Seeds) {
    for (name, steps) in scripts() {
        let bytes = steps.iter().flat_map(|step| step.to_bytes()).collect();
        seeds.insert(("cm", name.to_owned()), bytes);
    }
}

fn scripts() -> Vec<(&'static str, Vec<Step>)> {
    let of = Step::of;
    let second = |action| Step { which: 1, ..of(action) };
    let accept = Step { kind: 40, ..of(Action::Accept) };
    let wait = of(Action::Wait);
    vec![
        ("passive", vec![of(Action::Req), accept, of(Action::Rtu), of(Action::Dreq), wait]),
        ("active", vec![of(Action::Connect), of(Action::Rep), of(Action::Ready), of(Action::Disconnect)]),
        (
            "active-ended",
            vec![
                of(Action::Connect),
                of(Action::Rep),
                of(Action::Ready),
                of(Action::Disconnect),
                of(Action::Drep),
                wait,
            ],
        ),
        (
            "both-end",
            vec![
                of(Action::Connect),
                of(Action::Rep),
                of(Action::Ready),
                of(Action::Disconnect),
                of(Action::Dreq),
                of(Action::Drep),
                wait,
            ],
        ),
        ("question", vec![of(Action::SidrReq), of(Action::Answer), of(Action::Repeat), wait]),
        ("asking", vec![of(Action::Resolve), wait, of(Action::SidrRep)]),
        ("refused", vec![of(Action::Req), of(Action::Reject), of(Action::Repeat), wait, wait]),
        ("refusing", vec![of(Action::Connect), Step { kind: 28, ..of(Action::Rej) }, of(Action::Rep)]),
        (
            "patience",
            vec![
                of(Action::Req),
                of(Action::Repeat),
                Step { time: 9, ..of(Action::Delay) },
                accept,
                Step { kind: 1, time: 12, ..of(Action::Mra) },
                wait,
                of(Action::FirstPacket),
                of(Action::Release),
            ],
        ),
        (
            "patience-of-the-active-side",
            vec![
                of(Action::Connect),
                Step { time: 12, ..of(Action::Mra) },
                of(Action::Rep),
                of(Action::Repeat),
                of(Action::Ready),
            ],
        ),
        ("silence", std::iter::once(of(Action::Connect)).chain([wait; 6]).collect()),
        ("silence-after-rep", [of(Action::Req), accept].into_iter().chain([wait; 6]).collect()),
        (
            "stale",
            vec![
                of(Action::Req),
                accept,
                of(Action::Rtu),
                Step { id: 1, ..of(Action::Req) },
                of(Action::Drep),
            ],
        ),
        ("backlog", vec![of(Action::Req); 8]),
        ("unlisten", vec![of(Action::Req), of(Action::Listen), of(Action::Req), of(Action::Release)]),
        ("service", vec![second(Action::Listen), second(Action::Req), second(Action::SidrReq)]),
        (
            "strangers",
            vec![
                Step { peer: 2, ..of(Action::Connect) },
                Step { peer: 1, ..of(Action::Rep) },
                of(Action::Rep),
                Step { peer: 1, ..of(Action::Dreq) },
                Step { kind: 0xc4, ..of(Action::Rej) },
            ],
        ),
        ("damage", (0..=255).map(|at| Step { at, damage: 0x81, ..of(Action::Req) }).collect()),
        ("one-of-each", ACTIONS.map(of).to_vec()),
    ]
}
