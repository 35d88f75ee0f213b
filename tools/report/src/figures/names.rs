//! Words for the names and values of a scenario, for axes, legends and captions.

use roce_transport::units;

use crate::data::groups::Group;

/// Algorithms by their names in scenarios, as papers write them.
const ALGORITHMS: [(&str, &str); 10] = [
    ("dcqcn", "DCQCN"),
    ("dctcp", "DCTCP"),
    ("fixed", "fixed rate"),
    ("hpcc", "HPCC"),
    ("none", "no congestion control"),
    ("nscc", "NSCC"),
    ("powertcp", "PowerTCP"),
    ("swift", "Swift"),
    ("theta-powertcp", "theta-PowerTCP"),
    ("timely", "TIMELY"),
];

/// Words for the ends of names of values.
const WORDS: [(&str, &str); 21] = [
    ("host.congestion", "congestion control"),
    ("host.recovery", "loss recovery"),
    ("host.window", "window of a queue pair, packets"),
    ("host.application", "application"),
    ("host.delay", "delay of a host"),
    ("host.path_mtu", "path MTU, bytes"),
    ("switch.balance", "load balancing"),
    ("switch.rules", "rules of switches"),
    ("switch.buffer", "buffer of a switch"),
    ("switch.trimming", "trimming"),
    ("switch.marking.kmin", "start of ECN marking (kmin)"),
    ("switch.marking.kmax", "end of ECN marking (kmax)"),
    ("switch.marking.pmax", "ECN marking probability (pmax)"),
    ("topology.hosts", "hosts"),
    ("topology.rate", "rate of a link to a host"),
    ("topology.delay", "delay of a link to a host"),
    ("topology.fabric_rate", "rate of a link between switches"),
    ("topology.fabric_delay", "delay of a link between switches"),
    (".degree", "senders"),
    (".bytes", "size of a flow"),
    (".load", "load"),
];

/// Returns words for the name of a value, such as `flows.0.degree`.
pub(crate) fn words(name: &str) -> String {
    if let Some((_, words)) = WORDS.iter().find(|(end, _)| name.ends_with(end)) {
        return (*words).to_owned();
    }
    // Numbers of tables do not help a reader.
    let parts = name.split('.').filter(|part| part.parse::<usize>().is_err());
    parts.collect::<Vec<_>>().join(" ").replace('_', " ")
}

/// Returns an algorithm as papers write it, with its parameters in parentheses.
pub(crate) fn algorithm(text: &str) -> String {
    let end = text.find([':', ',']).unwrap_or(text.len());
    let (name, parameters) = text.split_at(end);
    let known = ALGORITHMS.iter().find(|(known, _)| *known == name).map(|(_, title)| *title);
    match parameters.get(1..).unwrap_or_default() {
        "" => known.unwrap_or(name).to_owned(),
        parameters => format!("{} ({})", known.unwrap_or(name), parameters.replace(',', ", ")),
    }
}

/// Returns the algorithm of congestion control without its parameters.
pub(crate) fn algorithm_alone(text: &str) -> String {
    algorithm(text.split([':', ',']).next().unwrap_or_default())
}

/// The name of the value with an algorithm.
const CONGESTION: &str = "host.congestion";

/// Returns the value of a group.
pub(crate) fn value_of<'a>(group: &'a Group<'_>, name: &str) -> Option<&'a str> {
    group.set.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Returns the names of groups in a legend: the values that differ between them.
pub(crate) fn labels(groups: &[Group<'_>], names: &[&String]) -> Vec<String> {
    let congestion = || groups.iter().filter_map(|group| value_of(group, CONGESTION));
    let mut whole: Vec<&str> = congestion().collect();
    let mut alone: Vec<String> = congestion().map(algorithm_alone).collect();
    for_distinct(&mut whole);
    for_distinct(&mut alone);
    // Parameters stand only in the legend if an algorithm occurs with several.
    let is_short = whole.len() == alone.len();
    let one = |group: &Group<'_>, name: &&String| {
        let value = value_of(group, name)?;
        Some(match name.as_str() {
            CONGESTION if is_short => algorithm_alone(value),
            CONGESTION => algorithm(value),
            _ => format!("{} {value}", words(name)),
        })
    };
    let label = |group: &Group<'_>| {
        let parts: Vec<String> = names.iter().filter_map(|name| one(group, name)).collect();
        if parts.is_empty() { "all flows".to_owned() } else { parts.join(", ") }
    };
    groups.iter().map(label).collect()
}

fn for_distinct<T: Ord>(values: &mut Vec<T>) {
    values.sort();
    values.dedup();
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number without a unit.
    Number,
    /// Gb/s.
    Rate,
    /// Microseconds.
    Time,
    /// KB.
    Size,
}

