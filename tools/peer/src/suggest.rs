//! Messages about unknown words, with suggestions for misspelled ones.

/// Returns the end of a message about a misspelled word, if a known word is similar.
pub(crate) fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    roce_fault::closest(name, known)
        .map_or_else(String::new, |closest| format!("; did you mean `{closest}`?"))
}

/// Returns the entry of a list with this name. `what` describes the entries.
pub(crate) fn one_of<T: Copy>(name: &str, what: &str, list: &[(&'static str, T)]) -> Result<T, String> {
    let names = || list.iter().map(|(name, _)| *name);
    list.iter().find(|(known, _)| *known == name).map(|(_, value)| *value).ok_or_else(|| {
        let all = names().collect::<Vec<_>>().join(", ");
        format!("`{name}` is not {what}{}; one of {all} is expected", suggestion(name, names()))
    })
}

/// Returns the message for an unknown name, with the known ones.
pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let all = known.clone().collect::<Vec<_>>().join(", ");
    format!("`{name}` is not a {what}{}; known are {all}", suggestion(name, known))
}
