//! Failures that users report, made with two contexts, and what `why` says about them at both ends. The table
//! is in docs/results/explained-failures.md; `ROCE_WRITE_TABLE=1 cargo test --test verbs explained` writes it
//! again.

use std::fmt::Write as _;

use roce::observe::{Explanation, look_up};
use roce::verbs::*;

use crate::common::{check_table, within};
use crate::world::*;

const PAGE: &str = "explained-failures.md";

/// A failure that a user reports.
struct Failure {
    name: &'static str,
    source: &'static str,
    /// Makes the queue pair of the first end fail. Returns the explanation there, and that of the peer if it
    /// has one.
    play: fn() -> [Option<Explanation>; 2],
}

/// Two ends whose numbers and keys are the same in every run.
fn ends(options: &ConnectOptions) -> (Side, Side) {
    let builders = (Context::builder().seed(1), Context::builder().seed(2));
    connect(Wire::Memory.open_with(builders.0, builders.1).unwrap(), QpType::Rc, options)
}

fn quick() -> ConnectOptions {
    ConnectOptions::default().timeout(8).retry_cnt(1)
}

/// Waits for a failed request, and explains it at both ends.
fn explain(near: &Side, far: &Side) -> [Option<Explanation>; 2] {
    let wc = completion(&near.send_cq);
    assert_ne!(wc.status, WcStatus::Success, "{wc:?}");
    [near.qp.why(), far.qp.why().filter(|why| why.reason.is_some())]
}

/// Sends a WRITE with this key to an offset of the peer's memory.
fn write(near: &Side, far: &Side, rkey: RKey, offset: usize) -> [Option<Explanation>; 2] {
    let remote_addr = far.region.addr() + offset as u64;
    near.post(1, SendOp::Write { remote_addr, rkey }, &[near.region.element(0..64)]);
    explain(near, far)
}

const FAILURES: &[Failure] = &[
    Failure {
        name: "the peer never answers",
        source: "NCCL #426, #902, UCX #6000, #2434: a wrong GID index, traffic class or route",
        play: || {
            let (near, far) = ends(&quick());
            let (near_qp, far_qp) = (near.another_qp(QpType::Rc), far.another_qp(QpType::Rc));
            near_qp.connect(&far_qp.endpoint().unwrap(), &quick()).unwrap();
            drop(far_qp);
            near_qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello")).unwrap();
            fail(&near.send_cq, WcStatus::RetryExceededError);
            [near_qp.why(), None]
        },
    },
    Failure {
        name: "the peer ends in the middle of the work",
        source: "NCCL #394, #1664, #2383",
        play: || {
            let (near, mut far) = ends(&quick());
            near.carry_out(1, far.write_op(0), &[near.region.element(0..64)]);
            far.qp = far.another_qp(QpType::Rc);
            near.post(2, far.write_op(0), &[near.region.element(0..64)]);
            explain(&near, &far)
        },
    },
    Failure {
        name: "the rkey is wrong",
        source: "UCX #1569, SPDK #964",
        play: || {
            let (near, far) = ends(&quick());
            write(&near, &far, RKey(far.region.rkey().0 ^ 1), 0)
        },
    },
    Failure {
        name: "the range ends outside the region",
        source: "measurements of ConnectX-6: the same status as a wrong rkey",
        play: || {
            let (near, far) = ends(&quick());
            write(&near, &far, far.region.rkey(), MEMORY - 32)
        },
    },
    Failure {
        name: "the region lacks the right",
        source: "as above",
        play: || {
            let (near, far) = ends(&quick());
            let region = far.pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
            let op = SendOp::Write { remote_addr: region.addr(), rkey: region.rkey() };
            near.post(1, op, &[near.region.element(0..64)]);
            explain(&near, &far)
        },
    },
    Failure {
        name: "the region is in another protection domain",
        source: "as above",
        play: || {
            let (near, far) = ends(&quick());
            let pd = far.context.alloc_pd().unwrap();
            let region = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
            let op = SendOp::Write { remote_addr: region.addr(), rkey: region.rkey() };
            near.post(1, op, &[near.region.element(0..64)]);
            explain(&near, &far)
        },
    },
    Failure {
        name: "the peer posts no receive",
        source: "slaclab #15: RNR timer too short for a responder in software",
        play: || {
            let (near, far) = ends(&quick().rnr_retry(1));
            near.post(1, SendOp::Send, &[near.region.element(0..64)]);
            explain(&near, &far)
        },
    },
    Failure {
        name: "the message is longer than the receive",
        source: "charm #2532",
        play: || {
            let (near, far) = ends(&quick());
            far.receive(1, 0, 63);
            near.post(1, SendOp::Send, &[near.region.element(0..64)]);
            explain(&near, &far)
        },
    },
    Failure {
        name: "an atomic operation is not aligned",
        source: "measurements of ConnectX-6",
        play: || {
            let (near, far) = ends(&quick());
            let op = SendOp::FetchAdd { remote_addr: far.region.addr() + 4, rkey: far.region.rkey(), add: 1 };
            near.post(1, op, &[near.region.element(0..8)]);
            explain(&near, &far)
        },
    },
    Failure {
        name: "a local key was revoked",
        source: "perftest #173, NCCL #928",
        play: || {
            let (near, far) = ends(&quick());
            let region = near.pd.allocate(4096, Access::LOCAL_WRITE).unwrap();
            let element = region.element(0..64);
            drop(region);
            near.context
                .raw()
                .post_send(near.qp.number(), &SendWr::new(1, far.write_op(0), &[element]))
                .unwrap();
            explain(&near, &far)
        },
    },
];

