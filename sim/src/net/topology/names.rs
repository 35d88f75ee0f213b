//! Suggestions for unknown names.

use super::{Node, NodeKind, Topology};

/// The maximum number of names that an error lists.
const MOST_NAMES: usize = 3;
/// The maximum length of compared names. The time grows with the product of the lengths.
const LONGEST: usize = 64;

impl Topology {
    /// Returns the end of an error about an unknown name: similar names, otherwise existing names.
    #[must_use]
    pub fn hint(&self, name: &str, kind: Option<NodeKind>) -> String {
        let near = self.near_names(name, kind);
        if !near.is_empty() {
            return format!("; near names are {}", near.join(", "));
        }
        let of_kind = |node: &&Node| kind.is_none_or(|kind| node.kind == kind);
        let names: Vec<&str> = self.nodes.iter().filter(of_kind).map(|node| node.name.as_str()).collect();
        let what = match kind {
            Some(NodeKind::Host) => "hosts",
            Some(NodeKind::Switch) => "switches",
            None => "nodes",
        };
        match &names[..] {
            [] => format!("; there are no {what}"),
            [first @ .., last] if first.len() > MOST_NAMES => {
                let first = first[..MOST_NAMES].join(", ");
                format!("; the {} {what} are {first} and so on, the last one is {last}", names.len())
            }
            all => format!("; the {what} are {}", all.join(", ")),
        }
    }

    /// Returns names of nodes of a kind, or of all nodes, that differ from `name` in few letters, closest
    /// first.
    fn near_names(&self, name: &str, kind: Option<NodeKind>) -> Vec<&str> {
        if name.len() > LONGEST {
            return Vec::new();
        }
        let most = (name.len() / 3).max(1);
        let of_kind = |node: &&Node| kind.is_none_or(|kind| node.kind == kind) && node.name.len() <= LONGEST;
        let nodes = self.nodes.iter().filter(of_kind);
        let mut near: Vec<(usize, usize, &str)> = nodes
            .enumerate()
            .map(|(place, node)| (distance(name, &node.name), place, node.name.as_str()))
            .filter(|(distance, ..)| *distance <= most)
            .collect();
        near.sort_unstable();
        near.into_iter().take(MOST_NAMES).map(|(.., name)| name).collect()
    }
}

/// Returns the number of letters to insert, remove or replace (Levenshtein distance), ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, letter) in a.to_lowercase().chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::LinkSpec;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("leaf1", "leaf1", 0),
            ("Leaf1", "leaf1", 0),
            ("leef1", "leaf1", 1),
            ("h", "spine", 5),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }

    #[test]
    fn near_names_are_few_and_of_the_kind() {
        let topology = Topology::leaf_spine(2, 2, 2, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        assert_eq!(topology.near_names("leef1", None), ["leaf1"]);
        assert_eq!(topology.near_names("h9", Some(NodeKind::Host)), ["h0", "h1", "h2"]);
        assert_eq!(topology.near_names("h9", Some(NodeKind::Switch)), [""; 0]);
        assert_eq!(topology.near_names(&"h".repeat(100), None), [""; 0]);
        assert_eq!(topology.hint("leef1", None), "; near names are leaf1");
        assert_eq!(topology.hint("server", Some(NodeKind::Host)), "; the hosts are h0, h1, h2, h3");
        assert_eq!(Topology::default().hint("h0", Some(NodeKind::Host)), "; there are no hosts");
    }

    /// Regression: without similar names, the hint listed hosts `h0` to `h7`, which a network of rails does
    /// not have.
    #[test]
    fn names_of_a_hint_exist() {
        let topology = Topology::rail_optimised(4, 2, 1, LinkSpec::DEFAULT, LinkSpec::DEFAULT).unwrap();
        let hint = topology.hint("h0", Some(NodeKind::Host));
        assert_eq!(hint, "; the 8 hosts are h0r0, h0r1, h1r0 and so on, the last one is h3r1");
        assert_eq!(topology.hint("leaf", Some(NodeKind::Switch)), "; the switches are rail0, rail1, spine0");
    }
}
