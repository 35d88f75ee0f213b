//! Rule 21: requests under way, and who waits for whom.

use roce_packet::Transport;
use roce_packet::mad::CmMessage;

use super::findings::count_of;
use super::judgement::{Role, Scene, Verdict};
use super::rules;
use crate::window::{Silence, Window, window};
use crate::words::duration;

/// Measures the requests of both ends of a connection.
pub(super) fn of_connection(scene: &Scene<'_>) -> Vec<Verdict> {
    let of_end = |end| Some(of_end(scene, end)?.of(scene.party(Role::Requester, end)));
    (0..2).filter_map(of_end).collect()
}

fn of_end(scene: &Scene<'_>, end: usize) -> Option<Verdict> {
    let connection = scene.connection;
    if connection.transport == Transport::Uc || connection.requester(end)?.sent.is_empty() {
        return None;
    }
    let address = connection.ends.get(end)?.address;
    if !scene.has_times() {
        let because = "the file contains no times, so neither the mean window nor waiting times are known";
        return Some(Verdict::unknown(&rules::IN_FLIGHT, because));
    }
    let Some(window) = window(&scene.analysis.records, connection, connection.view_of(end)?, end) else {
        let because = format!("no answer to the requests of {address} was captured");
        return Some(Verdict::unknown(&rules::IN_FLIGHT, because));
    };
    let (waiting, idle): (Vec<Silence>, Vec<Silence>) =
        window.silences.iter().partition(|silence| silence.under_way > 0);
    let (waited, was_idle) = (total_us(&waiting), total_us(&idle));
    let longest_wait =
        waiting.iter().filter(|silence| silence.ends_with_answer).max_by_key(|silence| silence.ns);
    let who = who_waits(&window, waited, was_idle, longest_wait);
    let allowed = (window.most_reads > 1).then(|| allowed_reads(scene, end)).flatten();
    let verdict = match allowed.filter(|allowed| window.most_reads > *allowed) {
        Some(allowed) => {
            let text = format!(
                "{address} has {} READs and atomics under way, and its peer allows {allowed}",
                window.most_reads
            );
            Verdict::fail(&rules::IN_FLIGHT, text).at(scene.place(window.most_reads_at))
        }
        None => {
            let text = format!(
                "{address} has up to {} PSNs under way, {:.1} on average; {who}",
                window.most, window.mean
            );
            let longest = waiting.iter().chain(&idle).max_by_key(|silence| silence.ns);
            Verdict::pass(&rules::IN_FLIGHT, text)
                .at(longest_wait.or(longest).and_then(|silence| scene.place(silence.after)))
        }
    };
    let longest = window.silences.iter().map(|silence| silence.ns).max().unwrap_or(0);
    let verdict = verdict
        .with("most_under_way", window.most as f64)
        .with("mean_under_way", window.mean)
        .with("most_reads_under_way", window.most_reads as f64)
        .with("median_interval_us", window.median_ns as f64 / 1e3)
        .with("waits_for_responder", waiting.len() as f64)
        .with("waited_for_responder_us", waited)
        .with("idle_times", idle.len() as f64)
        .with("idle_us", was_idle)
        .with("longest_silence_us", longest as f64 / 1e3);
    Some(match allowed {
        Some(allowed) => verdict.with("allowed_reads", allowed as f64),
        None => verdict,
    })
}

fn total_us(silences: &[Silence]) -> f64 {
    silences.iter().map(|silence| silence.ns).sum::<u64>() as f64 / 1e3
}

/// Says who waits for whom, and how long an answer took at most.
fn who_waits(window: &Window, waited: f64, was_idle: f64, longest_wait: Option<&Silence>) -> String {
    let share = |us: f64| match window.elapsed_ns {
        0 => 0.0,
        elapsed => us * 1e5 / elapsed as f64,
    };
    let who = if waited.max(was_idle) == 0.0 {
        "nobody waits for long".to_owned()
    } else if waited >= was_idle {
        format!("it waits {:.0} % of the time for the responder", share(waited))
    } else {
        format!("it has nothing under way {:.0} % of the time", share(was_idle))
    };
    match longest_wait {
        Some(silence) => format!(
            "{who}; the longest wait for an answer took {}, with {} under way",
            duration(silence.ns),
            count_of(silence.under_way, "PSN")
        ),
        None => who,
    }
}

