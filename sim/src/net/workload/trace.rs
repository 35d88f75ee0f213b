//! Lists of flows: our own format, and those of two simulators based on ns-3.

use super::{FlowSpec, MAX_FLOWS, WorkloadError};
use crate::net::time::Time;

/// Finds a host by its name in a list, or returns the reason why it cannot.
pub type FindHost<'a> = dyn Fn(&str) -> Result<u32, String> + 'a;

/// Parses a list of flows whose hosts are numbers. [`parse_flows_of`] supports names.
///
/// # Errors
///
/// Returns the error of [`parse_flows_of`].
pub fn parse_flows(text: &str) -> Result<Vec<FlowSpec>, WorkloadError> {
    parse_flows_of(text, &|word| word.parse().map_err(|_| format!("there is no host {word}")))
}

/// Parses a list of flows, one per line, with fields separated by tabs, commas or blanks.
///
/// - Our own format: source, destination, bytes, start in whole nanoseconds. The first line can be a heading:
///   four words, of which the first two are not hosts and the last two contain no digits.
/// - If the first line is one number, this number of flows follows in the format of HPCC's or ConWeave's
///   simulator. HPCC's fields are source, destination, priority group, destination port, bytes, and start in
///   seconds; ConWeave's format has no port. Lines after the last flow are ignored, as in those simulators.
///   Priority group and port are not used.
///
/// # Errors
///
/// Returns the first line with an error.
pub fn parse_flows_of(text: &str, find: &FindHost<'_>) -> Result<Vec<FlowSpec>, WorkloadError> {
    let mut lines = (1..).zip(text.lines().map(fields)).filter(|(_, fields)| !fields.is_empty()).peekable();
    let Some((_, first)) = lines.peek() else { return Ok(Vec::new()) };
    if let [count] = first[..]
        && let Ok(count) = count.parse::<u64>()
    {
        lines.next();
        return parse_counted(count, lines, find);
    }
    if is_heading(first, find) {
        lines.next();
    }
    let mut flows = Vec::new();
    for (number, fields) in lines {
        let wrong = |reason: String| WorkloadError(format!("line {number}: {reason}"));
        let [source, destination, bytes, start] = fields[..] else {
            let have = fields.len();
            return Err(wrong(format!(
                "{have} fields; source, destination, bytes and start in ns are needed"
            )));
        };
        let whole =
            |word: &str| word.parse::<u64>().map_err(|_| wrong(format!("\"{word}\" is not a whole number")));
        let host = |word: &str| find(word).map_err(wrong);
        let (bytes, start) = (whole(bytes)?, Time::from_ns(whole(start)?));
        flows.push(FlowSpec { source: host(source)?, destination: host(destination)?, bytes, start });
        if flows.len() > MAX_FLOWS {
            return Err(wrong(format!("more than {MAX_FLOWS} flows")));
        }
    }
    Ok(flows)
}

fn parse_counted<'a>(
    count: u64,
    lines: impl Iterator<Item = (usize, Vec<&'a str>)>,
    find: &FindHost<'_>,
) -> Result<Vec<FlowSpec>, WorkloadError> {
    if count > MAX_FLOWS as u64 {
        return Err(WorkloadError(format!("{count} flows are more than {MAX_FLOWS}")));
    }
    let mut flows = Vec::new();
    let mut columns = None;
    for (number, fields) in lines.take(count as usize) {
        let wrong = |reason: String| WorkloadError(format!("line {number}: {reason}"));
        let ([source, destination, _, _, bytes, start] | [source, destination, _, bytes, start]) = fields[..]
        else {
            let have = fields.len();
            return Err(wrong(format!(
                "{have} fields; after a first line with the number of flows, HPCC's format has source, destination, \
                 priority group, port, bytes and start in s, and ConWeave's the same without the port"
            )));
        };
        if *columns.get_or_insert(fields.len()) != fields.len() {
            return Err(wrong(format!("{} fields, but the lines before have others", fields.len())));
        }
        let bytes = bytes.parse().map_err(|_| wrong(format!("\"{bytes}\" is not a whole number")))?;
        let start = seconds(start).ok_or_else(|| wrong(format!("\"{start}\" is not a time in seconds")))?;
        let host = |word: &str| find(word).map_err(wrong);
        flows.push(FlowSpec { source: host(source)?, destination: host(destination)?, bytes, start });
    }
    if (flows.len() as u64) < count {
        let have = flows.len();
        return Err(WorkloadError(format!("the first line announces {count} flows, but there are {have}")));
    }
    Ok(flows)
}

