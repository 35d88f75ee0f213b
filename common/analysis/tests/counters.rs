//! Files with counters in the forms of several tools, and what their changes mean.

use std::collections::BTreeSet;

use roce_analysis::counters::{
    Agreement, Driver, Event, Kind, Outcome, Snapshot, WireCounts, beside, compare, counters, find,
};

#[track_caller]
fn parse(text: &str) -> Snapshot {
    Snapshot::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

/// The name of each group with its driver and the value of a counter.
fn summary(snapshot: &Snapshot, counter: &str) -> Vec<(String, Option<Driver>, Option<u64>)> {
    snapshot.groups.iter().map(|group| (group.name(), group.driver, group.get(counter))).collect()
}

const SYSFS: &str = "\
/sys/class/infiniband/mlx5_0/ports/1/hw_counters/duplicate_request:4
/sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence:17
/sys/class/infiniband/mlx5_1/ports/1/hw_counters/out_of_sequence:0
/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets:100
grep: /sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan: Permission denied
";

#[test]
fn dumps_of_sysfs_are_read() {
    let snapshot = parse(SYSFS);
    let mlx5 = Some(Driver::Mlx5);
    let expected = [("mlx5_1/1".to_owned(), mlx5, Some(0)), ("mlx5_0/1".to_owned(), mlx5, Some(17))];
    assert_eq!(summary(&snapshot, "out_of_sequence"), expected);
    assert_eq!(snapshot.groups[1].get("port_xmit_packets"), Some(100));
    assert_eq!(snapshot.groups[1].counters.len(), 3);
}

#[test]
fn both_texts_of_rdma_statistic_are_read() {
    let text = "link mlx5_0/1 rx_write_requests 8 out_of_sequence 3 np_cnp_sent 5 \n\
                link irdma1/1 RNR sent 2 Nak Sequence Error 9 cnpSent 1 Rcvd Out of order packets 6\n";
    let pretty = "link mlx5_0/1 \n    rx_write_requests 8 \n    out_of_sequence 3 \n    np_cnp_sent 5 \n\
                  link irdma1/1\n    RNR sent 2\n    Nak Sequence Error 9\n    cnpSent 1\n    \
                  Rcvd Out of order packets 6\n";
    assert_eq!(parse(text), parse(pretty));
    let snapshot = parse(text);
    let [mlx5, irdma] = &snapshot.groups[..] else { panic!("{snapshot:?}") };
    assert_eq!((mlx5.driver, mlx5.get("out_of_sequence")), (Some(Driver::Mlx5), Some(3)));
    assert_eq!((irdma.driver, irdma.get("Nak Sequence Error")), (Some(Driver::Irdma), Some(9)));
    assert_eq!(irdma.get("Rcvd Out of order packets"), Some(6));
}

#[test]
fn the_json_of_rdma_statistic_is_read() {
    let json = r#"[{"ifindex":3,"ifname":"bnxt_re0","port":1,"to_retransmits":7,"seq_err_naks_rcvd":2},
                   {"ifindex":4,"ifname":"rxe0","port":1,"sent_pkts":70,"rcvd_seq_err":1}]"#;
    let snapshot = parse(json);
    let bnxt = ("bnxt_re0/1".to_owned(), Some(Driver::BnxtRe), Some(7));
    let rxe = ("rxe0/1".to_owned(), Some(Driver::Rxe), None);
    assert_eq!(summary(&snapshot, "to_retransmits"), [bnxt, rxe]);
    assert_eq!(snapshot.groups[0].counters.len(), 2, "numbers of port and interface are no counters");
}

