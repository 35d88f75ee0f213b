//! A student works through lessons 6 to 10: a right answer to each task, and wrong ones with their hints.

use roce_web::lessons;
use serde_json::Value;

/// A task with answers of a student.
struct Task {
    lesson: &'static str,
    number: usize,
    right: &'static str,
    /// Part of the explanation of the right answer.
    shows: &'static str,
    /// Wrong answers, each with a part of its hint.
    wrong: &'static [(&'static str, &'static str)],
}

const TASKS: &[Task] = &[
    Task {
        lesson: "read",
        number: 1,
        right: "105",
        shows: "5 response packets",
        wrong: &[
            ("101", "A READ takes as many PSNs as its response has packets, not one."),
            ("106", "the first response packet has the PSN of the request"),
            ("104", "Round up"),
            ("7", "Count the response packets"),
        ],
    },
    Task {
        lesson: "read",
        number: 2,
        right: "202",
        shows: "a DMA length of 2452 bytes",
        wrong: &[
            ("200", "keeps the responses that arrived before the gap"),
            ("203", "shows the gap"),
            ("205", "belongs to the next message"),
            ("1", "in a row"),
        ],
    },
    Task {
        lesson: "read",
        number: 3,
        right: "2,452 bytes",
        shows: "PSN 202",
        wrong: &[
            ("4500", "only what is still missing"),
            ("1024", "everything from the gap to the end"),
            ("1428", "did not arrive"),
            ("0", "arrived before the gap"),
        ],
    },
    Task {
        lesson: "read",
        number: 4,
        right: "2",
        shows: "In all it sent 5 requests.",
        wrong: &[
            ("5", "limited number of READs"),
            ("1", "do not wait for each other"),
            ("3", "Which attribute"),
        ],
    },
    Task {
        lesson: "keys",
        number: 1,
        right: "0x10f00",
        shows: "the first address behind the region",
        wrong: &[
            ("0x11000", "not one byte of the WRITE is inside"),
            ("0x10fff", "checks the whole range"),
            ("0x10eff", "One byte later fits"),
            ("0x10f01", "One byte too late"),
            ("10f00", "Write an integer"),
        ],
    },
    Task {
        lesson: "keys",
        number: 2,
        right: "0x62",
        shows: "01100010",
        wrong: &[
            ("02", "The upper three bits"),
            ("60", "A wrong key stays wrong."),
            ("61", "well-formed"),
            ("63", "The responder works."),
            ("1f", "Which code"),
        ],
    },
    Task {
        lesson: "keys",
        number: 3,
        right: "SUCCESS, REM_ACCESS_ERR, WR_FLUSH_ERR",
        shows: "flushes",
        wrong: &[
            ("SUCCESS, REM_ACCESS_ERR, SUCCESS", "moves the queue pair to ERR"),
            ("SUCCESS, REM_INV_REQ_ERR, WR_FLUSH_ERR", "invalid request"),
            ("WR_FLUSH_ERR, REM_ACCESS_ERR, WR_FLUSH_ERR", "executed the first WRITE"),
        ],
    },
    Task {
        lesson: "keys",
        number: 4,
        right: "a WRITE of 16 bytes to the first address of the window",
        shows: "first address of the window: succeeds",
        wrong: &[
            ("a WRITE of 8 bytes, 12 bytes behind the first address of the window", "Where does this"),
            ("a READ of 8 bytes from the first address of the window", "rights of a window are its own"),
            (
                "a WRITE of 8 bytes to the first address of the window, after a SEND with Invalidate of its key",
                "closes the window",
            ),
        ],
    },
    Task {
        lesson: "connections",
        number: 1,
        right: "0x0000000001061c06",
        shows: "for the port space",
        wrong: &[
            ("0x1c06", "port only"),
            ("7174", "port only"),
            ("0x1111c06", "datagrams"),
            ("0x106061c", "wrong order"),
            ("0x1061c07", "shifted to the left"),
        ],
    },
    Task {
        lesson: "connections",
        number: 2,
        right: "5000",
        shows: "sq_psn = 5000 and rq_psn = 1000",
        wrong: &[
            ("1000", "which PSN it expects first"),
            ("5001", "take no PSN of the new connection"),
            ("0", "begin at a random number"),
        ],
    },
    Task {
        lesson: "connections",
        number: 3,
        right: "REP",
        shows: "REQ, REP, RTU, REP, RTU",
        wrong: &[("RTU", "has no answer"), ("REQ", "was answered"), ("DREQ", "ends a connection")],
    },
    Task {
        lesson: "connections",
        number: 4,
        right: "RTR",
        shows: "INIT: dropped, counter drop_bad_state",
        wrong: &[
            ("INIT", "accepts receives"),
            ("RTS", "may also send"),
            ("RESET", "neither a port nor a peer"),
        ],
    },
    Task {
        lesson: "dcqcn",
        number: 1,
        right: "20 Gb/s",
        shows: "40 x (1 - 1 / 2)",
        wrong: &[
            ("0", "only half of alpha"),
            ("40", "cuts the rate at once"),
            ("10", "after two CNPs"),
            ("33", "Put the rate"),
        ],
    },
    Task {
        lesson: "dcqcn",
        number: 2,
        right: "35",
        shows: "At 55 us: 30.00 Gb/s.",
        wrong: &[
            ("40", "does not return to the target at once"),
            ("30", "after one period"),
            ("20.08", "Additive increase comes later"),
            ("20", "also raises the rate"),
        ],
    },
    Task {
        lesson: "dcqcn",
        number: 3,
        right: "20",
        shows: "a WRITE of 1000 packets",
        wrong: &[
            ("1000", "does not answer each mark"),
            ("1", "another CNP"),
            ("21", "ends only after the last packet"),
            ("19", "at once"),
        ],
    },
    Task {
        lesson: "dcqcn",
        number: 4,
        right: "PFC pauses the senders.",
        shows: "0 CNPs reached the senders, the queue",
        wrong: &[
            ("The senders reduce their rates.", "does not see the marks"),
            ("The switch drops packets.", "is lossless"),
        ],
    },
    Task {
        lesson: "pfc",
        number: 1,
        right: "335.5",
        shows: "33553920 bits",
        wrong: &[
            ("3355", "at 10 Gb/s"),
            ("2684", "not of 512 bytes"),
            ("65.5", "not a nanosecond"),
            ("0.655", "as many bits"),
            ("5", "Multiply"),
        ],
    },
    Task {
        lesson: "pfc",
        number: 2,
        right: "60 KB",
        shows: "30 KB: 510 frames dropped",
        wrong: &[
            ("10 KB", "drops 1707 frames"),
            ("30 KB", "twice the delay"),
            ("200 KB", "a smaller one is enough"),
        ],
    },
    Task {
        lesson: "pfc",
        number: 3,
        right: "leaf0->h3",
        shows: "leaf0->h3 7",
        wrong: &[
            ("leaf1->h4", "requested 0 pauses"),
            ("leaf1->spine0", "never passes a switch"),
            ("spine0->leaf0", "Which port then"),
        ],
    },
    Task {
        lesson: "pfc",
        number: 4,
        right: "the shortest paths as routes",
        shows: "Unchanged: 0 of 6 flows complete, 1 deadlock.",
        wrong: &[
            ("a threshold of 300 KB instead of 100 KB", "only delays the pauses"),
            ("five times as much time", "no time is enough"),
            ("DCQCN at all hosts, with marks from 20 KB on", "before the first CNP"),
        ],
    },
];

