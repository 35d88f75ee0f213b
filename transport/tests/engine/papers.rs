//! Tests of the algorithms against the pseudocode of their papers, one for each line. `telemetry_laws` and
//! `dcqcn` run whole laws over random events; these tests identify the wrong line.

use std::time::Duration;

use roce_packet::{Qpn, Telemetry, TelemetryHop};
use roce_transport::Instant;
use roce_transport::congestion::{
    Ack, CongestionControl, Dcqcn, DcqcnParameters, Dctcp, DctcpParameters, Feedback, Hpcc, HpccParameters,
    Loss, PowerTcp, PowerTcpParameters, Rate, Start, Swift, SwiftParameters, ThetaPowerTcp, Timely,
    TimelyForm, TimelyParameters,
};

const MTU: u64 = 1_000;

fn start() -> Start {
    Start {
        now: Instant::ZERO,
        qpn: Qpn::new(0x11),
        mtu: 1_000,
        line_rate: Rate::megabits_per_second(100_000),
    }
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{value} instead of {expected}");
}

/// The stamp of one port: ns, bytes sent, bytes queued. Its rate is 100 Gb/s, 12.5 bytes per nanosecond.
type Port = (u64, u64, u64);

/// Passes `law` an acknowledgement of one packet with the stamps of these ports.
fn stamped(law: &mut dyn CongestionControl, ports: &[Port], in_flight: u64) {
    let mut telemetry = Telemetry::default();
    for (number, (ns, sent, queue)) in (0..).zip(ports) {
        telemetry.push(TelemetryHop::new(100_000_000_000, *ns, *sent, *queue), number);
    }
    let now = at(ports[0].0 + 1_000);
    law.on_telemetry(now, &telemetry);
    law.on_ack(now, &Ack { bytes: MTU, in_flight, ..Ack::default() });
}

fn window(law: &dyn CongestionControl) -> f64 {
    // The observed rate is window / T, without rounding.
    law.observe(at(0)).rate * T / 8.0
}

/// The base round trip of the tests with telemetry: 10 us, in which the line sends 125,000 bytes.
const T: f64 = 10e-6;
const LINE: f64 = 125_000.0;

mod hpcc {
    use super::*;

    fn law(max_stage: u32) -> Hpcc {
        let parameters = HpccParameters {
            base_rtt: 10_000,
            max_stage,
            additive_increase: 100,
            ..HpccParameters::default()
        };
        Hpcc::new(&parameters, &start())
    }

    fn utilization(law: &Hpcc) -> f64 {
        law.observe(at(0)).alpha.unwrap()
    }

    #[test]
    fn tx_rate_is_the_difference_of_bytes_over_that_of_times() {
        let mut law = law(0);
        stamped(&mut law, &[(0, 0, 0)], 0);
        // After T, the average is the sample.
        stamped(&mut law, &[(10_000, 64_000, 0)], 0);
        assert_near(utilization(&law), 64_000.0 / LINE);
    }

    #[test]
    fn the_queue_is_the_shorter_one_of_both_stamps_over_b_times_t() {
        for queues in [(6_400, 12_800), (12_800, 6_400)] {
            let mut law = law(0);
            stamped(&mut law, &[(0, 0, queues.0)], 0);
            stamped(&mut law, &[(10_000, 64_000, queues.1)], 0);
            assert_near(utilization(&law), 64_000.0 / LINE + 6_400.0 / LINE);
        }
    }

    #[test]
    fn the_busiest_link_counts_with_its_own_time() {
        let mut law = law(0);
        stamped(&mut law, &[(0, 0, 0), (3_000, 0, 0)], 0);
        stamped(&mut law, &[(10_000, 32_000, 0), (8_000, 60_800, 0)], 0);
        // The second port sent 60,800 bytes in 5 us, half of T.
        assert_near(utilization(&law), 0.5 + 0.5 * (60_800.0 / (LINE / 2.0)));
    }

    #[test]
    fn a_sample_weighs_its_time_over_t_and_at_most_one() {
        for (ns, weight) in [(2_500_u64, 0.25), (10_000, 1.0), (40_000, 1.0)] {
            let mut law = law(0);
            stamped(&mut law, &[(0, 0, 0)], 0);
            stamped(&mut law, &[(ns, 0, 0)], 0);
            assert_near(utilization(&law), 1.0 - weight);
        }
    }