#[test]
fn the_output_of_ethtool_is_read() {
    let text = "NIC statistics:\n     rx_packets: 100\n     rx_prio3_pause: 12\n     rx_discards_phy: 1\n     \
                [0]: rx_ucast_packets: 5\n";
    let snapshot = parse(text);
    assert_eq!(
        summary(&snapshot, "rx_prio3_pause"),
        [("the device".to_owned(), Some(Driver::Mlx5), Some(12))]
    );
    assert_eq!(snapshot.groups[0].get("[0]: rx_ucast_packets"), Some(5));
    let broadcom = parse("NIC statistics:\n     rx_fcs_err_frames: 3\n     rx_pfc_ena_frames_pri3: 4");
    assert_eq!(broadcom.groups[0].driver, Some(Driver::BnxtRe));
}

#[test]
fn both_forms_of_roce_stat_are_read() {
    let text = "71 roce ping 127.0.0.1: udp 127.0.0.2, for 3 s\n\
                rx_handled                       40\n\
                packet_seq_err                   2\n\
                of these, engine 0:\n  rx_handled                     30\n\
                of these, engine 1:\n  rx_handled                     10\n\
                72 roce blast: udp 127.0.0.3, for 9 s\nrx_handled   4\n";
    let snapshot = parse(text);
    let names: Vec<_> =
        summary(&snapshot, "rx_handled").into_iter().map(|(name, _, count)| (name, count)).collect();
    let expected = [
        ("71 roce ping 127.0.0.1", 40),
        ("71 roce ping 127.0.0.1 (of these, engine 0)", 30),
        ("71 roce ping 127.0.0.1 (of these, engine 1)", 10),
        ("72 roce blast", 4),
    ];
    assert_eq!(names, expected.map(|(name, count)| (name.to_owned(), Some(count))));
    assert!(snapshot.groups.iter().all(|group| group.driver == Some(Driver::Roce)));
    let json = r#"{"schema":"roce/stat/1","processes":[{"pid":71,"command":"roce ping","uptime_seconds":3.5,
                   "counters":{"rx_handled":40,"drop_short":1}}]}"#;
    let snapshot = parse(json);
    assert_eq!(summary(&snapshot, "drop_short"), [("71 roce ping".to_owned(), Some(Driver::Roce), Some(1))]);
}

#[test]
fn files_without_counters_are_refused() {
    for text in ["", "\n\n", "No such file or directory", "[]", "{\"a\": \"b\"}", "12: 34", "\u{0}\u{1}"] {
        let error = Snapshot::parse(text).expect_err(text).to_string();
        assert!(error.contains("rdma statistic") && error.contains("ethtool"), "{error}");
    }
}

#[test]
fn growth_is_explained_and_problems_are_first() {
    let before = parse("link mlx5_0/1 rx_write_requests 10 np_cnp_sent 1 out_of_sequence 3 new_counter 5");
    let after = parse("link mlx5_0/1 rx_write_requests 90 np_cnp_sent 4 out_of_sequence 8 new_counter 6");
    let comparisons = compare(&before, &after);
    assert_eq!(comparisons.len(), 1);
    let comparison = &comparisons[0];
    assert_eq!((comparison.name.as_str(), comparison.driver), ("mlx5_0/1", Some(Driver::Mlx5)));
    let changes: Vec<_> = comparison
        .changes
        .iter()
        .map(|change| (change.name.as_str(), change.outcome, change.kind()))
        .collect();
    let expected = [
        ("out_of_sequence", Outcome::Grew(5), Some(Kind::Problem)),
        ("np_cnp_sent", Outcome::Grew(3), Some(Kind::Congestion)),
        ("rx_write_requests", Outcome::Grew(80), Some(Kind::Traffic)),
        ("new_counter", Outcome::Grew(1), None),
    ];
    assert_eq!(changes, expected);
    assert!(comparison.changes[0].is_problem() && !comparison.changes[1].is_problem());
    assert_eq!(comparison.growth(Event::OutOfSequence), Some(("out_of_sequence", 5)));
    assert_eq!(comparison.growth(Event::WrongIcrc), None);
    // The counter of RoCE packets decides, wherever it is in the file.
    let [before, after] = [1, 2].map(|value| {
        parse(&format!("link mlx5_0/1 port_xmit_packets {} rdma_tx_packets {value}", 100 * value))
    });
    assert_eq!(compare(&before, &after)[0].growth(Event::PacketsSent), Some(("rdma_tx_packets", 1)));
}

