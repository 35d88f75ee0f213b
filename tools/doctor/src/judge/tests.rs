//! Tests that turn observations into findings.

use super::*;
use crate::finding::Outcome;

pub(crate) fn introduction(last: u8) -> Introduction {
    Introduction {
        doctor: 1,
        kind: "udp".into(),
        address: IpAddr::from([198, 18, 0, last]),
        link_mtu: 1500,
        largest_path_mtu: 1024,
        sees_ip_header: false,
        qpn: 17,
        qkey: 1,
        interface: None,
        links: Vec::new(),
    }
}

/// Returns a burst of 100 packets in each direction without losses and changes.
fn healthy() -> Both {
    let (own, peer) = (introduction(1), introduction(2));
    let seen = |from: &Introduction, port| Observation {
        sent: 100,
        source_port: 50_000,
        intact: 100,
        classes: vec![(2, 2, 50), (107, 107, 50)],
        sources: vec![(from.address, port)],
        hop_limit: Some(64),
        flow_labels: vec![0],
        ..Observation::default()
    };
    let (here, there) = (seen(&peer, 50_000), seen(&own, 50_000));
    Both { own, peer, here, there }
}

#[track_caller]
fn is_problem(finding: &Finding, part: &str) {
    assert!(finding.is_problem() && finding.text.contains(part), "{finding:?}");
    assert!(finding.remedy.as_ref().is_some_and(|remedy| remedy.len() > 20), "{finding:?}");
}

#[test]
fn what_is_healthy_is_said_to_be() {
    let both = healthy();
    for finding in
        [arrival(&both, false), icrc(&both, &both), loss(&both), dscp(&both), ecn(&both), source_port(&both)]
    {
        assert_eq!((finding.outcome, finding.remedy.as_ref()), (Outcome::Ok, None), "{finding:?}");
    }
    assert_eq!(flow_label(&both, None).outcome, Outcome::NotTested);
    assert_eq!(flow_label(&both, Some(0)).outcome, Outcome::Ok);
}

#[test]
fn addresses_and_ports_that_are_translated_are_named() {
    let mut both = healthy();
    both.there.sources = vec![([203, 0, 113, 9].into(), 50_000)];
    is_problem(&source_port(&both), "198.18.0.1 arrive with the source 203.0.113.9:50000");
    let mut both = healthy();
    both.here.sources.push(([198, 18, 0, 2].into(), 61_000));
    is_problem(&source_port(&both), "leave from UDP port 50000 and arrive from 61000");
    // The ICRC covers addresses and ports, so all ICRCs are wrong.
    both.there = Observation { intact: 0, damaged: 100, ..both.there };
    let finding = icrc(&both, &both);
    is_problem(&finding, "200 of 200 arrived packets from 198.18.0.1 to 198.18.0.2 (100 %)");
    assert!(finding.remedy.unwrap().contains("NAT"));
    assert!(!both.is_dead());
}

#[test]
fn the_mistake_behind_wrong_icrcs_is_the_remedy() {
    let mut both = healthy();
    let mistakes = vec![Mistake::ByteOrder.name().to_owned(), "a mistake of another version".to_owned()];
    both.there = Observation { intact: 0, damaged: 100, mistakes, ..both.there };
    let finding = icrc(&both, &both);
    is_problem(&finding, "; the cause is: byte order");
    assert_eq!(finding.remedy.as_deref(), Some(Mistake::ByteOrder.fix()));
}

#[test]
fn losses_are_told_apart() {
    let mut both = healthy();
    both.there.intact = 90;
    let one_way = loss(&both);
    is_problem(&one_way, "10 of 100 packets from 198.18.0.1 to 198.18.0.2 (10 %)");
    assert!(one_way.remedy.unwrap().contains("one-way"));
    both.here.intact = 88;
    let both_ways = loss(&both);
    is_problem(&both_ways, "12 of 100 packets from 198.18.0.2");
    assert!(!both_ways.remedy.unwrap().contains("one-way"));
    both.there.overflow = 10;
    assert!(loss(&both).remedy.unwrap().contains("rmem_max"));
    // Damaged packets are not lost.
    both = healthy();
    both.there = Observation { intact: 90, damaged: 10, ..both.there };
    assert_eq!(loss(&both).outcome, Outcome::Ok);
    both.here.late = 3;
    is_problem(&loss(&both), "3 arrived out of order");
}

