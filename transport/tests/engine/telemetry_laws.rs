//! Tests of HPCC and both forms of PowerTCP against small models of their laws, written from the papers.

use std::time::Duration;

use roce_packet::{Qpn, Telemetry, TelemetryHop};
use roce_transport::Instant;
use roce_transport::congestion::{
    Ack, CongestionControl, Hpcc, HpccParameters, PowerTcp, PowerTcpParameters, Rate, Start, ThetaPowerTcp,
};

const RATE: f64 = 100e9 / 8.0;
/// T and tau, in seconds.
const RTT: f64 = 13e-6;
const MTU: u64 = 1_024;

fn start() -> Start {
    Start {
        now: Instant::ZERO,
        qpn: Qpn::new(0x11),
        mtu: 1_024,
        line_rate: Rate::bits_per_second(100_000_000_000),
    }
}

/// The state of one port in the fields of the trailer: rate in bytes per second, ns, bytes sent, bytes
/// queued.
type Port = (f64, u64, u64, u64);

/// Runs `law` over random states of three ports. Before each acknowledgement, `model` gets the previous and
/// the current states and whether a round trip ends, and returns the window.
fn compare(seed: u64, law: &mut dyn CongestionControl, mut model: impl FnMut(&[Port], &[Port], bool) -> f64) {
    let mut state = seed;
    let mut draw = |most: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % most
    };
    let mut before: Vec<Port> = vec![(RATE, 5, 0, 0), (4.0 * RATE, 9, 0, 0), (RATE, 11, 64, 0)];
    let (mut now, mut left) = (0, 0_u64);
    for step in 0..2_000 {
        now += 100 + draw(3_000);
        let next = |port: &Port, draw: &mut dyn FnMut(u64) -> u64| {
            let ns = 50 + draw(3_000);
            let sent = draw((ns as f64 * 1e-9 * port.0) as u64 + 1) / 64 * 64;
            let queue = if draw(2) == 0 { 0 } else { draw(200_000) / 64 * 64 };
            (port.0, port.1 + ns, port.2 + sent, queue)
        };
        let ports: Vec<Port> = before.iter().map(|port| next(port, &mut draw)).collect();
        let mut telemetry = Telemetry::default();
        for (port, (rate, ns, sent, queue)) in (0..).zip(&ports) {
            telemetry.push(TelemetryHop::new((rate * 8.0) as u64, *ns, *sent, *queue), port);
        }
        let in_flight = MTU * draw(20);
        // `ack.seq > lastUpdateSeq`: more is acknowledged than was in flight at the last update.
        let ends = MTU > left;
        left = if ends { in_flight } else { left - MTU };
        law.on_telemetry(Instant::from_nanos(now), &telemetry);
        law.on_ack(Instant::from_nanos(now), &Ack { bytes: MTU, in_flight, ..Ack::default() });
        if step > 0 {
            let expected = model(&before, &ports, ends);
            let window = law.observe(Instant::from_nanos(now)).rate / 8.0 * RTT;
            assert!(
                (window / expected - 1.0).abs() < 1e-9,
                "seed {seed}, step {step}: {window} for {expected}"
            );
        } else {
            model(&[], &[], ends);
        }
        before = ports;
    }
}

/// Returns the largest of a value over all ports, and the seconds between the two states of that port.
fn largest(before: &[Port], now: &[Port], of: impl Fn(&Port, &Port, f64) -> f64) -> (f64, f64) {
    let values = before.iter().zip(now).map(|(before, now)| {
        let seconds = (now.1 - before.1) as f64 * 1e-9;
        (of(before, now, seconds), seconds)
    });
    values.fold((f64::MIN, 0.0), |most, value| if value.0 > most.0 { value } else { most })
}

/// Checks Algorithm 1 of the paper.
#[test]
fn hpcc_is_the_law_of_its_paper() {
    for seed in 1..=20 {
        let full = RATE * RTT;
        let (mut reference, mut u, mut stage) = (full, 1.0, 0);
        let mut law = Hpcc::new(&HpccParameters::default(), &start());
        compare(seed, &mut law, |before, now, ends| {
            if before.is_empty() {
                return full;
            }
            let (busiest, tau) = largest(before, now, |before, now, seconds| {
                before.3.min(now.3) as f64 / (now.0 * RTT) + (now.2 - before.2) as f64 / seconds / now.0
            });
            let tau = tau.min(RTT);
            u = (1.0 - tau / RTT) * u + tau / RTT * busiest;
            let (window, next) = if u >= 0.95 || stage >= 5 {
                (reference / (u / 0.95) + 80.0, 0)
            } else {
                (reference + 80.0, stage + 1)
            };
            let window = window.clamp(100e6 / 8.0 * RTT, full);
            if ends {
                (reference, stage) = (window, next);
            }
            window
        });
    }
}

