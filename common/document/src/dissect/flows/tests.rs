use super::*;

fn only(psn: u32) -> Sighting {
    Sighting { psn: Psn::new(psn), span: Span::One, position: Position::Only, mtu: None }
}

fn at(psn: u32, position: Position) -> Sighting {
    Sighting { position, ..only(psn) }
}

fn read(psn: u32, va: u64, len: u32) -> Sighting {
    Sighting { span: Span::Read { va, len }, ..only(psn) }
}

#[track_caller]
fn marks(role: Role, sightings: &[Sighting]) -> Vec<Option<Mark>> {
    let (first, rest) = sightings.split_first().expect("a packet");
    let mut flow = Flow::new(first);
    rest.iter().map(|sighting| flow.next(sighting, role)).collect()
}

const fn gap(first: u32, count: u32) -> Option<Mark> {
    Some(Mark::Gap { first: Psn::new(first), count })
}

const REPEAT: Option<Mark> = Some(Mark::Repeat);
const LATE: Option<Mark> = Some(Mark::Late);

#[test]
fn a_lost_packet_and_its_retransmission_are_marked() {
    // Go-back-N after the loss of 12: 12, 13 and 14 are sent again.
    let psns = [10, 11, 13, 14, 12, 13, 14, 15].map(only);
    let expected = [None, gap(12, 1), None, LATE, REPEAT, REPEAT, None];
    assert_eq!(marks(Role::Request, &psns), expected);
}

#[test]
fn the_count_of_psns_wraps_around() {
    let psns = [0xff_fffe, 0xff_ffff, 0, 3, 1, 2, 2].map(only);
    assert_eq!(marks(Role::Request, &psns), [None, None, gap(1, 2), LATE, LATE, REPEAT]);
}

#[test]
fn a_read_request_takes_a_psn_for_each_packet_of_its_response() {
    // 64 KiB are 16 packets of 4096 bytes.
    let psns = [read(100, 0, 65_536), read(116, 65_536, 65_536), read(132, 0, 65_536), read(164, 0, 65_536)];
    assert_eq!(marks(Role::Request, &psns), [None, None, gap(148, 16)]);
    // A retransmitted READ requests only the missing part.
    let psns = [read(100, 0, 65_536), read(104, 16_384, 49_152), read(100, 0, 65_536), only(116)];
    assert_eq!(marks(Role::Request, &psns), [REPEAT, REPEAT, None]);
    // A full packet reveals the path MTU.
    let full = Sighting { mtu: Some(1024), ..at(7, Position::First) };
    let psns = [full, at(8, Position::Last), read(9, 0, 4096), only(13), only(14)];
    assert_eq!(marks(Role::Request, &psns), [None, None, None, None]);
    // A wrong guess after a loss is corrected.
    let psns = [read(0, 0, 65_536), read(32, 0, 65_536), read(48, 0, 65_536), read(80, 0, 65_536)];
    assert_eq!(marks(Role::Request, &psns), [None, None, gap(64, 16)]);
}

#[test]
fn responses_have_gaps_within_a_message_only() {
    use Position::{First, Last, Middle, Only};
    let psns = [at(5, First), at(6, Middle), at(8, Last), at(20, Only), at(25, First), at(30, First)];
    assert_eq!(marks(Role::Response, &psns), [None, gap(7, 1), None, None, Some(Mark::Unfinished)]);
}

#[test]
fn a_distant_psn_is_a_jump_and_not_a_gap_of_a_million() {
    let psns = [7, 5_000_000, 5_000_001, 7, 8].map(only);
    let jump = Some(Mark::Jump);
    assert_eq!(marks(Role::Request, &psns), [jump, None, jump, None]);
}

#[test]
fn the_oldest_gap_is_forgotten_when_there_are_too_many() {
    let mut psns: Vec<Sighting> = (0..=MOST_GAPS as u32 + 1).map(|index| only(index * 2)).collect();
    psns.extend([1, 3, 2 * MOST_GAPS as u32 + 1].map(only));
    let found = marks(Role::Request, &psns);
    assert_eq!(found[found.len() - 3..], [REPEAT, LATE, LATE]);
}

#[test]
fn the_table_of_flows_is_bounded_and_keeps_those_in_use() {
    let key = |dest_qp| Key {
        interface: 0,
        way: Way::Unknown,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        dest_qp,
        role: Role::Request,
    };
    let mut flows = Flows::default();
    for qp in 0..100_000 {
        assert!(flows.find(key(qp)).is_none());
        flows.insert(key(qp), Flow::new(&only(qp)));
        assert!(flows.find(key(0)).is_some(), "a flow in use was forgotten after {qp} others");
        assert!(flows.young.len() + flows.old.len() <= 2 * MOST_FLOWS);
    }
}
