//! Parsing of scenarios, also with replaced values.

use std::cell::RefCell;

use super::build::build;
use super::file::File;
use super::reading::read_toml;
use super::{Load, Own, Scenario, ScenarioError, Whole};

impl Scenario {
    /// Parses a scenario. `load` returns the files that it names.
    ///
    /// # Errors
    ///
    /// Returns the first error with its line.
    pub fn parse(text: &str, load: &Load<'_>) -> Result<Self, ScenarioError> {
        Self::parse_whole(text, load, &Own::NONE)
    }

    /// Like [`parse`](Self::parse), without the flows, collective operations, training steps and workloads,
    /// which may be missing: for [`network`](Self::network).
    ///
    /// # Errors
    ///
    /// Returns the first error of another table with its line.
    pub fn parse_network(text: &str, load: &Load<'_>) -> Result<Self, ScenarioError> {
        Self::parse_network_among(text, load, &Own::NONE)
    }

    /// Like [`parse_network`](Self::parse_network), but the scenario can also name what is in `own`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse_network`].
    pub fn parse_network_among(text: &str, load: &Load<'_>, own: &Own) -> Result<Self, ScenarioError> {
        let mut file: File = read_toml(text)?;
        (file.flows, file.collective, file.training) = (Vec::new(), Vec::new(), Vec::new());
        file.workload = Vec::new();
        Self::of_file(text, file, load, own)
    }

    fn parse_whole(text: &str, load: &Load<'_>, own: &Own) -> Result<Self, ScenarioError> {
        let scenario = Self::of_file(text, read_toml(text)?, load, own)?;
        if !scenario.sends() {
            let reason =
                "nothing is sent: add a [[flows]], [[collective]], [[training]] or [[workload]] table";
            let reason = reason.to_owned();
            return Err(ScenarioError { line: None, reason });
        }
        Ok(scenario)
    }

    fn of_file(text: &str, mut file: File, load: &Load<'_>, own: &Own) -> Result<Self, ScenarioError> {
        let files = std::mem::take(&mut file.files);
        let load = |name: &str| files.get(name).map_or_else(|| load(name), |text| Ok(text.clone()));
        build(text, file, &load, own)
    }

    /// Like [`parse_among`](Self::parse_among), but returns a [`Whole`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse_with`].
    pub fn parse_whole_with(
        text: &str,
        replaced: &[(String, String)],
        load: &Load<'_>,
        own: &Own,
    ) -> Result<Whole, ScenarioError> {
        let named = RefCell::new(toml::Table::new());
        let kept = |name: &str| {
            let text = load(name)?;
            named.borrow_mut().insert(name.to_owned(), toml::Value::String(text.clone()));
            Ok(text)
        };
        let scenario = Self::parse_among(text, replaced, &kept, own)?;
        let is_unchanged = replaced.is_empty()
            || Self::parse_whole(text, load, own).is_ok_and(|unchanged| unchanged == scenario);
        let mut table = replaced_table(text, replaced)?;
        if !is_unchanged {
            table.remove("expect");
            table.remove("expectation");
        }
        if !named.borrow().is_empty() {
            let files = table.entry("files").or_insert_with(|| toml::Table::new().into());
            if let toml::Value::Table(files) = files {
                files.extend(named.into_inner());
            }
        }
        let text = text_of(&table)?;
        for key in ["description", "expectation", "open_ended", "expect", "sweep"] {
            table.remove(key);
        }
        Ok(Whole { scenario, text, input: text_of(&table)?, is_unchanged })
    }

    /// Like [`parse`](Self::parse), with values replaced: `("host.congestion", "dcqcn:paper")`. A name is the
    /// path of tables to the key, with the index of an element for lists (`flows.0.bytes`). A value that is
    /// not valid TOML is used as a string.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse`]. Errors after the replacement have no line.
    pub fn parse_with(
        text: &str,
        replaced: &[(String, String)],
        load: &Load<'_>,
    ) -> Result<Self, ScenarioError> {
        Self::parse_among(text, replaced, load, &Own::NONE)
    }

    /// Like [`parse_with`](Self::parse_with), but the scenario can also name what is in `own`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::parse_with`].
    pub fn parse_among(
        text: &str,
        replaced: &[(String, String)],
        load: &Load<'_>,
        own: &Own,
    ) -> Result<Self, ScenarioError> {
        if replaced.is_empty() {
            return Self::parse_whole(text, load, own);
        }
        let table = replaced_table(text, replaced)?;
        let whole = text_of(&table)?;
        Self::parse_whole(&whole, load, own).map_err(|error| {
            let values: Vec<String> =
                replaced.iter().map(|(name, value)| format!("{name}={value}")).collect();
            ScenarioError { line: None, reason: format!("with {}: {}", values.join(" "), error.reason) }
        })
    }
}

fn text_of(table: &toml::Table) -> Result<String, ScenarioError> {
    toml::to_string(table).map_err(|error| ScenarioError { line: None, reason: error.to_string() })
}

/// Returns the tables of a scenario with values replaced. Errors before the replacement have a line.
fn replaced_table(text: &str, replaced: &[(String, String)]) -> Result<toml::Table, ScenarioError> {
    let mut table: toml::Table = read_toml(text)?;
    for (name, value) in replaced {
        let reason = |reason: String| ScenarioError { line: None, reason: format!("{name}: {reason}") };
        replace(&mut table, name, value).map_err(reason)?;
    }
    Ok(table)
}

/// Sets one value by its path.
fn replace(table: &mut toml::Table, name: &str, value: &str) -> Result<(), String> {
    let parts: Vec<&str> = name.split('.').collect();
    let Some((last, path)) = parts.split_last() else { return Err("a name is missing".to_owned()) };
    let mut root = toml::Value::Table(std::mem::take(table));
    let mut at = &mut root;
    for part in path {
        at = child(at, part)?;
    }
    let value = parse_value(value);
    match at {
        toml::Value::Table(inner) => {
            inner.insert((*last).to_owned(), value);
        }
        toml::Value::Array(list) => {
            let index: usize = last.parse().map_err(|_| format!("{last} is not the number of an element"))?;
            *list.get_mut(index).ok_or_else(|| format!("there is no element {index}"))? = value;
        }
        _ => return Err(format!("{last} is not in a table")),
    }
    if let toml::Value::Table(changed) = root {
        *table = changed;
    }
    Ok(())
}

fn child<'a>(value: &'a mut toml::Value, part: &str) -> Result<&'a mut toml::Value, String> {
    match value {
        toml::Value::Table(table) => {
            Ok(table.entry(part.to_owned()).or_insert_with(|| toml::Value::Table(toml::Table::new())))
        }
        toml::Value::Array(list) => {
            let index: usize = part.parse().map_err(|_| format!("{part} is not the number of an element"))?;
            list.get_mut(index).ok_or_else(|| format!("there is no element {index}"))
        }
        _ => Err(format!("{part} is not in a table")),
    }
}

fn parse_value(text: &str) -> toml::Value {
    toml::from_str::<toml::Table>(&format!("value = {text}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(text.to_owned()))
}
