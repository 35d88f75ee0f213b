//! A condition of a scenario, with the figure of a run.

use serde::{Deserialize, Serialize};

use super::text::NOT_MEASURED;

/// A condition and the figure of a run.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Expected {
    /// The name of the figure.
    pub metric: String,
    /// The sign of the relation, such as `<`.
    pub relation: String,
    /// The value that the figure is compared with; `None` for a figure that was not measured.
    pub value: Option<f64>,
    /// The name of the figure that it is compared with, if it is not a number.
    pub value_of: Option<String>,
    /// The figure of the run; `None` if it was not measured.
    pub measured: Option<f64>,
    /// Whether the condition is met. A figure that was not measured does not meet it.
    pub met: bool,
}

impl Expected {
    /// Returns the condition as text, without the verdict.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { metric, relation, .. } = self;
        let short =
            |value: Option<f64>| value.map_or_else(|| NOT_MEASURED.to_owned(), |value| shown(metric, value));
        let (measured, value) = (short(self.measured), short(self.value));
        match &self.value_of {
            None => format!("{metric} is {measured}, expected {relation} {value}"),
            Some(name) => format!("{metric} is {measured}, expected {relation} {name}, which is {value}"),
        }
    }

    /// Returns the verdict as text.
    #[must_use]
    pub const fn verdict(&self) -> &'static str {
        if self.met { "met" } else { "NOT MET" }
    }
}

/// Formats a figure with four digits, in a human-readable unit.
fn shown(metric: &str, value: f64) -> String {
    let units = [("bits_per_second", 1e-9, " Gb/s"), ("seconds", 1e3, " ms"), ("bytes", 1e-3, " KB")];
    let (_, scale, unit) = units.into_iter().find(|(end, ..)| metric.ends_with(end)).unwrap_or(("", 1.0, ""));
    format!("{}{unit}", (value * scale * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_name_the_figure() {
        let expected = |metric: &str, relation: &str, value, measured| Expected {
            metric: metric.into(),
            relation: relation.into(),
            value: Some(value),
            value_of: None,
            measured,
            met: false,
        };
        assert_eq!(expected("dropped", "=", 0.0, Some(12.0)).text(), "dropped is 12, expected = 0");
        assert_eq!(expected("jain", ">", 0.9, None).text(), "jain is \u{2013}, expected > 0.9");
        let other =
            Expected { value_of: Some("flows.1.slowdown".into()), ..expected("p", "<", 2.5, Some(2.0)) };
        assert_eq!(other.text(), "p is 2, expected < flows.1.slowdown, which is 2.5");
        assert_eq!(shown("flows.0.goodput_bits_per_second", 3.4e10), "34 Gb/s");
        assert_eq!(shown("completion_max_seconds", 0.012_345_678), "12.3457 ms");
        assert_eq!(shown("queue_p50_bytes", 190_464.0), "190.464 KB");
    }
}