    #[test]
    fn at_the_target_the_window_is_wc_over_the_excess_plus_w_ai() {
        let mut law = law(5);
        stamped(&mut law, &[(0, 0, 25_600)], 0);
        stamped(&mut law, &[(10_000, 124_992, 25_600)], 0);
        let utilization = 124_992.0 / LINE + 25_600.0 / LINE;
        assert_near(window(&law), LINE / (utilization / 0.95) + 100.0);
    }

    /// Below the target each round adds W_AI, and after `maxStage` rounds the window follows the utilization.
    #[test]
    fn below_the_target_the_stages_count_the_rounds() {
        let mut law = law(2);
        // First down to half. Every acknowledgement with nothing else in flight ends a round.
        stamped(&mut law, &[(0, 0, 64_000)], 0);
        stamped(&mut law, &[(10_000, 124_992, 125_056)], 0);
        stamped(&mut law, &[(20_000, 249_984, 125_056)], 0);
        let reference = window(&law);
        stamped(&mut law, &[(30_000, 249_984 + 64_000, 0)], 0);
        assert_near(window(&law), reference + 100.0);
        stamped(&mut law, &[(40_000, 249_984 + 128_000, 0)], 0);
        assert_near(window(&law), reference + 200.0);
        stamped(&mut law, &[(50_000, 249_984 + 192_000, 0)], 0);
        let excess = 64_000.0 / LINE / 0.95;
        assert_near(window(&law), ((reference + 200.0) / excess + 100.0).min(LINE));
        let reference = window(&law);
        // The stage starts again.
        stamped(&mut law, &[(60_000, 249_984 + 256_000, 0)], 0);
        assert_near(window(&law), (reference + 100.0).min(LINE));
    }

    /// Regression: the acknowledgement of the last byte in flight replaced Wc, one packet too early.
    #[test]
    fn wc_is_replaced_by_the_acknowledgement_of_a_packet_that_left_after_the_last_update() {
        let mut law = law(0);
        // Two packets are in flight at the update; the third acknowledgement from here is for a later packet.
        stamped(&mut law, &[(0, 0, 25_600)], 2 * MTU);
        let excess = (124_992.0 + 25_600.0) / LINE / 0.95;
        for round_trip in 1..=2 {
            stamped(&mut law, &[(10_000 * round_trip, 124_992 * round_trip, 25_600)], 2 * MTU);
            assert_near(window(&law), LINE / excess + 100.0);
        }
        stamped(&mut law, &[(30_000, 3 * 124_992, 25_600)], 2 * MTU);
        let updated = LINE / excess + 100.0;
        assert_near(window(&law), updated);
        stamped(&mut law, &[(40_000, 4 * 124_992, 25_600)], 2 * MTU);
        assert_near(window(&law), updated / excess + 100.0);
    }

    #[test]
    fn without_fast_reaction_only_an_update_changes_the_window() {
        let parameters =
            HpccParameters { base_rtt: 10_000, fast_react: false, max_stage: 0, ..HpccParameters::default() };
        let mut law = Hpcc::new(&parameters, &start());
        stamped(&mut law, &[(0, 0, 64_000)], 2 * MTU);
        for round_trip in 1..=2 {
            stamped(&mut law, &[(10_000 * round_trip, 124_992 * round_trip, 64_000)], 2 * MTU);
            assert_near(window(&law), LINE);
        }
        stamped(&mut law, &[(30_000, 3 * 124_992, 64_000)], 2 * MTU);
        assert!(window(&law) < LINE);
    }

    #[test]
    fn the_rate_is_the_window_over_t() {
        let mut law = law(0);
        stamped(&mut law, &[(0, 0, 64_000)], 0);
        stamped(&mut law, &[(10_000, 124_992, 64_000)], 0);
        let window = law.window().unwrap() as f64;
        assert!((law.rate().get() as f64 - window * 8.0 / T).abs() <= 8.0 / T, "{}", law.rate());
    }
}

mod powertcp {
    use super::*;

