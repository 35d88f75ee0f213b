use proptest::prelude::*;
use roce_packet::{Opcode, Psn, Qpn};

use super::track::{MAX_FLOWS, Passes};
use super::*;

const NOW: Instant = Instant::ZERO;

fn plan(text: &str) -> FaultPlan {
    text.parse().expect(text)
}

fn injector(text: &str) -> FaultInjector {
    FaultInjector::new(plan(text), 7)
}

/// Returns a datagram that is long enough for a BTH and an ICRC.
fn datagram(opcode: Opcode, qp: u32, psn: u32) -> Vec<u8> {
    let mut bytes = [0; Bth::LEN];
    Bth::new(opcode, Qpn::new(qp), Psn::new(psn)).emit(&mut bytes);
    let mut bytes = bytes.to_vec();
    bytes.extend([0xaa; 52]);
    bytes
}

#[track_caller]
fn send(injector: &mut FaultInjector, qp: u32, psn: u32) -> Verdict {
    injector.inject(NOW, Ecn::Capable0, &datagram(Opcode::RC_SEND_ONLY, qp, psn))
}

fn delivery(verdict: Verdict) -> Delivery {
    match verdict {
        Verdict::Deliver(delivery) => delivery,
        Verdict::Drop => panic!("dropped"),
    }
}

#[test]
fn the_example_of_the_documentation_says_what_it_means() {
    let plan = plan("drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=50us,ecn=5%");
    let parts = |parts| Chance::from_parts_per_billion(parts).unwrap();
    assert_eq!(
        plan.rates,
        Rates {
            drop: parts(10_000_000),
            duplicate: parts(5_000_000),
            reorder: parts(20_000_000),
            corrupt: parts(1_000_000),
            mark: parts(50_000_000),
            delay: Delay { time: DelayTime::exactly(50_000), chance: Chance::ALWAYS },
            ..Rates::default()
        }
    );
    assert!(plan.rules.is_empty());
}

#[test]
fn a_rule_says_what_it_means() {
    let plan = plan("rule:qp=0x11,psn=5,opcode=RC_SEND_ONLY,pass=2,action=drop");
    let expected = Rule {
        qp: Some(Numbers::one(0x11)),
        psn: Some(Numbers::one(5)),
        opcode: OpcodePattern::new("RC_SEND_ONLY"),
        pass: Some(Numbers::one(2)),
        ..Rule::new(Action::Drop)
    };
    assert_eq!(plan.rules, [expected]);
}

#[test]
fn what_is_written_is_read_back() {
    for (text, canonical) in [
        ("", "none"),
        (" none ", "none"),
        ("drop=0%", "none"),
        ("drop=100%", "drop=100%"),
        ("drop=0.0000001%", "drop=0.0000001%"),
        (" drop = 01.50% , ecn=5% ", "drop=1.5%,ecn=5%"),
        ("ecn=5%;drop=1%", "drop=1%,ecn=5%"),
        ("delay=1500us", "delay=1500us"),
        ("delay=1.5us", "delay=1500ns"),
        ("delay=0.5ns", "delay=1ns"),
        ("delay=2000ms@10%", "delay=2s@10%"),
        ("delay=50us-1ms@10%", "delay=50us-1ms@10%"),
        ("reorder=2%,reorder-behind=9,reorder-hold=0s", "reorder=2%,reorder-behind=9,reorder-hold=0ns"),
        ("ecn=1%,force-ecn=on", "ecn=1%,force-ecn=on"),
        ("rule:action=drop", "rule:action=drop"),
        ("rule:qp=17-0x20,action=corrupt:96", "rule:qp=0x11-0x20,action=corrupt:96"),
        ("rule:opcode=rc_send_*,action=dup;drop=1%", "drop=1%;rule:opcode=RC_SEND_*,action=dup"),
        ("rule:opcode=4,action=delay:1us-2us", "rule:opcode=0x04,action=delay:1us-2us"),
        (
            "rule:rqp=1,rpsn=0-3,pass=1-2,after=1ms,until=2ms,chance=50%,times=3,action=reorder:2",
            "rule:rqp=1,rpsn=0-3,pass=1-2,after=1ms,until=2ms,chance=50%,times=3,action=reorder:2",
        ),
        ("rule:action=ecn;rule:action=force-ecn", "rule:action=ecn;rule:action=force-ecn"),
        ("rule:action=deliver;rule:action=reorder", "rule:action=deliver;rule:action=reorder"),
    ] {
        let plan = plan(text);
        assert_eq!(plan.to_string(), canonical);
        assert_eq!(canonical.parse(), Ok(plan), "{canonical}");
    }
}