/// Returns the outcome of the counter `name` of mlx5, beside others that do not change.
fn outcome(name: &str, before: u64, after: u64) -> Outcome {
    let text = |value: u64| parse(&format!("link mlx5_0/1 a_counter 5 another 6 {name} {value}"));
    let comparisons = compare(&text(before), &text(after));
    comparisons[0].changes.iter().find(|change| change.name == name).unwrap().outcome
}

#[test]
fn wraps_and_resets_are_told_apart() {
    let top = u64::from(u32::MAX);
    assert_eq!(outcome("out_of_sequence", top - 9, 20), Outcome::Wrapped { by: 30, bits: 32 });
    assert_eq!(outcome("out_of_sequence", 1000, 20), Outcome::Reset { since: 20 });
    assert_eq!(outcome("out_of_sequence", top / 2, 20), Outcome::Reset { since: 20 });
    assert_eq!(outcome("np_cnp_sent", u64::MAX - 4, 5), Outcome::Wrapped { by: 10, bits: 64 });
    assert_eq!(outcome("unknown_name", top, 0), Outcome::Wrapped { by: 1, bits: 32 });
    assert_eq!(outcome("out_of_sequence", 7, 7), Outcome::Same);
    assert_eq!(outcome("lifespan", 12, 10), Outcome::Fell(2));
    assert_eq!(outcome("lifespan", 10, 12), Outcome::Grew(2));
}

/// After the driver is loaded again, a counter that is larger than before has started at zero, too.
#[test]
fn a_reset_of_most_counters_is_one_of_all() {
    let before =
        parse("link mlx5_0/1 rx_write_requests 500 np_cnp_sent 10 out_of_sequence 3 duplicate_request 0");
    let after =
        parse("link mlx5_0/1 rx_write_requests 20 np_cnp_sent 1 out_of_sequence 9 duplicate_request 2");
    let comparison = &compare(&before, &after)[0];
    assert!(comparison.is_reset);
    let since: Vec<_> =
        comparison.changes.iter().map(|change| (change.name.as_str(), change.outcome)).collect();
    let expected = [
        ("out_of_sequence", Outcome::Reset { since: 9 }),
        ("duplicate_request", Outcome::Reset { since: 2 }),
        ("np_cnp_sent", Outcome::Reset { since: 1 }),
        ("rx_write_requests", Outcome::Reset { since: 20 }),
    ];
    assert_eq!(since, expected);
}

#[test]
fn devices_and_counters_come_and_go() {
    let before = parse("link mlx5_0/1 out_of_sequence 1 gone 2\nlink mlx5_1/1 out_of_sequence 7");
    let after = parse("link mlx5_0/1 out_of_sequence 1 fresh 3\nlink mlx5_2/1 out_of_sequence 8");
    let comparisons = compare(&before, &after);
    let outcomes: Vec<(&str, Vec<(&str, &str)>)> = comparisons
        .iter()
        .map(|one| {
            let changes = one.changes.iter().map(|change| (change.name.as_str(), change.outcome.name()));
            (one.name.as_str(), changes.collect())
        })
        .collect();
    let expected = [
        ("mlx5_0/1", vec![("out_of_sequence", "same"), ("fresh", "appeared"), ("gone", "gone")]),
        ("mlx5_2/1", vec![("out_of_sequence", "appeared")]),
        ("mlx5_1/1", vec![("out_of_sequence", "gone")]),
    ];
    assert_eq!(outcomes, expected);
    // One device in each file is the same one: the process has another number after a restart.
    let before = parse("71 roce ping: udp ::1, for 3 s\nrx_handled 4");
    let after = parse("72 roce ping: udp ::1, for 4 s\nrx_handled 6");
    assert_eq!(compare(&before, &after)[0].changes[0].outcome, Outcome::Grew(2));
}

