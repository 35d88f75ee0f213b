//! `roce analyze` and `roce ladder` as users run them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::frames::{frame, write_capture};
use crate::common::{Finished, Running, captures_in, kernel_captures, run};
use roce_packet::{Opcode, Psn};
use serde_json::Value;

fn capture(name: &str) -> String {
    format!("{}/../pcaps/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command on a capture of the repository.
fn on(command: &str, name: &str, more: &[&str]) -> Finished {
    run(&[&[command, &capture(name)][..], more].concat())
}

fn json(name: &str, more: &[&str]) -> Value {
    let finished = on("analyze", name, &[&["--json"], more].concat());
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

#[test]
fn three_lines_say_the_result() {
    let finished = on("analyze", "rc-loss.pcapng", &[]);
    let lines: Vec<&str> = finished.stdout.lines().collect();
    // Regression: "pass" came first, and the losses last.
    let losses =
        "1 packet lost, 6 packets sent again, all recovered (17 RoCE packets in 17.4 ms; 1 connection)";
    assert_eq!(lines[0], losses, "{finished:?}");
    let word = lines[1].split(':').next().unwrap();
    assert!(["pass", "fail", "unknown"].contains(&word), "{finished:?}");
    assert_eq!(finished.success, word != "fail", "{finished:?}");
    if word == "pass" {
        assert!(lines[1].starts_with("pass: the NICs follow the rules: none of "), "{finished:?}");
    }
    assert!(lines[2].starts_with("look first at connection 1"), "{finished:?}");
    let title = "Connection 1: RC 192.0.2.1 QP 0x4225 <-> 192.0.2.2 QP 0x9b7";
    assert!(lines.contains(&title), "{finished:?}");
    assert!(finished.stdout.contains("1 request lost, 6 packets sent again, 1 NAK for"), "{finished:?}");
    let words = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("; goodput 953 kb/s, 1.93 Mb/s on the wire"), "{finished:?}");
    let without = on("analyze", "rc-operations.pcapng", &[]);
    assert!(without.stdout.starts_with("nothing was lost or sent again ("), "{without:?}");
}

#[test]
fn the_exit_status_says_whether_a_verdict_failed() {
    for file in captures_in(&kernel_captures(), &["pcap"]) {
        let finished = run(&["analyze", text(&file), "--json"]);
        let document: Value = serde_json::from_str(&finished.stdout).unwrap();
        let failed = document["outcome"] == "fail";
        assert_eq!(finished.success, !failed, "{}: {}", file.display(), finished.stdout);
        let all = document["connections"].as_array().unwrap().iter().map(|one| &one["verdicts"]);
        let all = all.chain([&document["verdicts"]]).flat_map(|list| list.as_array().unwrap());
        assert_eq!(all.filter(|verdict| verdict["outcome"] == "fail").count() > 0, failed);
    }
}

/// Damaged packets are not lost, and a failed verdict names its end in every format.
#[test]
fn a_failed_verdict_names_the_end_and_damaged_packets_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let [file, html, junit] = ["made.pcapng", "made.html", "made.xml"].map(|name| folder.path().join(name));
    let mut frames: Vec<Vec<u8>> =
        [1, 2, 3, 2, 3].map(|psn| frame(Opcode::RC_SEND_ONLY, Psn::new(psn), b"payload.")).into();
    *frames[1].last_mut().unwrap() ^= 1;
    write_capture(&file, &frames);
    let arguments = ["analyze", text(&file), "--html", text(&html), "--junit", text(&junit)];
    let finished = run(&arguments);
    assert!(!finished.success, "{finished:?}");
    assert!(
        finished.stdout.starts_with("1 packet damaged (wrong ICRC), 2 packets sent again"),
        "{finished:?}"
    );
    let end = "sender 198.18.7.1";
    let first = format!("look first at connection 1, {end}, ICRC: wrong ICRC: packet 2");
    assert!(finished.stdout.contains(&first), "{finished:?}");
    assert!(finished.stdout.contains(&format!("{end}; packet 2\n")), "{finished:?}");
    for (path, part) in
        [(&html, "sender 198.18.7.1; packet 2</span>"), (&junit, "sender 198.18.7.1; packet 2<")]
    {
        let written = fs::read_to_string(path).unwrap();
        assert!(written.contains(part), "{written}");
    }
    let document: Value = serde_json::from_str(&run(&[&arguments[..], &["--json"]].concat()).stdout).unwrap();
    let connection = &document["connections"][0];
    assert_eq!(connection["ends"][0]["damaged_packets"], 1);
    assert_eq!(connection["ends"][0]["requests"]["lost_packets"], 0);
    let verdicts = connection["verdicts"].as_array().unwrap();
    let verdict = verdicts.iter().find(|verdict| verdict["key"] == "icrc").unwrap();
    assert_eq!(verdict["parties"][0]["role"], "sender", "{verdict}");
    assert_eq!(verdict["parties"][0]["address"], "198.18.7.1", "{verdict}");
}

#[test]
fn verdicts_and_connections_can_be_chosen() {
    let all = json("rc-refused.pcapng", &[]);
    assert_eq!(all["connections"].as_array().unwrap().len(), 2);
    let second = json("rc-refused.pcapng", &["--connection", "2", "--only", "refusals,8"]);
    let connections = second["connections"].as_array().unwrap();
    assert_eq!((connections.len(), &connections[0]["number"]), (1, &Value::from(2)));
    let keys = connections[0]["verdicts"].as_array().unwrap().iter().map(|verdict| &verdict["key"]);
    assert!(keys.clone().all(|key| key == "refusals" || key == "rnr"), "{second}");
    let finished = on("analyze", "rc-refused.pcapng", &["--connection", "3"]);
    assert!(finished.stderr.contains("there is no connection 3; "), "{finished:?}");
    let finished = on("analyze", "rc-refused.pcapng", &["--only", "nakz"]);
    assert!(finished.stderr.contains("no rule is called nakz; the rules are icrc, naks,"), "{finished:?}");
}

#[test]
fn two_places_find_a_loss_and_one_clock_is_ahead() {
    let folder = tempfile::tempdir().unwrap();
    let [sender, receiver] = ["sender.pcapng", "receiver.pcapng"].map(|name| folder.path().join(name));
    let packet = |psn: u32| frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(psn), &psn.to_be_bytes());
    let sent: Vec<Vec<u8>> = (0..40).map(packet).collect();
    let received: Vec<Vec<u8>> = (0..40).filter(|psn| *psn != 7).map(packet).collect();
    write_capture(&sender, &sent);
    write_capture(&receiver, &received);
    let finished = run(&["ladder", text(&sender), text(&receiver), "--rows", "80"]);
    assert!(finished.success, "{finished:?}");
    let lost: Vec<&str> = finished.stdout.lines().filter(|line| line.contains("lost")).collect();
    assert_eq!(lost.len(), 1, "{}", finished.stdout);
    assert!(lost[0].contains("WRITE 7, 4 B, lost |---------x"), "{lost:?}");
}

