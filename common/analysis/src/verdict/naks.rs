//! Rule 2: one NAK per gap.

use super::findings::count_of;
use super::judgement::{Scene, Verdict};
use super::rules::NAKS;
use crate::replay::{GapEnd, Replay, SequenceNak};

pub(super) fn check(scene: &Scene<'_>) -> Vec<Verdict> {
    if scene.is_reliable() { scene.of_responders(judge) } else { Vec::new() }
}

fn judge(scene: &Scene<'_>, replay: &Replay) -> Option<Verdict> {
    let naks = &replay.naks;
    let lost = replay.gaps.iter().filter(|gap| gap.end == GapEnd::Resent).count();
    if naks.is_empty() && lost == 0 {
        return None;
    }
    let places =
        |wrong: &[&SequenceNak]| -> Vec<_> { wrong.iter().filter_map(|nak| scene.place(nak.at)).collect() };
    let of = |is_wrong: fn(&SequenceNak) -> bool| -> Vec<&SequenceNak> {
        naks.iter().filter(|nak| is_wrong(nak)).collect()
    };
    let acknowledged = of(|nak| nak.was_acknowledged);
    let repeated = of(|nak| !nak.was_acknowledged && nak.repeats.is_some());
    let early = of(|nak| !nak.was_acknowledged && !nak.has_later);
    let figures =
        |verdict: Verdict| verdict.with("naks", naks.len() as f64).with("repeated", repeated.len() as f64);
    let verdict = if !acknowledged.is_empty() {
        let count = acknowledged.len();
        Verdict::fail(&NAKS, format!("{count} NAKs ask for a PSN that the responder had acknowledged before"))
            .at(places(&acknowledged))
    } else if !repeated.is_empty() {
        let count = repeated.len();
        Verdict::fail(
            &NAKS,
            format!("{count} NAKs repeat an earlier one although the requester had not sent the PSN again"),
        )
        .at(places(&repeated))
    } else if !early.is_empty() {
        let count = early.len();
        Verdict::unknown(
            &NAKS,
            format!("{count} NAKs come before any later PSN was captured, so the capture lacks requests"),
        )
        .at(places(&early))
    } else if naks.is_empty() {
        Verdict::unknown(
            &NAKS,
            format!(
                "{lost} gaps were filled without a captured NAK: it was lost before this place, or the timeout came first"
            ),
        )
    } else {
        Verdict::pass(
            &NAKS,
            format!("{}, each once and with the PSN that was expected", count_of(naks.len() as u64, "NAK")),
        )
    };
    Some(figures(verdict))
}

#[cfg(test)]
mod tests {
    use roce_packet::{NakCode, Syndrome};

    use super::*;
    use crate::testing::frames::{Wire, ack, expect, from_b, judge, send};
    use crate::verdict::Outcome;

    fn nak(psn: u32) -> crate::testing::frames::Sketch {
        from_b(roce_packet::Opcode::RC_ACKNOWLEDGE, psn).aeth(Syndrome::Nak(NakCode::PsnSequence), 1)
    }

    /// The capture begins behind the lost packet, so nothing shows that it was acknowledged.
    #[test]
    fn a_nak_for_a_packet_before_the_capture_is_not_blamed() {
        let mut wire = Wire::new();
        wire.add(send(1000, 8)).add(nak(990));
        wire.add_all((990..=1000).map(|psn| send(psn, 8))).add(ack(1000, 12));
        assert_ne!(judge(&wire, &NAKS).outcome, Outcome::Fail, "{}", judge(&wire, &NAKS).summary);
        // Once it is acknowledged, it is.
        wire.add(nak(995));
        expect(&judge(&wire, &NAKS), Outcome::Fail, "1 NAKs ask for a PSN", &[15]);
    }
}
