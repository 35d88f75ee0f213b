//! Parses TOML with lines in errors, suggestions for misspelled keys, and without control characters.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::ScenarioError;

/// Parses TOML into `T`.
///
/// # Errors
///
/// Returns an error if the text is not TOML or not a `T`. The error for an unknown key names a similar known
/// key. Control characters are rejected, because names and texts of a scenario are printed on terminals,
/// which interpret them.
pub fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, ScenarioError> {
    let wrong = |error: toml::de::Error| {
        let reason = suggestion(error.message()).unwrap_or_else(|| error.message().to_owned());
        ScenarioError::at(text, error.span(), reason)
    };
    let table: Table = toml::from_str(text).map_err(wrong)?;
    if let Some(found) = in_table(&table) {
        let reason = format!("a key or text contains the control character {}", found.escape_unicode());
        return Err(ScenarioError { line: None, reason });
    }
    toml::from_str(text).map_err(wrong)
}

/// Returns the message about an unknown key that resembles one of the expected keys. Serde lists the keys
/// between backticks.
fn suggestion(message: &str) -> Option<String> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let name = quoted.next()?;
    let known = roce_fault::closest(name, quoted)?;
    Some(format!("unknown field `{name}`, did you mean `{known}`?"))
}

/// Returns the first control character of a table.
fn in_table(table: &Table) -> Option<char> {
    table
        .iter()
        .find_map(|(key, value)| key.chars().find(|sign| sign.is_control()).or_else(|| in_value(value)))
}

/// Returns the first control character of a value. Strings can contain line breaks and tabs.
fn in_value(value: &Value) -> Option<char> {
    match value {
        Value::String(text) => text.chars().find(|sign| sign.is_control() && !"\n\r\t".contains(*sign)),
        Value::Array(values) => values.iter().find_map(in_value),
        Value::Table(table) => in_table(table),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scenario;

    fn error_of(text: &str) -> String {
        Scenario::parse(text, &|_| Err(String::new())).unwrap_err().to_string()
    }

    #[test]
    fn a_misspelled_key_is_answered_with_the_known_one() {
        let text = "name = \"x\"\n[topology]\nkind = \"star\"\nhots = 3\n";
        assert_eq!(error_of(text), "line 4: unknown field `hots`, did you mean `hosts`?");
        let unlike = error_of("name = \"x\"\nzzzzzz = 1\n");
        assert!(unlike.contains("unknown field `zzzzzz`, expected one of"), "{unlike}");
    }

    /// Regression: keys and names were printed with their escape sequences.
    #[test]
    fn control_characters_are_refused_wherever_they_stand() {
        for text in [
            "\"a\\u001b[2J\" = 1",
            "name = \"\\u001b]0;title\\u0007\"",
            "[topology]\n\"\\u009b31m\" = 1",
            "[[flows]]\nto = [\"h\\u00001\"]",
        ] {
            let error = error_of(text);
            assert!(error.contains("contains the control character \\u{"), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
