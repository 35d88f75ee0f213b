//! Algorithms with in-band telemetry on the star of 16 senders, compared with HPCC's simulator. Its queue at
//! the percentiles 50, 90 and 99 is 1, 3 and 5 KB, and the slowest flow of 12.5 MB takes 18.449 ms.

use roce_sim::net::{PayloadMode, Results, Settings};
use roce_transport::congestion::Congestion;

use super::{ANCHORS, Anchor, HPCC, IN_BUFFER};

const STAR16: &Anchor = &ANCHORS[2];

fn settings(text: &str) -> Settings {
    let mut settings = STAR16.settings(HPCC, 1);
    (settings.host.congestion, settings.host.notification) = Congestion::parse(text).unwrap();
    settings
}

fn run(text: &str, bytes: u64) -> Results {
    let anchor = Anchor { bytes, dcqcn: STAR16.dcqcn, marking: STAR16.marking, ..ANCHORS[2] };
    let results = anchor.run(settings(text));
    assert_eq!((results.incomplete(), results.sum(|port| port.drops())), (0, 0), "{text}");
    results
}

/// Returns the percentiles 50, 90 and 99 of the queue in KB, and the slowest flow in ms.
fn figures(text: &str, bytes: u64) -> ([f64; 3], f64) {
    let results = run(text, bytes);
    let port = results.port("s0", "h16").unwrap();
    let queue = [0.5, 0.9, 0.99].map(|quantile| port.queue.quantile(quantile) as f64 / IN_BUFFER / 1e3);
    let slowest = results.completion_quantile(1.0).unwrap().as_secs_f64() * 1e3;
    println!("{text}: queue {queue:.0?} KB, slowest flow {slowest:.3} ms");
    (queue, slowest)
}

#[test]
fn queues_of_an_incast_are_nearly_empty_with_telemetry_and_not_with_dcqcn() {
    let (queue, slowest) = figures("hpcc:base_rtt=4500", 12_500_000);
    assert!(queue[1] < 30.0, "{queue:?}");
    // The trailer takes 52 bytes of each packet; theirs takes 42.
    assert!((slowest / 18.449 - 1.0).abs() < 0.1, "{slowest} ms");
    // With this law, the queue holds the sum that all flows add in a round trip: 16 times beta, 95 KB here.
    let (power, slowest) = figures("powertcp:base_rtt=4500", 12_500_000);
    assert!(
        (85.0..125.0).contains(&power[1]) && (slowest / 18.449 - 1.0).abs() < 0.1,
        "{power:?}, {slowest} ms"
    );
    let (dcqcn, _) = figures("dcqcn:ns3,echo=1", 12_500_000);
    assert!(dcqcn[1] > 5.0 * queue[1], "{dcqcn:?}");
}

/// The trailer is part of every frame of such a flow, and of no other frame. With real payload all bytes
/// arrive, and the events equal those with implied payload.
#[test]
fn real_and_implied_payload_agree_with_telemetry() {
    let anchor = Anchor { bytes: 300_000, dcqcn: STAR16.dcqcn, marking: STAR16.marking, ..ANCHORS[2] };
    for text in ["hpcc", "powertcp"] {
        let both = [PayloadMode::Implied, PayloadMode::Real]
            .map(|payload| anchor.run(Settings { payload, ..settings(text) }));
        assert_eq!(both[0].trace_hash, both[1].trace_hash, "{text}");
        assert_eq!(both[1].checked.1, 0);
        assert!(both[1].checked.0 >= 16 * 300 * 1_024);
        let sent: u64 =
            both[0].ports.iter().filter(|port| port.is_host).map(|port| port.stats.tx_bytes).sum();
        let packets = both[0].data_packets;
        assert!(
            sent > packets * 1_158 && sent < packets * (1_158 + 86 + 52 + 16),
            "{text}: {sent} for {packets}"
        );
    }
}
