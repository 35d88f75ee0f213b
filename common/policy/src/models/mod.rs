//! Applications in virtual time, with all threads of their processes, on a few processors.
//!
//! Each model runs the threads of [`threads`](crate::threads) with a network, processors and applications
//! that consist of plain values. The tests assert budgets: what the application waits for, and what it costs.
//! They caught the defects in docs/reference/mutations.md that were introduced by hand.

mod apps;
mod end;
mod machine;

use std::time::Duration;

use apps::{Compute, Idle, PingPong, PollOther, Receive, SendEach, Stream};
use machine::Machine;

use crate::threads::EventDriven;

const SECOND: Duration = Duration::from_secs(1);

fn micros(time: u64) -> u64 {
    time / 1_000
}

/// Two ends, each with its processor, on which its background thread runs as well.
fn apart() -> Machine {
    Machine::new([0, 1])
}

#[test]
fn two_ends_that_poll_answer_each_other_without_the_background_thread() {
    let mut machine = apart();
    machine.app(0, 0, PingPong::first());
    machine.app(1, 1, PingPong::second());
    let report = machine.run(SECOND / 20);
    let rounds = report.ends[0].received;
    assert!(rounds > 1_500, "{report:#?}");
    // The acknowledgement leaves with the answer, or the next message replaces it.
    for end in &report.ends {
        assert!(end.transmissions <= rounds + rounds / 4, "{report:#?}");
        // The two checks of the wire's time, and one per packet.
        assert!(end.checks <= 40 * rounds, "{report:#?}");
        assert!(end.background.ran * 100 < report.time, "{report:#?}");
        assert!(end.background.wakeups < 100, "{report:#?}");
    }
}

#[test]
fn a_stream_is_acknowledged_soon_and_wakes_nobody() {
    let mut machine = apart();
    machine.app(0, 0, Stream::of(16));
    machine.app(1, 1, Receive);
    let report = machine.run(SECOND / 20);
    let [sender, receiver] = &report.ends;
    assert!(receiver.received > 10_000, "{report:#?}");
    assert!(micros(receiver.latest_acknowledgement) <= 100, "{report:#?}");
    // Requests share transmissions, and so do acknowledgements.
    for end in [sender, receiver] {
        assert!(end.transmissions * 10 < receiver.received * 8, "{report:#?}");
    }
    for end in &report.ends {
        assert!(end.background.ran * 100 < report.time, "{report:#?}");
    }
}

#[test]
fn the_peer_of_an_application_that_computes_gets_its_acknowledgements() {
    let mut machine = apart();
    machine.app(0, 0, SendEach::new(Duration::from_micros(700)));
    machine.app(1, 1, Compute(Duration::from_micros(500)));
    // The background thread has a processor of its own.
    machine.move_background(1, 2);
    let report = machine.run(SECOND / 2);
    let receiver = &report.ends[1];
    assert!(receiver.received > 600, "{report:#?}");
    let mean = receiver.acknowledged_after / receiver.acknowledgements.max(1);
    assert!(micros(mean) < 25, "{report:#?}");
    assert!(micros(receiver.latest_acknowledgement) < 3_000, "{report:#?}");
}

#[test]
fn an_application_that_waits_in_the_library_is_woken_once_per_message() {
    let mut machine = apart();
    machine.app(0, 0, SendEach::new(Duration::from_millis(1)));
    machine.app(1, 1, EventDriven::waiting_in_the_library());
    let report = machine.run(SECOND);
    let receiver = &report.ends[1];
    assert!(receiver.received > 900, "{report:#?}");
    assert!(micros(receiver.latest_message) < 50, "{report:#?}");
    assert!(receiver.app.wakeups <= receiver.received + receiver.received / 10, "{report:#?}");
    assert!((receiver.app.ran + receiver.background.ran) * 20 < report.time, "{report:#?}");
}

#[test]
fn an_application_that_sleeps_by_itself_is_woken_at_once() {
    // The second one polls for about 2 ms, so that the background thread backs off for longest.
    for (patience, pause) in [(1, Duration::from_millis(1)), (6_000, Duration::from_micros(2_500))] {
        let mut machine = apart();
        machine.app(0, 0, SendEach::new(pause));
        machine.app(1, 1, EventDriven::sleeping_by_itself(patience));
        let report = machine.run(SECOND / 5);
        let receiver = &report.ends[1];
        assert!(receiver.received > 70, "{report:#?}");
        assert!(micros(receiver.latest_message) < 50, "{report:#?}");
        let wakeups = receiver.app.wakeups + receiver.background.wakeups;
        assert!(wakeups <= 6 * receiver.received, "{report:#?}");
    }
}

#[test]
fn two_threads_that_poll_share_a_processor() {
    let mut machine = apart();
    machine.app(0, 0, PingPong::first());
    machine.app(0, 0, PollOther);
    machine.app(1, 1, PingPong::second());
    let report = machine.run(SECOND / 20);
    assert!(report.ends[0].received > 750, "{report:#?}");
}

#[test]
fn two_processes_that_poll_share_a_processor() {
    let mut machine = Machine::new([0, 0]);
    machine.app(0, 0, PingPong::first());
    machine.app(1, 0, PingPong::second());
    let report = machine.run(SECOND / 20);
    assert!(report.ends[0].received > 750, "{report:#?}");
    for end in &report.ends {
        assert!(end.background.ran * 50 < report.time, "{report:#?}");
    }
}

#[test]
fn an_idle_connection_costs_nothing() {
    let mut machine = apart();
    machine.app(0, 0, Idle);
    machine.app(1, 1, EventDriven::waiting_in_the_library());
    let report = machine.run(10 * SECOND);
    for end in &report.ends {
        assert!(end.app.wakeups + end.background.wakeups <= 50, "{report:#?}");
        assert!((end.app.ran + end.background.ran) * 10_000 < report.time, "{report:#?}");
    }
}