#[test]
fn errors_name_the_item_and_what_was_expected() {
    for (text, parts) in [
        (
            "drop=1%;dorp=1%",
            [
                "item 2 `dorp=1%`",
                "`dorp` is not known here (did you mean `drop`?); expected one of drop, dup",
            ],
        ),
        ("drop", ["item 1 `drop`", "`drop` has no value; expected drop=a percentage"]),
        ("drop=5", ["item 1 `drop=5`", "drop=`5`: expected a percentage"]),
        ("drop=100.0000001%", ["", "expected at most 100%"]),
        ("drop=200%", ["item 1 `drop=200%`", "drop=`200%`: expected at most 100%"]),
        ("rule:chance=101%,action=drop", ["", "chance=`101%`: expected at most 100%"]),
        ("drop=0.00000001%", ["", "at most seven decimal places"]),
        ("drop=-1%", ["", "expected a percentage"]),
        ("drop=.5%", ["", "expected a percentage"]),
        ("drop=1%,drop=2%", ["item 1", "`drop` is given twice"]),
        ("drop=1%;drop=2%", ["item 2", "`drop` is given twice"]),
        ("delay=50", ["", "units are ns, us, ms, s"]),
        ("delay=70us-50us", ["", "expected a time such as 50us"]),
        ("delay=99999999999999999999s", ["", "expected a time"]),
        ("delay=0.5h", ["", "expected a time"]),
        ("reorder-behind=0", ["", "expected a number from 1 to 1000"]),
        ("force-ecn=yes", ["", "expected on or off"]),
        ("drop=1%;", ["item 2 ``", "expected one of"]),
        ("rule:qp=1", ["item 1 `rule:qp=1`", "expected action="]),
        ("rule:", ["", "expected one of qp, rqp"]),
        ("rule:action=explode", ["", "action=`explode`: expected drop, dup"]),
        ("rule:action=delay", ["", "delay:TIME"]),
        ("rule:action=drop:1", ["", "expected drop, dup"]),
        ("rule:psn=16777216,action=drop", ["", "expected a number from 0 to 16777215"]),
        ("rule:psn=9-5,action=drop", ["", "a range such as 5-9"]),
        ("rule:psn=+5,action=drop", ["", "psn=`+5`"]),
        ("rule:psn=0x,action=drop", ["", "psn=`0x`"]),
        ("rule:pass=0,action=drop", ["", "expected a number from 1"]),
        ("rule:opcode=RC_SEND_OLNY,action=drop", ["", "opcode=`RC_SEND_OLNY`: expected a name such as"]),
        ("rule:opcode=256,action=drop", ["", "a number from 0 to 255"]),
        ("rule:drop=1%,action=drop", ["", "`drop` is not known here; expected one of qp"]),
    ] {
        let error = text.parse::<FaultPlan>().expect_err(text).to_string();
        for part in parts {
            assert!(error.contains(part), "`{text}` gave: {error}");
        }
    }
}

#[test]
fn nothing_happens_without_a_plan() {
    let mut injector = injector("none");
    assert!(injector.plan().is_empty());
    for psn in 0..1000 {
        assert_eq!(send(&mut injector, 0x11, psn), Verdict::UNTOUCHED);
    }
    assert_eq!(*injector.counters(), FaultCounters { seen: 1000, ..FaultCounters::default() });
}

#[test]
fn rates_come_true() {
    let mut injector = injector("drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=50us@10%,ecn=5%");
    let seen = 1_000_000;
    for psn in 0..seen {
        send(&mut injector, 0x11, psn);
    }
    let counters = *injector.counters();
    // Rates of the datagrams that are not dropped. Each tolerance exceeds five standard deviations.
    for (count, percent) in [
        (counters.dropped, 1.0),
        (counters.duplicated, 0.99 * 0.5),
        (counters.reordered, 0.99 * 2.0),
        (counters.corrupted, 0.99 * 0.1),
        (counters.delayed, 0.99 * 10.0),
        (counters.marked, 0.99 * 5.0),
    ] {
        let expected = percent / 100.0 * f64::from(seen);
        let tolerance = 5.0 * expected.sqrt();
        assert!((count as f64 - expected).abs() < tolerance, "{count} instead of {expected}");
    }
    assert_eq!(counters.seen, u64::from(seen));
}

