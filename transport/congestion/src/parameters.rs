//! Parameters of algorithms: a table of names, units and ranges for each algorithm, and `name=value` text.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

/// One parameter, as listed by tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name in text. For DCQCN it is the name in the hardware.
    pub name: &'static str,
    /// Another accepted name, used in the kernel's debugfs, or the empty string.
    pub alias: &'static str,
    /// The unit of the values, for example `us`; empty for a bare number.
    pub unit: &'static str,
    /// The allowed values.
    pub range: ParameterRange,
    /// The effect, in one line.
    pub meaning: &'static str,
}

/// The allowed values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterRange {
    /// A whole number in this inclusive range.
    Number(u32, u32),
    /// One of these words.
    Words(&'static [&'static str]),
}

impl fmt::Display for ParameterRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(least, most) => write!(formatter, "{least} to {most}"),
            Self::Words(words) => formatter.write_str(&words.join(", ")),
        }
    }
}

impl ParameterRange {
    fn read(&self, text: &str) -> Option<u32> {
        match self {
            Self::Number(least, most) => {
                text.parse().ok().filter(|value: &u32| (*least..=*most).contains(value))
            }
            Self::Words(words) => {
                words.iter().position(|word| *word == text).and_then(|index| u32::try_from(index).ok())
            }
        }
    }
}

/// An error in the text of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// The text has no value.
    #[error("{text:?} is not of the form name=value")]
    Form {
        /// The piece of text.
        text: String,
    },
    /// The parameter does not exist.
    #[error("there is no parameter {name:?}; there {}{known}", if known.is_empty() { "are none" } else { "are " })]
    Unknown {
        /// The given name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The value is out of range or not a number.
    #[error("{name} is {value:?} and must be {range}{}{unit}", if unit.is_empty() { "" } else { " " })]
    OutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// The given value.
        value: String,
        /// The allowed values.
        range: ParameterRange,
        /// Unit of the parameter.
        unit: &'static str,
    },
}

/// Parameters with their values as text.
pub type List = Vec<(&'static Parameter, String)>;

/// A field type of a set of parameters.
pub trait Value: Copy {
    /// Returns the value of a number, or of the index of a word.
    fn from_raw(raw: u32) -> Self;
    /// Returns the number, or the index of the word.
    fn raw(self) -> u32;
}

impl Value for u32 {
    fn from_raw(raw: u32) -> Self {
        raw
    }
    fn raw(self) -> u32 {
        self
    }
}

impl Value for bool {
    fn from_raw(raw: u32) -> Self {
        raw != 0
    }
    fn raw(self) -> u32 {
        self.into()
    }
}

/// A set of parameters that can be set by name. [`parameters!`](crate::parameters!) defines types of it.
pub trait Parameters {
    /// The parameters.
    const TABLE: &'static [Parameter];
    /// Sets the parameter of this row of the table.
    fn put(&mut self, index: usize, raw: u32);
    /// Returns the parameter of this row of the table.
    fn raw(&self, index: usize) -> u32;

    /// Sets a parameter from its name and value. Returns `false` if the set does not have this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not in the range of the parameter.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        let Some(index) =
            Self::TABLE.iter().position(|row| row.name == name || !name.is_empty() && row.alias == name)
        else {
            return Ok(false);
        };
        let Some(row) = Self::TABLE.get(index) else { return Ok(false) };
        let raw = row.range.read(value).ok_or_else(|| ParameterError::OutOfRange {
            name: row.name,
            value: value.to_owned(),
            range: row.range,
            unit: row.unit,
        })?;
        self.put(index, raw);
        Ok(true)
    }

    /// Moves every number into its range. The fields are public, so values may not have been parsed from
    /// text.
    fn in_range(mut self) -> Self
    where
        Self: Sized,
    {
        for (index, row) in Self::TABLE.iter().enumerate() {
            if let ParameterRange::Number(least, most) = row.range {
                let raw = self.raw(index).max(least).min(most);
                self.put(index, raw);
            }
        }
        self
    }

    /// Returns each parameter with its value as text.
    fn list(&self) -> Vec<(&'static Parameter, String)> {
        let text = |(index, row): (usize, &'static Parameter)| match row.range {
            ParameterRange::Number(..) => (row, self.raw(index).to_string()),
            ParameterRange::Words(words) => {
                (row, words.get(self.raw(index) as usize).copied().unwrap_or_default().to_owned())
            }
        };
        Self::TABLE.iter().enumerate().map(text).collect()
    }

    /// Writes all parameters as `name=value`, separated by commas.
    fn write(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(&self.list(), "", formatter)
    }
}

