//! The JSON documents of all commands: schema and version first, and one unit for each quantity.
//!
//! The library and the tools measure in human-readable units: microseconds, gigabits per second. A program
//! that reads several documents needs one unit. Therefore only this module makes documents. It converts
//! every number whose name ends with a unit to the base unit of the SI: seconds, bits per second, bytes per
//! second. `docs/reference/json.md` lists every field.

use roce_packet::foreign::is_harmless;
use serde::Serialize;
use serde::ser::Error as _;
use serde_json::{Map, Value};

/// The program that makes a document.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Its version.
    pub version: &'a str,
    /// The sources and features of the build.
    pub build: Build<'a>,
}

/// The properties that distinguish builds of one version.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Build<'a> {
    /// The commit of the sources, if the build knew it. Changes that were not committed are not visible.
    pub commit: Option<&'a str>,
    /// The features of the devices.
    pub features: &'a [&'a str],
    /// The target triple.
    pub target: &'a str,
}

/// Returns the version of the schema of a command. Added fields do not change it. Fields that are renamed,
/// removed or get another meaning do.
fn schema_version(command: &str) -> u32 {
    match command {
        "sim" | "sim-sweep" => 2,
        _ => 1,
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: String,
    /// The version of the program.
    version: &'a str,
    build: Build<'a>,
    #[serde(flatten)]
    body: Map<String, Value>,
}

/// Returns the document of a command, with a line break at its end.
///
/// # Errors
///
/// Returns an error if `body` is not an object, or cannot be serialized.
pub fn text(command: &str, body: &impl Serialize, program: Program<'_>) -> serde_json::Result<String> {
    Ok(escaped(serde_json::to_string_pretty(&document(command, body, program)?)?) + "\n")
}

/// Returns the document of a command on one line, without a line break.
///
/// # Errors
///
/// Returns an error if `body` is not an object, or cannot be serialized.
pub fn line(command: &str, body: &impl Serialize, program: Program<'_>) -> serde_json::Result<String> {
    Ok(escaped(serde_json::to_string(&document(command, body, program)?)?))
}

/// Escapes characters in JSON strings that control a terminal, or that hide or reorder text. Strings may come
/// from peers and from files of others. JSON has an escape for every character, so the values do not change.
#[must_use]
pub fn escaped(json: String) -> String {
    // Almost every document has nothing else. This test of whole bytes is many times as fast as the next one.
    if json.bytes().all(|byte| matches!(byte, b'\n' | b' '..=b'~')) {
        return json;
    }
    // Line breaks belong to the layout, because those within strings are escaped already.
    let is_plain = |sign: char| sign == '\n' || is_harmless(sign);
    if json.chars().all(is_plain) {
        return json;
    }
    let mut text = String::with_capacity(json.len() + 64);
    for sign in json.chars() {
        if is_plain(sign) {
            text.push(sign);
            continue;
        }
        for unit in sign.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

fn document<'a>(
    command: &str,
    body: &impl Serialize,
    program: Program<'a>,
) -> serde_json::Result<Document<'a>> {
    let Value::Object(mut body) = in_base_units(serde_json::to_value(body)?) else {
        return Err(serde_json::Error::custom("the document of a command must be an object"));
    };
    body.remove("version");
    let schema = format!("roce/{command}/{}", schema_version(command));
    let Program { version, build } = program;
    Ok(Document { schema, version, build, body })
}

/// The conversion of a number to the base unit. Numbers are divided by 1e9, because a factor of 1e-9 is
/// inexact.
#[derive(Clone, Copy, Debug)]
enum Scale {
    Same,
    Times(f64),
    Over(f64),
}

/// The suffix of a name, its replacement, and the conversion.
const UNITS: [(&str, &str, Scale); 9] = [
    ("gigabits_per_s", "bits_per_second", Scale::Times(1e9)),
    ("megabits_per_s", "bits_per_second", Scale::Times(1e6)),
    ("mebibytes_per_s", "bytes_per_second", Scale::Times(1_048_576.0)),
    ("gbps", "bits_per_second", Scale::Times(1e9)),
    ("per_s", "per_second", Scale::Same),
    ("_ns", "_seconds", Scale::Over(1e9)),
    ("_us", "_seconds", Scale::Over(1e6)),
    ("_ms", "_seconds", Scale::Over(1e3)),
    ("_s", "_seconds", Scale::Same),
];

/// Counters keep their names, which docs/reference/counters.md explains.
const COUNTERS: [&str; 3] = ["counters", "counters_per_second", "device_counters"];

fn in_base_units(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(in_base_units).collect(),
        Value::Object(fields) => {
            let convert = |(name, value): (String, Value)| {
                if COUNTERS.contains(&name.as_str()) {
                    return (name, value);
                }
                let is_end = |end: &str| {
                    name.strip_suffix(end)
                        .is_some_and(|begin| begin.is_empty() || begin.ends_with('_') || end.starts_with('_'))
                };
                match UNITS.iter().find(|(end, ..)| is_end(end)) {
                    Some((end, base, scale)) if is_number(&value) => {
                        let begin = name.strip_suffix(end).unwrap_or_default();
                        (format!("{begin}{base}"), scaled(value, *scale))
                    }
                    _ => (name, in_base_units(value)),
                }
            };
            Value::Object(fields.into_iter().map(convert).collect())
        }
        other => other,
    }
}

