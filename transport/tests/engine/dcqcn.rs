//! Tests of DCQCN against step-by-step models, and against the formulas of the paper and the device.

use roce_packet::Qpn;
use roce_transport::congestion::{
    Congestion, CongestionControl, Dcqcn, DcqcnForm, DcqcnParameters, Rate, Start,
};
use roce_transport::{Instant, with_causes};

const LINE: f64 = 40e9;

fn at(micros: f64) -> Instant {
    Instant::from_nanos((micros * 1000.0) as u64)
}

fn new(parameters: &DcqcnParameters) -> Dcqcn {
    let start =
        Start { now: at(0.0), qpn: Qpn::new(0x11), mtu: 1024, line_rate: Rate::megabits_per_second(40_000) };
    Dcqcn::new(parameters, &start)
}

fn preset(name: &str) -> DcqcnParameters {
    DcqcnParameters::preset(name).expect("the preset exists")
}

#[track_caller]
fn assert_close(found: f64, expected: f64, what: &str) {
    let relative = (found - expected).abs() / expected.abs().max(1e-300);
    assert!(relative < 1e-9, "{what}: {found} instead of {expected}");
}

/// Returns a pseudo-random number below `limit` and advances `state`.
fn draw(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

/// Alpha as the device updates it in each period.
struct EachPeriod {
    alpha: f64,
    kept: f64,
    notified: bool,
    next_nanos: u64,
    period_nanos: u64,
}

impl EachPeriod {
    fn run_to(&mut self, nanos: u64) {
        while self.next_nanos <= nanos {
            let g = if self.notified { 1.0 - self.kept } else { 0.0 };
            self.alpha = self.kept * self.alpha + g;
            self.notified = false;
            self.next_nanos += self.period_nanos;
        }
    }
}

#[test]
fn alpha_of_the_device_is_that_of_a_model_with_an_event_each_period() {
    let parameters = preset("cx-default");
    let mut dcqcn = new(&parameters);
    let first = 12_345;
    dcqcn.on_cnp(Instant::from_nanos(first));
    let mut model = EachPeriod {
        alpha: 1023.0 / 1024.0,
        kept: 1019.0 / 1024.0,
        notified: false,
        next_nanos: first + 1_000,
        period_nanos: 1_000,
    };
    let (mut now, mut state) = (first, 7);
    for round in 0..20_000 {
        // Sometimes several in one period, sometimes a long gap.
        now += if draw(&mut state, 10) == 0 { draw(&mut state, 900_000) } else { draw(&mut state, 700) };
        model.run_to(now);
        let alpha = dcqcn.observe(Instant::from_nanos(now)).alpha.unwrap();
        assert!((alpha - model.alpha).abs() < 1e-6, "round {round}: {alpha} instead of {}", model.alpha);
        dcqcn.on_cnp(Instant::from_nanos(now));
        model.notified = true;
    }
}

#[test]
fn alpha_of_the_paper_is_that_of_a_model_with_an_event_each_period() {
    let mut dcqcn = new(&preset("paper"));
    let (kept, g, period) = (255.0 / 256.0, 1.0 / 256.0, 55_000);
    let (mut now, mut state) = (1_000, 3);
    let mut alpha = 1.0;
    let mut decays_at = u64::MAX;
    for round in 0..20_000 {
        now += if draw(&mut state, 10) == 0 { draw(&mut state, 9_000_000) } else { draw(&mut state, 60_000) };
        while decays_at <= now {
            alpha *= kept;
            decays_at += period;
        }
        let found = dcqcn.observe(Instant::from_nanos(now)).alpha.unwrap();
        assert!((found - alpha).abs() < 1e-6, "round {round}: {found} instead of {alpha}");
        dcqcn.on_cnp(Instant::from_nanos(now));
        alpha = kept * alpha + g;
        decays_at = now + period;
    }
}

/// The rate after notifications 50 us apart, by the paper: the cut uses the previous alpha.
#[test]
fn rate_after_notifications_by_the_paper() {
    for alpha_first in [false, true] {
        let parameters = DcqcnParameters { alpha_first, rpg_min_rate: 1, ..preset("paper") };
        let mut dcqcn = new(&parameters);
        let (mut rate, mut alpha) = (LINE, 1.0);
        for cut in 0..12_u32 {
            let now = at(50.0 * f64::from(cut));
            dcqcn.on_cnp(now);
            let raised = alpha * 255.0 / 256.0 + 1.0 / 256.0;
            let target = rate;
            rate *= 1.0 - if alpha_first { raised } else { alpha } / 2.0;
            alpha = raised;
            let seen = dcqcn.observe(now);
            assert_close(seen.rate, rate.max(1e6), "rate");
            assert_close(seen.target_rate.unwrap(), target, "target");
            assert_close(seen.alpha.unwrap(), alpha, "alpha");
            assert_eq!(dcqcn.rate().get(), (rate.max(1e6) + 0.5) as u64);
        }
    }
}

/// The rate by the device: at most one cut per monitor period. A notification within the period takes effect
/// at its end. The target is unchanged unless the timer has raised the rate since the last cut.
#[test]
fn rate_after_notifications_by_the_device() {
    let parameters = preset("cx-default");
    let mut dcqcn = new(&parameters);
    dcqcn.on_cnp(at(10.0));
    let first = 1.0 - 1023.0 / 1024.0 / 2.0;
    assert_close(dcqcn.observe(at(10.0)).rate, LINE * first, "the first cut");
    dcqcn.on_cnp(at(11.5));
    dcqcn.on_cnp(at(12.0));
    assert_close(dcqcn.observe(at(13.9)).rate, LINE * first, "inside the monitor period");
    // Periods end at 11, 12 (notified), 13 (notified), 14.
    let kept = 1019.0 / 1024.0;
    let mut alpha = 1023.0 / 1024.0 * kept;
    alpha = kept * alpha + (1.0 - kept);
    alpha = kept * alpha + (1.0 - kept);
    alpha *= kept;
    let seen = dcqcn.observe(at(14.0));
    assert_close(seen.alpha.unwrap(), alpha, "alpha");
    let second = LINE * first * (1.0 - alpha / 2.0).max(0.5);
    assert_close(seen.rate, second, "the second cut");
    assert_close(seen.target_rate.unwrap(), LINE, "the target is kept");
    assert_eq!(dcqcn.next_timer(), Some(at(14.0)), "the cut is what comes next");
    // The timer raises the rate at 314; the next cut then clamps the target.
    dcqcn.on_timer(at(314.0));
    let raised = (second + LINE) / 2.0;
    assert_close(dcqcn.observe(at(314.0)).rate, raised, "fast recovery");
    dcqcn.on_cnp(at(400.0));
    assert_close(dcqcn.observe(at(400.0)).target_rate.unwrap(), raised, "clamped after an increase by time");
}

/// Rates and targets from recovery to hyper increase by the timer only, as in the device without byte
/// counter.
#[test]
fn stages_of_recovery_by_the_timer() {
    let parameters = DcqcnParameters { rpg_threshold: 3, ..preset("hpcc") };
    let mut dcqcn = new(&parameters);
    dcqcn.on_cnp(at(0.0));
    let (mut rate, mut target) = (LINE / 2.0, LINE);
    // Another cut lowers the target, so that there is room above it.
    dcqcn.on_timer(at(300.0));
    rate = (rate + target) / 2.0;
    dcqcn.on_cnp(at(301.0));
    target = rate;
    rate = dcqcn.observe(at(301.0)).rate;
    for step in 1..40_u32 {
        let now = at(301.0 + 300.0 * f64::from(step));
        let raise = match step {
            1..=3 => 0.0,
            4 => 20e6,
            _ => 200e6,
        };
        target = (target + raise).min(LINE);
        rate = (rate + target) / 2.0;
        let seen = dcqcn.observe(now);
        assert_close(seen.target_rate.unwrap(), target, "target");
        assert!((seen.rate - rate).abs() < 2.0, "step {step}: {} instead of {rate}", seen.rate);
    }
}

/// Both counters, by the paper: fast recovery while both are below F, hyper increase with a growing step when
/// both are above.
#[test]
fn stages_of_recovery_by_timer_and_bytes() {
    let parameters = DcqcnParameters { rpg_threshold: 2, rpg_byte_reset: 1_000, ..preset("paper") };
    let mut dcqcn = new(&parameters);
    dcqcn.on_cnp(at(0.0));
    dcqcn.on_cnp(at(1.0));
    let mut rate = dcqcn.observe(at(1.0)).rate;
    let mut target = dcqcn.observe(at(1.0)).target_rate.unwrap();
    assert_close(target, LINE / 2.0, "the second cut clamps the target");
    let (mut time, mut byte) = (0_u32, 0_u32);
    let mut kinds = Vec::new();
    for step in 1..=12_u32 {
        let now = at(1.0 + 55.0 * f64::from(step));
        for by_time in [true, false] {
            let raise = match (time.max(byte) < 2, time.min(byte)) {
                (true, _) => 0.0,
                (false, ..=2) => 40e6,
                (false, least) => 200e6 * f64::from(least - 2),
            };
            kinds.push(if raise == 0.0 {
                'f'
            } else if raise < 50e6 {
                'a'
            } else {
                'h'
            });
            target = (target + raise).min(LINE);
            rate = (rate + target) / 2.0;
            if by_time {
                dcqcn.on_timer(now);
                time += 1;
            } else {
                dcqcn.on_send(now, 64_000);
                byte += 1;
            }
            let seen = dcqcn.observe(now);
            assert_close(seen.target_rate.unwrap(), target, "target");
            assert!((seen.rate - rate).abs() < 2.0, "step {step}: {} instead of {rate}", seen.rate);
        }
    }
    assert_eq!(kinds.iter().collect::<String>(), "fffaaahhhhhhhhhhhhhhhhhh");
}

/// The state does not depend on the number of observations or calls in between.
#[test]
fn calls_in_between_change_nothing() {
    for name in DcqcnParameters::PRESETS {
        let parameters = preset(name);
        let (mut rare, mut often) = (new(&parameters), new(&parameters));
        let mut state = 11;
        let mut now = 0;
        for _ in 0..500 {
            let next = now + draw(&mut state, 400_000);
            for step in 0..20 {
                let between = Instant::from_nanos(now + (next - now) * step / 20);
                often.on_timer(between);
                let _ = often.observe(between);
            }
            now = next;
            rare.on_cnp(Instant::from_nanos(now));
            often.on_cnp(Instant::from_nanos(now));
            let [rare, often] = [&rare, &often].map(|one| one.observe(Instant::from_nanos(now)));
            assert_close(often.rate, rare.rate, name);
            assert!((often.alpha.unwrap() - rare.alpha.unwrap()).abs() < 1e-9, "{name}: alpha");
        }
    }
}

/// A flood of notifications: the rate is never below the minimum, and returns to the line rate.
#[test]
fn a_flood_ends_at_the_floor_and_the_rate_comes_back() {
    for name in DcqcnParameters::PRESETS {
        let parameters = preset(name);
        let mut dcqcn = new(&parameters);
        let floor = u64::from(parameters.rpg_min_rate) * 1_000_000;
        for micros in 0..20_000 {
            dcqcn.on_cnp(at(f64::from(micros)));
            assert!(dcqcn.rate().get() >= floor, "{name}");
        }
        // The form `ns3` changes the rate only at the next packet, and reports the line rate as a number.
        dcqcn.on_send(at(20_000.0), 0);
        assert_eq!(dcqcn.rate().get(), floor, "{name}");
        dcqcn.on_timer(at(20e6));
        dcqcn.on_send(at(20e6), 0);
        assert!(dcqcn.rate().get() as f64 >= LINE, "{name}: {}", dcqcn.rate());
        assert_eq!(dcqcn.rate().is_unlimited(), name != "ns3", "{name}");
        assert_eq!(dcqcn.next_timer(), None, "{name}: nothing is left to do");
        assert_eq!(dcqcn.observe(at(20e6)).rate, LINE, "{name}");
    }
}

#[test]
fn the_first_notification_can_set_a_rate() {
    let parameters = DcqcnParameters { rate_to_set_on_first_cnp: 3_000, ..preset("cx-default") };
    let mut dcqcn = new(&parameters);
    dcqcn.on_cnp(at(5.0));
    assert_eq!(dcqcn.rate(), Rate::megabits_per_second(3_000));
    dcqcn.on_cnp(at(10.0));
    assert!(dcqcn.rate() < Rate::megabits_per_second(3_000));
}

#[test]
fn cap_floor_and_share_of_a_cut() {
    let parameters =
        DcqcnParameters { rpg_max_rate: 10_000, rpg_min_dec_fac: 80, rpg_gd: 10, ..preset("cx-default") };
    let mut dcqcn = new(&parameters);
    assert_eq!(dcqcn.rate(), Rate::megabits_per_second(10_000));
    dcqcn.on_cnp(at(0.0));
    assert_eq!(dcqcn.rate(), Rate::megabits_per_second(8_000), "gd 10 would take all, the share keeps 80 %");
    dcqcn.on_timer(at(1e6));
    assert_eq!(dcqcn.rate(), Rate::megabits_per_second(10_000));
}

#[test]
fn parameters_as_text() {
    let (congestion, point) =
        Congestion::parse("dcqcn:paper,rpg_ai_rate=100,rp_hai_rate=400,np_cnp_prio=5,cnp_scope=port,echo=1")
            .unwrap();
    assert!(congestion.echo);
    let text = congestion.algorithm.to_string();
    assert!(text.contains("rpg_ai_rate=100,rpg_hai_rate=400,"), "{text}");
    assert!(text.contains("form=paper"), "{text}");
    assert_eq!((point.min_time_between_cnps, point.cnp_802p_prio), (50, 5));
    assert_eq!(Congestion::parse(&text).unwrap().0.algorithm, congestion.algorithm, "text goes both ways");
    assert_eq!(preset("cx-default"), DcqcnParameters::default());
    assert_eq!(preset("paper").form, DcqcnForm::Paper);
    for parameter in DcqcnParameters::PARAMETERS {
        assert!(!parameter.meaning.is_empty() && !parameter.meaning.starts_with(' '), "{parameter:?}");
    }
}

#[test]
fn wrong_text_is_refused_with_what_would_be_right() {
    for (text, needed) in [
        (
            "dcqn",
            "there is no congestion control \"dcqn\"; there are none, fixed, dcqcn, dctcp, swift, timely, \
             hpcc, powertcp",
        ),
        ("dcqcn:cx", "there is no preset \"cx\" of dcqcn; there are paper, cx-default, hpcc, ns3, tester"),
        ("dcqcn:rpg_gd=16", "rpg_gd is \"16\" and must be 0 to 15"),
        ("dcqcn,rpg_time_reset=0", "rpg_time_reset is \"0\" and must be 1 to 131071 us"),
        ("dcqcn,form=both", "form is \"both\" and must be paper, device, ns3"),
        ("dcqcn,gd=11", "there is no parameter \"gd\"; there are clamp_tgt_rate, "),
        ("dcqcn:paper,rpg_gd", "\"rpg_gd\" is not of the form name=value"),
        ("dcqcn,echo=2", "echo is \"2\" and must be 0 to 1"),
        ("fixed", "fixed: \"\" is not a rate; write for example 10Gbps"),
        (
            "fixed:10",
            "\"10\" is not a rate; write for example 10Gbps; the units are bps, Kbps, Mbps, Gbps and Tbps",
        ),
        ("fixed:0", "\"0\" is not a rate"),
        ("fixed:10Q", "\"10Q\" is not a rate"),
        ("none,rpg_gd=1", "none: there is no parameter \"rpg_gd\"; there are cnp_enable, "),
    ] {
        let message = with_causes(&Congestion::parse(text).expect_err(text)).to_string();
        assert!(message.contains(needed), "{text}: {message}");
    }
}
