//! How inputs are read by the targets that drive something step by step: records of fixed size, one step each.

/// More steps than this teach nothing new and only make the fuzzer slow.
const MOST_STEPS: usize = 256;

/// The records of an input; an incomplete record at the end is ignored.
pub fn records<const LEN: usize>(data: &[u8]) -> impl Iterator<Item = &[u8; LEN]> {
    data.as_chunks().0.iter().take(MOST_STEPS)
}

/// The byte by which a record names one of `all`.
pub fn index_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|index| u8::try_from(index).ok()).unwrap_or(0)
}
