//! `roce dissect` and `roce explain` as users run them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{captures_in, has_program, kernel_captures, shared, skip_unless};
use roce_capture::{Direction, PcapWriter};
use roce_packet::{Frame, FrameHeaders, MacAddr, Telemetry, TelemetryHop};
use serde_json::Value;

fn roce(args: &[&str]) -> Output {
    roce_with_input(args, b"")
}

fn roce_with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_roce"))
        .args(args)
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The child may end without reading everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(!stderr(&output).contains("panicked"), "{args:?}: {}", stderr(&output));
    output
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

/// Returns the objects of `roce dissect --json`.
fn json(args: &[&str]) -> Vec<Value> {
    let output = roce(&[&["dissect", "--json"], args].concat());
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the captures of kernels, and those from other sources if available.
fn captures() -> Vec<PathBuf> {
    let others = shared("pcaps");
    skip_unless(others.is_some(), "without the captures of other people at ../shared/pcaps");
    let mut captures: Vec<_> = others
        .into_iter()
        .chain([kernel_captures()])
        .flat_map(|folder| captures_in(&folder, &["pcap"]))
        .collect();
    captures.sort();
    captures
}

#[test]
fn every_packet_of_every_capture_is_whole_and_has_a_good_icrc() {
    for capture in captures() {
        let output = roce(&["dissect", text(&capture)]);
        assert!(output.status.success());
        let summary = stderr(&output);
        assert!(summary.contains(" 0 bad, 0 not checked"), "{}: {summary}", capture.display());
        assert!(!summary.contains("malformed"), "{}: {summary}", capture.display());
        let packets: usize = summary.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(stdout(&output).lines().count(), packets + 1, "one line a packet below the heading");
    }
}

/// Returns one row of values per packet, empty for fields that tshark does not show.
fn tshark(capture: &Path, keys: &BTreeSet<&str>) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    // tshark decodes short payloads as the RPC protocol of file servers and then stops.
    command.args(["--disable-protocol", "rpcordma"]);
    command.args(["-n", "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", "-r"]).arg(capture);
    for key in keys {
        command.args(["-e", key]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

/// Regression: the help text inverted the meaning of a starting PSN: the first one that the sender of the
/// message wants to receive. In captures of two kernels, each side begins with the PSN of the other side.
#[test]
fn the_starting_psn_of_a_message_is_the_first_that_its_sender_receives() {
    let folder = kernel_captures();
    for name in ["cm-rping.pcap", "cm-rstream.pcap.gz", "cm-ucmatose.pcap", "cm-write-bw-R.pcap"] {
        let packets = json(&[text(&folder.join(name))]);
        for (message, psn, qp) in [
            ("CM REQ", "infiniband.cm.req.startpsn", "infiniband.cm.req.localqpn"),
            ("CM REP", "infiniband.cm.rep.startpsn", "infiniband.cm.rep.localqpn"),
        ] {
            let sent = packets.iter().find(|packet| packet["roce.cm"] == message).unwrap();
            let is_request = |packet: &&Value| {
                let operation = packet["roce.opcode"].as_str().unwrap();
                packet["ip.dst"] == sent["ip.src"]
                    && packet["infiniband.bth.destqp"] == sent[qp]
                    && !(operation.contains("ACK") || operation.contains("RESPONSE"))
            };
            let first = packets.iter().find(is_request).unwrap();
            assert_eq!(first["infiniband.bth.psn"], sent[psn], "{name}: {message}");
        }
    }

    // The first two packets of the capture are a REQ and a REP.
    let file = std::fs::read(folder.join("cm-rping.pcap")).unwrap();
    let mut rest = &file[24..];
    for _ in 0..2 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = rest[16..].split_at(len);
        rest = behind;
        let digits: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown: Value = serde_json::from_slice(&roce(&["explain", "--json", &digits]).stdout).unwrap();
        let headers = shown["headers"].as_array().unwrap();
        let mut fields = headers.iter().flat_map(|header| header["fields"].as_array().unwrap());
        let field = fields.find(|field| field["name"] == "starting PSN").unwrap();
        assert!(field["meaning"].as_str().unwrap().contains("wants to receive"), "{field}");
    }
}

#[test]
fn filters_choose_what_they_say() {
    let capture = kernel_captures().join("rc-send-rnr.pcap");
    let capture = text(&capture);
    let all = json(&[capture]);
    let count = |condition: &dyn Fn(&Value) -> bool| all.iter().filter(|packet| condition(packet)).count();
    let psn = |packet: &Value| packet["infiniband.bth.psn"].as_u64().unwrap();

    let expected = count(&|packet| packet["roce.opcode"] == "RC_ACKNOWLEDGE");
    assert!(expected > 10);
    for opcode in ["RC_ACKNOWLEDGE", "rc_ack", "ACKNOWLEDGE", "0x11", "17"] {
        assert_eq!(json(&[capture, "--opcode", opcode]).len(), expected, "{opcode}");
    }
    assert_eq!(json(&[capture, "--opcode", "ACK", "--opcode", "SEND"]).len(), all.len());
    assert_eq!(json(&[capture, "--opcode", "WRITE"]).len(), 0);

    let range = 6_209_256..=6_209_260;
    let expected = count(&|packet| range.contains(&psn(packet)));
    assert!(expected >= 5);
    assert_eq!(json(&[capture, "--psn", "6209256..6209260"]).len(), expected);
    assert_eq!(json(&[capture, "--psn", "6209261..6209255"]).len(), all.len() - expected);

    assert_eq!(json(&[capture, "--qp", "0x1e"]).len(), all.len());
    assert_eq!(json(&[capture, "--qp", "1"]).len(), 0);
    assert_eq!(json(&[capture, "--bad-icrc"]).len(), 0);
    assert_eq!(json(&[capture, "--limit", "7"]).len(), 7);
}

/// The filters of headers, time, ICRC and marks, compared with the JSON of all packets.
#[test]
fn filters_of_headers_times_and_marks_choose_what_they_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/rc-loss.pcapng");
    let file = text(&file);
    let all = json(&[file]);
    let count = |condition: &dyn Fn(&Value) -> bool| all.iter().filter(|packet| condition(packet)).count();
    let check = |options: &[&str], condition: &dyn Fn(&Value) -> bool| {
        let found = json(&[&[file], options].concat());
        assert_eq!(found.len(), count(condition), "{options:?}");
        assert!(found.iter().all(condition), "{options:?}");
    };
    let first = all[0]["ip.src"].as_str().unwrap().to_owned();
    check(&["--address", &first], &|packet| packet["ip.src"] == first || packet["ip.dst"] == first);
    check(&["--address", "203.0.113.9"], &|_| false);
    check(&["--address", "203.0.113.9", "--address", "0.0.0.0/0"], &|_| true);
    let dscp = all[0]["ip.dsfield.dscp"].as_u64().unwrap();
    check(&["--dscp", &dscp.to_string()], &|packet| packet["ip.dsfield.dscp"] == dscp);
    for (name, bits) in [("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)] {
        check(&["--ecn", name], &|packet| packet["ip.dsfield.ecn"] == bits);
    }
    for mark in ["gap", "late", "repeat", "jump"] {
        check(&["--mark", mark], &|packet| packet["roce.mark"] == mark);
    }
    assert!(count(&|packet| packet["roce.mark"].is_string()) > 0);
    check(&["--mark", "none"], &|packet| packet["roce.mark"].is_null());
    for state in ["ok", "bad", "unchecked"] {
        check(&["--icrc", state], &|packet| packet["roce.icrc"] == state);
    }
    let nanoseconds = |packet: &Value| -> u64 {
        packet["frame.time_epoch"].as_str().unwrap().replace('.', "").parse().unwrap()
    };
    let since = |packet: &Value| nanoseconds(packet) - nanoseconds(&all[0]);
    let middle = since(&all[all.len() / 2]);
    let text = format!("{}.{:09}", middle / 1_000_000_000, middle % 1_000_000_000);
    check(&["--time", &format!("..{text}")], &|packet| since(packet) <= middle);
    check(&["--time", &format!("{text}..")], &|packet| since(packet) >= middle);
    check(&["--time", &format!("{text}..{text}")], &|packet| since(packet) == middle);
    assert!(middle > 0 && count(&|packet| since(packet) <= middle) < all.len());
}

#[test]
fn chosen_columns_are_printed_and_no_others() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/rc-loss.pcapng");
    let all = json(&[text(&file)]);
    let output = roce(&["dissect", text(&file), "--columns", "psn,source,destination,ecn,number,port"]);
    let lines: Vec<_> = stdout(&output).lines().map(words).collect();
    assert_eq!(lines.len(), all.len() + 1);
    assert_eq!(lines[0].trim_start_matches(['#', ' ']), "PSN source > destination ECN # port");
    assert!(lines[0].starts_with('#'));
    for (line, packet) in lines[1..].iter().zip(&all) {
        let ecn = ["not-ect", "ect1", "ect0", "ce"][packet["ip.dsfield.ecn"].as_u64().unwrap() as usize];
        let value = |key: &str| packet[key].to_string().replace('"', "");
        let expected = [
            value("infiniband.bth.psn"),
            value("ip.src"),
            ">".to_owned(),
            value("ip.dst"),
            ecn.to_owned(),
            value("frame.number"),
            value("udp.srcport"),
        ];
        assert_eq!(*line, expected.join(" "));
    }
    // Packets other than RoCE have a mark for each value that they do not have.
    let arp = bytes("ffffffffffff02000000000108060001080006040001020000000001c612070100000000");
    let output = dissect(&classic(1, &[(36, &arp), (90, &bytes(WRITE))]), &["--columns", "psn,opcode,dscp"]);
    let lines: Vec<_> = stdout(&output).lines().map(words).collect();
    assert_eq!(lines[1..], ["- ARP -", "24301 RC_RDMA_WRITE_ONLY 0"]);
    let output = dissect(&classic(1, &[(90, &bytes(WRITE))]), &["--columns", "length,headers"]);
    assert!(words(stdout(&output)).contains("90 va 0x7f00deadb000 rkey"), "{}", stdout(&output));
}

#[test]
fn wrong_arguments_say_what_would_be_right() {
    for (args, expected) in [
        (&["--columns", "psn,colour"][..], "there is no column \"colour\""),
        (&["--columns", "psn", "--json"], "cannot be used with"),
        (&["--address", "192.0.2.0/33"], "at most 32 bits"),
        (&["--time", "2..1"], "ends before it begins"),
        (&["--dscp", "64"], "64"),
        (&["--ecn", "marked"], "not-ect"),
        (&["--opcode", "SENT"], "try RC_SEND"),
        (&["--opcode", "256"], "0 to 255"),
        (&["--qp", "0x1000000"], "greater than 16777215"),
        (&["--psn", "5.."], "expected a number"),
        (&["--tree", "--json"], "cannot be used with"),
    ] {
        let output = roce(&[&["dissect", "x.pcap"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
}

/// Returns a line with single spaces.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A frame of this project: RDMA WRITE of "hello, world!" from 10.0.0.1 to 10.0.0.2, ICRC at the end.
const WRITE: &str = "02000000000202000000000108004502004c000040004011269d0a0000010a000002c16912b7003800000a70ffff\
                     0000001280005eed00007f00deadb000000012340000000d68656c6c6f2c20776f726c6421000000b74f5e4b";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Returns a classic capture file with microseconds. Packets are given as original length and bytes.
fn classic(link_type: u32, packets: &[(u32, &[u8])]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, link_type] {
        file.extend_from_slice(&u32::to_be_bytes(word));
    }
    for (index, (original_len, bytes)) in (0_u32..).zip(packets) {
        for word in [1_700_000_000, index, bytes.len() as u32, *original_len] {
            file.extend_from_slice(&u32::to_be_bytes(word));
        }
        file.extend_from_slice(bytes);
    }
    file
}

/// Dissects a file with this content.
fn dissect(file: &[u8], args: &[&str]) -> Output {
    roce_with_input(&[&["dissect", "-"], args].concat(), file)
}

#[test]
fn a_file_that_cannot_be_read_fails_with_a_reason() {
    let whole = classic(1, &[(90, &bytes(WRITE)), (90, &bytes(WRITE))]);
    let mut absurd = whole.clone();
    absurd[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_be_bytes());
    // Name, content, packets shown, text of the error.
    let table: [(&str, &[u8], usize, &str); 7] = [
        ("empty", &[], 0, "the file is empty"),
        (
            "wrong magic",
            b"\x7fELF........................",
            0,
            "not a pcap or pcapng file (it begins with 7f 45 4c 46)",
        ),
        ("truncated header", &whole[..20], 0, "20 bytes needed, 16 found"),
        ("truncated record header", &whole[..24 + 106 + 7], 1, "packet 2 at byte 130: the file ends here"),
        ("truncated packet", &whole[..24 + 106 + 60], 1, "packet 2 at byte 130: the file ends here"),
        ("absurd length", &absurd, 0, "packet 1 at byte 24: a packet of 4294967295 bytes"),
        ("link type", &classic(105, &[(20, &[0; 20])]), 1, "link type 105 (IEEE802_11) is not supported"),
    ];
    for (name, file, packets, expected) in table {
        for form in [&[][..], &["--json"], &["--tree"]] {
            let output = dissect(file, form);
            assert_eq!(output.status.code(), Some(1), "{name}");
            assert!(stderr(&output).contains(expected), "{name}: {}", stderr(&output));
            let heading = usize::from(form.is_empty() && packets > 0);
            if form != ["--tree"] {
                assert_eq!(stdout(&output).lines().count(), heading + packets, "{name}");
            }
        }
    }
    let output = roce(&["dissect", "/nonexistent.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("roce: /nonexistent.pcap: cannot be opened"), "{}", stderr(&output));
}

#[test]
fn snapped_packets_are_shown_and_not_called_broken() {
    let frame = bytes(WRITE);
    // Cut after the RETH, inside the RETH, inside the BTH, inside UDP, inside IPv4.
    for (kept, expected) in [
        (70, "va 0x7f00deadb000"),
        (60, "RC_RDMA_WRITE_ONLY"),
        (50, "RoCE"),
        (36, "too short to identify"),
        (20, "too short to identify"),
    ] {
        let output = dissect(&classic(1, &[(90, &frame[..kept])]), &[]);
        let is_known = expected != "too short to identify";
        assert_eq!(output.status.success(), is_known, "{kept}: {}", stderr(&output));
        assert!(is_known || stderr(&output).contains("every packet is cut"), "{kept}: {}", stderr(&output));
        assert!(stdout(&output).contains(expected), "{kept}: {}", stdout(&output));
        assert!(!stderr(&output).contains("malformed"), "{kept}: {}", stderr(&output));
        assert!(stderr(&output).contains("cut by the capture: 1"), "{kept}: {}", stderr(&output));
    }
    let output = dissect(&classic(1, &[(90, &frame[..70])]), &["--json"]);
    let packet: Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(packet["roce.icrc"], "unchecked");
    assert_eq!(packet["roce.payload_len"], 13, "the headers tell the length on the wire");
    assert_eq!((&packet["frame.len"], &packet["frame.cap_len"]), (&90.into(), &70.into()));
}

#[test]
fn broken_packets_are_shown_with_layer_and_offset() {
    let change = |changes: &[(usize, u8)]| {
        let mut frame = bytes(WRITE);
        for (index, value) in changes {
            frame[*index] = *value;
        }
        frame
    };
    for (frame, expected) in [
        (change(&[(42, 0x1f)]), "BTH at byte 42: unknown opcode 0x1f"),
        (change(&[(43, 0x73)]), "BTH at byte 43: wrong version, 0 expected, 3 found"),
        (change(&[(24, 0)]), "IPv4 at byte 24: wrong checksum"),
        (change(&[(38, 1)]), "UDP at byte 38: inconsistent length"),
        (change(&[(14, 0x55)]), "IPv4 at byte 14: wrong version"),
    ] {
        let file = classic(1, &[(frame.len() as u32, &frame)]);
        for form in [&[][..], &["--tree"], &["--json"]] {
            let output = dissect(&file, form);
            assert_eq!(output.status.code(), Some(0), "a broken packet is no broken file");
            assert!(stdout(&output).contains(expected), "{expected}: {}", stdout(&output));
            assert!(stderr(&output).contains("malformed: 1\n"), "{}", stderr(&output));
        }
    }
    // Opcodes from 0xc0 on are vendor-specific, and not an error.
    let output = dissect(&classic(1, &[(90, &change(&[(42, 0xc5)]))]), &[]);
    assert!(stdout(&output).contains("vendor-specific"), "{}", stdout(&output));
    assert!(!stderr(&output).contains("malformed"), "{}", stderr(&output));
    // The ICRC does not cover the IPv4 checksum, so it can still be checked.
    let frame = change(&[(22, 63)]);
    let output = dissect(&classic(1, &[(90, &frame)]), &[]);
    assert!(stderr(&output).contains("ICRC: 1 good"), "{}", stderr(&output));
}

/// Native InfiniBand in a file of a capture card, with every ICRC good, as lines, JSON and an explanation.
#[test]
fn native_infiniband_is_shown_with_its_lids() {
    let Some(folder) = shared("pcaps") else {
        skip_unless(false, "without the captures of other people at ../shared/pcaps");
        return;
    };
    let file = folder.join("ib-native-erf.pcap");
    let output = roce(&["dissect", text(&file)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("43 packets: 0 RoCE, 43 InfiniBand, 0 not RoCE"), "{}", stderr(&output));
    assert!(stderr(&output).contains("ICRC: 43 good, 0 bad, 0 not checked"), "{}", stderr(&output));
    assert!(stdout(&output).contains("LID:"), "{}", stdout(&output));
    let packets = json(&[text(&file)]);
    assert!(packets.iter().all(|packet| packet["roce.protocol"] == "InfiniBand"));
    assert!(packets.iter().all(|packet| packet["infiniband.variant.crc"].is_u64()));
    let local = |packet: &&Value| packet["infiniband.lrh.lnh"] == 2;
    assert_eq!(packets.iter().filter(local).count(), 37);
    assert!(packets.iter().any(|packet| packet["roce.cm"] == "CM REQ"));
    for has_grh in [false, true] {
        let index = packets.iter().position(|packet| (packet["infiniband.lrh.lnh"] == 3) == has_grh).unwrap();
        let number = (index + 1).to_string();
        let explained = roce(&["explain", text(&file), &number]);
        let shown = stdout(&explained);
        assert!(shown.contains("LRH, local route header: 8 bytes at 16 (IBTA 7.7)"), "{shown}");
        assert!(shown.contains("VCRC, variant CRC: 2 bytes"), "{shown}");
        assert_eq!(shown.contains("because it has no GRH"), !has_grh, "{shown}");
        let document: Value =
            serde_json::from_slice(&roce(&["explain", "--json", text(&file), &number]).stdout).unwrap();
        let input = bytes(document["roce.icrc_input"].as_str().unwrap());
        let computed = document["roce.icrc_computed"].as_u64().unwrap() as u32;
        assert_eq!(crc32(&input).swap_bytes(), computed);
    }
    let refused = roce(&["inject", text(&file), "--dry-run", "--device", "udp:127.0.0.1"]);
    assert!(stderr(&refused).contains("has no Ethernet or IP header"), "{}", stderr(&refused));
}

/// Computes the CRC-32 of Ethernet, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |register: u32, byte: &u8| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

#[test]
fn a_bad_icrc_is_shown_with_both_values() {
    let good = bytes(WRITE);
    let mut bad = good.clone();
    bad[86] ^= 0x01;
    let file = classic(1, &[(90, &good), (90, &bad)]);
    let output = dissect(&file, &["--bad-icrc"]);
    assert!(output.status.success());
    let lines: Vec<_> = stdout(&output).lines().map(words).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1].starts_with("2 "));
    assert!(lines[1].contains("BAD - ICRC found b64f5e4b, computed b74f5e4b"), "{}", stdout(&output));
    assert!(stderr(&output).contains("ICRC: 1 good, 1 bad, 0 not checked"));
    let packet: Value = serde_json::from_str(stdout(&dissect(&file, &["--bad-icrc", "--json"]))).unwrap();
    assert_eq!(packet["roce.icrc"], "bad");
    assert_eq!(packet["roce.icrc_computed"], 0xb74f_5e4b_u32);
    assert_eq!(packet["infiniband.invariant.crc"], 0xb64f_5e4b_u32);
}

#[test]
fn telemetry_behind_the_icrc_is_no_damage() {
    let plain = bytes(WRITE);
    let mut telemetry = Telemetry::default();
    telemetry.push(TelemetryHop::new(1_000_000_000, 5_000, 640, 0), 1);
    telemetry.push(TelemetryHop::new(10_000_000_000, 7_000, 1_280, 12_800), 2);
    let mut frame = [&plain[..], &telemetry.emit()].concat();
    // The ICRC is that of the packet without the trailer; the other headers include the trailer.
    let Ok(parsed) = Frame::parse(&plain) else { panic!("not RoCE") };
    let datagram = &frame[parsed.headers.len_bytes()..];
    let path = parsed.path();
    let identification = parsed.envelope().identification;
    let [to, from] = [&plain[..6], &plain[6..12]].map(|mac| MacAddr(mac.try_into().unwrap()));
    let headers = FrameHeaders::new(&path, identification, to, from, datagram.len()).unwrap();
    headers.emit(&mut frame).unwrap();
    let file = classic(1, &[(90, &plain), (142, &frame)]);
    let output = dissect(&file, &[]);
    let line = words(stdout(&output).lines().nth(2).unwrap());
    assert!(line.contains(" ok ") && line.contains("telemetry hops 2 queue 12800"), "{line}");
    assert!(stderr(&output).contains("ICRC: 2 good, 0 bad"), "{}", stderr(&output));
    let output = dissect(&file, &["--json"]);
    let packets: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(packets[0]["roce.payload_len"], packets[1]["roce.payload_len"]);
    assert_eq!(packets[0]["roce.telemetry.hops"], Value::Null);
    assert_eq!(
        (&packets[1]["roce.telemetry.hops"], &packets[1]["roce.telemetry.hop2.queue"]),
        (&2.into(), &200.into())
    );
    // If the packet before the trailer is damaged, its ICRC is bad.
    frame[60] ^= 1;
    let output = dissect(&classic(1, &[(142, &frame)]), &[]);
    assert!(stderr(&output).contains("ICRC: 0 good, 1 bad"), "{}", stderr(&output));
}

#[test]
fn packets_of_other_links_and_ports_are_read() {
    let frame = bytes(WRITE);
    let ip = &frame[14..];
    let prefixed = |prefix: &[u8]| [prefix, ip].concat();
    let sll = [&[0; 14][..], &[0x08, 0x00]].concat();
    let sll2 = [&[0x08, 0x00][..], &[0; 18]].concat();
    for (link_type, packet) in [
        (1, frame.clone()),
        (101, ip.to_vec()),
        (12, ip.to_vec()),
        (228, ip.to_vec()),
        (0, prefixed(&[2, 0, 0, 0])),
        (108, prefixed(&[0, 0, 0, 2])),
        (113, prefixed(&sll)),
        (276, prefixed(&sll2)),
    ] {
        let file = classic(link_type, &[(packet.len() as u32, &packet)]);
        let output = dissect(&file, &["--json"]);
        let shown: Value = serde_json::from_str(stdout(&output)).unwrap();
        assert_eq!(shown["roce.icrc"], "ok", "link type {link_type}");
        assert_eq!(shown.get("eth.src").is_some(), link_type == 1, "no invented header is shown");
        // Offsets count from the first byte of the packet in the file.
        let mut broken = packet.clone();
        let bth = packet.len() - 48;
        broken[bth] = 0x1f;
        let output = dissect(&classic(link_type, &[(packet.len() as u32, &broken)]), &[]);
        assert!(stdout(&output).contains(&format!("BTH at byte {bth}: ")), "{}", stdout(&output));
    }
    let mut other_port = frame.clone();
    other_port[36..38].copy_from_slice(&9741_u16.to_be_bytes());
    let file = classic(1, &[(90, &other_port)]);
    assert!(words(stdout(&dissect(&file, &[]))).contains("UDP port 49513 > 9741"));
    assert!(stdout(&dissect(&file, &["--port", "9741"])).contains("RC_RDMA_WRITE_ONLY"));
}

#[test]
fn pause_frames_are_shown() {
    let header = "0180c2000001020000000001".to_owned() + "8808";
    let pause = bytes(&(header.clone() + "00010100" + &"00".repeat(42)));
    let pfc = bytes(&(header + "01010009006400000000ffff" + &"00".repeat(34)));
    let file = classic(1, &[(60, &pause), (60, &pfc)]);
    let output = dissect(&file, &[]);
    let lines: Vec<_> = stdout(&output).lines().skip(1).collect();
    assert!(lines[0].contains("02:00:00:00:00:01 > 01:80:c2:00:00:01"), "{}", lines[0]);
    assert!(words(lines[0]).contains("pause all priorities pause 256 x 512 bits"), "{}", lines[0]);
    assert!(words(lines[1]).contains("PFC priority 0 pause 100 x 512 bits"), "{}", lines[1]);
    assert!(lines[1].ends_with("priority 3 pause 65535 x 512 bits"), "{}", lines[1]);
    assert!(stderr(&output).starts_with("2 packets: 0 RoCE, 2 pause, 0 not RoCE\n"), "{}", stderr(&output));
    let shown: Vec<Value> = stdout(&dissect(&file, &["--json"]))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(shown[0]["macc.pause_time"], 256);
    assert_eq!(shown[1]["macc.cbfc.pause_time.c0"], 100);
    assert_eq!(shown[1]["macc.cbfc.enbv.c3"], true);
}

#[test]
fn what_the_writer_wrote_is_shown_with_comment_interface_and_direction() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.pcapng");
    let frame = bytes(WRITE);
    let mut writer = PcapWriter::create(&path, &["left", "right"]).unwrap();
    writer.write(0, 1_000_000_001, Direction::Outbound, None, &frame).unwrap();
    writer.write(1, 1_000_000_250, Direction::Inbound, Some("dropped\there"), &frame).unwrap();
    writer.flush().unwrap();
    let packets = json(&[text(&path)]);
    assert_eq!(packets[0]["frame.time_epoch"], "1.000000001");
    assert_eq!(packets[0]["roce.direction"], "out");
    assert_eq!(packets[1]["frame.interface_name"], "right");
    assert_eq!(packets[1]["frame.comment"], "dropped\there");
    let lines = roce(&["dissect", text(&path)]);
    assert!(
        words(stdout(&lines)).contains(" 1 0.000000000 10.0.0.1 > 10.0.0.2 RC_RDMA_WRITE_ONLY "),
        "{}",
        stdout(&lines)
    );
    assert!(stdout(&lines).contains(" 0.000000249 "), "nanoseconds are kept");
    assert!(stdout(&lines).ends_with("# dropped\\u{9}here\n"), "{}", stdout(&lines));
    if skip_unless(has_program("tshark"), "tshark is not installed") {
        return;
    }
    let keys = BTreeSet::from([
        "frame.comment",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.time_epoch",
    ]);
    let theirs = tshark(&path, &keys);
    assert_eq!(theirs[0], ["", "left", "0x00000002", "1.000000001"]);
    assert_eq!(theirs[1], ["dropped\\there", "right", "0x00000001", "1.000000250"]);
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let frame = bytes(WRITE);
    let packets = vec![(90, &frame[..]); 20_000];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.pcap");
    std::fs::write(&path, classic(1, &packets)).unwrap();
    for form in [&[][..], &["--tree"], &["--json"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_roce"))
            .args(["dissect", text(&path)])
            .args(form)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(!first.is_empty());
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    }
}

#[test]
fn damaged_files_never_crash_it() {
    let mut sources: Vec<Vec<u8>> = vec![classic(1, &[(90, &bytes(WRITE)), (90, &bytes(WRITE))])];
    for name in ["cm-rping.pcap", "rc-atomic-fadd.pcap", "rc-send-rnr.pcap"] {
        sources.push(std::fs::read(kernel_captures().join(name)).unwrap());
    }
    let mut state = 0x5eed_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..60 {
        let mut file = sources[round % sources.len()].clone();
        for _ in 0..=random(file.len() / 16) {
            let index = random(file.len());
            file[index] = random(256) as u8;
        }
        // Damaged packets after a valid file header reach more code than a damaged file header.
        file[..24].copy_from_slice(&sources[round % sources.len()][..24]);
        for form in [&[][..], &["--tree"], &["--json"]] {
            let code = dissect(&file, form).status.code();
            assert!(matches!(code, Some(0 | 1)), "round {round} {form:?}: {code:?}");
        }
    }
}

#[test]
fn explain_computes_every_icrc_of_the_vectors() {
    let text = std::fs::read(roce_testing::vectors("icrc.json")).unwrap();
    let vectors: Value = serde_json::from_slice(&text).unwrap();
    for vector in vectors["vectors"].as_array().unwrap() {
        let name = &vector["name"];
        let frame = vector["frame_hex"].as_str().unwrap();
        let l3 = vector["l3_offset"].as_u64().unwrap() as usize;
        let bth = vector["bth_offset"].as_u64().unwrap() as usize;
        for (skipped, from) in [(0, "eth"), (l3, "ip"), (bth, "bth")] {
            let output = roce(&["explain", "--json", &frame[2 * skipped..]]);
            assert!(output.status.success(), "{name}");
            let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(shown["from"], from, "{name}");
            let headers = shown["headers"].as_array().unwrap();
            let found = headers.iter().find(|header| header["name"] == "BTH").unwrap();
            assert_eq!(found["offset"], bth - skipped, "{name}");
            let icrc = headers.iter().find(|header| header["name"] == "ICRC").unwrap();
            assert_eq!(icrc["bytes"], vector["icrc_wire_hex"], "{name}");
            let verdict = if from == "bth" { "unchecked" } else { "ok" };
            assert_eq!(shown["roce.icrc"], verdict, "{name} from {from}");
        }
    }
}

#[test]
fn explain_shows_bytes_fields_meanings_and_the_masked_packet() {
    let output = roce(&["explain", WRITE]);
    assert!(output.status.success());
    let shown = stdout(&output);
    for expected in [
        "90 bytes, read as an Ethernet frame",
        "RC_RDMA_WRITE_ONLY: RDMA WRITE, the only packet of its message",
        "  BTH             42  0a 70 ff ff 00 00 00 12 80 00 5e ed\n",
        "       43  ..11 ....   PadCnt                     3\n",
        "  IPv4            14  45[ff]00 4c 00 00 40 00[ff]11[ff ff]0a 00 00 01\n",
        "  BTH             42  0a 70 ff ff[ff]00 00 12 80 00 5e ed\n",
        "CRC-32 of these 80 bytes: 0x4b5e4fb7\n",
        "ICRC good: found b7 4f 5e 4b (the number 0x4b5e4fb7), as computed\n",
    ] {
        assert!(shown.contains(expected), "{expected:?} is missing in:\n{shown}");
    }
    let longest = shown.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(longest.chars().count() <= 100, "{longest}");
    assert!(!shown.contains('\u{1b}'), "no color where there is no terminal");
    let colored = roce(&["explain", "--color", "always", WRITE]);
    assert!(stdout(&colored).contains("\u{1b}["));
}

#[test]
fn explain_takes_bytes_in_every_form() {
    let spaced: Vec<_> = bytes(WRITE).iter().map(|byte| format!("{byte:02x}")).collect();
    let words: Vec<&str> = spaced.iter().map(String::as_str).collect();
    let expected = stdout(&roce(&["explain", WRITE])).to_owned();
    assert_eq!(stdout(&roce(&[&["explain"], &words[..]].concat())), expected);
    assert_eq!(stdout(&roce(&["explain", &words.join(":")])), expected);
    assert_eq!(stdout(&roce_with_input(&["explain", "-"], words.join("\n").as_bytes())), expected);
    let example = roce(&["explain"]);
    assert!(example.status.success());
    assert!(stdout(&example).contains(&format!("roce explain {WRITE}")));
    if skip_unless(has_program("xxd"), "xxd is not installed") {
        return;
    }
    let mut xxd = Command::new("xxd").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    xxd.stdin.take().unwrap().write_all(&bytes(WRITE)).unwrap();
    let dump = xxd.wait_with_output().unwrap().stdout;
    assert_eq!(stdout(&roce_with_input(&["explain", "-"], &dump)), expected);
}

#[test]
fn explain_says_which_character_is_wrong() {
    for (input, expected) in [
        ("45 02 0g", "line 1, character 8: 'g' is not a hexadecimal digit"),
        ("45 02 0", "line 1, character 7: `0` has an odd number of digits"),
        ("", "the input has no bytes"),
    ] {
        let output = roce_with_input(&["explain", "-"], input.as_bytes());
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(expected), "{input:?}: {}", stderr(&output));
    }
}

#[test]
fn explain_accepts_packets_other_than_roce() {
    for hex in
        ["00", "4500", "ffffffffffff020000000001080600010800060400010200000000010a0000010000000000000a000002"]
    {
        for from in ["auto", "eth", "ip", "bth"] {
            for form in [&[][..], &["--json"]] {
                let output = roce(&[&["explain", "--from", from, hex], form].concat());
                assert_eq!(output.status.code(), Some(0), "{hex} {from}: {}", stderr(&output));
            }
        }
    }
    // Tests every prefix of a packet.
    for end in 1..=90 {
        let output = roce(&["explain", "--from", "eth", &WRITE[..2 * end]]);
        assert_eq!(output.status.code(), Some(0), "{end}");
    }
}
