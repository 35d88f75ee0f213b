//! The documents of the page, compared with those of the command.

use roce_web::capture::Capture;
use serde_json::Value;

use crate::common::{all_captures, run};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns a document without the program that made it.
fn without_program(mut document: Value) -> Value {
    if let Value::Object(document) = &mut document {
        document.remove("build");
    }
    document
}

/// Maximum number of packets of a file whose documents are compared.
const MOST_DOCUMENTS: usize = 30;

#[test]
fn the_page_has_the_documents_of_the_command() {
    for file in all_captures() {
        let name = file.to_str().expect("a name in UTF-8");
        let capture = Capture::open(name, &std::fs::read(&file).unwrap()).unwrap();
        let dissected = run(&["dissect", "--json", name]);
        let lines: Vec<Value> = dissected.stdout.lines().map(json).collect();
        assert!(!lines.is_empty(), "{name}: {}", dissected.stderr);
        // The document of a packet takes milliseconds.
        for (number, line) in (1..).zip(&lines).step_by(lines.len().div_ceil(MOST_DOCUMENTS)) {
            let page = json(&capture.packet(number).unwrap());
            assert_eq!(page["dissect"], *line, "{name}: packet {number}");
        }
        assert!(capture.packet(lines.len() + 1).is_err(), "{name}: more packets than the command has");

        let analysed = run(&["analyze", "--json", name]);
        let page = json(&capture.analysis());
        // The command prints nothing about a file without RoCE.
        let is_empty = page["roce_packets"] == 0 && page["pause_frames"] == 0;
        assert_eq!(analysed.stdout.is_empty(), is_empty, "{name}: {page}");
        if !is_empty {
            assert_eq!(without_program(page), without_program(json(&analysed.stdout)), "{name}");
        }

        let number = lines.len().to_string();
        let explained = run(&["explain", "--json", name, &number]);
        let page = json(&capture.packet(lines.len()).unwrap());
        assert_eq!(
            without_program(page["explain"].clone()),
            without_program(json(&explained.stdout)),
            "{name}: packet {number}"
        );
    }
}

/// Filters of the command and of the page, by the name of the option.
const FILTERS: [(&str, &str); 10] = [
    ("qp", "0x11"),
    ("opcode", "ACK"),
    ("psn", "0..5000000"),
    ("icrc", "unchecked"),
    ("icrc", "ok"),
    ("address", "192.0.2.0/24"),
    ("time", "0..0.001"),
    ("dscp", "0"),
    ("ecn", "not-ect"),
    ("mark", "gap"),
];

#[test]
fn the_page_has_the_filters_of_the_command() {
    let mut counts = [0; FILTERS.len()];
    for file in all_captures().iter().filter(|file| file.extension().is_some_and(|name| name == "pcapng")) {
        let name = file.to_str().expect("a name in UTF-8");
        let mut capture = Capture::open(name, &std::fs::read(file).unwrap()).unwrap();
        for ((option, value), count) in FILTERS.iter().zip(&mut counts) {
            let selected = run(&["dissect", "--json", name, &format!("--{option}"), value]);
            let expected: Vec<Value> =
                selected.stdout.lines().map(|line| json(line)["frame.number"].clone()).collect();
            let page = json(&capture.rows(&format!("{option}={value}"), 0, usize::MAX).unwrap());
            let rows = page["rows"].as_array().expect("rows").iter();
            let found: Vec<Value> = rows.map(|row| row["number"].clone()).collect();
            assert_eq!(found, expected, "{name}: {option}={value}");
            *count += found.len();
        }
    }
    let is_seen = |(filter, count): (&(&str, &str), &usize)| *count > 0 || filter.1 == "unchecked";
    assert!(FILTERS.iter().zip(&counts).all(is_seen), "{counts:?}");
}