/// Ends of names whose values are bytes if they have no unit.
const BYTES: [&str; 6] = [".bytes", ".buffer", ".kmin", ".kmax", ".step", ".message"];

impl Unit {
    /// Returns the end of the label of a name whose values have this unit.
    pub(crate) fn text(self, name: &str) -> &'static str {
        match self {
            Self::Number if BYTES.iter().any(|end| name.ends_with(end)) => ", bytes",
            Self::Number => "",
            Self::Rate => ", Gb/s",
            Self::Time => ", \u{b5}s",
            Self::Size => ", KB",
        }
    }
}

/// Parses a value with or without a unit.
pub(crate) fn number(text: &str) -> Option<(f64, Unit)> {
    let plain = text.parse().ok().map(|number| (number, Unit::Number));
    let rate = || units::rate(text).ok().map(|bps| (bps as f64 / 1e9, Unit::Rate));
    let time = || units::duration_ps(text).ok().map(|ps| (ps as f64 / 1e6, Unit::Time));
    let size = || units::size(text).ok().map(|bytes| (bytes as f64 / 1e3, Unit::Size));
    plain.or_else(rate).or_else(time).or_else(size).filter(|(value, _): &(f64, Unit)| value.is_finite())
}

/// Returns the seeds of runs as text.
pub(crate) fn seeds(mut seeds: Vec<u64>) -> String {
    const MOST: usize = 10;
    for_distinct(&mut seeds);
    let is_row = seeds.windows(2).all(|pair| pair[1] - pair[0] == 1);
    match (seeds.first(), seeds.last()) {
        (Some(first), Some(last)) if first == last => format!("seed {first}"),
        (Some(first), Some(last)) if is_row => format!("seeds {first} to {last}"),
        (Some(first), Some(last)) if seeds.len() > MOST => {
            format!("{} seeds between {first} and {last}", seeds.len())
        }
        _ => {
            let texts: Vec<String> = seeds.iter().map(u64::to_string).collect();
            format!("seeds {}", texts.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_units_are_numbers() {
        assert_eq!(number("16"), Some((16.0, Unit::Number)));
        assert_eq!(number("40Gbps"), Some((40.0, Unit::Rate)));
        assert_eq!(number("100KB"), Some((100.0, Unit::Size)));
        assert_eq!(number("5ms"), Some((5_000.0, Unit::Time)));
        assert_eq!((number("dcqcn:paper"), number("{ off = true }")), (None, None));
        let unit = |unit: Unit| words("flows.0.bytes") + unit.text("flows.0.bytes");
        assert_eq!(
            (unit(Unit::Number).as_str(), unit(Unit::Size).as_str()),
            ("size of a flow, bytes", "size of a flow, KB")
        );
        assert_eq!(Unit::Number.text("flows.0.degree"), "");
    }

    #[test]
    fn names_have_words() {
        assert_eq!(words("flows.0.degree"), "senders");
        assert_eq!(words("measure.warm_up"), "measure warm up");
        assert_eq!(algorithm("dcqcn:paper,rpg_ai_rate=40"), "DCQCN (paper, rpg_ai_rate=40)");
        assert_eq!((algorithm("hpcc").as_str(), algorithm("mine:2").as_str()), ("HPCC", "mine (2)"));
        assert_eq!(algorithm_alone("swift,echo=1"), "Swift");
    }

    #[test]
    fn seeds_are_named() {
        assert_eq!((seeds(vec![7]).as_str(), seeds(vec![3, 1, 2]).as_str()), ("seed 7", "seeds 1 to 3"));
        assert_eq!(seeds(vec![9, 1, 1]), "seeds 1, 9");
        assert_eq!(seeds((0..12).map(|n| 3 * n).collect()), "12 seeds between 0 and 33");
    }

    #[test]
    fn labels_have_parameters_only_to_tell_algorithms_apart() {
        let group = |values: &[(&str, &str)]| Group {
            set: values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            runs: Vec::new(),
        };
        let names = [CONGESTION.to_owned(), "flows.0.degree".to_owned()];
        let names: Vec<&String> = names.iter().collect();
        let two = [
            group(&[(CONGESTION, "dcqcn:paper"), ("flows.0.degree", "8")]),
            group(&[(CONGESTION, "swift"), ("flows.0.degree", "8")]),
        ];
        assert_eq!(labels(&two, &names), ["DCQCN, senders 8", "Swift, senders 8"]);
        let same = [group(&[(CONGESTION, "dcqcn:paper")]), group(&[(CONGESTION, "dcqcn")])];
        assert_eq!(labels(&same, &names), ["DCQCN (paper)", "DCQCN"]);
        assert_eq!(labels(&same, &[]), ["all flows", "all flows"]);
    }
}
