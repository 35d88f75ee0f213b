//! Schedules of LogGOPSim.

use roce_sim::net::Time;

use super::import::{File, pairs, parse, run, star, start};

const GOAL: &str = "\
// two ranks exchange messages, and one computes
num_ranks 4

rank 0 {
l1: calc 1000
l2: send 4096b to 1 tag 7 cpu 0
l2 requires l1
l3: recv 10b from 1 tag 8 cpu 0
l4: send 5000b to 2 tag 0 nic 0
l4 irequires l3
l5: send 0b to 1
l5 requires l3
}
rank 1 { r1: recv 4096b from 0 tag 7 ; r2: calc 2000 ; r2 requires r1
  r3: send 10b to 0 tag 8
  r3 requires r2
  recv 0b from 0 /* the
  end */
}
rank 2 {
  a: recv 8000b from 0
}
rank 3
{
x: calc 500 cpu 1
y: calc 700 cpu 1
z: calc 900
}
";

pub(super) fn sample() -> (String, Vec<File>) {
    (star(5, "kind = \"goal\"\nfile = \"x.goal\""), vec![("x.goal".to_owned(), GOAL.into())])
}

#[test]
fn ranks_compute_and_exchange_messages_in_their_order() {
    let (text, files) = sample();
    let scenario = parse(&text, &files).unwrap();
    // A message without bytes has one.
    assert_eq!(pairs(&scenario), [(0, 1, 4097), (0, 2, 5000), (1, 0, 10)]);
    assert_eq!(scenario.warnings, [""; 0]);
    let results = run(&scenario);
    assert_eq!(start(&results, 0, 1), Time::from_us(1), "after a computation");
    assert_eq!(start(&results, 0, 2), Time::ZERO, "at the begin of a receive");
    let answer = start(&results, 1, 0);
    // The message leaves after 1 µs, takes two links, and 2 µs of computation follow.
    assert!(answer > Time::from_us(5) && answer < Time::from_us(6), "{answer}");
    let [whole] = &scenario.operations[..] else { panic!("{:?}", scenario.operations) };
    let end = |rank: usize| results.task_ends[whole.ends[rank] as usize].unwrap();
    assert_eq!(end(3), Time::from_ns(1_200), "two computations of one CPU, one beside them");
    assert!(end(0) > answer + Time::from_us(4), "{}", end(0));
    assert_eq!(whole.result(&results.task_ends).begin, Some(Time::ZERO));
    assert_eq!((whole.name.as_str(), &*whole.hosts), ("goal", &[0, 1, 2, 3][..]));
}

/// A message that is ready early is not behind one that waits for it through other ranks.
#[test]
fn messages_of_two_ranks_do_not_block_each_other() {
    let text = "num_ranks 2\nrank 0 {\nlate: send 9b to 1 tag 1\nanswer: recv 5b from 1 tag 3\nlate requires answer\n\
                early: send 7b to 1 tag 2\n}\nrank 1 {\na: recv 7b from 0 tag 2\nb: send 5b to 0 tag 3\nb requires a\n\
                c: recv 9b from 0 tag 1\n}\n";
    let scenario = parse(&star(2, &format!("kind = \"goal\"\ntext = '''\n{text}'''")), &[]).unwrap();
    assert_eq!(pairs(&scenario), [(0, 1, 16), (1, 0, 5)]);
    run(&scenario);
}

#[test]
fn what_is_wrong_names_file_and_line() {
    let (text, _) = sample();
    let error = |from: &str, to: &str| {
        assert!(GOAL.contains(from), "{from}");
        parse(&text, &[("x.goal".to_owned(), GOAL.replacen(from, to, 1).into())]).unwrap_err()
    };
    for (from, to, reason) in [
        ("num_ranks 4", "", "line 4: num_ranks is missing; begin the file with num_ranks N"),
        (
            "num_ranks 4",
            "num_ranks 6",
            "line 2: 6 ranks need as many hosts, and there are 5; use a larger topology",
        ),
        ("rank 1 {", "rank 4 {", "line 14: the number of a rank: \"4\" is not a whole number from 0 to 3"),
        ("rank 1 {", "rank 0 {", "line 14: rank 0 is in the file twice"),
        ("l1: calc", "l1: cald", "line 5: \"cald\" is not one of calc, send and recv"),
        ("4096b to", "4096 to", "line 6: \"to\" is not \"b\""),
        (
            "4096b to 1",
            "4096b to 0",
            "line 6: rank 0 cannot exchange messages with itself; write calc instead",
        ),
        ("tag 7 cpu", "tag x cpu", "line 6: tag: \"x\" is not a whole number from 0 to 4294967295"),
        ("l2 requires l1", "l2 requires l9", "line 7: rank 0 has no label l9 above this line"),
        (
            "l2 requires l1",
            "l2 follows l1",
            "line 7: \"follows\" is not \":\", \"requires\" or \"irequires\"",
        ),
        ("l3: recv", "l2: recv", "line 8: the label l2 exists above"),
        (
            "from 1 tag 8",
            "from -1 tag 8",
            "line 8: a receive from any rank (-1) is not simulated, because messages are matched before the run; write the rank",
        ),
        (
            "from 1 tag 8",
            "from 1 tag -1",
            "line 8: a receive with any tag (-1) is not simulated, because messages are matched before the run; write the tag",
        ),
        (
            "from 1 tag 8",
            "from 1 tag 9",
            "line 15: rank 0 never receives this message from rank 1 with tag 8",
        ),
        (
            "  r3: send 10b to 0 tag 8\n  r3 requires r2\n",
            "",
            "line 8: rank 1 never sends this message to rank 0 with tag 8",
        ),
        (
            "8000b from 0",
            "800b from 0",
            "line 21: a receive of 800 bytes meets a message of 5000 bytes from rank 0 with tag 0",
        ),
        ("  a: recv 8000b from 0\n", "", "line 9: rank 2 never receives this message from rank 0 with tag 0"),
        (
            "l2 requires l1",
            "l1 requires l2\nl2 requires l1",
            "line 5: this operation never begins: it waits for itself through other operations",
        ),
        ("z: calc 900\n}", "z: calc 900", "line 28: the file ends, but the } of rank 3 is missing"),
    ] {
        assert_eq!(error(from, to), format!("line 5: x.goal, {reason}"), "{from} -> {to}");
    }
    assert_eq!(error("*/", ""), "line 5: x.goal, line 17: a comment has no end");
}

#[test]
fn a_second_nic_is_ignored_with_a_warning() {
    let (text, _) = sample();
    let other = GOAL.replace("nic 0", "nic 1");
    let scenario = parse(&text, &[("x.goal".to_owned(), other.into())]).unwrap();
    assert_eq!(scenario.warnings, ["x.goal: nic: each rank has one NIC"]);
}
