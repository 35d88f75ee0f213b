//! Scripts against a NIC behind a device, in real time.

use roce_device::memory::MemoryDevice;
use roce_packet::{Encapsulation, Envelope, Path, Qpn, icrc};
use roce_peer::bed::{OwnEnd, Parameters, Stated, run_device};
use roce_peer::run::{Answer, Connected, Outcome, Output, Refusal, Report, Request, Run, Settings};
use roce_peer::script::{Files, Script};
use roce_transport::Instant;

#[track_caller]
fn script(text: &str) -> Script {
    Script::load("a.roce", &Files::of([("a.roce", text)])).unwrap()
}

/// Runs a script against a queue pair that never answers.
fn against_silence(text: &str) -> Report {
    let (mut device, _nic) = MemoryDevice::pair([198, 18, 0, 1].into(), [198, 18, 0, 2].into()).unwrap();
    let mut connect = |_: &Settings, _: OwnEnd| {
        let address = [198, 18, 0, 2].into();
        Ok::<_, Refusal>(Parameters { address, qpn: Qpn::new(0x11), psn: None, memory: None })
    };
    run_device(&script(text), &mut device, 1_000_000, &mut Stated::new(&mut connect)).unwrap()
}

/// Regression: a packet that cannot be sent counted as a check that is left out if a check followed it.
#[test]
fn a_packet_that_cannot_be_sent_ends_the_script() {
    for setting in ["source=\"198.18.0.9\"", "destination=\"198.18.0.9\""] {
        let report =
            against_silence(&format!("connect rc\nsend write_only psn=1 {setting}\ncheck state == rts"));
        assert!(matches!(report.outcome, Outcome::Inapplicable(_)), "{setting}: {report:?}");
    }
    let report = against_silence("connect rc\nsend write_only psn=1\ncheck state == rts");
    assert_eq!((report.outcome, report.unchecked), (Outcome::Passed, 1));
}

/// In virtual time the script below watches for a minute.
#[test]
fn silence_is_watched_for_two_seconds_at_most() {
    let report = against_silence("connect rc\nexpect nothing for 60s");
    assert!(report.has_passed() && report.elapsed_ns >= 2_000_000_000, "{report:?}");
}

/// A packet arrives before it is seen, so only the time between two looks counts against a NIC.
#[test]
fn a_packet_is_too_early_only_if_it_cannot_have_been_in_time() {
    let text = "connect rc\nignore 1\nexpect cnp\nexpect cnp after 10ms within 20ms";
    let (path, packet) = cnp();
    let receive = |run: &mut Run<'_>, since: u64, now: u64| {
        run.receive_since(Instant::from_nanos(since), Instant::from_nanos(now), &path, Some(0), &packet);
    };
    for (since, fails) in [(19_000_000, true), (10_000_000, false)] {
        let script = script(text);
        let mut run = Run::new(&script);
        let Output::Ask(Request::Connect(_)) = run.poll(Instant::ZERO) else { panic!("a connection") };
        run.answer(Ok(Answer::Connected(connected())));
        receive(&mut run, 0, 1_000_000);
        receive(&mut run, since, 19_000_000);
        receive(&mut run, 24_000_000, 24_000_000);
        while let Output::Wait(_) = run.poll(Instant::from_nanos(24_000_000)) {}
        let report = run.into_report(Instant::from_nanos(24_000_000));
        assert_eq!(report.has_passed(), !fails, "{report:?}");
    }
}

fn connected() -> Connected {
    Connected {
        qpn: Qpn::new(0x11),
        own_qpn: Qpn::new(0x12),
        own_psn: 100,
        nic_psn: 500,
        address: [198, 18, 0, 2].into(),
        own_address: [198, 18, 0, 1].into(),
        source_port: 0xc000,
    }
}

/// Returns a CNP to the script's queue pair, and its path.
fn cnp() -> (Path, Vec<u8>) {
    let path = Path {
        encapsulation: Encapsulation::RoceV2,
        source: connected().address,
        destination: connected().own_address,
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    let mut packet = vec![0; 28];
    packet[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0x12, 0, 0, 0, 0]);
    packet.extend_from_slice(&icrc::compute(&Envelope::new(&path, 0), &packet, &[]).to_le_bytes());
    (path, packet)
}
