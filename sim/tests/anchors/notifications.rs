//! The stars of the anchors with notification packets instead of marks echoed in acknowledgements.

use super::{
    ANCHORS, Anchor, CONWEAVE, Congestion, Figures, NotificationPoint, Settings, medians, ns3_dcqcn,
    print_cells, print_row,
};

const SEEDS: u64 = 5;

/// The path of marks back to the sender, and the sender's reaction.
#[derive(Clone, Copy, Debug)]
enum Mode {
    /// In acknowledgements, one for each packet, as in the anchors.
    Echo,
    /// A CNP for each marked packet.
    EveryMark,
    /// CNPs at the interval of the notification point.
    Paced,
    /// CNPs at that interval, with the shipped reaction point.
    Shipped,
}

/// Returns the preset and the minimum time between two CNPs in µs of an anchor.
fn preset(anchor: &Anchor) -> (&'static str, u32) {
    if anchor.rate_bps == 40_000_000_000 { ("dcqcn:paper", 50) } else { ("dcqcn:hpcc", 4) }
}

fn settings(anchor: &Anchor, mode: Mode, seed: u64) -> Settings {
    let mut settings = anchor.settings(CONWEAVE, seed);
    let (name, interval) = preset(anchor);
    let host = &mut settings.host;
    let algorithm = match mode {
        Mode::Echo => return settings,
        Mode::EveryMark | Mode::Paced => ns3_dcqcn(&anchor.dcqcn),
        Mode::Shipped => Congestion::parse(name).unwrap().0.algorithm,
    };
    host.congestion = Congestion { algorithm, echo: false };
    let min_time_between_cnps = if matches!(mode, Mode::EveryMark) { 0 } else { interval };
    host.notification = NotificationPoint { min_time_between_cnps, ..host.notification };
    settings
}

/// Prints all modes and returns the relative distances of the slowest flow and of the queue's 90th percentile
/// from the echo.
fn compare(anchor: &Anchor) -> [[f64; 2]; 3] {
    println!("{}, ConWeave's buffer: marks echoed, and notification packets", anchor.name);
    let ideal = anchor.ideal_ms();
    let figures = |mode| -> Figures {
        let figures = medians(&anchor.runs(SEEDS, |seed| settings(anchor, mode, seed)));
        let name = format!("{mode:?}");
        print_row(&name, &figures, ideal);
        let cells = [figures.0[2] / ideal, figures.1[1]].map(|cell| cell.to_string());
        print_cells("notifications", &[&[anchor.name.to_owned(), name][..], &cells].concat());
        figures
    };
    let echo = figures(Mode::Echo);
    [Mode::EveryMark, Mode::Paced, Mode::Shipped].map(|mode| {
        let own = figures(mode);
        [own.0[2] / echo.0[2] - 1.0, own.1[1] / echo.1[1] - 1.0]
    })
}

/// Checks tolerances relative to the echo's figures. They allow for the spread of seeds.
#[track_caller]
fn check(anchor: &Anchor, most_queue: f64) {
    for [slowest, queue] in compare(anchor) {
        assert!(slowest.abs() < 0.12, "{}: slowest {slowest:+.3}", anchor.name);
        assert!(queue.abs() < most_queue, "{}: queue {queue:+.3}", anchor.name);
    }
}

#[test]
fn star2() {
    check(&ANCHORS[0], 0.15);
}

#[test]
fn star8() {
    check(&ANCHORS[1], 0.3);
}

#[test]
fn star16() {
    check(&ANCHORS[2], 0.45);
}

/// The reaction point of the paper cuts at once instead of at the next tick, so its queue is about half as
/// long.
#[test]
fn star2_at_40g() {
    check(&ANCHORS[3], 0.55);
}

/// The first burst is a tenth of the time, so the 90th percentile includes it only by chance.
#[test]
fn star20_at_40g() {
    check(&ANCHORS[4], f64::INFINITY);
}

/// The pace of CNPs causes the difference: at 1 us, the period of alpha, CNPs work as well as marks.
#[test]
fn star16_with_a_cnp_for_each_period_of_alpha() {
    let anchor = &ANCHORS[2];
    let queue = |interval| {
        let runs = anchor.runs(SEEDS, |seed| {
            let mut settings = settings(anchor, Mode::Paced, seed);
            settings.host.notification.min_time_between_cnps = interval;
            settings
        });
        let figures = medians(&runs);
        print_row(&format!("CNPs every {interval} us"), &figures, anchor.ideal_ms());
        figures.1[1]
    };
    let (one, four, sixteen) = (queue(1), queue(4), queue(16));
    assert!(one < 0.95 * four && four < 0.95 * sixteen, "{one} {four} {sixteen}");
}