/// Writes parameters as `name=value`, separated by commas, and `before` the first one.
pub(crate) fn write_list(list: &List, before: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, (row, value)) in list.iter().enumerate() {
        let separator = if index > 0 { "," } else { before };
        write!(formatter, "{separator}{}={value}", row.name)?;
    }
    Ok(())
}

/// No parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoParameters;

impl Parameters for NoParameters {
    const TABLE: &'static [Parameter] = &[];
    fn put(&mut self, _index: usize, _raw: u32) {}
    fn raw(&self, _index: usize) -> u32 {
        0
    }
}

/// Splits `name=value`.
pub fn split(piece: &str) -> Result<(&str, &str), ParameterError> {
    piece.split_once('=').ok_or_else(|| ParameterError::Form { text: piece.to_owned() })
}

/// Returns the error for a name that none of these tables contains.
pub fn unknown(name: &str, tables: &[&'static [Parameter]]) -> ParameterError {
    let mut known = String::new();
    for row in tables.iter().flat_map(|table| table.iter()) {
        if !known.is_empty() {
            known.push_str(", ");
        }
        known.push_str(row.name);
    }
    ParameterError::Unknown { name: name.to_owned(), known }
}

/// Defines a struct of parameters that text can set, as `name=value`, with the type, default, range, unit and
/// second name of each. The comment of a field becomes its description in tools. Types are `u32` and `bool`,
/// or any other [`Value`].
///
/// ```
/// use roce_congestion::ParameterRange::Number;
/// use roce_congestion::parameters;
///
/// parameters! {
///     /// The parameters of my algorithm.
///     pub struct Mine {
///         /// Rise of the rate in each period.
///         step: u32 = 100, Number(1, 100_000), "Mbps", "";
///         /// Time between two rises.
///         period: u32 = 50, Number(1, 1_000_000), "us", "";
///     }
/// }
///
/// assert_eq!(Mine::default().to_string(), "step=100,period=50");
/// ```
#[macro_export]
macro_rules! parameters {
    (
        $(#[$outer:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $default:expr, $range:expr, $unit:literal, $alias:literal;
            )+
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $name {
            /// All parameters, in the order in which text lists them.
            pub const PARAMETERS: &'static [$crate::parameters::Parameter] = {
                &[$($crate::parameters::Parameter {
                    name: stringify!($field), alias: $alias, unit: $unit, range: $range, meaning: concat!($($doc),+).trim_ascii(),
                },)+]
            };

            /// Returns each parameter with its value as text.
            #[must_use]
            pub fn parameters(
                &self,
            ) -> $crate::parameters::List {
                $crate::parameters::Parameters::list(self)
            }
        }

        impl $crate::parameters::Parameters for $name {
            const TABLE: &'static [$crate::parameters::Parameter] = Self::PARAMETERS;

            fn put(&mut self, index: usize, raw: u32) {
                let mut at = 0;
                $(
                    if at == index {
                        self.$field = $crate::parameters::Value::from_raw(raw);
                    }
                    at += 1;
                )+
                let _ = at;
            }

            fn raw(&self, index: usize) -> u32 {
                [$($crate::parameters::Value::raw(self.$field)),+]
                    .get(index)
                    .copied()
                    .unwrap_or_default()
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::parameters::Parameters::write(self, formatter)
            }
        }
    };
}
pub(crate) use crate::parameters;
