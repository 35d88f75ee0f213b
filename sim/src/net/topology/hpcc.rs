//! Topology files of the simulators of HPCC and ConWeave.

use roce_fault::FaultPlan;
use roce_transport::units;

use super::{Link, LinkSpec, NodeId, NodeKind, Topology, TopologyFileError};
use crate::net::Time;

/// The maximum number of nodes or links.
const MOST: usize = 1 << 20;

impl Topology {
    /// Parses the format of HPCC's and ConWeave's simulators: the numbers of nodes, switches and links; the
    /// numbers of the switches; and for each link two nodes, rate, delay and the share of lost frames. The
    /// name of a node is its number in the file.
    ///
    /// # Errors
    ///
    /// Returns the first line with an error.
    pub fn parse_hpcc(text: &str) -> Result<Self, TopologyFileError> {
        let mut words = Words { words: words_of(text), next: 0 };
        let nodes = words.count("the number of nodes")?;
        let switches = words.count("the number of switches")?;
        let links = words.count("the number of links")?;
        let mut kinds = vec![NodeKind::Host; nodes];
        for _ in 0..switches {
            let switch = words.node("the number of a switch", nodes)?;
            kinds[switch] = NodeKind::Switch;
        }
        let mut topology = Self::default();
        for (number, kind) in kinds.into_iter().enumerate() {
            topology.add(number.to_string(), kind);
        }
        for _ in 0..links {
            let (a, b) = (words.node("a node of a link", nodes)?, words.node("a node of a link", nodes)?);
            let (line, rate) = words.next("the rate of a link")?;
            let rate_bps = units::rate(rate).map_err(|error| wrong(line, error.to_string()))?;
            let (line, delay) = words.next("the delay of a link")?;
            let delay = units::duration_ps(delay).map_err(|error| wrong(line, error.to_string()))?;
            let (line, loss) = words.next("the error rate of a link")?;
            let faults = faults(loss).map_err(|reason| wrong(line, reason))?;
            let spec = LinkSpec { rate_bps, delay: Time::from_ps(delay) };
            topology.links.push(Link {
                a: a as NodeId,
                b: b as NodeId,
                spec,
                faults: [faults.clone(), faults],
            });
        }
        Ok(topology)
    }
}

/// The words of a file, each with the number of its line.
struct Words<'a> {
    words: Vec<(usize, &'a str)>,
    next: usize,
}

fn words_of(text: &str) -> Vec<(usize, &str)> {
    let lines = (1..).zip(text.lines());
    lines.flat_map(|(line, text)| text.split_whitespace().map(move |word| (line, word))).collect()
}

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Result<(usize, &'a str), TopologyFileError> {
        let Some(word) = self.words.get(self.next) else {
            let last = self.words.last().map_or(1, |(line, _)| *line);
            return Err(wrong(last, format!("the file ends, but {what} is missing")));
        };
        self.next += 1;
        Ok(*word)
    }

    fn count(&mut self, what: &str) -> Result<usize, TopologyFileError> {
        let (line, word) = self.next(what)?;
        let count = word.parse::<usize>().ok().filter(|count| *count <= MOST);
        count.ok_or_else(|| {
            wrong(line, format!("\"{word}\" is not {what}, which is a whole number up to {MOST}"))
        })
    }

    fn node(&mut self, what: &str, nodes: usize) -> Result<usize, TopologyFileError> {
        let (line, word) = self.next(what)?;
        let number = word.parse::<usize>().ok().filter(|number| *number < nodes);
        let last = nodes.saturating_sub(1);
        number.ok_or_else(|| {
            wrong(line, format!("\"{word}\" is not a node; they are numbered from 0 to {last}"))
        })
    }
}

fn wrong(line: usize, reason: String) -> TopologyFileError {
    TopologyFileError { line, reason }
}

fn faults(loss: &str) -> Result<Option<FaultPlan>, String> {
    let share = loss.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    let share =
        share.ok_or_else(|| format!("\"{loss}\" is not an error rate, which is a number from 0 to 1"))?;
    if share == 0.0 {
        return Ok(None);
    }
    let plan: FaultPlan = format!("drop={}%", share * 100.0).parse().map_err(|error| format!("{error}"))?;
    Ok(Some(plan))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_network() {
        let text =
            "4 1 3\n0\n1 0 25Gbps 0.001ms 0\n2 0 25Gbps 1us 0.000000\n0 3 100Gbps 1000ns 0.01\n\nsrc dst\n";
        let topology = Topology::parse_hpcc(text).unwrap();
        topology.check().unwrap();
        assert_eq!((topology.hosts(), topology.links.len()), (3, 3));
        assert_eq!(topology.host_named("1"), Some(0));
        assert_eq!(topology.links[0].spec, LinkSpec { rate_bps: 25_000_000_000, delay: Time::from_us(1) });
        assert!(
            topology.links[1].faults == [None, None] && topology.links[2].faults.iter().all(Option::is_some)
        );
        assert_eq!(topology.links[2].spec.delay, Time::from_us(1));
    }

    #[test]
    fn errors_name_the_line() {
        let message = |text: &str| Topology::parse_hpcc(text).unwrap_err().to_string();
        assert_eq!(message(""), "line 1: the file ends, but the number of nodes is missing");
        assert_eq!(message("2 1 1\n\n0\n"), "line 3: the file ends, but a node of a link is missing");
        assert_eq!(message("2 1 1\n5"), "line 2: \"5\" is not a node; they are numbered from 0 to 1");
        assert!(message("2 1 1\n0\n0 1 fast").starts_with("line 3: \"fast\" is not a rate"));
        assert!(message("2 1 1\n0\n0 1 1Gbps 1us 2").starts_with("line 3: \"2\" is not an error rate"));
        assert!(message("99999999999 1 1").starts_with("line 1: \"99999999999\" is not the number of nodes"));
    }
}
