//! Options that take one of several names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A value of an option: its name, its help, and the value of the tool.
pub(super) type Choice<T> = (&'static str, &'static str, T);

/// Returns the parser of an option that takes one of these names.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    choices: &'static [Choice<T>],
) -> impl TypedValueParser<Value = T> {
    let names = choices.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(move |text| {
        // The inner parser has refused unknown names. It ignores case if the option does.
        let found = choices.iter().find(|(name, ..)| name.eq_ignore_ascii_case(&text));
        found.map(|(.., value)| *value).ok_or("unknown value")
    })
}
