use super::*;

const SECOND: u64 = 1_000_000_000;
const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xb]);
const ANSWER: Evidence = Evidence::Answer { replaces: true };
const ANNOUNCEMENT: Evidence = Evidence::Announcement { replaces: true };

fn at(milliseconds: u64) -> Instant {
    Instant::from_nanos(milliseconds * 1_000_000)
}

fn host(number: u32) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::from_bits(0xc612_0000 + number))
}

fn asks(table: &mut Neighbours, now: Instant) -> Vec<Ask> {
    std::iter::from_fn(|| table.poll_ask(now)).collect()
}

fn multicast_to(target: IpAddr) -> Vec<Ask> {
    vec![Ask { target, at: None }]
}

#[test]
fn an_unknown_neighbour_is_asked_for_three_times_and_then_given_up() {
    let mut table = Neighbours::default();
    let failed = Resolution::Failed(Unreachable::NoAnswer { next_hop: host(1) });
    for second in 0..3 {
        assert_eq!(table.resolve(at(second * 1000), host(1)), Resolution::Pending);
        assert_eq!(asks(&mut table, at(second * 1000)), multicast_to(host(1)), "{second} s");
        assert_eq!(asks(&mut table, at(second * 1000 + 999)), []);
        assert_eq!(table.deadline(), Some(at(second * 1000 + 1000)));
    }
    assert_eq!(table.resolve(at(2999), host(1)), Resolution::Pending);
    assert_eq!(asks(&mut table, at(3000)), []);
    assert_eq!(table.resolve(at(3000), host(1)), failed);
    assert!(table.has_failed(host(1)));
    assert_eq!(table.deadline(), None, "no request is outstanding");
    assert_eq!(table.resolve(at(3999), host(1)), failed);
    // Afterwards the neighbour is asked again.
    assert_eq!(table.resolve(at(4000), host(1)), Resolution::Pending);
    assert_eq!(asks(&mut table, at(4000)), multicast_to(host(1)));
    table.learn(at(4001), host(1), A, ANSWER);
    assert_eq!(table.resolve(at(4001), host(1)), Resolution::Known(A));
    assert!(!table.has_failed(host(1)));
}

#[test]
fn an_answer_counts_for_thirty_seconds_and_a_neighbour_in_use_is_asked_again() {
    let mut table = Neighbours::default();
    table.resolve(at(0), host(1));
    asks(&mut table, at(0));
    table.learn(at(10), host(1), A, ANSWER);
    assert_eq!(table.settled_until(host(1)), Some(at(30_010)));
    for now in [10, 5_000, 30_009] {
        assert_eq!(table.resolve(at(now), host(1)), Resolution::Known(A));
        assert_eq!(asks(&mut table, at(now)), []);
    }
    // The neighbour is asked by unicast; meanwhile its address stays valid.
    assert_eq!(table.resolve(at(30_010), host(1)), Resolution::Known(A));
    assert_eq!(asks(&mut table, at(30_010)), [Ask { target: host(1), at: Some(A) }]);
    table.learn(at(30_020), host(1), A, ANSWER);
    assert_eq!(table.settled_until(host(1)), Some(at(60_020)));
    // An unused entry causes no request.
    assert_eq!(table.deadline(), None);
    assert_eq!(asks(&mut table, at(500_000)), []);
}

#[test]
fn a_neighbour_that_moved_unannounced_is_found_again() {
    let mut table = Neighbours::default();
    table.resolve(at(0), host(1));
    table.learn(at(0), host(1), A, ANSWER);
    asks(&mut table, at(0));
    for second in 0..3 {
        assert_eq!(table.resolve(at(40_000 + second * 1000), host(1)), Resolution::Known(A));
        assert_eq!(asks(&mut table, at(40_000 + second * 1000)), [Ask { target: host(1), at: Some(A) }]);
    }
    assert_eq!(asks(&mut table, at(43_000)), multicast_to(host(1)));
    assert_eq!(table.resolve(at(43_001), host(1)), Resolution::Pending);
    table.learn(at(43_002), host(1), B, ANSWER);
    assert_eq!(table.resolve(at(43_003), host(1)), Resolution::Known(B));
}

#[test]
fn only_questions_make_strangers_known() {
    let mut table = Neighbours::default();
    table.learn(at(0), host(1), A, ANSWER);
    table.learn(at(0), host(2), A, ANNOUNCEMENT);
    assert_eq!(table.len(), 0);
    table.learn(at(0), host(3), A, Evidence::Question);
    assert_eq!(table.len(), 1);
    assert_eq!(table.resolve(at(0), host(3)), Resolution::Known(A), "it is about to be answered");
    assert_eq!(asks(&mut table, at(0)), [Ask { target: host(3), at: Some(A) }], "but it is asked itself");
}