/// Checks Algorithm 1 of the paper, with the telemetry of each hop and the minimum current of its simulation.
#[test]
fn powertcp_is_the_law_of_its_paper() {
    for seed in 1..=20 {
        let full = RATE * RTT;
        let (mut window, mut old, mut smooth) = (full, full, 1.0);
        let mut law = PowerTcp::new(&PowerTcpParameters::default(), &start());
        compare(seed, &mut law, |before, now, ends| {
            if !before.is_empty() {
                let (power, span) = largest(before, now, |before, now, seconds| {
                    let current =
                        (now.3 as f64 - before.3 as f64) / seconds + (now.2 - before.2) as f64 / seconds;
                    // The bound of the authors' simulation.
                    let current = current.max(now.0 / 2.0);
                    current * (now.3 as f64 + now.0 * RTT) / (now.0 * now.0 * RTT)
                });
                let span = span.min(RTT);
                smooth = (smooth * (RTT - span) + power * span) / RTT;
                let gamma = 922.0 / 1024.0;
                window = gamma * (old / smooth + full / 10.0) + (1.0 - gamma) * window;
                window = window.clamp(100e6 / 8.0 * RTT, full);
            }
            if ends {
                old = window;
            }
            window
        });
    }
}

/// Checks Algorithm 2 of the paper, with the minimum round trip and the minimum current of its simulation.
#[test]
fn theta_powertcp_is_the_law_of_its_paper() {
    for seed in 1..=20_u64 {
        let full = RATE * RTT;
        let (mut window, mut least, mut smooth) = (full, RTT, 1.0);
        let mut before: Option<(u64, f64)> = None;
        let mut law = ThetaPowerTcp::new(&PowerTcpParameters::default(), &start());
        let (mut state, mut now) = (seed, 0);
        let mut draw = |most: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % most
        };
        for step in 0..2_000 {
            let rtt = 8_000 + draw(4) * draw(20_000);
            // Sometimes less than a round trip after the last acknowledgement, so that the average counts.
            now += if draw(3) == 0 { 1 + draw(8_000) } else { rtt + draw(10_000) };
            let measured = (draw(4) > 0).then(|| Duration::from_nanos(rtt));
            let ack = Ack { bytes: MTU, in_flight: MTU, rtt: measured, ..Ack::default() };
            law.on_ack(Instant::from_nanos(now), &ack);
            if measured.is_some() {
                let theta = rtt as f64 * 1e-9;
                if let Some((at, previous)) = before {
                    let dt = (now - at) as f64 * 1e-9;
                    least = least.min(theta);
                    let power = f64::max((theta - previous) / dt + 1.0, 0.5) * theta / least;
                    let dt = dt.min(least);
                    smooth = (smooth * (least - dt) + power * dt) / least;
                    let gamma = 922.0 / 1024.0;
                    window = gamma * (window / smooth + full / 10.0) + (1.0 - gamma) * window;
                    window = window.clamp(100e6 / 8.0 * RTT, full);
                }
                before = Some((now, theta));
            }
            let ours = law.observe(Instant::from_nanos(now)).rate / 8.0 * RTT;
            assert!((ours / window - 1.0).abs() < 1e-9, "seed {seed}, step {step}: {ours} for {window}");
        }
    }
}

/// Missing, old or incomplete telemetry and telemetry of another path changes no window.
#[test]
fn telemetry_that_cannot_be_compared_changes_nothing() {
    let laws: [Box<dyn CongestionControl>; 2] = [
        Box::new(Hpcc::new(&HpccParameters::default(), &start())),
        Box::new(PowerTcp::new(&PowerTcpParameters::default(), &start())),
    ];
    let hop = |rate, ns| TelemetryHop::new(rate, ns, ns * 12, 1_000_000);
    let of = |hops: &[TelemetryHop]| {
        let mut telemetry = Telemetry::default();
        hops.iter().for_each(|hop| telemetry.push(*hop, 1));
        telemetry
    };
    for mut law in laws {
        let window = law.window();
        let long = [hop(100_000_000_000, 50_000); 6];
        let cases = [
            (1, of(&[])),
            (2, of(&[hop(100_000_000_000, 1_000)])),
            (3, of(&[hop(40_000_000_000, 2_000)])),
            (20_000_000, of(&[hop(40_000_000_000, 20_000_000)])),
            (20_000_001, of(&[hop(40_000_000_000, 20_000_000)])),
            (20_000_002, of(&long)),
            (20_000_003, of(&long)),
        ];
        for (now, telemetry) in cases {
            law.on_telemetry(Instant::from_nanos(now), &telemetry);
            law.on_ack(Instant::from_nanos(now), &Ack { bytes: MTU, ..Ack::default() });
            assert_eq!(law.window(), window, "at {now}");
        }
        // Two samples that agree and show a long queue.
        for now in [20_001_000_u64, 20_002_000] {
            law.on_telemetry(Instant::from_nanos(now), &of(&[hop(100_000_000_000, now)]));
            law.on_ack(Instant::from_nanos(now), &Ack { bytes: MTU, ..Ack::default() });
        }
        assert!(law.window() < window);
    }
}

