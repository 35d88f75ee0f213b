//! Counters as a list of names and values.

use std::fmt;

use super::Explanation;

/// A source of counters, such as a `Context` of the verbs.
pub trait CounterSource {
    /// Calls `visit` with the name and value of each counter, in the order of the documentation. Does not
    /// change any counter.
    fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64));

    /// Calls `visit` with the index of an engine, and the name and value of each of its counters that is not
    /// zero. Does nothing unless the counters are sums over several engines.
    fn visit_engine_counters(&self, _visit: &mut dyn FnMut(usize, &'static str, u64)) {}

    /// Returns explanations of at most `most` queue pairs: first those that have failed, then those with
    /// incomplete send requests, then the others.
    fn explanations(&self, _most: usize) -> Vec<Explanation> {
        Vec::new()
    }
}

/// All counters of a context at one moment: those of the engine, of connection management and of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    values: Vec<(&'static str, u64)>,
}

impl Snapshot {
    /// Reads the counters of a context.
    #[must_use]
    pub fn of(source: &impl CounterSource) -> Self {
        let mut values = Vec::new();
        source.visit_counters(&mut |name, value| values.push((name, value)));
        Self { values }
    }

    /// Returns names and values, in the order of the documentation.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.values.iter().copied()
    }

    /// Returns the value of a counter, or `None` if no counter has this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Returns the differences from an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference =
            |(name, value): (&'static str, u64)| (name, value.saturating_sub(earlier.get(name).unwrap_or(0)));
        Self { values: self.iter().map(difference).collect() }
    }
}

/// Prints one line for each counter that is not zero.
impl fmt::Display for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.iter().filter(|(_, value)| *value > 0) {
            writeln!(formatter, "{name:<32} {value}")?;
        }
        Ok(())
    }
}

/// Serializes one object with all counters, including zeros.
#[cfg(feature = "serde")]
impl serde::Serialize for Snapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}