    fn law() -> PowerTcp {
        PowerTcp::new(&PowerTcpParameters { base_rtt: 10_000, gamma: 512, ..Default::default() }, &start())
    }

    fn power(law: &PowerTcp) -> f64 {
        law.observe(at(0)).alpha.unwrap()
    }

    #[test]
    fn current_is_the_growth_of_the_queue_plus_what_was_sent() {
        let mut law = law();
        stamped(&mut law, &[(0, 0, 6_400)], 0);
        stamped(&mut law, &[(10_000, 64_000, 64_000)], 0);
        let current = (64_000.0 - 6_400.0 + 64_000.0) / T;
        let voltage = 64_000.0 + LINE;
        assert_near(power(&law), current * voltage / (LINE / T * LINE));
    }

    /// Regression: if the queue of an idle port fell faster than it sent, the window grew a thousandfold.
    #[test]
    fn current_is_at_least_half_of_that_of_the_line() {
        for (sent, queue) in [(0, 0), (6_400, 0), (0, 64_000)] {
            let mut law = law();
            stamped(&mut law, &[(0, 0, 64_000)], 0);
            stamped(&mut law, &[(10_000, sent, queue)], 0);
            assert_near(power(&law), 0.5 * (queue as f64 + LINE) / LINE);
        }
    }

    #[test]
    fn the_largest_power_counts_with_its_own_time() {
        let mut law = law();
        stamped(&mut law, &[(0, 0, 0), (3_000, 0, 0)], 0);
        stamped(&mut law, &[(10_000, 64_000, 0), (8_000, 60_800, 0)], 0);
        assert_near(power(&law), 0.5 + 0.5 * (60_800.0 / (LINE / 2.0)));
    }

    #[test]
    fn power_is_smoothed_over_tau() {
        let mut law = law();
        stamped(&mut law, &[(0, 0, 0)], 0);
        stamped(&mut law, &[(2_500, 0, 0)], 0);
        assert_near(power(&law), 0.75 + 0.25 * 0.5);
    }

    #[test]
    fn the_window_is_gamma_times_the_old_one_over_power_plus_beta_and_the_rest_of_the_present_one() {
        let mut law = law();
        stamped(&mut law, &[(0, 0, 64_000)], 0);
        stamped(&mut law, &[(10_000, 124_992, 128_000)], 0);
        let power = power(&law);
        assert_near(window(&law), 0.5 * (LINE / power + LINE / 10.0) + 0.5 * LINE);
    }

    /// Regression: as in HPCC, rounds ended one packet too early.
    #[test]
    fn the_old_window_is_kept_once_in_a_round_trip() {
        let mut law = law();
        let mut expected = LINE;
        stamped(&mut law, &[(0, 0, 64_000)], 2 * MTU);
        for round_trip in 1..=3 {
            stamped(&mut law, &[(10_000 * round_trip, 124_992 * round_trip, 64_000)], 2 * MTU);
            expected = 0.5 * (LINE / power(&law) + LINE / 10.0) + 0.5 * expected;
            assert_near(window(&law), expected);
        }
        // The third acknowledgement updated the old window.
        let old = expected;
        stamped(&mut law, &[(40_000, 4 * 124_992, 64_000)], 2 * MTU);
        assert_near(window(&law), 0.5 * (old / power(&law) + LINE / 10.0) + 0.5 * old);
    }

    fn theta() -> ThetaPowerTcp {
        let parameters = PowerTcpParameters { base_rtt: 10_000, gamma: 512, ..Default::default() };
        ThetaPowerTcp::new(&parameters, &start())
    }

    fn measured(law: &mut ThetaPowerTcp, now: u64, rtt: u64) {
        let rtt = Some(Duration::from_nanos(rtt));
        law.on_ack(at(now), &Ack { bytes: MTU, rtt, ..Ack::default() });
    }

    #[test]
    fn without_telemetry_power_is_the_growth_of_the_round_trip_plus_one_times_the_round_trip_over_tau() {
        let mut law = theta();
        measured(&mut law, 10_000, 10_000);
        measured(&mut law, 30_000, 20_000);
        assert_near(law.observe(at(0)).alpha.unwrap(), (10.0 / 20.0 + 1.0) * 2.0);
        let mut law = theta();
        measured(&mut law, 40_000, 40_000);
        measured(&mut law, 50_000, 10_000);
        assert_near(law.observe(at(0)).alpha.unwrap(), 0.5);
    }