/// Returns how many READs and atomics the peer of an end accepts at once, if connection management says it.
fn allowed_reads(scene: &Scene<'_>, end: usize) -> Option<usize> {
    let own = scene.connection.ends.get(end)?;
    let peer = scene.connection.ends.get(1_usize.checked_sub(end)?)?;
    scene.analysis.exchanges.iter().find_map(|exchange| {
        let req = exchange.first(&scene.analysis.cm, "REQ")?;
        let rep = exchange.first(&scene.analysis.cm, "REP")?;
        let (CmMessage::Req(req), CmMessage::Rep(rep)) = (&*req.message, &*rep.message) else { return None };
        let active = (exchange.active, Some(req.local_qpn));
        let passive = (exchange.passive, Some(rep.local_qpn));
        let (own, peer) = ((own.address, own.qpn), (peer.address, peer.qpn));
        if (own, peer) == (active, passive) {
            Some(usize::from(rep.responder_resources))
        } else {
            ((peer, own) == (active, passive)).then_some(usize::from(req.responder_resources))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, of_connection as judge};
    use super::*;
    use crate::testing::wire::{Sketch, Wire};

    fn verdict(wire: &Wire) -> Verdict {
        let analysis = wire.analyze();
        let mut found = judge(&analysis, &analysis.connections[0]);
        found.retain(|verdict| verdict.rule.number == 21);
        let [verdict] = &found[..] else { panic!("one requester: {found:?}") };
        verdict.clone()
    }

    fn figure(verdict: &Verdict, name: &str) -> f64 {
        verdict.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value).unwrap()
    }

    #[test]
    fn the_window_is_measured() {
        let mut wire = Wire::default();
        for psn in 0..4 {
            wire.at_us(u64::from(psn), Sketch::send(1, psn));
        }
        wire.at_us(6, Sketch::ack(2, 3, 4));
        let verdict = verdict(&wire);
        assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.summary);
        assert_eq!(figure(&verdict, "most_under_way"), 4.0);
        // One, two and three for a microsecond each, and four for three.
        assert!((figure(&verdict, "mean_under_way") - 3.0).abs() < 1e-9, "{verdict:?}");
    }

    /// Pairs of request and answer; `answer_us` and `next_us` are the times between them.
    fn ping(answer_us: u64, next_us: u64) -> Verdict {
        let (mut wire, mut time) = (Wire::default(), 0);
        for psn in 0..20 {
            let is_slow = psn % 5 == 4;
            wire.at_us(time, Sketch::send(1, psn));
            time += if is_slow { answer_us } else { 2 };
            wire.at_us(time, Sketch::ack(2, psn, psn + 1));
            time += if is_slow { next_us } else { 2 };
        }
        verdict(&wire)
    }

    #[test]
    fn the_one_who_waits_is_named() {
        let slow = ping(500, 2);
        assert_eq!((figure(&slow, "waits_for_responder"), figure(&slow, "idle_times")), (4.0, 0.0));
        assert!(slow.summary.contains("for the responder"), "{}", slow.summary);
        let idle = ping(2, 500);
        assert_eq!((figure(&idle, "waits_for_responder"), figure(&idle, "idle_times")), (0.0, 3.0));
        assert!(idle.summary.contains("nothing under way"), "{}", idle.summary);
    }

    #[test]
    fn another_connection_begins_with_nothing_under_way() {
        let mut wire = Wire::default();
        for (number, psn) in [1, 5_000_000].into_iter().enumerate() {
            let time = 100 * number as u64;
            wire.at_us(time, Sketch::send(1, psn));
            wire.at_us(time + 5, Sketch::ack(2, psn, 1));
        }
        assert_eq!(figure(&verdict(&wire), "most_under_way"), 1.0);
    }

    #[test]
    fn requests_without_answers_are_unknown() {
        let mut wire = Wire::default();
        wire.at_us(0, Sketch::send(1, 1));
        assert_eq!(verdict(&wire).outcome, Outcome::Unknown);
    }

    #[test]
    fn more_reads_than_the_peer_allows_fail() {
        let mut wire = Wire::default();
        crate::testing::management::connect(&mut wire);
        for number in 0..5 {
            wire.at_us(50_000 + u64::from(number), Sketch::read(1, 100 + number, 64));
        }
        let response =
            Sketch { opcode: roce_packet::Opcode::RC_RDMA_READ_RESPONSE_ONLY, ..Sketch::ack(2, 100, 1) };
        wire.at_us(50_010, Sketch { payload: 64, ..response });
        let verdict = verdict(&wire);
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
        assert_eq!(figure(&verdict, "allowed_reads"), 4.0);
    }
}