#[test]
fn certainty_is_certain() {
    let mut injector = injector("drop=100%");
    assert!((0..10_000).all(|psn| send(&mut injector, 1, psn) == Verdict::Drop));
    assert!(Chance::ALWAYS.hits(u32::MAX) && !Chance::NEVER.hits(0));
}

#[test]
fn one_seed_gives_one_sequence() {
    let text = "drop=10%,dup=10%,reorder=10%,reorder-hold=1us-1ms,corrupt=10%,delay=1us-9us@50%,ecn=10%";
    let run = |seed| {
        let mut injector = FaultInjector::new(plan(text), seed);
        (0..1000).map(|psn| send(&mut injector, 1, psn)).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_rate_does_not_change_whom_another_one_strikes() {
    let dropped = |text| {
        let mut injector = injector(text);
        (0..10_000).filter(|psn| send(&mut injector, 1, *psn) == Verdict::Drop).collect::<Vec<_>>()
    };
    let alone = dropped("drop=1%");
    assert!(!alone.is_empty());
    assert_eq!(alone, dropped("drop=1%,dup=50%,reorder=3%,corrupt=9%,ecn=20%,delay=1us-5us@30%"));
}

#[test]
fn kinds_of_faults_strike_independently() {
    let mut injector = injector("dup=50%,ecn=50%");
    let seen = 100_000;
    let both = (0..seen)
        .map(|psn| delivery(send(&mut injector, 1, psn)))
        .filter(|delivery| delivery.duplicate && delivery.mark)
        .count();
    assert!((both as f64 - 25_000.0).abs() < 1000.0, "{both} of {seen}");
}

#[test]
fn one_to_three_bits_anywhere_are_flipped() {
    let mut injector = injector("corrupt=100%");
    let original = datagram(Opcode::RC_SEND_ONLY, 1, 1);
    let mut touched = vec![0_u8; original.len()];
    let mut counts = [0; 4];
    for _ in 0..20_000 {
        let delivery = delivery(injector.inject(NOW, Ecn::NotCapable, &original));
        let mut damaged = original.clone();
        delivery.flips.apply(&mut damaged);
        let flipped = original.iter().zip(&damaged).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        counts[flipped as usize] += 1;
        for (all, (a, b)) in touched.iter_mut().zip(original.iter().zip(&damaged)) {
            *all |= a ^ b;
        }
    }
    assert_eq!(counts[0], 0);
    assert!(counts[1..].iter().all(|count| (6000..7400).contains(count)), "{counts:?}");
    assert!(touched.iter().all(|bits| *bits == 0xff), "some bits are never flipped: {touched:x?}");
}

#[test]
fn a_rule_can_flip_one_bit() {
    let mut injector = injector("rule:action=corrupt:9");
    let mut bytes = datagram(Opcode::RC_SEND_ONLY, 1, 1);
    let second = bytes[1];
    delivery(injector.inject(NOW, Ecn::NotCapable, &bytes)).flips.apply(&mut bytes);
    assert_eq!(bytes[1], second ^ 0x40);
    // Bits beyond the end are ignored.
    BitFlips::one(u32::MAX).apply(&mut bytes);
}

#[test]
fn only_what_is_capable_is_marked_unless_forced() {
    for (text, ecn, expected) in [
        ("ecn=100%", Ecn::NotCapable, false),
        ("ecn=100%", Ecn::Capable0, true),
        ("ecn=100%", Ecn::Capable1, true),
        ("ecn=100%", Ecn::CongestionExperienced, false),
        ("ecn=100%,force-ecn=on", Ecn::NotCapable, true),
        ("ecn=100%,force-ecn=on", Ecn::CongestionExperienced, false),
        ("rule:action=ecn", Ecn::NotCapable, false),
        ("rule:action=ecn", Ecn::Capable0, true),
        ("rule:action=force-ecn", Ecn::NotCapable, true),
    ] {
        let mut injector = injector(text);
        let mark = delivery(injector.inject(NOW, ecn, &datagram(Opcode::RC_SEND_ONLY, 1, 1))).mark;
        assert_eq!(mark, expected, "{text} {ecn:?}");
        assert_eq!(injector.counters().marked, u64::from(expected));
        assert_eq!(injector.counters().not_markable, u64::from(!expected));
    }
}

/// Packets of a requester whose third datagram and its first retransmission are lost:
///
/// ```text
/// PSN   3  4  5  6  |  5  6  |  5  6
///             x     |  x     |
/// ```
#[test]
fn a_rule_meets_the_nth_pass_of_a_psn() {
    let mut injector = injector("rule:psn=5,pass=1-2,action=drop");
    let dropped: Vec<bool> =
        [3, 4, 5, 6, 5, 6, 5, 6].map(|psn| send(&mut injector, 0x11, psn) == Verdict::Drop).to_vec();
    assert_eq!(dropped, [false, false, true, false, true, false, false, false]);
    // Passes are counted for each queue pair separately.
    assert_eq!(send(&mut injector, 0x12, 5), Verdict::Drop);
}

#[test]
fn requests_and_responses_count_apart() {
    let mut injector = injector("rule:psn=5,pass=2,action=drop");
    let request = datagram(Opcode::RC_SEND_ONLY, 0x11, 5);
    let response = datagram(Opcode::RC_ACKNOWLEDGE, 0x11, 5);
    let mut dropped = |bytes: &[u8]| injector.inject(NOW, Ecn::Capable0, bytes) == Verdict::Drop;
    assert!(!dropped(&request));
    assert!(!dropped(&response));
    assert!(dropped(&request));
    assert!(dropped(&response));
}

#[test]
fn relative_numbers_start_at_what_is_seen_first() {
    let mut injector = injector("rule:rqp=2,rpsn=1,action=drop");
    // Connection management comes first; its queue pair is not counted.
    assert_eq!(send(&mut injector, 1, 77), Verdict::UNTOUCHED);
    assert_eq!(send(&mut injector, 0x900, 100), Verdict::UNTOUCHED);
    assert_eq!(send(&mut injector, 0x500, 0xff_ffff), Verdict::UNTOUCHED);
    assert_eq!(send(&mut injector, 0x900, 101), Verdict::UNTOUCHED);
    assert_eq!(send(&mut injector, 0x500, 0), Verdict::Drop);
    assert_eq!(send(&mut injector, 0x500, 1), Verdict::UNTOUCHED);
}

#[test]
fn opcodes_are_met_by_name_prefix_and_number() {
    for (pattern, opcode, expected) in [
        ("RC_SEND_ONLY", Opcode::RC_SEND_ONLY, true),
        ("RC_SEND_ONLY", Opcode::RC_SEND_ONLY_WITH_IMM, false),
        ("RC_SEND_ONLY*", Opcode::RC_SEND_ONLY_WITH_IMM, true),
        ("RC_SEND_ONLY*", Opcode::UC_SEND_ONLY, false),
        ("*", Opcode::CNP, true),
        ("0x81", Opcode::CNP, true),
        ("0xff", Opcode(0xff), true),
        ("*", Opcode(0xff), false),
    ] {
        let mut injector = injector(&format!("rule:opcode={pattern},action=drop"));
        let verdict = injector.inject(NOW, Ecn::Capable0, &datagram(opcode, 1, 1));
        assert_eq!(verdict == Verdict::Drop, expected, "{pattern} {opcode}");
    }
}

#[test]
fn a_rule_meets_datagrams_of_its_length() {
    let len = datagram(Opcode::RC_SEND_ONLY, 1, 1).len();
    for (from, to, expected) in
        [(len, 65_535, true), (len + 1, 65_535, false), (0, len, true), (0, len - 1, false)]
    {
        let mut injector = injector(&format!("rule:len={from}-{to},action=drop"));
        assert_eq!(send(&mut injector, 1, 1) == Verdict::Drop, expected, "{from}-{to}");
    }
}

#[test]
fn parts_of_the_traffic_class_are_cleared() {
    let path = Path {
        encapsulation: roce_packet::Encapsulation::RoceV2,
        source: [127, 0, 0, 1].into(),
        destination: [127, 0, 0, 2].into(),
        source_port: 0xc000,
        traffic_class: 26 << 2 | 2,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    };
    for (text, left) in
        [("clear-ecn", 26 << 2), ("clear-dscp", 2), ("ecn", 26 << 2 | 3), ("deliver", 26 << 2 | 2)]
    {
        let mut injector = injector(&format!("rule:action={text}"));
        assert_eq!(
            delivery(send(&mut injector, 1, 1)).path(path),
            Path { traffic_class: left, ..path },
            "{text}"
        );
        assert_eq!(injector.counters().cleared, u64::from(text.starts_with("clear")));
    }
}

#[test]
fn the_first_rule_that_matches_decides_alone() {
    let mut injector = injector("drop=100%;rule:psn=1,action=deliver;rule:psn=1-2,action=dup");
    assert_eq!(send(&mut injector, 1, 1), Verdict::UNTOUCHED);
    assert!(delivery(send(&mut injector, 1, 2)).duplicate);
    assert_eq!(send(&mut injector, 1, 3), Verdict::Drop);
    assert_eq!(injector.counters().by_rule, 2);
}

#[test]
fn rules_end_after_their_times_and_their_time() {
    let mut injector = injector("rule:times=2,action=drop");
    assert_eq!([1, 2, 3].map(|psn| send(&mut injector, 1, psn) == Verdict::Drop), [true, true, false]);

    let mut injector = FaultInjector::new(plan("rule:after=1us,until=3us,action=drop"), 1);
    let bytes = datagram(Opcode::RC_SEND_ONLY, 1, 1);
    // Times count from the first datagram, whatever the clock shows.
    let dropped = [5000, 5999, 6000, 7999, 8000]
        .map(|nanos| injector.inject(Instant::from_nanos(nanos), Ecn::Capable0, &bytes) == Verdict::Drop);
    assert_eq!(dropped, [false, false, true, true, false]);
}

#[test]
fn a_rule_takes_its_share() {
    let mut injector = injector("rule:chance=25%,action=drop");
    let dropped = (0..10_000).filter(|psn| send(&mut injector, 1, *psn) == Verdict::Drop).count();
    assert!((2250..2750).contains(&dropped), "{dropped}");
}

#[test]
fn delays_and_holds_stay_in_their_range() {
    let mut injector = injector("delay=50us-70us,reorder=100%,reorder-behind=5,reorder-hold=1us-2us");
    let (mut least, mut most) = (u64::MAX, 0);
    for psn in 0..10_000 {
        let delivery = delivery(send(&mut injector, 1, psn));
        let reorder = delivery.reorder.unwrap();
        assert_eq!(reorder.behind, 5);
        assert!((1000..=2000).contains(&reorder.hold_ns));
        least = least.min(delivery.delay_ns);
        most = most.max(delivery.delay_ns);
    }
    assert!((50_000..50_100).contains(&least) && (69_900..=70_000).contains(&most), "{least} {most}");
}

#[test]
fn what_has_no_header_meets_no_rule_but_chance() {
    let mut rules = injector("rule:psn=0-16777215,action=drop");
    let mut chances = injector("drop=100%");
    for len in 0..Bth::LEN {
        assert_eq!(rules.inject(NOW, Ecn::Capable0, &vec![0; len]), Verdict::UNTOUCHED);
        assert_eq!(chances.inject(NOW, Ecn::Capable0, &vec![0; len]), Verdict::Drop);
    }
    let mut corrupting = injector("corrupt=100%");
    assert!(delivery(corrupting.inject(NOW, Ecn::Capable0, &[])).flips.is_empty());
}

#[test]
fn memory_is_bounded_and_passes_survive_a_window() {
    let mut passes = Passes::new();
    let bth = |qp: u32, psn: u32| Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(qp), Psn::new(psn));
    // 100 queue pairs with 100 outstanding packets each, sent three times.
    for pass in 1..=3 {
        for qp in 0..100 {
            for psn in 0..100 {
                assert_eq!(passes.observe(&bth(qp * 7, psn)), pass, "queue pair {qp}, PSN {psn}");
            }
        }
    }
    // After the sequence numbers have wrapped around, it is the first pass again.
    for psn in 0..2 * Passes::CAPACITY as u32 {
        passes.observe(&bth(1, 1000 + psn));
    }
    assert_eq!(passes.observe(&bth(0, 0)), 1);

    let mut injector = injector("rule:rqp=1,rpsn=0,action=drop");
    for qp in 0..MAX_FLOWS as u32 + 10 {
        send(&mut injector, 2 + qp, 0);
    }
    assert_eq!(injector.counters().untracked, 10);
}

fn numbers(limit: u32) -> impl Strategy<Value = Numbers> {
    (0..=limit, 0..=limit).prop_map(|(a, b)| Numbers::new(a.min(b), a.max(b)).unwrap())
}

fn chances() -> impl Strategy<Value = Chance> {
    (0..=1_000_000_000_u32).prop_map(|parts| Chance::from_parts_per_billion(parts).unwrap())
}

fn times() -> impl Strategy<Value = DelayTime> {
    (any::<u64>(), any::<u64>()).prop_map(|(a, b)| DelayTime { from_ns: a.min(b), to_ns: a.max(b) })
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Deliver),
        Just(Action::Drop),
        Just(Action::Duplicate),
        proptest::option::of(1..=Rates::MAX_BEHIND).prop_map(Action::Reorder),
        any::<Option<u32>>().prop_map(Action::Corrupt),
        any::<bool>().prop_map(|force| Action::Mark { force }),
        Just(Action::ClearEcn),
        Just(Action::ClearDscp),
        times().prop_map(Action::Delay),
    ]
}