#[test]
fn marks_of_a_busy_network_are_no_illness() {
    let mut both = healthy();
    both.there.classes = vec![(2, 2, 48), (2, 3, 2), (107, 107, 50)];
    let some = ecn(&both);
    assert_eq!(some.outcome, Outcome::Ok);
    assert!(some.remedy.is_some() && some.text.contains("2 of 50 packets were marked CE"), "{some:?}");
    both.there.classes = vec![(2, 3, 50), (107, 107, 50)];
    is_problem(&ecn(&both), "50 of 50 packets were marked CE");
    both.there.classes = vec![(2, 2, 50), (107, 105, 50)];
    is_problem(&ecn(&both), "CE becomes ECT(1)");
    assert!(ecn(&both).remedy.unwrap().contains("rewrites"), "{:?}", ecn(&both));
    both.there.classes = vec![(2, 0, 50), (107, 104, 50)];
    assert!(ecn(&both).remedy.unwrap().contains("clears"), "{:?}", ecn(&both));
}

/// Regression: the remedy for marks on packets that are not ECN capable was to look for a rule that clears
/// them.
#[test]
fn a_rule_that_marks_everything_is_not_one_that_clears() {
    let mut both = healthy();
    both.here.classes = vec![(0, 3, 50), (2, 3, 50)];
    let finding = ecn(&both);
    is_problem(
        &finding,
        "every packet becomes CE from 198.18.0.2 to 198.18.0.1, even packets that are not ECN capable (100 \
         of 100)",
    );
    assert!(finding.remedy.unwrap().contains("sets these bits"));
}

/// Regression: the doctor reported a firewall if a link had an MTU of 300 bytes.
#[test]
fn a_small_mtu_is_not_a_firewall() {
    let mut both = healthy();
    both.peer = Introduction { link_mtu: 300, largest_path_mtu: 0, ..both.peer };
    is_problem(&other_side(&both.own, &both.peer), "an MTU of 300, too small even for path MTU 256");
    let mut both = healthy();
    both.there = Observation { sent: 100, source_port: 50_000, ..Observation::default() };
    is_problem(&nothing_but_small(&both), "no packet of 308 bytes arrives from 198.18.0.1 to 198.18.0.2");
    assert_eq!(path_mtu(&both, &[]).outcome, Outcome::NotTested);
}

#[test]
fn a_dead_direction_has_one_remedy() {
    let mut both = healthy();
    both.there = Observation { sent: 100, ..Observation::default() };
    is_problem(&arrival(&both, false), "one direction fails");
    assert!(arrival(&both, false).remedy.unwrap().contains("iptables -I INPUT"));
    assert!(arrival(&both, true).remedy.unwrap().contains("see the finding about UDP port 4791"));
}

#[test]
fn a_black_hole_has_a_direction() {
    let both = healthy();
    let report = |longest, failure: Option<&str>| TripReport {
        longest,
        failure: failure.map(str::to_owned),
        ..TripReport::default()
    };
    let good = Tried { path_mtu: 512, here: report(528, None), there: report(528, None) };
    let failed = Some("IBV_WC_RETRY_EXC_ERR");
    let to = Tried { path_mtu: 1024, here: report(20, failed), there: report(0, None) };
    let from = Tried { path_mtu: 1024, here: report(20, failed), there: report(1040, failed) };
    is_problem(&path_mtu(&both, &[good.clone(), to.clone()]), "larger packets from 198.18.0.1 to");
    is_problem(&path_mtu(&both, &[good.clone(), from]), "larger packets from 198.18.0.2 to");
    is_problem(&path_mtu(&both, &[to.clone(), good.clone()]), "512, 1024".split(',').next().unwrap());
    is_problem(&path_mtu(&both, &[to]), "no message comes back");
    assert_eq!(path_mtu(&both, &[good]).outcome, Outcome::Ok);
}
