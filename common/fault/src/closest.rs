//! Suggestions for misspelled names.

/// Returns the known name most similar to `name`, if the two differ in at most a quarter of the letters. A
/// difference of one letter is always allowed.
///
/// ```
/// use roce_fault::closest;
///
/// assert_eq!(closest("two-to-on", ["incast", "two-to-one"]), Some("two-to-one"));
/// assert_eq!(closest("dorp", ["drop", "dup"]), Some("drop"));
/// assert_eq!(closest("speed", ["seed", "hosts", "kind"]), Some("seed"));
/// assert_eq!(closest("x", ["drop", "dup"]), None);
/// ```
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 4).max(1);
    known
        .into_iter()
        .map(|it| (strsim::osa_distance(name, it), it))
        // A name in which every letter differs is not a misspelling.
        .filter(|(distance, it)| *distance <= allowed && *distance < it.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, it)| it)
}
