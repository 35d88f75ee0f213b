//! Many connections at once over a wire that loses, repeats and delays messages. One number determines each
//! run.
//!
//! - `ROCE_SEEDS=100000` runs this many seeds instead of the default;
//! - `ROCE_SEED=123` runs one seed; `-- --nocapture` shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use roce_fault::random::SplitMix64;
use roce_packet::mad::{CmTimeout, CommId, RejReason, SidrStatus};
use roce_packet::{Psn, Qpn};
use roce_transport::cm::{CmError, CmEvent, CmQpParameters, CmTiming};

use crate::world::{ACTIVE, Fate, PASSIVE, TIMING, World, offer, question, request};

const SEEDS: u64 = 300;

pub(crate) struct Dice(SplitMix64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The last event of one side about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Asked,
    Responded,
    Established,
    Over,
    Gone,
}

struct Run {
    world: World,
    dice: Dice,
    phases: [BTreeMap<CommId, Phase>; 2],
    parameters: [BTreeMap<Qpn, CmQpParameters>; 2],
    questions: BTreeSet<CommId>,
    next_qpn: u32,
    established: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let (loss, twice, late) = (dice.below(35), dice.below(20), dice.below(20));
        let mut wire = Dice::new(seed ^ 0x5eed);
        let world = World::with_fate(move |_, _| match wire.below(100) {
            roll if roll < loss => Fate::Drop,
            roll if roll < loss + twice => Fate::Twice,
            roll if roll < loss + twice + late => Fate::Late,
            _ => Fate::Deliver,
        });
        let (phases, parameters) = (Default::default(), Default::default());
        Self { world, dice, phases, parameters, questions: BTreeSet::new(), next_qpn: 16, established: 0 }
    }

    fn begin_something(&mut self) {
        let now = self.world.now;
        // Enough retries that only a fault of the manager fails a run, and not the wire.
        let timing = CmTiming { max_retries: 15, response_timeout: CmTimeout::new(12), ..TIMING };
        if self.dice.chance(20) {
            let mut question = question();
            question.timing = timing;
            let id = self.world.sides[ACTIVE].resolve(now, &question).unwrap();
            self.questions.insert(id);
            return;
        }
        self.next_qpn += 1;
        let mut request = request(self.next_qpn);
        request.timing = timing;
        request.offer.starting_psn = Psn::new(self.dice.next() as u32);
        let id = self.world.sides[ACTIVE].connect(now, &request).unwrap();
        self.phases[ACTIVE].insert(id, Phase::Asked);
    }

    /// Lets the applications react to an event: now, later or never.
    fn react(&mut self, side: usize, event: &CmEvent) {
        let now = self.world.now;
        let id = event.id();
        match event {
            CmEvent::ConnectRequest(_) => {
                let known = self.phases[PASSIVE].insert(id, Phase::Asked);
                assert_eq!(known, None, "asked twice");
                self.answer_request(id);
            }
            CmEvent::SidrRequest(_) => {
                let manager = &mut self.world.sides[PASSIVE];
                in_time(manager.answer(now, id, SidrStatus::VALID, (Qpn::new(5), 6), b""));
            }
            CmEvent::ConnectResponse { parameters, .. } => {
                self.proceed(side, id, Phase::Responded);
                let own = Qpn::new(self.next_qpn_of(parameters));
                self.parameters[ACTIVE].insert(own, *parameters);
                let manager = &mut self.world.sides[ACTIVE];
                if self.dice.chance(10) {
                    in_time(manager.delay(now, id, CmTimeout::new(10)));
                }
                if self.dice.chance(90) {
                    in_time(manager.ready(now, id, b""));
                } else if in_time(manager.reject(now, id, RejReason::CONSUMER, b"")) {
                    self.phases[side].insert(id, Phase::Gone);
                }
            }
            CmEvent::Established { .. } => {
                self.proceed(side, id, Phase::Established);
                self.established += 1;
                if self.dice.chance(30) {
                    in_time(self.world.sides[side].disconnect(now, id, b""));
                }
            }
            CmEvent::Disconnected { .. } => self.proceed(side, id, Phase::Over),
            CmEvent::TimewaitExit { .. } => self.proceed(side, id, Phase::Gone),
            CmEvent::Rejected { .. } => self.proceed(side, id, Phase::Gone),
            CmEvent::Unreachable { .. } if self.questions.remove(&id) => {}
            CmEvent::Unreachable { .. } => {
                if self.phases[side].contains_key(&id) {
                    self.proceed(side, id, Phase::Gone);
                }
            }
            CmEvent::Resolved { qpn, q_key, .. } => {
                assert!(self.questions.remove(&id), "answered twice");
                assert_eq!((*qpn, *q_key), (Qpn::new(5), 6));
            }
            CmEvent::Unresolved { status, .. } => {
                assert!(self.questions.remove(&id), "answered twice");
                assert_eq!(*status, SidrStatus::NO_QP, "the backlog is the only reason");
            }
            other => panic!("{other:?} is new"),
        }
    }

    fn next_qpn_of(&self, parameters: &CmQpParameters) -> u32 {
        // The number of the passive side's queue pair is that of the active side plus this.
        parameters.dest_qpn.get() - 0x1000
    }

    fn answer_request(&mut self, id: CommId) {
        let now = self.world.now;
        let manager = &mut self.world.sides[PASSIVE];
        match self.dice.below(10) {
            0 => {
                if in_time(manager.reject(now, id, RejReason::CONSUMER, b"no")) {
                    self.phases[PASSIVE].insert(id, Phase::Gone);
                }
            }
            1 => {
                in_time(manager.delay(now, id, CmTimeout::new(12)));
            }
            _ => self.accept(id),
        }
    }

    fn accept(&mut self, id: CommId) {
        let now = self.world.now;
        let manager = &mut self.world.sides[PASSIVE];
        let Ok(preview) = manager.preview(id, &offer(1)) else { return };
        let peer = preview.dest_qpn;
        let own = offer(peer.get() + 0x1000);
        let Ok(parameters) = manager.accept(now, id, &own, b"") else { return };
        self.parameters[PASSIVE].insert(peer, parameters);
        self.proceed(PASSIVE, id, Phase::Responded);
    }

    #[track_caller]
    fn proceed(&mut self, side: usize, id: CommId, phase: Phase) {
        let before = self.phases[side].insert(id, phase).expect("a connection that is known");
        assert!(before < phase, "side {side}, {id}: {phase:?} after {before:?}");
        if phase == Phase::Over {
            let early = side == PASSIVE && before == Phase::Responded;
            assert!(early || before == Phase::Established, "over after {before:?}");
        }
    }

    fn react_to_all(&mut self) {
        for side in [ACTIVE, PASSIVE] {
            while let Some(event) = self.world.events[side].pop_front() {
                self.react(side, &event);
            }
        }
    }

    fn run(&mut self) {
        for _ in 0..40 {
            self.begin_something();
            let pause = Duration::from_micros(self.dice.below(40_000));
            self.world.run_for(pause);
            self.react_to_all();
        }
        // Answer every deferred request, and end every established connection.
        for round in 0.. {
            self.world.run_for(Duration::from_millis(50));
            self.react_to_all();
            self.end_what_stands();
            if self.world.sides.iter().all(|side| side.is_empty()) {
                break;
            }
            assert!(round < 100_000, "it never ends: {:?}", self.phases);
        }
        self.react_to_all();
        for (side, phases) in self.phases.iter().enumerate() {
            for (id, phase) in phases {
                assert_eq!(*phase, Phase::Gone, "side {side}, {id}");
            }
        }
        assert!(self.questions.is_empty(), "unanswered: {:?}", self.questions);
        self.compare_parameters();
        for side in &self.world.sides {
            assert_eq!((side.poll_timeout(), side.counters().malformed), (None, 0));
        }
    }

    fn end_what_stands(&mut self) {
        let now = self.world.now;
        let waiting: Vec<_> =
            self.phases[PASSIVE].iter().filter(|(_, phase)| **phase == Phase::Asked).collect();
        let waiting: Vec<_> = waiting.into_iter().map(|(id, _)| *id).collect();
        for id in waiting {
            self.accept(id);
        }
        for side in [ACTIVE, PASSIVE] {
            for (id, phase) in &self.phases[side] {
                if *phase == Phase::Established {
                    // The connection may already be disconnected.
                    let _ = self.world.sides[side].disconnect(now, *id, b"");
                }
            }
        }
    }

    /// Checks that both ends of a connection agree on its parameters.
    fn compare_parameters(&self) {
        for (qpn, near) in &self.parameters[ACTIVE] {
            let far = &self.parameters[PASSIVE][qpn];
            assert_eq!((near.sq_psn, near.rq_psn), (far.rq_psn, far.sq_psn));
            assert_eq!(
                (near.max_rd_atomic, near.max_dest_rd_atomic),
                (far.max_dest_rd_atomic, far.max_rd_atomic)
            );
            assert_eq!((near.path_mtu, near.path.source_port), (far.path_mtu, far.path.source_port));
            assert_eq!(far.dest_qpn, *qpn);
        }
    }
}

/// Returns whether a call came in time; the peer may have ended its connection before.
#[track_caller]
fn in_time(outcome: Result<(), CmError>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(CmError::WrongState { .. } | CmError::Unknown(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn many_connections_over_bad_wires() {
    let seeds = match number("ROCE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROCE_SEEDS").unwrap_or(SEEDS),
    };
    let (mut established, mut repeated) = (0, 0);
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut run = Run::new(seed);
            run.run();
            let sides = &run.world.sides;
            (run.established, sides.iter().map(|side| side.counters().repeated).sum::<u64>())
        }));
        match outcome {
            Ok(counts) => {
                established += counts.0;
                repeated += counts.1;
            }
            Err(_) => panic!(
                "seed {seed} failed; replay with: ROCE_SEED={seed} cargo test -p roce-transport --test cm random \
                 -- --nocapture"
            ),
        }
    }
    println!("{established} ends established, {repeated} messages repeated");
    assert!(established > 0 && repeated > 0);
}
