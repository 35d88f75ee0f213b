//! `roce why`: error numbers and their page.

use std::time::{Duration, Instant};

use crate::common::{Running, own_address, roce, run};
use crate::documents::check;
use roce::observe::{CodeKind, codes, look_up};

const PAGE: &str = include_str!("../../../docs/reference/completion-errors.md");

/// Returns the rows of the section with this heading, as their first two cells.
fn rows(heading: &str) -> Vec<(u32, String)> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows = section.lines().filter(|line| line.starts_with("| 0x")).map(cells);
    rows.map(|row: Vec<String>| {
        let number = u32::from_str_radix(row[0].trim_start_matches("0x"), 16).expect("a number");
        let status = row.iter().rev().find(|cell| cell.contains("_ERR")).expect("a status");
        (number, status.trim_matches('`').to_owned())
    })
    .collect()
}

#[test]
fn the_page_has_every_vendor_error_once_and_no_other() {
    for (kind, heading) in [
        (CodeKind::Vendor, "`vendor_err` of roce"),
        (CodeKind::Mlx5Vendor, "`vendor_err` of mlx5"),
        (CodeKind::Mlx5Syndrome, "Syndromes of mlx5"),
    ] {
        let known = codes().into_iter().filter(|code| code.kind == kind);
        let known: Vec<_> = known.map(|code| (code.number, code.status.name().to_owned())).collect();
        assert_eq!(rows(heading), known, "{heading}");
        for code in codes().iter().filter(|code| code.kind == kind) {
            assert!(code.kind != CodeKind::Vendor || PAGE.contains(&format!("`{}`", code.name)), "{code:?}");
        }
    }
}

#[test]
fn a_status_and_a_vendor_error_of_mlx5_have_ordered_causes_with_commands() {
    for text in ["IBV_WC_RETRY_EXC_ERR", "12", "0x81", "129"] {
        let finished = run(&["why", text]);
        assert!(finished.success, "{finished:?}");
        let out = &finished.stdout;
        assert!(out.contains("RETRY_EXC_ERR") && out.contains("roce doctor HOST"), "{out}");
        assert!(out.find("  1. ") < out.find("  2. ") && out.contains("source: "), "{out}");
    }
    let out = run(&["why", "0x88"]).stdout;
    assert!(out.contains("vendor_err of mlx5") && out.contains("REM_ACCESS_ERR"), "{out}");
    assert!(!look_up("0x88").is_empty());
}

#[test]
fn an_unknown_code_is_an_error_and_no_code_lists_all() {
    let finished = run(&["why", "0x7f"]);
    assert!(!finished.success && finished.stderr.contains("\"0x7f\""), "{finished:?}");
    let list = run(&["why"]).stdout;
    for code in codes() {
        assert!(list.contains(&code.name), "{}: {list}", code.name);
    }
}

/// Programs get what the text says: of each code all lists that know it, of no code every number.
#[test]
fn documents_of_codes_are_those_of_the_page() {
    let document = |args: &[&str]| -> serde_json::Value {
        let finished = run(&[&["why", "--json"], args].concat());
        assert!(finished.success, "{finished:?}");
        let document = serde_json::from_str(&finished.stdout).expect("JSON");
        check(&document, "roce/why/1");
        document
    };
    let both = document(&["12", "0x88"]);
    let all = both["codes"].as_array().expect("a list");
    let of = |query: &str| all.iter().find(|code| code["query"] == query).expect(query);
    assert_eq!(of("12")["status"]["name"], "RETRY_EXC_ERR", "{both}");
    assert_eq!(of("0x88")["list"], "vendor_err of mlx5 (ConnectX)", "{both}");
    assert!(of("0x88")["likely"][0]["next_step"].as_str().is_some_and(|next| !next.is_empty()), "{both}");
    assert_eq!(document(&[])["codes"].as_array().map(Vec::len), Some(codes().len()));
    let finished = run(&["why", "--json", "0x7f"]);
    assert!(!finished.success && finished.stdout.is_empty(), "{finished:?}");
}

/// A client whose packets are all lost waits long. Its explanation says what is incomplete.
#[test]
fn a_running_process_explains_its_queue_pairs() {
    let folder = tempfile::tempdir().expect("a directory");
    let command = |args: &[&str]| {
        let mut command = roce();
        command.env("XDG_RUNTIME_DIR", folder.path()).env_remove("ROCE_STAT").args(args);
        command
    };
    let (server, client) = (own_address().to_string(), own_address().to_string());
    let mut waiting = Running::start(&mut command(&["ping", "--device", &format!("udp:{server}")]));
    waiting.wait_for_line("waiting on");
    let device = format!("udp:{client}");
    let lost = ["ping", &server, "--device", &device, "--fault", "drop=100%", "--timeout", "20"];
    let lossy = Running::start(&mut command(&lost));
    let pid = lossy.pid().to_string();
    let explained = || {
        let finished = Running::start(&mut command(&["why", "--pid", &pid])).finish(60);
        finished.success.then_some(finished.stdout)
    };
    // Before it is connected, the queue pair exists without any request.
    let is_under_way = |text: &String| {
        text.contains("send requests are incomplete") && !text.contains("  0 send requests are incomplete")
    };
    let end = Instant::now() + Duration::from_secs(60);
    let text = loop {
        match explained().filter(is_under_way) {
            Some(text) => break text,
            None if Instant::now() > end => panic!("{:?}", explained()),
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let ends = format!(" at {client} towards queue pair ");
    assert!(text.contains(&ends) && text.contains("is in RTS and has not failed"), "{text}");
    let printed = Running::start(&mut command(&["why", "--pid", &pid, "--json"])).finish(60);
    let document: serde_json::Value = serde_json::from_str(&printed.stdout).expect("JSON");
    check(&document, "roce/why/1");
    let pair = &document["contexts"][0]["queue_pairs"][0];
    assert_eq!((pair["state"].as_str(), pair["address"].as_str()), (Some("RTS"), Some(client.as_str())));
    assert!(pair["incomplete_requests"].as_u64() > Some(0), "{pair}");
    let packets = pair["packets"].as_array().expect("a list");
    assert!(packets.iter().any(|packet| packet.as_str().unwrap().contains("sent")), "{pair}");

    let unknown = Running::start(&mut command(&["why", "--pid", "1"])).finish(60);
    assert!(!unknown.success && unknown.stderr.contains("ROCE_STAT=1"), "{unknown:?}");
}
