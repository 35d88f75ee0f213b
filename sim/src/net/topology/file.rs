//! Topologies as text: one node or link a line.
//!
//! ```text
//! # anything behind a number sign is a remark
//! host   a b c
//! switch s
//! link   a s 100Gbps 1us
//! link   b s 100Gbps 1us
//! link   s c 40Gbps  5us drop=0.1%
//! ```

use super::{Link, LinkSpec, NodeId, NodeKind, Topology};
use crate::net::units::{parse_rate, parse_time};
use roce_fault::FaultPlan;

/// What is wrong with a topology file, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TopologyFileError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
}

impl Topology {
    /// Reads the text form; links without rate or delay are like `default`. A fault plan may follow the delay, in
    /// the words of [`roce_fault::FaultPlan`].
    ///
    /// # Errors
    ///
    /// The first line that is wrong.
    pub fn parse(text: &str, default: LinkSpec) -> Result<Self, TopologyFileError> {
        let mut topology = Self::default();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let result = match words.split_first() {
                None => Ok(()),
                Some((&"host", names)) => topology.declare(names, NodeKind::Host),
                Some((&"switch", names)) => topology.declare(names, NodeKind::Switch),
                Some((&"link", rest)) => topology.declare_link(rest, default),
                Some((other, _)) => Err(format!("\"{other}\" is not one of host, switch, link")),
            };
            result.map_err(|reason| TopologyFileError { line: number + 1, reason })?;
        }
        Ok(topology)
    }

    fn declare(&mut self, names: &[&str], kind: NodeKind) -> Result<(), String> {
        if names.is_empty() {
            return Err("a name is missing".to_owned());
        }
        for name in names {
            if self.node_named(name).is_some() {
                return Err(format!("the name {name} is taken"));
            }
            self.add((*name).to_owned(), kind);
        }
        Ok(())
    }

    fn declare_link(&mut self, words: &[&str], default: LinkSpec) -> Result<(), String> {
        let [a, b, rest @ ..] = words else {
            return Err("a link needs the names of two nodes".to_owned());
        };
        let find = |name: &str| -> Result<NodeId, String> {
            self.node_named(name).ok_or_else(|| format!("there is no node {name} above this line"))
        };
        let (a, b) = (find(a)?, find(b)?);
        let mut spec = default;
        if let Some(rate) = rest.first() {
            spec.rate_bps = parse_rate(rate).map_err(|error| error.to_string())?;
        }
        if let Some(delay) = rest.get(1) {
            spec.delay = parse_time(delay).map_err(|error| error.to_string())?;
        }
        let faults = match rest.get(2..) {
            Some(words) if !words.is_empty() => {
                Some(words.join(" ").parse::<FaultPlan>().map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        self.links.push(Link { a, b, spec, faults });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Time;

    #[test]
    fn a_small_network() {
        let text = "# two hosts\nhost a b\nswitch s\nlink a s # default\nlink b s 40Gbps 5us drop=0.1%\n\n";
        let topology = Topology::parse(text, LinkSpec::DEFAULT).unwrap();
        topology.check().unwrap();
        assert_eq!((topology.hosts(), topology.links.len()), (2, 2));
        assert_eq!(topology.links[0].spec, LinkSpec::DEFAULT);
        assert_eq!(topology.links[1].spec, LinkSpec { rate_bps: 40_000_000_000, delay: Time::from_us(5) });
        assert!(topology.links[1].faults.is_some());
        assert_eq!(topology.host_named("b"), Some(1));
    }

    #[test]
    fn errors_name_the_line() {
        let cases = [
            ("host a\nhub b", "line 2: \"hub\" is not one of host, switch, link"),
            ("host a a", "line 1: the name a is taken"),
            ("host", "line 1: a name is missing"),
            ("host a\nlink a", "line 2: a link needs the names of two nodes"),
            ("host a\nlink a b", "line 2: there is no node b above this line"),
            ("host a b\nlink a b 1Gb", "line 2: \"1Gb\" is no rate; write for example \"100Gbps\""),
            ("host a b\nlink a b 1Gbps soon", "line 2: \"soon\" is no time; write for example \"1us\""),
        ];
        for (text, message) in cases {
            assert_eq!(Topology::parse(text, LinkSpec::DEFAULT).unwrap_err().to_string(), message);
        }
    }
}