    #[test]
    fn without_telemetry_the_window_changes_once_for_each_measured_round_trip() {
        let mut law = theta();
        measured(&mut law, 10_000, 10_000);
        measured(&mut law, 30_000, 20_000);
        let expected = 0.5 * (LINE / 3.0 + LINE / 10.0) + 0.5 * LINE;
        assert_near(window(&law), expected);
        law.on_ack(at(31_000), &Ack { bytes: MTU, ..Ack::default() });
        assert_near(window(&law), expected);
    }

    #[test]
    fn without_telemetry_tau_is_the_shortest_round_trip() {
        let mut law = theta();
        measured(&mut law, 5_000, 5_000);
        measured(&mut law, 15_000, 5_000);
        measured(&mut law, 25_000, 5_000);
        assert_near(law.observe(at(0)).alpha.unwrap(), 1.0);
    }
}

mod swift {
    use super::*;

    /// Returns a law with a target of 25 us for every window.
    fn law(initial_window: u32) -> Swift {
        let parameters =
            SwiftParameters { initial_window, fs_range: 0, additive_increase: 2, ..Default::default() };
        Swift::new(&parameters, &start())
    }

    fn ack(law: &mut Swift, now_us: u64, bytes: u64, rtt_us: u64) {
        let rtt = Some(Duration::from_micros(rtt_us));
        law.on_ack(at(now_us * 1_000), &Ack { bytes, in_flight: 1 << 30, rtt, ..Ack::default() });
    }

    fn packets(law: &Swift) -> f64 {
        law.observe(at(0)).window.unwrap() as f64 / MTU as f64
    }

    #[test]
    fn below_the_target_a_window_of_packets_adds_ai() {
        let mut law = law(100);
        ack(&mut law, 0, 10 * MTU, 24);
        assert_near(packets(&law), 100.0 + 2.0 / 100.0 * 10.0);
    }

    #[test]
    fn below_one_packet_each_one_adds_ai() {
        let mut law = law(1);
        for round in 0..3 {
            law.on_loss(at(100_000 * round), Loss::Nak);
        }
        let before = packets(&law);
        ack(&mut law, 400, MTU / 10, 24);
        assert_near(packets(&law), before + 2.0 * 0.1);
    }

    #[test]
    fn above_the_target_the_window_shrinks_by_beta_times_the_excess_and_at_most_by_max_mdf() {
        let mut slightly = law(100);
        ack(&mut slightly, 0, MTU, 30);
        assert_near(packets(&slightly), (100.0e3_f64 * (1.0 - 819.0 / 1024.0 * 5.0 / 30.0)).floor() / 1e3);
        let mut far = law(100);
        ack(&mut far, 0, MTU, 1_000);
        assert_near(packets(&far), 50.0);
    }

    #[test]
    fn it_can_decrease_once_in_a_round_trip() {
        let mut law = law(100);
        ack(&mut law, 1_000, MTU, 100);
        let before = packets(&law);
        ack(&mut law, 1_099, MTU, 100);
        assert_near(packets(&law), before);
        law.on_loss(at(1_099_000), Loss::Nak);
        assert_near(packets(&law), before);
        ack(&mut law, 1_100, MTU, 100);
        assert!(packets(&law) < before);
    }

    #[test]
    fn a_loss_cuts_by_max_mdf() {
        for loss in [Loss::Nak, Loss::Timeout] {
            let mut law = law(100);
            law.on_loss(at(0), loss);
            assert_near(packets(&law), 50.0);
        }
    }