#[test]
fn what_cannot_be_judged_has_its_own_status() {
    let folder = tempfile::tempdir().unwrap();
    let status = |file: &Path| {
        let output = common::roce().args(["analyze", text(file)]).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let file = |name: &str| folder.path().join(name);
    write_capture(&file("other.pcapng"), &[vec![0xff; 60]]);
    let (code, stderr) = status(&file("other.pcapng"));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("no packet is RoCE; `roce dissect FILE` prints"), "{stderr}");
    assert_eq!(status(&file("missing.pcap")).0, Some(2));
    // A capture that a full disk cut is judged up to there.
    let whole = fs::read(capture("rc-operations.pcapng")).unwrap();
    fs::write(file("cut.pcapng"), &whole[..whole.len() - 10]).unwrap();
    let (code, stderr) = status(&file("cut.pcapng"));
    assert!(code == Some(2) || code == Some(1), "{code:?}");
    assert!(stderr.contains("; the packets before it are analysed"), "{stderr}");
}

/// Returns the names of elements that are open at the end, and panics if they are not nested.
fn nested(xml: &str) -> Vec<String> {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, rest) = tag.split_once('>').unwrap_or_else(|| panic!("no end: {tag}"));
        assert!(!rest.contains('>'), "{rest}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        match (tag.starts_with('/'), tag.ends_with(['/', '?'])) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{xml}"),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    open
}

