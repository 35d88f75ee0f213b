//! The two hosts of the page: what a loss, a refusal or a missing receive does to both ends, and what the
//! page says about it.

use std::io::Cursor;

use roce_analysis::Collector;
use roce_analysis::ladder::ladder;
use roce_capture::CaptureReader;
use roce_document::packet::analysable;
use roce_packet::ROCE_UDP_PORT;
use roce_web::hosts::Hosts;
use serde_json::{Value, json};

/// The side that posts the work in most tests, and its peer.
const REQUESTER: usize = 0;
const RESPONDER: usize = 1;

/// Both hosts, with what the tests ask them.
struct Bench(Hosts);

impl Bench {
    fn new(settings: &Value) -> Self {
        Self(Hosts::new(&settings.to_string()).expect("the settings are right"))
    }

    fn state(&self) -> Value {
        serde_json::from_str(&self.0.state()).expect("the state is JSON")
    }

    fn post(&mut self, op: &str, bytes: usize) {
        self.post_with(&json!({ "side": REQUESTER, "op": op, "bytes": bytes }));
    }

    fn post_with(&mut self, request: &Value) {
        self.0.post(&request.to_string()).expect("the request is right");
    }

    /// Steps until `count` packets of this side were on the link, and returns the number of the last one.
    fn sent(&mut self, side: usize, count: usize) -> usize {
        let mut seen: Vec<u64> = Vec::new();
        loop {
            for packet in self.state()["wire"].as_array().expect("a list") {
                let id = packet["id"].as_u64().expect("a number");
                if packet["from"] == side && !seen.contains(&id) {
                    seen.push(id);
                }
            }
            if seen.len() >= count {
                return seen[count - 1] as usize;
            }
            assert!(self.0.step(), "side {side} sends {} packets", seen.len());
        }
    }

    /// Carries out an action on the packet with this place among those that the side sends.
    fn act(&mut self, side: usize, count: usize, action: &str) {
        let id = self.sent(side, count);
        self.0.act(id, action, 0.0).expect("the packet is on the link");
    }

    /// Runs until nothing is left to do.
    fn run(&mut self) {
        self.0.run();
        assert_eq!(self.state()["idle"], true, "{:#}", self.state());
    }

    /// Returns the completions of a side: the number of the request, and its status.
    fn ended(&self, side: usize) -> Vec<(u64, String)> {
        let state = self.state();
        let completions = state["hosts"][side]["completions"].as_array().expect("a list");
        let ended = completions.iter().map(|one| {
            assert_ne!(one["right"], false, "memory is wrong: {one}");
            assert!(!one["rule"].as_str().expect("a text").is_empty());
            (one["wr_id"].as_u64().expect("a number"), one["status"].as_str().expect("a text").to_owned())
        });
        ended.collect()
    }

