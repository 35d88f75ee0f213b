//! Hosts whose applications use the library: packets wait for their threads.

use roce_sim::net::{
    Application, DropReason, FlowOperation, HostSettings, PayloadMode, Results, Settings, Time, Topology,
};

use super::{LINK, assert_complete, flow, run};

const POLLING: Application = Application::Polling;
const EVENTS: Application = Application::Events { spin: Time::ZERO };

fn computing(micros: u64) -> Application {
    Application::Computing { time: Time::from_us(micros) }
}

fn us(time: Time) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The messages of a ping-pong.
const MESSAGES: u64 = 1_000;

/// One host sends small messages to another one, each after the acknowledgement of the previous one.
fn messages(
    applications: [Application; 2],
    operation: FlowOperation,
    change: fn(&mut HostSettings),
) -> Results {
    let mut settings = Settings { applications: applications.to_vec(), ..Settings::default() };
    (settings.host.operation, settings.host.message_bytes, settings.host.depth) = (operation, 64, 1);
    change(&mut settings.host);
    let results = run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 64 * MESSAGES)], settings);
    assert_complete(&results);
    results
}

/// Returns the time of a message and its acknowledgement in µs.
fn round_trip(results: &Results) -> f64 {
    us(results.flows[0].completion_time.unwrap()) / MESSAGES as f64
}

fn usual(_: &mut HostSettings) {}

/// With 0.5 µs for a poll and 10 µs for a wake-up.
#[test]
fn a_round_trip_takes_longer_with_polls_and_longest_with_wake_ups() {
    for operation in [FlowOperation::Write, FlowOperation::Send] {
        let of = |application| round_trip(&messages([application; 2], operation, usual));
        let [immediate, polling, events] = [Application::Immediate, POLLING, EVENTS].map(of);
        println!("{operation:?}: {immediate:.2} us, polling {polling:.2} us, with events {events:.2} us");
        // Each of two packets waits for one to two polls. The acknowledgement of a SEND waits for the next
        // poll. A few polls stay for 20 µs to see whether the peer accesses memory.
        assert!((1.0..3.5).contains(&(polling - immediate)), "{polling} {immediate}");
        // Each of two packets wakes a thread.
        assert!((18.0..25.0).contains(&(events - immediate)), "{events} {immediate}");
    }
}

#[test]
fn the_times_of_polls_and_wake_ups_are_settings() {
    let of = |application, change| round_trip(&messages([application; 2], FlowOperation::Write, change));
    let slower = of(POLLING, |host| host.poll_time = Time::from_us(1)) - of(POLLING, usual);
    assert!((0.5..2.5).contains(&slower), "{slower}");
    let slower = of(EVENTS, |host| host.wake_up_time = Time::from_us(30)) - of(EVENTS, usual);
    assert!((38.0..44.0).contains(&slower), "{slower}");
}

#[test]
fn a_wait_that_spins_is_as_fast_as_polls() {
    let spinning = Application::Events { spin: Time::from_us(50) };
    let of = |application| messages([application; 2], FlowOperation::Write, usual);
    let (spinning, polling) = (of(spinning), of(POLLING));
    assert!((round_trip(&spinning) - round_trip(&polling)).abs() < 3.0, "{}", round_trip(&spinning));
    assert!(spinning.hosts.iter().all(|host| host.wake_ups < MESSAGES / 10), "{:?}", spinning.hosts);
}

/// The background thread may watch the device as well, if it last looked while the application did not wait.
#[test]
fn each_message_wakes_a_thread() {
    for operation in [FlowOperation::Write, FlowOperation::Send] {
        let results = messages([POLLING, EVENTS], operation, usual);
        let receiver = &results.hosts[1];
        assert_eq!((receiver.name.as_str(), receiver.application), ("h1", EVENTS));
        assert!((MESSAGES..2 * MESSAGES).contains(&receiver.wake_ups), "{}", receiver.wake_ups);
        let waits = [0.0, 0.5, 1.0].map(|quantile| receiver.waits.quantile(quantile));
        assert!(waits.iter().all(|wait| (10_000..11_000).contains(wait)), "{waits:?}");
    }
}

/// The application watches the device if it polled in the last 50 µs.
#[test]
fn acknowledgements_of_an_application_that_often_polls_wait_for_its_next_poll() {
    let results = messages([POLLING, computing(20)], FlowOperation::Write, usual);
    let waits = [0.0, 0.5, 1.0].map(|quantile| results.hosts[1].waits.quantile(quantile) as f64 / 1e3);
    println!("waits {waits:?} us");
    assert!(waits[1] > 5.0 && waits[2] < 22.0, "{waits:?}");
    assert!(results.hosts[1].wake_ups < MESSAGES, "{}", results.hosts[1].wake_ups);
}

/// The background thread takes over within the times of the policy, even if packets come rarely.
#[test]
fn acknowledgements_of_an_application_that_computes_for_long_come_from_the_background_thread() {
    let results = messages([computing(200), computing(20_000)], FlowOperation::Write, usual);
    let receiver = &results.hosts[1];
    let [median, longest] = [0.5, 1.0].map(|quantile| receiver.waits.quantile(quantile) as f64 / 1e3);
    println!("waits {median} us, at most {longest} us, {} wake-ups", receiver.wake_ups);
    assert!(median < 12.0 && longest < 600.0, "{median} {longest}");
    assert!(receiver.wake_ups > MESSAGES / 2, "{}", receiver.wake_ups);
}

#[test]
fn a_full_receive_queue_drops_packets_that_are_sent_again() {
    let mut settings = Settings { applications: vec![POLLING, computing(40)], ..Settings::default() };
    settings.host.socket_buffer_bytes = 64 << 10;
    settings.host.window_packets = 256;
    let run = |settings: &Settings| {
        run(&Topology::star(2, LINK).unwrap(), &[flow(0, 1, 2_000_000)], settings.clone())
    };
    let small = run(&settings);
    assert_complete(&small);
    let dropped = small.dropped(DropReason::Buffer);
    assert!(dropped > 0 && small.flows[0].counts.retransmitted >= dropped, "{dropped}");
    assert_eq!(small.port("h1", "s0").unwrap().stats.drops(), dropped, "at the host");
    settings.host.socket_buffer_bytes = 16 << 20;
    let large = run(&settings);
    assert_complete(&large);
    assert_eq!((large.dropped(DropReason::Buffer), large.flows[0].counts.retransmitted), (0, 0));
}

/// Completions that one poll finds are handled in their order, so each SEND arrives in its buffer.
#[test]
fn contents_arrive_whole_whatever_the_applications_do() {
    for operation in [FlowOperation::Write, FlowOperation::Send, FlowOperation::Read] {
        for application in [POLLING, EVENTS, computing(30)] {
            let mut settings = Settings { payload: PayloadMode::Real, ..Settings::default() };
            (settings.host.application, settings.host.operation) = (application, operation);
            (settings.host.message_bytes, settings.host.depth) = (3_000, 8);
            let flows = [flow(0, 1, 300_000), flow(1, 0, 300_000), flow(2, 1, 300_000)];
            let results = run(&Topology::star(3, LINK).unwrap(), &flows, settings);
            assert_complete(&results);
            let (bytes, wrong) = results.checked;
            assert!(bytes >= 900_000 && wrong == 0, "{operation:?} {application}: {bytes} {wrong}");
        }
    }
}
