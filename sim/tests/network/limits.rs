//! Limits of every resource, and the results of a run before its end.

use super::*;

/// Receivers keep the queue pairs of completed flows until they need the room.
#[test]
fn a_host_receives_more_flows_than_it_has_queue_pairs() {
    let count = 66_000_u32;
    let spec = |number: u32| FlowSpec { start: Time::from_us(10 * u64::from(number)), ..flow(0, 1, 64) };
    let flows: Vec<_> = (0..count).map(spec).collect();
    let settings = Settings { stop: Time::from_us(10 * u64::from(count) + 1_000), ..Settings::default() };
    assert_complete(&run(&Topology::point_to_point(LINK), &flows, settings));
}

/// All requests of many deep flows fail at once, and every failure is reported.
#[test]
fn flows_that_fail_together_all_fail() {
    let mut topology = Topology::point_to_point(LINK);
    topology.links[0].set_faults("drop=100%".parse().unwrap());
    let mut settings = Settings::default();
    (settings.host.depth, settings.host.message_bytes) = (2_000, 64);
    (settings.host.timeout, settings.host.retry_cnt) = (8, 0);
    let flows = vec![flow(0, 1, 128_000); 2];
    let results = run(&topology, &flows, settings);
    for flow in &results.flows {
        assert!(matches!(flow.state, FlowState::Failed(_)), "{:?}", flow.state);
    }
}

/// A pause that does not end, the simplest deadlock, is reported while it lasts.
#[test]
fn a_pause_that_lasts_counts_while_it_does() {
    let mut settings = Settings { stop: Time::from_us(2_000), ..Settings::default() };
    let (start, end) = (Time::from_us(100), Time::from_us(1_900));
    settings.storms = vec![PauseStorm { host: 1, priority: 3, start, end }];
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 50_000_000)], settings);
    let port = results.ports.iter().position(|port| port.name == "s0->h1").unwrap() as u32;
    let at = Time::from_us(1_500);
    let point = results.queues.iter().find(|point| point.port == port && point.time >= at).unwrap();
    assert!(point.paused > Time::from_us(1_300), "{point:?}");
}

/// Two overlapping storms of one host act as one long storm.
#[test]
fn a_storm_does_not_end_another() {
    let mut settings = Settings { stop: Time::from_us(400), ..Settings::default() };
    let storm = |start, end| PauseStorm {
        host: 1,
        priority: 3,
        start: Time::from_us(start),
        end: Time::from_us(end),
    };
    settings.storms = vec![storm(10, 60), storm(20, 300)];
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 50_000_000)], settings);
    let paused = results.port("s0", "h1").unwrap().stats.paused[3];
    assert!((285..295).contains(&(paused.as_ps() / 1_000_000)), "{paused}");
}

/// Regression: the end of a storm resumed a priority for which too many frames waited, and the end of the
/// wait one that a storm paused.
#[test]
fn a_slow_receiver_and_a_storm_pause_together() {
    let paused = |storms: &[(u64, u64)], slow: bool| {
        let mut settings = Settings { stop: Time::from_us(400), ..Settings::default() };
        let storm = |(start, end): (u64, u64)| PauseStorm {
            host: 1,
            priority: 3,
            start: Time::from_us(start),
            end: Time::from_us(end),
        };
        settings.storms = storms.iter().copied().map(storm).collect();
        if slow {
            // A tenth of the rate of the link.
            settings.host.receive_limit =
                Some(ReceiveLimit { host: Some(1), rate_bps: LINK.rate_bps / 10, xoff_bytes: 100_000 });
        }
        let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 50_000_000)], settings);
        let port = results.port("s0", "h1").unwrap();
        (port.stats.paused[3].as_ps() / 1_000_000, port.stats.tx_bytes)
    };
    // Short storms while the receiver is slow: without their holes, as many bytes leave as without storms.
    let (alone, most) = paused(&[], true);
    let storms: Vec<(u64, u64)> = (0..20).map(|number| (100 + 12 * number, 104 + 12 * number)).collect();
    let (with_storms, sent) = paused(&storms, true);
    println!("paused for {alone} and {with_storms} us, {most} and {sent} bytes");
    assert!(alone > 200 && with_storms + 5 >= alone, "{alone} and {with_storms} us");
    assert!(sent <= most + 20_000, "{sent} and {most} bytes");
}

