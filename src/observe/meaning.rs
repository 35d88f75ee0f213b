//! Meanings of counters, from the page of the reference.

/// The page, which is part of the package.
const PAGE: &str = include_str!("../../docs/reference/counters.md");

/// Returns the meaning of a counter: the column `meaning` of its row in `docs/reference/counters.md`. Returns
/// `None` if the page has no such row.
///
/// ```
/// use roce::observe::meaning;
///
/// assert_eq!(meaning("udp_tx_datagrams").as_deref(), Some("datagrams sent"));
/// ```
#[must_use]
pub fn meaning(name: &str) -> Option<String> {
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim);
    let row_of = format!("| `{name}` |");
    let mut column = None;
    for line in PAGE.lines().filter(|line| line.starts_with('|')) {
        if line.starts_with("| name |") {
            column = cells(line).position(|cell| cell == "meaning");
        } else if line.starts_with(&row_of) {
            return cells(line).nth(column?).map(|cell| cell.replace('`', ""));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_other_columns_have_meanings_too() {
        assert_eq!(meaning("rdma_tx_packets").as_deref(), Some("packets sent"));
        assert_eq!(meaning("cm_stale").unwrap().split(' ').next(), Some("requests"));
        assert_eq!(meaning("no_such_counter"), None);
        assert_eq!(meaning("name"), None);
    }
}