#[test]
fn another_address_takes_the_place_of_the_old_one_if_it_says_so() {
    let mut table = Neighbours::default();
    table.resolve(at(0), host(1));
    table.learn(at(0), host(1), A, ANSWER);
    asks(&mut table, at(0));
    table.learn(at(1), host(1), B, Evidence::Announcement { replaces: false });
    assert_eq!(table.resolve(at(1), host(1)), Resolution::Known(A));
    assert_eq!(asks(&mut table, at(1)), [Ask { target: host(1), at: Some(A) }], "now in doubt");
    table.learn(at(2), host(1), B, ANNOUNCEMENT);
    assert_eq!(table.resolve(at(2), host(1)), Resolution::Known(B));
    assert_eq!(table.moved, 1);
    // An announcement of the known address leaves confirmed entries unchanged.
    table.learn(at(3), host(1), B, ANSWER);
    let until = table.settled_until(host(1));
    table.learn(at(4), host(1), B, ANNOUNCEMENT);
    table.learn(at(4), host(1), B, Evidence::Question);
    assert_eq!(table.settled_until(host(1)), until);
}

#[test]
fn a_flood_of_strangers_neither_grows_the_table_nor_takes_the_places_of_those_in_use() {
    let mut table = Neighbours::default();
    for number in 0..100 {
        table.resolve(at(0), host(number));
        table.learn(at(0), host(number), A, ANSWER);
    }
    // A neighbour with an outstanding request.
    table.resolve(at(0), host(100));
    asks(&mut table, at(0));
    for number in 0..20_000 {
        table.learn(Instant::from_nanos(number.into()), host(0x1_0000 + number), B, Evidence::Question);
        assert!(table.len() <= CAPACITY);
    }
    for number in 0..100 {
        assert_eq!(table.resolve(at(1), host(number)), Resolution::Known(A), "{number}");
    }
    assert_eq!(table.resolve(at(1), host(100)), Resolution::Pending);
    // A neighbour that this host itself resolves always gets an entry.
    assert_eq!(table.resolve(at(1), host(200)), Resolution::Pending);
    table.learn(at(2), host(200), A, ANSWER);
    assert_eq!(table.resolve(at(2), host(200)), Resolution::Known(A));
    assert_eq!(table.len(), CAPACITY);
}

#[test]
fn when_all_are_in_use_strangers_are_refused_and_the_longest_unused_makes_room() {
    let mut table = Neighbours::default();
    for number in 0..CAPACITY as u32 {
        table.resolve(Instant::from_nanos(u64::from(number)), host(number));
        table.learn(at(1), host(number), A, ANSWER);
    }
    asks(&mut table, at(1));
    table.learn(at(2), host(5000), B, Evidence::Question);
    assert_eq!((table.refused, table.len()), (1, CAPACITY));
    assert_eq!(table.resolve(at(3), host(6000)), Resolution::Pending);
    assert_eq!(table.len(), CAPACITY);
    assert_eq!(table.settled_until(host(0)), None, "the first one had to go");
    assert!(table.settled_until(host(1)).is_some());
    // After a while without use, unsolicited entries may replace these again.
    let later = Instant::from_nanos(40 * SECOND);
    table.learn(later, host(5000), B, Evidence::Question);
    assert_eq!((table.refused, table.len()), (1, CAPACITY));
}

#[test]
fn answers_to_strangers_take_the_places_of_strangers_only() {
    let mut table = Neighbours::default();
    let in_use = CAPACITY as u32 - 1;
    for number in 0..in_use {
        table.resolve(at(0), host(number));
        table.learn(at(1), host(number), A, ANSWER);
    }
    asks(&mut table, at(1));
    for number in 5000..5010 {
        assert_eq!(table.resolve_unsolicited(at(2), host(number)), Resolution::Pending);
        assert_eq!(asks(&mut table, at(2)), multicast_to(host(number)));
    }
    assert!((0..in_use).all(|number| table.settled_until(host(number)).is_some()));
    // There was room for one of them, and the entries that were replaced are not added again.
    let waiting = (5000..5010).map(|number| table.resolve_again(at(2), host(number)));
    assert_eq!(waiting.filter(|it| *it == Resolution::Pending).count(), 1);
    assert_eq!(asks(&mut table, at(2)), []);
    // An entry that this host itself adds keeps the last place.
    assert_eq!(table.resolve(at(3), host(in_use)), Resolution::Pending);
    table.learn(at(4), host(in_use), A, ANSWER);
    let refused = Resolution::Failed(Unreachable::NoAnswer { next_hop: host(5010) });
    assert_eq!(table.resolve_unsolicited(at(5), host(5010)), refused);
    assert_eq!((table.refused, table.len()), (1, CAPACITY));
    assert_eq!(table.resolve_unsolicited(at(5), host(in_use)), Resolution::Known(A));
}

#[test]
fn the_time_zero_of_callers_without_a_clock_does_no_harm() {
    let mut table = Neighbours::default();
    assert_eq!(table.resolve(Instant::ZERO, host(1)), Resolution::Pending);
    assert_eq!(asks(&mut table, at(100_000)).len(), 2, "one late, one in time");
    table.learn(at(100_001), host(1), A, ANSWER);
    assert_eq!(table.resolve(Instant::ZERO, host(1)), Resolution::Known(A));
}