    /// Returns the kinds in the log. A kind that follows itself is followed by its number instead.
    fn kinds(&self) -> String {
        let mut runs: Vec<(String, usize)> = Vec::new();
        for entry in self.state()["log"].as_array().expect("a list") {
            let kind = entry["kind"].as_str().expect("a text");
            match runs.last_mut() {
                Some((last, count)) if last == kind => *count += 1,
                _ => runs.push((kind.to_owned(), 1)),
            }
        }
        let words = runs.into_iter().map(|(kind, count)| match count {
            1 => kind,
            _ => format!("{kind} {count}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Returns the sentences of a kind in the log.
    fn said(&self, kind: &str) -> Vec<String> {
        let state = self.state();
        let log = state["log"].as_array().expect("a list").iter();
        let said = log.filter(|entry| entry["kind"] == kind);
        said.map(|entry| entry["text"].as_str().expect("a text").to_owned()).collect()
    }

    /// Returns the ladder that `roce ladder` draws of the capture, without numbers, times and headings.
    fn arrows(&self) -> Vec<String> {
        let text = self.ladder_text();
        text.lines().skip(1).map(|line| line.get(18..).unwrap_or_default().trim_start().to_owned()).collect()
    }

    fn ladder_text(&self) -> String {
        let mut reader = CaptureReader::new(Cursor::new(self.0.pcap()), "hosts").expect("a capture");
        let mut collector = Collector::new(ROCE_UDP_PORT).with_captures(1);
        while let Some(packet) = reader.next_packet() {
            let packet = packet.expect("a whole packet");
            collector.add(&analysable(&packet, 0).expect("an Ethernet frame"));
        }
        let analysis = collector.analyze();
        let [connection] = &analysis.connections[..] else { panic!("{:#?}", analysis.connections) };
        ladder(&analysis, connection, 60).to_text()
    }

    fn json_ladder(&self) -> Value {
        serde_json::from_str(&self.0.ladder(60)).expect("the ladder is JSON")
    }

    fn host(&self, side: usize) -> Value {
        self.state()["hosts"][side].take()
    }
}

fn good(wr_id: u64) -> (u64, String) {
    (wr_id, "SUCCESS".to_owned())
}

fn bad(wr_id: u64, status: &str) -> (u64, String) {
    (wr_id, status.to_owned())
}

#[test]
fn a_write_without_losses() {
    let mut bench = Bench::new(&json!({}));
    assert_eq!(bench.state()["idle"], true);
    bench.post("write", 2_500);
    assert_eq!(bench.state()["idle"], false);
    let queue = bench.host(REQUESTER)["send_queue"][0].take();
    assert_eq!(
        queue,
        json!({ "wr_id": 1, "op": "write", "bytes": 2_500, "first_psn": 0, "last_psn": 2, "state": "queued" })
    );
    bench.run();
    assert_eq!(bench.kinds(), "post, send 3, arrive 3, send, arrive, complete");
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    let host = bench.host(REQUESTER);
    let facts =
        ["state", "next_psn", "unacked_psn", "msn", "retries", "timer_us"].map(|key| host[key].clone());
    assert_eq!(facts, [json!("RTS"), json!(3), json!(3), json!(0), json!(7), Value::Null]);
    assert_eq!(host["send_queue"][0]["state"], "done");
    assert_eq!([&bench.host(RESPONDER)["expected_psn"], &bench.host(RESPONDER)["msn"]], [3, 1]);
    let expected = [
        "WRITE first 0, 2,500 B |------------------->|",
        "WRITE middle 1 |------------------->|",
        "WRITE last 2 |------------------->|",
        "|<-------------------| ACK 2",
    ];
    assert_eq!(bench.arrows(), expected);
    assert!(!bench.0.step(), "nothing is left");
}

/// ```text
/// A  WRITE 0 ->
///    WRITE 1 ---x
///    WRITE 2 ->        gap
///    WRITE 3 ->        dropped
///    WRITE 4 ->        dropped
///            <- NAK 1
///    WRITE 1 to 4 ->
/// ```
#[test]
fn a_lost_packet_of_a_write_is_sent_again_after_a_nak() {
    let mut bench = Bench::new(&json!({}));
    bench.post("write", 5_000);
    bench.act(REQUESTER, 2, "drop");
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    assert_eq!(
        bench.kinds(),
        "post, send 2, drop, send 3, arrive 2, nak, drop 2, nak, send 4, arrive, send, arrive 3, send, \
         arrive 2, complete"
    );
    let expected = [
        "WRITE first 0, 5,000 B |------------------->|",
        "WRITE middle 1, lost |---------x          |",
        "WRITE middle 2 |------------------->|",
        "WRITE middle 3 |------------------->|",
        "WRITE last 4 |------------------->|",
        "|<-------------------| NAK 1, PSN sequence error",
        "WRITE middle 1, again |===================>|",
        "WRITE middle 2, again |===================>|",
        "WRITE middle 3, again |===================>|",
        "WRITE last 4, again |===================>|",
        "|<-------------------| ACK 1",
        "|<-------------------| ACK 4",
    ];
    assert_eq!(bench.arrows(), expected);
    let [sent, arrived] = &bench.said("nak")[..] else { panic!("{:?}", bench.said("nak")) };
    assert_eq!(
        sent,
        "NAK 1, PSN sequence error leaves: PSN 1 is missing, and there is one NAK for each gap."
    );
    let expected = "NAK 1, PSN sequence error arrives: PSN 1 is missing, so the requester sends everything again \
                    from there; 6 of 7 retries are left.";
    assert_eq!(arrived, expected);
}

/// Nothing follows the lost packet, so the responder sees no gap.
#[test]
fn a_lost_last_packet_is_sent_again_after_the_timeout() {
    let mut bench = Bench::new(&json!({ "timeout": 4 }));
    bench.post("write", 5_000);
    bench.act(REQUESTER, 5, "drop");
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    assert!(bench.kinds().contains("timeout, send"), "{}", bench.kinds());
    let said = ["No answer came in time, so the requester sends again from PSN 0; 6 of 7 retries are left."];
    assert_eq!(bench.said("timeout"), said);
    let arrows = bench.arrows();
    assert!(arrows[5].contains(":      timeout       :"), "{arrows:#?}");
    assert_eq!(arrows[4], "WRITE last 4, lost |---------x          |");
    let ladder = bench.json_ladder();
    let waits: Vec<&Value> = rows(&ladder, "timeout");
    let [wait] = waits[..] else { panic!("{ladder:#}") };
    assert_eq!(wait["side"], 0);
    // The timer of 65.5 us starts with the last packet, and the ladder counts from the first one.
    assert!(wait["waited_us"].as_f64().is_some_and(|us| (60.0..70.0).contains(&us)), "{wait}");
}

fn rows<'a>(ladder: &'a Value, kind: &str) -> Vec<&'a Value> {
    let rows = ladder["rows"].as_array().expect("a list");
    rows.iter().filter(|row| row["kind"] == kind).collect()
}

#[test]
fn a_lost_read_response_is_requested_again() {
    let mut bench = Bench::new(&json!({}));
    bench.post("read", 4_096);
    bench.act(RESPONDER, 2, "drop");
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    assert!(
        bench.kinds().starts_with("post, send, arrive, send 2, drop, send 2, arrive 2"),
        "{}",
        bench.kinds()
    );
    let again = "READ 1 leaves the requester again, because the response with PSN 1 is missing.";
    assert!(bench.said("send").iter().any(|text| text == again), "{:#?}", bench.said("send"));
    let arrows = bench.arrows();
    assert_eq!(arrows[0], "READ 0, 4,096 B |------------------->|");
    assert_eq!(arrows[2], "|          x---------| READ data middle 1, lost");
    assert!(arrows.contains(&"READ 1, 3,072 B, again |===================>|".to_owned()), "{arrows:#?}");
}

#[test]
fn a_send_waits_for_a_receive() {
    let mut bench = Bench::new(&json!({ "rnr_retry": 2, "min_rnr_timer": 1 }));
    bench.post("send", 100);
    while bench.said("rnr").len() < 2 {
        assert!(bench.0.step());
    }
    assert_eq!(bench.host(REQUESTER)["rnr_retries"], 1);
    assert!(bench.host(REQUESTER)["timer_us"].is_number(), "the pause is shown");
    bench.0.post_recv(RESPONDER, 200).expect("there is room");
    assert_eq!(bench.host(RESPONDER)["receives"], 1);
    bench.run();
    assert_eq!([bench.ended(REQUESTER), bench.ended(RESPONDER)], [[good(1)], [good(1)]]);
    assert_eq!(
        bench.kinds(),
        "post, send, arrive, rnr 2, post, rnr, send, arrive, complete, send, arrive, complete"
    );
    let expected = [
        "SEND 0, 100 B |------------------->|",
        "|<-------------------| RNR NAK 0, wait 10.0 us",
        "SEND 0, 100 B, again |===================>|",
        "|<-------------------| ACK 0",
    ];
    assert_eq!(bench.arrows(), expected);
}

#[test]
fn without_a_receive_the_rnr_retries_run_out() {
    let mut bench = Bench::new(&json!({ "rnr_retry": 2, "min_rnr_timer": 1 }));
    bench.post("send", 100);
    bench.post("send_imm", 100);
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [bad(1, "RNR_RETRY_EXC_ERR"), bad(2, "WR_FLUSH_ERR")]);
    assert_eq!(bench.host(REQUESTER)["state"], "ERR");
    let naks = bench.arrows().iter().filter(|arrow| arrow.contains("RNR NAK")).count();
    assert_eq!(naks, 3, "one NAK and two retries");
    let queue = bench.host(REQUESTER)["send_queue"].take();
    assert_eq!([&queue[0]["state"], &queue[1]["state"]], ["failed", "flushed"]);
}

/// With `rnr_retry` 7 the retries never end, so a run stops until a person posts a receive.
#[test]
fn endless_rnr_retries_do_not_block_a_run() {
    let mut bench = Bench::new(&json!({ "rnr_retry": 7, "min_rnr_timer": 1 }));
    bench.post("write_imm", 100);
    for _ in 0..3 {
        bench.0.run();
        assert_eq!(bench.state()["idle"], false);
        assert!(bench.said("rnr").last().is_some_and(|text| text.starts_with("The run stops")));
    }
    bench.0.post_recv(RESPONDER, 0).expect("there is room");
    bench.run();
    assert_eq!([bench.ended(REQUESTER), bench.ended(RESPONDER)], [[good(1)], [good(1)]]);
}

#[test]
fn a_wrong_key_fails_the_request_and_flushes_the_others() {
    let mut bench = Bench::new(&json!({}));
    bench.0.post_recv(RESPONDER, 50).expect("there is room");
    bench.post_with(&json!({ "side": 0, "op": "write", "bytes": 3_000, "bad_key": true }));
    bench.post("read", 8);
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [bad(1, "REM_ACCESS_ERR"), bad(2, "WR_FLUSH_ERR")]);
    assert_eq!(bench.ended(RESPONDER), [bad(1, "WR_FLUSH_ERR")]);
    assert_eq!([&bench.host(REQUESTER)["state"], &bench.host(RESPONDER)["state"]], ["ERR", "ERR"]);
    let completion = bench.host(REQUESTER)["completions"][0].take();
    assert_eq!(completion["why"], "NAK 0x62 (remote access error) for PSN 0");
    assert_eq!(completion["rule"], "10.6");
    let naks = bench.said("nak");
    assert!(naks[0].contains("the key is unknown or was revoked"), "{naks:#?}");
    assert!(bench.arrows().contains(&"|<-------------------| NAK 0, remote access error".to_owned()));
    // A request that is posted now is flushed at once.
    bench.post("send", 10);
    assert_eq!(bench.ended(REQUESTER)[2], bad(3, "WR_FLUSH_ERR"));
    let queue = bench.host(REQUESTER)["send_queue"][2].take();
    assert_eq!([&queue["state"], &queue["first_psn"]], [&json!("flushed"), &Value::Null]);
}