#[test]
fn counters_are_compared_with_a_capture() {
    let before =
        parse("link mlx5_0/1 out_of_sequence 5 implied_nak_seq_err 0 np_cnp_sent 0 rp_cnp_handled 1");
    let after = parse("link mlx5_0/1 out_of_sequence 9 implied_nak_seq_err 0 np_cnp_sent 7 rp_cnp_handled 1");
    let wire = WireCounts {
        out_of_sequence: Some(4),
        implied_naks: Some(3),
        cnps_sent: Some(8),
        cnps_received: Some(0),
        // The driver has no counter with this name in these files.
        wrong_icrcs: Some(2),
        ..WireCounts::default()
    };
    let found = beside(&compare(&before, &after)[0], &wire);
    let figures: Vec<_> =
        found.iter().map(|one| (one.counter.as_str(), one.counted, one.seen, one.agreement)).collect();
    let expected = [
        ("out_of_sequence", 4, 4, Agreement::Equal),
        ("implied_nak_seq_err", 0, 3, Agreement::Stuck),
        ("np_cnp_sent", 7, 8, Agreement::Different),
        ("rp_cnp_handled", 0, 0, Agreement::Equal),
    ];
    assert_eq!(figures, expected);
    assert!(
        found[1].text().contains("is stuck: it did not change, but the capture has 3 "),
        "{}",
        found[1].text()
    );
    assert!(found[2].text().contains("grew by 7, but the capture has 8 "), "{}", found[2].text());
}

/// Each event of a capture has a counter in the table of most drivers.
#[test]
fn every_event_of_a_capture_has_a_counter() {
    for (event, _) in WireCounts::default().events() {
        let drivers: BTreeSet<_> = counters()
            .filter(|counter| counter.event == event)
            .map(|counter| counter.driver.name())
            .collect();
        assert!(drivers.contains("mlx5"), "{event:?}: {drivers:?}");
    }
    for driver in Driver::ALL {
        let count = counters().filter(|counter| counter.driver == *driver).count();
        assert!(count >= 3, "{driver:?} has {count} counters");
    }
}

#[test]
fn names_are_unique_and_explained() {
    let mut known = BTreeSet::new();
    for counter in counters() {
        assert!(known.insert((counter.driver.name(), counter.name)), "{counter:?} is there twice");
        assert_eq!(find(Some(counter.driver), &counter.name.replace('#', "3")).unwrap().event, counter.event);
    }
    for event in Event::ALL {
        assert!(event.meaning().len() > 5 && event.cause().len() > 5 && event.next_step().len() > 10);
        let has_counter = counters().any(|counter| counter.event == *event) || *event == Event::Dropped;
        assert!(has_counter, "{event:?} has no counter");
    }
    assert_eq!(find(Some(Driver::Roce), "drop_short").unwrap().event, Event::Dropped);
    assert_eq!(find(Some(Driver::Roce), "packet_seq_err").unwrap().bits, 64);
    assert_eq!(find(None, "RNR sent").unwrap().driver, Driver::Irdma);
    for name in ["rx_prio_pause", "rx_prio3x_pause", "rx_prio3_pauses", "nothing"] {
        assert!(find(None, name).is_none(), "{name}");
    }
}

/// Counters of this program have the names of mlx5, so that they have its explanations.
#[test]
fn the_page_of_counters_knows_the_names() {
    let page = include_str!("../../../docs/reference/counters.md");
    for name in
        ["packet_seq_err", "out_of_sequence", "duplicate_request", "np_cnp_sent", "rx_icrc_encapsulated"]
    {
        assert!(page.contains(&format!("`{name}`")) && find(Some(Driver::Roce), name).is_some(), "{name}");
    }
}
