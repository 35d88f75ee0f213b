//! Results for continuous integration: JUnit XML.

use std::fmt::Write as _;

use super::text::failure_text;
use crate::run::{Outcome, Report};

/// Returns a document with one test case for each script.
#[must_use]
pub fn junit(reports: &[Report]) -> String {
    let failed = |report: &&Report| matches!(report.outcome, Outcome::Failed(_));
    let skipped = |report: &&Report| matches!(report.outcome, Outcome::Inapplicable(_));
    let failures = reports.iter().filter(failed).count();
    let skips = reports.iter().filter(skipped).count();
    let total = seconds(reports.iter().map(|report| report.elapsed_ns).sum());
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    let _ = writeln!(
        text,
        "  <testsuite name=\"roce peer\" tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skips}\" time=\"{total}\">",
        reports.len()
    );
    for report in reports {
        case(report, &mut text);
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}

fn case(report: &Report, text: &mut String) {
    let class = report.rules.first().map_or("roce peer", String::as_str);
    let (name, time) = (escaped(&format!("{}: {}", report.script, report.title)), seconds(report.elapsed_ns));
    let _ = write!(text, "    <testcase classname=\"{}\" name=\"{name}\" time=\"{time}\"", escaped(class));
    match &report.outcome {
        Outcome::Passed => text.push_str("/>\n"),
        Outcome::Inapplicable(what) => {
            let _ = writeln!(text, "><skipped message=\"{}\"/></testcase>", escaped(what));
        }
        Outcome::Failed(failure) => {
            let message = format!("expected {}, found {}", failure.expected, failure.found);
            let details = failure_text(report).unwrap_or_default();
            let _ = writeln!(
                text,
                ">\n      <failure message=\"{}\">{}</failure>\n    </testcase>",
                escaped(&message),
                escaped(&details)
            );
        }
    }
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:06}", nanos / 1_000_000_000, nanos / 1_000 % 1_000_000)
}

/// Escapes the signs of XML, and replaces those that XML does not allow.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(sign),
            sign if sign.is_control() || matches!(sign, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            sign => out.push(sign),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Failure;

    fn report(outcome: Outcome) -> Report {
        Report {
            script: "a.roce".to_owned(),
            title: "A <b> & \"c\"".to_owned(),
            rules: vec!["IBTA 9.7".to_owned()],
            steps: 3,
            unchecked: 0,
            elapsed_ns: 1_500_000,
            records: Vec::new(),
            outcome,
        }
    }

    #[test]
    fn a_document_counts_and_escapes() {
        let failure = Failure {
            place: None,
            text: "expect ack".to_owned(),
            rule: String::new(),
            expected: "ack".to_owned(),
            found: "<nothing>\u{1}".to_owned(),
        };
        let reports = [
            report(Outcome::Passed),
            report(Outcome::Failed(failure)),
            report(Outcome::Inapplicable("no verbs".to_owned())),
        ];
        let text = junit(&reports);
        assert!(
            text.contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\" time=\"0.004500\""),
            "{text}"
        );
        assert!(text.contains(
            "classname=\"IBTA 9.7\" name=\"a.roce: A &lt;b&gt; &amp; &quot;c&quot;\" time=\"0.001500\"/>"
        ));
        assert!(text.contains("found &lt;nothing&gt;?"), "{text}");
        assert!(text.contains("<skipped message=\"no verbs\"/>"));
        assert!(!text.contains('\u{1}'));
    }
}
