//! One story, four sources: a lossy WRITE, a READ with a lost response, a SEND without a receive and a lost
//! acknowledgement look alike in the ladders of commands over sockets, of two kernels, of the simulator and
//! of the two hosts of the page. docs/lessons/one-story.md shows these ladders.
//!
//! [`told`] says what a story contains, and what may differ between two captures of one story. If the kernel
//! does something else, its own story is in [`Case::kernel`] with the reason, and the page says so.
//!
//! The ladders over sockets have other times in each run. The others are compared with those of the page
//! letter by letter. To write all of them into the page, and the images:
//! `ROCE_WRITE_GALLERY=1 cargo test -p roce-cli --test command stories::`.

mod told;

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use roce_web::hosts::Hosts;
use serde_json::{Value, json};

use crate::common::{Running, kernel_captures, own_address, roce, run};
use crate::gallery::{check_image, writes};

const LESSONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lessons");

/// A busy machine adds timeouts to a run over sockets, or delays the second message of a run until there is a
/// receive for it. If a thread loses the processor between the arrival of an RNR NAK and its capture, the
/// requester seems to wait for too short a time. Such a run is repeated.
const MOST_RUNS: usize = 30;

/// A story, and how each source tells it.
struct Case {
    /// Name of its scenario, its image and its captures.
    name: &'static str,
    /// The operations of the requester. They may differ between sources only where two are named.
    operations: &'static [&'static str],
    story: &'static [&'static str],
    /// The story of the kernel, if it is another one, and the reason.
    kernel: Option<(&'static [&'static str], &'static str)>,
    /// Subcommand, options of both sides and options of the client.
    sockets: (&'static [&'static str], &'static [&'static str], &'static [&'static str]),
    /// Capture in `pcaps/rxe`, and the options of `roce dissect` that select the packets of the story.
    excerpt: (&'static str, &'static [&'static str]),
    /// Work of the requester in the page, and the packet that is dropped: its side, and its number among the
    /// packets of this side. Without such a packet, a receive follows the first RNR NAK.
    page: (&'static str, usize, Option<(usize, usize)>),
}

const CASES: [Case; 4] = [
    Case {
        name: "lossy-write",
        operations: &["WRITE"],
        story: &[
            "request p lost",
            "requests behind p",
            "NAK p, PSN sequence error",
            "request p again",
            "requests behind p again",
            "ACK of all",
        ],
        kernel: None,
        sockets: (
            &["blast"],
            &[],
            &[
                "--op",
                "write",
                "--size",
                "8192",
                "-n",
                "1",
                "--mtu",
                "1024",
                "--fault",
                "rule:rpsn=2,pass=1,action=drop",
            ],
        ),
        excerpt: ("rc-write-lost-requests.pcap.gz", &["--psn", "15295638..15295645"]),
        page: ("write", 8192, Some((0, 3))),
    },
    Case {
        name: "lost-response",
        operations: &["READ"],
        story: &[
            "READ",
            "response p lost",
            "responses behind p",
            "READ again from p",
            "response p, first",
            "responses behind p",
        ],
        kernel: Some((
            &[
                "READ",
                "response p lost",
                "responses behind p",
                "READ again from p",
                "response p, middle",
                "responses behind p",
            ],
            "Soft-RoCE goes on with the opcode of the response that was lost.",
        )),
        sockets: (
            &["blast"],
            &[],
            &[
                "--op",
                "read",
                "--size",
                "4096",
                "-n",
                "1",
                "--mtu",
                "1024",
                "--receive-fault",
                "rule:opcode=RC_RDMA_READ_RESPONSE_*,rpsn=1,pass=1,action=drop",
            ],
        ),
        excerpt: ("rc-read-lost-responses.pcap.gz", &["--psn", "2379761..2379768", "--time", "0.014.."]),
        page: ("read", 4096, Some((1, 2))),
    },
    Case {
        name: "late-receive",
        operations: &["SEND"],
        story: &["request p", "RNR NAK p", "request p again", "ACK of all"],
        kernel: Some((
            &["request p", "RNR NAK p", "NAK p, PSN sequence error", "request p again", "ACK of all"],
            "Soft-RoCE also sends a NAK for the refused packet when the next packet arrives.",
        )),
        sockets: (&["perf", "send", "bw"], &["-s", "1024", "-m", "1024", "-n", "5", "-r", "4"], &[]),
        excerpt: ("rc-send-rnr.pcap", &["--psn", "6209256"]),
        page: ("send", 1024, None),
    },
    Case {
        name: "lost-ack",
        operations: &["SEND", "WRITE"],
        story: &["request p", "ACK of all lost", "timeout", "request p again", "ACK of all"],
        kernel: Some((
            &["request p", "timeout", "request p again", "ACK of all", "ACK of all"],
            "The first acknowledgement was not lost but late, so both arrive.",
        )),
        sockets: (
            &["blast"],
            &[],
            &[
                "--op",
                "write",
                "--size",
                "512",
                "-n",
                "1",
                "--receive-fault",
                "rule:opcode=RC_ACKNOWLEDGE,times=1,action=drop",
            ],
        ),
        excerpt: ("rc-send-lat-2.pcap", &["--psn", "5975889"]),
        page: ("write", 512, Some((1, 1))),
    },
];

/// Returns the ladder of the only connection of a capture.
#[track_caller]
fn ladder(capture: &Path) -> String {
    let finished = run(&["ladder", capture.to_str().unwrap()]);
    assert!(finished.success, "{finished:?}");
    assert_eq!(finished.stdout.matches("Connection ").count(), 1, "{}", finished.stdout);
    finished.stdout
}

/// Checks that a ladder tells a story.
#[track_caller]
fn check_story(case: &Case, text: &str, story: &[&str]) {
    let rows = told::rows(text).unwrap_or_else(|why| panic!("{why} in\n{text}"));
    assert_eq!(told::story(&rows), story, "{} tells another story:\n{text}", case.name);
    told::times(&rows).unwrap_or_else(|why| panic!("{why} in\n{text}"));
    for operation in told::operations(&rows) {
        assert!(case.operations.contains(&operation), "{}: {operation}", case.name);
    }
}

/// The page. The tests that write it run at the same time.
static PAGE: Mutex<()> = Mutex::new(());

fn page() -> String {
    let _guard = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    read()
}

fn read() -> String {
    fs::read_to_string(format!("{LESSONS}/one-story.md")).expect("the page of the stories")
}

/// Returns what the page shows behind a command; writes it there first if `ladder` shall be written.
fn shown(command: &str, ladder: &str) -> String {
    let _guard = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let text = read();
    let begin = format!("\n$ {command}\n");
    let (before, after) = text.split_once(&begin).unwrap_or_else(|| panic!("the page has no {begin}"));
    let (shown, rest) = after.split_once("```").expect("the end of the block");
    if !writes() {
        return shown.to_owned();
    }
    let new = format!("{}\n", ladder.trim_end());
    fs::write(format!("{LESSONS}/one-story.md"), format!("{before}{begin}{new}```{rest}")).unwrap();
    new
}

/// Checks that the page shows a ladder behind a command.
#[track_caller]
fn check_shown(command: &str, ladder: &str) {
    assert_eq!(shown(command, ladder).trim_end(), ladder.trim_end(), "docs/lessons/one-story.md: {command}");
}

#[test]
fn kernels_tell_the_stories_or_the_page_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    for case in &CASES {
        let capture = folder.path().join(format!("{}-kernel.pcapng", case.name));
        let (file, options) = case.excerpt;
        let whole = kernel_captures().join(file);
        let (whole, part) = (whole.to_str().unwrap(), capture.to_str().unwrap());
        let finished = run(&[&["dissect", whole][..], options, &["--write", part]].concat());
        assert!(finished.success, "{finished:?}");
        let ladder = ladder(&capture);
        check_story(case, &ladder, case.kernel.map_or(case.story, |(story, _)| story));
        let name = &format!("{}-kernel.pcapng", case.name);
        let made = format!("$ roce dissect pcaps/rxe/{file} {} --write {name}\n", options.join(" "));
        assert!(page().contains(&made), "{made}");
        check_shown(&format!("roce ladder {name}"), &ladder);
    }
}

#[test]
fn simulations_tell_the_stories() {
    for case in &CASES {
        let finished = run(&["sim", &format!("{LESSONS}/scenarios/{}.toml", case.name), "--ladder"]);
        assert!(finished.success, "{finished:?}");
        let (ladder, _) = finished.stdout.split_once("\n\n").expect("a ladder, and the summary");
        check_story(case, ladder, case.story);
        check_shown(&format!("roce sim {}.toml --ladder", case.name), &format!("{ladder}\n..."));
    }
}

/// Plays a story between the two hosts of the page; returns the capture.
fn on_the_page((op, bytes, dropped): (&str, usize, Option<(usize, usize)>)) -> Vec<u8> {
    const MOST_STEPS: usize = 1_000;
    let mut hosts = Hosts::new("{}").expect("the settings are right");
    hosts.post(&json!({ "side": 0, "op": op, "bytes": bytes }).to_string()).expect("the request is right");
    let state = |hosts: &Hosts| -> Value { serde_json::from_str(&hosts.state()).expect("JSON") };
    let mut seen: Vec<u64> = Vec::new();
    let mut is_done = false;
    for _ in 0..MOST_STEPS {
        let state = state(&hosts);
        let (side, number) = dropped.unwrap_or((1, 1));
        for packet in state["wire"].as_array().expect("a list") {
            let id = packet["id"].as_u64().expect("a number");
            if packet["from"] == side && !seen.contains(&id) {
                seen.push(id);
            }
        }
        if seen.len() >= number && !is_done {
            is_done = true;
            match dropped {
                Some(_) => hosts.act(seen[number - 1] as usize, "drop", 0.0).expect("it is on the link"),
                None => hosts.post_recv(1, bytes).expect("there is room"),
            }
        }
        if !hosts.step() {
            break;
        }
    }
    let state = state(&hosts);
    assert_eq!(state["idle"], true, "{state:#}");
    assert_eq!(state["hosts"][0]["completions"][0]["right"], true, "{state:#}");
    hosts.pcap()
}

#[test]
fn two_hosts_of_the_page_tell_the_stories() {
    let folder = tempfile::tempdir().unwrap();
    for case in &CASES {
        let name = format!("{}-page.pcapng", case.name);
        let capture = folder.path().join(&name);
        fs::write(&capture, on_the_page(case.page)).unwrap();
        let ladder = ladder(&capture);
        check_story(case, &ladder, case.story);
        check_shown(&format!("roce ladder {name}"), &ladder);
        let image = format!("one-story/{}.svg", case.name);
        check_image(&Path::new(LESSONS).join(&image), &capture);
        assert!(page().contains(&format!("({image})")), "the page does not show {image}");
    }
}

/// Runs a command on both sides, over sockets, and returns the ladder of the client.
fn over_sockets(case: &Case, capture: &Path) -> String {
    let (command, of_both, of_client) = case.sockets;
    // The addresses of the commands on the page.
    let of_page = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];
    let addresses = if writes() { of_page } else { [own_address(), own_address()] };
    let [server, client] = addresses.map(|address| address.to_string());
    let start = |device: &str, more: &[&str]| {
        let mut started = roce();
        started.args(command).args(["--device", &format!("udp:{device}")]).args(of_both).args(more);
        Running::start(&mut started)
    };
    // `blast` says when it waits. A client of `perf` tries again until its server waits.
    let is_blast = command == ["blast"];
    let mut serving = start(&server, if is_blast { &["--once"] } else { &[] });
    if is_blast {
        serving.wait_for_line("waiting on");
    }
    let capture_option = ["--pcap", capture.to_str().unwrap()];
    let finished = start(&client, &[&[server.as_str()][..], &capture_option, of_client].concat()).finish(60);
    assert!(finished.success, "{finished:?}");
    let served = serving.finish(60);
    assert!(served.success, "{served:?}");
    ladder(capture)
}

