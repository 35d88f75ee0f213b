//! Tests of the policies and of the exclusion of paths.

use std::boxed::Box;
use std::collections::HashSet;
use std::string::{String, ToString};
use std::vec::Vec;

use super::PathFeedback::{Delivered, Lost, Marked, Trimmed};
use super::*;
use crate::Instant;

const NOW: Instant = Instant::ZERO;

fn at(micros: u64) -> Instant {
    NOW.plus_nanos(micros * 1_000)
}

fn set(text: &str) -> PathSet {
    PathSet::new(&text.parse().unwrap(), 7).unwrap()
}

/// Returns the path of the next new packet.
fn next(set: &mut PathSet, now: Instant) -> u16 {
    set.probe(now).unwrap_or_else(|| set.next(now))
}

fn take(set: &mut PathSet, count: usize) -> Vec<u16> {
    (0..count).map(|_| next(set, NOW)).collect()
}

#[test]
fn a_round_takes_every_path_once_and_each_round_has_its_own_order() {
    let mut set = set("round-robin:paths=50");
    assert_eq!(set.len(), 64);
    let rounds: Vec<Vec<u16>> = (0..8).map(|_| take(&mut set, 64)).collect();
    for round in &rounds {
        assert_eq!(round.iter().collect::<HashSet<_>>().len(), 64);
    }
    let orders: HashSet<_> = rounds.iter().collect();
    assert!(orders.len() > 4, "{} orders in 8 rounds", orders.len());
}

#[test]
fn the_seed_alone_decides_the_order() {
    for text in ["round-robin", "penalty", "recycle", "reps"] {
        let order = |seed| take(&mut PathSet::new(&text.parse().unwrap(), seed).unwrap(), 200);
        assert_eq!(order(1), order(1), "{text}");
        assert_ne!(order(1), order(2), "{text}");
    }
}

#[test]
fn a_congested_path_misses_turns() {
    for (feedback, missed) in [(Marked, 1), (Trimmed, 4), (Lost, 15)] {
        let mut set = set("penalty:paths=8,losses=0");
        set.on_feedback(NOW, 3, feedback);
        let before = (0..200).take_while(|_| next(&mut set, NOW) != 3).count();
        // Each turn that it misses is a round of the other seven.
        assert!((7 * missed..=7 * missed + 7).contains(&before), "{feedback:?}: {before} packets");
    }
}

#[test]
fn if_every_path_is_congested_they_still_take_turns() {
    let mut set = set("penalty:paths=8,losses=0");
    for path in 0..8 {
        set.on_feedback(NOW, path, Lost);
    }
    let used: HashSet<u16> = take(&mut set, 64).into_iter().collect();
    assert_eq!(used.len(), 8);
}

#[test]
fn unmarked_paths_are_used_again_in_the_order_of_the_answers() {
    let mut set = set("recycle:paths=16");
    for (path, feedback) in [(5, Delivered), (9, Marked), (2, Delivered), (7, Trimmed), (5, Delivered)] {
        set.on_feedback(NOW, path, feedback);
    }
    assert_eq!(take(&mut set, 3), [5, 2, 5]);
    let others: HashSet<u16> = take(&mut set, 14).into_iter().collect();
    assert!(!others.contains(&9) && !others.contains(&7), "they miss a turn: {others:?}");
}

#[test]
fn reps_caches_the_newest_unmarked_paths() {
    let mut set = set("reps:paths=1024,cache=4");
    for path in [1, 2, 3, 4, 5, 6] {
        set.on_feedback(NOW, path, Delivered);
    }
    set.on_feedback(NOW, 900, Marked);
    assert_eq!(take(&mut set, 4), [3, 4, 5, 6], "the first two were replaced");
    let random = take(&mut set, 20);
    assert!(random.iter().collect::<HashSet<_>>().len() > 15, "{random:?}");
}

#[test]
fn reps_uses_cached_paths_only_after_a_loss_and_then_explores() {
    let mut set = set("reps:paths=1024,cache=4,freeze=50,explore=10,losses=0");
    for path in [1, 2, 3] {
        set.on_feedback(NOW, path, Delivered);
    }
    set.on_feedback(NOW, 700, Lost);
    let frozen: HashSet<u16> = take(&mut set, 40).into_iter().collect();
    assert_eq!(frozen, HashSet::from([1, 2, 3]));
    set.on_feedback(at(10), 8, Delivered);
    assert_eq!(next(&mut set, at(10)), 8, "a fresh one comes first");
    let frozen: HashSet<u16> = (0..40).map(|_| next(&mut set, at(49))).collect();
    assert_eq!(frozen, HashSet::from([1, 2, 3, 8]));
    set.on_feedback(at(49), 1, Delivered);
    let explored: Vec<u16> = (0..10).map(|_| next(&mut set, at(50))).collect();
    assert!(explored.iter().all(|path| *path > 8), "{explored:?}");
    assert_eq!(next(&mut set, at(50)), 1);
}