/// Lessons of this file with the text of their page.
const PAGES: [(&str, &str); 5] = [
    ("read", include_str!("../../../docs/lessons/06-read.md")),
    ("keys", include_str!("../../../docs/lessons/07-keys.md")),
    ("connections", include_str!("../../../docs/lessons/08-connections.md")),
    ("dcqcn", include_str!("../../../docs/lessons/09-dcqcn.md")),
    ("pfc", include_str!("../../../docs/lessons/10-pfc.md")),
];

/// Returns the judgement of an answer.
fn judge(lesson: &str, task: usize, answer: &str) -> Value {
    let outcome =
        lessons::check(lesson, task, answer).unwrap_or_else(|error| panic!("{lesson} {task}: {error}"));
    serde_json::from_str(&outcome).expect("an outcome is JSON")
}

/// Returns the lessons as the page gets them.
fn all() -> Vec<Value> {
    let all: Value = serde_json::from_str(&lessons::all()).expect("the lessons are JSON");
    all.as_array().expect("a list").clone()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is a text in {value}"))
}

#[test]
fn right_answers_are_right_and_wrong_ones_have_their_hint() {
    for Task { lesson, number, right, shows, wrong } in TASKS {
        let outcome = judge(lesson, *number, right);
        assert_eq!(outcome["right"], true, "{lesson} {number}: {outcome}");
        assert!(text(&outcome, "shows").contains(shows), "{lesson} {number}: {outcome}");
        assert_eq!(text(&outcome, "hint"), "", "{lesson} {number}");
        assert!(wrong.len() >= 2, "{lesson} {number}");
        for (answer, hint) in *wrong {
            let outcome = judge(lesson, *number, answer);
            assert_eq!(outcome["right"], false, "{lesson} {number}, {answer}");
            assert!(text(&outcome, "hint").contains(hint), "{lesson} {number}, {answer}: {outcome}");
            assert_eq!(
                text(&outcome, "shows"),
                "",
                "{lesson} {number}, {answer}: the answer is shown too early"
            );
        }
    }
}