/// Returns whether a value is a number, a list of numbers, or the null that replaces a missing number.
fn is_number(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(is_number),
        Value::Number(_) | Value::Null => true,
        Value::Bool(_) | Value::String(_) | Value::Object(_) => false,
    }
}

fn scaled(value: Value, scale: Scale) -> Value {
    match (value, scale) {
        (Value::Array(items), _) => items.into_iter().map(|item| scaled(item, scale)).collect(),
        (Value::Number(number), Scale::Times(_) | Scale::Over(_)) => {
            let number = number.as_f64().unwrap_or_default();
            Value::from(match scale {
                Scale::Times(factor) => number * factor,
                Scale::Over(divisor) => number / divisor,
                Scale::Same => number,
            })
        }
        (value, _) => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PROGRAM: Program<'_> = Program {
        version: "1.2.3",
        build: Build { commit: None, features: &["udp"], target: "x86_64-unknown-linux-gnu" },
    };

    #[test]
    fn numbers_with_a_unit_become_base_units() {
        let body = json!({
            "version": "of the body", "size": 64, "elapsed_s": 2, "median_us": 2.5, "percentiles_us": [1.0, null, 3],
            "tcp_gigabits_per_s": 1.5, "gigabits_per_s": 2.0, "mean_goodput_gbps": 3.0, "messages_per_s": 7.0,
            "per_s": 8.0, "mebibytes_per_s": 1.0, "end_ms": 4.0, "status": "in words", "rows": [{ "wait_ns": 1_500 }],
            "counters": { "pause_time_ns": 5 }, "bytes": 1, "is_us": "text",
        });
        let document = serde_json::to_value(document("test", &body, PROGRAM).unwrap()).unwrap();
        let expected = json!({
            "schema": "roce/test/1", "version": "1.2.3", "build": PROGRAM.build,
            "size": 64, "elapsed_seconds": 2, "median_seconds": 2.5e-6,
            "percentiles_seconds": [1e-6, null, 3e-6], "tcp_bits_per_second": 1.5e9, "bits_per_second": 2e9,
            "mean_goodput_bits_per_second": 3e9, "messages_per_second": 7.0, "per_second": 8.0,
            "bytes_per_second": 1_048_576.0, "end_seconds": 0.004, "status": "in words",
            "rows": [{ "wait_seconds": 1.5e-6 }], "counters": { "pause_time_ns": 5 }, "bytes": 1, "is_us": "text",
        });
        assert_eq!(document, expected);
    }

    /// A terminal interprets U+009B as the beginning of an escape sequence, and U+202E reverses the following
    /// text.
    #[test]
    fn strings_of_others_reach_a_terminal_escaped_and_are_read_unchanged() {
        let text = "\u{9b}2J\x1b[2J\x7f\u{202e}\u{e0041}\n Zürich 東京";
        let printed = super::text("test", &json!({ "text": text }), PROGRAM).unwrap();
        assert!(printed.chars().all(|sign| sign == '\n' || is_harmless(sign)), "{printed:?}");
        assert!(printed.contains("Zürich 東京"), "{printed}");
        let read: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(read["text"], text);
    }

    #[test]
    fn schema_and_version_come_first() {
        let text = text("test", &json!({ "a": 1 }), PROGRAM).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "  \"schema\": \"roce/test/1\",");
        assert!(lines[2].starts_with("  \"version\": "), "{text}");
        assert!(super::text("test", &json!([1]), PROGRAM).is_err());
    }
}