#[test]
fn ranges_and_rights_are_checked() {
    for op in ["write", "write_imm", "read", "fetch_add", "cmp_swap"] {
        let mut bench = Bench::new(&json!({}));
        bench.post_with(&json!({ "side": 1, "op": op, "bytes": 100, "past_end": true }));
        bench.run();
        assert_eq!(bench.ended(RESPONDER), [bad(1, "REM_ACCESS_ERR")], "{op}");
        assert!(bench.ended(REQUESTER).is_empty(), "{op}");
    }
    let mut bench = Bench::new(&json!({ "write_key_ok": false }));
    bench.post("read", 100);
    bench.run();
    bench.post("write", 100);
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1), bad(2, "REM_ACCESS_ERR")]);
    let refused = bench.said("arrive").into_iter().any(|text| text.contains("does not grant this access"));
    assert!(refused, "{:#?}", bench.said("arrive"));
}

#[test]
fn atomic_operations_return_the_value_before() {
    let mut bench = Bench::new(&json!({}));
    bench.post("fetch_add", 0);
    // The answer is lost, and the operation must not be executed twice.
    bench.act(RESPONDER, 1, "drop");
    bench.post("cmp_swap", 8);
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1), good(2)]);
    assert!(bench.said("arrive").iter().any(|text| text.contains("executed before")));
}