/// Returns both laws.
fn laws() -> [Box<dyn CongestionControl>; 2] {
    [
        Box::new(Hpcc::new(&HpccParameters::default(), &start())),
        Box::new(PowerTcp::new(&PowerTcpParameters::default(), &start())),
    ]
}

/// Passes an acknowledgement with the telemetry of one port.
fn stamp(law: &mut dyn CongestionControl, now: u64, port: u32, (ns, sent, queue): (u64, u64, u64)) {
    let mut telemetry = Telemetry::default();
    telemetry.push(TelemetryHop::new(100_000_000_000, ns, sent, queue), port);
    law.on_telemetry(Instant::from_nanos(now), &telemetry);
    law.on_ack(Instant::from_nanos(now), &Ack { bytes: MTU, in_flight: 0, ..Ack::default() });
}

/// Regression: with `spray`, counters of different ports were subtracted, so flows of HPCC and PowerTCP fell
/// to a thousandth of the line rate.
#[test]
fn trailers_of_several_paths_are_compared_with_their_own() {
    for paths in [1, 2, 4, 16] {
        for mut law in laws() {
            // Every port is half utilized and has no queue. The ports' counters are unrelated.
            let mut sampled = 0;
            for step in 0..1_000_u64 {
                let (port, ns) = (step % paths, 1_000 * step);
                let before = law.observe(Instant::ZERO).alpha;
                let sent = 1_000_000 * 7_919 * (port + 1) + ns * 25 / 4;
                stamp(law.as_mut(), ns, port as u32, (ns, sent, 0));
                sampled += u32::from(law.observe(Instant::ZERO).alpha != before);
            }
            let signal = law.observe(Instant::ZERO).alpha.unwrap();
            assert!((signal - 0.5).abs() < 0.01, "{paths} paths: {signal}, {sampled} samples");
            assert_eq!(law.window(), Some((RATE * RTT) as u64), "{paths} paths");
        }
    }
}

/// With more paths than are kept, some of them still provide samples.
#[test]
fn more_paths_than_are_kept_do_not_silence_the_others() {
    for mut law in laws() {
        let mut changes = 0;
        for step in 0..1_000_u64 {
            let (port, ns) = (step % 64, 1_000 * step);
            let before = law.observe(Instant::ZERO).alpha;
            // The queue differs each time, so that each sample is visible.
            stamp(law.as_mut(), ns, port as u32, (ns, ns * 25 / 4, 64 * step));
            changes += u32::from(law.observe(Instant::ZERO).alpha != before);
        }
        assert!((200..300).contains(&changes), "a quarter of 1,000: {changes}");
    }
}

/// A sample is dropped if the port sent more than its rate allows or its time or count went backwards.
#[test]
fn impossible_samples_are_dropped() {
    for mut law in laws() {
        stamp(law.as_mut(), 10_000, 1, (10_000, 64_000, 0));
        let signal = |law: &dyn CongestionControl| law.observe(Instant::ZERO).alpha.unwrap();
        let before = signal(law.as_ref());
        // The rate is 12,500 bytes in 1 us.
        for (now, ns, sent) in [(11_000, 11_000, 64_000 + 14_000), (12_000, 12_000, 0), (13_000, 11_500, 0)] {
            stamp(law.as_mut(), now, 1, (ns, sent, 50_000));
            assert_eq!(signal(law.as_ref()), before, "{ns} ns, {sent} bytes");
        }
        // The next sample is compared with the last one that was not older: 6,250 bytes in 1 us.
        stamp(law.as_mut(), 14_000, 1, (13_000, 6_250, 0));
        assert!(signal(law.as_ref()) < before);
    }
}