#[test]
fn every_task_of_these_lessons_is_played() {
    for lesson in all().iter().filter(|lesson| PAGES.iter().any(|(id, _)| lesson["id"] == *id)) {
        let (id, tasks) = (text(lesson, "id"), lesson["tasks"].as_array().expect("a list"));
        let played: Vec<usize> =
            TASKS.iter().filter(|task| task.lesson == id).map(|task| task.number).collect();
        let numbers: Vec<usize> =
            tasks.iter().map(|task| task["number"].as_u64().expect("a number") as usize).collect();
        assert_eq!(played, numbers, "{id}");
        assert!(lessons::check(id, numbers.len() + 1, "1").is_err(), "{id} has no further task");
        assert!(lesson["minutes"].as_u64().is_some_and(|minutes| (30..=60).contains(&minutes)), "{id}");
    }
    for (id, _) in PAGES {
        assert!(all().iter().any(|lesson| lesson["id"] == id), "{id}");
    }
}

/// Exactly one choice is right, and each of the others has a hint of its own.
#[test]
fn every_choice_of_the_pages_is_judged() {
    let mut count = 0;
    for lesson in &all() {
        let id = text(lesson, "id");
        if PAGES.iter().all(|(known, _)| id != *known) {
            continue;
        }
        for task in lesson["tasks"].as_array().expect("a list") {
            let Some(choices) = task["choices"].as_array() else { continue };
            let number = task["number"].as_u64().expect("a number") as usize;
            let otherwise = judge(id, number, "none of them");
            let outcomes: Vec<Value> =
                choices.iter().map(|choice| judge(id, number, choice.as_str().expect("a text"))).collect();
            let right = outcomes.iter().filter(|outcome| outcome["right"] == true).count();
            assert_eq!(right, 1, "{id} {number}: {outcomes:?}");
            let mut hints: Vec<&str> = outcomes.iter().map(|outcome| text(outcome, "hint")).collect();
            assert!(!hints.contains(&text(&otherwise, "hint")), "{id} {number}: {outcomes:?}");
            hints.sort_unstable();
            hints.dedup();
            assert_eq!(hints.len(), choices.len(), "{id} {number}: two choices have one hint");
            count += 1;
        }
    }
    assert_eq!(count, 8);
}

/// A hint must not give the answer away.
#[test]
fn no_hint_contains_the_right_answer() {
    for Task { lesson, number, right, wrong, .. } in TASKS {
        // Small numbers are part of other numbers.
        if right.len() < 3 {
            continue;
        }
        let right = right.split(' ').next().filter(|_| right.starts_with(|char: char| char.is_ascii_digit()));
        for (answer, _) in *wrong {
            let outcome = judge(lesson, *number, answer);
            let is_given = right.is_some_and(|right| text(&outcome, "hint").contains(right));
            assert!(!is_given, "{lesson} {number}, {answer}: {outcome}");
        }
    }
}

/// The scenarios in the pages are the ones that the answers come from.
#[test]
fn the_pages_have_the_scenarios() {
    let files = [
        ("dcqcn", include_str!("../../../docs/lessons/scenarios/three-points.toml")),
        ("pfc", include_str!("../../../docs/lessons/scenarios/headroom.toml")),
        ("pfc", include_str!("../../../docs/lessons/scenarios/victim.toml")),
        ("pfc", include_str!("../../../docs/lessons/scenarios/deadlock.toml")),
    ];
    for (id, scenario) in files {
        let (_, page) = PAGES.iter().find(|(known, _)| *known == id).expect("a page");
        assert!(page.contains(&format!("```toml\n{scenario}```\n")), "{id} lacks {scenario}");
    }
}

#[test]
fn solutions_and_notes_are_there() {
    for (id, page) in PAGES {
        let solution = lessons::solution(id).expect("a solution");
        let tasks = page.matches("\n### Task ").count();
        assert_eq!(solution.matches("Task ").count(), tasks, "{id}: a solution for each task");
        assert!(lessons::teacher(id).expect("notes").contains("misconceptions"), "{id}");
    }
}