#[test]
fn a_duplicate_is_not_executed_again() {
    let mut bench = Bench::new(&json!({}));
    bench.post("write", 3_000);
    bench.act(REQUESTER, 2, "duplicate");
    let actions = bench.state()["wire"].take();
    let twice = actions.as_array().expect("a list").iter().filter(|packet| packet["action"] == "duplicate");
    assert_eq!(twice.count(), 2);
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    let duplicates: Vec<String> =
        bench.said("arrive").into_iter().filter(|text| text.contains("before")).collect();
    let text =
        "WRITE middle 1 arrives, but its PSN was executed before, so the responder only answers again.";
    assert_eq!(duplicates, [text]);
    assert!(
        bench.arrows().contains(&"WRITE middle 1, twice |------------------->|".to_owned()),
        "{}",
        bench.ladder_text()
    );
    let ladder = bench.json_ladder();
    assert!(rows(&ladder, "packet").iter().any(|row| row["label"] == "WRITE middle 1, twice"), "{ladder:#}");
}

#[test]
fn a_corrupted_packet_is_dropped_and_counted() {
    let mut bench = Bench::new(&json!({}));
    bench.post("write", 3_000);
    bench.act(REQUESTER, 2, "corrupt");
    let error = bench.0.act(2, "corrupt", 0.0).expect_err("a second change would repair it");
    assert_eq!(error, "packet 2 is corrupted already");
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    let text = "WRITE middle 1 arrives, but the responder drops it and counts rx_icrc_encapsulated: its ICRC \
                is wrong, so a bit has changed.";
    assert_eq!(bench.said("drop"), [text]);
    assert_eq!(bench.arrows()[1], "WRITE middle 1, broken |------------------->|");
    assert_eq!(bench.json_ladder()["rows"][1]["icrc_bad"], true);
    // The frame contains the wrong bit: the page finds a wrong ICRC in it.
    let frame = bench.0.frame(2).expect("it was sent");
    assert!(frame.starts_with("0200c6120002"), "{frame}");
    assert_eq!(frame.len(), 2 * (14 + 20 + 8 + 12 + 1_024 + 4));
}