    /// Regression: timeouts were not counted.
    #[test]
    fn timeouts_in_a_row_reset_the_window() {
        let smallest = 0.001;
        let mut reset = law(100);
        (0..5).for_each(|_| reset.on_loss(at(0), Loss::Timeout));
        assert_near(packets(&reset), smallest);
        for between in [Loss::Nak, Loss::Timeout] {
            let mut law = law(100);
            // All timeouts have the same time, so only the first one cuts the window.
            ack(&mut law, 0, 0, 10);
            for count in 0..8 {
                law.on_loss(at(0), Loss::Timeout);
                if count == 3 {
                    match between {
                        Loss::Nak => law.on_loss(at(0), Loss::Nak),
                        Loss::Timeout => ack(&mut law, 0, 0, 10),
                    }
                }
            }
            assert_near(packets(&law), 50.0);
        }
    }

    #[test]
    fn a_window_below_one_packet_is_a_pace() {
        let mut law = law(1);
        ack(&mut law, 0, 0, 100);
        assert_eq!((law.window(), law.rate().is_unlimited()), (Some(MTU), false));
        // Half a packet in 100 us.
        assert_near(law.rate().get() as f64, 0.5 * 8.0 * MTU as f64 / 100e-6);
        ack(&mut law, 200, MTU, 10);
        assert!(law.rate().is_unlimited());
    }
}

mod timely {
    use super::*;

    fn law(form: TimelyForm) -> Timely {
        let parameters =
            TimelyParameters { gain: 512, beta: 512, additive_increase: 100, form, ..Default::default() };
        Timely::new(&parameters, &start())
    }

    fn measured(law: &mut Timely, rtt_us: u64) -> f64 {
        let rtt = Some(Duration::from_micros(rtt_us));
        law.on_ack(at(0), &Ack { bytes: MTU, rtt, ..Ack::default() });
        law.observe(at(0)).rate / 1e6
    }

    const MOST: f64 = 100_000.0;

    #[test]
    fn the_gradient_is_the_smoothed_difference_over_the_least_round_trip() {
        let mut law = law(TimelyForm::Paper);
        measured(&mut law, 100);
        // Half of 4 us, over 20 us; then half of that and of 8 us.
        assert_near(measured(&mut law, 104), MOST * (1.0 - 0.5 * 0.1));
        assert_near(measured(&mut law, 112), MOST * (1.0 - 0.5 * 0.1) * (1.0 - 0.5 * 0.25));
    }

    #[test]
    fn below_t_low_the_rate_rises_by_delta_whatever_the_gradient() {
        let mut law = law(TimelyForm::Paper);
        measured(&mut law, 10);
        let down = measured(&mut law, 120);
        assert_near(measured(&mut law, 49), down + 100.0);
    }

    #[test]
    fn above_t_high_the_rate_falls_by_beta_times_the_excess_whatever_the_gradient() {
        let mut law = law(TimelyForm::Paper);
        measured(&mut law, 5_000);
        assert_near(measured(&mut law, 1_000), MOST * (1.0 - 0.5 * 0.5));
    }

    #[test]
    fn in_between_a_gradient_that_is_not_positive_adds_delta_and_n_times_delta_from_the_fifth_time_on() {
        let mut law = law(TimelyForm::Paper);
        measured(&mut law, 600);
        let mut before = measured(&mut law, 1_000);
        let mut steps = Vec::new();
        for _ in 0..6 {
            let now = measured(&mut law, 400);
            steps.push(now - before);
            before = now;
        }
        for (step, expected) in steps.iter().zip([100.0, 100.0, 100.0, 100.0, 500.0, 500.0]) {
            assert_near(*step, expected);
        }
    }

    #[test]
    fn a_positive_gradient_cuts_by_beta_times_itself() {
        let mut law = law(TimelyForm::Paper);
        measured(&mut law, 100);
        // Half of 16 us over 20 us.
        assert_near(measured(&mut law, 116), MOST * (1.0 - 0.5 * 0.4));
    }

    /// The paper has no bound: a gradient above 1 / beta would make the rate negative. Here it counts as 1;
    /// in the ns-3 simulator the rate falls to the minimum.
    #[test]
    fn a_gradient_above_one_does_not_end_a_flow() {
        let mut ours = law(TimelyForm::Paper);
        measured(&mut ours, 100);
        assert_near(measured(&mut ours, 160), MOST * (1.0 - 0.5));
        let mut theirs = law(TimelyForm::Ns3);
        measured(&mut theirs, 100);
        // Half of 60 us over 20 us is 1.5; then half of 30 us and of 340 us is 9.25.
        assert_near(measured(&mut theirs, 160), MOST * (1.0 - 0.5 * 1.5));
        assert_near(measured(&mut theirs, 500), 10.0);
    }

