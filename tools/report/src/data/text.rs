//! Texts that tables, CSV files and pages share.

use roce_transport::congestion::Congestion;

/// The text for a value that was not measured.
pub const NOT_MEASURED: &str = "\u{2013}";

/// Formats set values in the syntax of the command line.
#[must_use]
pub fn assignments(set: &[(String, String)]) -> String {
    set.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Formats congestion control in the syntax of `host.congestion`.
pub(crate) fn congestion_text(congestion: &Congestion) -> String {
    format!("{}{}", congestion.algorithm, if congestion.echo { ",echo=1" } else { "" })
}

/// Quotes a field of a CSV file as RFC 4180 specifies.
pub(crate) fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_congestion_control_parses_to_the_same_value() {
        for text in ["none", "fixed:10G", "dcqcn:paper,rpg_ai_rate=40", "swift", "timely", "none,echo=1"] {
            let (congestion, _) = Congestion::parse(text).unwrap();
            let printed = congestion_text(&congestion);
            assert_eq!(Congestion::parse(&printed).unwrap().0, congestion, "{text} is printed as {printed}");
        }
    }

    #[test]
    fn values_with_commas_are_quoted() {
        assert_eq!(quoted("dcqcn:paper,rpg_ai_rate=40"), "\"dcqcn:paper,rpg_ai_rate=40\"");
        assert_eq!(quoted("{ kmin = \"5KB\" }"), "\"{ kmin = \"\"5KB\"\" }\"");
        assert_eq!(quoted("40"), "40");
    }
}