#[test]
fn a_path_that_loses_everything_is_excluded_and_probed_less_and_less_often() {
    for text in ["round-robin", "penalty", "recycle", "reps"] {
        let mut set = set(&(String::from(text) + ":paths=8,probe=100"));
        assert!(!set.on_feedback(NOW, 3, Lost), "{text}: one may be congestion");
        set.on_feedback(NOW, 3, Delivered);
        assert!(!set.on_feedback(NOW, 3, Lost) && set.on_feedback(NOW, 3, Lost) && set.is_excluded(3));
        let mut probes = Vec::new();
        for micros in 0..2_000 {
            if next(&mut set, at(micros)) == 3 {
                set.on_feedback(at(micros), 3, Lost);
                probes.push(micros);
            }
        }
        assert_eq!(probes, [100, 300, 700, 1_500], "{text}");
        let again = (0..20).filter(|_| set.next_again(at(2_000)) == 3).count();
        assert_eq!(again, 0, "{text}: what is sent again takes no chance");
        set.on_feedback(at(2_000), 3, Delivered);
        let used = (0..200).filter(|_| next(&mut set, at(2_000)) == 3).count();
        assert!(used > 5, "{text}: {used} of 200");
    }
}

#[test]
fn if_every_path_is_excluded_all_are_used() {
    let mut set = set("round-robin:paths=4,losses=1");
    for path in 0..4 {
        assert!(set.on_feedback(NOW, path, Lost));
    }
    assert_eq!(take(&mut set, 4).into_iter().collect::<HashSet<_>>().len(), 4);
    set.on_feedback(NOW, 2, Delivered);
    assert_ne!(next(&mut set, NOW), 2, "a probe");
    assert_eq!(take(&mut set, 8), [2; 8]);
}

/// One failed link of the network takes many paths. They are probed in turn, and each probe that succeeds
/// lets the next one leave at once.
#[test]
fn excluded_paths_share_the_probes() {
    let mut set = set("round-robin:paths=16,losses=1");
    for path in 8..16 {
        assert!(set.on_feedback(NOW, path, Lost));
    }
    let mut probes = Vec::new();
    for micros in 0..1_000 {
        let path = next(&mut set, at(micros));
        if path >= 8 {
            set.on_feedback(at(micros), path, Lost);
            probes.push((micros, path));
        }
    }
    assert_eq!(probes, [(100, 15), (300, 14), (700, 13)], "the newest first");
    set.on_feedback(at(1_000), 13, Delivered);
    for (micros, path) in [(1_000, 12), (1_010, 11), (1_020, 10)] {
        assert_eq!(next(&mut set, at(micros)), path);
        for _ in 0..100 {
            let other = next(&mut set, at(micros + 5));
            assert!(!set.is_excluded(other), "one at a time");
        }
        set.on_feedback(at(micros + 10), path, Delivered);
    }
}

#[test]
fn what_is_sent_again_takes_the_path_of_the_newest_delivered_packet() {
    let mut set = set("reps:paths=1024");
    for (path, feedback) in [(5, Delivered), (6, Delivered), (7, Marked), (8, Trimmed), (9, Lost)] {
        set.on_feedback(NOW, path, feedback);
    }
    assert_eq!([(); 3].map(|()| set.next_again(NOW)), [6; 3]);
    set.on_feedback(NOW, 6, Lost);
    assert_ne!(set.next_again(NOW), 6, "it may have failed since");
}

/// A policy of another crate that names no path of the set.
#[derive(Debug)]
struct Wild(u16);

impl PathPolicy for Wild {
    fn next(&mut self, _: Instant) -> u16 {
        self.0 = self.0.wrapping_mul(31).wrapping_add(0x1234);
        self.0
    }
}

#[test]
fn a_policy_from_outside_cannot_leave_the_set() {
    let policy = Policy::custom("wild", |start| Box::new(Wild(start.paths)));
    let mut set = PathSet::new(&Paths::new(policy), 0).unwrap();
    assert!((0..1_000).all(|_| next(&mut set, NOW) < 64));
    set.on_feedback(NOW, u16::MAX, Lost);
    assert!(set.on_feedback(NOW, u16::MAX, Lost) && set.is_excluded(63));
    assert!((0..1_000).all(|_| next(&mut set, NOW) < 63));
}

#[test]
fn text_is_read_as_it_is_written() {
    for text in ["one", "round-robin", "penalty:paths=8", "recycle:losses=0", "reps:cache=16,probe=5,paths=2"]
    {
        let paths: Paths = text.parse().unwrap();
        assert_eq!(paths.to_string().parse::<Paths>().unwrap(), paths, "{text}");
    }
    assert!(PathSet::new(&Paths::one(), 0).is_none());
    let error = |text: &str| {
        let error = text.parse::<Paths>().unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        (error.to_string(), source.unwrap_or_default())
    };
    let (unknown, _) = error("ecmp");
    assert_eq!(
        unknown,
        "there is no policy for paths \"ecmp\"; there are one, round-robin, penalty, recycle, reps"
    );
    let (name, reason) = error("reps:paths=0");
    assert_eq!(
        (name.as_str(), reason.as_str()),
        ("invalid parameter of reps", "paths is \"0\" and must be 1 to 1024")
    );
    assert_eq!(error("penalty:cache=3").1, "there is no parameter \"cache\"; there are paths, losses, probe");
    assert!(error("one:paths=3").1.starts_with("there is no parameter \"paths\""));
}