#[test]
fn test_results_are_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("results.xml");
    let finished = on("analyze", "rc-loss.pcapng", &["--json", "--junit", text(&file)]);
    let document: Value = serde_json::from_str(&finished.stdout).unwrap();
    let xml = fs::read_to_string(&file).unwrap();
    assert!(xml.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites "), "{xml}");
    assert_eq!(nested(&xml), [""; 0]);
    let verdicts = |value: &Value| value.as_array().unwrap().len();
    let all = verdicts(&document["verdicts"]) + verdicts(&document["connections"][0]["verdicts"]);
    assert!(all > 0, "{document}");
    assert_eq!(xml.matches("<testcase ").count(), all);
    let unknown = finished.stdout.matches("\"outcome\": \"unknown\"").count();
    assert_eq!(xml.matches("<skipped ").count(), unknown);
}

#[test]
fn a_ladder_is_text_or_a_picture() {
    let finished = on("ladder", "rc-loss.pcapng", &[]);
    assert!(finished.success, "{finished:?}");
    assert!(finished.stdout.starts_with("Connection 1: 192.0.2.1 QP 0x4225 and 192.0.2.2 QP 0x9b7\n"));
    assert!(finished.stdout.contains("WRITE middle 2, again |===================>|\n"), "{finished:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ladder.svg");
    let finished = on("ladder", "rc-refused.pcapng", &["--connection", "2", "--svg", text(&file)]);
    assert_eq!(finished.stdout, format!("connection 2: {}\n", file.display()));
    let svg = fs::read_to_string(&file).unwrap();
    assert_eq!(nested(&svg), [""; 0]);
    assert!(svg.contains(">NAK 0, invalid request<"), "{svg}");
    let finished = on("ladder", "ud.pcapng", &[]);
    assert!(!finished.success && finished.stderr.contains("no connection; "), "{finished:?}");
}

/// Returns the pictures of a page.
fn pictures(html: &str) -> Vec<&str> {
    html.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect()
}

#[test]
fn a_page_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.html");
    on("analyze", "rxe/rc-write-lost-requests.pcap.gz", &["--html", text(&file)]);
    let html = fs::read_to_string(&file).unwrap();
    for word in ["<script", "href=\"http", "src=", "url(", "@import", "NaN"] {
        assert!(!html.contains(word), "{word}");
    }
    let pictures = pictures(&html);
    assert!(pictures[0].contains("class=\"ladder\"") && pictures[0].contains(">PSN 5 lost<"), "{html}");
    for title in ["Payload on the wire over time", "PSNs of the requests of 198.51.100.10"] {
        assert!(pictures.iter().any(|picture| picture.contains(title)), "{title}");
    }
    assert!(html.contains("<h2 id=\"c1\">Connection 1: RC 198.51.100.10 QP 0x18 &lt;-&gt; "), "{html}");
    on("analyze", "rxe/rc-write-ce-marked.pcap.gz", &["--html", text(&file)]);
    let html = fs::read_to_string(&file).unwrap();
    assert!(html.contains(">ECN marks</text>") && !html.contains(">CNPs</text>"), "{html}");
}

/// A capture that grows, as tcpdump writes it: also in the middle of a packet.
#[test]
fn a_growing_file_is_analysed_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("growing.pcapng");
    let whole = fs::read(capture("rc-loss.pcapng")).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let mut running = Running::start(common::roce().args(["analyze", "--follow", text(&file)]));
    let first = running.wait_for_line("RoCE packets in");
    assert!(!first.contains("(17 "), "{first}");
    fs::write(&file, &whole).unwrap();
    running.wait_for_line("(17 RoCE packets in");
    running.interrupt();
    let finished = running.finish(20);
    assert!(!finished.stderr.contains("cut"), "{finished:?}");
    assert!(finished.code.is_some(), "{finished:?}");
    let missing = run(&["analyze", "--follow", "-"]);
    assert!(missing.stderr.contains("--follow needs a file"), "{missing:?}");
}

#[test]
fn the_page_has_the_ladder_of_the_capture() {
    let page = fs::read_to_string(capture("../docs/how-to/analyze.md")).unwrap();
    let printed = on("ladder", "rc-loss.pcapng", &[]).stdout;
    assert!(page.contains(printed.trim_end()), "docs/how-to/analyze.md differs from:\n{printed}");
}

/// Writes files of counters; returns the arguments of `--counters`.
fn counters(folder: &Path, before: &str, after: &str) -> [String; 2] {
    [("before.txt", before), ("after.txt", after)].map(|(name, text)| {
        fs::write(folder.join(name), text).unwrap();
        text_of(folder, name)
    })
}