#[test]
fn a_silent_peer_fails_the_request() {
    let mut bench = Bench::new(&json!({ "timeout": 2, "retry_cnt": 2 }));
    bench.post("write", 100);
    bench.post("write", 100);
    while bench.host(REQUESTER)["state"] != "ERR" {
        assert!(bench.0.step());
        for packet in bench.state()["wire"].as_array().expect("a list") {
            let id = packet["id"].as_u64().expect("a number") as usize;
            bench.0.act(id, "drop", 0.0).expect("it is on the link");
        }
    }
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [bad(1, "RETRY_EXC_ERR"), bad(2, "WR_FLUSH_ERR")]);
    let timeouts = bench.said("timeout");
    assert_eq!(timeouts.len(), 3, "{timeouts:#?}");
    assert!(
        timeouts[2].starts_with("No answer came, and no retry is left: 3 timeouts of 0.01 ms"),
        "{timeouts:#?}"
    );
    let completion = bench.host(REQUESTER)["completions"][0].take();
    assert_eq!(completion["rule"], "9.7.6.1.3");
    assert_eq!(rows(&bench.json_ladder(), "timeout").len(), 2);
}

#[test]
fn a_marked_packet_is_answered_with_a_notification() {
    let mut bench = Bench::new(&json!({}));
    bench.post("write", 2_000);
    bench.act(REQUESTER, 1, "mark");
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    assert!(bench.arrows().contains(&"|<-------------------| CNP".to_owned()), "{:#?}", bench.arrows());
    assert!(bench.arrows()[0].contains("CE"), "{:#?}", bench.arrows());
    let notified = "A congestion notification leaves the responder, because a marked packet has arrived.";
    assert!(bench.said("send").iter().any(|text| text == notified), "{:#?}", bench.said("send"));
}

#[test]
fn packets_are_delayed_and_delivered_now() {
    let mut bench = Bench::new(&json!({ "timeout": 0 }));
    bench.post("write", 3_000);
    let last = bench.sent(REQUESTER, 3);
    bench.0.act(last - 2, "delay", 100.0).expect("it is on the link");
    let now = bench.state()["now_us"].take();
    bench.0.act(last, "deliver now", 0.0).expect("it is on the link");
    assert_eq!(bench.state()["now_us"], now, "no time has passed");
    assert!(bench.said("arrive")[0].contains("WRITE last 2 arrives, but PSN 0 is expected"));
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    let error = bench.0.act(last, "drop", 0.0).expect_err("it has arrived");
    assert_eq!(
        error,
        format!("packet {last} is not on the link; it has arrived, was dropped, or never left")
    );
}

#[test]
fn selective_repeat_sends_one_packet_again() {
    let mut bench = Bench::new(&json!({ "loss_recovery": "selective-repeat" }));
    bench.post("write", 5_000);
    bench.act(REQUESTER, 2, "drop");
    bench.run();
    assert_eq!(bench.ended(REQUESTER), [good(1)]);
    let again: Vec<String> = bench.said("send").into_iter().filter(|text| text.contains("again")).collect();
    assert_eq!(again, ["WRITE middle 1 leaves the requester again, because PSN 1 was missing."]);
    let reports = bench.said("nak");
    assert_eq!(reports[0], "A report leaves: PSN 2 has arrived, and PSN 1 is missing.");
    assert!(bench.said("arrive").iter().any(|text| text.ends_with("is kept until the gap is closed.")));
}