/// Returns whether the first line is a heading. A flow with an invalid size or start is an error, not a
/// heading.
fn is_heading(first: &[&str], find: &FindHost<'_>) -> bool {
    let [source, destination, bytes, start] = first else { return false };
    let is_word = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
    [source, destination].iter().all(|word| find(word).is_err()) && [bytes, start].into_iter().all(is_word)
}

fn fields(line: &str) -> Vec<&str> {
    let line = line.split('#').next().unwrap_or_default().trim();
    line.split([' ', '\t', ',']).filter(|word| !word.is_empty()).collect()
}

/// Parses seconds with decimals, rounded to a nanosecond like the clock of ns-3.
fn seconds(word: &str) -> Option<Time> {
    let seconds: f64 = word.parse().ok()?;
    (0.0..=1e6).contains(&seconds).then(|| Time::from_ns((seconds * 1e9).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(source: u32, destination: u32, bytes: u64, ns: u64) -> FlowSpec {
        FlowSpec { source, destination, bytes, start: Time::from_ns(ns) }
    }

    #[test]
    fn numbers_and_a_heading() {
        let flows = parse_flows("src\tdst\tbytes\tstart_ns\n0\t2\t100\t0\n\n1, 2, 5, 7 # late\n").unwrap();
        assert_eq!(flows, [flow(0, 2, 100, 0), flow(1, 2, 5, 7)]);
        assert_eq!(parse_flows("# nothing\n").unwrap(), []);
    }

    /// Regression: a first line that began with a letter was taken for a heading, so its flow was missing.
    #[test]
    fn a_first_line_with_names_is_a_flow() {
        let find = |word: &str| {
            let place = ["a", "b"].iter().position(|name| *name == word).map(|at| at as u32);
            place.ok_or_else(|| format!("there is no host {word}"))
        };
        let flows = parse_flows_of("a b 100 0\nb a 5 7\n", &find).unwrap();
        assert_eq!(flows, [flow(0, 1, 100, 0), flow(1, 0, 5, 7)]);
        let error = parse_flows_of("a c 100 0", &find).unwrap_err();
        assert_eq!(error.to_string(), "line 1: there is no host c");
        // Regression: a size with a unit made the first line a heading.
        let error = |text: &str| parse_flows_of(text, &find).unwrap_err().to_string();
        assert_eq!(error("a b 1KB 5us\n"), "line 1: \"1KB\" is not a whole number");
        assert_eq!(error("x y 1KB 5us\n"), "line 1: \"1KB\" is not a whole number");
        assert_eq!(error("a b bytes start\n"), "line 1: \"bytes\" is not a whole number");
        assert!(error("a b 1KB\n").starts_with("line 1: 3 fields; source, destination, bytes"));
        assert!(error("flow list\na b 1 0\n").starts_with("line 1: 2 fields"));
        assert_eq!(parse_flows_of("source destination bytes start_ns\na b 1 0\n", &find).unwrap().len(), 1);
    }

    #[test]
    fn the_formats_of_other_simulators() {
        let hpcc =
            "2\n2 1 3 100 200000000 2\n3 1 3 100 1500 2.000001\n\nFirst line: # of flows\nsrc0 dst0 3\n";
        assert_eq!(
            parse_flows(hpcc).unwrap(),
            [flow(2, 1, 200_000_000, 2_000_000_000), flow(3, 1, 1_500, 2_000_001_000)]
        );
        let conweave = "2\n74 5 3 3418 2.000000058\n5 6 3 1 2.1\n";
        assert_eq!(
            parse_flows(conweave).unwrap(),
            [flow(74, 5, 3_418, 2_000_000_058), flow(5, 6, 1, 2_100_000_000)]
        );
    }

    #[test]
    fn errors_name_the_line() {
        let message = |text: &str| parse_flows(text).unwrap_err().to_string();
        assert_eq!(message("0 1 x 0"), "line 1: \"x\" is not a whole number");
        assert_eq!(
            message("0 1 5 0\n0 1"),
            "line 2: 2 fields; source, destination, bytes and start in ns are needed"
        );
        assert_eq!(message("2\n0 1 3 5 1.0"), "the first line announces 2 flows, but there are 1");
        assert_eq!(
            message("2\n0 1 3 5 1\n0 1 3 9 5 1"),
            "line 3: 6 fields, but the lines before have others"
        );
        assert!(message("1\n0 1 3").starts_with("line 2: 3 fields; after a first line"));
        assert_eq!(message("1\n0 1 3 5 -1"), "line 2: \"-1\" is not a time in seconds");
        assert!(message("99999999999\n").contains("are more than"));
    }
}