fn text_of(folder: &Path, name: &str) -> String {
    text(&folder.join(name)).to_owned()
}

#[test]
fn counters_of_a_nic_are_judged_beside_the_packets() {
    let folder = tempfile::tempdir().unwrap();
    // In rc-loss, 192.0.2.2 misses one request, so it drops five and sends one NAK.
    let zero = "link mlx5_0/1 out_of_sequence 0 packet_seq_err 0 duplicate_request 0";
    for (counted, result, words) in [
        ("link mlx5_0/1 out_of_sequence 5 packet_seq_err 0 duplicate_request 0", "pass", "3 counters agree"),
        (
            "link mlx5_0/1 out_of_sequence 0 packet_seq_err 0 duplicate_request 0",
            "fail",
            "out_of_sequence is stuck",
        ),
        (
            "link mlx5_0/1 out_of_sequence 6 packet_seq_err 0 duplicate_request 0",
            "fail",
            "grew by 6, but the",
        ),
    ] {
        let [before, after] = counters(folder.path(), zero, counted);
        let options = ["--only", "counters", "--counters", &before, &after, "--counters-of", "192.0.2.2"];
        let document = json("rc-loss.pcapng", &options);
        let verdict = &document["verdicts"][0];
        assert_eq!(
            (&verdict["key"], &verdict["outcome"]),
            (&"counters".into(), &result.into()),
            "{document}"
        );
        let summary = verdict["summary"].as_str().unwrap();
        assert!(summary.contains(words) && summary.contains("192.0.2.2"), "{summary}");
        assert_eq!(document["devices"][0]["device"], "mlx5_0/1");
        let finished = on("analyze", "rc-loss.pcapng", &options);
        assert_eq!(finished.success, result == "pass", "{finished:?}");
        // The changes are explained below the connections.
        let is_explained = finished.stdout.contains("cause: a request before them was lost");
        assert_eq!(is_explained, !counted.contains("out_of_sequence 0"), "{finished:?}");
    }
    // The end that received the NAK is found by its counters.
    let [before, after] = counters(folder.path(), "link rxe0/1 rcvd_seq_err 3", "link rxe0/1 rcvd_seq_err 4");
    let finished = on("analyze", "rc-loss.pcapng", &["--only", "counters", "--counters", &before, &after]);
    assert!(finished.stdout.contains("rxe0/1 beside the packets of 192.0.2.1"), "{finished:?}");
    let finished = on("analyze", "rc-loss.pcapng", &["--counters", &before, "/no/such/file"]);
    assert!(!finished.success && finished.stderr.contains("/no/such/file"), "{finished:?}");
    let finished = on("analyze", "rc-loss.pcapng", &["--counters-of", "192.0.2.1"]);
    assert!(finished.stderr.contains("--counters <BEFORE> <AFTER>"), "{finished:?}");
}

#[test]
fn the_rate_of_the_line_decides_how_long_pauses_take() {
    let of =
        |rate: &str| json("pause.pcapng", &["--only", "pfc", "--line-rate", rate])["verdicts"].to_string();
    assert_ne!(of("1G"), of("400G"));
    let finished = on("analyze", "pause.pcapng", &["--line-rate", "fast"]);
    assert!(!finished.success && finished.stderr.contains("fast"), "{finished:?}");
}

/// The report names a capture file that has no packet of a connection.
#[test]
fn a_file_without_a_connection_is_named() {
    let [sender, receiver] = [capture("rc-loss.pcapng"), capture("pause.pcapng")];
    let finished = run(&["analyze", &sender, &receiver, "--only", "naks"]);
    let text = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("none of its packets is in") && text.contains("pause.pcapng: the network"),
        "{text}"
    );
    // It was answered, so the capture at the other place is a different one.
    assert!(text.contains("look first at connection 1: 1 packet lost"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let unanswered = folder.path().join("unanswered.pcapng");
    write_capture(&unanswered, &[frame(Opcode::RC_RDMA_WRITE_ONLY, Psn::new(1), b"lost")]);
    let finished = run(&["analyze", text_of(folder.path(), "unanswered.pcapng").as_str(), &receiver]);
    let text = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("look first at connection 1: none of its packets is in"), "{text}");
    let alone = on("analyze", "rc-loss.pcapng", &["--only", "naks"]);
    assert!(!alone.stdout.contains("none of its packets"), "{alone:?}");
}