    /// Regression: without a window, a quarter of the engine's window passed between two completion events.
    #[test]
    fn a_segment_is_a_completion_event() {
        assert_eq!(law(TimelyForm::Paper).feedback(), Feedback::Packets(1));
        let parameters = TimelyParameters { segment: 16, ..Default::default() };
        assert_eq!(Timely::new(&parameters, &start()).feedback(), Feedback::Packets(16));
    }

    /// In HPCC's simulator all increases count, and after five of them the step is five times as large.
    #[test]
    fn the_form_of_ns3_counts_increases_below_t_low() {
        let mut law = law(TimelyForm::Ns3);
        measured(&mut law, 600);
        let mut before = measured(&mut law, 5_000);
        let mut steps = Vec::new();
        for _ in 0..7 {
            let now = measured(&mut law, 40);
            steps.push(now - before);
            before = now;
        }
        for (step, expected) in steps.iter().zip([100.0, 100.0, 100.0, 100.0, 100.0, 500.0, 500.0]) {
            assert_near(*step, expected);
        }
    }
}

mod dctcp {
    use super::*;

    fn law() -> Dctcp {
        let parameters = DctcpParameters { initial_window: 100, gain: 512, ..Default::default() };
        Dctcp::new(&parameters, &start())
    }

    fn ack(law: &mut Dctcp, bytes: u64, in_flight: u64, marked: bool) -> f64 {
        law.on_ack(at(0), &Ack { bytes, in_flight, marked, ..Ack::default() });
        law.window().unwrap() as f64
    }

    fn alpha(law: &Dctcp) -> f64 {
        law.observe(at(0)).alpha.unwrap()
    }

    #[test]
    fn alpha_is_updated_when_a_packet_is_acknowledged_that_left_after_the_last_update() {
        let mut law = law();
        ack(&mut law, MTU, 4 * MTU, false);
        assert_near(alpha(&law), 0.5);
        ack(&mut law, 2 * MTU, 4 * MTU, false);
        ack(&mut law, 2 * MTU, 4 * MTU, true);
        assert_near(alpha(&law), 0.5);
        // One packet more than was in flight: 2 of 5 packets were marked.
        ack(&mut law, MTU, 4 * MTU, false);
        assert_near(alpha(&law), 0.5 + 0.5 * (0.4 - 0.5));
    }

    /// Regression: the window was cut at the end of the round, up to a round trip too late.
    #[test]
    fn the_first_mark_cuts_by_half_of_alpha_at_once() {
        let mut law = law();
        let before = ack(&mut law, MTU, 100 * MTU, false);
        let cut = ack(&mut law, MTU, 100 * MTU, true);
        assert_near(cut, (before * (1.0 - 0.5 / 2.0)).floor());
    }

    #[test]
    fn there_is_one_cut_in_a_window_of_data_and_no_increase_until_then() {
        let mut law = law();
        ack(&mut law, MTU, 10 * MTU, false);
        let cut = ack(&mut law, MTU, 10 * MTU, true);
        for marked in [true, false, true, false, true, false, false, true, true, false] {
            assert_near(ack(&mut law, MTU, 100 * MTU, marked), cut);
        }
        // This packet left after the cut.
        assert!(ack(&mut law, MTU, 100 * MTU, true) < cut);
    }

    #[test]
    fn at_the_start_the_window_grows_by_what_is_acknowledged_and_later_by_a_packet_in_a_round() {
        let mut law = law();
        assert_near(ack(&mut law, MTU, 100 * MTU, false), 101e3);
        assert_near(ack(&mut law, 10 * MTU, 100 * MTU, false), 111e3);
        let cut = ack(&mut law, MTU, 50 * MTU, true);
        assert_near(ack(&mut law, 50 * MTU, 50 * MTU, false), cut);
        // A packet that left after the cut; the round of alpha ends later.
        assert_near(ack(&mut law, MTU, 50 * MTU, false), cut);
        assert_near(ack(&mut law, 50 * MTU, 50 * MTU, false), cut + 1e3);
        assert_near(ack(&mut law, 50 * MTU, 50 * MTU, false), cut + 1e3);
        assert_near(ack(&mut law, MTU, 50 * MTU, false), cut + 2e3);
    }