fn plans() -> impl Strategy<Value = FaultPlan> {
    let rates = (
        (chances(), chances(), chances(), chances(), chances()),
        (times(), chances()),
        1..=Rates::MAX_BEHIND,
        times(),
        any::<bool>(),
    )
        .prop_map(
            |((drop, duplicate, reorder, corrupt, mark), (time, chance), behind, hold, force_mark)| {
                let delay = Delay { time, chance };
                Rates { drop, duplicate, reorder, corrupt, mark, delay, behind, hold, force_mark }
            },
        );
    let some = |limit| proptest::option::of(numbers(limit));
    let counts = || proptest::option::of(numbers(1000).prop_filter("from 1", |range| !range.contains(0)));
    let opcode = proptest::option::of(prop_oneof![Just("RC_*"), Just("CNP"), Just("0x7f")]);
    let rule = (
        (some(0xff_ffff), counts(), some(0xff_ffff), some(0xff_ffff), opcode, counts(), some(u32::MAX)),
        any::<(Option<u64>, Option<u64>)>(),
        proptest::option::of(chances()),
        any::<Option<u32>>(),
        actions(),
    )
        .prop_map(|(conditions, (after_ns, until_ns), chance, times, action)| {
            let (qp, relative_qp, psn, relative_psn, opcode, pass, len) = conditions;
            let opcode = opcode.and_then(OpcodePattern::new);
            let limits = Rule { after_ns, until_ns, chance, times, ..Rule::new(action) };
            Rule { qp, relative_qp, psn, relative_psn, opcode, pass, len, ..limits }
        });
    (rates, proptest::collection::vec(rule, 0..4)).prop_map(|(rates, rules)| FaultPlan { rates, rules })
}

proptest! {
    #[test]
    fn every_plan_is_read_back_from_its_text(plan in plans()) {
        prop_assert_eq!(plan.to_string().parse::<FaultPlan>(), Ok(plan));
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z0-9=%;:,.@*x -]{0,60}") {
        if let Ok(plan) = text.parse::<FaultPlan>() {
            prop_assert_eq!(plan.to_string().parse::<FaultPlan>(), Ok(plan));
        }
    }

    #[test]
    fn no_datagram_makes_the_injector_panic(
        plan in plans(),
        seed: u64,
        datagrams in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..40),
    ) {
        let mut injector = FaultInjector::new(plan, seed);
        for mut datagram in datagrams {
            if let Verdict::Deliver(delivery) = injector.inject(NOW, Ecn::Capable1, &datagram) {
                delivery.flips.apply(&mut datagram);
            }
        }
    }
}
