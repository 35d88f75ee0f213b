//! A network whose messages an external scheduler sends.

use roce_sim::net::{
    After, Application, BuildError, FlowOperation, FlowState, HostSettings, Network, NetworkError,
    NetworkEvent, PayloadMode, Results, ScaleUp, Schedule, Settings, Simulation, Task, Ties, Time, Topology,
    Transfer,
};
use roce_transport::congestion::Congestion;

use super::{LINK, assert_complete, flow};

fn star(hosts: usize) -> Network {
    Network::new(&Topology::star(hosts, LINK).unwrap(), Settings::default()).unwrap()
}

/// An event without its message: what happened, the number of the handle or the token, and the bytes.
fn short(event: NetworkEvent) -> (&'static str, u64, u64) {
    match event {
        NetworkEvent::Sent(message) => ("sent", message.handle.number(), message.bytes),
        NetworkEvent::Received(message) => ("received", message.handle.number(), message.bytes),
        NetworkEvent::Scheduled { token } => ("scheduled", token, 0),
    }
}

/// Returns all events with their times.
fn events(network: &mut Network) -> Vec<(Time, (&'static str, u64, u64))> {
    let mut all = Vec::new();
    while let Some(event) = network.next_event().unwrap() {
        all.push((network.now(), short(event)));
    }
    all
}

fn received(events: &[(Time, (&'static str, u64, u64))]) -> Vec<(u64, u64)> {
    let received = events.iter().filter(|(_, (what, _, _))| *what == "received");
    received.map(|(_, (_, handle, bytes))| (*handle, *bytes)).collect()
}

#[test]
fn messages_match_by_ranks_tag_and_order() {
    let mut network = star(3);
    assert_eq!((network.ranks(), network.name(1), network.name(3)), (3, "h1", ""));
    for (tag, bytes) in [(7, 100), (9, 200), (7, 300)] {
        network.send(0, 1, tag, bytes).unwrap();
    }
    network.send(2, 1, 7, 400).unwrap();
    network.send(1, 0, 7, 500).unwrap();
    // Handles 5 to 9. A receive may have room for more bytes than its send has.
    for (from, to, tag) in [(0, 1, 9), (0, 1, 7), (0, 1, 7), (2, 1, 7), (1, 0, 7)] {
        network.receive(from, to, tag, 1_000).unwrap();
    }
    let all = events(&mut network);
    let mut found = received(&all);
    found.sort_unstable();
    assert_eq!(found, [(5, 200), (6, 100), (7, 300), (8, 400), (9, 500)]);
    assert_eq!(all.len(), 10, "each send and each receive completes once: {all:?}");
    // One queue pair carries all messages from rank 0 to rank 1 in the order of the sends.
    let of_pair: Vec<u64> =
        received(&all).into_iter().map(|(handle, _)| handle).filter(|it| *it < 8).collect();
    assert_eq!(of_pair, [6, 5, 7]);
    let results = network.results();
    let sizes: Vec<_> = results.flows.iter().map(|flow| (flow.spec.source, flow.spec.bytes)).collect();
    assert_eq!(sizes, [(0, 600), (2, 400), (1, 500)]);
    assert_complete(&results);
}

#[test]
fn a_receive_may_come_before_its_send_and_after_the_arrival() {
    let mut network = star(2);
    network.receive(0, 1, 1, 10).unwrap();
    network.send(0, 1, 1, 10).unwrap();
    network.send(0, 1, 2, 20).unwrap();
    let all = events(&mut star_with_both());
    assert_eq!(received(&all), [(0, 10), (3, 20)]);
    let mut last = Time::ZERO;
    loop {
        match network.next_event() {
            Ok(Some(_)) => last = network.now(),
            // The second message has arrived, but nothing receives it.
            Err(NetworkError::Unmatched { sends, receives }) => {
                assert_eq!((sends.len(), sends[0].tag, receives.len()), (1, 2, 0));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    network.schedule(Time::from_us(5), 0);
    assert_eq!(network.next_event().unwrap(), Some(NetworkEvent::Scheduled { token: 0 }));
    let late = network.receive(0, 1, 2, 20).unwrap();
    let Some(NetworkEvent::Received(message)) = network.next_event().unwrap() else { panic!("no receive") };
    assert_eq!((message.handle, message.bytes), (late, 20));
    assert_eq!(network.now(), last + Time::from_us(5), "it completes at once");
    assert_eq!(network.next_event().unwrap(), None);
}

/// Two sends whose receives come before.
fn star_with_both() -> Network {
    let mut network = star(2);
    network.receive(0, 1, 1, 10).unwrap();
    network.send(0, 1, 1, 10).unwrap();
    network.send(0, 1, 2, 20).unwrap();
    network.receive(0, 1, 2, 20).unwrap();
    network
}

#[test]
fn tokens_of_one_time_come_in_the_order_of_their_calls_and_before_the_network() {
    let mut network = star(2);
    for (after, token) in [(1, 1), (1, 2), (0, 3), (1, 1)] {
        network.schedule(Time::from_us(after), token);
    }
    let tokens: Vec<_> =
        events(&mut network).into_iter().map(|(time, (_, token, _))| (time, token)).collect();
    let at = Time::from_us;
    assert_eq!(tokens, [(at(0), 3), (at(1), 1), (at(1), 2), (at(1), 1)]);

    let all = events(&mut star_with_both());
    let (arrival, first) = all[0];
    assert_eq!(first, ("received", 0, 10));
    let mut network = star_with_both();
    network.schedule(arrival, 5);
    network.schedule(arrival, 6);
    let again = events(&mut network);
    let expected = [("scheduled", 5, 0), ("scheduled", 6, 0), first].map(|event| (arrival, event));
    assert_eq!(again[..3], expected);
    assert_eq!(again[3..], all[1..], "tokens change nothing");
    // A token that is scheduled after the completion comes after it.
    let mut network = star_with_both();
    assert_eq!(network.next_event().unwrap().map(short), Some(first));
    network.schedule(Time::ZERO, 7);
    assert_eq!(network.next_event().unwrap(), Some(NetworkEvent::Scheduled { token: 7 }));
    assert_eq!(network.now(), arrival);
}

/// Sender, receiver, bytes, and the time of the send.
const TRANSFERS: [(u32, u32, u64, u64); 6] = [
    (0, 5, 300_000, 0),
    (1, 5, 500_000, 0),
    (6, 5, 400_000, 0),
    (5, 0, 200_000, 0),
    // Times at which no frame begins or ends.
    (0, 5, 100_000, 20_000_013),
    (6, 5, 7, 55_000_017),
];

/// Returns the times of the acknowledgement and of the arrival of each transfer, as tasks of a schedule.
fn scheduled(topology: &Topology, settings: Settings) -> (Vec<[Time; 2]>, Results) {
    let (mut flows, mut schedule) = (Vec::new(), Schedule::new());
    let mut numbers = Vec::new();
    for (source, destination, bytes, at) in TRANSFERS {
        let known = flows
            .iter()
            .position(|it: &roce_sim::net::FlowSpec| (it.source, it.destination) == (source, destination));
        let number = known.unwrap_or_else(|| {
            flows.push(flow(source, destination, 0));
            flows.len() - 1
        });
        flows[number].bytes += bytes;
        let transfer = Some(Transfer::Flow { flow: number as u32, bytes });
        let task = Task { host: source, earliest: Time::from_ps(at), compute: Time::ZERO, transfer };
        let sent = schedule.add(task, &[]).unwrap();
        let waits = Task { host: destination, earliest: Time::ZERO, compute: Time::ZERO, transfer: None };
        numbers.push([sent, schedule.add(waits, &[After::Arrival(sent)]).unwrap()]);
    }
    let mut simulation = Simulation::with_schedule(topology, &flows, &schedule, settings).unwrap();
    simulation.run_to_end();
    let results = simulation.results();
    let times = numbers.iter().map(|of| of.map(|task| results.task_ends[task as usize].unwrap()));
    (times.collect(), results)
}

/// Sends the transfers from outside. The tag of each is its number.
fn embedded(topology: &Topology, settings: Settings) -> (Vec<[Time; 2]>, u64, Results) {
    let mut network = Network::new(topology, settings).unwrap();
    let mut times = vec![[Time::ZERO; 2]; TRANSFERS.len()];
    for (tag, (from, to, bytes, at)) in (0..).zip(TRANSFERS) {
        network.receive(from, to, tag, bytes).unwrap();
        match at {
            0 => _ = network.send(from, to, tag, bytes).unwrap(),
            at => network.schedule(Time::from_ps(at), tag),
        }
    }
    while let Some(event) = network.next_event().unwrap() {
        let now = network.now();
        match event {
            NetworkEvent::Sent(message) => times[message.tag as usize][0] = now,
            NetworkEvent::Received(message) => times[message.tag as usize][1] = now,
            NetworkEvent::Scheduled { token } => {
                let (from, to, bytes, _) = TRANSFERS[token as usize];
                network.send(from, to, token, bytes).unwrap();
            }
        }
    }
    let hash = network.trace_hash();
    (times, hash, network.results())
}

/// Several paths, small pieces and congestion control.
fn demanding() -> (Topology, Settings) {
    let topology = Topology::leaf_spine(2, 2, 4, LINK, LINK).unwrap();
    let mut settings = Settings::default();
    (settings.host.congestion, settings.host.notification) = Congestion::parse("dcqcn:paper").unwrap();
    settings.host.message_bytes = 60_000;
    settings.switch.marking[3] = roce_sim::net::Marking::Red { kmin: 20_000, kmax: 80_000, pmax: 0.1 };
    (topology, settings)
}

#[test]
fn messages_take_the_times_of_the_same_transfers_in_a_schedule() {
    let (topology, mut settings) = demanding();
    // The flows of a schedule that begin together do so in an order that follows from the seed, messages in
    // that of the calls.
    settings.ties = Ties::Port;
    let (expected, of_schedule) = scheduled(&topology, settings.clone());
    let (times, _, of_messages) = embedded(&topology, settings);
    assert_eq!(times, expected);
    assert_complete(&of_schedule);
    assert_complete(&of_messages);
    for (one, other) in of_schedule.flows.iter().zip(&of_messages.flows) {
        assert_eq!((one.counts, one.spec.bytes), (other.counts, other.spec.bytes));
        assert_eq!(one.completion_time, other.completion_time);
    }
    assert!(of_messages.flows.iter().any(|flow| flow.counts.marked > 0));
    assert_eq!(of_schedule.data_packets, of_messages.data_packets);
}

#[test]
fn equal_calls_have_equal_hashes_with_any_payload_and_threads() {
    let (topology, settings) = demanding();
    let (times, hash, results) = embedded(&topology, settings.clone());
    for (payload, threads) in [(PayloadMode::Implied, 1), (PayloadMode::Implied, 2), (PayloadMode::Real, 1)] {
        let settings = Settings { payload, threads, ..settings.clone() };
        let (again, other, real) = embedded(&topology, settings);
        assert_eq!((&again, other, real.trace_hash), (&times, hash, results.trace_hash));
        if payload == PayloadMode::Real {
            let sent: u64 = TRANSFERS.iter().map(|(_, _, bytes, _)| bytes).sum();
            assert_eq!(real.checked, (sent, 0), "every byte once, none wrong");
        }
    }
    let (_, other, _) = embedded(&topology, Settings { seed: 2, ..settings });
    assert_ne!(other, hash, "marks are random");
}

/// A thread of the receiver sees the message later than its NIC.
#[test]
fn hosts_with_applications_receive_when_a_thread_polls() {
    let exchange = |application| {
        let mut settings = Settings::default();
        settings.host.application = application;
        let mut network = Network::new(&Topology::star(2, LINK).unwrap(), settings).unwrap();
        network.receive(0, 1, 0, 50_000).unwrap();
        network.send(0, 1, 0, 50_000).unwrap();
        let all = events(&mut network);
        assert_eq!(all.len(), 2, "{all:?}");
        let arrival = all.iter().find(|(_, (what, _, _))| *what == "received").unwrap().0;
        assert_complete(&network.results());
        arrival
    };
    let (at_once, later) = (exchange(Application::Immediate), exchange(Application::Polling));
    assert!(later > at_once && later < at_once + Time::from_us(20), "{at_once} {later}");
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let mut network = star(2);
    let text = |error: NetworkError| error.to_string();
    assert_eq!(text(network.send(0, 2, 0, 1).unwrap_err()), "there is no rank 2; the ranks are 0 to 1");
    assert_eq!(
        text(network.receive(1, 1, 0, 1).unwrap_err()),
        "rank 1 cannot exchange a message with itself; copy the bytes without the network"
    );
    assert_eq!(
        text(network.send(0, 1, 0, 0).unwrap_err()),
        "a message from rank 0 to rank 1 has 0 bytes; send at least 1"
    );
    assert!(matches!(network.send(0, 1, 0, 1 << 40), Err(NetworkError::TooMuch { sent: 0, .. })));
    let short = "the receive of 9 bytes from rank 0 at rank 1 with tag 3 is too short for the send of 10 bytes; receive at \
                 least as many";
    network.send(0, 1, 3, 10).unwrap();
    assert_eq!(text(network.receive(0, 1, 3, 9).unwrap_err()), short);
    network.receive(0, 1, 3, 10).unwrap();
    network.receive(0, 1, 3, 9).unwrap();
    assert_eq!(text(network.send(0, 1, 3, 10).unwrap_err()), short);
    network.send(0, 1, 3, 9).unwrap();
    assert_eq!(received(&events(&mut network)), [(1, 10), (2, 9)]);
}

#[test]
fn what_matches_nothing_is_named_at_the_end() {
    let mut network = star(3);
    network.receive(0, 1, 5, 100).unwrap();
    network.send(2, 1, 6, 7).unwrap();
    network.send(2, 1, 7, 8).unwrap();
    assert!(matches!(network.next_event(), Ok(Some(NetworkEvent::Sent(_)))));
    assert!(matches!(network.next_event(), Ok(Some(NetworkEvent::Sent(_)))));
    let error = network.next_event().unwrap_err().to_string();
    assert_eq!(
        error,
        "nothing is left to simulate, but these sends have no receive: 7 bytes from rank 2 to rank 1 with tag 6, 8 bytes \
         from rank 2 to rank 1 with tag 7; these receives have no send: 100 bytes from rank 0 to rank 1 with tag 5; add \
         what is missing, with the same ranks and tag"
    );
    // The run can go on.
    network.receive(2, 1, 6, 7).unwrap();
    network.receive(2, 1, 7, 8).unwrap();
    network.send(0, 1, 5, 100).unwrap();
    assert_eq!(received(&events(&mut network)), [(3, 7), (4, 8), (0, 100)]);
}

#[test]
fn a_run_that_fails_or_stops_says_where() {
    let lossy =
        Topology::parse("host a b\nswitch s\nlink a s\nlink b s 100Gbps 1us drop=100%", LINK).unwrap();
    let run = |settings: Settings| {
        let mut network = Network::new(&lossy, settings).unwrap();
        network.receive(0, 1, 4, 1_024).unwrap();
        network.send(0, 1, 4, 1_024).unwrap();
        let error = network.next_event().unwrap_err();
        assert_eq!(network.next_event(), Err(error.clone()));
        assert_eq!(network.send(0, 1, 4, 1), Err(error.clone()));
        (error, network.results())
    };
    let mut settings = Settings::default();
    (settings.host.timeout, settings.host.retry_cnt) = (4, 1);
    let (error, results) = run(settings.clone());
    assert!(matches!(error, NetworkError::Failed { from: 0, to: 1, .. }), "{error}");
    assert!(matches!(results.flows[0].state, FlowState::Failed(_)));
    let (error, results) = run(Settings { stop: Time::from_us(20), ..settings });
    assert_eq!(
        error.to_string(),
        "the simulation stopped at 20.000 us, while these messages were not complete: 1024 bytes from rank 0 to rank 1 \
         with tag 4; set a later `stop`"
    );
    assert_eq!(results.flows[0].state, FlowState::Running);
    // A token behind the stop time.
    let mut network =
        Network::new(&lossy, Settings { stop: Time::from_us(20), ..Settings::default() }).unwrap();
    network.schedule(Time::from_us(20), 1);
    network.schedule(Time::from_us(21), 2);
    assert_eq!(network.next_event(), Ok(Some(NetworkEvent::Scheduled { token: 1 })));
    assert!(matches!(network.next_event(), Err(NetworkError::Stopped { waiting, .. }) if waiting.is_empty()));
}

#[test]
fn ranks_without_a_path_are_refused() {
    let islands = Topology::parse("host a b\nswitch s t\nlink a s\nlink b t", LINK).unwrap();
    let mut network = Network::new(&islands, Settings::default()).unwrap();
    for _ in 0..2 {
        let error = network.send(0, 1, 0, 1).unwrap_err();
        let expected = "no queue pair connects rank 0 with rank 1: no path; examine the links of both";
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(network.next_event(), Ok(None));
}

#[test]
fn settings_that_messages_cannot_have_are_refused() {
    let topology = Topology::star(2, LINK).unwrap();
    let refused = |settings: Settings| match Network::new(&topology, settings) {
        Err(BuildError::Setting(reason)) => reason,
        _ => panic!("not refused"),
    };
    let host = HostSettings { operation: FlowOperation::Read, ..HostSettings::default() };
    let reason = refused(Settings { host: host.clone(), ..Settings::default() });
    assert!(reason.starts_with("operation: messages are WRITEs"), "{reason}");
    let reason = refused(Settings { profiles: vec![host], ..Settings::default() });
    assert!(reason.starts_with("profiles: messages have the settings of `host`"), "{reason}");
    let scale_up = Some(ScaleUp { hosts: 2, rate_bps: 1, delay: Time::from_us(1) });
    let topology = Topology { scale_up, ..Topology::star(2, LINK).unwrap() };
    let reason = Network::new(&topology, Settings::default()).err().unwrap().to_string();
    assert!(reason.contains("scale_up: the messages of a scheduler do not take this network"), "{reason}");
}