#[test]
fn a_ladder_without_packets_names_both_ends() {
    let bench = Bench::new(&json!({}));
    let ladder = bench.json_ladder();
    assert_eq!(ladder["rows"], json!([]));
    let host = bench.host(RESPONDER);
    let (address, qpn) = (host["address"].as_str().expect("a text"), host["qpn"].as_str().expect("a text"));
    assert_eq!(ladder["ends"][1], format!("{address} QP {qpn}"));
    assert!(ladder["svg"].as_str().expect("a text").starts_with("<svg"));
}

#[test]
fn dropped_packets_have_a_comment_in_the_capture() {
    let mut bench = Bench::new(&json!({}));
    bench.post("write", 2_000);
    bench.act(REQUESTER, 1, "drop");
    bench.run();
    let mut reader = CaptureReader::new(Cursor::new(bench.0.pcap()), "hosts").expect("a capture");
    let first = reader.next_packet().expect("a packet").expect("a whole packet");
    assert_eq!(first.comment, Some("dropped on the link"));
    let second = reader.next_packet().expect("a packet").expect("a whole packet");
    assert_eq!(second.comment, None);
}

#[test]
fn wrong_settings_are_refused_in_words() {
    let error = |settings: Value| Hosts::new(&settings.to_string()).expect_err("it is wrong");
    assert_eq!(error(json!({ "mtu": 1_500 })), "mtu is 1500; use 256, 512, 1024, 2048 or 4096 bytes");
    assert_eq!(error(json!({ "timeout": 32 })), "timeout is 32; use 0 to 31");
    assert_eq!(error(json!({ "retry_cnt": 8 })), "retry_cnt is 8; use 0 to 7");
    assert_eq!(error(json!({ "rnr_retry": 900 })), "rnr_retry is 900; use 0 to 7");
    assert_eq!(error(json!({ "min_rnr_timer": 32 })), "min_rnr_timer is 32; use 0 to 31");
    assert_eq!(error(json!({ "max_rd_atomic": 129 })), "max_rd_atomic is 129; use 0 to 128");
    assert_eq!(error(json!({ "link_us": -1.0 })), "link_us is -1; use 0 to 1000000");
    assert!(error(json!({ "loss_recovery": "hope" })).starts_with("loss_recovery is not valid: there is no"));
    assert!(error(json!({ "speed": 1 })).starts_with("the settings are not valid: unknown field `speed`"));
    assert!(Hosts::new("[").is_err());
}

