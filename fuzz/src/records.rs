//! Reads inputs of targets that work step by step: records of fixed size, one step each.

/// Maximum number of steps. Longer inputs find nothing new and only make the fuzzer slower.
const MOST_STEPS: usize = 256;

/// Returns the records of an input. An incomplete record at the end is ignored.
pub fn records<const LEN: usize>(data: &[u8]) -> impl Iterator<Item = &[u8; LEN]> {
    data.as_chunks().0.iter().take(MOST_STEPS)
}

/// Returns the byte by which a record refers to `one` of `all`.
pub fn index_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}
