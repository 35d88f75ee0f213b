use roce_packet::{Encapsulation, Opcode, Path, Qpn};
use roce_transport::Instant;

use super::*;
use crate::bed::{EngineNic, run_virtual};
use crate::run::{Outcome, Report};
use crate::script::{Files, Script};
use crate::shipped::{SHIPPED, shipped};
use crate::wire::{Damage, Draft, assemble, slot};

fn run(name: &str, text: &str) -> Report {
    let script = Script::load(name, &Files::of([(name, text)])).unwrap_or_else(|error| {
        panic!("{name}: {error}\n{text}");
    });
    run_virtual(&script, &mut EngineNic::new(1))
}

fn script_of_report(title: &str, report: &Report) -> Result<String, NoScript> {
    let recorded: Vec<Recorded<'_>> = report.records.iter().map(Recorded::from).collect();
    script_of(title, &recorded)
}

/// A script plays again what it has played before.
fn replayed(name: &str) -> (String, Report) {
    let script = shipped(name).expect("a shipped script").expect("a right script");
    let recorded = run_virtual(&script, &mut EngineNic::new(1));
    let text = script_of_report(name, &recorded).unwrap_or_else(|error| panic!("{name}: {error}"));
    let report = run("again.roce", &text);
    (text, report)
}

#[test]
fn a_recorded_script_says_what_the_script_said() {
    let (text, report) = replayed("write-duplicate");
    assert_eq!(
        text,
        "# write-duplicate\n\
         rule \"as recorded\"\n\
         connect rc mtu=1024 psn=100\n\
         memory remote 4096 bytes\n\
         send write_only ackreq psn=100 va=remote.va rkey=remote.rkey len=16 payload=0x55*16\n\
         expect ack psn=100 msn=1\n\
         send write_only ackreq psn=100 va=remote.va rkey=remote.rkey len=16 payload=0x55*16\n\
         expect ack psn=100 msn=1\n"
    );
    assert!(report.has_passed(), "{report:?}");
}

/// What packets do not show: the settings of the queue pair, and what the program did to it and its memory.
const HIDDEN: &[(&str, &str)] = &[
    ("read-not-offered.roce", "reads=0"),
    ("send-invalidate.roce", "the key of a window"),
    ("key-revoked.roce", "revoke"),
    ("key-revoked-inside-message.roce", "revoke"),
    ("rights-of-queue-pair.roce", "rights="),
    ("length-above-mtu.roce", "mtu=256"),
    ("length-above-receive.roce", "the length of the receive"),
    ("drop-source-address.roce", "source="),
    ("drop-destination-address.roce", "destination="),
    ("drop-unknown-qp.roce", "qp="),
    ("state-init.roce", "state=init"),
    ("state-err.roce", "modify err"),
    ("psn-far-ahead.roce", "psn=100, half of all numbers away"),
];

#[test]
fn the_recordings_of_all_scripts_pass_as_scripts() {
    let mut wrong = Vec::new();
    let mut passed = 0;
    for (name, _) in SHIPPED {
        let script = shipped(name).unwrap().unwrap();
        let recorded = run_virtual(&script, &mut EngineNic::new(1));
        let Ok(text) = script_of_report(name, &recorded) else { continue };
        let report = run("again.roce", &text);
        match (&report.outcome, HIDDEN.iter().any(|(hidden, _)| hidden == name)) {
            (Outcome::Passed, false) => passed += 1,
            (Outcome::Passed, true) => wrong.push(format!("{name} passes now")),
            (_, true) => {}
            (outcome, false) => wrong.push(format!("{name}: {outcome:?}\n{text}")),
        }
    }
    assert!(wrong.is_empty(), "{} passed\n{}", passed, wrong.join("\n"));
    assert!(passed >= 95, "{passed}");
}

#[test]
fn packets_that_make_no_script_are_refused() {
    assert!(script_of("nothing", &[]).is_err());
    let script = shipped("write-duplicate").unwrap().unwrap();
    let recorded = run_virtual(&script, &mut EngineNic::new(1));
    let mut cut = recorded.clone();
    cut.records[1].bytes.truncate(13);
    let error = script_of_report("cut", &cut).unwrap_err().to_string();
    assert!(error.contains("a packet of the NIC is cut or malformed"), "{error}");
    let mut far = recorded;
    far.records[0].bytes[12..16].copy_from_slice(&[0x11; 4]);
    let error = script_of_report("far", &far).unwrap_err().to_string();
    assert!(error.contains("reach over"), "{error}");
}

/// Regression: for each request of the NIC, the packets from the first one on were looked at again.
#[test]
fn a_long_recording_takes_a_time_in_proportion_to_its_packets() {
    const MESSAGES: u32 = 100_000;
    let packet = |opcode: Opcode, psn: u32| {
        let info = opcode.info().unwrap();
        let fields = [(slot("psn", info).unwrap(), u64::from(psn))];
        let dest_qp = Qpn::new(7);
        let draft =
            Draft { info, answer: None, dest_qp, fields: &fields, payload: None, damage: Damage::default() };
        assemble(&draft, &path())
    };
    let packets: Vec<(bool, Vec<u8>)> = (0..MESSAGES)
        .flat_map(|psn| {
            let request = packet(Opcode::RC_SEND_ONLY, psn);
            [(false, request), (true, packet(Opcode::RC_ACKNOWLEDGE, psn))]
        })
        .collect();
    let recorded: Vec<Recorded<'_>> = packets
        .iter()
        .map(|(is_sent, bytes)| Recorded {
            at: Instant::ZERO,
            is_sent: *is_sent,
            bytes,
            is_marked: false,
            has_wrong_icrc: false,
        })
        .collect();
    let text = script_of("long", &recorded).unwrap();
    assert_eq!(text.matches("\npost send ").count(), MESSAGES as usize);
}

fn path() -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: [198, 18, 0, 1].into(),
        destination: [198, 18, 0, 2].into(),
        source_port: 0xc000,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}