/// Results before the end of a run cover the time until then.
#[test]
fn results_before_the_end_are_those_until_now() {
    let mut simulation =
        Simulation::new(&Topology::point_to_point(LINK), &[flow(0, 1, 10_000_000)], Settings::default())
            .unwrap();
    while simulation.now() < Time::from_us(100) {
        assert!(simulation.run(1));
    }
    let now = simulation.now();
    let results = simulation.results();
    assert_eq!((results.end, results.incomplete()), (now, 1));
}

/// A pause has to wait behind the frame that its port sends, while the others continue to send. Nothing is
/// lost even with the longest path MTU.
#[test]
fn the_headroom_is_enough_for_long_frames_in_both_directions() {
    for rate in [10, 40, 100, 400] {
        let link = LinkSpec { rate_bps: rate * 1_000_000_000, ..LINK };
        let topology = Topology::star(4, link).unwrap();
        let mut settings = Settings::default();
        settings.host.path_mtu = roce_packet::PathMtu::Mtu4096;
        settings.switch.marking[3] = Marking::Off;
        settings.switch.threshold = Threshold::Static { bytes: 30_000 };
        let flows =
            [flow(0, 2, 3_000_000), flow(1, 2, 3_000_000), flow(2, 0, 3_000_000), flow(2, 1, 3_000_000)];
        let results = run(&topology, &flows, settings);
        assert_complete(&results);
        assert!(results.sum(|port| port.pauses_sent) > 10);
        assert_eq!(results.sum(|port| port.drops()), 0, "{rate} Gb/s");
    }
}

/// Each of these is refused without panics or unlimited memory.
#[test]
fn what_is_too_large_is_refused() {
    let large = Topology::line(32_000, 1, LINK, LINK).unwrap();
    let error = Simulation::new(&large, &[flow(0, 1, 1)], Settings::default()).err().unwrap().to_string();
    assert!(
        error.starts_with("routes of 32000 switches to 32000 switches with hosts are too many"),
        "{error}"
    );
    let mut settings = Settings::default();
    settings.switch.headroom = Headroom::Bytes(u64::MAX / 2);
    let star = Topology::star(3, LINK).unwrap();
    let error = Simulation::new(&star, &[flow(0, 1, 1)], settings).err().unwrap();
    let error = with_causes(&error).to_string();
    assert!(error.contains("is too small"), "{error}");
    let mut settings = Settings::default();
    settings.switch.scheduling[3] = Class::Weighted(u32::MAX);
    let error = Simulation::new(&star, &[flow(0, 1, 1)], settings).err().unwrap().to_string();
    assert_eq!(error, "weight: it must be 1 to 65535");
}

/// A switch marks at its port to the receiver: frames from the sender arrive unmarked, and leave marked.
#[test]
fn any_port_can_be_captured() {
    let topology = Topology::star(3, LINK).unwrap();
    assert_eq!((topology.port_named("h2"), topology.port_named("s0:h2")), (Some(4), Some(5)));
    assert_eq!((topology.port_named("s0"), topology.port_named("h0:h2")), (None, None));
    let mut settings = Settings::default();
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dcqcn:paper").unwrap();
    settings.switch.marking[3] = Marking::Step { bytes: 20_000 };
    settings.measure.capture = ["h0", "s0:h2"].iter().filter_map(|name| topology.port_named(name)).collect();
    let flows = [flow(0, 2, 300_000), flow(1, 2, 300_000)];
    let mut simulation = Simulation::new(&topology, &flows, settings.clone()).unwrap();
    simulation.run_to_end();
    let captured = simulation.take_captured();
    let results = simulation.results();
    let marked = |port: u32| {
        let is_marked = |content: &CapturedContent| match content {
            CapturedContent::Datagram { path, .. } => path.ecn() == roce_packet::Ecn::CongestionExperienced,
            CapturedContent::Pause { .. } => false,
        };
        let of_port = captured.iter().filter(|frame| frame.port == port && frame.outbound);
        of_port.filter(|frame| is_marked(&frame.content)).count() as u64
    };
    assert_eq!((marked(0), marked(5)), (0, results.sum(|port| port.marked)));
    assert!(marked(5) > 10 && captured.iter().any(|frame| frame.port == 5 && !frame.outbound));
    settings.measure.capture = vec![6];
    let error = Simulation::new(&topology, &flows, settings).err().unwrap().to_string();
    assert_eq!(error, "capture: the port does not exist");
}
