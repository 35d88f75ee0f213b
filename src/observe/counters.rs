//! Counters as a list of names and values.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::verbs::Context;

/// All counters of a context at one moment: the engine's, the driver's and the device's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    values: Vec<(&'static str, u64)>,
}

impl Snapshot {
    /// Reads the counters of `context`. Reading changes none of them.
    #[must_use]
    pub fn of(context: &Context) -> Self {
        let mut values = Vec::new();
        context.visit_counters(&mut |name, value| values.push((name, value)));
        Self { values }
    }

    /// Names and values, in the order of the documentation.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.values.iter().copied()
    }

    /// The value of a counter, if there is one with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// What has been counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let difference =
            |(name, value): (&'static str, u64)| (name, value.saturating_sub(earlier.get(name).unwrap_or(0)));
        Self { values: self.iter().map(difference).collect() }
    }
}

/// One line for each counter that is not zero.
impl fmt::Display for Snapshot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.iter().filter(|(_, value)| *value > 0) {
            writeln!(formatter, "{name:<32} {value}")?;
        }
        Ok(())
    }
}

/// One object with every counter, zeros included.
impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}