#[test]
fn commands_over_sockets_tell_the_stories() {
    let folder = tempfile::tempdir().unwrap();
    for case in &CASES {
        let name = format!("{}.pcapng", case.name);
        let capture = folder.path().join(&name);
        let mut ladders = (0..MOST_RUNS).map(|_| over_sockets(case, &capture));
        let mut last = String::new();
        let told = ladders.find(|ladder| {
            last.clone_from(ladder);
            told::rows(ladder)
                .is_ok_and(|rows| told::story(&rows) == case.story && told::times(&rows).is_ok())
        });
        let ladder = told.unwrap_or_else(|| panic!("{MOST_RUNS} other stories; the last one:\n{last}"));
        check_story(case, &ladder, case.story);
        check_story(case, &shown(&format!("roce ladder {name}"), &ladder), case.story);
        for option in case.sockets.1.iter().chain(case.sockets.2) {
            assert!(page().contains(option), "the page lacks {option}");
        }
    }
}

#[test]
fn the_page_has_the_stories_and_what_differs() {
    let page = page();
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for case in &CASES {
        let block = |story: &[&str]| format!("```text\n{}\n```\n", story.join("\n"));
        assert!(page.contains(&block(case.story)), "{}", case.name);
        if let Some((story, why)) = case.kernel {
            assert_ne!(story, case.story, "{}: nothing differs", case.name);
            assert!(page.contains(&block(story)), "{}: the story of the kernel", case.name);
            assert!(words.contains(why), "{}: {why}", case.name);
        }
    }
    let images = fs::read_dir(format!("{LESSONS}/one-story")).unwrap().count();
    assert_eq!(images, page.matches("(one-story/").count(), "each image of the page is in its folder");
}
