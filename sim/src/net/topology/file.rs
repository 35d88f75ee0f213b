//! Topology files: one declaration of nodes or of a link per line.
//!
//! ```text
//! # a number sign starts a comment
//! host   a b c
//! switch s
//! link   a s 100Gbps 1us
//! link   b s 100Gbps 1us
//! link   s c 40Gbps  5us drop=0.1%
//! ```

use roce_transport::units;

use super::{Link, LinkSpec, NodeId, NodeKind, Topology};
use crate::net::Time;
use roce_fault::FaultPlan;

/// An error in a topology file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TopologyFileError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The reason.
    pub reason: String,
}

impl Topology {
    /// Parses the text form. A link without a rate or delay uses that of `default`. A fault plan can follow
    /// the delay, in the syntax of [`roce_fault::FaultPlan`].
    ///
    /// # Errors
    ///
    /// Returns the first line with an error.
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
            spec.rate_bps = units::rate(rate).map_err(|error| error.to_string())?;
        }
        if let Some(delay) = rest.get(1) {
            spec.delay = Time::from_ps(units::duration_ps(delay).map_err(|error| error.to_string())?);
        }
        let faults = match rest.get(2..) {
            Some(words) if !words.is_empty() => {
                Some(words.join(" ").parse::<FaultPlan>().map_err(|error| error.to_string())?)
            }
            _ => None,
        };
        self.links.push(Link { a, b, spec, faults: [faults.clone(), faults] });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_network() {
        let text = "# two hosts\nhost a b\nswitch s\nlink a s # default\nlink b s 40Gbps 5us drop=0.1%\n\n";
        let topology = Topology::parse(text, LinkSpec::DEFAULT).unwrap();
        topology.check().unwrap();
        assert_eq!((topology.hosts(), topology.links.len()), (2, 2));
        assert_eq!(topology.links[0].spec, LinkSpec::DEFAULT);
        assert_eq!(topology.links[1].spec, LinkSpec { rate_bps: 40_000_000_000, delay: Time::from_us(5) });
        assert!(topology.links[1].faults.iter().all(Option::is_some));
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
            (
                "host a b\nlink a b 1Gb",
                "line 2: \"1Gb\" is not a rate; write for example 10Gbps; the units are bps, Kbps, Mbps, Gbps and Tbps",
            ),
            ("host a b\nlink a b 1Gbps soon", "line 2: \"soon\" is not a time; write for example 50us"),
        ];
        for (text, message) in cases {
            assert_eq!(Topology::parse(text, LinkSpec::DEFAULT).unwrap_err().to_string(), message);
        }
    }
}