/// Replaces what differs between runs: addresses of memory and times.
fn steady(text: &str) -> String {
    let mut shown = String::new();
    for (index, part) in text.split("0x").enumerate() {
        let digits = part.chars().take_while(char::is_ascii_hexdigit).count();
        match (index, digits) {
            (0, _) => shown.push_str(part),
            (_, 9..) => write!(shown, "0x…{}", &part[digits..]).unwrap(),
            _ => write!(shown, "0x{part}").unwrap(),
        }
    }
    shown.replace('|', "\\|")
}

/// Returns the failed check, the likely cause and the next step.
fn cell(why: Option<&Explanation>) -> String {
    let Some(why) = why else { return "–".to_owned() };
    let reason = why.reason.expect("a failure");
    let status = reason.request.map_or("refused", |(_, status)| status.name());
    let likely = why.likely.first().expect("a cause");
    let next = why
        .ends
        .map_or_else(|| likely.next.to_owned(), |ends| likely.next.replace("HOST", &ends.remote.to_string()));
    let is_silent = why.to_string().contains("no packet that proves to be from the peer");
    let silence = if is_silent { "; the peer was never heard" } else { "" };
    steady(&format!("**{status}**, {}{silence}; likely: {}; next: {next}", reason.rule, likely.cause))
}

#[test]
fn explained_failures_are_those_of_the_page() {
    within(120, || {
        let mut rows = String::new();
        for Failure { name, source, play } in FAILURES {
            let [near, far] = play();
            let text = near.as_ref().expect("an explanation").to_string();
            // The issues ask for the peer and the queue pair.
            assert!(text.contains("towards queue pair") && text.contains("192.0.2.2"), "{name}: {text}");
            writeln!(rows, "| {name} | {source} | {} | {} |", cell(near.as_ref()), cell(far.as_ref()))
                .unwrap();
        }
        check_table(
            PAGE,
            "| failure | reported by | `roce why` at the requester | `roce why` at the responder |",
            &rows,
        );
    });
}

#[test]
fn numbers_of_reports_are_those_of_the_page() {
    let mut rows = String::new();
    for (number, source) in [
        ("12", "NCCL #426, #902"),
        ("129", "NCCL #1664 (vendor err 129), #2219, #2383"),
        ("0x81", "UCX #2973, #6673 (vend 0x81)"),
        ("0x88", "UCX #1569"),
        ("0x8a", "charm #2532"),
        ("249", "NCCL #1353 (vendor err 249)"),
    ] {
        let codes = look_up(number);
        let code = codes.first().unwrap_or_else(|| panic!("{number} is unknown"));
        let likely = code.likely.first().expect("a cause");
        let texts = (code.kind.name(), code.status.name(), code.meaning);
        writeln!(
            rows,
            "| `roce why {number}` | {source} | {}: **{}**, {}; likely: {}; next: {} |",
            texts.0, texts.1, texts.2, likely.cause, likely.next
        )
        .unwrap();
    }
    check_table(PAGE, "| command | number in | says |", &rows.replace("\\|", "|"));
}
