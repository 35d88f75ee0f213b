//! The verdicts as test results in the format of JUnit, which CI systems show.

use std::fmt::Write as _;

use roce_analysis::verdict::{Outcome, Verdict};
use roce_document::analyze::Report;

use super::text::proof;

/// Returns the document: a suite for the captures, and one for each connection. An unknown verdict is a
/// skipped test.
pub(super) fn text(report: &Report<'_>) -> String {
    let mut xml =
        String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"roce analyze\">\n");
    suite(&mut xml, "capture", &report.captures.files.join(", "), &report.verdicts);
    for part in &report.parts {
        suite(&mut xml, &format!("connection {}", part.number), &part.title(), &part.verdicts);
    }
    xml + "</testsuites>\n"
}

fn suite(xml: &mut String, name: &str, about: &str, verdicts: &[Verdict]) {
    let count = |outcome| verdicts.iter().filter(|verdict| verdict.outcome == outcome).count();
    // Writing to a string cannot fail.
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">",
        escaped(&format!("{name}: {about}")),
        verdicts.len(),
        count(Outcome::Fail),
        count(Outcome::Unknown)
    );
    for verdict in verdicts {
        let rule = verdict.rule;
        let summary = escaped(&verdict.summary);
        let _ = write!(
            xml,
            "    <testcase classname=\"{}\" name=\"{}\"",
            escaped(name),
            escaped(&format!("{}: {}", rule.key, rule.title))
        );
        let _ = match verdict.outcome {
            Outcome::Pass => writeln!(xml, "><system-out>{summary}</system-out></testcase>"),
            Outcome::Unknown => writeln!(xml, "><skipped message=\"{summary}\"/></testcase>"),
            Outcome::Fail => {
                let details = escaped(&format!("{} {}, {}", rule.question, rule.source, proof(verdict)));
                writeln!(xml, "><failure message=\"{summary}\">{details}</failure></testcase>")
            }
        };
    }
    let _ = writeln!(xml, "  </testsuite>");
}

/// Escapes a text for XML, which may not contain most control characters at all.
fn escaped(text: &str) -> String {
    let allowed = text.chars().map(|sign| match sign {
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        sign if sign.is_control() => ' ',
        sign => sign,
    });
    roce_plot::escape(&allowed.collect::<String>())
}

#[cfg(test)]
mod tests {
    use roce_analysis::record::Place;
    use roce_analysis::verdict::rules;

    use super::*;

    #[test]
    fn verdicts_are_tests_and_unknown_ones_are_skipped() {
        let verdicts = [
            Verdict::pass(&rules::ICRC, "all 3"),
            Verdict::unknown(&rules::RNR, "no <RNR> & none"),
            Verdict::fail(&rules::NAKS, "2 \"NAKs\"\u{1b}").at([Place { capture: 1, number: 7 }]),
        ];
        let mut xml = String::new();
        suite(&mut xml, "connection 1", "a > b", &verdicts);
        let expected = [
            "  <testsuite name=\"connection 1: a &gt; b\" tests=\"3\" failures=\"1\" skipped=\"1\">",
            "    <testcase classname=\"connection 1\" name=\"icrc: ICRC\"><system-out>all 3</system-out></testcase>",
            "    <testcase classname=\"connection 1\" name=\"rnr: receiver not ready\">\
             <skipped message=\"no &lt;RNR&gt; &amp; none\"/></testcase>",
        ];
        let lines: Vec<&str> = xml.lines().collect();
        assert_eq!(lines[..3], expected, "{xml}");
        assert!(lines[3].contains("<failure message=\"2 &quot;NAKs&quot; \">"), "{xml}");
        assert!(lines[3].ends_with("packet 2:7</failure></testcase>"), "{xml}");
        assert_eq!(lines[4..], ["  </testsuite>"]);
    }
}