#[test]
fn wrong_requests_are_refused_in_words() {
    let mut hosts = Hosts::new("{}").expect("the settings are right");
    let mut error = |json: &str| hosts.post(json).expect_err("it is wrong");
    assert!(error(r#"{ "side": 2, "op": "send" }"#).starts_with("there is no host 2"));
    assert!(error(r#"{ "side": 0, "op": "sing" }"#).contains("unknown variant `sing`"));
    assert!(error(r#"{ "side": 0, "op": "send", "bad_key": true }"#).starts_with("a SEND names no memory"));
    let long = error(r#"{ "side": 0, "op": "write", "bytes": 1048577 }"#);
    assert_eq!(long, "1,048,577 bytes are too many; use at most 1,048,576");
    assert!(error("").starts_with("the request is not valid"));
    assert!(hosts.post_recv(7, 1).is_err());
    assert!(hosts.post_recv(0, usize::MAX).is_err());
    assert!(hosts.act(1, "drop", 0.0).is_err());
    assert!(hosts.frame(1).is_err());
    for _ in 0..256 {
        hosts.post(r#"{ "side": 0, "op": "write", "bytes": 1 }"#).expect("there is room");
    }
    let full = hosts.post(r#"{ "side": 0, "op": "write", "bytes": 1 }"#).expect_err("the queue is full");
    assert!(full.starts_with("the queue is full with 256 work requests"), "{full}");
    assert!(hosts.step());
    let error = hosts.act(1, "vanish", 0.0).expect_err("it is wrong");
    assert!(error.starts_with("there is no action \"vanish\""), "{error}");
    for delay in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(hosts.act(1, "delay", delay).is_err(), "{delay}");
    }
}

/// Memory is used again when all requests that used it are complete.
#[test]
fn memory_does_not_run_out() {
    let mut bench = Bench::new(&json!({ "mtu": 4_096 }));
    for round in 1..=12 {
        bench.post("write", 1 << 20);
        bench.run();
        assert_eq!(bench.ended(REQUESTER).last(), Some(&good(round)));
    }
    let mut hosts = Hosts::new("{}").expect("the settings are right");
    let long = r#"{ "side": 0, "op": "read", "bytes": 1048576 }"#;
    let error = (0..=8).find_map(|_| hosts.post(long).err()).expect("8 MiB are full");
    assert_eq!(error, "the memory of the requester is in use; step until its requests are complete");
}

/// A generator of numbers that looks random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ value >> 31) % limit
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Does something with the hosts; most of it is accepted.
fn disturb(bench: &mut Bench, numbers: &mut Numbers) {
    const OPS: [&str; 7] = ["send", "send_imm", "write", "write_imm", "read", "fetch_add", "cmp_swap"];
    const ACTIONS: [&str; 6] = ["drop", "delay", "duplicate", "mark", "corrupt", "deliver now"];
    match numbers.below(10) {
        0 | 1 => {
            let (side, op) = (numbers.below(2), numbers.of(&OPS));
            let is_remote = !op.starts_with("send");
            let request = json!({
                "side": side,
                "op": op,
                "bytes": numbers.below(3_000),
                "bad_key": is_remote && numbers.below(30) == 0,
                "past_end": is_remote && numbers.below(30) == 0,
            });
            bench.0.post(&request.to_string()).expect("there is room");
        }
        2 => {
            let (side, bytes) = (numbers.below(2) as usize, numbers.of(&[0, 100, 3_000, 3_000, 3_000]));
            bench.0.post_recv(side, bytes).expect("there is room");
        }
        3 | 4 => {
            let wire = bench.state()["wire"].take();
            let wire = wire.as_array().expect("a list");
            if wire.is_empty() {
                return;
            }
            let id = wire[numbers.below(wire.len() as u64) as usize]["id"].as_u64().expect("a number");
            // A packet is corrupted once at most.
            let _ = bench.0.act(id as usize, numbers.of(&ACTIONS), numbers.below(200) as f64 + 0.5);
        }
        _ => {
            for _ in 0..numbers.below(12) {
                bench.0.step();
            }
        }
    }
}

#[test]
fn no_sequence_of_actions_ends_with_wrong_bytes_or_without_an_end() {
    for seed in 0..120 {
        let mut numbers = Numbers(seed);
        let settings = json!({
            "seed": seed,
            "mtu": numbers.of(&[256, 512, 1024]),
            "timeout": 1 + numbers.below(7),
            "retry_cnt": numbers.below(8),
            "rnr_retry": numbers.below(8),
            "min_rnr_timer": 1 + numbers.below(4),
            "max_rd_atomic": 1 + numbers.below(4),
            "link_us": numbers.below(20),
            "packet_us": numbers.of(&[0.0, 0.5]),
            "loss_recovery": numbers.of(&["go-back-n", "go-back-n", "selective-repeat"]),
            "write_key_ok": numbers.below(10) > 0,
        });
        let mut bench = Bench::new(&settings);
        for _ in 0..60 {
            disturb(&mut bench, &mut numbers);
        }
        bench.0.run();
        // Requests that wait for a receive without end.
        for _ in 0..100 {
            if bench.state()["idle"] == true {
                break;
            }
            for side in [REQUESTER, RESPONDER] {
                bench.0.post_recv(side, 3_000).expect("there is room");
            }
            bench.0.run();
        }
        bench.run();
        for side in [REQUESTER, RESPONDER] {
            let host = bench.host(side);
            bench.ended(side);
            for request in host["send_queue"].as_array().expect("a list") {
                let state = request["state"].as_str().expect("a text");
                assert!(["done", "failed", "flushed"].contains(&state), "seed {seed}: {request}");
            }
        }
        assert!(bench.json_ladder()["svg"].is_string());
        assert!(!bench.0.pcap().is_empty());
        for entry in bench.state()["log"].as_array().expect("a list") {
            let (text, rule) =
                (entry["text"].as_str().expect("a text"), entry["rule"].as_str().expect("a text"));
            assert!(text.ends_with('.') && !rule.is_empty(), "seed {seed}: {entry}");
            if let Some(packet) = entry["packet"].as_u64() {
                assert!(bench.0.frame(packet as usize).is_ok());
            }
        }
    }
}