    #[test]
    fn losses_are_those_of_tcp() {
        let mut law = law();
        ack(&mut law, MTU, 10 * MTU, false);
        let before = law.window().unwrap();
        for _ in 0..3 {
            law.on_loss(at(0), Loss::Nak);
            assert_eq!(law.window(), Some(before / 2));
        }
        law.on_loss(at(0), Loss::Timeout);
        assert_eq!(law.window(), Some(MTU));
    }
}

/// Tests of the lines of the paper; the `dcqcn` test has the random runs and the forms of devices.
mod dcqcn {
    use super::*;

    fn law() -> Dcqcn {
        Dcqcn::new(&DcqcnParameters::preset("paper").unwrap(), &start())
    }

    fn state(law: &Dcqcn, us: u64) -> (f64, f64, f64) {
        let seen = law.observe(at(us * 1_000));
        (seen.rate / 1e6, seen.target_rate.unwrap() / 1e6, seen.alpha.unwrap())
    }

    const G: f64 = 4.0 / 1024.0;

    #[test]
    fn a_notification_sets_the_target_cuts_by_half_of_alpha_and_then_raises_alpha() {
        let mut law = law();
        law.on_cnp(at(0));
        let (rate, target, alpha) = state(&law, 0);
        assert_near(rate, 50_000.0);
        assert_near(target, 100_000.0);
        assert_near(alpha, 1.0);
        // One period without a notification, then the second notification.
        law.on_cnp(at(55_000));
        let (second, target, alpha) = state(&law, 55);
        // The timer raised the rate half of the way before the second notification.
        assert_near(target, 75_000.0);
        assert_near(second, 75_000.0 * (1.0 - (1.0 - G) / 2.0));
        assert_near(alpha, (1.0 - G) * (1.0 - G) + G);
    }

    #[test]
    fn alpha_decays_in_each_period_without_one() {
        let mut law = law();
        law.on_cnp(at(0));
        assert_near(state(&law, 54).2, 1.0);
        assert_near(state(&law, 55).2, 1.0 - G);
        assert_near(state(&law, 550).2, (1.0 - G).powi(10));
    }

    #[test]
    fn five_steps_of_fast_recovery_come_before_the_target_rises() {
        let mut law = law();
        law.on_cnp(at(0));
        law.on_cnp(at(1_000));
        let (mut rate, target, _) = state(&law, 1);
        for step in 1..=5 {
            rate = (rate + target) / 2.0;
            assert_near(state(&law, 1 + 55 * step).0, rate);
        }
        let (after, raised, _) = state(&law, 1 + 55 * 6);
        assert_near(raised, target + 40.0);
        assert_near(after, (rate + target + 40.0) / 2.0);
    }

    /// Both counters are above F: the increase is i times the step, with i = min(T, BC) - F.
    #[test]
    fn hyper_increase_needs_both_counters() {
        let parameters = DcqcnParameters { rpg_byte_reset: 1, ..DcqcnParameters::preset("paper").unwrap() };
        let mut law = Dcqcn::new(&parameters, &start());
        law.on_cnp(at(0));
        law.on_cnp(at(1_000));
        // Seven steps of the byte counter, of 64 bytes each: five of fast recovery, two of additive increase.
        let (_, target, _) = state(&law, 1);
        (0..7).for_each(|_| law.on_send(at(2_000), 64));
        assert_near(state(&law, 2).1, target + 80.0);
        // The timer follows. After six rounds of both, i is 1.
        let mut targets = Vec::new();
        for step in 1..=8 {
            targets.push(state(&law, 1 + 55 * step).1);
        }
        for (step, raised) in (1..).zip(targets.windows(2)) {
            let expected = match step {
                1..=5 => 40.0,
                6 => 200.0,
                _ => 400.0,
            };
            assert_near(raised[1] - raised[0], expected);
        }
    }
}
